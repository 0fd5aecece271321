"""The connections that we keep: how many, which are used again, and what is asked of redis-py's parsers."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
from attrs import define
from redis._parsers import _AsyncRESP2Parser, _AsyncRESP3Parser, _RESP2Parser, _RESP3Parser

from headrace import AsyncQueue, Queue
from headrace._async.executor import AsyncExecutor
from headrace._base.pool import LOOK_AFTER_S
from headrace._sync.executor import Executor
from tests.conformance.test_connections import tour
from tests.support.servers import Server, binaries

PARSERS = {"sync": {2: _RESP2Parser, 3: _RESP3Parser}, "async": {2: _AsyncRESP2Parser, 3: _AsyncRESP3Parser}}


def clients(server: Server) -> list[dict[str, str]]:
    """The connections to the server, without the one that asks."""
    with server.client() as asking:
        mine = str(asking.client_id())
        return [row for row in asking.client_list() if row["id"] != mine]


@pytest.mark.parametrize("protocol", [2, 3])
def test_without_hiredis(connect, protocol):
    """redis-py's own parsers will do."""
    queue = connect(url=f"unix://{connect.server.path}?protocol={protocol}")
    queue._executor.pool.connection_kwargs["parser_class"] = PARSERS[connect.colour][protocol]
    tour(queue)


def test_one_call_after_the_other(newest_connect):
    """A connection is used again and again."""
    queue = newest_connect()
    for number in range(50):
        queue.enqueue(b"x", id=f"{number}")
        queue.enqueue(b"x")
    assert len(clients(newest_connect.server)) == 1


def test_as_many_as_there_are_calls_at_a_time(newest: Server):
    """Threads that call at the same time have a connection each, and these stay for the next calls."""
    with Queue("q", url=newest.url) as queue:
        threads = [threading.Thread(target=lambda: [queue.enqueue(b"x") for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= len(clients(newest)) <= 4
        assert queue.counts().waiting == 200


async def done(answer: Any) -> Any:
    """The answer of either colour."""
    return await answer if inspect.isawaitable(answer) else answer


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("idle", [0.0, 2 * LOOK_AFTER_S], ids=["at once", "after a while"])
def test_a_connection_that_was_closed(newest, colour, caplog, idle):
    """Another takes its place; where that was some time ago, it is no outage, and nothing is said of it."""

    async def story() -> None:
        queue: Any = (AsyncQueue if colour == "async" else Queue)("q", url=newest.url)
        assert (await done(queue.enqueue(b"x"))).added
        with newest.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(idle)
        assert (await done(queue.enqueue(b"x"))).added
        assert (await done(queue.counts())).waiting == 2
        await done(queue.close())

    asyncio.run(story())
    assert not idle or "connection_lost" not in caplog.text


@define
class Primary:
    """What is asked of Sentinel: where the primary is."""

    address: tuple[str, int]

    def discover_master(self, _service: str) -> tuple[str, int]:
        return self.address


class AsyncPrimary(Primary):
    async def discover_master(self, _service: str) -> tuple[str, int]:  # type: ignore[override]
        return self.address


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_another_primary(colour):
    """Whoever finds it by Sentinel closes the free connections to the one before."""

    async def story(server: Server) -> None:
        sentinel = (AsyncPrimary if colour == "async" else Primary)(("127.0.0.1", server.port))
        module: Any = redis.asyncio if colour == "async" else redis
        pool = module.sentinel.SentinelConnectionPool("service", sentinel)
        executor: Any = (AsyncExecutor if colour == "async" else Executor)(client=module.Redis(connection_pool=pool))
        kept = [await done(executor.connections.take()) for _ in range(3)]
        for connection in kept:
            executor.connections.give(connection)
        with server.client() as client:
            lost = [row for row in clients(server) if row["name"] == ""][-1]
            assert client.client_kill_filter(_id=lost["id"])
            sentinel.address = ("localhost", server.port)
            await asyncio.sleep(2 * LOOK_AFTER_S)
            taken = [await done(executor.connections.take()) for _ in range(3)]
        assert [connection.host for connection in taken] == ["localhost"] * 3
        for connection in taken:
            executor.connections.give(connection)
        await done(executor.close())
        assert clients(server) == []

    with Server(binaries()[0], tcp=True) as server:
        asyncio.run(story(server))
