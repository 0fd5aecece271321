# Generated from `headrace/_api/aio/events.py` by .ci/twins.py: edit that file.
"""The iterator over a queue's events that `Queue.events` returns."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from headrace._api.sync.colour import Driven, sleep
from headrace._core.effects import Call
from headrace._core.notices import Received, events
from headrace._model.event import Event
from headrace._net.base.retries import RECONNECT_PAUSE_S
from headrace._net.sync.executor import Executor
from headrace._net.sync.listening import Listening
from headrace._net.sync.subscription import PING_AFTER_S, Subscription, channels_of
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import WholeOps


class EventStream:
    """The events of a queue as they happen. It is an iterator, and a context manager
    that subscribes on entry.
    """

    def __init__(
        self,
        ops: Ops,
        executor: Executor,
        kinds: Sequence[str],
        timeout: float | None,
        drive: Callable[[Call[bool]], Driven[bool]],
    ) -> None:
        self._queue = ops.keys.queue
        self._timeout = timeout
        self._channels = channels_of([ops], kinds)
        self._found: list[Event] = []
        self._cut_since: float | None = None
        self._over = False
        self._subscription: Subscription | Listening
        if isinstance(ops, WholeOps):
            self._subscription = Listening(ops, executor, kinds, drive)
        else:
            self._subscription = Subscription(executor, lambda: [ops])
        weakref.finalize(self, self._subscription.abandon).atexit = False  # after a `break`
        self._subscribed = False

    def __enter__(self) -> Self:
        self._subscribe()
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        self._subscribe()
        start = time.monotonic()
        while not self._found:
            left = self._seconds_left(start)
            if self._over or not left:
                self.close()
                raise StopIteration
            pause = self._take(self._subscription.receive(self._channels, left))
            if pause:
                sleep(pause)
        return self._found.pop()

    def _seconds_left(self, start: float) -> float:
        if self._timeout is None:
            return PING_AFTER_S
        return max(0.0, min(PING_AFTER_S, start + self._timeout - time.monotonic()))

    def _take(self, received: Received) -> float:
        """Store received events. Return the seconds to pause before the next try, if there is no
        connection."""
        for channel, message in received.messages:
            self._found += events(self._queue, channel, message)
        self._found.reverse()  # taken from the end
        if received.state not in ("cut", "refused"):
            self._cut_since = None
            return 0.0
        now = time.monotonic()
        self._cut_since = self._cut_since if self._cut_since is not None else now
        if received.error is not None and (
            received.state == "refused" or now - self._cut_since >= RETRY_BUDGET_S
        ):
            raise received.error
        return RECONNECT_PAUSE_S

    def _subscribe(self) -> None:
        while not (self._subscribed or self._over):
            pause = self._take(self._subscription.receive(self._channels, 0.0))
            self._subscribed = not pause
            sleep(pause)

    def close(self) -> None:
        """Close the connection. The iteration ends."""
        self._over = True
        self._subscription.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
