"""How clients learn which node serves a slot, while nodes are frozen or have left the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, Queue
from headrace._net.aio.cluster import executor_of as async_executor_of
from headrace._net.sync.cluster import executor_of
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.servers import binaries

pytestmark = pytest.mark.ci

CALLS = 8
PATIENCE_S = 8.0  # for all calls at once; one behind the other they took half a minute


@pytest.fixture(scope="module")
def frozen() -> Iterator[Cluster]:
    """Three masters, of which two answer nothing."""
    with Cluster(binaries()[0]) as cluster:
        for node in cluster.masters[:2]:
            node.suspend()
        yield cluster
        for node in cluster.masters[:2]:
            node.wake()


@pytest.fixture
def silent(frozen: Cluster) -> Iterator[Cluster]:
    """Three masters, of which none answers anything."""
    frozen.masters[2].suspend()
    yield frozen
    frozen.masters[2].wake()


@pytest.mark.slow
def test_calls_of_threads_learn_the_map_together(silent: Cluster) -> None:
    """Without that, each thread would ask silent nodes one after the other."""

    def call(number: int) -> bool:
        with Queue(f"t{number}", url=silent.url, timeout=1.0) as queue:
            try:
                queue.enqueue(b"x")
            except (redis.RedisError, OSError):
                return False
            return True

    with Queue("one", url=silent.url, timeout=1.0) as one, ThreadPoolExecutor(CALLS) as pool:

        def shared(_: int) -> None:
            with pytest.raises((redis.RedisError, OSError)):
                one.enqueue(b"x")

        calls = [pool.submit(way, number) for number in range(CALLS // 2) for way in (call, shared)]
        until(
            lambda: all(each.done() for each in calls), "calls that end in their time", PATIENCE_S
        )
    for each in calls:
        each.result()


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_map_is_learnt_of_the_one_that_answers(frozen: Cluster, colour: str) -> None:
    """The search asks the next node before the silent ones have used their time."""
    alive = frozen.masters[2].place

    async def learnt() -> Any:
        executor = async_executor_of(frozen.url)
        await executor._refresh(1.5)  # type: ignore[attr-defined]
        owners = executor.slots.primaries()  # type: ignore[attr-defined]
        await executor.close()
        return owners

    if colour == "async":
        assert alive in asyncio.run(learnt())
        return
    executor = executor_of(frozen.url)
    executor._refresh(1.5)  # type: ignore[attr-defined]
    assert alive in executor.slots.primaries()  # type: ignore[attr-defined]
    executor.close()


@pytest.mark.slow
def test_tasks_learn_the_map_together(silent: Cluster) -> None:
    """Tasks whose time is over leave the search to the others."""

    async def calls() -> Any:
        async with AsyncQueue("one", url=silent.url, timeout=1.0) as queue:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.gather(
                    *(queue.enqueue(b"x") for _ in range(CALLS)), return_exceptions=True
                )

    found = asyncio.run(calls())
    assert all(isinstance(one, (redis.RedisError, OSError)) for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("way", ["HARD", "SOFT"])
def test_a_seed_that_was_taken_out(outside: Cluster, colour: str, way: str) -> None:
    """The node says that no node serves any slot. This map replaces no other."""
    seed = outside.nodes[-1]
    seed.ask("CLUSTER", "RESET", way)
    name = bytes(seed.ask("CLUSTER", "MYID"))
    for node in outside.nodes[:-1]:
        if name.decode() in node.ask("CLUSTER", "NODES").decode():
            node.ask("CLUSTER", "FORGET", name)
    places = sorted(node.place for node in outside.masters)

    async def looks() -> None:
        executor: Any = async_executor_of(outside.url)
        for _ in range(20):
            await executor._refresh(None)
            assert executor.slots.primaries() == places
        await executor.close()

    if colour == "async":
        asyncio.run(looks())
        return
    executor: Any = executor_of(outside.url)
    for _ in range(20):
        executor._refresh(None)
        assert executor.slots.primaries() == places
    executor.close()


@pytest.fixture(scope="module")
def outside() -> Iterator[Cluster]:
    """Yield three masters, and a node that will leave the cluster."""
    with Cluster(binaries()[0], masters=3, replicas=1) as cluster:
        yield cluster
