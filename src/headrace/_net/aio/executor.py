"""Executors under asyncio. They coalesce calls of one operation, undo cancelled calls, and limit
concurrent calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import redis.asyncio
from attrs import define, evolve, field, frozen
from redis import exceptions as errors

from headrace._core.effects import Undoable
from headrace._net.aio.pool import AsyncPool
from headrace._net.aio.trips import AsyncTrips
from headrace._net.base.connections import Attend
from headrace._net.base.retries import Meanwhile, Trip, known, since_boot
from headrace._protocol.limits import BYTES_PER_SCRIPT, COALESCED_BELOW, COURTESY_S, RETRY_BUDGET_S
from headrace._protocol.op import ITEM_BYTES, Op, Prepared, undecoded
from headrace._protocol.replies import Grant
from headrace._telemetry.client import Outage

N = TypeVar("N")
R = TypeVar("R")
UNDO_WITHIN_S = 2 * COURTESY_S  # for undoing the effects of a cancelled call


class AsyncExecutor(AsyncTrips):
    _sleep = staticmethod(asyncio.sleep)

    def __init__(
        self,
        url: str | None = None,
        client: redis.asyncio.Redis | None = None,
        budget: float = RETRY_BUDGET_S,
        outage: Outage | None = None,
        attend: Attend | None = None,
        *,
        shares: bool = False,
    ) -> None:
        theirs = None if client is None else client.connection_pool
        pool = (
            AsyncPool.shared(url, theirs, self, attend)
            if shares
            else AsyncPool(url, theirs, outage, attend)
        )
        super().__init__(pool, budget)
        self._undoing: set[asyncio.Task[None]] = set()
        self._coalescers: dict[Callable[[Sequence[Any]], Op[Any]], Coalescer] = {}

    async def run(self, op: Op[R], meanwhile: Meanwhile = None, within: float | None = None) -> R:
        """Like `Executor.run`. Small calls of the same operation are coalesced where they would
        wait for each other.
        """
        if (
            op.join is not None
            and op.durability is None
            and meanwhile is None
            and len(op.items) < COALESCED_BELOW
        ):
            coalescer = self._coalescer(op.join)
            return cast(R, await coalescer.run(op, self.within if within is None else within))
        return cast("R", (await self.run_all([op], meanwhile, within=within))[0])

    def _coalescer(self, join: Callable[[Sequence[Any]], Op[Any]]) -> Coalescer:
        return self._coalescers.get(join) or self._coalescers.setdefault(
            join, Coalescer(self.run_all, join)
        )

    async def run_whole(self, effect: Undoable, within: float | None = None) -> Grant | None:
        """Like `Executor.run_whole`. If the caller is cancelled, the operation goes on as long as
        the loop runs.
        """
        op = effect.op
        undo = effect.undo
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
                except asyncio.CancelledError:  # the closing loop has cancelled that task, too
                    replies = await self._attempt(self._trip([bare]), [lane], None)
                undoing = undo(replies[0])
                if undoing is not None:
                    await self._insist(undoing)

            self._goes_on(undone())
            raise
        self._lanes.give([op], [lane])
        return result

    def undo(self, ops: Sequence[Op[Any]]) -> None:
        async def undone() -> None:
            for op in ops:
                await self._insist(op)

        if ops:
            self._goes_on(undone())

    async def _insist(self, op: Op[Any]) -> None:
        lane = self._lane(op)
        try:
            await self._attempt(self._trip([op]), [lane], None)
        except asyncio.CancelledError:
            await self._attempt(self._trip([op]), [lane], None)

    def _goes_on(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            # jobs that can't be released now are back when their leases expire
            with suppress(Exception):
                async with asyncio.timeout(UNDO_WITHIN_S):
                    await work

        undoing = asyncio.create_task(quietly(), name="headrace-undo")
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)

    def run_prepared(self, prepared: Prepared[N, R], item: N) -> Awaitable[R]:
        """Like `Executor.run_prepared`. Calls are coalesced as in `run`."""
        size = prepared.weight(item)
        if size > ITEM_BYTES:
            return self.run(prepared.of(item))
        coalescer = self._coalescers.get(prepared.join) or self._coalescer(prepared.join)
        if not coalescer.busy():
            return coalescer.alone(self._run_prepared(prepared, item))
        return coalescer.wait((item,), size, one=True)

    async def _run_prepared(self, prepared: Prepared[N, R], item: N) -> R:
        lane = self._lane(prepared)
        trip = Trip(())
        try:
            packed = prepared.packed(lane.name, lane.calls, item)
            answer = await self.connections.send_short(packed, trip.leaves)
            trip.answered()
            if isinstance(answer, Exception):
                trip.ops = (prepared.of(item),)
                answer = (await self._checked([answer], trip, [lane]))[0]
        except Exception as error:
            trip.ops = (prepared.of(item),)
            answer = (await self._again(error, trip, [lane], None))[0]
        else:
            self._lanes.put(prepared.lane_prefix, lane)
        self._record_answer()
        return prepared.op.decode(answer)

    def _permit(self, trip: Trip) -> Any:
        permits = self._first_connections(trip).at_once
        return permits if trip.within is None or not permits.locked() else Permit(permits, trip)

    def _first_connections(self, trip: Trip) -> AsyncPool:  # noqa: ARG002 - there is one server
        return self.connections

    async def close(self, last: Sequence[Op[Any]] = ()) -> None:
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=UNDO_WITHIN_S)
        try:
            await self._leave(last, self._clearing())
        finally:
            if self._last():
                await self._disconnect([self.connections])

    async def _disconnect(self, pools: Sequence[AsyncPool]) -> None:
        # TLS waits for a goodbye, which a hanging server does not send
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.gather(*[pool.disconnect() for pool in pools])


@frozen
class Permit:
    """A permit of a semaphore. A trip waits for it as long as its time limit allows."""

    permits: asyncio.Semaphore
    trip: Trip

    async def __aenter__(self) -> None:
        trip = self.trip
        try:
            async with asyncio.timeout(trip.within):
                await self.permits.acquire()
        except TimeoutError:
            trip.spent = trip.within or 0.0
            late = errors.TimeoutError(f"no connection was free within {trip.within:g} s")
            known(late, trip)
            raise late from None
        trip.spent = since_boot() - trip.began

    async def __aexit__(self, *_: object) -> None:
        self.permits.release()


# concurrent calls of one operation before others join: one at the server, one on its way
COALESCE_ABOVE = 2
COALESCED_AT_MOST = 5 * COALESCED_BELOW  # items of one joint call, but for its last
T = TypeVar("T")
# items and their size; whether one is the call
Waiting = tuple[Sequence[Any], int, bool, "asyncio.Future[Any]"]


@define(eq=False)
class Coalescer:
    """The concurrent calls of one operation.

    The first calls run alone, each in the task of its caller. Later calls wait, and are sent as
    one. With 1,000 concurrent awaits, a job then costs a twentieth of a separate call.
    """

    run_all: Callable[..., Awaitable[list[Any]]]
    join: Callable[[Sequence[Any]], Op[Any]]
    under_way: int = 0
    waiting: deque[Waiting] = field(factory=deque[Waiting])
    tasks: set[asyncio.Task[None]] = field(factory=set["asyncio.Task[None]"])
    # asked once for all that wait: it takes a system call
    loop: asyncio.AbstractEventLoop = field(init=False)

    async def run(self, op: Op[Any], within: float | None = None) -> Any:
        # a call that was refused as too large goes alone
        if self.busy() and op.size < BYTES_PER_SCRIPT:
            future = self.wait(op.items, op.size, one=False)
            return await future if within is None else await self._answer_within(op, future, within)
        return (await self.alone(self.run_all([op], within=within)))[0]

    def busy(self) -> bool:
        """Tell whether another call has to wait, as enough are under way. Calls of an ended loop do
        not count.
        """
        if self.under_way >= COALESCE_ABOVE and self.loop.is_closed():
            self.under_way = 0
            self.waiting.clear()
            self.tasks.clear()
        return self.under_way >= COALESCE_ABOVE

    async def alone(self, call: Awaitable[T]) -> T:
        if not self.under_way:
            self.loop = asyncio.get_running_loop()
        self.under_way += 1
        try:
            return await call
        finally:
            self._next()

    def wait(self, items: Sequence[Any], size: int, *, one: bool) -> asyncio.Future[Any]:
        """Let a call of *items* wait, to be sent with others.

        The future gets the list of decoded replies, or with *one* the reply for the only item.
        """
        future: asyncio.Future[Any] = self.loop.create_future()
        self.waiting.append((items, size, one, future))
        return future

    async def _answer_within(self, op: Op[Any], future: asyncio.Future[Any], within: float) -> Any:
        """Wait for the answer to *op*. Other callers may wait for it longer."""
        try:
            async with asyncio.timeout(within):
                return await future
        except TimeoutError:
            if not future.cancelled():
                raise
        trip = Trip([op], within, spent=within)
        if all(waiting[-1] is not future for waiting in self.waiting):
            trip.leaves()
        late = errors.TimeoutError(f"no answer within {within:g} s")
        known(late, trip)
        raise late

    def _next(self) -> None:
        if self.waiting:
            task = asyncio.create_task(self._send(), name="headrace-coalescer")
            self.tasks.add(task)  # the loop keeps only a weak reference
            task.add_done_callback(self.tasks.discard)
        else:
            self.under_way -= 1

    async def _send(self) -> None:
        batch: list[Waiting] = []
        try:
            items = self._take(batch)
            if batch:
                self._answer(batch, (await self.run_all([self.join(items)]))[0])
        except BaseException as error:
            for *_, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                self._next()
                raise
        # after the answered callers have run: their next calls join it
        self.loop.call_soon(self._next)

    def _take(self, batch: list[Waiting]) -> list[Any]:
        items: list[Any] = []
        size = 0
        while self.waiting and len(items) < COALESCED_AT_MOST and size < BYTES_PER_SCRIPT:
            its_items, its_size, _, future = waiting = self.waiting.popleft()
            if not future.done():
                batch.append(waiting)
                items += its_items
                size += its_size
        return items

    def _answer(self, batch: Sequence[Waiting], replies: Sequence[Any]) -> None:
        at = 0
        for items, _, one, future in batch:
            end = at + len(items)
            if not future.done():
                future.set_result(replies[at] if one else replies[at:end])
            at = end
