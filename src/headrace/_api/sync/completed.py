# Generated from `headrace/_api/aio/completed.py` by .ci/twins.py: edit that file.
"""The iterator of `as_completed`."""

# ruff: noqa: SLF001 - this is a part of the queues

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from headrace._api.results import CompletionTracker, late
from headrace._api.sync.colour import Event
from headrace._core.notices import Waiter
from headrace._net.sync.waiters import Waiters


class Wakeup(Event):
    """An event that several waiters share. Only `answer` clears it."""

    def clear(self) -> None:
        """Do nothing, because other waiters may not have refreshed yet."""

    def answer(self) -> None:
        super().clear()


def completed(trackers: Sequence[CompletionTracker], seconds: float) -> Iterator[Any]:
    """Yield receipts as their jobs end. Raises `TimeoutError` after *seconds*."""
    end = time.monotonic() + seconds
    wakeup = Wakeup()
    woken = False
    for tracker in trackers:
        for receipt in tracker.queue._drive(tracker.refresh()):
            yield receipt
    watched: list[tuple[CompletionTracker, Waiters, Waiter]] = []
    try:
        for tracker in [tracker for tracker in trackers if tracker.receipts and tracker.notified]:
            waiters: Waiters = tracker.queue._waiters
            rest = max(0.0, end - time.monotonic())
            watched.append((tracker, waiters, waiters.waiter([*tracker.receipts], rest, wakeup)))
        while any(tracker.receipts for tracker in trackers):
            wakeup.answer()
            for tracker, waiters, waiter in watched:
                ended, again = waiters.news(waiter, woken)
                for receipt in tracker.queue._drive(tracker.refresh(ended, again=again)):
                    yield receipt
            for tracker in [
                tracker
                for tracker in trackers
                if tracker.must_poll and tracker.refresh_at <= time.monotonic()
            ]:
                for receipt in tracker.queue._drive(tracker.refresh()):
                    yield receipt
            if not any(tracker.receipts for tracker in trackers):
                return
            now = time.monotonic()
            rest = end - now
            if rest <= 0:
                raise late(trackers, seconds)
            waits = [tracker.patience(rest, now) for tracker in trackers if tracker.must_poll]
            waits += [
                waiters.patience(tracker.patience(rest, now)) for tracker, waiters, _ in watched
            ]
            woken = trackers[0].queue._waiters.was_woken(wakeup, min(waits))
    finally:
        for _, waiters, waiter in watched:
            waiters.ignore(waiter)
