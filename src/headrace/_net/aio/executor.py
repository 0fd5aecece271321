"""The same as `_net/sync/executor`, under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import redis.asyncio
from attrs import evolve
from redis import exceptions as errors
from tenacity import AsyncRetrying

from headrace._core.effects import BlockAmong, BlockThen, Undoable
from headrace._net.aio.coalesce import Coalescer
from headrace._net.aio.combining import AsyncCombiner
from headrace._net.aio.pool import AsyncPool, abort, replies
from headrace._net.aio.watchdog import Watchdog
from headrace._net.base.cluster.address import misled
from headrace._net.base.connections import Attend
from headrace._net.base.executor import CLOSE_WITHIN_S, UNDO_WITHIN_S, BaseExecutor, undecoded
from headrace._net.base.lanes import Lane, Meanwhile, pack_all
from headrace._net.base.retries import (
    REFUSED_WITHIN_S,
    SIZE_LIMIT_AT_LEAST,
    Trip,
    announced,
    faultless,
    first_error,
    known,
    largest,
    missing,
    policy,
    refuses,
    remaining,
    since_boot,
    stale,
    told_limit,
    too_large,
    unwelcome,
)
from headrace._protocol.durability import trials, tried
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.op import ITEM_BYTES, Arg, Op, Prepared, TooLarge, pack
from headrace._protocol.queue_ops import woken_keys
from headrace._protocol.replies import Grant
from headrace._telemetry.client import Outage

R = TypeVar("R")
COALESCE_BELOW = 100  # items of a call that may join others


class AsyncExecutor(BaseExecutor):
    """Like `Executor`, for asyncio."""

    def __init__(
        self, url: str | None = None, client: redis.asyncio.Redis | None = None, budget: float = RETRY_BUDGET_S,
        outage: Outage | None = None, attend: Attend | None = None, *, shares: bool = False,
    ) -> None:  # fmt: skip
        theirs = None if client is None else client.connection_pool
        pool = AsyncPool.shared(url, theirs, self, attend) if shares else AsyncPool(url, theirs, outage, attend)
        super().__init__(pool, budget)
        self._combiner: AsyncCombiner | None = None
        self._watchdog = Watchdog(self.timeout)
        self._undoing: set[asyncio.Task[None]] = set()
        self._coalescers: dict[Callable[[Sequence[Any]], Op[Any]], Coalescer] = {}

    async def run(self, op: Op[R], meanwhile: Meanwhile = None, within: float | None = None) -> R:
        """Like `Executor.run`. Small calls of one operation that would wait for each other are coalesced."""
        if op.join is not None and op.durability is None and meanwhile is None and len(op.items) < COALESCE_BELOW:
            coalescer = self._coalescer(op.join)
            return cast(R, await coalescer.run(op, self.within if within is None else within))
        result: R = (await self.run_all([op], meanwhile, within=within))[0]
        return result

    def _coalescer(self, join: Callable[[Sequence[Any]], Op[Any]]) -> Coalescer:
        return self._coalescers.get(join) or self._coalescers.setdefault(join, Coalescer(self.run_all, join))

    async def run_whole(self, effect: Undoable, within: float | None = None) -> Grant | None:
        """Like `Executor.run_whole`; the operation goes on without its caller, as long as the loop does."""
        op, undo = effect.op, effect.undo
        effect.lane = lane = effect.lane or self._lane(op)
        bare: Op[Any] = evolve(op, decode=undecoded)
        task = asyncio.create_task(self.run_all([bare], lanes=[lane], within=within))
        try:
            result = op.decode((await asyncio.shield(task))[0])
        except Exception:
            raise
        except BaseException:

            async def undone() -> None:
                try:
                    replies = await asyncio.shield(task)
                except asyncio.CancelledError:  # the loop is being closed, and has cancelled that task, too
                    replies = await self._attempt(self._trip([bare]), [lane], None)
                undoing = undo(replies[0])
                if undoing is not None:
                    await self._insist(undoing)

            self._goes_on(undone())
            raise
        self._lanes.give([op], [lane])
        return result

    def undo(self, ops: Sequence[Op[Any]]) -> None:
        """Like `Executor.undo`, in a task of its own."""

        async def undone() -> None:
            for op in ops:
                await self._insist(op)

        if ops:
            self._goes_on(undone())

    async def _insist(self, op: Op[Any]) -> None:
        """Send an operation once; once more if the event loop, on closing, cancels that."""
        lane = self._lane(op)
        try:
            await self._attempt(self._trip([op]), [lane], None)
        except asyncio.CancelledError:
            await self._attempt(self._trip([op]), [lane], None)

    def _goes_on(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            with suppress(Exception):  # what can't be undone now comes back when its lease expires
                async with asyncio.timeout(UNDO_WITHIN_S):
                    await work

        undoing = asyncio.create_task(quietly(), name="headrace-undo")
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)

    async def attempt(self, op: Op[R], within: float | None = None) -> R | None:
        """Like `Executor.attempt`."""
        with suppress(Exception):
            return op.decode((await self._attempt(self._trip([op], within), [self._lane(op)], None))[0])
        return None

    async def run_all(
        self, ops: Sequence[Op[Any]], meanwhile: Meanwhile = None, lanes: Sequence[Lane] | None = None,
        within: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Like `Executor.run_all`."""
        trip = self._trip(ops, self.within if within is None else within)
        trip.durability = self._durability_wait(ops)
        turns = await self._turn(trip)
        try:
            kept, lanes = lanes is not None, [self._lane(op) for op in ops] if lanes is None else lanes
            try:
                replies = await self._attempt(trip, lanes, meanwhile)
            except Exception as error:
                replies = await self._again(error, trip, lanes, meanwhile)
            else:
                if not kept:
                    self._lanes.give(ops, lanes)
        finally:
            turns.release()
        return self._answered(trip, replies)

    def run_prepared(self, prepared: Prepared[R], item: bytes) -> Awaitable[R]:
        """Like `Executor.run_prepared`; small calls that would wait for each other are coalesced, as by `run`."""
        if len(item) > ITEM_BYTES:
            return self.run(prepared.of(item))
        coalescer = self._coalescer(prepared.join)
        if not coalescer.busy():
            return coalescer.alone(self._run_prepared(prepared, item))
        return coalescer.wait((item,), len(item), one=True)

    async def _run_prepared(self, prepared: Prepared[R], item: bytes) -> R:
        lane, trip = self._lane(prepared), Trip(())
        answers: list[Any] = []
        try:
            answers = await self.send([prepared.packed(lane.name, lane.calls, item)], None, trip.leaves)
            trip.answered()
            if isinstance(answers[0], Exception):
                trip.ops = (prepared.of(item),)
                answers = await self._checked(answers, trip, [lane])
        except Exception as error:
            trip.ops = (prepared.of(item),)
            answers = await self._again(error, trip, [lane], None)
        else:
            self._lanes.put(prepared.lane_prefix, lane)
        self._heard()
        return prepared.op.decode(answers[0])

    async def _again(self, error: Exception, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        """Like `Executor._again`."""
        if not self._heals(error, trip):
            raise error
        budget = self._failed(error, trip, lanes)
        try:
            if trip.left != 0:
                again = AsyncRetrying(**policy(budget, self.pause))
                return cast("list[Any]", await again(self._attempt, trip, lanes, meanwhile))
        except Exception as last:
            known(last, trip)
            raise
        finally:
            self.outage.ends()
        known(error, trip)
        raise error

    async def _turn(self, trip: Trip) -> asyncio.Semaphore:
        """Wait until this trip has its turn among the executor's trips. Return the semaphore to release."""
        turns: asyncio.Semaphore = self.connections.at_once
        if trip.within is None or not turns.locked():
            await turns.acquire()
            return turns
        try:
            async with asyncio.timeout(trip.within):
                await turns.acquire()
        except TimeoutError:
            trip.spent = trip.within
            late = errors.TimeoutError(f"no connection was free within {trip.within:g} s")
            known(late, trip)
            raise late from None
        trip.spent = since_boot() - trip.began
        return turns

    async def _attempt(self, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        ops = trip.ops
        if trip.durability is not None:
            trip.durability.begin()
        try:
            replies = await self._sent(trip, pack_all(ops, lanes, "EVALSHA"), meanwhile)
            trip.answered()
        except errors.ConnectionError as cut:  # so says a server that takes no value as large, too
            if (refusal := await self._refusal(ops)) is not None:
                raise refusal from cut
            raise
        return await self._checked(replies, trip, lanes)

    async def _sent(self, trip: Trip, commands: Sequence[bytes], meanwhile: Meanwhile) -> list[Any]:
        """Like `Executor._sent`."""
        if trip.durability is None:
            return await self.send(commands, meanwhile, trip.leaves, trip.left)
        left = await self._try_waiting(trip)
        wrapped = trip.durability.wrapped(commands, left)
        return trip.durability.unwrapped(await self.send(wrapped, meanwhile, trip.leaves, left))

    async def _try_waiting(self, trip: Trip) -> float | None:
        """Like `Executor._try_waiting`."""
        if trip.durability is None or trip.durability.wanted in self._can_wait:
            return trip.left
        began, wanted = since_boot(), trip.durability.wanted
        if tried(wanted, await self.send(trials(wanted), within=trip.left)):
            self._can_wait.add(wanted)
        return remaining(trip, since_boot() - began)

    async def _checked(self, replies: list[Any], trip: Trip, lanes: Sequence[Lane]) -> list[Any]:
        """Like `Executor._checked`."""
        if faultless(replies):
            return replies
        ops = trip.ops
        absent = missing(replies)
        if absent:
            packed = pack_all([ops[i] for i in absent], [lanes[i] for i in absent], "EVAL")
            for i, reply in zip(absent, await self._sent(trip, packed, None), strict=True):
                replies[i] = reply
            trip.answered()
        error = first_error(replies)
        if error is not None:
            if refuses(error) and (refusal := await self._refusal(ops)) is not None:
                raise refusal from error
            if isinstance(error, errors.MovedError):
                raise misled(error, self.pool.connection_kwargs) from error
            if stale(error) or unwelcome(error):
                await self.connections.disconnect(inuse_connections=False)
            raise error
        return replies

    async def _refusal(self, ops: Sequence[Op[Any]]) -> TooLarge | None:
        """Like `Executor._refusal`."""
        size = largest(ops)[0]
        for _ in range(2 if size > SIZE_LIMIT_AT_LEAST else 0):  # what refused a value may have closed a connection
            with suppress(errors.RedisError, OSError):
                return too_large(ops, *await self._announce(size))
        return None

    async def _announce(self, size: int) -> tuple[int | None, bool]:
        """Like `Executor._announce`."""
        connection = await self.connections.take()
        try:
            async with asyncio.timeout(self.timeout):
                await connection.send_packed_command([announced(size)])
                limit = told_limit(*await replies(connection, 1))
            refused = False
            with suppress(TimeoutError):
                async with asyncio.timeout(REFUSED_WITHIN_S):
                    refused = limit is None and refuses(*await replies(connection, 1))
            return limit, refused
        finally:
            await self.connections.drop(connection)

    async def send(
        self, commands: Sequence[bytes], meanwhile: Meanwhile = None, leaves: Meanwhile = None,
        within: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Like `Executor.send`."""
        if within is None and self._combiner is None and self.connections.keep is None:  # else spare ones are closed
            connection = self.connections.open_one()
            if connection is not None:
                return await self._exchange_watched(connection, commands, meanwhile, leaves)
        most = self.timeout if within is None else min(within, self.timeout)
        try:
            async with asyncio.timeout(most):
                return await self._send(commands, meanwhile, leaves)
        except TimeoutError:
            raise errors.TimeoutError(f"no answer within {most:g} s") from None

    def combine(self) -> None:
        """Like `Executor.combine`."""
        self._combiner = AsyncCombiner(self.connections, self.timeout)

    async def _send(self, commands: Sequence[bytes], meanwhile: Meanwhile, leaves: Meanwhile) -> list[Any]:
        if self._combiner is not None and meanwhile is None:
            return await self._combiner.send(commands, leaves)
        return await self._exchange(await self.connections.take(), commands, meanwhile, leaves)

    async def _exchange(
        self, connection: Any, commands: Sequence[bytes], meanwhile: Meanwhile, leaves: Meanwhile
    ) -> list[Any]:
        try:
            if leaves is not None:
                leaves()
            await connection.send_packed_command([b"".join(commands)])
            if meanwhile is not None:
                meanwhile()
            answers = await replies(connection, len(commands))
            self.connections.check(connection)
        except BaseException:
            await self.connections.drop(connection)
            raise
        self.connections.give(connection)
        return answers

    async def _exchange_watched(
        self, connection: Any, commands: Sequence[bytes], meanwhile: Meanwhile, leaves: Meanwhile
    ) -> list[Any]:
        """Exchange within the timeout of connections, on one that is open: there is nothing to wait for but answers."""
        if self._watchdog.seconds != self.timeout:
            self._watchdog = Watchdog(self.timeout)
        watchdog = self._watchdog
        watchdog.watch(connection)
        try:
            return await self._exchange(connection, commands, meanwhile, leaves)
        except errors.ConnectionError:
            if not watchdog.has_cut(connection):
                raise
        finally:
            watchdog.leave(connection)
        raise errors.TimeoutError(f"no answer within {watchdog.seconds:g} s")

    async def scan(self, cursor: int, command: Callable[[int], bytes], within: float | None = None) -> Any:
        """Like `Executor.scan`."""
        return (await self.send([command(cursor)], within=within))[0]

    async def source(self, _channels: Sequence[str]) -> Any:
        """Like `Executor.source`."""
        return self.pool

    async def wait(self, command: tuple[Arg, ...]) -> bool:
        """Like `Executor.wait`."""
        try:
            return bool((await self._block([pack(command)], None))[0])
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            await asyncio.sleep(0.01)
            return True

    async def wait_among(self, effect: BlockAmong) -> list[str]:
        """Like `Executor.wait_among`."""
        try:
            return woken_keys((await self._block([pack(effect.command)], None))[0], effect.keys)
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            await asyncio.sleep(0.01)
            return list(effect.keys)

    async def wait_then(self, effect: BlockThen) -> tuple[bool, Any]:
        """Like `Executor.wait_then`."""
        lane, trip, found = self._lane(effect.op), self._trip([effect.op]), True
        try:
            packed = [pack(effect.command), *pack_all(trip.ops, [lane], "EVALSHA")]
            found, *answers = await self._block(packed, trip.leaves)
            trip.answered()
            answers = await self._checked(answers, trip, [lane])
        except Exception as error:
            if self._waits_no_more:
                await self._undo_riding(effect, lane)
                return False, None
            await asyncio.sleep(0.01)
            answers = await self._again(error, trip, [lane], None)
        else:
            self._lanes.give(trip.ops, [lane])
        return bool(found), self._answered(trip, answers)[0]

    async def _undo_riding(self, effect: BlockThen, lane: Lane) -> None:
        """Like `Executor._undo_riding`."""
        with suppress(Exception):
            undoing = effect.undo(
                effect.again.decode((await self._attempt(self._trip([effect.again]), [lane], None))[0])
            )
            if undoing is not None:
                await self._insist(undoing)

    async def _block(self, commands: Sequence[bytes], leaves: Meanwhile) -> list[Any]:
        """Like `Executor._block`."""
        try:
            async with asyncio.timeout(self.timeout):
                connection = await self.connections.take()
                self._blocked.add(connection)
                try:
                    if self._waits_no_more:
                        self.connections.give(connection)
                        raise errors.ConnectionError("the worker stops")
                    return await self._exchange(connection, commands, None, leaves)
                finally:
                    self._blocked.discard(connection)
        except TimeoutError:
            raise errors.TimeoutError(f"no answer within {self.timeout:g} s") from None

    def stop_waiting(self) -> None:
        """Like `Executor.stop_waiting`; once is enough."""
        self._waits_no_more = True
        for connection in list(self._blocked):
            abort(connection)

    async def sleep(self, seconds: float) -> None:
        """Like `Executor.sleep`."""
        await asyncio.sleep(seconds)

    async def close(self, last: Sequence[Op[Any]] = ()) -> None:
        """Like `Executor.close`."""
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=UNDO_WITHIN_S)
        try:
            await self._leave(last, self._clearing())
        finally:
            if self._last():
                with suppress(TimeoutError):  # TLS says goodbye, and a server that stands still does not
                    async with asyncio.timeout(0.2):
                        await self.connections.disconnect()

    async def _leave(self, last: Sequence[Op[Any]], clearing: Sequence[tuple[str, ...]]) -> None:
        with suppress(Exception):  # all of it expires
            async with asyncio.timeout(CLOSE_WITHIN_S):
                if last:
                    await self._attempt(self._trip(last), [Lane() for _ in last], None)
                if clearing:
                    await self.send([pack(command) for command in clearing])
