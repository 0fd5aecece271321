# Generated from `headrace/_net/aio/waiters.py` by .ci/twins.py: edit that file.
"""Calls that wait for jobs of a queue to end. They share one subscription."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace._core.notices import Received, Waiter, Waitlist
from headrace._model.event import ENDS, Event
from headrace._net.sync.colour import Background, Event as Wakeup, event, happens, here, lock, sleep
from headrace._net.sync.executor import Executor
from headrace._net.sync.subscription import LISTEN_S, Subscription, channels_of
from headrace._protocol.queue_ops import Ops

# seconds between reads of a result while subscribed: a worker may not be allowed to publish
POLL_EVERY_S = 5.0
LINGER_S = 5.0  # seconds that a subscription outlives its last waiter


class Waiters:
    """The waiting calls of one queue, and their subscription. The subscription lasts as long as a
    call waits.
    """

    def __init__(self, ops: Ops, executor: Executor) -> None:
        self._ops = ops
        self._executor = executor
        self._waitlist = Waitlist(ops.keys.queue)
        self._lock = lock()
        self._reset()

    def _reset(self) -> None:
        self._home = here()
        self._ready = event()
        self._background = Background()
        self._subscription: Subscription | None = None
        self._idle_since = 0.0
        self._waitlist.waiters.clear()

    def waiter(self, names: Sequence[str], seconds: float, wake: Wakeup | None = None) -> Waiter:
        """Add a waiter for the ends of the jobs *names* from now on.

        Returns after *seconds* at most, even without a subscription. Several waiters may share the
        event *wake*.
        """
        if self._home != here():  # the reader of the subscription is elsewhere
            self._reset()
        waiter = Waiter(frozenset(names), wake or event())
        with self._lock:
            self._waitlist.add(waiter)
            if self._subscription is None:
                self._ready.clear()
                self._subscription = Subscription(self._executor, lambda: [self._ops])
                self._background.start("headrace-waiters", self._listen, self._subscription)
        try:
            happens(self._ready, seconds)
        except BaseException:
            self.ignore(waiter)
            raise
        with self._lock:
            self._waitlist.about_to_read(waiter)
        return waiter

    def patience(self, seconds: float) -> float:
        return min(seconds, POLL_EVERY_S if self._waitlist.sound else 0.2)

    def wait(self, waiter: Waiter, seconds: float) -> tuple[dict[str, Event], bool]:
        """Wait for the waiter. Return the ends of jobs, by id, and whether to read the results of
        the others.
        """
        return self.news(waiter, self.was_woken(waiter.wake, self.patience(seconds)))

    def was_woken(self, wake: Wakeup, seconds: float) -> bool:
        return happens(wake, seconds)

    def news(self, waiter: Waiter, woken: bool) -> tuple[dict[str, Event], bool]:
        """Return the answer of `wait` for a waiter that was *woken*, or that has waited long
        enough.
        """
        with self._lock:
            ended, missed = self._waitlist.read(waiter)
        return ended, missed or not woken

    def ignore(self, waiter: Waiter) -> None:
        with self._lock:
            self._waitlist.remove(waiter)
            self._idle_since = time.monotonic()

    def _listen(self, subscription: Subscription) -> None:
        channels = channels_of([self._ops], ENDS)
        try:
            while self._process(subscription, subscription.receive(channels, LISTEN_S)):
                if not self._waitlist.sound:
                    sleep(LISTEN_S)
        finally:
            self._process(subscription, None)
            subscription.close()

    def _process(self, subscription: Subscription, received: Received | None) -> bool:
        """Wake the waiters of these messages. Return whether to go on listening.

        Listening goes on while a call waits, and for a moment after.
        """
        with self._lock:
            if self._subscription is not subscription:
                return False
            self._waitlist.take(Received("cut") if received is None else received)
            self._ready.set()
            lasts = received is not None and (
                bool(self._waitlist.waiters) or time.monotonic() - self._idle_since < LINGER_S
            )
            if not lasts:
                self._subscription = None
            return lasts

    def close(self) -> None:
        """Close the subscription. Calls that still wait poll instead."""
        with self._lock:
            subscription = self._subscription
            self._subscription = None
            self._waitlist.take(Received("cut"))
        self._background.end()
        if subscription is not None:
            subscription.close()
