"""The pulse of an `AsyncWorker`: a thread with its own event loop that keeps the leases, whatever handlers do.

Between the threads: roles start in the pulse, and reach the worker's loop by `tell`; that loop wakes them by a
`LoopEvent`. The state of consumers is safe for threads. If the worker's loop is closed without a stop, the pulse ends
by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from headrace._net.aio.executor import AsyncExecutor

END_WITHIN_S = 2.0  # seconds that a stopping worker waits for its pulse


class LoopEvent(asyncio.Event):
    """An event of the pulse's loop, which any thread may set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._there = loop

    def set(self) -> None:
        """Wake the role that sleeps on this event."""
        with suppress(RuntimeError):  # the pulse has ended
            self._there.call_soon_threadsafe(super().set)


class Pulse:
    """A thread with its own event loop and connection, for a worker on the running loop."""

    def __init__(self, executor: AsyncExecutor) -> None:
        self._executor = executor
        self._home = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._roles: set[asyncio.Task[None]] = set()
        self._ending = LoopEvent(self._loop)
        self._ended: asyncio.Future[None] = self._home.create_future()
        detach_sentinel(executor.pool)
        threading.Thread(target=self._work, name="headrace-pulse", daemon=True).start()

    def event(self) -> LoopEvent:
        """Make an event on which a role sleeps."""
        return LoopEvent(self._loop)

    def run(self, role: Coroutine[Any, Any, None], name: str) -> asyncio.Future[None]:
        """Run a role in the pulse. The future is done when the role has ended; cancelling it cancels the role."""
        ended: asyncio.Future[None] = self._home.create_future()
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = self._loop.create_task(role, name=name)
            tasks.append(task)
            self._roles.add(task)
            task.add_done_callback(self._roles.discard)
            task.add_done_callback(lambda _: self.tell(_settle, ended))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        ended.add_done_callback(lambda one: self._call(cancel) if one.cancelled() else None)
        self._call(begin)
        return ended

    def _call(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the pulse has ended
            self._loop.call_soon_threadsafe(function)

    def tell(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the worker's loop, from the pulse."""
        try:
            self._home.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the worker's loop was closed: for its peers the worker is dead
            self._ending.set()

    async def close(self) -> None:
        """End running calls, close the connections, and end the thread."""
        self._ending.set()
        await asyncio.wait([self._ended], timeout=END_WITHIN_S)

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._until_closed())
        finally:
            self.tell(_settle, self._ended)

    async def _until_closed(self) -> None:
        await self._ending.wait()
        roles = list(self._roles)
        for role in roles:
            role.cancel()
        await asyncio.gather(*roles, return_exceptions=True)
        await self._executor.close()
        for sentinel in getattr(getattr(self._executor.pool, "sentinel_manager", None), "sentinels", ()):
            with suppress(Exception):
                await sentinel.aclose()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def detach_sentinel(pool: Any) -> None:
    """Give *pool* its own clients for Sentinel, if it uses the user's: these belong to another event loop."""
    theirs: Any = getattr(pool, "sentinel_manager", None)
    if hasattr(theirs, "sentinels"):
        forced = getattr(theirs, "_force_master_ip", None)
        places = [client.connection_pool.connection_kwargs for client in theirs.sentinels]
        pool.sentinel_manager = type(theirs)(
            [(place["host"], place["port"]) for place in places],
            min_other_sentinels=theirs.min_other_sentinels,
            sentinel_kwargs=theirs.sentinel_kwargs,
            **({} if forced is None else {"force_master_ip": forced}),
            **theirs.connection_kwargs,
        )
