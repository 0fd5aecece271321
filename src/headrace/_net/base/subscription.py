"""The bases of subscriptions and event streams: when to ping, and how to react to errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis import exceptions as errors

from headrace._core.notices import Received, events
from headrace._model.event import Event
from headrace._net.base.cluster.slots import slot_of
from headrace._net.base.executor import BaseExecutor
from headrace._net.base.retries import RETRY_PAUSE_S, heals
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.op import Op, pack
from headrace._protocol.queue_ops import Ops
from headrace._telemetry.log import log_event

PING_AFTER_S = 5.0  # seconds of silence before a ping, and twice this time for its answer
ANNOUNCE_EVERY_S = 10.0  # seconds after which the scripts are told again that this client listens
LISTEN_S = 1.0  # seconds a listener reads before it checks for waiters, or between two tries to connect
PING = pack(("PING",))
REDIRECTED_AT_MOST = 5  # redirections in a row


class BaseSubscription:
    """The base of both subscriptions: when to ping, and how to handle replies and errors. *listened*: the queues or
    shards whose events it receives. It announces itself to their scripts.
    """

    def __init__(self, executor: BaseExecutor, listened: Callable[[], Sequence[Ops]] | None) -> None:
        self._executor, self._listened = executor, listened
        self._sharded = False  # whether subscribed by slot
        self._channels: Sequence[str] = ()  # the channels that were asked for last
        self._subscribed: set[str] = set()
        self._strayed = False  # another node serves a slot
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
            self._stray(slot_of(bytes(reply[1]).decode()))
        return [(bytes(reply[1]).decode(), bytes(reply[2]))] if kind in (b"message", b"smessage") else []

    def _moved(self, error: errors.MovedError) -> list[tuple[str, bytes]]:
        """Handle a redirection: another node serves the slot of these channels."""
        self._executor.redirected(error)
        there: Any = error  # its attributes are not annotated
        self._stray(there.slot_id)
        return []

    def _stray(self, slot: int) -> None:
        """Record that another node serves a slot. Raises `ConnectionError` if this connection serves no other slot."""
        self._subscribed = {name for name in self._subscribed if slot_of(name) != slot}
        self._strayed, self._channels = True, ()
        if not self._subscribed:
            raise errors.ConnectionError("the slot of the channel has moved to another node")

    def _state(self, messages: Sequence[tuple[str, bytes]]) -> Received:
        strayed, self._strayed = self._strayed, False
        return Received("strayed" if strayed else "on", messages)

    def _subscribing(self, channels: Sequence[str]) -> list[bytes]:
        """Return the commands that subscribe. Control channels work on any node: PUBLISH reaches all nodes."""
        self._sharded = self._executor.sharded and self._listened is not None
        self._channels, self._subscribed, self._strayed = channels, set(channels), False
        return self._commands(channels)

    def _commands(self, channels: Iterable[str]) -> list[bytes]:
        if not self._sharded:
            return [pack(("SUBSCRIBE", *channels))]
        slots: dict[int, list[str]] = {}
        for name in channels:
            slots.setdefault(slot_of(name), []).append(name)
        return [pack(("SSUBSCRIBE", *some)) for some in slots.values()]

    def _changing(self, channels: Sequence[str]) -> list[bytes]:
        """Return the commands that change an open connection from its last channels to *channels*."""
        if channels is self._channels:
            return []
        new = [name for name in channels if name not in self._subscribed]
        old = self._subscribed.difference(channels)
        self._channels, self._subscribed = channels, set(channels)
        commands = self._commands(new) if new else []
        if old and not self._sharded:  # a node tells clients nothing about slots that it does not serve
            commands.append(pack(("UNSUBSCRIBE", *old)))
        if new:
            self._due = -math.inf
        return commands

    def _refused(self, error: errors.ResponseError, channels: Sequence[str]) -> None:
        """Prepare an immediate retry, if that can help after this *error*. Otherwise raise the error."""
        if isinstance(error, errors.MovedError):
            self._executor.redirected(error)
            if len(set(map(slot_of, channels))) > 1:
                raise errors.ConnectionError("the slots of the channels are served by several nodes") from error
        elif self._sharded and (isinstance(error, errors.NoPermissionError) or "unknown command" in str(error)):
            self._executor.sharded = False  # Redis 6.2, or a user that may only SUBSCRIBE
        else:
            raise error

    def _idle(self) -> bool:
        """Tell whether to ping after silence. Raises `ConnectionError` if a ping went unanswered."""
        now = time.monotonic()
        if self._pinged is None:
            if now - self._last < PING_AFTER_S:
                return False
            self._pinged = now
            return True
        if now - self._pinged >= 2 * PING_AFTER_S:
            raise errors.ConnectionError("the server does not answer on a subscribed connection")
        return False

    def _announcing(self) -> list[Op[Any]]:
        now = time.monotonic()
        if self._listened is None or now < self._due:
            return []
        self._due = now + ANNOUNCE_EVERY_S
        return [ops.listen(sharded=self._sharded) for ops in self._listened()]

    def _authentication(self, error: BaseException) -> bool:
        """Tell whether the credentials are being changed: the server accepted some before."""
        return isinstance(error, errors.AuthenticationError) and self._executor.outage.answers > 0

    def _failed(self, error: BaseException, channels: Sequence[str]) -> Received:
        if self._closed or heals(error) or self._authentication(error):
            if channels and not self._closed:
                self._executor.missed(channels)
            return Received("cut", error=error)
        if not self._warned:
            self._warned = True
            log_event("not_heard", "the server does not let us listen (%s); what is told is found out later", error)
        return Received("refused", error=error)


def channels_of(some: Iterable[Ops], kinds: Sequence[str]) -> list[str]:
    return [ops.keys.channel(kind) for ops in some for kind in kinds]


class BaseEvents:
    """The base of both event streams: how long they last without a connection, and without an event."""

    def __init__(self, ops: Ops, kinds: Sequence[str], timeout: float | None) -> None:
        self._queue = ops.keys.queue
        self._channels = channels_of([ops], kinds)
        self._timeout = timeout
        self._found: list[Event] = []
        self._cut_since: float | None = None
        self._over = False

    def _seconds_left(self, start: float) -> float:
        """Return the seconds left to listen; 0 if no event came for too long."""
        if self._timeout is None:
            return PING_AFTER_S
        return max(0.0, min(PING_AFTER_S, start + self._timeout - time.monotonic()))

    def _take(self, received: Received) -> float:
        """Store received events. Return the seconds to pause before the next try, if there is no connection."""
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
