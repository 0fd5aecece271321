"""The parts of asyncio that the classes here use. `_api/sync/colour.py` has the same names for
threads."""

from __future__ import annotations

from asyncio import Event, Lock, sleep
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from redis.asyncio import Redis

from headrace._api.guide import OfLoops

__all__ = ["AsyncClosing", "Driven", "Event", "Lock", "Redis", "Stream", "each", "sleep"]

T = TypeVar("T")
Driven = Coroutine[Any, Any, T]  # the type of a call that drives a generator
Stream = Iterable[T] | AsyncIterable[T]  # jobs as they are made


async def each(items: Stream[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class AsyncClosing(OfLoops):
    """The base of context managers that close on leaving."""

    async def close(self) -> None:
        """Close the connections that we opened."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()
