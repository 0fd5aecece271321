"""The parts of asyncio that this package uses. `_net/sync/colour.py` has the same names for
threads.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Condition, Event, Queue, sleep
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from redis import exceptions as errors
from redis.asyncio import ConnectionPool

__all__ = [
    "Background",
    "Condition",
    "ConnectionPool",
    "Driven",
    "Event",
    "Queue",
    "access",
    "all_of",
    "background",
    "bounded",
    "callable_here",
    "condition",
    "event",
    "happens",
    "here",
    "holds",
    "lock",
    "made",
    "next_of",
    "settled",
    "sleep",
    "takes_steps",
]

T = TypeVar("T")
Driven = Coroutine[Any, Any, T]  # the type of a call that is awaited
access = asyncio.Lock
condition = Condition
event = Event


def here() -> object:
    """Return the running event loop. Tasks, events and connections belong to it."""
    return asyncio.get_running_loop()


def lock() -> AbstractContextManager[Any]:
    """Return a lock for steps without an await. Tasks need no lock for these."""
    return nullcontext()


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, call: Callable[..., Driven[None]], *args: Any) -> None:
        task = asyncio.create_task(call(*args), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, within: float = 0.0) -> None:
        """Wait for the tasks, *within* seconds at most. Then cancel them."""
        tasks = [*self._tasks]
        if tasks and within:
            await asyncio.wait(tasks, timeout=within)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_TASKS: set[asyncio.Task[None]] = set()  # the loop keeps only weak references


def background(home: Any, seconds: float, call: Callable[[], Driven[None]]) -> None:
    """Call a function in a task of the event loop *home*, after *seconds*.

    Without *home*, the task belongs to the running loop. Any thread may ask.
    """

    async def later() -> None:
        await sleep(seconds)
        await call()

    def start() -> None:
        task = loop.create_task(later(), name="headrace-later")
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)

    loop: asyncio.AbstractEventLoop = home or asyncio.get_running_loop()
    loop.call_soon_threadsafe(start)


_RUN: ContextVar[Any] = ContextVar("headrace_run")  # whose steps this task takes


def takes_steps(run: Any) -> bool:
    """Tell whether this task may take the steps of a run. It may not while it takes the steps of
    another run.
    """
    other = _RUN.get(run)
    if other is not run and not other.over:
        return False
    _RUN.set(run)
    return True


def made(calls: list[tuple[str, Any]], what: str, call: Driven[T]) -> Driven[T]:
    """Note a coroutine that the user may forget to await, and return it."""
    calls.append((what, call))
    return call


def callable_here(_what: str, _function: object) -> None:
    """Take any function, because a function of this colour may be async."""


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def happens(event: Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def holds(condition: Condition, predicate: Callable[[], bool], seconds: float) -> None:
    """Wait at most *seconds* until *predicate* holds. The caller holds the condition's lock."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await condition.wait_for(predicate)


async def next_of(queue: Queue[T], seconds: float) -> T | None:
    try:
        async with asyncio.timeout(seconds):
            return await queue.get()
    except TimeoutError:
        return None


@asynccontextmanager
async def bounded(seconds: float) -> AsyncGenerator[None]:
    """Limit the time of an exchange with the server. Raises `redis.TimeoutError`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise errors.TimeoutError(f"no answer within {seconds:g} s") from None


async def all_of(calls: Sequence[Callable[[], Driven[T]]]) -> list[T]:
    """Make several calls at the same time, and return their results. Raises the error of one."""
    tasks = [asyncio.ensure_future(call()) for call in calls]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
    return [task.result() for task in tasks]
