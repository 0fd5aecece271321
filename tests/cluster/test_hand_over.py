"""Follow-ups that go from master to master, while masters are away or are replaced, and replicas
lag."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import NewJob, Queue
from headrace._model.shards import Table
from headrace._protocol import admin_ops
from tests.cluster.mutants import HAND_OVER
from tests.cluster.test_durable import Pair
from tests.cluster.test_shards import shards_of
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import KINDS, Running
from tests.support.planted import plant
from tests.support.servers import binaries

pytestmark = pytest.mark.ci

SHARDS = 6
TABLE = Table.of("q", SHARDS)
KEYS = [f"k{n}" for n in range(60)]


def test_to_all_masters(connect: Connect, cluster: Cluster) -> None:
    queue, after = connect("q/a", shards=SHARDS), connect("q/b", shards=SHARDS)
    for n in range(12):
        queue.enqueue(b"x", key=f"first{n}")
    while lease := queue.lease():
        if lease.job.payload != b"x":
            assert lease.complete()
            continue
        then = [NewJob(b"y", key=key, queue="q/b" if n % 2 else None) for n, key in enumerate(KEYS)]
        assert lease.complete(b"done", then=then)
    counts = queue.counts()
    assert (counts.enqueued, counts.completed, counts.present, counts.lost) == (
        12 + 12 * 30,
        12 + 12 * 30,
        0,
        0,
    )
    assert after.counts().waiting == 12 * 30
    assert {shard.counts.handing for shard in queue.admin.shards()} == {0}
    assert {TABLE.shard_of(key) for key in KEYS} == {
        shard.number for shard in after.admin.shards() if shard.counts.waiting
    }
    assert all(master.ask("DBSIZE") for master in cluster.masters)


@pytest.fixture
def dying() -> Iterator[Cluster]:
    """Three masters, one of which a test stops."""
    with Cluster(binaries()[0], extra=["--cluster-require-full-coverage", "no"]) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_master_that_is_away_holds_up_no_others(dying: Cluster, kind: str) -> None:
    """Follow-ups for it wait in outboxes and arrive once when it is back."""
    away = dying.masters[1]
    gone = shards_of(dying, away, TABLE)
    here = next(key for key in KEYS if TABLE.shard_of(key) not in gone)
    living = [key for key in KEYS if TABLE.shard_of(key) not in gone]
    done: Counter[str] = Counter()
    worker = Running(kind, url=dying.url, heartbeat=0.5, timeout=4.0)
    worker.handler("q/b", shards=SHARDS, concurrency=4)(lambda job: done.update([job.key]))
    other = Running(kind, url=dying.url, heartbeat=0.5, timeout=4.0)
    other.handler("q/a", shards=SHARDS)(lambda _job: None)  # it sends what others left
    with Queue("q/a", url=dying.url, shards=SHARDS, timeout=2.0) as queue, worker, other:
        ops = queue._verbs.map.of(here)  # type: ignore[union-attr]
        assert queue.admin.drain(20)
        queue.admin.pause()
        queue.enqueue(b"x", key=here)
        away.suspend()
        try:
            queue._executor.run(admin_ops.pause(ops, False))
            claims: list[Any] = []
            while not claims:
                queue._executor.run(ops.enqueue([ops.item(NewJob(b"x", key=here))]))
                grant = queue._executor.run(ops.lease("mine", 1, ttl=60.0))
                claims = list(grant.claims) if grant else []
            then = [NewJob(b"y", key=key, queue="q/b") for key in KEYS]
            assert queue._executor.run(ops.complete(claims, then=then)) == [True]
            until(lambda: all(done[key] for key in living), "those whose master is there")
        finally:
            away.wake()
        until(lambda: all(done[key] for key in KEYS), "those whose master was away")
        until(lambda: queue.counts().handing == 0, "empty outboxes")
    assert done == dict.fromkeys(KEYS, 1)


@pytest.mark.slow
def test_a_master_is_replaced_under_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job of a chain follows the one before in another shard. Each completes once."""
    # the new master has no replica to wait for
    monkeypatch.setattr("headrace._core.shards.transfer.ALONE_S", 2.0)
    chains, steps = 60, 5
    won: Counter[bytes] = Counter()
    with Cluster(binaries()[0], replicas=1) as cluster:
        enough = threading.Event()
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with Queue("q", url=cluster.url, shards=SHARDS) as queue:
                    while not enough.is_set():
                        for lease in queue.lease_many(5, block=0.2):
                            chain, _, step = lease.job.payload.partition(b" ")
                            number = int(step) + 1
                            then = (
                                [NewJob(b"%s %d" % (chain, number), key=f"{chain!r}{number}")]
                                if number < steps
                                else []
                            )
                            if lease.complete(then=then):
                                won[lease.job.payload] += 1
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        with Queue("q", url=cluster.url, shards=SHARDS) as queue:
            queue.enqueue_many([NewJob(b"%d 0" % n, key=f"start{n}") for n in range(chains)])
            for thread in threads:
                thread.start()
            until(lambda: sum(won.values()) > chains, "chains under way")
            master = cluster.masters[0]
            master.hand_over(cluster.replica_of(master))
            master.kill()
            until(
                lambda: sum(won.values()) >= chains * steps or errors, "the ends of all chains", 120
            )
            assert not errors
            assert queue.admin.drain(60)
            counts = queue.counts()
            enough.set()
            for thread in threads:
                thread.join()
        assert (counts.completed, counts.lost, counts.handing) == (chains * steps, 0, 0)
    assert won == {b"%d %d" % (n, step): 1 for n in range(chains) for step in range(steps)}


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary and its replica, of the newest server."""
    with Pair(binaries()[0]) as pair:
        yield pair


def between_shards(colour: str, pair: Pair) -> tuple[Connect, Any, str]:
    """Return a queue with a job of one shard, and a key of another shard."""
    pair.primary.ask("FLUSHALL")
    connect = Connect(colour, pair)
    queue = connect("q", shards=3)
    table = Table.of("q", 3)
    far = next(key for key in KEYS if table.shard_of(key) != table.shard_of("k"))
    queue.enqueue(b"x", key="k")
    return connect, queue, far


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_leaves_the_outbox_when_a_replica_has_it(
    colour: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace._protocol.durability.WAIT_MS", 50)
    connect, queue, far = between_shards(colour, pair)
    pair.replica.suspend()
    try:
        assert queue.lease().complete(then=[NewJob(b"y", key=far)])
        counts = queue.counts()
        # it is there already, but on the primary only
        assert (counts.waiting, counts.handing) == (1, 1)
        assert queue.lease().complete()
        assert queue.counts().handing == 1
    finally:
        pair.replica.wake()
    pair.in_step()
    until(lambda: queue.lease() is None and queue.counts().handing == 0, "an empty outbox")
    counts = queue.counts()
    assert (counts.completed, counts.present, counts.lost) == (2, 0, 0)
    connect.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_replica_that_is_away_is_waited_for(
    colour: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica may take over without the latest writes. The wait is bounded, because there may
    be no replica any more.
    """
    connect, queue, far = between_shards(colour, pair)
    pair.replica.suspend()
    pair.primary.ask("CLIENT", "KILL", "TYPE", "replica")
    try:
        until(
            lambda: pair.primary.info("INFO", "replication")["connected_slaves"] == "0",
            "a primary without replica",
        )
        assert queue.lease().complete(then=[NewJob(b"y", key=far)])
        assert (queue.counts().waiting, queue.counts().handing) == (1, 1)
        monkeypatch.setattr("headrace._core.shards.transfer.ALONE_S", 0.0)
        assert queue.lease(block=20).complete()
        until(lambda: queue.lease() is None and queue.counts().handing == 0, "an empty outbox")
    finally:
        pair.replica.wake()
    pair.in_step()
    connect.close()


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", HAND_OVER)
def test_planted_bug(mutant: str, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of these tests finds the bug."""
    bug = HAND_OVER[mutant]
    plant(monkeypatch, bug.module, bug.old, bug.new)
    with pytest.raises(AssertionError):
        globals()[bug.found_by]("sync", pair, monkeypatch)
