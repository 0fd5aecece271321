"""Subscribed connections, which use Pub/Sub for workers, for calls that wait for results, and for
event streams.

A subscription has its own connection, which serves only its channels, and always speaks RESP2. If
the connection is lost, the next call of `receive` opens it again, and reports this. Messages
published meanwhile are lost. An idle connection is pinged, as a server that vanished without
closing it would not be noticed otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis import exceptions as errors

from headrace._core.notices import Received
from headrace._net.aio.colour import access, bounded, here
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.pool import abandon, abort, disconnect, pushed, subscription_maker
from headrace._net.base.cluster import slot_of
from headrace._net.base.retries import REDIRECTED_AT_MOST, heals
from headrace._protocol.features import events as event_ops
from headrace._protocol.op import Op, pack
from headrace._protocol.queue_ops import Ops
from headrace._telemetry.log import log_event

PING_AFTER_S = 5.0  # seconds of silence before a ping, and twice this time for its answer
# seconds a listener reads before it checks for waiters, or between two tries to connect
LISTEN_S = 1.0
PING = pack(("PING",))


def channels_of(queues: Iterable[Ops], kinds: Sequence[str]) -> list[str]:
    return [ops.keys.channel(kind) for ops in queues for kind in kinds]


class AsyncSubscription:
    """One subscribed connection to the server of *executor*. One task uses it, and another task may
    `close` it.

    It receives the events of the queues or shards that *listened* returns, and announces itself to
    their scripts.
    """

    def __init__(
        self, executor: AsyncExecutor, listened: Callable[[], Sequence[Ops]] | None = None
    ) -> None:
        self._executor = executor
        self._listened = listened
        self._sharded = False  # whether subscribed by slot
        self._channels: Sequence[str] = ()  # the channels that were asked for last
        self._subscribed: set[str] = set()
        self._strayed = False  # another node serves a slot
        self._busy = access()  # while it is read
        self._connection: Any = None
        self._home: object = None  # of the connection
        self._source: Any = None  # the pool whose connections lead where it leads
        self._maker: Any = None
        self._closed = False
        self._last = self._due = 0.0
        self._pinged: float | None = None
        self._warned = False

    async def receive(self, channels: Sequence[str], seconds: float) -> Received:
        """Wait up to *seconds* for messages. Also reports that the subscription began or failed."""
        async with self._busy:
            received = await self._receive(channels, seconds)
        if self._closed:
            await self._hang_up()
        return received

    async def _receive(self, channels: Sequence[str], seconds: float) -> Received:
        try:
            anew = self._connection is None
            if anew and not self._closed:
                await self._subscribe(channels)
            # perhaps as we connected
            if self._closed or not self._executor.connects_to(self._source, channels):
                await self._hang_up()
                return Received("cut")
            if not anew and (commands := self._changing(channels)):
                await self._connection.send_packed_command(commands)
            if ops := self._announcing():
                await self._executor.run_all(ops)
            return Received("anew") if anew else self._state(await self._read(seconds))
        except (errors.RedisError, OSError) as error:
            await self._hang_up()
            return self._failed(error, channels)
        except Exception as error:
            if not self._closed:  # otherwise it was closed meanwhile, and any error may follow
                raise
            return Received("cut", error=error)

    async def _subscribe(self, channels: Sequence[str]) -> None:
        try:
            async with bounded(self._executor.timeout):
                await self._follow(channels)
        except BaseException:
            await self._hang_up()  # half subscribed
            raise

    async def _follow(self, channels: Sequence[str]) -> None:
        for _ in range(REDIRECTED_AT_MOST):
            try:
                return await self._subscribe_at(channels)
            except errors.ResponseError as error:
                await self._hang_up()
                self._refused(error, channels)
        raise errors.ConnectionError(f"the slot of {channels[0]} is passed from node to node")

    async def _subscribe_at(self, channels: Sequence[str]) -> None:
        source = await self._executor.source(channels)
        if source is not self._source:
            self._source = source
            self._maker = subscription_maker(source)
        self._home = here()
        self._connection = self._maker.make_connection()
        await self._connection.connect()
        await self._connection.send_packed_command(self._subscribing(channels))
        for _ in channels:
            await self._connection.read_response(disable_decoding=True)
        self._fresh()

    async def _read(self, seconds: float) -> list[tuple[str, bytes]]:
        replies = await pushed(self._connection, seconds)
        if not replies and self._idle():
            await self._connection.send_packed_command([PING])
        found: list[tuple[str, bytes]] = []
        for reply in replies:
            found += (
                self._moved(reply) if isinstance(reply, errors.MovedError) else self._message(reply)
            )
        return found

    async def _hang_up(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            await disconnect(connection)

    def abandon(self) -> None:
        """Close the connection soon, as its reader was collected. Any thread may call this."""
        self._closed = True
        connection = self._connection
        self._connection = None
        if connection is not None:
            abandon(connection, self._home)

    async def close(self) -> None:
        """Close the subscription for good. A `receive` under way returns, and closes the
        connection.
        """
        self._closed = True
        if not self._busy.locked():
            await self._hang_up()
        elif (connection := self._connection) is not None:
            abort(connection)

    def _fresh(self) -> None:
        self._last = time.monotonic()
        self._due = -math.inf
        self._pinged = None

    def _message(self, reply: Any) -> list[tuple[str, bytes]]:
        self._last = time.monotonic()
        self._pinged = None
        kind = bytes(reply[0])
        if kind == b"sunsubscribe":
            self._stray(slot_of(bytes(reply[1]).decode()))
        return (
            [(bytes(reply[1]).decode(), bytes(reply[2]))]
            if kind in (b"message", b"smessage")
            else []
        )

    def _moved(self, error: errors.MovedError) -> list[tuple[str, bytes]]:
        self._executor.redirected(error)
        redirection: Any = error  # its attributes are not annotated
        self._stray(redirection.slot_id)
        return []

    def _stray(self, slot: int) -> None:
        """Record that another node serves a slot. Raises `ConnectionError` if this connection
        serves no other slot.
        """
        self._subscribed = {name for name in self._subscribed if slot_of(name) != slot}
        self._strayed = True
        self._channels = ()
        if not self._subscribed:
            raise errors.ConnectionError("the slot of the channel has moved to another node")

    def _state(self, messages: Sequence[tuple[str, bytes]]) -> Received:
        strayed = self._strayed
        self._strayed = False
        return Received("strayed" if strayed else "on", messages)

    def _subscribing(self, channels: Sequence[str]) -> list[bytes]:
        self._sharded = self._executor.sharded and self._listened is not None
        self._channels = channels
        self._subscribed = set(channels)
        self._strayed = False
        return self._commands(channels)

    def _commands(self, channels: Iterable[str]) -> list[bytes]:
        if not self._sharded:
            return [pack(("SUBSCRIBE", *channels))]
        slots: dict[int, list[str]] = {}
        for name in channels:
            slots.setdefault(slot_of(name), []).append(name)
        return [pack(("SSUBSCRIBE", *names)) for names in slots.values()]

    def _changing(self, channels: Sequence[str]) -> list[bytes]:
        if channels is self._channels:
            return []
        new = [name for name in channels if name not in self._subscribed]
        old = self._subscribed.difference(channels)
        self._channels = channels
        self._subscribed = set(channels)
        commands = self._commands(new) if new else []
        # a node tells clients nothing about slots that it does not serve
        if old and not self._sharded:
            commands.append(pack(("UNSUBSCRIBE", *old)))
        if new:
            self._due = -math.inf
        return commands

    def _refused(self, error: errors.ResponseError, channels: Sequence[str]) -> None:
        """Prepare an immediate retry, if that can help after this *error*. Otherwise raise the
        error.
        """
        if isinstance(error, errors.MovedError):
            self._executor.redirected(error)
            if len(set(map(slot_of, channels))) > 1:
                raise errors.ConnectionError(
                    "the slots of the channels are served by several nodes"
                ) from error
        elif self._sharded and (
            isinstance(error, errors.NoPermissionError) or "unknown command" in str(error)
        ):
            self._executor.sharded = False  # Redis 6.2, or a user that may only SUBSCRIBE
        else:
            raise error

    def _idle(self) -> bool:
        """Tell whether to ping after silence. Raises `ConnectionError` if a ping went
        unanswered."""
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
        self._due = now + 10.0  # until it announces again that it listens
        return [event_ops.listen(ops, sharded=self._sharded) for ops in self._listened()]

    def _failed(self, error: BaseException, channels: Sequence[str]) -> Received:
        # The credentials are being changed if the server accepted some before.
        refused = (
            isinstance(error, errors.AuthenticationError) and self._executor.outage.answers > 0
        )
        if self._closed or heals(error) or refused:
            if channels and not self._closed:
                self._executor.unreachable(channels)
            return Received("cut", error=error)
        if not self._warned:
            self._warned = True
            log_event(
                "not_heard",
                "the server does not let us listen (%s); what is told is found out later",
                error,
            )
        return Received("refused", error=error)
