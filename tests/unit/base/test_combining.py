"""Calls that share round trips, under asyncio: none is left waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace._async.combining import AsyncCombiner


class Instant:
    """Connections of a server that has answered as soon as it is asked."""

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


@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_call_that_comes_as_all_trips_have_just_ended_is_sent(others: int) -> None:
    async def calls(combiner: AsyncCombiner, number: int) -> None:
        for _ in range(number):
            assert await combiner.send([b"PING"], None) == [b"OK"]

    async def main() -> None:
        pool: Any = Instant()
        combiner = AsyncCombiner(pool, 60.0)
        async with asyncio.timeout(30.0):
            await asyncio.gather(calls(combiner, 5), *[calls(combiner, 1) for _ in range(others)])

    asyncio.run(main())
