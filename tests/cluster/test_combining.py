"""Calls that share round trips on a cluster. They go node by node, on few connections."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace._model.settings import QueueSettings
from headrace._model.shards import Table
from headrace._net.aio.cluster import executor_of as async_executor_of
from headrace._net.base.pool import TRIPS
from headrace._net.sync.cluster import executor_of
from headrace._protocol import view_ops
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from tests.support.cluster import Cluster

CALLS = 60
# connections to a node: the map of the cluster may be asked for while two trips are under way
MOST = TRIPS + 1


def calls() -> list[Op[Any]]:
    parts = Table.of("q", 12).shards
    return [
        view_ops.counts(Ops(Keys.of("q").at(parts[n % 12]), QueueSettings())) for n in range(CALLS)
    ]


def test_calls_of_tasks_take_few_connections(cluster: Cluster) -> None:
    async def main() -> list[int]:
        executor: Any = async_executor_of(cluster.url)
        executor.combine()
        try:
            answers = await asyncio.gather(*map(executor.run, calls()))
            assert [answer.present for answer in answers] == [0] * CALLS
            return [len(link.connections._all) for link in executor._links.values()]
        finally:
            await executor.close()

    opened = asyncio.run(main())
    assert len(opened) == len(cluster.masters)
    assert max(opened) <= MOST


def test_calls_of_threads_take_few_connections(cluster: Cluster) -> None:
    executor: Any = executor_of(cluster.url)
    executor.combine()
    try:
        with ThreadPoolExecutor(CALLS) as threads:
            answers = list(threads.map(executor.run, calls()))
        assert [answer.present for answer in answers] == [0] * CALLS
        opened = [len(link.connections._all) for link in executor._links.values()]
    finally:
        executor.close()
    assert len(opened) == len(cluster.masters)
    assert max(opened) <= MOST
