"""Waiting for results. The server tells of them without polling, and many waiters share one
connection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, JobFailed, NewJob, Queue
from tests.support.awaiting import PATIENCE, until
from tests.support.colours import Connect
from tests.support.servers import Server
from tests.support.steps import somebody_waits, subscribed

TELLING = "headrace:{q}:q:events:completed"
Then = Callable[[Callable[[Queue], object]], Future[object]]


def listeners(client: redis.Redis) -> int:
    return subscribed(client).get(TELLING, 0)


def heard(client: redis.Redis) -> bool:
    """Tell whether a subscriber has registered. From then on the scripts publish results."""
    return listeners(client) > 0 and bool(client.hexists("headrace:{q}:q:stats", "listening"))


def somebody_listens(server: Server) -> None:
    """Wait until a subscriber listens. For a sharded queue, wait until it asks repeatedly."""
    if server.binary.shards > 1:
        somebody_waits(server)
    else:
        with server.client() as client:
            until(lambda: heard(client), "somebody who listens")


@pytest.fixture
def once_awaited(server: Server) -> Iterator[Then]:
    """Let another client act once a listener for the end of a job is there."""
    acts: list[Future[object]] = []
    with ThreadPoolExecutor(1) as pool, server.queue("q") as other:

        def run(act: Callable[[Queue], object]) -> object:
            somebody_listens(server)
            return act(other)

        def start(act: Callable[[Queue], object]) -> Future[object]:
            acts.append(pool.submit(run, act))
            return acts[-1]

        yield start
        for act in acts:
            act.result(PATIENCE)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let results be read only after a message."""
    for colour in ("aio", "sync"):
        monkeypatch.setattr(f"headrace._net.{colour}.waiters.POLL_EVERY_S", 2 * PATIENCE)


def test_the_waiter_is_first(queue: Any, once_awaited: Then, unhurried: None) -> None:
    name = queue.enqueue(b"x").id
    once_awaited(lambda other: other.lease().complete(b"r"))
    began = time.monotonic()
    assert queue.result(name, timeout=PATIENCE) == b"r"
    assert time.monotonic() - began < PATIENCE


def test_the_completer_is_first(queue: Any, client: redis.Redis) -> None:
    """The completer publishes the result without a request."""
    name = queue.enqueue(b"x").id
    queue.lease().complete(b"r")
    assert queue.result(name, timeout=PATIENCE) == b"r"
    assert queue.results([name, "nobody"]) == {name: b"r"}
    assert listeners(client) == 0


def test_before_there_is_such_a_job(queue: Any, once_awaited: Then, unhurried: None) -> None:
    """The id is known before its job exists."""

    def act(other: Queue) -> None:
        other.enqueue(b"x", id="i")
        other.lease().complete(b"r")

    once_awaited(act)
    assert queue.result("i", timeout=PATIENCE) == b"r"


ENDS: dict[str, Callable[[Queue], object]] = {
    "completed without a result": lambda queue: queue.lease().complete(),
    "dead": lambda queue: queue.lease().dead_letter("why"),
    "out of attempts": lambda queue: queue.lease().retry(),
    "cancelled": lambda queue: queue.cancel("i"),
    "cancelled by payload": lambda queue: queue.admin.cancel_payload(b"x"),
    "purged": lambda queue: queue.admin.purge(),
    "deleted": lambda queue: queue.admin.delete(),
}


HOW = {
    "dead": ("dead", "why"),
    "out of attempts": ("dead", ""),
    "cancelled": ("cancelled", ""),
    "cancelled by payload": ("cancelled", ""),
    "purged": ("deleted", ""),
    "deleted": ("deleted", ""),
}


@pytest.mark.differs("ends", "cancelled", "cancelled by payload", "deleted", "purged")
@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_will_have_no_result(
    connect: Connect, server: Server, unhurried: None, end: str
) -> None:
    """The waiting client is told as soon as this is certain."""
    queue = connect()
    queue.enqueue(b"x", id="i")
    waiting = threading.Event()

    def act() -> None:
        with server.queue("q", max_attempts=1) as other:
            somebody_listens(server)
            ENDS[end](other)
        waiting.set()

    thread = threading.Thread(target=act)
    thread.start()
    began = time.monotonic()
    if end.startswith("completed"):
        assert queue.result("i", timeout=PATIENCE) is None
    else:
        with pytest.raises(JobFailed) as failed:
            queue.result("i", timeout=PATIENCE)
        assert (failed.value.id, failed.value.state, failed.value.reason or "") == ("i", *HOW[end])
    assert time.monotonic() - began < PATIENCE
    assert waiting.wait(PATIENCE)
    thread.join()


@pytest.mark.differs("elsewhere")
def test_an_id_that_is_used_again_is_waited_for(
    queue: Any, server: Server, once_awaited: Then, unhurried: None
) -> None:
    """A message about an earlier job of the id does not count."""
    queue.enqueue(b"x", id="i")

    def act(other: Queue) -> None:
        with (
            server.client() as client,
            client.pipeline() as pipe,
        ):  # the waiter looks after both
            pipe.execute_command(*other.ops.cancel("i").wire())
            pipe.execute_command(*other.ops.enqueue([other.ops.item(NewJob(b"y", id="i"))]).wire())
            pipe.execute()
        other.lease().complete(b"r")

    once_awaited(act)
    assert queue.result("i", timeout=PATIENCE) == b"r"


def test_results_of_many(queue: Any, once_awaited: Then, unhurried: None) -> None:
    """Results that exist come first, then new ones. Jobs that can't have one any more are left
    out."""
    ids = [receipt.id for receipt in queue.enqueue_many([b"x"] * 250)]
    for lease in queue.lease_many(50):
        lease.complete(lease.job.id)

    def act(other: Queue) -> None:
        for lease in other.lease_many(199):
            lease.complete(lease.job.id)
        other.admin.delete()

    once_awaited(act)
    found = queue.results([*ids, ids[0]], timeout=PATIENCE)
    assert found == {name: name.encode() for name in ids[:249]}
    assert list(queue.results(reversed(ids))) == ids[248::-1]
    assert queue.results([]) == {}


def test_time_is_over(queue: Any, client: redis.Redis) -> None:
    queue.enqueue(b"x", id="i")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"job 'i' has not ended within 0\.3 s"):
        queue.result("i", timeout=0.3)
    assert queue.results(["i"], timeout=0) == {}
    assert 0.3 <= time.monotonic() - began < PATIENCE


@pytest.mark.differs("elsewhere")
def test_a_cut_while_waiting(
    queue: Any, once_awaited: Then, server: Server, unhurried: None
) -> None:
    """A result that was published during the cut is looked up when the subscriber is back."""
    name = queue.enqueue(b"x").id

    def act(other: Queue) -> None:
        lease = other.lease()
        assert lease is not None
        with server.client() as client, client.pipeline() as pipe:
            pipe.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            pipe.execute_command(
                *other.ops.complete([lease.claim], results={lease.claim.entry: b"r"}).wire()
            )
            assert pipe.execute() == [1, [1]]

    once_awaited(act)
    assert queue.result(name, timeout=PATIENCE) == b"r"


@pytest.mark.differs("one server")
def test_who_may_not_listen_looks(connect: Connect, client: redis.Redis, server: Server) -> None:
    """A client without the right to listen polls. A client without the right to publish completes
    jobs."""
    client.execute_command(
        "ACL", "SETUSER", "deaf", "reset", "on", ">x", "~*", "+@all", "resetchannels"
    )
    url = f"unix://deaf@{server.path}?password=x"
    try:
        queue = connect(url=url)
        name = queue.enqueue(b"x").id

        def act() -> None:
            with Queue("q", url=url) as other:
                lease = other.lease()
                assert lease is not None
                assert lease.complete(b"r")

        timer = threading.Timer(0.3, act)
        timer.start()
        assert queue.result(name, timeout=PATIENCE) == b"r"
        timer.join()
    finally:
        client.execute_command("ACL", "DELUSER", "deaf")


def test_a_thousand_who_wait(newest: Server) -> None:
    """A thousand callers share one subscription and a few connections. Each gets its result, and a
    cancelled one disturbs no other.
    """

    async def story() -> tuple[list[str], list[bytes | None], int]:
        async with AsyncQueue("q", url=newest.url) as queue:
            ids = [receipt.id for receipt in await queue.enqueue_many([b"x"] * 1000)]
            waiting = [
                asyncio.create_task(queue.result(name, timeout=2 * PATIENCE)) for name in ids
            ]
            dropped = asyncio.create_task(queue.result(ids[0], timeout=2 * PATIENCE))
            while not await asyncio.to_thread(listeners, client):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            dropped.cancel()
            connections = len(await asyncio.to_thread(client.client_list))
            leases = await queue.lease_many(1000)
            assert (
                await asyncio.gather(*[lease.complete(lease.job.id) for lease in leases])
                == [True] * 1000
            )
            return ids, await asyncio.gather(*waiting), connections

    with newest.client() as client:
        before = len(client.client_list())
        ids, found, connections = asyncio.run(story())
        assert found == [name.encode() for name in ids]
        assert connections - before <= 6
        until(lambda: listeners(client) == 0)


def test_threads_share_a_subscription(newest: Server) -> None:
    """The subscription ends some time after the last thread."""
    with newest.client() as client, Queue("q", url=newest.url) as queue:
        ids = [receipt.id for receipt in queue.enqueue_many([b"x"] * 20)]
        with ThreadPoolExecutor(20) as pool:
            waiting = [pool.submit(queue.result, name, PATIENCE) for name in ids]
            until(lambda: listeners(client) == 1)
            for lease in queue.lease_many(20):
                lease.complete(lease.job.id)
            assert [future.result(PATIENCE) for future in waiting] == [
                name.encode() for name in ids
            ]
        assert listeners(client) == 1
        queue.close()
        until(lambda: listeners(client) == 0)
        name = queue.enqueue(b"x").id  # used again, it begins again
        timer = threading.Timer(
            0.1, lambda: [lease.complete(b"r") for lease in queue.lease_many(1)]
        )
        timer.start()
        assert queue.result(name, timeout=PATIENCE) == b"r"
        timer.join()


@pytest.mark.slow
@pytest.mark.parametrize("linger", [0.0, 5.0])
def test_the_subscription_ends_when_nobody_waits(
    newest_connect: Connect, monkeypatch: pytest.MonkeyPatch, linger: float
) -> None:
    """The subscription ends after a pause, because the next caller is likely to come soon."""
    for colour in ("aio", "sync"):
        monkeypatch.setattr(f"headrace._net.{colour}.waiters.LINGER_S", linger)
    queue = newest_connect()
    queue.enqueue(b"x", id="i")
    with newest_connect.server.client() as client:
        with pytest.raises(TimeoutError):
            queue.result("i", timeout=0.1)
        if linger:
            assert listeners(client) == 1
        else:
            until(lambda: queue.counts() and not listeners(client))
        with pytest.raises(TimeoutError):
            queue.result("i", timeout=0.1)


@pytest.mark.parametrize("ids", ["i", b"i", 5, None])
def test_ids_are_many(newest_connect: Connect, ids: Any) -> None:
    with pytest.raises(TypeError, match="ids must be an iterable of str"):
        newest_connect().results(ids)


def test_ids_are_checked(newest_connect: Connect) -> None:
    with pytest.raises(ValueError, match="id ''"):
        newest_connect().results(["i", ""])


def test_results_that_are_too_much_for_one_answer_are_asked_for_again(newest_connect, newest):
    queue = newest_connect()
    names = [receipt.id for receipt in queue.enqueue_many([b"x"] * 6)]
    for number, lease in enumerate(queue.lease_many(6)):
        assert lease.complete(result=b"%d" % number * 700_000)
    with newest.client() as client:
        client.config_resetstat()
        found = queue.results([*names, "nobody's"])
        asked = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert found == {name: b"%d" % number * 700_000 for number, name in enumerate(names)}
    assert asked >= 3
