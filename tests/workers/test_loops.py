"""An `AsyncQueue` and event loops. One has ended, two run at once, or `run()` is called inside
one."""

from __future__ import annotations

import asyncio

import pytest

from headrace import AsyncQueue, AsyncWorker, ConfigurationError
from tests.support.servers import Server


def test_a_queue_outlives_its_event_loop(server: Server) -> None:
    """Connections of an ended loop are dropped without an await."""
    queue = AsyncQueue("q", url=server.url)

    async def many() -> list[bool]:
        return [
            one.added for one in await asyncio.gather(*(queue.enqueue(b"x") for _ in range(30)))
        ]

    async def close() -> int:
        there = (await queue.counts()).waiting
        await queue.close()
        return there

    assert asyncio.run(queue.enqueue(b"x")).added
    assert all(asyncio.run(many()))
    assert all(asyncio.run(many()))
    assert asyncio.run(close()) == 61


def test_calls_that_a_loop_took_with_it_hold_up_nothing(newest: Server) -> None:
    queue = AsyncQueue("q", url=newest.url)

    async def interrupted() -> None:
        calls = [asyncio.ensure_future(queue.enqueue(b"x")) for _ in range(50)]
        await asyncio.sleep(0)
        assert not any(call.done() for call in calls)

    async def again() -> int:
        receipts = await asyncio.wait_for(
            asyncio.gather(*(queue.enqueue(b"y") for _ in range(50))), 30
        )
        await queue.close()
        return len(receipts)

    for _ in range(3):
        asyncio.run(interrupted())
    assert asyncio.run(again()) == 50


def test_two_loops_at_once_are_told(newest: Server) -> None:
    async def story() -> None:
        async with AsyncQueue("q", url=newest.url) as queue:
            await queue.enqueue(b"x")
            with pytest.raises(ConfigurationError, match="another event loop that is running"):
                await asyncio.to_thread(lambda: asyncio.run(queue.counts()))
            assert (await queue.counts()).waiting == 1

    asyncio.run(story())


def test_run_where_a_loop_is_running_says_what_to_do(newest: Server) -> None:
    async def story() -> None:
        with pytest.raises(ConfigurationError, match=r"await serve\(\)"):
            AsyncWorker(url=newest.url).run()

    asyncio.run(story())
