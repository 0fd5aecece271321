"""The parts of threading that this package uses, by the same names as in `_net/aio/colour.py`."""

from __future__ import annotations

import inspect
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue as Queue
from threading import Condition, Event
from time import sleep
from typing import Annotated, Any, TypeVar
from weakref import WeakSet

from redis import ConnectionPool

from headrace._forks import condition, event, lock

__all__ = [
    "Background", "Condition", "ConnectionPool", "Driven", "Event", "Queue", "access", "all_of",
    "background", "bounded", "callable_here", "condition", "event", "happens", "here", "holds",
    "lock", "made", "next_of", "settled", "sleep", "takes_steps",
]  # fmt: skip

T = TypeVar("T")
access = lock  # of one reader at a time
Driven = Annotated[T, "returned at once"]  # the type of a call that is awaited by the other colour


def here() -> object:
    """Return the number of this process, as other threads do not survive a fork."""
    return os.getpid()


class Background:
    def __init__(self) -> None:
        self._threads: WeakSet[threading.Thread] = WeakSet()

    def start(self, name: str, call: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=call, args=args, name=name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def end(self, within: float = 0.0) -> None:
        """Wait for the threads, *within* seconds at most. Threads cannot be cancelled, and end by
        themselves.
        """
        for thread in [*self._threads] if within else ():
            thread.join(within)


def background(_home: object, seconds: float, call: Callable[[], None]) -> None:
    if seconds <= 0:
        call()
        return
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


def takes_steps(_run: Any) -> bool:
    """Let this thread take the steps of any run, as a pool's threads may work for several."""
    return True


def made(_calls: object, _what: str, value: T) -> T:
    """Return a value, as a call of this colour has been made."""
    return value


def callable_here(what: str, function: object) -> None:
    """Raise `TypeError` for an async function."""
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{what}{function!r:.100} is async: give a plain one, or register the handler with an AsyncWorker"
        )


def settled(value: Any) -> Any:
    """Return the value of a function. Raises `TypeError` for an awaitable."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # it would warn that it was never awaited
        raise TypeError(
            "the function of a step is async: give a plain one, or register the handler with an AsyncWorker"
        )
    return value


def happens(event: Event, seconds: float) -> bool:
    return event.wait(seconds)


def holds(condition: Condition, predicate: Callable[[], bool], seconds: float) -> None:
    condition.wait_for(predicate, seconds)


def next_of(answers: Queue[T], seconds: float) -> T | None:
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None


def bounded(_seconds: float) -> AbstractContextManager[None]:
    """Do nothing, as the timeouts of the sockets limit an exchange with the server."""
    return nullcontext()


def all_of(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make several calls at the same time, and return their results. Raises the error of one."""
    results: dict[int, T] = {}
    raised: list[BaseException] = []

    def make(number: int) -> None:
        try:
            results[number] = calls[number]()
        except BaseException as error:
            raised.append(error)

    others = range(1, len(calls))
    threads = [
        threading.Thread(target=make, args=(i,), name="headrace-node", daemon=True) for i in others
    ]
    for thread in threads:
        thread.start()
    results[0] = calls[0]()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return [results[number] for number in range(len(calls))]
