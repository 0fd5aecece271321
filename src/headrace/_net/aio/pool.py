"""The connections of executors, and round trips on them, under asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio
from redis import exceptions as errors
from redis.asyncio.retry import Retry as AsyncNoRetry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from headrace._net.aio.colour import bounded
from headrace._net.base import connections
from headrace._net.base.connections import Attend, Credentials, Guarded, own_pool, refused
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
from headrace._net.base.retries import Meanwhile
from headrace._net.base.sentinel import Manager, Place
from headrace._protocol.op import ITEM_BYTES
from headrace._telemetry.client import Outage
from headrace.errors import ConfigurationError

# concurrent calls of asyncio executors on one pool: more would only open more connections
CALLS_AT_ONCE = 64


class AsyncPool(BasePool):
    """The connections of executors on one event loop, to the server of a URL or of a client's pool,
    *theirs*.

    Executors of the same server share *outage*.
    """

    def __init__(
        self,
        url: str | None,
        theirs: Any,
        outage: Outage | None = None,
        attend: Attend | None = None,
    ) -> None:
        if url is not None:
            theirs = redis.asyncio.ConnectionPool.from_url(str(url))  # pyright: ignore[reportUnknownMemberType]
        maker = maker_for(theirs)

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
        # Ours alone: redis-py's own makes a task of every write, by a wait_for() that may swallow a
        # cancellation.
        maker.connection_kwargs["socket_timeout"] = None
        if (provider := maker.connection_kwargs.get("credential_provider")) is not None:
            maker.connection_kwargs["credential_provider"] = AsyncGuarded(provider.theirs)
        self.at_once = asyncio.Semaphore(CALLS_AT_ONCE)
        self._watchdog = Watchdog(self.timeout)
        self._together = AsyncCombiner(self)  # for short calls
        self._loop: asyncio.AbstractEventLoop | None = None  # whose connections these are

    @classmethod
    def shared(cls, url: str | None, theirs: Any, user: object, attend: Attend | None) -> AsyncPool:
        """Like `Pool.shared`, among the pools on the event loop that is running."""
        try:
            where = asyncio.get_running_loop(), destination(url, theirs, attend)
        except RuntimeError:  # none is: it is not known yet which one's they will be
            return cls(url, theirs, attend=attend)
        return SHARED.join(where, user, lambda: cls(url, theirs, attend=attend))

    def _enter(self) -> None:
        """Adopt the running event loop.

        Connections of a loop that has ended are dropped without awaiting. Raises
        `ConfigurationError` if another running loop uses them.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None:
            if self._loop.is_running():
                raise ConfigurationError(
                    "in use on another event loop that is running: make one for each loop"
                )
            for connection in self._emptied(everything=True):
                forsake(connection)
            self.at_once = asyncio.Semaphore(CALLS_AT_ONCE)
            self._together = AsyncCombiner(self)
        self._loop = loop

    def open_one(self) -> Any:
        if asyncio.get_running_loop() is not self._loop:
            self._enter()
        return super().open_one()

    async def take(self) -> Any:
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
                # redis-py hides it where it connects to a socket's path
                raise error.__cause__ from None
            raise
        return connection

    def _is_open(self, connection: Any) -> bool:
        return connection.is_connected and not lost(connection)

    async def drop(self, connection: Any) -> None:
        self._all.discard(connection)
        await connection.disconnect(nowait=True)

    def close_now(self, connection: Any) -> None:
        close_now(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        closing = [connection.disconnect() for connection in self._emptied(inuse_connections)]
        await asyncio.gather(*closing, return_exceptions=True)

    def combine(self) -> None:
        self.combiner = AsyncCombiner(self)

    def abort(self, connection: Any) -> None:
        abort(connection)

    async def send(
        self,
        commands: Sequence[bytes],
        meanwhile: Meanwhile = None,
        leaves: Meanwhile = None,
        within: float | None = None,
    ) -> list[Any]:
        """Like `Pool.send`, but *within* limits every step."""
        # else spare ones are closed
        if within is None and self.combiner is None and self.keep is None:
            connection = self.open_one()
            if connection is not None:
                return await self.exchange(connection, commands, meanwhile, leaves)
        async with bounded(self.timeout if within is None else min(within, self.timeout)):
            if self.combiner is not None and meanwhile is None:
                answers: list[Any] = await self.combiner.send(commands, leaves)
                return answers
            return await self.exchange(await self.take(), commands, meanwhile, leaves)

    async def send_short(self, command: bytes, leaves: Meanwhile) -> Any:
        """Send one short command, and return its reply. An error is returned as a value.

        Calls of all queues share round trips while enough others are under way. A hundred
        concurrent calls then take two connections, and half of the processor time of client and
        server.
        """
        if self.combiner is None and len(self._all) - len(self._free) >= TRIPS:
            self._enter()
            async with bounded(self.timeout):
                return (await self._together.send([command], leaves))[0]
        connection = self.open_one() if self.keep is None and self.combiner is None else None
        if connection is None:
            return (await self.send([command], None, leaves))[0]
        return (await self.exchange(connection, (command,), None, leaves))[0]

    async def exchange(
        self,
        connection: Any,
        commands: Sequence[bytes],
        meanwhile: Meanwhile = None,
        leaves: Meanwhile = None,
    ) -> list[Any]:
        """Like `Pool.exchange`, within the timeout of connections."""
        if self._watchdog.seconds != self.timeout:
            self._watchdog = Watchdog(self.timeout)
        watchdog = self._watchdog
        watchdog.watch(connection)
        try:
            if leaves is not None:
                leaves()
            packed = b"".join(commands)
            if len(packed) > ITEM_BYTES or connection.health_check_interval or lost(connection):
                await connection.send_packed_command([packed])
            else:
                connection._writer.write(packed)  # noqa: SLF001 - nothing else is on its way
            if meanwhile is not None:
                meanwhile()
            read = connection._parser.read_response  # noqa: SLF001
            answers: list[Any] = []
            for _ in commands:
                answers.append(await read())  # noqa: PERF401 - before Python 3.12 a comprehension is one more call
            self.check(connection)
        except BaseException as error:
            await self.drop(connection)
            if isinstance(error, errors.ConnectionError) and watchdog.has_cut(connection):
                raise errors.TimeoutError(f"no answer within {watchdog.seconds:g} s") from error
            if isinstance(error, OSError):
                raise unreadable(error) from error
            raise
        finally:
            watchdog.leave(connection)
        self.give(connection)
        return answers


class Watchdog:
    """Cuts connections on which a call takes longer than *seconds*, with one timer for all.

    The limit is the same for all, so the oldest call is due first. A timer for each call would cost
    a lone call an eighth more of the client's time, and `asyncio.timeout` a quarter more.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: dict[Any, float] = {}  # of connections, the oldest first
        self._loop: asyncio.AbstractEventLoop | None = None  # on which the timer is set

    def watch(self, connection: Any) -> None:
        loop = asyncio.get_running_loop()
        self._due[connection] = loop.time() + self.seconds
        if self._loop is not loop:  # none is set, or on a loop that has ended
            self._loop = loop
            loop.call_later(self.seconds, self._cut_due, loop)

    def leave(self, connection: Any) -> None:
        self._due.pop(connection, None)

    def has_cut(self, connection: Any) -> bool:
        return connection not in self._due

    def _cut_due(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        for connection, due in list(self._due.items()):
            if due > loop.time():
                loop.call_at(due, self._cut_due, loop)
                return
            del self._due[connection]
            abort(connection)
        self._loop = None


def lost(connection: Any) -> bool:
    writer = connection._writer  # noqa: SLF001 - redis-py believes it is connected until it reads
    return writer is not None and writer.transport.is_closing()


def abort(connection: Any) -> None:
    writer = connection._writer  # noqa: SLF001
    if writer is not None:
        writer.transport.abort()


def close_now(connection: Any) -> None:
    abort(connection)
    connection._reader = connection._writer = None  # noqa: SLF001 - else the collector warns of it


def abandon(connection: Any, loop: Any) -> None:
    """Like `close_now`, from any thread."""
    with suppress(RuntimeError):  # its event loop has ended
        loop.call_soon_threadsafe(close_now, connection)


async def disconnect(connection: Any) -> None:
    await connection.disconnect(nowait=True)


def maker_for(theirs: Any) -> Any:
    return own_pool(
        theirs, redis.asyncio.ConnectionPool, AsyncNoRetry(NoBackoff(), 0), AsyncManager
    )


def subscription_maker(theirs: Any) -> Any:
    maker = maker_for(theirs)
    maker.connection_kwargs |= {"protocol": 2, "socket_timeout": None}
    return maker


async def pushed(connection: Any, seconds: float) -> list[Any]:
    """Return the messages that come within *seconds*, a redirection among them as a value."""
    try:
        async with asyncio.timeout(seconds):
            # A cancelled read loses nothing: received bytes stay with the connection.
            return [
                await connection.read_response(disable_decoding=True, disconnect_on_error=False)
            ]
    except TimeoutError:
        return []
    except errors.MovedError as error:
        return [error]


class _EndedTransport(asyncio.Transport):
    def is_closing(self) -> bool:
        return True


_ENDED = _EndedTransport()


def forsake(connection: Any) -> None:
    """Close the socket of a connection whose event loop has ended. Other ways to close it would
    need that loop.
    """
    writer = connection._writer  # noqa: SLF001
    connection._reader = connection._writer = None  # noqa: SLF001
    transport: Any = getattr(writer, "transport", None)
    # uvloop has closed its own with the loop
    if (sock := getattr(transport, "_sock", None)) is not None:
        sock.close()
        transport._sock = None  # noqa: SLF001
        transport._closing = True  # noqa: SLF001
    elif writer is not None:
        writer._transport = _ENDED  # noqa: SLF001 - else the collector warns of it


def writing(kind: Any) -> Any:
    """Make a class of connections like *kind* that do not write to a lost connection.

    After such a write, asyncio of Python 3.12, and of 3.13 before 3.13.8, goes on watching the
    number of the socket, and never reads from the next connection that gets this number
    (https://github.com/python/cpython/issues/136234).
    """

    def send_packed_command(connection: Any, *args: Any, **options: Any) -> Any:
        if lost(connection):
            raise errors.ConnectionError("the connection was lost before this was written")
        return kind.send_packed_command(connection, *args, **options)

    return type(kind.__name__, (kind,), {"send_packed_command": send_packed_command})


async def quiet(connection: Any) -> bool:
    # its name before 8
    readable: Any = getattr(connection, "can_read", None) or connection.can_read_destructive
    with suppress(errors.ConnectionError, errors.TimeoutError, OSError):
        return not await readable()
    return False


async def reply_within(connection: Any, seconds: float) -> Any:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return (await replies(connection, 1))[0]
    return None


async def replies(connection: Any, number: int) -> list[Any]:
    read = connection._parser.read_response  # noqa: SLF001
    try:
        return [await read() for _ in range(number)]
    except OSError as error:
        raise unreadable(error) from error


class AsyncCombiner:
    """Like `Combiner`, for asyncio. Its own tasks send the waiting calls."""

    def __init__(self, connections: AsyncPool) -> None:
        self._connections = connections
        self._waiting: deque[tuple[Pending, asyncio.Future[list[Any]]]] = deque()
        self._trips: set[asyncio.Task[None]] = set()  # so that none is collected
        self._under_way = 0  # trips that look for waiting calls once more before they end

    async def send(self, commands: Sequence[bytes], leaves: Meanwhile) -> list[Any]:
        """Like `Combiner.send`. The call of a cancelled caller is sent nevertheless if it waited
        for others.
        """
        call = Pending(commands, leaves)
        answered: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        if not self._under_way:
            return await self._alone(call, answered)
        self._waiting.append((call, answered))
        self._begin()
        return await answered

    async def _alone(self, call: Pending, answered: asyncio.Future[list[Any]]) -> list[Any]:
        """Send a call at once, as none is under way. A task would cost two more iterations of the
        event loop.
        """
        self._under_way += 1
        try:
            await self._trip([(call, answered)])
        finally:
            self._under_way -= 1
            if self._waiting:
                self._begin()
        return await answered

    def _begin(self) -> None:
        if self._under_way < TRIPS:
            self._under_way += 1
            trip = asyncio.create_task(self._work(), name="headrace-trips")
            self._trips.add(trip)
            trip.add_done_callback(self._trips.discard)

    async def _work(self) -> None:
        try:
            await self._send_all()
        finally:
            self._under_way -= 1

    async def _send_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), CALLS_AT_MOST))]
            batch = [(call, answered) for call, answered in batch if not answered.done()]
            try:
                async with asyncio.timeout(self._connections.timeout):
                    await self._trip(batch)
            except BaseException as error:
                late = errors.TimeoutError(f"no answer within {self._connections.timeout:g} s")
                for _, answered in batch:
                    if not answered.done():
                        answered.set_exception(late if isinstance(error, TimeoutError) else error)
                        answered.exception()  # its caller may be gone
                if not isinstance(error, Exception):
                    raise

    async def _trip(self, batch: Sequence[tuple[Pending, asyncio.Future[list[Any]]]]) -> None:
        connection = await self._connections.take()
        try:
            left, failed = leaving([call for call, _ in batch])
            await connection.send_packed_command(
                [b"".join(chunk for call in left for chunk in call.commands)]
            )
            for call, answered in batch:
                error = failed.get(id(call))
                answers = await replies(connection, len(call.commands)) if error is None else []
                self._connections.check(connection)
                if answered.done():
                    continue
                if error is None:
                    answered.set_result(answers)
                else:
                    answered.set_exception(error)
        except BaseException:
            await self._connections.drop(connection)
            raise
        self._connections.give(connection)


class AsyncManager(Manager):
    async def discover_master(self, _service: str) -> Place:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return (
            self.watch.find() if self.watch.watching else await asyncio.to_thread(self.watch.find)
        )


class AsyncGuarded(Guarded):
    """Like `Guarded`. A provider without a method for asyncio would block the event loop, so a
    thread asks it.
    """

    async def get_credentials_async(self) -> Credentials:
        usual = None, CredentialProvider.get_credentials_async
        theirs: Any = self.theirs
        if getattr(theirs.__class__, "get_credentials_async", None) not in usual:
            try:
                async with asyncio.timeout(connections.CREDENTIALS_WITHIN_S):
                    given: Credentials = await self.theirs.get_credentials_async()
            except TimeoutError:
                raise connections.late() from None
            except Exception as error:
                raise connections.failed(error) from error
            return given
        asked = self.ask()
        here = asyncio.wrap_future(asked)
        # or asyncio logs that nobody asked
        here.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([here], timeout=connections.CREDENTIALS_WITHIN_S)
        if not asked.done():
            raise connections.late()
        return self.checked(asked.exception(), asked)
