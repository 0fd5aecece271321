"""The connections of executors."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

import redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry as NoRetry

from headrace._net.base.connections import Attend, own_pool, refused
from headrace._net.base.credentials import BOUNDS
from headrace._net.base.pool import SHARED, BasePool, destination, unreadable
from headrace._net.base.sockets import set_timeout
from headrace._telemetry.client import Outage


class Pool(BasePool):
    """The connections of executors. Threads share it: taking and returning one is atomic under the interpreter's lock.

    *url* or *theirs*, a client's pool: where they lead. *outage*: shared with others on the same server.
    """

    def __init__(
        self, url: str | None, theirs: Any, outage: Outage | None = None, attend: Attend | None = None
    ) -> None:
        if url is not None:
            theirs = redis.ConnectionPool.from_url(str(url))  # pyright: ignore[reportUnknownMemberType]
        maker = own_pool(theirs, redis.ConnectionPool, NoRetry(NoBackoff(), 0))
        self.bounds = bounds = threading.local()  # of the call that this thread makes

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
            within: float | None = getattr(bounds, "within", None)
            usual = connection.socket_timeout, connection.socket_connect_timeout
            BOUNDS.within = within
            if within is not None:
                connection.socket_timeout, connection.socket_connect_timeout = within, min(within, usual[1] or within)
            try:
                kind.connect(connection) if attend is None else attended(connection, kind, attend)
            except BaseException:  # Ctrl-C, too: redis-py would keep a connection whose greeting is under way
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
        """Return the connections that *user* shares with others which lead there."""
        return SHARED.join(destination(url, theirs, attend), user, lambda: cls(url, theirs, attend=attend))

    def take(self) -> Any:
        """Take a connection that is open, and on which nothing is under way; make one if none is free."""
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
                raise errors.TimeoutError("Timeout connecting to server") from None  # redis-py wants the path's host
            raise
        return connection

    def _is_open(self, connection: Any) -> bool:
        return connection._sock is not None  # noqa: SLF001

    def drop(self, connection: Any) -> None:
        """Close a connection on which half a conversation is left."""
        self._all.discard(connection)
        connection.disconnect()

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close the free connections, and those in use; a call that uses one fails."""
        for connection in self._emptied(inuse_connections):
            connection.disconnect()


def quiet(connection: Any) -> bool:
    """Tell whether the server has neither closed a free connection nor said anything on it."""
    sock = connection._sock  # noqa: SLF001
    with suppress(errors.ConnectionError, errors.TimeoutError, OSError):
        if sock is not None and not connection.can_read():
            if sock.gettimeout() is not None:  # so redis-py before 8 leaves it
                set_timeout(sock, connection.socket_timeout)
            return True
    return False


def exchanged(connection: Any, packed: bytes) -> Any:
    """Send a packed command and read its reply, an error as a value."""
    send(connection, packed)
    return reply(connection)


def send(connection: Any, packed: bytes) -> None:
    """Send packed commands; redis-py's call without its extras."""
    sock = connection._sock  # noqa: SLF001
    if sock is None or connection.health_check_interval:  # closed by another thread, or to be asked whether it is sound
        connection.send_packed_command([packed])
        return
    try:
        sock.sendall(packed)
    except (TimeoutError, BlockingIOError) as error:
        raise errors.TimeoutError("Timeout writing to socket") from error
    except OSError as error:
        raise unreadable(error) from error


def replies(connection: Any, number: int) -> list[Any]:
    """Read so many replies, errors among them as values."""
    return [reply(connection) for _ in range(number)]


def reply(connection: Any) -> Any:
    """Read one reply by redis-py's parser, without its connection's extras."""
    try:
        return connection._parser.read_response()  # noqa: SLF001
    except errors.ConnectionError as error:
        if isinstance(error.__context__, BlockingIOError):  # the kernel has waited for as long as it should
            raise errors.TimeoutError("Timeout reading from socket") from error
        raise
    except OSError as error:
        raise unreadable(error) from error
