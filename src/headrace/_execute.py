"""The only place where an operation meets a socket: connections, lanes, and what errors lead to.

- Our connections are our own: made from a URL, or from the settings of a client we were given,
  which itself is never used, closed or changed. redis-py's retries are off on them: it would send
  a command again that the server has already carried out. We retry, under the same call number,
  and the script answers from its record of the first.
- A lane has one call in flight. Lanes are drawn at random, and drawn anew after a fork. One on
  which a call was interrupted is not used again: what was sent may still arrive, when the next
  call's record would have taken the place of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
from attrs import define, field
from redis import exceptions as errors
from redis.asyncio.retry import Retry as AsyncNoRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as NoRetry
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception,
    wait_random_exponential,
)

from headrace._observe import Outage
from headrace._op import Arg, Op, pack
from headrace._ops import SIZE
from headrace.errors import ConfigurationError

R = TypeVar("R")
Meanwhile = Callable[[], None] | None
BLOCK = 1.0  # seconds; a blocked read never waits longer than this, nor than the socket's timeout
BUDGET = 45.0  # seconds of retries: longer than a Sentinel or cluster failover takes
PAUSE = 2.0  # seconds between two attempts, at most
FIRST = 5.0  # seconds before the first answer ever: a wrong address should not take a minute to show
UNDER_WAY = 2  # calls of one operation at a time, before others join: one at the server, one on its way
SMALL = 100  # items of a call that may join others
CROWD = 500  # items of one joint call, but for its last
TURNS = 64  # calls of one asyncio executor at a time: more would only open more connections
AGAIN = (  # errors of a server that will recover, or is being replaced
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "NOREPLICAS", "UNBLOCKED", "OOM",
)  # fmt: skip
_HEALS = re.compile(rf"\b({'|'.join(AGAIN)})\b")
_LEVELS = re.compile(r"\bPRIORITIES (\d+)")
_OURS = {  # what of a client's connection settings is ours, or makes no sense in another pool
    "retry", "retry_on_error", "retry_on_timeout", "decode_responses", "socket_timeout",
    "event_dispatcher", "maint_notifications_config", "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler", "maintenance_state", "maintenance_notification_hash",
    "orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout", "himport_registry",
    "connection_pool", "command_packer", "parser_class", "encoding", "encoding_errors",
}  # fmt: skip


def heals(error: BaseException) -> bool:
    """Whether trying again can help. What is not listed fails at once."""
    if isinstance(error, (errors.AuthenticationError, errors.AuthorizationError)):
        return False  # redis-py calls these connection errors; they won't heal
    if isinstance(error, (errors.ConnectionError, errors.TimeoutError, OSError)):
        return True
    recovers = errors.OutOfMemoryError, errors.ReadOnlyError, errors.TryAgainError, errors.ClusterDownError
    if isinstance(error, recovers):
        return True
    return isinstance(error, errors.ResponseError) and bool(_HEALS.search(str(error)[:300]))


def stale(error: BaseException) -> bool:
    """Whether this connection leads to a server that is no primary any more: connect anew."""
    return isinstance(error, errors.ReadOnlyError) or "READONLY" in str(error)[:300]


def policy(budget: Callable[[], float] | float, pause: float = PAUSE, outage: Outage | None = None) -> dict[str, Any]:
    """What both colours hand to tenacity. The *budget* may shrink meanwhile."""

    def spent(state: RetryCallState) -> bool:
        seconds = state.seconds_since_start or 0.0
        return seconds >= (budget() if callable(budget) else budget)

    return {
        "retry": retry_if_exception(heals),
        "before_sleep": outage and outage.again,
        "wait": wait_random_exponential(0.02, max=pause),
        "stop": spent,
        "reraise": True,
    }


def own_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Connection settings of ours, from a client's."""
    ours = {key: value for key, value in settings.items() if key not in _OURS}
    timeout = settings.get("socket_timeout")
    ours["socket_timeout"] = max(timeout or 10.0, BLOCK + 4.0)
    ours["decode_responses"] = False
    return ours


def own_pool(theirs: Any, plain: Any, retry: Any) -> Any:
    """A pool of ours that leads where *theirs* does; Sentinel's finds the primary anew for each connection."""
    ours = own_settings(theirs.connection_kwargs) | {"max_connections": 1 << 31}  # redis-py's 100 ends in errors
    if hasattr(theirs, "sentinel_manager"):
        return type(theirs)(
            theirs.service_name, theirs.sentinel_manager, is_master=theirs.is_master, retry=retry, **ours
        )
    return plain(connection_class=theirs.connection_class, retry=retry, **ours)


@define
class Lanes:
    """Lanes that are free now. Taking and returning one is atomic under the interpreter's lock."""

    free: list[Lane] = field(factory=list)  # pyright: ignore[reportUnknownVariableType]
    pid: int = field(factory=os.getpid)

    def take(self) -> Lane:
        if self.pid != os.getpid():  # a fork copied them: two processes on one lane would answer each other
            self.free, self.pid = [], os.getpid()
        try:
            lane = self.free.pop()
        except IndexError:
            lane = Lane()
        lane.calls += 1
        return lane

    def give(self, lanes: Sequence[Lane]) -> None:
        self.free += lanes


@define(eq=False)
class Lane:
    """One call in flight, numbered."""

    name: str = field(factory=lambda: secrets.token_hex(8))
    calls: int = 0


def _packed(ops: Sequence[Op[Any]], lanes: Sequence[Lane], verb: str) -> list[bytes]:
    return [op.packed(verb, lane.name, str(lane.calls)) for op, lane in zip(ops, lanes, strict=True)]


def _missing(replies: Sequence[Any]) -> list[int]:
    """Which replies say that the server does not have the script: nothing ran, send the source."""
    return [
        i
        for i, reply in enumerate(replies)
        if isinstance(reply, errors.NoScriptError)
        or (isinstance(reply, errors.ResponseError) and "NOSCRIPT" in str(reply)[:200])
    ]


def _first_error(replies: Sequence[Any]) -> BaseException | None:
    """The error to raise: one that will not heal before one that will."""
    found = [r for r in replies if isinstance(r, Exception)]
    for error in found:
        if levels := _LEVELS.search(str(error)[:300]):
            return ConfigurationError(
                f"this queue has {levels[1]} priority levels: give priorities={levels[1]}, or more, wherever it is used"
            )
    return next((r for r in found if not heals(r)), found[0] if found else None)


class Executor:
    """Runs operations on a pool of our own."""

    def __init__(self, url: str | None = None, client: redis.Redis | None = None, budget: float = BUDGET) -> None:
        theirs: Any = redis.ConnectionPool.from_url(str(url)) if client is None else client.connection_pool  # pyright: ignore[reportUnknownMemberType]
        self.pool: Any = own_pool(theirs, redis.ConnectionPool, NoRetry(NoBackoff(), 0))
        self.budget, self.pause = budget, PAUSE
        self.outage = Outage(self.pool.connection_kwargs)
        self._met = False
        self._lanes = Lanes()

    def run(self, op: Op[R], meanwhile: Meanwhile = None) -> R:
        """Send one operation; its decoded reply. *meanwhile* is called while the server works, once an attempt."""
        result: R = self.run_all([op], meanwhile)[0]
        return result

    def run_all(self, ops: Sequence[Op[Any]], meanwhile: Meanwhile = None) -> list[Any]:
        """Send several in one round trip; their decoded replies. Each is atomic, all are not."""
        lanes = [self._lanes.take() for _ in ops]
        try:
            replies = self._attempt(ops, lanes, meanwhile)
        except Exception as error:
            if not heals(error):
                raise
            self.outage.failed(error)
            replies = Retrying(**policy(self._left, self.pause, self.outage))(self._attempt, ops, lanes, meanwhile)
        else:
            self._lanes.give(lanes)
        self._met = True
        if self.outage.since:
            self.outage.over()
        return [op.decode(reply) for op, reply in zip(ops, replies, strict=True)]

    def _left(self) -> float:
        return self.budget if self._met else min(FIRST, self.budget)

    def _attempt(self, ops: Sequence[Op[Any]], lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        replies = self.send(_packed(ops, lanes, "EVALSHA"), meanwhile)
        missing = _missing(replies)
        if missing:
            packed = _packed([ops[i] for i in missing], [lanes[i] for i in missing], "EVAL")
            for i, reply in zip(missing, self.send(packed), strict=True):
                replies[i] = reply
        error = _first_error(replies)
        if error is not None:
            if stale(error):
                self.pool.disconnect(inuse_connections=False)
            raise error
        return replies

    def send(self, commands: Sequence[bytes], meanwhile: Meanwhile = None) -> list[Any]:
        """Packed commands in one round trip; replies, errors among them as values. Nothing is repeated."""
        connection = self.pool.get_connection()
        try:
            connection.send_packed_command([b"".join(commands)])
            if meanwhile is not None:
                meanwhile()
            return [_read(connection) for _ in commands]
        except BaseException:
            connection.disconnect()  # half a conversation is left on it
            raise
        finally:
            self.pool.release(connection)

    def wait(self, command: tuple[Arg, ...]) -> bool:
        """Block until the server has something; `False`: its time was over.

        An error counts as something (NOGROUP, UNBLOCKED, a cut): the call that follows heals it.
        """
        try:
            return bool(self.send([pack(command)])[0])
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            time.sleep(0.01)
            return True

    def sleep(self, seconds: float) -> None:
        """Wait on the client."""
        time.sleep(seconds)

    def close(self) -> None:
        """Close our connections. The executor can be used again; it then opens new ones."""
        self.pool.disconnect()


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except errors.ResponseError as error:
        return error


class AsyncExecutor:
    """Like `Executor`, for asyncio."""

    def __init__(
        self,
        url: str | None = None,
        client: redis.asyncio.Redis | None = None,
        budget: float = BUDGET,
    ) -> None:
        theirs: Any = redis.asyncio.ConnectionPool.from_url(str(url)) if client is None else client.connection_pool  # pyright: ignore[reportUnknownMemberType]
        self.pool: Any = own_pool(theirs, redis.asyncio.ConnectionPool, AsyncNoRetry(NoBackoff(), 0))
        # Ours alone: redis-py's own makes a task of every write, by a wait_for() that may swallow a cancellation.
        self.timeout: float = self.pool.connection_kwargs["socket_timeout"]
        self.timeout += self.pool.connection_kwargs.get("socket_connect_timeout") or 0.0
        self.pool.connection_kwargs["socket_timeout"] = None
        self.budget, self.pause = budget, PAUSE
        self.outage = Outage(self.pool.connection_kwargs)
        self._met = False
        self._lanes = Lanes()
        self._turns = asyncio.Semaphore(TURNS)
        self._undoing: set[asyncio.Task[None]] = set()
        self._crowds: dict[Callable[[Sequence[Any]], Op[Any]], Crowd] = {}

    async def run(self, op: Op[R], meanwhile: Meanwhile = None) -> R:
        """Like `Executor.run`. Small calls that would wait for each other become one."""
        if op.join is not None and meanwhile is None and len(op.items) < SMALL:
            crowd = self._crowds.get(op.join)
            if crowd is None:
                crowd = self._crowds[op.join] = Crowd(self.run_all, op.join)
            joined: Any = await crowd.run(op)
            return cast(R, joined)
        result: R = (await self.run_all([op], meanwhile))[0]
        return result

    async def run_whole(self, op: Op[R], undo: Callable[[R], Op[Any] | None]) -> R:
        """`run`; if its caller is cancelled, *op* goes on without it, and then *undo*, made of its answer, is run."""
        task = asyncio.create_task(self.run(op))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            undoing = asyncio.create_task(self._undo(task, undo), name="headrace-undo")
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise

    async def _undo(self, task: asyncio.Task[R], undo: Callable[[R], Op[Any] | None]) -> None:
        with suppress(Exception):  # nobody waits for it; what can't be undone now comes back when its lease expires
            op = undo(await task)
            if op is not None:
                await self.run(op)

    async def run_all(self, ops: Sequence[Op[Any]], meanwhile: Meanwhile = None) -> list[Any]:
        """Like `Executor.run_all`."""
        async with self._turns:
            lanes = [self._lanes.take() for _ in ops]
            replies: list[Any]
            try:
                replies = await self._attempt(ops, lanes, meanwhile)
            except Exception as error:
                if not heals(error):
                    raise
                self.outage.failed(error)
                again = AsyncRetrying(**policy(self._left, self.pause, self.outage))
                replies = await again(self._attempt, ops, lanes, meanwhile)
            else:
                self._lanes.give(lanes)
        self._met = True
        if self.outage.since:
            self.outage.over()
        return [op.decode(reply) for op, reply in zip(ops, replies, strict=True)]

    def _left(self) -> float:
        return self.budget if self._met else min(FIRST, self.budget)

    async def _attempt(self, ops: Sequence[Op[Any]], lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        replies = await self.send(_packed(ops, lanes, "EVALSHA"), meanwhile)
        missing = _missing(replies)
        if missing:
            packed = _packed([ops[i] for i in missing], [lanes[i] for i in missing], "EVAL")
            for i, reply in zip(missing, await self.send(packed), strict=True):
                replies[i] = reply
        error = _first_error(replies)
        if error is not None:
            if stale(error):
                await self.pool.disconnect(inuse_connections=False)
            raise error
        return replies

    async def send(self, commands: Sequence[bytes], meanwhile: Meanwhile = None) -> list[Any]:
        """Like `Executor.send`."""
        try:
            async with asyncio.timeout(self.timeout):
                return await self._send(commands, meanwhile)
        except TimeoutError:
            raise errors.TimeoutError(f"no answer within {self.timeout:g} s") from None

    async def _send(self, commands: Sequence[bytes], meanwhile: Meanwhile) -> list[Any]:
        connection = await self.pool.get_connection()
        try:
            await connection.send_packed_command([b"".join(commands)])
            if meanwhile is not None:
                meanwhile()
            return [await _aread(connection) for _ in commands]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await asyncio.shield(self.pool.release(connection))

    async def wait(self, command: tuple[Arg, ...]) -> bool:
        """Like `Executor.wait`."""
        try:
            return bool((await self.send([pack(command)]))[0])
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            await asyncio.sleep(0.01)
            return True

    async def sleep(self, seconds: float) -> None:
        """Like `Executor.sleep`."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Like `Executor.close`."""
        if self._undoing:
            _, late = await asyncio.wait(self._undoing, timeout=1)
            for task in late:
                task.cancel()
        await self.pool.disconnect()


@define(eq=False)
class Crowd:
    """Calls of one operation at the same time. Some are under way, each in its caller's task; those that come meanwhile
    wait, and then go as one: at 1,000 awaits at once a job costs a twentieth of a call of its own."""

    run_all: Callable[[Sequence[Op[Any]]], Awaitable[list[Any]]]
    join: Callable[[Sequence[Any]], Op[Any]]
    under_way: int = 0
    waiting: deque[tuple[Op[Any], asyncio.Future[Any]]] = field(factory=deque[tuple[Op[Any], "asyncio.Future[Any]"]])
    tasks: set[asyncio.Task[None]] = field(factory=set["asyncio.Task[None]"])

    async def run(self, op: Op[Any]) -> Any:
        """The decoded reply of *op*."""
        if self.under_way >= UNDER_WAY:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.waiting.append((op, future))
            return await future
        self.under_way += 1
        try:
            return (await self.run_all([op]))[0]
        finally:
            self._next()

    def _next(self) -> None:
        """One call less under way: the next ones go."""
        if self.waiting:
            task = asyncio.create_task(self._send(), name="headrace-crowd")
            self.tasks.add(task)  # the loop keeps only a weak reference
            task.add_done_callback(self.tasks.discard)
        else:
            self.under_way -= 1

    async def _send(self) -> None:
        """Send what waits as one."""
        some: list[tuple[Op[Any], asyncio.Future[Any]]] = []
        items: list[Any] = []
        size = 0
        while self.waiting and len(items) < CROWD and size < SIZE:
            op, future = self.waiting.popleft()
            if not future.done():  # else it was cancelled
                some.append((op, future))
                items += op.items
                size += op.size
        try:
            if some:
                self._answer(some, (await self.run_all([self.join(items)]))[0])
        except BaseException as error:
            for _, future in some:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._next()

    def _answer(self, some: Sequence[tuple[Op[Any], asyncio.Future[Any]]], replies: Sequence[Any]) -> None:
        at = 0
        for op, future in some:
            if not future.done():
                future.set_result(replies[at : at + len(op.items)])
            at += len(op.items)


async def _aread(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except errors.ResponseError as error:
        return error


def address(url: str | None) -> str:
    """The URL to use: the one given, else `HEADRACE_URL`, else `REDIS_URL`."""
    found = url or os.environ.get("HEADRACE_URL") or os.environ.get("REDIS_URL")
    if not found:
        raise ConfigurationError(
            "no server named: pass url= (redis://…, rediss://…, unix://…, or embedded:DIR for a "
            "private one), or client=, or set HEADRACE_URL or REDIS_URL"
        )
    if not isinstance(found, str):
        raise TypeError(f"url must be a str, not {type(found).__name__}")
    if not re.match(r"(redis|rediss|unix|embedded):", found):
        shown = re.sub(r".*@", "…@", found)  # without a password
        raise ConfigurationError(f"url {shown!r}: give redis://…, rediss://…, unix://… or embedded:DIR")
    return found


def server(url: str | None, client: object, wanted: type, asker: object) -> str | None:
    """The URL to use; `None` for the settings of *client*, which must be a *wanted*. Refuses both at once."""
    if client is None:
        return address(url)
    if url is not None:
        raise ValueError("give url= or client=, not both")
    if not isinstance(client, wanted):
        raise TypeError(
            f"client must be a {wanted.__module__}.{wanted.__name__} for {type(asker).__name__}, "
            f"not {type(client).__module__}.{type(client).__name__}"
        )
    return None
