"""`AsyncProducing`: the part of a queue that adds jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Unpack, overload

from headrace._api.aio.colour import Stream, each
from headrace._api.queue import BaseQueue, Delay
from headrace._core.queue.streaming import BatchBuffer
from headrace._model.job import NewJob, Plain, T
from headrace._model.policy import Conditions, Full, with_conditions
from headrace._model.receipt import AsyncReceipt
from headrace._net.aio.driver import AsyncDriver
from headrace._net.base.address import Timeout
from headrace._protocol.limits import COURTESY_S
from headrace.errors import NotDurable


class AsyncProducing(AsyncDriver, BaseQueue, Generic[T]):
    """The part of a queue that adds jobs."""

    _receipt = AsyncReceipt

    @overload
    async def enqueue(
        self: AsyncProducing[bytes], payload: Plain | NewJob[Plain], *, id: str | None = None, delay: Delay = None,
        priority: int = 0, headers: Mapping[str, str] | None = None, timeout: Timeout = None,
        full: Full | None = None, durable: str | None = None, key: str | None = None, **conditions: Unpack[Conditions],
    ) -> AsyncReceipt: ...  # fmt: skip
    @overload
    async def enqueue(
        self, payload: T | NewJob[T], *, id: str | None = None, delay: Delay = None, priority: int = 0,
        headers: Mapping[str, str] | None = None, timeout: Timeout = None,
        full: Full | None = None, durable: str | None = None, key: str | None = None, **conditions: Unpack[Conditions],
    ) -> AsyncReceipt: ...  # fmt: skip
    @with_conditions
    async def enqueue(
        self, payload: Any, *, id: str | None = None, delay: Delay = None, priority: int = 0,
        headers: Mapping[str, str] | None = None, timeout: Timeout = None,
        full: Full | None = None, durable: str | None = None, key: str | None = None, **conditions: Unpack[Conditions],
    ) -> AsyncReceipt:  # fmt: skip
        """Add a job to the back, or after *delay* (seconds, `timedelta`, aware `datetime`; server time).

        With *id*, a job of that id that is waiting, running or delayed is left as it is: `added=False`. *if_exists*
        decides otherwise for a job that has not begun: `Debounce(seconds)` puts it off, `Replace()` gives it this
        payload, `Throttle(seconds)` drops later jobs. The receipt's `outcome` says which. *unique_for*: seconds, or a
        `timedelta`, for which the id stays taken after its job was completed.

        A job that is leased, or was ever tried, is left as it is. *full*: where `max_waiting` jobs wait already,
        `raise` `QueueFull`, or `block` until there is room, for *timeout* seconds at most; the queue's, if not given.
        *key*: a text shared by jobs that belong together: `job.key`; a sharded queue keeps them in one shard.
        *durable*: how far the write must have come, `replicas:1`, `fsync` or `replicas:1,fsync`; else the queue's.
        Raises `NotDurable` if it has not after two seconds, with the receipt: the job is in the queue. One script,
        O(1): enqueue.lua; with any of these, or `max_waiting` or `unique_for` of the queue, enqueue_if.lua.
        """
        plain = timeout is None and full is None and durable is None and key is None and not conditions
        data = self._plain(payload, id, headers, delay, priority) if plain else None
        if data is not None:
            receipt: AsyncReceipt = self._added(await self._executor.run_prepared(self._prepared, data))
        else:
            job, durability = self._job(payload, id, headers, delay, priority, key, conditions), self._durable(durable)
            if not self._verbs.map.known:
                await self._drive(self._verbs.map.look(), None, timeout)
            try:
                if self._admits(job, full):
                    added = await self._drive(*self._admit(job, full, timeout, durability), timeout)
                else:
                    added = await self._run(*self._new(job, durability), timeout)
            except NotDurable as error:
                self._not_durable(error)
                raise
            receipt = self._bound(added)[0]
        if self._undeclared:
            await self._declare()
        return receipt

    @overload
    async def enqueue_many(
        self: AsyncProducing[bytes], jobs: Iterable[Plain | NewJob[Plain]], *, trace_each: bool = False,
        timeout: Timeout = None, full: Full | None = None, durable: str | None = None,
    ) -> list[AsyncReceipt]: ...  # fmt: skip
    @overload
    async def enqueue_many(
        self, jobs: Iterable[T | NewJob[T]], *, trace_each: bool = False, timeout: Timeout = None,
        full: Full | None = None, durable: str | None = None,
    ) -> list[AsyncReceipt]: ...  # fmt: skip
    async def enqueue_many(
        self, jobs: Iterable[Any], *, trace_each: bool = False, timeout: Timeout = None,
        full: Full | None = None, durable: str | None = None,
    ) -> list[AsyncReceipt]:  # fmt: skip
        """Add payloads or `NewJob`s, any number; return a receipt each, in order.

        All are checked first: a bad one means that nothing was sent. Then they go in parts of bounded size, each
        atomic. If a part fails, the parts before it are in the queue, the later parts are not, and the error's
        `receipts` are for the earlier parts. If the jobs have ids, the whole call can be repeated. One script a part,
        1.5-2 µs of server time per job. *trace_each*: if there is tracing, make a span for each job, not only one for
        all. If the queue has `max_waiting`, a part is a tenth of that at most, and a part is added whole, or not at all
        if there is no room: *full* decides, as for `enqueue`. Conditions are set in each `NewJob`. *durable* as for
        `enqueue`: waited for once, behind the last part, or behind each one if there are conditions. In a sharded queue
        a part is of one shard, and the error's `receipts` are of all jobs, `None` if not surely in.
        """
        receipts: list[AsyncReceipt] = await self._drive(*self._many(jobs, trace_each, full, timeout, durable), timeout)
        if self._undeclared:
            await self._declare()
        return receipts

    @overload
    async def enqueue_stream(
        self: AsyncProducing[bytes], jobs: Stream[Plain | NewJob[Plain]],
        progress: Callable[[int], object] | None = None, *, timeout: Timeout = None, full: Full | None = None,
    ) -> int: ...  # fmt: skip
    @overload
    async def enqueue_stream(
        self, jobs: Stream[T | NewJob[T]],
        progress: Callable[[int], object] | None = None, *, timeout: Timeout = None, full: Full | None = None,
    ) -> int: ...  # fmt: skip
    async def enqueue_stream(
        self, jobs: Stream[Any], progress: Callable[[int], object] | None = None, *,
        timeout: Timeout = None, full: Full | None = None, durable: str | None = None,
    ) -> int:  # fmt: skip
        """Add payloads or `NewJob`s, any number, as they come; return how many. Memory stays as it is.

        As `enqueue_many` of a bounded number of jobs at a time; *progress* is called after each, with the number of
        jobs that are in. Raises `StreamStopped` from the error that ended it early, also an error of the iterable: its
        `position` says how many jobs from the start are surely in, so that a repetition may skip them. Give jobs ids,
        and it may repeat some. *timeout* bounds each part, but not the iterable's own time. With `full="block"`, a full
        queue holds the stream back for *timeout* at most. *jobs* may be asynchronous.
        """
        buffer = BatchBuffer(progress)
        try:
            async for job in each(jobs):
                if buffer.full(job):
                    buffer.sent(await self.enqueue_many(buffer.part, timeout=timeout, full=full, durable=durable))
            if buffer.part:
                buffer.sent(await self.enqueue_many(buffer.part, timeout=timeout, full=full, durable=durable))
        except Exception as error:
            raise buffer.stopped(error) from error
        return buffer.position

    async def _declare(self) -> None:
        for declaration in self._declarations():
            answer = await self._executor.attempt(declaration, COURTESY_S)  # once more, as a connection may be cut
            self._declares(answer or await self._executor.attempt(declaration, COURTESY_S))
