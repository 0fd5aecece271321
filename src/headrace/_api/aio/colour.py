"""The parts of asyncio that the classes here use. `_api/sync/colour.py` has the same names for threads."""

from __future__ import annotations

from asyncio import Event, Lock, sleep
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from redis.asyncio import Redis

__all__ = ["Driven", "Event", "Lock", "Redis", "Stream", "each", "sleep"]

T = TypeVar("T")
Driven = Coroutine[Any, Any, T]  # the type of a call that drives a generator
Stream = Iterable[T] | AsyncIterable[T]  # jobs as they are made


async def each(items: Stream[T]) -> AsyncIterator[T]:
    """Yield the items of an iterable, asynchronous or not."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
