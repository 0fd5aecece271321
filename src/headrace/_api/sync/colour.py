"""The parts of threading that the classes here use, by the same names as in
`_api/aio/colour.py`."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event
from time import sleep
from types import TracebackType
from typing import Annotated, Self, TypeVar

from redis import Redis

from headrace._api.guide import OfThreads
from headrace._forks import lock as Lock  # noqa: N812 - so is asyncio's called

__all__ = ["Closing", "Driven", "Event", "Lock", "Redis", "Stream", "each", "sleep"]

T = TypeVar("T")
Driven = Annotated[T, "returned at once"]  # the type of a call that drives a generator
Stream = Iterable[T]  # jobs as they are made


def each(items: Stream[T]) -> Iterable[T]:
    return items


class Closing(OfThreads):
    """The base of context managers that close on leaving."""

    def close(self) -> None:
        """Close the connections that we opened."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
