"""Round trips that calls share, under asyncio: on few connections, whatever the number of calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from redis import exceptions as errors

from headrace._net.aio.pool import AsyncPool, replies
from headrace._net.base.combining import CALLS_AT_MOST, TRIPS, Call, leaving
from headrace._net.base.lanes import Meanwhile


class AsyncCombiner:
    """Like `Combiner`, for asyncio; calls that wait travel in tasks of its own."""

    def __init__(self, connections: AsyncPool, timeout: float) -> None:
        self._connections, self._timeout = connections, timeout
        self._waiting: deque[tuple[Call, asyncio.Future[list[Any]]]] = deque()
        self._trips: set[asyncio.Task[None]] = set()  # so that none is collected
        self._under_way = 0  # those of them that look for what waits once more before they end

    async def send(self, commands: Sequence[bytes], leaves: Meanwhile) -> list[Any]:
        """Like `Combiner.send`. A caller that is cancelled leaves its call to the others', if it waited for theirs."""
        call = Call(commands, leaves)
        answered: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        if not self._under_way:
            return await self._alone(call, answered)
        self._waiting.append((call, answered))
        self._begin()
        return await answered

    async def _alone(self, call: Call, answered: asyncio.Future[list[Any]]) -> list[Any]:
        """Send a call at once, as none is under way: a task of its own would take two turns of the event loop more."""
        self._under_way += 1
        try:
            await self._trip([(call, answered)])
        finally:
            self._under_way -= 1
            if self._waiting:
                self._begin()
        return await answered

    def _begin(self) -> None:
        """Begin a trip for the calls that wait, unless as many are under way as may."""
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
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), CALLS_AT_MOST))]
            some = [(call, answered) for call, answered in some if not answered.done()]
            try:
                async with asyncio.timeout(self._timeout):
                    await self._trip(some)
            except BaseException as error:
                late = errors.TimeoutError(f"no answer within {self._timeout:g} s")
                for _, answered in some:
                    if not answered.done():
                        answered.set_exception(late if isinstance(error, TimeoutError) else error)
                        answered.exception()  # its caller may be gone
                if not isinstance(error, Exception):
                    raise

    async def _trip(self, some: Sequence[tuple[Call, asyncio.Future[list[Any]]]]) -> None:
        connection = await self._connections.take()
        try:
            left, failed = leaving([call for call, _ in some])
            await connection.send_packed_command([b"".join(chunk for call in left for chunk in call.commands)])
            for call, answered in some:
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
