"""The connections of executors, and round trips on them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry as NoRetry

from headrace import _forks
from headrace._net.base.connections import BOUNDS, Attend, own_pool, refused
from headrace._net.base.pool import (
    CALLS_AT_MOST,
    SHARED,
    TRIPS,
    BasePool,
    Pending,
    destination,
    leaving,
    unreadable,
)
from headrace._net.base.retries import Meanwhile, since_boot
from headrace._net.base.sockets import cut, set_timeout
from headrace._telemetry.client import Outage


class Pool(BasePool):
    """The connections of executors, to the server of a URL or of a client's pool, *theirs*.

    Threads share the pool, because taking or returning a connection is atomic under the
    interpreter's lock. Executors of the same server share *outage*.
    """

    def __init__(
        self,
        url: str | None,
        theirs: Any,
        outage: Outage | None = None,
        attend: Attend | None = None,
    ) -> None:
        if url is not None:
            theirs = redis.ConnectionPool.from_url(str(url))  # pyright: ignore[reportUnknownMemberType]
        maker = maker_for(theirs)

        def attended(connection: Any, kind: Any, attend: Attend) -> None:
            connection.path = attend()
            try:
                kind.connect(connection)
            except redis.ConnectionError as error:
                if not refused(error):
                    raise
                connection.path = attend(refused=True)
                kind.connect(connection)

        def connect(connection: Any, kind: Any) -> None:
            within: float | None = getattr(BOUNDS, "within", None)
            usual = connection.socket_timeout, connection.socket_connect_timeout
            if within is not None:
                connection.socket_timeout, connection.socket_connect_timeout = (
                    within,
                    min(within, usual[1] or within),
                )
            try:
                kind.connect(connection) if attend is None else attended(connection, kind, attend)
            # Ctrl-C, too: redis-py would keep a connection whose greeting is under way
            except BaseException:
                connection.disconnect()
                raise
            finally:
                connection.socket_timeout, connection.socket_connect_timeout = usual
            set_timeout(connection._sock, usual[0])  # noqa: SLF001

        super().__init__(maker, outage, connect)
        self.origin = theirs
        self._pid = os.getpid()

    @classmethod
    def shared(cls, url: str | None, theirs: Any, user: object, attend: Attend | None) -> Pool:
        return SHARED.join(
            destination(url, theirs, attend), user, lambda: cls(url, theirs, attend=attend)
        )

    def take(self) -> Any:
        if self._pid != os.getpid():  # a fork copied them: they are the parent's
            self._free, self._all, self._pid = [], set(), os.getpid()
        connection, looked_at = self._newest()
        try:
            for spare in self._spare():
                self.drop(spare)
            if looked_at and not quiet(connection):
                connection.disconnect()
            if not self._is_open(connection):
                connection.connect()
        except BaseException as error:
            self.drop(connection)
            if isinstance(error, AttributeError) and isinstance(error.__context__, TimeoutError):
                # redis-py wants the path's host
                raise errors.TimeoutError("Timeout connecting to server") from None
            raise
        return connection

    def _is_open(self, connection: Any) -> bool:
        return connection._sock is not None  # noqa: SLF001

    def drop(self, connection: Any) -> None:
        """Close a connection in the middle of an exchange."""
        self._all.discard(connection)
        connection.disconnect()

    def close_now(self, connection: Any) -> None:
        connection.disconnect()

    def disconnect(self, inuse_connections: bool = True) -> None:
        for connection in self._emptied(inuse_connections):
            connection.disconnect()

    def combine(self) -> None:
        self.combiner = Combiner(self)

    def abort(self, connection: Any) -> None:
        abort(connection)

    def send(
        self, commands: Sequence[bytes], meanwhile: Meanwhile = None, leaves: Meanwhile = None,
        within: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Send packed commands in one round trip. Return the replies, with errors as values.

        Nothing is retried. *leaves* is called with a connection at hand, just before the commands
        are sent. *within* is a time limit in seconds, if it is shorter than the timeouts of
        connections. The look-up of the server's name, and the start of an embedded server, are not
        limited.
        """
        if within is None or within >= self.timeout:
            if self.combiner is not None and meanwhile is None and within is None:
                answers: list[Any] = self.combiner.send(commands, leaves)
                return answers
            return self.exchange(self.take(), commands, meanwhile, leaves)
        end = since_boot() + within
        BOUNDS.within = within
        try:
            connection = self.take()
        finally:
            BOUNDS.within = None
        return self.exchange(connection, commands, meanwhile, leaves, end)

    def exchange(
        self, connection: Any, commands: Sequence[bytes], meanwhile: Meanwhile = None, leaves: Meanwhile = None,
        end: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Send commands on a connection, read the replies, and return the connection to the pool.

        *meanwhile* is called while the server works. *end* is the latest moment.
        """
        try:
            if end is not None:
                limit(connection, end)
            if leaves is not None:
                leaves()
            send(connection, b"".join(commands))
            if meanwhile is not None:
                meanwhile()
            answers = replies(connection, len(commands), end)
            self.check(connection)
        except BaseException:
            self.drop(connection)
            raise
        self.give(connection)
        return answers


abort = cut


def abandon(connection: Any, _process: object) -> None:
    connection.disconnect()


def disconnect(connection: Any) -> None:
    connection.disconnect()


def maker_for(theirs: Any) -> Any:
    return own_pool(theirs, redis.ConnectionPool, NoRetry(NoBackoff(), 0))


def subscription_maker(theirs: Any) -> Any:
    maker = maker_for(theirs)
    maker.connection_kwargs["protocol"] = 2
    return maker


def pushed(connection: Any, seconds: float) -> list[Any]:
    """Return the messages that come within *seconds*, redirections among them as values."""
    found: list[Any] = []
    ready = connection.can_read(timeout=seconds)
    while ready:
        try:
            found.append(connection.read_response(disable_decoding=True))
        except errors.MovedError as error:
            found.append(error)
        ready = len(found) < 1000 and connection.can_read(timeout=0)
    return found


def limit(connection: Any, end: float) -> None:
    """Limit the next step on a connection. A timeout of its parser would apply to each part of a
    reply.
    """
    connection._sock.settimeout(max(0.001, end - since_boot()))  # noqa: SLF001


def quiet(connection: Any) -> bool:
    """Tell whether the server has neither closed a free connection nor sent anything on it."""
    sock = connection._sock  # noqa: SLF001
    with suppress(errors.ConnectionError, errors.TimeoutError, OSError):
        if sock is not None and not connection.can_read():
            if sock.gettimeout() is not None:  # so redis-py before 8 leaves it
                set_timeout(sock, connection.socket_timeout)
            return True
    return False


def exchanged(connection: Any, packed: bytes) -> Any:
    """Send a packed command and read its reply. An error is returned as a value."""
    send(connection, packed)
    return reply(connection)


def send(connection: Any, packed: bytes) -> None:
    sock = connection._sock  # noqa: SLF001
    # closed by another thread, or to be asked whether it is sound
    if sock is None or connection.health_check_interval:
        connection.send_packed_command([packed])
        return
    try:
        sock.sendall(packed)
    except (TimeoutError, BlockingIOError) as error:
        raise errors.TimeoutError("Timeout writing to socket") from error
    except OSError as error:
        raise unreadable(error) from error


def replies(connection: Any, number: int, end: float | None = None) -> list[Any]:
    if end is None:
        return [reply(connection) for _ in range(number)]
    answers: list[Any] = []
    for _ in range(number):
        limit(connection, end)
        answers.append(reply(connection))
    set_timeout(connection._sock, connection.socket_timeout)  # noqa: SLF001
    return answers


def reply_within(connection: Any, seconds: float) -> Any:
    return reply(connection) if connection.can_read(seconds) else None


def reply(connection: Any) -> Any:
    """Read one reply with redis-py's parser, without the extras of redis-py's connection."""
    try:
        return connection._parser.read_response()  # noqa: SLF001
    except errors.ConnectionError as error:
        # the kernel has waited for as long as it should
        if isinstance(error.__context__, BlockingIOError):
            raise errors.TimeoutError("Timeout reading from socket") from error
        raise
    except OSError as error:
        raise unreadable(error) from error


class PendingOfThread(Pending):
    """A call of a thread. The thread sleeps until the call is answered, or until it has to send for
    others.
    """

    def __init__(self, commands: Sequence[bytes], leaves: Meanwhile) -> None:
        super().__init__(commands, leaves)
        self.turn = threading.Event()  # a fork of the thread that waits for it there is not
        self.leads: Sequence[PendingOfThread] = ()


class Combiner:
    """Calls that wait for a round trip, and calls under way. One of the callers of a trip sends it
    for all of them.
    """

    def __init__(self, connections: Pool) -> None:
        self._connections = connections
        self._waiting: deque[PendingOfThread] = deque()
        self._under_way = 0
        self._lock = _forks.lock()

    def send(self, commands: Sequence[bytes], leaves: Meanwhile) -> list[Any]:
        """Send packed commands together with other callers' commands. Return the replies, as
        `Executor.send` does.
        """
        call = PendingOfThread(commands, leaves)
        with self._lock:
            self._waiting.append(call)
            if self._under_way < TRIPS:
                self._under_way += 1
                self._next()
        call.turn.wait()
        if call.leads:
            self._lead(call.leads)
            call.leads = ()  # this call is among them, and the collector may not run for long
        if call.error is not None:
            raise call.error
        assert call.answers is not None  # noqa: S101
        return call.answers

    def _next(self) -> None:
        """Let the first waiting caller send, also for others. The caller of this method holds the
        lock.
        """
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), CALLS_AT_MOST))]
        batch[0].leads = batch
        batch[0].turn.set()

    def _lead(self, batch: Sequence[PendingOfThread]) -> None:
        try:
            self._trip(batch)
        except BaseException as error:
            for call in batch:
                if call.answers is None and call.error is None:
                    call.error = error
        with self._lock:
            if self._waiting:
                self._next()
            else:
                self._under_way -= 1
        for call in batch[1:]:
            call.turn.set()

    def _trip(self, batch: Sequence[Pending]) -> None:
        connection = self._connections.take()
        try:
            left, failed = leaving(batch)
            send(connection, b"".join(chunk for call in left for chunk in call.commands))
            for call in batch:
                call.error = failed.get(id(call))
                if call.error is None:
                    answers = replies(connection, len(call.commands))
                    self._connections.check(connection)
                    call.answers = answers
        except BaseException:
            self._connections.drop(connection)
            raise
        self._connections.give(connection)
