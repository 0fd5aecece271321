"""`AsyncQueue`: the twin of `Queue`, with `await`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Generic, Unpack, overload
from zoneinfo import ZoneInfo

import redis
import redis.asyncio

from headrace._async.completed import completed
from headrace._async.events import AsyncEventStream
from headrace._async.lease import AsyncLease
from headrace._async.producing import AsyncProducing
from headrace._async.waiters import AsyncWaiters
from headrace._base.address import Address
from headrace._base.closing import AsyncClosing
from headrace._base.connected import Timeout
from headrace._base.queue import Delay
from headrace._core import calls
from headrace._model.codec import Codec
from headrace._model.job import Job, NewJob
from headrace._model.payload import Plain, T
from headrace._model.settings import QueueOptions, QueueSettings, with_options
from headrace._model.state import Counts, JobState, Repairs, Schedule, WorkerState
from headrace._protocol.limits import JOBS_PER_SCRIPT


class AsyncQueue(AsyncClosing, AsyncProducing[T], Generic[T]):
    """Like `Queue`, for asyncio; *client* is a `redis.asyncio.Redis`. For one event loop."""

    @overload
    def __init__(
        self: AsyncQueue[bytes], name: str, *, url: str | None = None, client: redis.asyncio.Redis | None = None,
        namespace: str = "headrace", codec: None = None, **options: Unpack[QueueOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, name: str, *, url: str | None = None, client: redis.asyncio.Redis | None = None,
        namespace: str = "headrace", codec: Codec[T], **options: Unpack[QueueOptions],
    ) -> None: ...  # fmt: skip
    @with_options()
    def __init__(
        self, name: str, *, url: str | None = None, client: redis.asyncio.Redis | None = None,
        namespace: str = "headrace", codec: Codec[Any] | None = None, **options: Unpack[QueueOptions],
    ) -> None:  # fmt: skip
        settings = QueueSettings.of(type(self).__name__, options)
        super().__init__(name, Address.of(url, client, redis.asyncio.Redis, self), settings, codec, namespace)

    _completed = staticmethod(completed)

    @cached_property
    def _waiters(self) -> AsyncWaiters:
        return AsyncWaiters(self.ops, self._executor)

    async def lease(
        self, block: float | timedelta | None = 0.0, *, duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> AsyncLease[T] | None:  # fmt: skip
        """Like `Queue.lease`."""
        leases = await self.lease_many(1, block, duration=duration, at_most_once=at_most_once)
        return leases[0] if leases else None

    async def lease_many(
        self, n: int, block: float | timedelta | None = 0.0, *, duration: float | timedelta | None = None,
        at_most_once: bool = False,
    ) -> list[AsyncLease[T]]:  # fmt: skip
        """Like `Queue.lease_many`."""
        if self._undeclared and self.ops.settings.history is not None:
            await self._declare()
        claims = await self._drive(*self._leasing(n, block, duration, at_most_once))
        try:
            return [AsyncLease(claim, self) for claim in claims]
        except BaseException:  # interrupted
            self._executor.undo(self._peer.release(claims))
            raise

    async def complete(
        self,
        lease: AsyncLease[T],
        result: Any = None,
        then: Sequence[NewJob[Any]] = (),
        fenced: bool | None = None,
        *,
        timeout: Timeout = None,
    ) -> bool:
        """Like `Queue.complete`."""
        return (await self._run(*self._complete(lease, result, then, fenced), timeout))[0]

    async def complete_many(
        self, leases: Sequence[AsyncLease[T]], fenced: bool | None = None, *, timeout: Timeout = None
    ) -> list[bool]:
        """Like `Queue.complete_many`."""
        return await self._drive(*self._complete_many(leases, fenced), timeout)

    async def release(self, lease: AsyncLease[T], *, timeout: Timeout = None) -> bool:
        """Like `Queue.release`."""
        return (await self._run(*self._settle(lambda claim: self.ops.release([claim]), lease), timeout))[0]

    async def retry(
        self, lease: AsyncLease[T], delay: Delay = 0.0, reason: str | BaseException = "", *, timeout: Timeout = None
    ) -> bool:
        """Like `Queue.retry`."""
        cause = self._cause(reason)
        settling = self._settle(lambda claim: self.ops.retry([(claim, delay, True, cause)]), lease)
        return (await self._run(*settling, timeout))[0]

    async def dead_letter(self, lease: AsyncLease[T], reason: str | BaseException, *, timeout: Timeout = None) -> bool:
        """Like `Queue.dead_letter`."""
        cause = self._cause(reason)
        settling = self._settle(lambda claim: self.ops.dead_letter([(claim, cause)]), lease)
        return (await self._run(*settling, timeout))[0]

    async def renew(
        self, lease: AsyncLease[T], duration: float | timedelta | None = None, *, timeout: Timeout = None
    ) -> bool:
        """Like `Queue.renew`."""
        return (await self._run(self._renew(lease, duration), None, timeout))[0]

    @overload
    async def result(self: AsyncQueue[bytes], id: str, timeout: float | timedelta | None = None) -> bytes | None: ...
    @overload
    async def result(self, id: str, timeout: float | timedelta | None = None) -> Any: ...
    async def result(self, id: str, timeout: float | timedelta | None = None) -> Any:
        """Like `Queue.result`."""
        return await self._drive(self._result(id, timeout))

    @overload
    async def results(
        self: AsyncQueue[bytes], ids: Iterable[str], timeout: float | timedelta | None = None
    ) -> dict[str, bytes]: ...
    @overload
    async def results(self, ids: Iterable[str], timeout: float | timedelta | None = None) -> dict[str, Any]: ...
    async def results(self, ids: Iterable[str], timeout: float | timedelta | None = None) -> dict[str, Any]:
        """Like `Queue.results`."""
        return await self._drive(self._results(ids, timeout))

    async def _each(self, state: str, limit: int = 200) -> AsyncIterator[JobState[T]]:
        cursor, more = "", True
        while more:
            page = await self._run(self.ops.listing(state, cursor, limit))
            for item in page:
                yield item
            cursor, more = page.cursor, bool(page.cursor)

    async def cancel(self, id: str, *, timeout: Timeout = None) -> bool:
        """Like `Queue.cancel`."""
        return await self._run(self.ops.cancel(id), None, timeout)

    @overload
    async def cancel_payload(self: AsyncQueue[bytes], payload: Plain) -> int: ...
    @overload
    async def cancel_payload(self, payload: T) -> int: ...
    async def cancel_payload(self, payload: Any) -> int:
        """Like `Queue.cancel_payload`."""
        return await self._drive(self._payload(payload))

    async def counts(self, *, timeout: Timeout = None) -> Counts:
        """Like `Queue.counts`."""
        return await self._run(self.ops.counts(), None, timeout)

    async def peek(self) -> Job[T] | None:
        """Like `Queue.peek`."""
        async for item in self._each("waiting", 1):
            return item.job
        return None

    def waiting(self) -> AsyncIterator[JobState[T]]:
        """Like `Queue.waiting`."""
        return self._each("waiting")

    def running(self) -> AsyncIterator[JobState[T]]:
        """Like `Queue.running`."""
        return self._each("running")

    def delayed(self) -> AsyncIterator[JobState[T]]:
        """Like `Queue.delayed`."""
        return self._each("delayed")

    def dead(self) -> AsyncIterator[JobState[T]]:
        """Like `Queue.dead`."""
        return self._each("dead")

    async def find(self, id: str, *, timeout: Timeout = None) -> JobState[T] | None:
        """Like `Queue.find`."""
        return await self._drive(calls.find(self.ops, id), None, timeout)

    async def position(self, id: str) -> int | None:
        """Like `Queue.position`."""
        return await self._drive(calls.position(self.ops, id))

    async def redrive(self, *ids: str) -> int:
        """Like `Queue.redrive`."""
        return await self._drive(calls.by_ids(self.ops.redrive, ids, JOBS_PER_SCRIPT))

    async def purge_dead(self, *ids: str) -> int:
        """Like `Queue.purge_dead`."""
        return await self._drive(calls.by_ids(self.ops.purge_dead, ids, JOBS_PER_SCRIPT))

    async def purge(self) -> int:
        """Like `Queue.purge`."""
        return await self._drive(calls.purge(self.ops))

    async def delete(self) -> int:
        """Like `Queue.delete`."""
        return await self._drive(calls.until_done(self.ops.delete))

    async def pause(self) -> bool:
        """Like `Queue.pause`."""
        return await self._run(self.ops.pause(True))

    async def resume(self) -> bool:
        """Like `Queue.resume`."""
        return await self._run(self.ops.pause(False))

    async def paused(self) -> bool:
        """Like `Queue.paused`."""
        return await self._run(self.ops.paused())

    async def levels(self) -> int:
        """Like `Queue.levels`."""
        return await self._run(self.ops.levels())

    async def drain(self, timeout: float | timedelta | None = None) -> bool:
        """Like `Queue.drain`."""
        return await self._drive(self._drain(timeout))

    async def move(self, to: str, *ids: str) -> int:
        """Like `Queue.move`."""
        return await self._drive(self._move(to, ids))

    async def expire(self, *ids: str) -> int:
        """Like `Queue.expire`."""
        return await self._drive(calls.by_ids(self.ops.expire, ids, 500))

    async def fail_worker(self, name: str) -> int:
        """Like `Queue.fail_worker`."""
        return await self._drive(calls.until_done(lambda: self.ops.fail_worker(name)))

    async def repair(self) -> Repairs:
        """Like `Queue.repair`."""
        return await self._drive(calls.repair(self.ops))

    async def workers(self) -> list[WorkerState]:
        """Like `Queue.workers`."""
        return await self._run(self.ops.workers())

    def events(self, kinds: Iterable[str] | None = None, timeout: float | timedelta | None = None) -> AsyncEventStream:
        """Like `Queue.events`."""
        return AsyncEventStream(self.ops, self._executor, *self._listening(kinds, timeout))

    async def reschedule(self, id: str, delay: Delay) -> bool:
        """Like `Queue.reschedule`."""
        return await self._run(self.ops.reschedule(id, delay))

    @overload
    async def schedule(
        self: AsyncQueue[bytes], name: str, payload: Plain, *, every: float | timedelta | None = None,
        cron: str | None = None, timezone: str | ZoneInfo | None = None, missed: str = "once",
        headers: Mapping[str, str] | None = None, priority: int = 0,
    ) -> bool: ...  # fmt: skip
    @overload
    async def schedule(
        self, name: str, payload: T, *, every: float | timedelta | None = None, cron: str | None = None,
        timezone: str | ZoneInfo | None = None, missed: str = "once", headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> bool: ...  # fmt: skip
    async def schedule(
        self, name: str, payload: Any, *, every: float | timedelta | None = None, cron: str | None = None,
        timezone: str | ZoneInfo | None = None, missed: str = "once", headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> bool:  # fmt: skip
        """Like `Queue.schedule`."""
        job = NewJob(payload, headers=headers, priority=priority)
        return await self._drive(self._schedule(name, job, every, cron, timezone, missed))

    async def unschedule(self, name: str) -> bool:
        """Like `Queue.unschedule`."""
        return await self._run(self.ops.unschedule(name))

    async def schedules(self) -> list[Schedule]:
        """Like `Queue.schedules`."""
        return await self._drive(calls.schedules(self.ops))

    async def close(self) -> None:
        """Like `Queue.close`."""
        if self._address.executor is not None:
            await self._waiters.close()
            await self._executor.close(self._parting())
        self._part()
