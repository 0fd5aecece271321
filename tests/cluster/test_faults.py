"""Clusters that change while work goes on: slots move, masters die, connections are cut. Nothing is lost or doubled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from headrace import Queue
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from headrace._sync.cluster import executor_of
from tests.cluster.load import Load
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import Running
from tests.support.servers import binaries

KINDS = ["threads", "tasks"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The engine of the worker."""
    return str(request.param)


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    """Three masters, and a replica of each."""
    with Cluster(binaries()[0], replicas=1) as cluster:
        yield cluster


def others(cluster: Cluster, name: str) -> list[int]:
    owner = cluster.owner(name)
    return [i for i, node in enumerate(cluster.masters) if node is not owner]


def test_slots_move_under_work(cluster: Cluster, kind: str) -> None:
    """Key by key, back and forth: MOVED, ASK and TRYAGAIN, and blocked reads whose stream goes away."""
    names = cluster.groups()
    with Load(cluster.url, names, kind) as load:
        load.goes_on(20)
        for i in range(6):
            name = names[i % 3]
            cluster.migrate(name, cluster.masters[others(cluster, name)[0]])
            load.goes_on(20)


def test_a_call_waits_while_its_slot_is_open(connect: Connect, cluster: Cluster) -> None:
    """Half of the keys are here, half there: the call goes on when the slot is closed, and has acted once."""
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

    cluster.migrate(name, cluster.masters[others(cluster, name)[0]], pause=call)
    made[0].join()
    counts = queue.counts()
    assert (counts.waiting, counts.delayed, counts.enqueued) == (11, 1, 12)


def test_a_record_moves_with_its_slot(cluster: Cluster) -> None:
    """The same call, sent again to the node that has taken the slot over, is answered and does nothing."""
    name = cluster.groups()[0]
    ops = Ops(Keys.of(name))
    executor = executor_of(cluster.url)
    op = ops.enqueue([b"x"])
    lane = executor._lane(op)
    try:
        (first,) = executor.run_all([op], lanes=[lane])
        cluster.migrate(name, cluster.masters[others(cluster, name)[0]])
        (again,) = executor.run_all([op], lanes=[lane])
        assert again == first
        assert executor.run(ops.counts()).enqueued == 1
    finally:
        executor.close()


def test_a_result_is_told_by_the_node_that_has_the_slot_now(cluster: Cluster) -> None:
    name = cluster.groups()[0]
    with Queue(name, url=cluster.url) as queue:
        receipt = queue.enqueue(b"x")
        found: list[object] = []
        waits = threading.Thread(target=lambda: found.append(queue.result(receipt.id, timeout=30)))
        waits.start()
        cluster.migrate(name, cluster.masters[others(cluster, name)[0]])
        worker = Running("threads", url=cluster.url)
        worker.handler(name)(lambda job: job.payload.upper())
        with worker:
            waits.join(30)
    assert found == [b"X"]


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


def test_a_master_is_killed(replicated: Cluster, kind: str) -> None:
    """Its replica has everything: calls under way are sent to that, under their numbers. The other two don't wait."""
    names = replicated.groups()
    with Load(replicated.url, names, kind) as load:
        load.goes_on(20)
        master = replicated.owner(names[0])
        replica = replicated.replica_of(master)
        master.ask("CLIENT", "PAUSE", 10_000, "WRITE")  # so that what it has acknowledged is with its replica
        offset = master.info("INFO", "replication")["master_repl_offset"]
        until(lambda: int(replica.info("INFO", "replication")["slave_repl_offset"]) >= int(offset), "a replica in step")
        master.kill()
        until(lambda: replicated.owner(names[0]) is replica, "another master")
        load.goes_on(20)


def test_a_dead_master_is_no_others_concern(kind: str) -> None:
    """A worker of queues on three masters, of which one dies for good: on the others it stays alive, and works."""
    with Cluster(binaries()[0], extra=["--cluster-require-full-coverage", "no"]) as cluster:
        lost, *alive = cluster.groups()
        worker = Running(kind, url=cluster.url, heartbeat=0.5, timeout=2.0)
        for name in (lost, *alive):
            worker.handler(name)(lambda _job: None)
        queues = [Queue(name, url=cluster.url) for name in alive]
        with worker:
            until(lambda: all(any(one.alive for one in queue.workers()) for queue in queues), "a worker everywhere")
            dead = cluster.owner(lost)
            dead.kill()
            end = time.monotonic() + 4.0  # twice its timeout
            while time.monotonic() < end:
                for queue in queues:
                    done = queue.counts().completed
                    queue.enqueue(b"x")
                    until(lambda queue=queue, done=done: queue.counts().completed > done, "a worker that goes on")
                    assert [one.alive for one in queue.workers() if not one.name.startswith("queue-")] == [True]
        assert not [one for queue in queues for one in queue.workers() if not one.name.startswith("queue-")]  # it left
        for queue in queues:
            queue.close()
