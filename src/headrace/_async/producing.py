"""`AsyncProducing`: what an `AsyncQueue` does to add jobs; the twin of `Producing`, with `await`."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Generic, Unpack, overload

from headrace._async.driver import AsyncDriver
from headrace._base.connected import Timeout
from headrace._base.queue import DECLARING_S, BaseQueue, Delay
from headrace._core.streaming import Filling
from headrace._model.conditions import Conditions, Full
from headrace._model.job import NewJob
from headrace._model.payload import Plain, T
from headrace._model.receipt import AsyncReceipt


async def each(jobs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Yield what an iterable yields, an asynchronous one or not."""
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield job
    else:
        for job in jobs:
            yield job


class AsyncProducing(AsyncDriver, BaseQueue, Generic[T]):
    """Like `Producing`, for asyncio."""

    _receipt = AsyncReceipt

    @overload
    async def enqueue(
        self: AsyncProducing[bytes], payload: Plain | NewJob[Plain], *, id: str | None = None, delay: Delay = None,
        priority: int = 0, headers: Mapping[str, str] | None = None, timeout: Timeout = None,
        full: Full | None = None, **conditions: Unpack[Conditions],
    ) -> AsyncReceipt: ...  # fmt: skip
    @overload
    async def enqueue(
        self, payload: T | NewJob[T], *, id: str | None = None, delay: Delay = None, priority: int = 0,
        headers: Mapping[str, str] | None = None, timeout: Timeout = None,
        full: Full | None = None, **conditions: Unpack[Conditions],
    ) -> AsyncReceipt: ...  # fmt: skip
    async def enqueue(
        self, payload: Any, *, id: str | None = None, delay: Delay = None, priority: int = 0,
        headers: Mapping[str, str] | None = None, timeout: Timeout = None,
        full: Full | None = None, **conditions: Unpack[Conditions],
    ) -> AsyncReceipt:  # fmt: skip
        """Like `Queue.enqueue`."""
        plain = timeout is None and full is None and not conditions
        data = self._plain(payload, id, headers, delay, priority) if plain else None
        if data is not None:
            added = [await self._executor.run_prepared(self._prepared, data)]
        else:
            job = self._job(payload, id, headers, delay, priority, conditions)
            if self._admits(job, full):
                added = await self._drive(*self._admit(job, full, timeout), timeout)
            else:
                added = await self._run(*self._new(job), timeout)
        receipts: list[AsyncReceipt] = self._bound(added)
        if self._undeclared:
            await self._declare()
        return receipts[0]

    @overload
    async def enqueue_many(
        self: AsyncProducing[bytes], jobs: Iterable[Plain | NewJob[Plain]], *, trace_each: bool = False,
        timeout: Timeout = None, full: Full | None = None,
    ) -> list[AsyncReceipt]: ...  # fmt: skip
    @overload
    async def enqueue_many(
        self, jobs: Iterable[T | NewJob[T]], *, trace_each: bool = False, timeout: Timeout = None,
        full: Full | None = None,
    ) -> list[AsyncReceipt]: ...  # fmt: skip
    async def enqueue_many(
        self, jobs: Iterable[Any], *, trace_each: bool = False, timeout: Timeout = None,
        full: Full | None = None,
    ) -> list[AsyncReceipt]:  # fmt: skip
        """Like `Queue.enqueue_many`."""
        receipts: list[AsyncReceipt] = await self._drive(*self._many(jobs, trace_each, full, timeout), timeout)
        if self._undeclared:
            await self._declare()
        return receipts

    @overload
    async def enqueue_stream(
        self: AsyncProducing[bytes], jobs: Iterable[Plain | NewJob[Plain]] | AsyncIterable[Plain | NewJob[Plain]],
        progress: Callable[[int], object] | None = None, *, timeout: Timeout = None, full: Full | None = None,
    ) -> int: ...  # fmt: skip
    @overload
    async def enqueue_stream(
        self, jobs: Iterable[T | NewJob[T]] | AsyncIterable[T | NewJob[T]],
        progress: Callable[[int], object] | None = None, *, timeout: Timeout = None, full: Full | None = None,
    ) -> int: ...  # fmt: skip
    async def enqueue_stream(
        self, jobs: Iterable[Any] | AsyncIterable[Any], progress: Callable[[int], object] | None = None, *,
        timeout: Timeout = None, full: Full | None = None,
    ) -> int:  # fmt: skip
        """Like `Queue.enqueue_stream`; *jobs* may be asynchronous."""
        filling = Filling(progress)
        try:
            async for job in each(jobs):
                if filling.full(job):
                    filling.sent(await self.enqueue_many(filling.part, timeout=timeout, full=full))
            if filling.part:
                filling.sent(await self.enqueue_many(filling.part, timeout=timeout, full=full))
        except Exception as error:
            raise filling.stopped(error) from error
        return filling.position

    async def _declare(self) -> None:
        declaration = self._declaration()
        if declaration is not None:
            self._declares(await self._executor.attempt(declaration, DECLARING_S))
