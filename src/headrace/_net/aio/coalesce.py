"""Coalescing: concurrent calls of the same operation are sent as one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from attrs import define, field
from redis import exceptions as errors

from headrace._net.base.retries import Trip, known
from headrace._protocol.limits import BYTES_PER_SCRIPT
from headrace._protocol.op import Op

COALESCE_ABOVE = 2  # calls of one operation at a time, before others join: one at the server, one on its way
COALESCED_AT_MOST = 500  # items of one joint call, but for its last
T = TypeVar("T")
Waiting = tuple[Sequence[Any], int, bool, "asyncio.Future[Any]"]  # items and their size; whether one is the call


@define(eq=False)
class Coalescer:
    """The concurrent calls of one operation. The first calls run alone, each in the task of its caller. Later calls
    wait, and are sent as one. With 1,000 concurrent awaits, a job then costs a twentieth of a separate call.
    """

    run_all: Callable[..., Awaitable[list[Any]]]
    join: Callable[[Sequence[Any]], Op[Any]]
    under_way: int = 0
    waiting: deque[Waiting] = field(factory=deque[Waiting])
    tasks: set[asyncio.Task[None]] = field(factory=set["asyncio.Task[None]"])
    loop: asyncio.AbstractEventLoop = field(init=False)  # asked once for all that wait: it takes a system call

    async def run(self, op: Op[Any], within: float | None = None) -> Any:
        """Run *op* in *within* seconds, alone or together with other calls. Return its decoded reply."""
        if self.busy() and op.size < BYTES_PER_SCRIPT:  # a call that was refused as too large goes alone
            future = self.wait(op.items, op.size, one=False)
            return await future if within is None else await self._answer_within(op, future, within)
        return (await self.alone(self.run_all([op], within=within)))[0]

    def busy(self) -> bool:
        """Tell whether another call has to wait, as enough are under way. Calls of an ended loop do not count."""
        if self.under_way >= COALESCE_ABOVE and self.loop.is_closed():
            self.under_way = 0
            self.waiting.clear()
            self.tasks.clear()
        return self.under_way >= COALESCE_ABOVE

    async def alone(self, call: Awaitable[T]) -> T:
        """Await a call that does not have to wait for others."""
        if not self.under_way:
            self.loop = asyncio.get_running_loop()
        self.under_way += 1
        try:
            return await call
        finally:
            self._next()

    def wait(self, items: Sequence[Any], size: int, *, one: bool) -> asyncio.Future[Any]:
        """Let a call of *items* wait, to be sent with others. The future gets the decoded reply: a list, or with *one*
        the reply for the only item.
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
        """Send the waiting calls, as another call has ended."""
        if self.waiting:
            task = asyncio.create_task(self._send(), name="headrace-coalescer")
            self.tasks.add(task)  # the loop keeps only a weak reference
            task.add_done_callback(self.tasks.discard)
        else:
            self.under_way -= 1

    async def _send(self) -> None:
        """Send the waiting calls as one."""
        some: list[Waiting] = []
        try:
            items = self._take(some)
            if some:
                self._answer(some, (await self.run_all([self.join(items)]))[0])
        except BaseException as error:
            for *_, future in some:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                self._next()
                raise
        self.loop.call_soon(self._next)  # behind the callers that were answered: their next calls join it

    def _take(self, some: list[Waiting]) -> list[Any]:
        """Move the waiting calls to *some*, except for cancelled ones. Return their items."""
        items: list[Any] = []
        size = 0
        while self.waiting and len(items) < COALESCED_AT_MOST and size < BYTES_PER_SCRIPT:
            its, its_size, _, future = waiting = self.waiting.popleft()
            if not future.done():
                some.append(waiting)
                items += its
                size += its_size
        return items

    def _answer(self, some: Sequence[Waiting], replies: Sequence[Any]) -> None:
        at = 0
        for items, _, one, future in some:
            end = at + len(items)
            if not future.done():
                future.set_result(replies[at] if one else replies[at:end])
            at = end
