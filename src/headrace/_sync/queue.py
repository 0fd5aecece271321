"""`Queue` and `AsyncQueue`: the verbs, side by side. What they send is in `_ops`, how in `_execute`.

The two are twins: the same names and arguments, `await` the only difference (a test holds them to it).
Every method may raise redis-py's transport errors once the retries of about 45 s are used up; a method that
is called with bad arguments raises `ValueError` or `TypeError`, and nothing was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import redis
import redis.asyncio

from headrace._codec import Codec
from headrace._control import AsyncControl, Control
from headrace._execute import AsyncExecutor, Executor
from headrace._face import Delay, Handle
from headrace._job import NewJob, Receipt
from headrace._line import AsyncNotices, Notices
from headrace._settings import Rate


class Lease(Handle["Queue"]):
    """A claim on a job until a deadline, and the handle that settles it."""

    def complete(self, result: Any = None, then: Sequence[NewJob] = (), fenced: bool | None = None) -> bool:
        """Like `Queue.complete`."""
        return self._queue.complete(self, result, then, fenced)

    def release(self) -> bool:
        """Like `Queue.release`."""
        return self._queue.release(self)

    def retry(self, delay: Delay = 0.0, reason: str = "") -> bool:
        """Like `Queue.retry`."""
        return self._queue.retry(self, delay, reason)

    def dead_letter(self, reason: str) -> bool:
        """Like `Queue.dead_letter`."""
        return self._queue.dead_letter(self, reason)

    def renew(self, duration: float | timedelta | None = None) -> bool:
        """Like `Queue.renew`."""
        return self._queue.renew(self, duration)


class AsyncLease(Handle["AsyncQueue"]):
    """Like `Lease`; its methods are awaited."""

    async def complete(self, result: Any = None, then: Sequence[NewJob] = (), fenced: bool | None = None) -> bool:
        """Like `Queue.complete`."""
        return await self._queue.complete(self, result, then, fenced)

    async def release(self) -> bool:
        """Like `Queue.release`."""
        return await self._queue.release(self)

    async def retry(self, delay: Delay = 0.0, reason: str = "") -> bool:
        """Like `Queue.retry`."""
        return await self._queue.retry(self, delay, reason)

    async def dead_letter(self, reason: str) -> bool:
        """Like `Queue.dead_letter`."""
        return await self._queue.dead_letter(self, reason)

    async def renew(self, duration: float | timedelta | None = None) -> bool:
        """Like `Queue.renew`."""
        return await self._queue.renew(self, duration)


class Queue(Control):
    """A named, ordered set of jobs on Redis Streams.

    - *name*: 1-200 letters, digits, `.`, `_`, `-`, and at most one `/` behind the group's name.
    - *url* or *client*: a `redis://`, `rediss://`, `unix://` or `embedded:DIR` URL (default `HEADRACE_URL`, then
      `REDIS_URL`), or a `redis.Redis` of yours, whose settings we use for connections of our own.
    - *lease*: seconds a lease lasts. *max_attempts*: deliveries before a job is dead (`None`: no end).
    - *dead_limit*: dead letters kept. *result_ttl*: seconds a result is kept. *fenced*: `complete` asks for the
      present holder instead of letting the first completer win. *codec*: see `JSONCodec`.
    - *priorities*: levels, 1-10: all jobs of level 0 (the default) come before any of level 1, and so on. *ageing*:
      seconds after which a job that waits goes to the level before its own, so that none waits for ever.

    One object may be shared by threads, and survives a fork.
    """

    def __init__(
        self, name: str, *, url: str | None = None, client: redis.Redis | None = None, namespace: str = "headrace",
        lease: float | timedelta = 60.0, max_attempts: int | None = None, priorities: int = 1,
        codec: Codec | None = None, dead_limit: int = 1000, result_ttl: float | timedelta = 86400,
        fenced: bool = False, rate: Rate | Sequence[Rate] | None = None, ageing: float | timedelta | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            name, url, client, redis.Redis, namespace, lease, max_attempts, priorities, codec, dead_limit, result_ttl,
            fenced, rate, ageing,
        )  # fmt: skip
        self._executor = Executor(self._url, client)
        self._notices = Notices(self.ops, self._executor)
        self._seen(self._executor.pool)

    def enqueue(
        self, payload: Any, *, id: str | None = None, delay: Delay = None, priority: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:  # fmt: skip
        """Add a job to the back, or after *delay* (seconds, `timedelta`, aware `datetime`; server time).

        With *id*, a job of that id that is waiting, running or delayed is left as it is: `added=False`.
        One script (enqueue.lua), O(1).
        """
        return self._run(*self._new(payload, id, headers, delay, priority))[0]

    def enqueue_many(self, jobs: Iterable[Any], *, trace_each: bool = False) -> list[Receipt]:
        """Add payloads or `NewJob`s, any number; a receipt each, in order.

        All are checked first: a bad one means that nothing was sent. Then they go in parts of at most
        1,000 jobs or about 1 MiB, each atomic. If a part fails, the parts before it are in the queue, those
        behind it are not, and the error's `receipts` are those of the former; enqueue with ids and the whole
        call can be repeated. One script a part, 1.5-2 µs of server time per job. *trace_each*: if somebody traces, make
        a span for each job, not only one for all.
        """
        return self._drive(*self._many(jobs, trace_each))

    def lease(
        self, block: float | timedelta | None = 0.0, *, duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> Lease | None:  # fmt: skip
        """The next job, or `None` if there is none within *block* seconds (0: do not wait; `None`: for ever).

        *duration*: seconds of this lease. *at_most_once*: complete the job before handing it out. Jobs that do
        not decode go to the dead letters on the way. Also reclaims and promotes what is due, at most
        once a second. One script (lease.lua); while waiting, one `XREADGROUP … BLOCK` a second.
        """
        leases = self.lease_many(1, block, duration=duration, at_most_once=at_most_once)
        return leases[0] if leases else None

    def lease_many(
        self, n: int, block: float | timedelta | None = 0.0, *, duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> list[Lease]:  # fmt: skip
        """Like `lease`, up to *n* jobs: waits for the first, takes what else is there. 1.5-2.5 µs a job."""
        return [Lease(claim, self) for claim in self._drive(*self._leasing(n, block, duration, at_most_once))]

    def complete(
        self,
        lease: Lease,
        result: Any = None,
        then: Sequence[NewJob] = (),
        fenced: bool | None = None,
    ) -> bool:
        """Remove the job for good. `True` for exactly one caller, ever, also if its reply was lost on the way.

        Only for that caller: *result* (encoded by the codec) is kept for `result_ttl`, and the jobs of *then* are
        enqueued (in queues of the same group), in the same script. *fenced*: only the present holder wins.
        One script (complete.lua), O(1).
        """
        return self._run(*self._complete(lease, result, then, fenced))[0]

    def complete_many(self, leases: Sequence[Lease], fenced: bool | None = None) -> list[bool]:
        """Like `complete`, a verdict each, in order. One script per 1,000, 2-3.5 µs a job."""
        return self._drive(*self._complete_many(leases, fenced))

    def release(self, lease: Lease) -> bool:
        """Give the job back untouched, to the front. No attempt is spent. `False`: the lease was lost. release.lua."""
        return self._run(*self._settle(lambda claim: self.ops.release([claim]), lease))[0]

    def retry(self, lease: Lease, delay: Delay = 0.0, reason: str = "") -> bool:
        """Try the job again later: to the back, or after *delay*. An attempt is spent; the last one goes to the dead
        letters with *reason*. `False`: the lease was lost. retry.lua.
        """
        return self._run(*self._settle(lambda claim: self.ops.retry([(claim, delay, True, reason)]), lease))[0]

    def dead_letter(self, lease: Lease, reason: str) -> bool:
        """It will never work: out of the queue, kept with *reason*. `False`: the lease was lost. dead_letter.lua."""
        return self._run(*self._settle(lambda claim: self.ops.dead_letter([(claim, reason)]), lease))[0]

    def renew(self, lease: Lease, duration: float | timedelta | None = None) -> bool:
        """Make the lease last again from now. `False`: it is somebody else's, or the job is gone. renew.lua."""
        return self._run(self._renew(lease, duration))[0]

    def result(self, id: str, timeout: float | timedelta | None = None) -> bytes | None:
        """What the job's completion kept (raw bytes), waiting up to *timeout* seconds for it.

        `None` if there is nothing, and as soon as a job that is waited for ends without a result: completed with none,
        dead, cancelled or deleted. All who wait share one subscription. result.lua, and every 5 seconds while waiting.
        """
        return self._drive(self._result(id, timeout))

    def results(self, ids: Iterable[str], timeout: float | timedelta | None = None) -> dict[str, bytes]:
        """Like `result`, of any number of jobs: what there is, by id, waiting for the others."""
        return self._drive(self._results(ids, timeout))

    def close(self) -> None:
        """Close what we opened, nothing else. What this queue leased stays leased until its leases expire."""
        self._notices.close()
        self._executor.close()
        self._left()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class AsyncQueue(AsyncControl):
    """Like `Queue`, for asyncio; *client* is a `redis.asyncio.Redis`. For one event loop."""

    def __init__(
        self, name: str, *, url: str | None = None, client: redis.asyncio.Redis | None = None,
        namespace: str = "headrace", lease: float | timedelta = 60.0, max_attempts: int | None = None,
        priorities: int = 1, codec: Codec | None = None, dead_limit: int = 1000,
        result_ttl: float | timedelta = 86400, fenced: bool = False,
        rate: Rate | Sequence[Rate] | None = None, ageing: float | timedelta | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            name, url, client, redis.asyncio.Redis, namespace, lease, max_attempts, priorities, codec, dead_limit,
            result_ttl, fenced, rate, ageing,
        )  # fmt: skip
        self._executor = AsyncExecutor(self._url, client)
        self._notices = AsyncNotices(self.ops, self._executor)
        self._seen(self._executor.pool)

    async def enqueue(
        self, payload: Any, *, id: str | None = None, delay: Delay = None, priority: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:  # fmt: skip
        """Like `Queue.enqueue`."""
        return (await self._run(*self._new(payload, id, headers, delay, priority)))[0]

    async def enqueue_many(self, jobs: Iterable[Any], *, trace_each: bool = False) -> list[Receipt]:
        """Like `Queue.enqueue_many`."""
        return await self._drive(*self._many(jobs, trace_each))

    async def lease(
        self, block: float | timedelta | None = 0.0, *, duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> AsyncLease | None:  # fmt: skip
        """Like `Queue.lease`."""
        leases = await self.lease_many(1, block, duration=duration, at_most_once=at_most_once)
        return leases[0] if leases else None

    async def lease_many(
        self, n: int, block: float | timedelta | None = 0.0, *, duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> list[AsyncLease]:  # fmt: skip
        """Like `Queue.lease_many`."""
        return [
            AsyncLease(claim, self) for claim in await self._drive(*self._leasing(n, block, duration, at_most_once))
        ]

    async def complete(
        self,
        lease: AsyncLease,
        result: Any = None,
        then: Sequence[NewJob] = (),
        fenced: bool | None = None,
    ) -> bool:
        """Like `Queue.complete`."""
        return (await self._run(*self._complete(lease, result, then, fenced)))[0]

    async def complete_many(self, leases: Sequence[AsyncLease], fenced: bool | None = None) -> list[bool]:
        """Like `Queue.complete_many`."""
        return await self._drive(*self._complete_many(leases, fenced))

    async def release(self, lease: AsyncLease) -> bool:
        """Like `Queue.release`."""
        return (await self._run(*self._settle(lambda claim: self.ops.release([claim]), lease)))[0]

    async def retry(self, lease: AsyncLease, delay: Delay = 0.0, reason: str = "") -> bool:
        """Like `Queue.retry`."""
        return (await self._run(*self._settle(lambda claim: self.ops.retry([(claim, delay, True, reason)]), lease)))[0]

    async def dead_letter(self, lease: AsyncLease, reason: str) -> bool:
        """Like `Queue.dead_letter`."""
        return (await self._run(*self._settle(lambda claim: self.ops.dead_letter([(claim, reason)]), lease)))[0]

    async def renew(self, lease: AsyncLease, duration: float | timedelta | None = None) -> bool:
        """Like `Queue.renew`."""
        return (await self._run(self._renew(lease, duration)))[0]

    async def result(self, id: str, timeout: float | timedelta | None = None) -> bytes | None:
        """Like `Queue.result`."""
        return await self._drive(self._result(id, timeout))

    async def results(self, ids: Iterable[str], timeout: float | timedelta | None = None) -> dict[str, bytes]:
        """Like `Queue.results`."""
        return await self._drive(self._results(ids, timeout))

    async def close(self) -> None:
        """Like `Queue.close`."""
        await self._notices.close()
        await self._executor.close()
        self._left()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()
