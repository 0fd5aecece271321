"""The kept connections. The tests check their number, their reuse, and the calls to redis-py's
parsers."""

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
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.base.pool import LOOK_AFTER_S
from headrace._net.sync.executor import Executor
from headrace.codecs import JSONCodec
from tests.conformance.test_connections import tour
from tests.support.servers import Server, binaries

PARSERS = {
    "sync": {2: _RESP2Parser, 3: _RESP3Parser},
    "async": {2: _AsyncRESP2Parser, 3: _AsyncRESP3Parser},
}


def clients(server: Server) -> list[dict[str, str]]:
    """Return the connections to the server, without the one that asks."""
    with server.client() as asking:
        mine = str(asking.client_id())
        return [row for row in asking.client_list() if row["id"] != mine]


@pytest.mark.differs("one server")
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
    """Concurrent threads have a connection each. The connections stay for the next calls."""
    with Queue("q", url=newest.url) as queue:
        threads = [
            threading.Thread(target=lambda: [queue.enqueue(b"x") for _ in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= len(clients(newest)) <= 4
        assert queue.counts().waiting == 200


async def done(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def reads(client: Any) -> int:
    """Return how often the server has read from a connection."""
    return int(client.info("stats")["total_reads_processed"])


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("by", ["url", "client"])
def test_queues_of_one_address_share_connections(newest: Server, colour: str, by: str) -> None:
    """Forty queues share one connection, with two round trips each for the first job and the
    declaration. The last closes it.
    """
    kind: Any = AsyncQueue if colour == "async" else Queue

    async def story() -> None:
        async with redis.asyncio.Redis(unix_socket_path=newest.path) as one:
            theirs = one if colour == "async" else redis.Redis(unix_socket_path=newest.path)
            where: Any = {"url": newest.url} if by == "url" else {"client": theirs}
            # each is declared once by a process
            names = [f"{colour}-{by}-{number}" for number in range(41)]
            first, *others = [kind(name, codec=JSONCodec(), **where) for name in names]
            await done(first.enqueue("x"))  # the server learns the scripts
            before = reads(client)
            for queue in others:
                assert (await done(queue.enqueue("x"))).added
            assert reads(client) - before <= 2 * 40 + 1  # and one of the question itself
            assert len(clients(newest)) == 1 + 1
            assert all(
                client.hexists(f"headrace:{{{name}}}:{name}:stats", "declared") for name in names
            )
            await done(first.close())
            for queue in others:
                assert (await done(queue.counts())).waiting == 1
                await done(queue.close())
            assert len(clients(newest)) == 0 + 1
            assert list(client.scan_iter("*:lane:*")) == []
            assert (await done(first.enqueue("x"))).added  # it connects anew
            await done(first.close())

    with newest.client() as client:
        asyncio.run(story())


def test_clients_and_event_loops_share_nothing(newest: Server) -> None:
    """Two clients share no connection, nor do two settings of one client. An ended event loop's
    connection is not reused.
    """
    theirs, other = (redis.Redis(unix_socket_path=newest.path) for _ in range(2))
    with (
        Queue("a", client=theirs) as one,
        Queue("b", client=theirs) as two,
        Queue("c", client=other) as three,
    ):
        shared = one._executor.connections
        assert two._executor.connections is shared is not three._executor.connections
        theirs.connection_pool.connection_kwargs["client_name"] = "changed"
        with Queue("d", client=theirs) as four:
            assert four._executor.connections is not shared

    async def pool(queue: Any) -> Any:
        return queue._executor.connections

    first, second = AsyncQueue("q", url=newest.url), AsyncQueue("q", url=newest.url)
    assert asyncio.run(pool(first)) is not asyncio.run(pool(second))


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("idle", [0.0, 2 * LOOK_AFTER_S], ids=["at once", "after a while"])
def test_a_connection_that_was_closed(newest, colour, caplog, idle):
    """Another connection takes its place. An idle one that the server closed is no outage and
    causes no log line."""

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
    """The calls to Sentinel, which ask for the primary."""

    address: tuple[str, int]

    def discover_master(self, _service: str) -> tuple[str, int]:
        return self.address


class AsyncPrimary(Primary):
    async def discover_master(self, _service: str) -> tuple[str, int]:  # type: ignore[override]
        return self.address


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_another_primary(colour):
    """A client that finds it by Sentinel closes its free connections to the former primary."""

    async def story(server: Server) -> None:
        sentinel = (AsyncPrimary if colour == "async" else Primary)(("127.0.0.1", server.port))
        module: Any = redis.asyncio if colour == "async" else redis
        pool = module.sentinel.SentinelConnectionPool("service", sentinel)
        executor: Any = (AsyncExecutor if colour == "async" else Executor)(
            client=module.Redis(connection_pool=pool)
        )
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
