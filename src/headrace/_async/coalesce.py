"""Coalescing: concurrent awaited calls of one operation, sent as one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis
from attrs import define, field

from headrace._base.retrying import Trip, known
from headrace._protocol.limits import BYTES_PER_SCRIPT
from headrace._protocol.op import Op

COALESCE_ABOVE = 2  # calls of one operation at a time, before others join: one at the server, one on its way
COALESCED_AT_MOST = 250  # items of one joint call, but for its last


@define(eq=False)
class Coalescer:
    """The concurrent calls of one operation. Some are under way, each in its caller's task; later ones wait, and are
    sent as one: with 1,000 awaits at once a job costs a twentieth of a call of its own.
    """

    run_all: Callable[..., Awaitable[list[Any]]]
    join: Callable[[Sequence[Any]], Op[Any]]
    under_way: int = 0
    waiting: deque[tuple[Op[Any], asyncio.Future[Any]]] = field(factory=deque[tuple[Op[Any], "asyncio.Future[Any]"]])
    tasks: set[asyncio.Task[None]] = field(factory=set["asyncio.Task[None]"])

    async def run(self, op: Op[Any], within: float | None = None) -> Any:
        """Run *op*, alone or joined with others, in *within* seconds; return its decoded reply."""
        if self.under_way >= COALESCE_ABOVE and op.size < BYTES_PER_SCRIPT:  # what is refused as too large goes alone
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.waiting.append((op, future))
            return await future if within is None else await self._answer_within(op, future, within)
        self.under_way += 1
        try:
            return (await self.run_all([op], within=within))[0]
        finally:
            self._next()

    async def _answer_within(self, op: Op[Any], future: asyncio.Future[Any], within: float) -> Any:
        """Wait for the answer to *op*, which others may wait for longer."""
        try:
            async with asyncio.timeout(within):
                return await future
        except TimeoutError:
            if not future.cancelled():
                raise
        trip = Trip([op], within, spent=within)
        if all(one is not future for _, one in self.waiting):
            trip.leaves()
        late = redis.exceptions.TimeoutError(f"no answer within {within:g} s")
        known(late, trip)
        raise late

    def _next(self) -> None:
        """Send the calls that wait, now that one is no longer under way."""
        if self.waiting:
            task = asyncio.create_task(self._send(), name="headrace-coalescer")
            self.tasks.add(task)  # the loop keeps only a weak reference
            task.add_done_callback(self.tasks.discard)
        else:
            self.under_way -= 1

    async def _send(self) -> None:
        """Send the waiting calls as one."""
        some: list[tuple[Op[Any], asyncio.Future[Any]]] = []
        items: list[Any] = []
        size = 0
        while self.waiting and len(items) < COALESCED_AT_MOST and size < BYTES_PER_SCRIPT:
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
