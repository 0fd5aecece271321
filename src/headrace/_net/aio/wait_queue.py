"""Calls that wait for room in a queue. There may be thousands of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace._protocol.op import Arg


class WaitQueues:
    """The wait queues of one queue. Each stream that reports room has one, as each shard has such a
    stream.

    A task is in at most one of them. *block* is the function of `WaitQueue`.
    """

    def __init__(self, block: Callable[[tuple[Arg, ...]], Coroutine[Any, Any, bool]]) -> None:
        self._block = block
        self._loop = asyncio.get_running_loop()
        self._wait_queues: dict[Arg, WaitQueue] = {}
        self._of: dict[asyncio.Task[Any] | None, WaitQueue] = {}

    @property
    def of_this_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def wait(self, command: tuple[Arg, ...], seconds: float) -> bool:
        """Wait in the queue of the command's stream. If this task is in another wait queue, it
        leaves that first.
        """
        *_, stream, _ = command
        line = self._wait_queues.get(stream)
        if line is None:
            line = self._wait_queues[stream] = WaitQueue(self._block)
        task = asyncio.current_task()
        if self._of.get(task) is not line:
            self.leave()
            self._of[task] = line
        return await line.wait(command, seconds)

    def leave(self) -> None:
        line = self._of.pop(asyncio.current_task(), None)
        if line is not None:
            line.leave()


class WaitQueue:
    """Tasks that wait for room.

    One connection waits for all of them. Then the first tasks ask again, each with its own call.
    *block* blocks on the server with a command, and returns true if there was an entry.
    """

    def __init__(self, block: Callable[[tuple[Arg, ...]], Coroutine[Any, Any, bool]]) -> None:
        self._block = block
        # if all n waiting calls asked each time, they would ask n * n times
        self._turns = asyncio.Semaphore(32)
        self._asking: set[asyncio.Task[Any] | None] = set()
        self._blocked: asyncio.Task[bool] | None = None

    async def wait(self, command: tuple[Arg, ...], seconds: float) -> bool:
        """Wait for this task's turn, then for room, at most *seconds*. Return true if the task
        should ask again.
        """
        task = asyncio.current_task()
        if task not in self._asking:
            others = self._turns.locked()
            try:
                async with asyncio.timeout(seconds):
                    await self._turns.acquire()
            except TimeoutError:
                return False
            self._asking.add(task)
            if others:
                return True  # the one before it has got in
        if self._blocked is None or self._blocked.done():
            self._blocked = asyncio.create_task(self._block(command), name="headrace-room")
        done, _ = await asyncio.wait([self._blocked], timeout=seconds)
        return any(ended.result() for ended in done)

    def leave(self) -> None:
        task = asyncio.current_task()
        if task in self._asking:
            self._asking.discard(task)
            self._turns.release()
