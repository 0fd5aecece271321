"""One subscription to the events of all shards of a queue: a connection, and a task, for each node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from headrace._core.effects import Step
from headrace._core.notices import Received
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.subscription import AsyncSubscription
from headrace._net.base.listening import CUT_PAUSE_S, LOOK_EVERY_S, BaseListening, Ear
from headrace._net.base.subscription import LISTEN_S
from headrace._protocol.shards import WholeOps


class AsyncListening(BaseListening):
    """Like `Listening`."""

    _executor: AsyncExecutor

    def __init__(
        self, ops: WholeOps, executor: AsyncExecutor, kinds: Sequence[str],
        drive: Callable[[Step[bool]], Coroutine[Any, Any, bool]],
    ) -> None:  # fmt: skip
        super().__init__(ops, executor, kinds)
        self._drive = drive
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def receive(self, _channels: Sequence[str], seconds: float) -> Received:
        """Like `Listening.receive`."""
        async with self._changed:
            if not self._tasks:
                self._begin(self._look())
            begun = self._inbox.begun
            await self._wait(lambda: self._inbox.ready or self._inbox.begun != begun, seconds if begun else LISTEN_S)
            self._changed.notify_all()  # there is room
            return self._inbox.received()

    def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call, name="headrace-events")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait(self, holds: Callable[[], bool], seconds: float) -> None:
        """Like `Listening._wait`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait_for(lambda: self._closed or holds())

    async def _look(self) -> None:
        """Follow the table."""
        while not self._closed:
            try:
                await self._drive(self._map.look())
            except Exception as error:
                self._not_read(error)
            async with self._changed:
                self._assign()
                self._changed.notify_all()
                await self._wait(lambda: self._inbox.error is not None, LOOK_EVERY_S)

    def _assign(self) -> None:
        for ear in self._regroup() if self._map.known and not self._closed else ():
            ear.subscription = AsyncSubscription(self._executor, ear.listened)
            self._begin(self._listen(ear))

    async def _listen(self, ear: Ear) -> None:
        """Listen to the shards of one node, for as long as it has some."""
        try:
            while ear.channels and not self._closed:
                received = await ear.subscription.receive(ear.channels, LISTEN_S)
                async with self._changed:
                    if self._took(ear, received):
                        self._assign()
                    self._changed.notify_all()
                    if received.state == "cut":
                        await self._wait(lambda: not ear.channels, CUT_PAUSE_S)
                    while not (self._inbox.room or self._closed):
                        await self._wait(lambda: self._inbox.room, LISTEN_S)
        except Exception as error:
            self._inbox.error = error
        finally:
            await ear.subscription.close()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
