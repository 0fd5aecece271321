"""The bases of subscriptions and event iterators: when to ping, what errors lead to."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from redis import exceptions as errors

from headrace._base.executor import BaseExecutor
from headrace._base.retrying import RETRY_PAUSE_S, heals
from headrace._core.notices import Received, events
from headrace._model.event import Event
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.op import Op, pack
from headrace._protocol.queue_ops import Ops
from headrace._telemetry import log

PING_AFTER_S = 5.0  # seconds of silence before a ping, and twice that for its answer
ANNOUNCE_EVERY_S = 10.0  # seconds after which the scripts are told again that this client listens
POLL_EVERY_S = 5.0  # seconds between reads of a result while subscribed: a worker may not be allowed to publish
POLL_UNSUBSCRIBED_EVERY_S = 0.2  # the same, without a subscription
LISTEN_S = 1.0  # seconds a listener reads before it checks for waiters, or between two tries to connect
LINGER_S = 5.0  # seconds that a subscription outlives its last waiter
PING = pack(("PING",))


REDIRECTED_AT_MOST = 5  # times in a row


class Announce(Protocol):
    """Maker of the operation that tells scripts of a listener."""

    def __call__(self, *, sharded: bool) -> Op[Any]:
        """Make it; *sharded*: the listener has subscribed by slot."""
        ...


class BaseSubscription:
    """The base of both subscriptions: when to ping, what replies mean, what errors lead to."""

    def __init__(self, executor: BaseExecutor, announce: Announce | None) -> None:
        self._executor, self._announce = executor, announce
        self._sharded = False  # subscribed by slot
        self._connection: Any = None
        self._closed = False
        self._last = self._due = 0.0
        self._pinged: float | None = None
        self._warned = False

    def _fresh(self) -> None:
        self._last, self._due, self._pinged = time.monotonic(), -math.inf, None

    def _message(self, reply: Any) -> list[tuple[str, bytes]]:
        self._last, self._pinged = time.monotonic(), None
        kind = bytes(reply[0])
        if kind == b"sunsubscribe":
            raise errors.ConnectionError("the slot of the channel has moved to another node")
        return [(bytes(reply[1]).decode(), bytes(reply[2]))] if kind in (b"message", b"smessage") else []

    def _subscribing(self, channels: Sequence[str]) -> bytes:
        """Return the command that subscribes. Control channels are heard of anywhere: PUBLISH tells all nodes."""
        self._sharded = self._executor.sharded and self._announce is not None
        return pack(("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", *channels))

    def _refused(self, error: errors.ResponseError, channels: Sequence[str]) -> None:
        """Take in why the subscription failed, if it is to be tried again at once. Raises *error* otherwise."""
        if isinstance(error, errors.MovedError):
            self._executor.redirected(error, channels)
        elif self._sharded and (isinstance(error, errors.NoPermissionError) or "unknown command" in str(error)):
            self._executor.sharded = False  # Redis 6.2, or a user that may only SUBSCRIBE
        else:
            raise error

    def _idle(self) -> bool:
        """Tell whether to ping, as nothing has come. Raises `ConnectionError` if a ping went unanswered."""
        now = time.monotonic()
        if self._pinged is None:
            if now - self._last < PING_AFTER_S:
                return False
            self._pinged = now
            return True
        if now - self._pinged >= 2 * PING_AFTER_S:
            raise errors.ConnectionError("the server does not answer on a subscribed connection")
        return False

    def _announcing(self) -> Op[Any] | None:
        now = time.monotonic()
        if self._announce is None or now < self._due:
            return None
        self._due = now + ANNOUNCE_EVERY_S
        return self._announce(sharded=self._sharded)

    def _failed(self, error: BaseException) -> Received:
        if self._closed or heals(error):
            return Received("cut", error=error)
        if not self._warned:
            self._warned = True
            log.say("not_heard", "the server does not let us listen (%s); what is told is found out later", error)
        return Received("refused", error=error)


def channels_of(ops: Ops, kinds: Iterable[str]) -> list[str]:
    return [ops.keys.channel(kind) for kind in kinds]


class BaseEvents:
    """The base of both event streams: how long they go on without a connection, and without an event."""

    def __init__(self, ops: Ops, kinds: Sequence[str], timeout: float | None) -> None:
        self._queue = ops.keys.queue
        self._channels = channels_of(ops, kinds)
        self._timeout = timeout
        self._found: list[Event] = []
        self._cut_since: float | None = None
        self._over = False

    def _seconds_left(self, start: float) -> float:
        """Return the seconds to listen; 0 if it has been quiet for too long."""
        if self._timeout is None:
            return PING_AFTER_S
        return max(0.0, min(PING_AFTER_S, start + self._timeout - time.monotonic()))

    def _take(self, received: Received) -> float:
        """Take in received events; return the pause in seconds before the next try, if there is no connection."""
        for channel, message in received.messages:
            self._found += events(self._queue, channel, message)
        self._found.reverse()  # taken from the end
        if received.state not in ("cut", "refused"):
            self._cut_since = None
            return 0.0
        now = time.monotonic()
        self._cut_since = self._cut_since if self._cut_since is not None else now
        if received.error is not None and (received.state == "refused" or now - self._cut_since >= RETRY_BUDGET_S):
            raise received.error
        return RETRY_PAUSE_S / 10
