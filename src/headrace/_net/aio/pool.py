"""The connections of an executor, under asyncio."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio
from redis import exceptions as errors
from redis.asyncio.retry import Retry as AsyncNoRetry
from redis.backoff import NoBackoff

from headrace._net.aio.credentials import AsyncGuarded
from headrace._net.aio.sentinel import AsyncManager
from headrace._net.base.connections import Attend, own_pool, refused
from headrace._net.base.pool import SHARED, BasePool, destination, unreadable
from headrace._telemetry.client import Outage
from headrace.errors import ConfigurationError

CALLS_AT_ONCE = 64  # calls of asyncio executors on one pool at a time: more would only open more connections


class AsyncPool(BasePool):
    """Like `Pool`, for asyncio."""

    def __init__(
        self, url: str | None, theirs: Any, outage: Outage | None = None, attend: Attend | None = None
    ) -> None:
        if url is not None:
            theirs = redis.asyncio.ConnectionPool.from_url(str(url))  # pyright: ignore[reportUnknownMemberType]
        maker = own_pool(theirs, redis.asyncio.ConnectionPool, AsyncNoRetry(NoBackoff(), 0), AsyncManager)

        async def connect(connection: Any, kind: Any) -> None:
            assert attend is not None  # noqa: S101
            connection.path = attend()
            try:
                await kind.connect(connection)
            except redis.ConnectionError as error:
                if not refused(error):
                    raise
                connection.path = await asyncio.to_thread(attend, refused=True)
                await kind.connect(connection)

        super().__init__(maker, outage, attend and connect)
        maker.connection_class = writing(maker.connection_class)
        self.origin = theirs
        # Ours alone: redis-py's own makes a task of every write, by a wait_for() that may swallow a cancellation.
        maker.connection_kwargs["socket_timeout"] = None
        if (provider := maker.connection_kwargs.get("credential_provider")) is not None:
            maker.connection_kwargs["credential_provider"] = AsyncGuarded(provider.theirs)
        self.at_once = asyncio.Semaphore(CALLS_AT_ONCE)
        self._loop: asyncio.AbstractEventLoop | None = None  # whose connections these are

    @classmethod
    def shared(cls, url: str | None, theirs: Any, user: object, attend: Attend | None) -> AsyncPool:
        """Like `Pool.shared`, among those on the event loop that is running."""
        try:
            where = asyncio.get_running_loop(), destination(url, theirs, attend)
        except RuntimeError:  # none is: it is not known yet which one's they will be
            return cls(url, theirs, attend=attend)
        return SHARED.join(where, user, lambda: cls(url, theirs, attend=attend))

    def _enter(self) -> None:
        """Take in which event loop is running: connections of one that has ended are dropped, without awaiting.

        Raises `ConfigurationError` if another one is running that uses them.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None:
            if self._loop.is_running():
                raise ConfigurationError("in use on another event loop that is running: make one for each loop")
            for connection in self._emptied(everything=True):
                forsake(connection)
            self.at_once = asyncio.Semaphore(CALLS_AT_ONCE)
        self._loop = loop

    def open_one(self) -> Any:
        """Like `Pool.open_one`."""
        self._enter()
        return super().open_one()

    async def take(self) -> Any:
        """Like `Pool.take`."""
        self._enter()
        connection, looked_at = self._newest()
        try:
            for spare in self._spare():
                await self.drop(spare)
            if lost(connection) or (looked_at and not await quiet(connection)):
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await connection.connect()
        except BaseException as error:
            await self.drop(connection)
            if isinstance(error.__cause__, errors.AuthenticationError):
                raise error.__cause__ from None  # redis-py hides it where it connects to a socket's path
            raise
        return connection

    def _is_open(self, connection: Any) -> bool:
        return connection.is_connected and not lost(connection)

    async def drop(self, connection: Any) -> None:
        """Like `Pool.drop`."""
        self._all.discard(connection)
        await connection.disconnect(nowait=True)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Like `Pool.disconnect`."""
        closing = [connection.disconnect() for connection in self._emptied(inuse_connections)]
        await asyncio.gather(*closing, return_exceptions=True)


def lost(connection: Any) -> bool:
    """Tell whether the event loop has lost a connection, or is about to close its socket."""
    writer = connection._writer  # noqa: SLF001 - redis-py takes it for connected until it reads
    return writer is not None and writer.transport.is_closing()


def abort(connection: Any) -> None:
    """End a connection without a goodbye. Calls that wait for it find that it has ended."""
    writer = connection._writer  # noqa: SLF001
    if writer is not None:
        writer.transport.abort()


def drop(connection: Any) -> None:
    """End a connection that has no user any more."""
    abort(connection)
    connection._reader = connection._writer = None  # noqa: SLF001 - else the collector warns of it


class _EndedTransport(asyncio.Transport):
    def is_closing(self) -> bool:
        return True


_ENDED = _EndedTransport()


def forsake(connection: Any) -> None:
    """Close the socket of a connection whose event loop has ended: anything else would ask that loop."""
    writer = connection._writer  # noqa: SLF001
    connection._reader = connection._writer = None  # noqa: SLF001
    transport: Any = getattr(writer, "transport", None)
    if (sock := getattr(transport, "_sock", None)) is not None:  # uvloop has closed its own with the loop
        sock.close()
        transport._sock, transport._closing = None, True  # noqa: SLF001
    elif writer is not None:
        writer._transport = _ENDED  # noqa: SLF001 - else the collector warns of it


def writing(kind: Any) -> Any:
    """Make a class of connections like *kind* that write nothing to one that is lost.

    asyncio of Python 3.12, and of 3.13 before 3.13.8, would watch the number of its socket from then on, and never read
    from the next connection that gets this number (https://github.com/python/cpython/issues/136234).
    """

    def send_packed_command(connection: Any, *args: Any, **options: Any) -> Any:
        if lost(connection):
            raise errors.ConnectionError("the connection was lost before this was written")
        return kind.send_packed_command(connection, *args, **options)

    return type(kind.__name__, (kind,), {"send_packed_command": send_packed_command})


async def quiet(connection: Any) -> bool:
    """Like `_net/sync/pool.quiet`."""
    readable: Any = getattr(connection, "can_read", None) or connection.can_read_destructive  # its name before 8
    with suppress(errors.ConnectionError, errors.TimeoutError, OSError):
        return not await readable()
    return False


async def replies(connection: Any, number: int) -> list[Any]:
    """Like `_net/sync/pool.replies`."""
    read = connection._parser.read_response  # noqa: SLF001
    try:
        return [await read() for _ in range(number)]
    except OSError as error:
        raise unreadable(error) from error
