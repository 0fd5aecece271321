"""Connections that listen: Pub/Sub, for workers, for who waits for results, and for who wants to see events.

A line is a connection of ours that is subscribed to some channels and does nothing else; it speaks RESP2, whatever
the others do. One that is lost is opened again by the next call of `hear`, which says so: what was told meanwhile
nobody heard. An idle one is pinged, or a server that went away without a word would never be missed.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import redis
import redis.asyncio
from redis import exceptions as errors
from redis.asyncio.retry import Retry as AsyncNoRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as NoRetry

from headrace import _log as log
from headrace._event import ENDS, Board, Event, Heard, Watch, events
from headrace._execute import BUDGET, PAUSE, AsyncExecutor, Executor, heals, own_pool
from headrace._op import Op, pack
from headrace._ops import Ops

QUIET = 5.0  # seconds of silence before a ping, and twice that for its answer
AGAIN = 10.0  # seconds after which the scripts are told again that somebody listens
POLL = 5.0  # seconds between looks for a result all the same: who completes may not be allowed to publish
DEAF = 0.2  # the same, where nothing is heard
TURN = 1.0  # seconds: how often a listener looks whether anybody still waits, or tries to connect again
LINGER = 5.0  # seconds that a subscription outlives its last waiter
_PING = pack(("PING",))


class _Line:
    """What both colours share: when to ping, what replies mean, what errors lead to."""

    def __init__(self, announce: Op[Any] | None) -> None:
        self._announce = announce
        self._connection: Any = None
        self._closed = False
        self._last = self._due = 0.0
        self._pinged: float | None = None
        self._warned = False

    def _fresh(self) -> None:
        self._last, self._due, self._pinged = time.monotonic(), -math.inf, None

    def _message(self, reply: Any) -> list[tuple[str, bytes]]:
        self._last, self._pinged = time.monotonic(), None
        return [(bytes(reply[1]).decode(), bytes(reply[2]))] if bytes(reply[0]) == b"message" else []

    def _idle(self) -> bool:
        """Nothing came: whether to ping."""
        now = time.monotonic()
        if self._pinged is None:
            if now - self._last < QUIET:
                return False
            self._pinged = now
            return True
        if now - self._pinged >= 2 * QUIET:
            raise errors.ConnectionError("the server does not answer on a subscribed connection")
        return False

    def _announcing(self) -> Op[Any] | None:
        now = time.monotonic()
        if self._announce is None or now < self._due:
            return None
        self._due = now + AGAIN
        return self._announce

    def _failed(self, error: BaseException) -> Heard:
        if self._closed or heals(error):
            return Heard("cut", error=error)
        if not self._warned:
            self._warned = True
            log.say("not_heard", "the server does not let us listen (%s); what is told is found out later", error)
        return Heard("refused", error=error)


class Line(_Line):
    """One subscribed connection, to where *executor*'s lead. One thread uses it; another may `close` it."""

    def __init__(self, executor: Executor, announce: Op[Any] | None = None) -> None:
        super().__init__(announce)
        self._executor = executor
        self._pool: Any = own_pool(executor.pool, redis.ConnectionPool, NoRetry(NoBackoff(), 0))
        self._pool.connection_kwargs["protocol"] = 2

    def hear(self, channels: Sequence[str], seconds: float) -> Heard:
        """What is told within so many seconds; or that we have just begun to listen; or why we don't."""
        try:
            anew = self._connection is None
            if anew and not self._closed:
                self._subscribe(channels)
            if self._closed:  # perhaps as we connected
                self._hang_up()
                return Heard("cut")
            op = self._announcing()
            if op is not None:
                self._executor.run(op)
            return Heard("anew") if anew else Heard("on", self._read(seconds))
        except (errors.RedisError, OSError) as error:
            self._hang_up()
            return self._failed(error)
        except Exception as error:
            if not self._closed:  # else it was closed under us, which may look like anything
                raise
            return Heard("cut", error=error)

    def _subscribe(self, channels: Sequence[str]) -> None:
        connection = self._connection = self._pool.get_connection()
        connection.send_packed_command([pack(("SUBSCRIBE", *channels))])
        for _ in channels:
            connection.read_response(disable_decoding=True)
        self._fresh()

    def _read(self, seconds: float) -> list[tuple[str, bytes]]:
        connection, found = self._connection, list[tuple[str, bytes]]()
        ready = connection.can_read(timeout=seconds)
        if not ready and self._idle():
            connection.send_packed_command([_PING])
        while ready:
            found += self._message(connection.read_response(disable_decoding=True))
            ready = len(found) < 1000 and connection.can_read(timeout=0)
        return found

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)

    def close(self) -> None:
        """For good; a `hear` under way returns."""
        self._closed = True
        self._pool.disconnect()


class AsyncLine(_Line):
    """Like `Line`; it is closed when nobody is in `hear`."""

    def __init__(self, executor: AsyncExecutor, announce: Op[Any] | None = None) -> None:
        super().__init__(announce)
        self._executor = executor
        self._pool: Any = own_pool(executor.pool, redis.asyncio.ConnectionPool, AsyncNoRetry(NoBackoff(), 0))
        self._pool.connection_kwargs |= {"protocol": 2, "socket_timeout": None}

    async def hear(self, channels: Sequence[str], seconds: float) -> Heard:
        """Like `Line.hear`."""
        try:
            if self._closed:
                return Heard("cut")
            anew = self._connection is None
            if anew:
                try:
                    async with asyncio.timeout(self._executor.timeout):
                        await self._subscribe(channels)
                except BaseException:
                    await self._hang_up()  # half subscribed
                    raise
            op = self._announcing()
            if op is not None:
                await self._executor.run(op)
            return Heard("anew") if anew else Heard("on", await self._read(seconds))
        except (errors.RedisError, OSError) as error:
            await self._hang_up()
            return self._failed(error)

    async def _subscribe(self, channels: Sequence[str]) -> None:
        connection = self._connection = await self._pool.get_connection()
        await connection.send_packed_command([pack(("SUBSCRIBE", *channels))])
        for _ in channels:
            await connection.read_response(disable_decoding=True)
        self._fresh()

    async def _read(self, seconds: float) -> list[tuple[str, bytes]]:
        try:
            async with asyncio.timeout(seconds):
                # A read that is given up loses nothing: what has come stays with the connection.
                reply = await self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except TimeoutError:
            if self._idle():
                await self._connection.send_packed_command([_PING])
            return []
        return self._message(reply)

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def close(self) -> None:
        """For good."""
        self._closed = True
        await self._hang_up()


def _channels(ops: Ops, kinds: Iterable[str]) -> list[str]:
    return [ops.keys.channel(kind) for kind in kinds]


class Notices:
    """Who waits for the ends of jobs of a queue: one subscription for all, as long as somebody waits."""

    def __init__(self, ops: Ops, executor: Executor) -> None:
        self._ops, self._executor = ops, executor
        self._board = Board(ops.keys.queue)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._line: Line | None = None
        self._idle_since = 0.0
        self._pid = os.getpid()
        self._board.watches.clear()

    def watch(self, names: Sequence[str], seconds: float) -> Watch:
        """From now on their ends are noticed, if the server lets us, and answers within so many seconds."""
        if self._pid != os.getpid():  # a fork took no thread with it
            self._reset()
        watch = Watch(frozenset(names), threading.Event())
        with self._lock:
            self._board.add(watch)
            if self._line is None:
                self._ready.clear()
                self._line = Line(self._executor, self._ops.listen())
                threading.Thread(target=self._listen, args=(self._line,), name="headrace-notices", daemon=True).start()
        try:
            self._ready.wait(seconds)
        except BaseException:
            self.ignore(watch)
            raise
        with self._lock:
            self._board.looked(watch)
        return watch

    def wait(self, watch: Watch, seconds: float) -> tuple[set[str], bool]:
        """Those that ended, and whether to look for the others."""
        told = watch.wake.wait(min(seconds, POLL if self._board.sound else DEAF))
        with self._lock:
            ended, missed = self._board.read(watch)
        return ended, missed or not told

    def ignore(self, watch: Watch) -> None:
        """They are waited for no more."""
        with self._lock:
            self._board.remove(watch)
            self._idle_since = time.monotonic()

    def _listen(self, line: Line) -> None:
        channels = _channels(self._ops, ENDS)
        while True:
            heard = line.hear(channels, TURN)
            with self._lock:
                if self._line is not line:
                    break
                self._board.take(heard)
                self._ready.set()
                if not self._board.watches and time.monotonic() - self._idle_since >= LINGER:
                    self._line = None
                    break
            if not self._board.sound:
                time.sleep(TURN)
        line.close()

    def close(self) -> None:
        """Who still waits looks by itself."""
        with self._lock:
            line, self._line = self._line, None
            self._board.take(Heard("cut"))
        if line is not None:
            line.close()


class AsyncNotices:
    """Like `Notices`."""

    def __init__(self, ops: Ops, executor: AsyncExecutor) -> None:
        self._ops, self._executor = ops, executor
        self._board = Board(ops.keys.queue)
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle_since = 0.0

    async def watch(self, names: Sequence[str], seconds: float) -> Watch:
        """Like `Notices.watch`."""
        watch = Watch(frozenset(names), asyncio.Event())
        self._board.add(watch)
        if self._task is None or self._task.done():
            self._ready.clear()
            self._task = asyncio.create_task(self._listen(), name="headrace-notices")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ready.wait()
        except BaseException:
            self._board.remove(watch)
            raise
        self._board.looked(watch)
        return watch

    async def wait(self, watch: Watch, seconds: float) -> tuple[set[str], bool]:
        """Like `Notices.wait`."""
        told = True
        try:
            async with asyncio.timeout(min(seconds, POLL if self._board.sound else DEAF)):
                await watch.wake.wait()
        except TimeoutError:
            told = False
        ended, missed = self._board.read(watch)
        return ended, missed or not told

    async def ignore(self, watch: Watch) -> None:
        """Like `Notices.ignore`."""
        self._board.remove(watch)
        self._idle_since = time.monotonic()

    async def _listen(self) -> None:
        line, channels = AsyncLine(self._executor, self._ops.listen()), _channels(self._ops, ENDS)
        try:
            while self._board.watches or time.monotonic() - self._idle_since < LINGER:
                self._board.take(await line.hear(channels, TURN))
                self._ready.set()
                if not self._board.sound:
                    await asyncio.sleep(TURN)
        finally:
            self._board.take(Heard("cut"))
            self._ready.set()
            await line.close()

    async def close(self) -> None:
        """Like `Notices.close`."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None


class _Told:
    """What both colours of a listener share: how long it goes on without a connection, and without an event."""

    def __init__(self, ops: Ops, kinds: Sequence[str], timeout: float | None) -> None:
        self._queue = ops.keys.queue
        self._channels = _channels(ops, kinds)
        self._timeout = timeout
        self._found: list[Event] = []
        self._cut_since: float | None = None
        self._over = False

    def _left(self, start: float) -> float:
        """Seconds to listen; 0: it has been quiet for too long."""
        if self._timeout is None:
            return QUIET
        return max(0.0, min(QUIET, start + self._timeout - time.monotonic()))

    def _take(self, heard: Heard) -> float:
        """Take in what was heard; seconds until the next try, if there is no connection."""
        for channel, message in heard.messages:
            self._found += events(self._queue, channel, message)
        self._found.reverse()  # taken from the end
        if heard.state not in ("cut", "refused"):
            self._cut_since = None
            return 0.0
        now = time.monotonic()
        self._cut_since = self._cut_since if self._cut_since is not None else now
        if heard.error is not None and (heard.state == "refused" or now - self._cut_since >= BUDGET):
            raise heard.error
        return PAUSE / 10


class Events(_Told):
    """What happens in a queue, as it happens: an iterator, and a context manager that subscribes on entry."""

    def __init__(self, ops: Ops, executor: Executor, kinds: Sequence[str], timeout: float | None) -> None:
        super().__init__(ops, kinds, timeout)
        self._line = Line(executor, ops.listen())
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
            left = self._left(start)
            if self._over or not left:
                self.close()
                raise StopIteration
            pause = self._take(self._line.hear(self._channels, left))
            if pause:
                time.sleep(pause)
        return self._found.pop()

    def _subscribe(self) -> None:
        while not (self._subscribed or self._over):
            pause = self._take(self._line.hear(self._channels, 0.0))
            self._subscribed = not pause
            time.sleep(pause)

    def close(self) -> None:
        """Hang up; the iteration ends."""
        self._over = True
        self._line.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class AsyncEvents(_Told):
    """Like `Events`."""

    def __init__(self, ops: Ops, executor: AsyncExecutor, kinds: Sequence[str], timeout: float | None) -> None:
        super().__init__(ops, kinds, timeout)
        self._line = AsyncLine(executor, ops.listen())
        self._subscribed = False

    async def __aenter__(self) -> Self:
        await self._subscribe()
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        await self._subscribe()
        start = time.monotonic()
        while not self._found:
            left = self._left(start)
            if self._over or not left:
                await self.close()
                raise StopAsyncIteration
            pause = self._take(await self._line.hear(self._channels, left))
            if pause:
                await asyncio.sleep(pause)
        return self._found.pop()

    async def _subscribe(self) -> None:
        while not (self._subscribed or self._over):
            pause = self._take(await self._line.hear(self._channels, 0.0))
            self._subscribed = not pause
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Like `Events.close`."""
        self._over = True
        await self._line.close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()
