"""Clusters that change during work. Slots move, masters die and connections are cut. No job is lost
or runs twice."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from headrace import Queue
from headrace._model.shards import Table
from headrace._net.sync.cluster import executor_of
from headrace._protocol import view_ops
from headrace._protocol.features import events as event_ops
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from tests.cluster.load import Load
from tests.cluster.mutants import MUTANTS
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import Running
from tests.support.planted import check, plant
from tests.support.servers import binaries

pytestmark = pytest.mark.ci

KINDS = ["threads", "tasks"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    """Three masters, and a replica of each."""
    with Cluster(binaries()[0], replicas=1) as cluster:
        yield cluster


def test_slots_move_under_work(cluster: Cluster, kind: str) -> None:
    """Slots move key by key and at once. Calls meet MOVED, ASK and TRYAGAIN, and blocked reads lose
    their stream."""
    names = cluster.groups()
    with Load(cluster.url, names, kind) as load:
        load.goes_on(20)
        for i in range(4):
            name = names[i % 3]
            cluster.migrate(name, cluster.other(name))
            load.goes_on(20)
            if cluster.moves_slots_at_once:
                cluster.move(name, cluster.other(name))
                load.goes_on(20)


def test_a_call_waits_while_its_slot_is_open(connect: Connect, cluster: Cluster) -> None:
    """Half of the keys are on either node. The call goes on when the migration ends, and it has
    acted once."""
    name = cluster.groups()[0]
    queue = connect(name)
    queue.enqueue_many([b"x"] * 10)
    queue.enqueue(b"later", delay=60)
    made: list[threading.Thread] = []

    def call() -> None:
        def enqueue() -> None:
            with Queue(name, url=cluster.url) as other:
                other.enqueue(b"meanwhile")

        made.append(threading.Thread(target=enqueue))
        made[0].start()
        made[0].join(0.2)
        assert made[0].is_alive()

    cluster.migrate(name, cluster.other(name), pause=call)
    made[0].join()
    counts = queue.counts()
    assert (counts.waiting, counts.delayed, counts.enqueued) == (11, 1, 12)


def test_where_a_slot_has_gone_is_learnt(connect: Connect, cluster: Cluster) -> None:
    """The first call learns it, or two concurrent ones. No later call goes to the wrong node."""
    name = cluster.groups()[0]
    queue, source = connect(name), cluster.owner(name)
    queue.enqueue(b"x")
    cluster.migrate(name, cluster.other(name))
    for _ in range(20):
        queue.enqueue(b"x")
    assert queue.counts().enqueued == 21
    said = source.info("INFO", "errorstats")["errorstat_MOVED"]
    assert int(said.partition("=")[2]) <= 2


def test_a_key_that_has_gone_ahead(cluster: Cluster) -> None:
    """The script has one key, which has moved already. ASK leads to its node. A script of several
    keys would wait."""
    name = cluster.groups()[0]
    ops = Ops(Keys.of(name))
    executor = executor_of(cluster.url)
    executor.run(event_ops.listen(ops))

    def call() -> None:
        executor.run(event_ops.listen(ops), within=5.0)

    try:
        source, to = cluster.owner(name), cluster.other(name)
        cluster.migrate(name, to, first=1, pause=call)
        assert "errorstat_ASK" in source.info("INFO", "errorstats")
    finally:
        executor.close()


def test_a_lost_reply_and_a_slot_that_moves(cluster: Cluster) -> None:
    """The call is sent again to the slot's new node. Its record answers it, and it does nothing.

    What another node has answered meanwhile is not sent again.
    """
    name, another, third = cluster.groups()
    to, elsewhere = cluster.owner(third), cluster.owner(another)
    executor = executor_of(cluster.url)
    here, there = Ops(Keys.of(name)), Ops(Keys.of(another))
    try:
        executor.run_all([view_ops.counts(here), view_ops.counts(there)])
        executor.run_all([here.enqueue([b"x"]), there.enqueue([b"x"])])
        elsewhere.ask("CONFIG", "RESETSTAT")
        lost: list[None] = []

        def lose() -> None:
            if not lost:
                lost.append(None)
                until(
                    lambda: cluster.owner(name).ask("XLEN", here.keys.key("jobs")) == 2,
                    "the call to have run",
                )
                cluster.migrate(name, to)
                raise redis.ConnectionError("the reply is lost")

        ops = [here.enqueue([b"y"]), there.enqueue([b"y"])]
        executor.run_all(ops, meanwhile=lose)
        assert lost
        assert executor.run(view_ops.counts(here)).enqueued == 2
        said = elsewhere.info("INFO", "commandstats")["cmdstat_evalsha"]
        assert int(re.findall(r"calls=(\d+)", said)[0]) == 1
    finally:
        executor.close()


def test_a_result_is_told_by_the_node_that_has_the_slot_now(cluster: Cluster) -> None:
    name = cluster.groups()[0]
    with Queue(name, url=cluster.url) as queue:
        receipt = queue.enqueue(b"x")
        found: list[object] = []
        waits = threading.Thread(target=lambda: found.append(queue.result(receipt.id, timeout=30)))
        waits.start()
        cluster.migrate(name, cluster.other(name))
        worker = Running("threads", url=cluster.url)
        worker.handler(name)(lambda job: job.payload.upper())
        with worker:
            waits.join(30)
    assert found == [b"X"]


def test_a_listener_follows_its_slot(connect: Connect, cluster: Cluster) -> None:
    """The node of an idle listener tells it that the slot has moved."""
    name = cluster.groups()[0]
    to = cluster.other(name)
    queue = connect(name)
    heard: list[object] = []
    waits = threading.Thread(target=lambda: heard.append(queue.result("a", timeout=60)))
    with Queue(name, url=cluster.url) as other:
        other.enqueue(b"x", id="a")
        waits.start()
        try:
            until(lambda: cluster.owner(name).ask("PUBSUB", "SHARDCHANNELS"), "a listener")
            cluster.migrate(name, to)
            until(lambda: to.ask("PUBSUB", "SHARDCHANNELS"), "it there")
        finally:
            lease = other.lease()
            assert lease is not None
            assert lease.complete(b"done")
            waits.join(60)
        assert heard == [b"done"]
        assert "cmdstat_spublish" in to.info("INFO", "commandstats")


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 6])
def test_a_listener_follows_a_failover(replicated: Cluster, shards: int) -> None:
    """The listener follows as soon as a replica serves the slots, even if its client makes no other
    call."""
    table, stop = Table.of("q", shards), threading.Event()
    group = "q" if shards == 1 else table.shards[0].tag("q")
    key = next(key for key in map(str, range(100)) if table.shard_of(key) == 0)

    def produce() -> None:
        with Queue("q", url=replicated.url, shards=shards) as other:
            while not stop.wait(0.05):
                other.enqueue(b"x", key=key)

    with (
        Queue("q", url=replicated.url, shards=shards) as queue,
        queue.events(["added"], 60) as events,
    ):
        master = replicated.owner(group)
        replica = replicated.replica_of(master)
        producing = threading.Thread(target=produce)
        producing.start()
        try:
            until(lambda: next(events).at, "it")
            master.kill()
            until(lambda: replicated.owner(group) is replica, "another master")
            at = time.time()
            until(lambda: next(events).at > at, "a job that was added there")
        finally:
            stop.set()
            producing.join()


def test_cut_connections(cluster: Cluster, kind: str) -> None:
    names = cluster.groups()
    with Load(cluster.url, names, kind) as load:
        for _ in range(5):
            load.goes_on(10)
            for node in cluster.masters:
                node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def test_a_master_is_replaced_by_hand(replicated: Cluster, kind: str) -> None:
    names = replicated.groups()
    with Load(replicated.url, names, kind) as load:
        load.goes_on(20)
        master = replicated.owner(names[0])
        replica = replicated.replica_of(master)
        replica.ask("CLUSTER", "FAILOVER")
        until(lambda: replicated.owner(names[0]) is replica, "another master")
        load.goes_on(20)


@pytest.mark.slow
def test_a_master_is_killed(replicated: Cluster, kind: str) -> None:
    """The replica has all writes. Pending calls are sent to it under their numbers. Calls to the
    other two do not wait.
    """
    names = replicated.groups()
    with Load(replicated.url, names, kind) as load:
        load.goes_on(20)
        master = replicated.owner(names[0])
        replica = replicated.replica_of(master)
        master.hand_over(replica)
        master.kill()
        until(lambda: replicated.owner(names[0]) is replica, "another master")
        load.goes_on(20)


@pytest.mark.slow
def test_a_frozen_master_is_no_others_concern(cluster: Cluster, kind: str) -> None:
    """The master neither answers nor closes connections. Calls to it end in time, and calls to
    others do not wait."""
    lost, *alive = cluster.groups()
    frozen = cluster.owner(lost)
    worker = Running(kind, url=cluster.url, heartbeat=0.4, timeout=2.0)
    for name in (lost, *alive):
        worker.handler(name)(lambda _job: None)
    queues = [Queue(name, url=cluster.url) for name in (lost, *alive)]
    with worker:
        until(
            lambda: all(any(one.alive for one in queue.admin.workers()) for queue in queues),
            "a worker everywhere",
        )
        frozen.suspend()
        try:
            end = time.monotonic() + 4.0  # twice its timeout
            while time.monotonic() < end:
                for queue in queues[1:]:
                    done = queue.counts().completed
                    queue.enqueue(b"x")
                    until(
                        lambda queue=queue, done=done: queue.counts().completed > done,
                        "a worker that goes on",
                    )
                    assert [
                        one.alive
                        for one in queue.admin.workers()
                        if not one.name.startswith("queue-")
                    ] == [True]
                time.sleep(0.05)
            with (
                Queue(lost, url=cluster.url, timeout=0.5) as queue,
                pytest.raises((redis.TimeoutError, redis.ConnectionError)),
            ):
                queue.enqueue(b"x")
        finally:
            frozen.wake()
            cluster.settled()
        done = queues[0].counts().completed
        queues[0].enqueue(b"x")
        until(lambda: queues[0].counts().completed > done, "work on the one that woke")
    for queue in queues:
        queue.close()


@pytest.mark.slow
def test_a_dead_master_is_no_others_concern(kind: str) -> None:
    """A worker serves queues on three masters, and one dies for good. It stays alive and works on
    the others."""
    with Cluster(binaries()[0], extra=["--cluster-require-full-coverage", "no"]) as cluster:
        lost, *alive = cluster.groups()
        worker = Running(kind, url=cluster.url, heartbeat=0.4, timeout=2.0)
        for name in (lost, *alive):
            worker.handler(name)(lambda _job: None)
        queues = [Queue(name, url=cluster.url) for name in alive]
        with worker:
            until(
                lambda: all(any(one.alive for one in queue.admin.workers()) for queue in queues),
                "a worker everywhere",
            )
            dead = cluster.owner(lost)
            dead.kill()
            end = time.monotonic() + 4.0  # twice its timeout
            while time.monotonic() < end:
                for queue in queues:
                    done = queue.counts().completed
                    queue.enqueue(b"x")
                    until(
                        lambda queue=queue, done=done: queue.counts().completed > done,
                        "a worker that goes on",
                    )
                    assert [
                        one.alive
                        for one in queue.admin.workers()
                        if not one.name.startswith("queue-")
                    ] == [True]
                time.sleep(0.05)
            end = time.monotonic()
        assert time.monotonic() - end < 20  # it does not wait for the dead one
        assert not [
            one
            for queue in queues
            for one in queue.admin.workers()
            if not one.name.startswith("queue-")
        ]  # it left
        for queue in queues:
            queue.close()


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bug(mutant: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of these tests finds the bug."""
    bug = MUTANTS[mutant]
    plant(monkeypatch, bug.module, bug.old, bug.new)
    # seconds to wait for a condition that never holds
    monkeypatch.setattr(until, "__defaults__", ("", 3.0))
    with Connect("sync", cluster) as connect, pytest.raises((AssertionError, redis.RedisError)):
        check(globals()[bug.found_by], {"connect": connect, "cluster": cluster, "kind": "threads"})
