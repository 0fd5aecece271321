"""The connections of an executor."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from redis import exceptions as errors

from headrace._base.pool import BasePool, unreadable


class Pool(BasePool):
    """The connections of an executor. Threads share it: taking and returning one is atomic under the interpreter's
    lock.
    """

    def __init__(self, maker: Any) -> None:
        super().__init__(maker)
        self._pid = os.getpid()

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
            if connection._sock is None:  # noqa: SLF001
                connection.connect()
        except BaseException:
            self.drop(connection)
            raise
        return connection

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
    with suppress(errors.ConnectionError, errors.TimeoutError, OSError):
        return not connection.can_read()
    return False


def exchanged(connection: Any, packed: bytes) -> Any:
    """Send a packed command and read its reply, an error as a value; redis-py's calls without what they add."""
    sock = connection._sock  # noqa: SLF001
    if sock is None or connection.health_check_interval:  # closed by another thread, or to be asked whether it is sound
        connection.send_packed_command([packed])
        return reply(connection)
    try:
        sock.sendall(packed)
    except TimeoutError as error:
        raise errors.TimeoutError("Timeout writing to socket") from error
    except OSError as error:
        raise unreadable(error) from error
    return reply(connection)


def replies(connection: Any, number: int) -> list[Any]:
    """Read so many replies, errors among them as values; redis-py's parser without what its connection adds."""
    return [reply(connection) for _ in range(number)]


def reply(connection: Any) -> Any:
    """Read one reply."""
    try:
        return connection._parser.read_response()  # noqa: SLF001
    except OSError as error:
        raise unreadable(error) from error
