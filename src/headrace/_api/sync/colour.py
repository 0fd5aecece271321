"""The parts of threads that the classes here use, by the names that `_api/aio/colour.py` gives to those of asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event
from time import sleep
from typing import Annotated, TypeVar

from redis import Redis

from headrace._forks import lock as Lock  # noqa: N812 - so is asyncio's called

__all__ = ["Driven", "Event", "Lock", "Redis", "Stream", "each", "sleep"]

T = TypeVar("T")
Driven = Annotated[T, "returned at once"]  # the type of a call that drives a generator
Stream = Iterable[T]  # jobs as they are made


def each(items: Stream[T]) -> Iterable[T]:
    """Return the items of an iterable: there is nothing to await."""
    return items
