"""Calls that share round trips under asyncio. No call is left waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace._net.aio.pool import AsyncCombiner
from tests.support.facts import each


class Instant:
    """Connections to a server that answers at once."""

    timeout = 60.0

    def __init__(self) -> None:
        async def sent(_commands: list[bytes]) -> None: ...

        async def answer() -> bytes:
            return b"OK"

        parser = SimpleNamespace(read_response=answer)
        self.connection = SimpleNamespace(send_packed_command=sent, _parser=parser)

    async def take(self) -> Any:
        """Return the connection."""
        return self.connection

    def give(self, _connection: object) -> None:
        """Take it back."""

    def check(self, _connection: object) -> None:
        """Find nothing wrong."""

    async def drop(self, _connection: object) -> None:
        """Forget it."""


@each("others", [0, 1, 2])
def test_a_call_that_comes_as_all_trips_have_just_ended_is_sent(others: int) -> None:
    async def calls(combiner: AsyncCombiner, number: int) -> None:
        for _ in range(number):
            assert await combiner.send([b"PING"], None) == [b"OK"]

    async def main() -> None:
        pool: Any = Instant()
        combiner = AsyncCombiner(pool)
        async with asyncio.timeout(30.0):
            await asyncio.gather(calls(combiner, 5), *[calls(combiner, 1) for _ in range(others)])

    asyncio.run(main())


def test_a_call_that_is_alone_takes_no_task_and_those_that_come_meanwhile_travel_as_one() -> None:
    async def main() -> None:
        pool: Any = Instant()
        trips = list[int]()
        asked, answers = asyncio.Event(), pool.connection._parser.read_response

        async def sent(commands: list[bytes]) -> None:
            trips.append(commands[0].count(b"PING"))

        async def answer() -> bytes:
            await asked.wait()
            return bytes(await answers())

        pool.connection.send_packed_command, pool.connection._parser.read_response = sent, answer
        combiner = AsyncCombiner(pool)
        first = asyncio.create_task(combiner.send([b"PING"], None))
        await asyncio.sleep(0)
        assert (trips, len(asyncio.all_tasks())) == ([1], 2)
        others = [asyncio.create_task(combiner.send([b"PING"], None)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert trips == [1, 3]
        first.cancel()
        asked.set()
        assert await asyncio.gather(*others) == [[b"OK"]] * 3
        assert await combiner.send([b"PING"], None) == [b"OK"]

    asyncio.run(main())
