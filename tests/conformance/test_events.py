"""Events. The scripts publish them only while a subscriber listens."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from headrace import AsyncQueue, Event, NewJob, Queue
from headrace._model.event import KINDS
from tests.support.awaiting import PATIENCE, until
from tests.support.facts import each
from tests.support.servers import Server
from tests.support.steps import LONG, listening, looked_after, subscribed

QUIET = 0.5  # seconds without an event after which a test has heard all


def two(queue: Any) -> list[Any]:
    """Lease two jobs, of which `a` has an id."""
    queue.enqueue_many([NewJob(b"x", id="a"), b"x"])
    return sorted(queue.lease_many(2), key=lambda lease: lease.job.id != "a")


def ordered(queue: Any, rows: list[Any]) -> list[Any]:
    """Return the events in their order. Those of several shards are sorted."""
    return rows if queue.ops.settings.shards == 1 else sorted(rows, key=repr)


def dead(queue: Any) -> None:
    queue.enqueue(b"x", id="a")
    queue.lease().dead_letter("why")


def last_attempt(queue: Any) -> None:
    for lease in two(queue):
        lease.retry()


def delayed(queue: Any) -> None:
    queue.enqueue(b"x", id="a", delay=0.001)
    time.sleep(0.01)


def expired(queue: Any) -> None:
    queue.enqueue(b"x", id="a")
    queue.lease(duration=0.001)
    time.sleep(0.01)


def nothing(_queue: Any) -> None:
    pass


# what there is before, what is done, and what is told of it: kind, ids (`-`: of the entry), whether
# there is a worker
STORIES: dict[
    str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any], list[tuple[str, str | None, bool]]]
] = {
    "enqueue": (nothing, lambda queue, _: queue.enqueue(b"x"), [("added", "-", False)]),
    "enqueue many": (
        lambda queue: queue.enqueue(b"x", id="a"),
        lambda queue, _: queue.enqueue_many(
            [NewJob(b"x", id="a"), NewJob(b"x", id="b", delay=LONG), b"x"]
        ),
        [("added", "b", False), ("added", "-", False)],
    ),
    "lease": (
        lambda queue: queue.enqueue_many([NewJob(b"x", id="a"), b"x"]),
        lambda queue, _: queue.lease_many(5),
        [("leased", "a", True), ("leased", "-", True)],
    ),
    "lease plain": (
        lambda queue: queue.enqueue_many([b"x", b"x"]),
        lambda queue, _: queue.lease_many(5),
        [("leased", "-", True), ("leased", "-", True)],
    ),
    "promote": (
        delayed,
        lambda queue, _: queue.lease(),
        [("promoted", "a", False), ("leased", "a", True)],
    ),
    "complete": (
        two,
        lambda queue, leases: queue.complete_many([leases[0], leases[1], leases[1]]),
        [("completed", "a", False), ("completed", "-", False)],
    ),
    "complete, fenced": (
        two,
        lambda _, leases: leases[0].complete(fenced=True),
        [("completed", "a", True)],
    ),
    "complete, with more": (
        two,
        lambda _, leases: leases[1].complete(
            b"r", then=[NewJob(b"x", id="b"), NewJob(b"x", id="a")]
        ),
        [("completed", "-", False), ("added", "b", False)],
    ),
    "release": (
        two,
        lambda _, leases: [lease.release() for lease in leases],
        [("released", "a", True), ("released", "-", True)],
    ),
    "retry": (
        two,
        lambda _, leases: (leases[0].retry(), leases[1].retry(LONG)),
        [("retried", "a", True), ("retried", "-", True)],
    ),
    "the last attempt": (
        last_attempt,
        lambda queue, _: [lease.retry() for lease in queue.lease_many(5)],
        [("leased", "a", True), ("leased", "-", True), ("dead", "a", True), ("dead", "-", True)],
    ),
    "dead_letter": (two, lambda _, leases: leases[0].dead_letter("why"), [("dead", "a", True)]),
    "cancel": (
        two,
        lambda queue, _: (queue.cancel("a"), queue.cancel("nobody")),
        [("cancelled", "a", False)],
    ),
    "cancel, delayed": (
        lambda queue: queue.enqueue(b"x", id="a", delay=LONG),
        lambda queue, _: queue.cancel("a"),
        [("cancelled", "a", False)],
    ),
    "cancel_payload": (
        lambda queue: queue.enqueue_many([b"x", NewJob(b"x", id="a", delay=LONG), b"y"]),
        lambda queue, _: queue.admin.cancel_payload(b"x"),
        [("cancelled", "-", False), ("cancelled", "a", False)],
    ),
    "purge": (
        lambda queue: queue.enqueue_many([b"x", NewJob(b"x", id="a", delay=LONG)]),
        lambda queue, _: queue.admin.purge(),
        [("deleted", "a", False), ("deleted", "-", False)],  # delayed ones first
    ),
    "delete": (two, lambda queue, _: queue.admin.delete(), [("deleted", None, False)]),
    "redrive": (dead, lambda queue, _: queue.admin.redrive(), [("redriven", "a", False)]),
    "purge_dead": (
        dead,
        lambda queue, _: queue.admin.purge_dead("a", "b"),
        [("deleted", "a", False)],
    ),
    "reclaim": (
        expired,
        lambda queue, _: queue.lease(),
        [("reclaimed", "a", False), ("leased", "a", True)],
    ),
}


@pytest.mark.differs("parts", "delete")
@pytest.mark.parametrize("story", STORIES)
def test_what_is_told(connect: Any, story: str) -> None:
    prepare, act, expected = STORIES[story]
    queue, peer = connect(max_attempts=2), connect(max_attempts=2)
    before = prepare(queue)
    actor = peer if story == "reclaim" else queue
    with listening(queue) as told:
        act(actor, before)
        found = told(len(expected))
        actor.enqueue(b"last", id="last")
        (last,) = told(1)
    shown = [
        (e.kind, e.id if e.id in ("a", "b", None) else "-", e.worker is not None) for e in found
    ]
    assert ordered(queue, shown) == ordered(queue, expected)
    assert (last.kind, last.id) == ("added", "last")  # no more than that was told
    assert all(event.queue == "q" and abs(event.at - time.time()) < 60 for event in found)
    assert all(
        event.id is None or event.id in ("a", "b") or event.id.count("-") == 1 for event in found
    )


@pytest.mark.differs("ops")
def test_a_worker_that_leaves_gives_back(connect: Any, client: redis.Redis) -> None:
    """The script leave.lua releases jobs, and the jobs of a dead worker are reclaimed."""
    queue = connect()
    lease = two(queue)[0]
    with listening(queue, "released") as told:
        client.execute_command(*queue.ops.leave(lease.worker).wire())
        assert [(event.kind, event.worker) for event in told(2)] == [("released", lease.worker)] * 2
    lease = queue.lease_many(2)[0]
    client.zadd(queue.ops.keys.key("workers"), {lease.worker: 1})
    client.execute_command(*queue.ops.beat("w", 600.0, register=True).wire())
    looked_after(client)
    with listening(queue, "reclaimed") as told:
        client.execute_command(*queue.ops.reclaim("w", 10.0).wire())
        assert [(event.kind, event.worker) for event in told(2)] == [
            ("reclaimed", lease.worker)
        ] * 2


def test_why_is_told(connect: Any) -> None:
    """Events of retries and dead letters have a reason of at most 500 bytes, if the call had
    one."""
    queue = connect(max_attempts=2)
    leases = two(queue)
    with listening(queue, "retried", "dead") as told:
        assert leases[0].retry(0, "w\u0308hy")
        assert leases[1].dead_letter("x" * 501)
        assert queue.lease().retry(0, "last")
        queue.enqueue(b"x")
        assert queue.lease().retry()
        found = [(event.kind, event.reason) for event in told(4)]
        expected = [
            ("retried", "w\u0308hy"),
            ("dead", "x" * 500),
            ("dead", "last"),
            ("retried", None),
        ]
        assert ordered(queue, found) == ordered(queue, expected)


def test_only_what_is_asked_for(connect: Any) -> None:
    queue, other = connect(), connect("other")
    with listening(queue, "cancelled", "dead") as told:
        two(queue)[1].dead_letter("why")
        other.enqueue(b"x", id="a")
        other.cancel("a")
        queue.cancel("a")
        assert [event.kind for event in told(2)] == ["dead", "cancelled"]


@pytest.mark.differs("ops")
def test_nobody_listens(connect: Any, client: redis.Redis) -> None:
    """Without a listener the scripts publish no message. This holds again after the last listener
    has left."""
    queue = connect(max_attempts=2)
    assert queue.lease(block=0) is None  # the first of a queue is told to workers that rest

    def everything() -> dict[str, int]:
        client.config_resetstat()
        queue.enqueue_many(
            [b"x", NewJob(b"x", id="a"), NewJob(b"x", id="b"), NewJob(b"x", id="c", delay=LONG)]
        )
        done, failed, again = queue.lease_many(3)
        again.release()
        done.complete(b"r", then=[NewJob(b"x")])
        failed.dead_letter("why")
        queue.admin.redrive()
        queue.admin.purge()
        found = client.info("commandstats")
        return {name: found[name]["calls"] for name in found if "pub" in name}

    assert everything() == {}
    queue.admin.delete()
    with listening(queue) as told:
        queue.enqueue(b"x")
        assert len(told(1)) == 1
    until(lambda: not subscribed(client))
    client.execute_command(*queue.ops.reclaim("w", 10.0).wire())
    queue.admin.delete()
    assert everything() == {}


@pytest.mark.differs("ops")
def test_a_listener_that_was_cut_off(connect: Any, client: redis.Redis) -> None:
    """The listener connects again by itself. Events of the meantime are not repeated."""
    queue = connect()
    with listening(queue, "added") as told:
        queue.enqueue(b"x", id="a")
        assert [event.id for event in told(1)] == ["a"]
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        client.execute_command(*queue.ops.enqueue([b"x"]).wire())
        seen = _next_in_background(told, queue, client, connect.server)
        assert seen.id == "c"


def _next_in_background(
    told: Callable[[int], list[Event]], queue: Any, client: redis.Redis, server: Server
) -> Event:
    """Return the next event of a job that is added once a listener is there."""

    def add() -> None:
        until(lambda: subscribed(client))
        until(lambda: client.hget(queue.ops.keys.key("stats"), "listening"))
        with server.queue("q") as other:
            other.enqueue(b"x", id="c")

    adding = threading.Thread(target=add)
    adding.start()
    (event,) = told(1)
    adding.join()
    return event


def test_quiet_for_too_long(connect: Any) -> None:
    """The iteration ends after the events that came before."""
    queue = connect()
    queue.enqueue(b"x")
    began = time.monotonic()
    assert list(queue.events(timeout=QUIET)) == []
    assert time.monotonic() - began >= QUIET
    with listening(queue, timeout=QUIET) as told:
        queue.enqueue(b"x")
        assert len(told(1)) == 1
        with pytest.raises((StopIteration, StopAsyncIteration, RuntimeError)):
            told(1)


@pytest.mark.differs("one server")
def test_who_may_not_listen_is_told(connect: Any, client: redis.Redis, server: Server) -> None:
    """To listen without the right raises an error. A queue without the right to publish works
    on."""
    client.execute_command(
        "ACL", "SETUSER", "deaf", "reset", "on", ">x", "~*", "+@all", "resetchannels"
    )
    try:
        deaf = connect(url=f"unix://deaf@{server.path}?password=x")
        with pytest.raises(redis.ResponseError, match=r"(?i)perm"):
            list(deaf.events(timeout=QUIET))
        with listening(connect()) as told:
            assert deaf.enqueue(b"x").added
            connect().enqueue(b"x", id="a")
            assert [event.id for event in told(1)] == ["a"]
    finally:
        client.execute_command("ACL", "DELUSER", "deaf")


@pytest.mark.differs("keys")
def test_what_is_no_message_of_ours(queue: Any, client: redis.Redis, server: Server) -> None:
    """Anybody may publish anything on the channel. Foreign messages are skipped."""
    channel = queue.ops.keys.channel("added")
    publish = client.spublish if server.binary.masters else client.publish
    with listening(queue) as told:
        for text in (
            "",
            "x",
            "[]",
            "{}",
            '{"at": "x"}',
            '{"at": 1, "ids": 5}',
            b"\xff",
            "5",
            "null",
        ):
            publish(channel, text)
        publish(channel, json.dumps({"at": 1500, "ids": ["a"]}))
        assert told(1) == [Event("added", "q", "a", 1.5)]


@pytest.mark.differs("keys")
def test_a_moment_that_no_calendar_has(queue: Any, client: redis.Redis, server: Server) -> None:
    """The time is a number that no calendar date has. The event of a job due then is still
    delivered."""
    year_10000 = 253_402_300_800_000
    channel = queue.ops.keys.channel("added")
    publish = client.spublish if server.binary.masters else client.publish
    with listening(queue, "added") as told:
        publish(channel, json.dumps({"at": year_10000, "ids": ["a"]}))
        assert told(1) == [Event("added", "q", "a", year_10000 / 1000)]
        queue.enqueue(b"x", id="far", delay=60)
        client.zadd(queue.ops.keys.key("delayed"), {"far": year_10000})
        assert [event.id for event in told(1)] == ["far"]
    assert queue.find("far").due == year_10000 / 1000
    assert [state.job.id for state in queue.admin.delayed()] == ["far"]


@each(
    ("arguments", "error", "says"),
    [
        ({"kinds": "added"}, TypeError, "kinds must be an iterable"),
        ({"kinds": 5}, TypeError, "kinds must be an iterable"),
        ({"kinds": ["new"]}, ValueError, "give some of added"),
        ({"kinds": []}, ValueError, "give some of added"),
        ({"kinds": [5]}, ValueError, "give some of added"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": "1"}, TypeError, "timeout"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with Queue("q", url="redis://nowhere.invalid") as queue, pytest.raises(error, match=says):
        queue.events(**arguments)


def test_every_kind_is_told_of() -> None:
    told = {kind for _, _, expected in STORIES.values() for kind, _, _ in expected}
    assert told | {"progress"} == set(KINDS)  # see test_progress_is_told


@pytest.mark.parametrize("shards", [1, 3])
def test_a_break_closes_the_connection(newest: Server, colour: str, shards: int) -> None:
    """Nothing can read from the connection any more, so it is closed at once and the collector
    finds nothing to warn about.
    """
    name = f"q{shards}"  # a group has one number of shards
    connections: list[int] = []

    def gone() -> bool:
        with newest.client() as client:
            connections.append(len(client.client_list(_type="pubsub")))
        return connections[-1] == 0

    async def story() -> None:
        async with AsyncQueue(name, url=newest.url, shards=shards) as queue:
            producing = asyncio.create_task(produce(queue))
            async for event in queue.events(["added"]):
                assert event.kind == "added"
                break
            producing.cancel()
            await asyncio.to_thread(until, gone)

    async def produce(queue: Any) -> None:
        while True:
            await queue.enqueue(b"x")
            await asyncio.sleep(0.01)

    if colour == "async":
        asyncio.run(asyncio.wait_for(story(), PATIENCE), debug=True)
    else:
        with Queue(name, url=newest.url, shards=shards) as queue, ThreadPoolExecutor(1) as pool:
            told = threading.Event()
            producing = pool.submit(
                lambda: any(queue.enqueue(b"x") and told.wait(0.01) for _ in range(10_000))
            )
            for event in queue.events(["added"]):
                assert event.kind == "added"
                break
            told.set()
            assert producing.result(PATIENCE)
            until(gone)
    assert connections


def test_progress_is_told(server: Server) -> None:
    with Queue("q", url=server.url) as queue:
        queue.enqueue(b"x", id="a")
        lease = queue.lease()
        assert lease is not None
        with listening(queue, "progress") as told:
            lease.job.progress(0.5, "half")
            (event,) = told(1)
        assert (event.kind, event.id, event.reason) == ("progress", "a", "0.5 half")
        assert event.worker is not None
