"""Calls that wait for the ends of a queue's jobs: one subscription for all of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from headrace import _forks
from headrace._core.notices import Received, Waiter
from headrace._model.event import ENDS, Event
from headrace._net.base.subscription import LISTEN_S, BaseWaiters, channels_of
from headrace._net.sync.executor import Executor
from headrace._net.sync.subscription import Subscription
from headrace._protocol.queue_ops import Ops


class Waiters(BaseWaiters):
    """The waiting calls of one queue, and their subscription, which lasts while there are any."""

    _executor: Executor

    def __init__(self, ops: Ops, executor: Executor) -> None:
        super().__init__(ops, executor)
        self._lock, self._ready = _forks.lock(), _forks.event()
        self._reset()

    def _reset(self) -> None:
        self._ready.clear()
        self._subscription: Subscription | None = None
        self._idle_since = 0.0
        self._pid = os.getpid()
        self._waitlist.waiters.clear()

    def waiter(self, names: Sequence[str], seconds: float, wake: threading.Event | None = None) -> Waiter:
        """Add a waiter for *names*; their ends are noticed from now on.

        Returns after *seconds* at most, even without a subscription. *wake*: an event that others share.
        """
        if self._pid != os.getpid():  # a fork took no thread with it
            self._reset()
        waiter = Waiter(frozenset(names), wake or _forks.event())
        with self._lock:
            self._waitlist.add(waiter)
            if self._subscription is None:
                self._ready.clear()
                self._subscription = Subscription(self._executor, lambda: [self._ops])
                threading.Thread(
                    target=self._listen, args=(self._subscription,), name="headrace-waiters", daemon=True
                ).start()
        try:
            self._ready.wait(seconds)
        except BaseException:
            self.ignore(waiter)
            raise
        with self._lock:
            self._waitlist.about_to_read(waiter)
        return waiter

    def wait(self, waiter: Waiter, seconds: float) -> tuple[dict[str, Event], bool]:
        """Wait for the waiter; return the ends of jobs, by id, and whether to read the results of the others."""
        return self.news(waiter, self.was_woken(waiter.wake, self.patience(seconds)))

    def was_woken(self, wake: threading.Event, seconds: float) -> bool:
        """Wait for an event; return whether it came."""
        return wake.wait(seconds)

    def ignore(self, waiter: Waiter) -> None:
        """Remove a waiter."""
        with self._lock:
            self._waitlist.remove(waiter)
            self._idle_since = time.monotonic()

    def _listen(self, subscription: Subscription) -> None:
        channels = channels_of([self._ops], ENDS)
        while True:
            received = subscription.receive(channels, LISTEN_S)
            with self._lock:
                if self._subscription is not subscription:
                    break
                self._waitlist.take(received)
                self._ready.set()
                if not self._lasts():
                    self._subscription = None
                    break
            if not self._waitlist.sound:
                time.sleep(LISTEN_S)
        subscription.close()

    def close(self) -> None:
        """Close the subscription; calls that still wait poll instead."""
        with self._lock:
            subscription, self._subscription = self._subscription, None
            self._waitlist.take(Received("cut"))
        if subscription is not None:
            subscription.close()
