"""Sharded queues on three masters. They are spread evenly, and a master that is gone stops only its
own shards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from redis import exceptions as errors

from headrace import FanOut, Flow, NewJob, Queue
from headrace._model.shards import Table
from headrace._net.base.cluster import slot_of
from headrace._net.base.pool import TRIPS
from headrace._protocol.keys import Keys
from tests.cluster.mutants import SHARDS
from tests.cluster.test_queues import tour
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import KINDS, Running
from tests.support.planted import check, plant
from tests.support.servers import binaries
from tests.support.steps import listening

pytestmark = pytest.mark.ci


def shards_of(cluster: Cluster, node: Any, table: Table) -> set[int]:
    """Return the numbers of the shards that a node serves."""
    slots = {part.number: slot_of(Keys.of(table.group).at(part).prefix) for part in table.shards}
    owners = cluster.slots()
    return {number for number, slot in slots.items() if owners[slot] is node}


@pytest.mark.parametrize("shards", [1, 6, 12])
def test_a_queue_on_all_masters(connect: Connect, cluster: Cluster, shards: int) -> None:
    queue = connect("q", shards=shards)
    queue.enqueue_many([b"%d" % n for n in range(3_000)])
    receipts = queue.enqueue_many([NewJob(b"k%d" % n, key=f"k{n}") for n in range(300)])
    assert queue.find(receipts[7].id).job.payload == b"k7"
    assert queue.counts().waiting == 3_300
    if shards > 1:
        nodes = Counter(shard.node for shard in queue.admin.shards())
        assert nodes == {f"127.0.0.1:{node.port}": shards // 3 for node in cluster.nodes}
        assert all(shard.counts.waiting for shard in queue.admin.shards()[:6])
    found: list[bytes] = []
    while leases := queue.lease_many(300):
        assert all(queue.complete_many(leases))
        found += [lease.job.payload for lease in leases]
    assert sorted(found) == sorted(
        [b"%d" % n for n in range(3_000)] + [b"k%d" % n for n in range(300)]
    )
    counts = queue.counts()
    assert (counts.completed, counts.present, counts.lost) == (3_300, 0, 0)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_the_beats_of_many_shards_take_few_connections(cluster: Cluster, kind: str) -> None:
    worker: Any = Running(kind, url=cluster.url)

    @worker.handler("q", shards=12)
    def work(_job: Any) -> None: ...

    with Queue("q", url=cluster.url, shards=12) as queue, worker:
        until(lambda: len(queue.admin.workers()) == 12)
        links = worker.worker._running.executors["pulse"]._links
        opened = [len(link.connections._all) for link in links.values()]
    assert len(opened) == len(cluster.masters)
    assert max(opened) <= TRIPS + 1  # the map of the cluster may be asked for at the same time


def test_the_tour_of_a_queue(connect: Connect) -> None:
    """All features work with shards. There is one registration in each shard."""
    queue = connect("q", shards=1)
    tour(queue)
    sharded = connect("s", shards=6)
    first = sharded.enqueue(b"first", id="one")
    assert not sharded.enqueue(b"again", id="one").added
    lease = sharded.lease(block=5)
    assert lease.complete(b"result")
    assert sharded.result(first.id) == first.result(timeout=5) == b"result"
    assert sharded.admin.schedule("often", b"x", every=0.1)
    assert sharded.lease(block=20).job.id.startswith("often@")
    assert sharded.admin.unschedule("often")
    assert sharded.admin.pause()
    assert sharded.admin.paused()
    assert sharded.admin.resume()
    sharded.admin.delete()


@contextmanager
def producing(url: str, keys: Mapping[int, str]) -> Iterator[Callable[[], int]]:
    """Enqueue jobs to each shard in turn with counting ids. Yield a function that returns the last
    number."""
    stop, n = threading.Event(), 0

    def produce() -> None:
        nonlocal n
        with Queue("q", url=url, shards=len(keys)) as queue:
            while not stop.wait(0.01):
                for number, key in keys.items():
                    queue.enqueue(b"x", id=f"s{number}.{n}", key=key)
                n += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield lambda: n
    finally:
        stop.set()
        thread.join()


def test_events_of_all_masters(connect: Connect, cluster: Cluster) -> None:
    """There is a connection to each master. A slot that moves is followed, and events of the others
    are not missed."""
    queue, table = connect("q", shards=6), Table.of("q", 6)
    tag = table.shards[0].tag("q")
    keys = {table.shard_of(f"k{n}"): f"k{n}" for n in range(100)}
    home, heard, moved = cluster.owner(tag), dict[int, list[int]](), 0

    def hear() -> bool:
        number, _, n = told(1)[0].id[1:].partition(".")
        heard.setdefault(int(number), []).append(int(n))
        return bool(heard.get(0)) and heard[0][-1] > moved

    with listening(queue, "added") as told:
        assert [
            len(node.ask("CLIENT", "LIST", "TYPE", "pubsub").splitlines()) for node in cluster.nodes
        ] == [1, 1, 1]
        with producing(cluster.url, keys) as produced:
            until(hear, "a first one")
            cluster.migrate(tag, cluster.other(tag))
            try:
                moved = produced()
                until(hear, "one that was enqueued at the other node")
            finally:
                cluster.migrate(tag, home)
    strayed = heard.pop(0)
    assert strayed == sorted(strayed)
    assert all(some == [*range(len(some))] for some in heard.values())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_worker_of_all_masters(cluster: Cluster, kind: str) -> None:
    worker, done = Running(kind, url=cluster.url), Counter[bytes]()

    @worker.handler("q", shards=12, concurrency=20)
    def work(job: Any) -> None:
        done[job.payload] += 1

    with Queue("q", url=cluster.url, shards=12) as queue, worker:
        queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(1_200)])
        assert queue.admin.drain(60)
        assert queue.enqueue(b"last").result(timeout=20) is None
    assert done == {b"%d" % n: 1 for n in range(1_200)} | {b"last": 1}


@pytest.mark.slow
def test_a_dead_master_stops_its_own_shards_only(dying: Cluster, kind: str) -> None:
    """A worker with one slot goes on, because a call to a dead node does not keep the slot."""
    table = Table.of("q", 6)
    worker = Running(kind, url=dying.url, heartbeat=0.5, timeout=2.0)
    worker.handler("q", shards=6, concurrency=1)(lambda _job: None)
    dead = dying.masters[0]
    gone = shards_of(dying, dead, table)
    living = [f"k{n}" for n in range(60) if table.shard_of(f"k{n}") not in gone]
    with Queue("q", url=dying.url, shards=6, timeout=5) as queue:
        with worker:
            assert queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(60)])
            assert queue.admin.drain(30)
            dead.kill()
            for key in living:
                receipt = queue.enqueue(b"x", key=key)
                until(
                    lambda key=key, name=receipt.id: queue.find(name, key=key) is None,
                    "a worker that goes on",
                )
        alive = [part for part in table.shards if part.number not in gone]
        assert {part.number for part in alive} == {table.shard_of(key) for key in living}


@pytest.fixture
def dying() -> Iterator[Cluster]:
    """Three masters, one of which a test kills."""
    with Cluster(binaries()[0], extra=["--cluster-require-full-coverage", "no"]) as cluster:
        yield cluster


@pytest.mark.slow
def test_anonymous_jobs_go_round_a_dead_master(colour: str, dying: Cluster) -> None:
    connect = Connect(colour, dying)
    queue = connect("q", shards=6, timeout=1.5)
    queue.enqueue_many([b"before"] * 6_000)
    table, dead = Table.of("q", 6), dying.masters[0]
    gone = shards_of(dying, dead, table)
    assert len(gone) == 2
    dead.kill()
    added, failed = 0, 0
    for _ in range(60):  # the calls that meet it first fail; then it is known
        try:
            assert int(queue.enqueue(b"x").id.partition("@")[2]) not in gone
            added += 1
        except (errors.ConnectionError, errors.TimeoutError, errors.ClusterDownError):
            failed += 1
    assert added >= 55
    assert failed <= 5
    living = next(f"k{n}" for n in range(99) if table.shard_of(f"k{n}") not in gone)
    lost = next(f"k{n}" for n in range(99) if table.shard_of(f"k{n}") in gone)
    with pytest.raises(
        (errors.ConnectionError, errors.TimeoutError, errors.ClusterDownError)
    ) as raised:
        queue.enqueue_many(
            [NewJob(b"a", key=living), NewJob(b"b", key=lost), NewJob(b"c", key=living)]
        )
    receipts: Any = raised.value.receipts  # type: ignore[union-attr]
    assert [receipt is not None for receipt in receipts] == [True, False, True]
    assert queue.find(receipts[2].id).job.payload == b"c"
    connect.close()


def test_what_may_have_arrived_goes_nowhere_else(cluster: Cluster) -> None:
    """A frozen master runs its commands when it wakes. The failed call is not sent to another
    node."""
    frozen = cluster.masters[1]
    gone = shards_of(cluster, frozen, Table.of("q", 6))
    with Queue("q", url=cluster.url, shards=6, timeout=0.5) as queue:
        queue.enqueue_many([b"x"] * 6_000)
        calls, failed = 0, 0
        frozen.suspend()
        try:
            while not failed and calls < 12:
                calls += 1
                try:
                    queue.enqueue_many([b"y"])
                except (errors.ConnectionError, errors.TimeoutError):
                    failed += 1
        finally:
            frozen.wake()
        cluster.settled()
        until(
            lambda: (
                sum(shard.counts.waiting for shard in queue.admin.shards() if shard.number in gone)
                > 2_000
            ),
            "the call",
        )
        assert queue.counts().enqueued == 6_000 + calls
    assert failed == 1


@pytest.mark.slow
def test_a_master_is_replaced_under_a_worker(kind: str) -> None:
    """Jobs with and without ids complete once while a master is killed and its replica takes
    over."""
    with Cluster(binaries()[0], replicas=1) as cluster:
        worker, done = Running(kind, url=cluster.url, heartbeat=0.5, timeout=4.0), Counter[bytes]()

        @worker.handler("q", shards=6, concurrency=10)
        def work(job: Any) -> None:
            done[job.payload] += 1

        with Queue("q", url=cluster.url, shards=6) as queue, worker:
            payloads = [b"%d" % n for n in range(3_000)]
            queue.enqueue_many(payloads[:1_000])
            until(lambda: sum(done.values()) >= 200, "a worker at work")
            master = cluster.masters[0]
            master.hand_over(cluster.replica_of(master))
            master.kill()
            queue.enqueue_many([NewJob(one, key=f"k{one!r}") for one in payloads[1_000:2_000]])
            for one in payloads[2_000:2_500]:
                queue.enqueue(one)
            queue.enqueue_many([NewJob(one, id=f"i{one!r}") for one in payloads[2_500:]])
            assert queue.admin.drain(60)
            counts = queue.counts()
            assert (counts.enqueued, counts.completed, counts.lost) == (3_000, 3_000, 0)
        assert done.keys() == set(payloads)


def test_a_flow_on_all_masters(cluster: Cluster, kind: str) -> None:
    """Its runs are spread, and each is in the shard of its id."""
    flow = Flow("shop", url=cluster.url, shards=6)
    worker = Running(kind, url=cluster.url)
    flow.stage("pick", next="bill", children="pack")(
        worker._adapt(lambda _job: FanOut([b"1", b"2"], stage="pack", join="bill"))
    )
    flow.stage("pack")(worker._adapt(lambda job: job.payload * 2))
    flow.stage("bill")(worker._adapt(lambda job: b",".join(sorted(job.children.values()))))
    worker.worker.flow(flow)
    with worker:
        runs = [flow.start(b"order", id=f"o{n}").id for n in range(60)]
        assert {flow.result(one, timeout=60) for one in runs} == {b"11,22"}
    with Queue("shop/pack", url=cluster.url, shards=6) as queue:
        assert Counter(shard.node for shard in queue.admin.shards()) == {
            f"127.0.0.1:{node.port}": 2 for node in cluster.nodes
        }
        assert all(shard.counts.completed for shard in queue.admin.shards())
        assert (queue.counts().completed, queue.counts().lost) == (120, 0)
    flow.close()


def test_the_number_of_shards_changes_under_work(cluster: Cluster, kind: str) -> None:
    """The number goes from four to eight and back on three masters. Producers know the old table.
    Each job runs once.
    """
    worker, done, enough = Running(kind, url=cluster.url), Counter[bytes](), threading.Event()

    @worker.handler("q", shards=4, concurrency=10)
    def work(job: Any) -> None:
        done[job.payload] += 1

    added: list[bytes] = []
    errors_: list[BaseException] = []

    def produce() -> None:
        try:
            with Queue("q", url=cluster.url, shards=4) as queue:
                while not enough.is_set():
                    some = [b"%d" % (len(added) + n) for n in range(6)]
                    queue.enqueue_many(
                        [some[0], some[1], *(NewJob(one, key=f"k{one!r}") for one in some[2:5])]
                    )
                    queue.enqueue(some[5], id=some[5].decode())
                    added.extend(some)
                    enough.wait(0.005)
        except BaseException as error:
            errors_.append(error)

    producer = threading.Thread(target=produce)
    with Queue("q", url=cluster.url, shards=4) as queue, worker:
        producer.start()
        for shards in (8, 4):
            before = len(added)
            assert queue.admin.reshard(shards).shards == shards
            until(
                lambda before=before: errors_ or len(added) >= before + 120,
                "a producer that goes on",
            )
        enough.set()
        producer.join()
        assert not errors_
        assert queue.admin.drain(60)
        assert queue.admin.reshard().draining == 12  # for ten minutes
        counts = queue.counts()
        assert (counts.enqueued, counts.completed, counts.lost) == (len(added), len(added), 0)
        opened = [shard for shard in queue.admin.shards() if shard.state == "open"]
        assert len(opened) == 4
        assert len({shard.node for shard in opened}) == 3
    assert done == dict.fromkeys(added, 1)


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", SHARDS)
def test_planted_bug(mutant: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of these tests finds the bug."""
    bug = SHARDS[mutant]
    plant(monkeypatch, bug.module, bug.old, bug.new)
    # seconds to wait for a condition that never holds
    monkeypatch.setattr(until, "__defaults__", ("", 3.0))
    given = {"cluster": cluster, "kind": "threads"}
    with pytest.raises(AssertionError):
        check(globals()[bug.found_by], given)
