"""Calls that wait for the ends of a queue's jobs, under asyncio: one subscription for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from headrace._core.notices import Received, Waiter
from headrace._model.event import ENDS, Event
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.subscription import AsyncSubscription
from headrace._net.base.subscription import LISTEN_S, BaseWaiters, channels_of
from headrace._protocol.queue_ops import Ops


class AsyncWaiters(BaseWaiters):
    """Like `Waiters`."""

    _executor: AsyncExecutor

    def __init__(self, ops: Ops, executor: AsyncExecutor) -> None:
        super().__init__(ops, executor)
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def waiter(self, names: Sequence[str], seconds: float, wake: asyncio.Event | None = None) -> Waiter:
        """Like `Waiters.waiter`."""
        waiter = Waiter(frozenset(names), wake or asyncio.Event())
        self._waitlist.add(waiter)
        if self._task is None or self._task.done():
            self._ready.clear()
            self._task = asyncio.create_task(self._listen(), name="headrace-waiters")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ready.wait()
        except BaseException:
            self._waitlist.remove(waiter)
            raise
        self._waitlist.about_to_read(waiter)
        return waiter

    async def wait(self, waiter: Waiter, seconds: float) -> tuple[dict[str, Event], bool]:
        """Like `Waiters.wait`."""
        return self.news(waiter, await self.was_woken(waiter.wake, self.patience(seconds)))

    async def was_woken(self, wake: asyncio.Event, seconds: float) -> bool:
        """Like `Waiters.was_woken`."""
        try:
            async with asyncio.timeout(seconds):
                return await wake.wait()
        except TimeoutError:
            return False

    async def ignore(self, waiter: Waiter) -> None:
        """Like `Waiters.ignore`."""
        self._waitlist.remove(waiter)
        self._idle_since = time.monotonic()

    async def _listen(self) -> None:
        subscription, channels = AsyncSubscription(self._executor, lambda: [self._ops]), channels_of([self._ops], ENDS)
        try:
            while self._lasts():
                self._waitlist.take(await subscription.receive(channels, LISTEN_S))
                self._ready.set()
                if not self._waitlist.sound:
                    await asyncio.sleep(LISTEN_S)
        finally:
            self._waitlist.take(Received("cut"))
            self._ready.set()
            await subscription.close()

    async def close(self) -> None:
        """Like `Waiters.close`."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
