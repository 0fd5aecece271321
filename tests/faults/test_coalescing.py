"""Awaited calls of one operation at the same time travel as one. Each gets its own answer and acts
once."""

from __future__ import annotations

import asyncio

import pytest
import redis
from redis import exceptions

from headrace import AsyncQueue, Counts, Queue
from tests.support.proxy import Proxy
from tests.support.servers import Server

CROWD = 300


def calls_of(server: Server, command: str) -> int:
    """Return how often a command was called, by the server's count."""
    with redis.Redis(unix_socket_path=server.path) as client:
        return sum(
            row["calls"] for name, row in client.info("commandstats").items() if name == command
        )


def test_few_round_trips(server: Server) -> None:
    """Hundreds of concurrent enqueues need a few calls and stay in order. Their completions do
    too."""

    async def story() -> None:
        async with AsyncQueue("joined", url=server.url) as queue:
            await queue.admin.delete()
            before = calls_of(server, "cmdstat_evalsha") + calls_of(server, "cmdstat_eval")
            receipts = await asyncio.gather(*(queue.enqueue(f"{i}") for i in range(CROWD)))
            leases = await queue.lease_many(CROWD)
            won = await asyncio.gather(*(lease.complete() for lease in leases for _ in range(2)))
            calls = calls_of(server, "cmdstat_evalsha") + calls_of(server, "cmdstat_eval") - before
            assert {r.id: b"%d" % i for i, r in enumerate(receipts)} == {
                x.job.id: x.job.payload for x in leases
            }
            assert [sum(won[i : i + 2]) for i in range(0, len(won), 2)] == [1] * CROWD
            assert (await queue.counts()) == Counts(enqueued=CROWD, completed=CROWD)
            assert calls < 30

    asyncio.run(story())


def test_parts_of_a_thousand(server: Server) -> None:
    """1,000 concurrent enqueues need four round trips. Two go at once, and the others in two
    parts."""

    async def story() -> None:
        async with AsyncQueue("thousand", url=server.url) as queue:
            await queue.admin.delete()
            for _ in range(2):  # the first time loads the scripts
                before = [calls_of(server, f"cmdstat_{name}") for name in ("evalsha", "xadd")]
                receipts = await asyncio.gather(*(queue.enqueue(f"{i}") for i in range(1000)))
                now = [calls_of(server, f"cmdstat_{name}") for name in ("evalsha", "xadd")]
            assert [a - b for a, b in zip(now, before, strict=True)] == [4, 1000]
            assert len({receipt.id for receipt in receipts}) == 1000
            assert (await queue.counts()) == Counts(waiting=2000, enqueued=2000)

    asyncio.run(story())


def test_callers_that_go_on(server: Server) -> None:
    """Callers that call again at once after their answers go together again, and none goes
    alone."""

    async def story() -> None:
        async with AsyncQueue("going-on", url=server.url) as queue:
            await queue.admin.delete()

            async def calls() -> None:
                for _ in range(10):
                    await queue.enqueue("x")

            for _ in range(2):  # the first time loads the scripts
                before = calls_of(server, "cmdstat_evalsha")
                await asyncio.gather(*(calls() for _ in range(1000)))
                trips = calls_of(server, "cmdstat_evalsha") - before
            assert trips <= 28  # 20 of 500, and two that go at once in the beginning
            assert (await queue.counts()) == Counts(waiting=20_000, enqueued=20_000)

    asyncio.run(story())


def test_own_answers(server: Server) -> None:
    """Jobs with ids, headers and delays are mixed. Each caller gets the answer about its own
    job."""

    async def story() -> None:
        async with AsyncQueue("own", url=server.url) as queue:
            await queue.admin.delete()
            calls = [
                queue.enqueue(
                    f"{i}", id=f"{i % 100}", headers={"i": f"{i}"}, delay=60 if i % 3 == 0 else None
                )
                if i % 2
                else queue.enqueue(f"{i}")
                for i in range(CROWD)
            ]
            receipts = await asyncio.gather(*calls)
            assert [r.id for r in receipts[1::2]] == [f"{i % 100}" for i in range(1, CROWD, 2)]
            assert all(r.added for r in receipts[::2])
            for i in range(1, 100, 2):
                assert sum(r.added for r in receipts[i::100]) == 1  # whichever came first
                state = await queue.find(f"{i}")
                assert state is not None
                winner = next(n for n in range(i, CROWD, 100) if receipts[n].added)
                assert (state.job.payload, state.job.headers) == (
                    b"%d" % winner,
                    {"i": f"{winner}"},
                )
            counts = await queue.counts()
            assert (counts.enqueued, counts.waiting + counts.delayed) == (200, 200)

    asyncio.run(story())


def test_one_gives_up(server: Server) -> None:
    """A caller that is cancelled while it waits does not affect the others."""

    async def story() -> None:
        async with AsyncQueue("cancel", url=server.url) as queue:
            await queue.admin.delete()
            tasks = [asyncio.create_task(queue.enqueue(f"{i}")) for i in range(CROWD)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            kept = {answer.id for answer in answers if not isinstance(answer, BaseException)}
            assert len(kept) == CROWD - CROWD // 3
            there = {state.job.id async for state in queue.admin.waiting()}
            assert kept <= there
            assert (await queue.enqueue("after")).added

    asyncio.run(story())


def test_cancelled_is_cancelled(server: Server) -> None:
    """The task of a cancelled call always ends as cancelled. No layer below takes the cancellation
    as its own."""

    async def story() -> None:
        for steps in range(12):
            async with AsyncQueue("cancelled", url=server.url) as queue:
                for _ in range(3):  # the first opens the connection
                    task = asyncio.create_task(queue.enqueue("x"))
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    asked = task.cancel()
                    await asyncio.wait([task])
                    assert task.cancelled() == asked

    asyncio.run(story())


def test_large_ones_stay_apart(server: Server) -> None:
    """Joint calls are bounded in bytes."""

    async def story() -> None:
        async with AsyncQueue("large", url=server.url) as queue:
            await queue.admin.delete()
            await asyncio.gather(*(queue.enqueue(bytes(300_000)) for _ in range(40)))
            assert (await queue.counts()).waiting == 40

    asyncio.run(story())
    with redis.Redis(unix_socket_path=server.path) as client:
        assert client.memory_usage("headrace:{large}:large:jobs", samples=0) > 12_000_000


def test_everybody_hears_of_an_error(server: Server) -> None:
    """An error of the joint call is raised to each caller, and the next call is a new one."""

    async def story() -> None:
        async with AsyncQueue("wrong", url=server.url) as queue:
            with redis.Redis(unix_socket_path=server.path) as client:
                client.set("headrace:{wrong}:wrong:jobs", "a string")
                answers = await asyncio.gather(
                    *(queue.enqueue("x") for _ in range(50)), return_exceptions=True
                )
                assert {type(answer) for answer in answers} == {exceptions.ResponseError}
                client.delete("headrace:{wrong}:wrong:jobs")
            assert (await queue.enqueue("x")).added

    asyncio.run(story())


@pytest.mark.parametrize("side", ["requests", "replies"])
def test_cut(own: Server, proxy: Proxy, side: str) -> None:
    """The connection of a joint call breaks at any byte. Every caller gets its answer, and every
    job is added once."""

    async def story(after: int) -> None:
        async with AsyncQueue("q", url=proxy.url) as queue:
            await queue.counts()
            proxy.cut(side, after)
            receipts = await asyncio.gather(*(queue.enqueue(f"{i}") for i in range(CROWD)))
            proxy.reset()
            assert len({receipt.id for receipt in receipts}) == CROWD

    rounds = [0, 1, 50, 300, 1000, 2500, 4000]
    for after in rounds:
        asyncio.run(story(after))
    with Queue("q", url=own.url) as direct:
        assert direct.counts() == Counts(waiting=CROWD * len(rounds), enqueued=CROWD * len(rounds))
