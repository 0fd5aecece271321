"""The iterator of `as_completed`."""

# ruff: noqa: SLF001 - this is a part of the queues

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from headrace._api.aio.colour import Event
from headrace._api.completion import Pursuit, late
from headrace._core.notices import Waiter
from headrace._net.aio.waiters import AsyncWaiters


class Bell(Event):
    """An event that several waiters share: only `answer` clears it."""

    def clear(self) -> None:
        """Do nothing: others may not have looked yet."""

    def answer(self) -> None:
        """Clear it, before all look."""
        super().clear()


async def completed(pursuits: Sequence[Pursuit], seconds: float) -> AsyncIterator[Any]:
    """Yield receipts as their jobs end. Raises `TimeoutError` after *seconds*."""
    end, bell, woken = time.monotonic() + seconds, Bell(), False
    for pursuit in pursuits:
        for receipt in await pursuit.queue._drive(pursuit.look()):
            yield receipt
    watched: list[tuple[Pursuit, AsyncWaiters, Waiter]] = []
    try:
        for pursuit in [pursuit for pursuit in pursuits if pursuit.receipts and pursuit.told]:
            waiters: AsyncWaiters = pursuit.queue._waiters
            rest = max(0.0, end - time.monotonic())
            watched.append((pursuit, waiters, await waiters.waiter([*pursuit.receipts], rest, bell)))
        while any(pursuit.receipts for pursuit in pursuits):
            bell.answer()
            for pursuit, waiters, waiter in watched:
                told, again = waiters.news(waiter, woken)
                for receipt in await pursuit.queue._drive(pursuit.look(told, again=again)):
                    yield receipt
            for pursuit in [pursuit for pursuit in pursuits if pursuit.asks and pursuit.look_at <= time.monotonic()]:
                for receipt in await pursuit.queue._drive(pursuit.look()):
                    yield receipt
            if not any(pursuit.receipts for pursuit in pursuits):
                return
            now = time.monotonic()
            rest = end - now
            if rest <= 0:
                raise late(pursuits, seconds)
            waits = [pursuit.patience(rest, now) for pursuit in pursuits if pursuit.asks]
            waits += [waiters.patience(pursuit.patience(rest, now)) for pursuit, waiters, _ in watched]
            woken = await pursuits[0].queue._waiters.rung(bell, min(waits))
    finally:
        for _, waiters, waiter in watched:
            await waiters.ignore(waiter)
