"""Calls that wait for the ends of a queue's jobs, under asyncio: one subscription for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from headrace._core.notices import Received, Waiter, Waitlist
from headrace._model.event import ENDS, Event
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.subscription import AsyncSubscription
from headrace._net.base.subscription import LINGER_S, LISTEN_S, POLL_EVERY_S, POLL_UNSUBSCRIBED_EVERY_S, channels_of
from headrace._protocol.queue_ops import Ops


class AsyncWaiters:
    """Like `Waiters`."""

    def __init__(self, ops: Ops, executor: AsyncExecutor) -> None:
        self._ops, self._executor = ops, executor
        self._waitlist = Waitlist(ops.keys.queue)
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle_since = 0.0

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
        return self.news(waiter, await self.rung(waiter.wake, self.patience(seconds)))

    def patience(self, seconds: float) -> float:
        """Like `Waiters.patience`."""
        return min(seconds, POLL_EVERY_S if self._waitlist.sound else POLL_UNSUBSCRIBED_EVERY_S)

    async def rung(self, wake: asyncio.Event, seconds: float) -> bool:
        """Like `Waiters.rung`."""
        try:
            async with asyncio.timeout(seconds):
                return await wake.wait()
        except TimeoutError:
            return False

    def news(self, waiter: Waiter, woken: bool) -> tuple[dict[str, Event], bool]:
        """Like `Waiters.news`."""
        ended, missed = self._waitlist.read(waiter)
        return ended, missed or not woken

    async def ignore(self, waiter: Waiter) -> None:
        """Like `Waiters.ignore`."""
        self._waitlist.remove(waiter)
        self._idle_since = time.monotonic()

    async def _listen(self) -> None:
        subscription, channels = AsyncSubscription(self._executor, lambda: [self._ops]), channels_of([self._ops], ENDS)
        try:
            while self._waitlist.waiters or time.monotonic() - self._idle_since < LINGER_S:
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
