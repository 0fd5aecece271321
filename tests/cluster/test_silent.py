"""One of three masters is frozen. It neither answers nor closes connections. The shards of the
others do not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pytest
from redis import exceptions as errors

from headrace import NewJob, Queue
from headrace._model.shards import Table
from tests.cluster.test_shards import shards_of
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import KINDS, Running
from tests.support.servers import Server

SHARDS = 6
TABLE = Table.of("q", SHARDS)
TIMEOUT_S = 2.0
# seconds in which a node that has woken is asked again: sooner than it would be without a probe
BACK_S = 5.0
KEYS = [f"k{n}" for n in range(60)]

pytestmark = [pytest.mark.ci, pytest.mark.slow]


@pytest.fixture(params=["table", "shards"])
def victim(cluster: Cluster, request: pytest.FixtureRequest) -> Server:
    """Return the master to freeze. It has the table, or only shards."""
    home = cluster.owner("q")
    return (
        home
        if request.param == "table"
        else next(node for node in cluster.masters if node is not home)
    )


@contextmanager
def silence(cluster: Cluster, node: Server) -> Iterator[None]:
    """Freeze a node for a while."""
    node.suspend()
    try:
        yield
    finally:
        node.wake()
        cluster.until(_takes_all_for_living, "nodes that know that it lives")


def _takes_all_for_living(node: Server) -> bool:
    known = node.info("CLUSTER", "INFO")
    return (known["cluster_state"], known["cluster_slots_ok"]) == (
        "ok",
        known["cluster_slots_assigned"],
    )


def took(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and its answer or error."""
    start = time.monotonic()
    try:
        answer = call()
    except (errors.RedisError, OSError) as error:
        answer = error
    return time.monotonic() - start, answer


def parted(cluster: Cluster, node: Server) -> tuple[list[str], list[str]]:
    """Return the keys whose shards a node serves, and the others."""
    gone = shards_of(cluster, node, TABLE)
    there = {key: TABLE.shard_of(key) in gone for key in KEYS}
    return [key for key in KEYS if there[key]], [key for key in KEYS if not there[key]]


def test_leases_go_round_it(connect: Connect, cluster: Cluster, victim: Server) -> None:
    """One call finds the silent node well within its time, and the others know. The node is used
    again once it answers.
    """
    lost, living = parted(cluster, victim)
    queue = connect("q", shards=SHARDS, timeout=TIMEOUT_S)
    queue.enqueue_many([NewJob(key.encode(), key=key) for key in KEYS])
    assert queue.lease().release()
    with silence(cluster, victim):
        calls = [took(queue.lease) for _ in living]
        leases = [lease for _, lease in calls]
        assert {lease.job.key for lease in leases} == set(living)
        seconds = [seconds for seconds, _ in calls]
        assert max(seconds) < TIMEOUT_S / 2
        assert median(seconds) < TIMEOUT_S / 8
        assert took(queue.lease)[1] is None
        seconds, lease = took(lambda: queue.lease(block=0.2))
        assert (lease, seconds < TIMEOUT_S) == (None, True)
        assert all(lease.complete() for lease in leases)
    left: list[Any] = []
    until(
        lambda: left.extend(queue.lease_many(len(lost))) or len(left) == len(lost),
        "its jobs",
        BACK_S,
    )
    assert {lease.job.key for lease in left} == set(lost)
    assert all(queue.complete_many(left))
    counts = queue.counts()
    assert (counts.completed, counts.present) == (len(KEYS), 0)


def test_a_wait_for_jobs_goes_round_it(connect: Connect, cluster: Cluster, victim: Server) -> None:
    lost, living = parted(cluster, victim)
    queue = connect("q", shards=SHARDS, timeout=TIMEOUT_S)
    producer = connect("q", shards=SHARDS, timeout=TIMEOUT_S)
    queue.lease()
    producer.enqueue(b"x", key=lost[0])
    with silence(cluster, victim):
        assert queue.lease(block=0.1) is None
        producer.enqueue(b"y", key=living[0])
        seconds, lease = took(lambda: queue.lease(block=30))
        assert (lease.job.payload, seconds < TIMEOUT_S / 2) == (b"y", True)


def test_an_interrupted_lease_keeps_no_job(
    connect: Connect, cluster: Cluster, victim: Server
) -> None:
    """A call that the node received before it froze runs when it wakes. Its jobs are not leased for
    long."""
    lost, _ = parted(cluster, victim)
    queue = connect("q", shards=SHARDS, timeout=TIMEOUT_S, lease=3_600)
    assert queue.lease_many(10) == []  # it has looked after all shards just now
    queue.enqueue_many([NewJob(key.encode(), key=key) for key in lost])
    for leaser in queue._leaser.leasers():
        leaser.tidy_at = float("inf")  # the first call that it gets is the one that leases
    queue._leaser._looked = queue._leaser._look_at = float("inf")
    with silence(cluster, victim):
        assert queue.lease_many(len(KEYS)) == []
    left: list[Any] = []
    until(
        lambda: left.extend(queue.lease_many(len(KEYS))) or len(left) == len(lost),
        "its jobs",
        BACK_S,
    )
    assert {lease.job.key for lease in left} == set(lost)
    assert {lease.job.attempt for lease in left} == {1}


def test_follow_ups_go_round_it(connect: Connect, cluster: Cluster, victim: Server) -> None:
    """Follow-ups for its shards wait in their outbox, and do not delay others."""
    lost, living = parted(cluster, victim)
    queue = connect("q", shards=SHARDS, timeout=TIMEOUT_S)
    queue.enqueue_many([NewJob(b"x", key=key) for key in living[:3]])
    leases = queue.lease_many(3)
    with silence(cluster, victim):
        for place, lease in enumerate(leases):
            seconds, won = took(
                lambda lease=lease: queue.complete(
                    lease, then=[NewJob(b"a", key=lost[0]), NewJob(b"b", key=living[9])]
                )
            )
            assert (won, seconds < (0.5 if place else TIMEOUT_S + 0.5)) == (True, True)
        there = queue.lease_many(9)
        assert [lease.job.payload for lease in there] == [b"b"] * 3
        assert all(queue.complete_many(there))
    left: list[Any] = []
    until(lambda: left.extend(queue.lease_many(9)) or len(left) == 3, "its follow-ups", BACK_S)
    assert [lease.job.payload for lease in left] == [b"a"] * 3
    assert queue.counts().handing == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_goes_round_it(kind: str, cluster: Cluster, victim: Server) -> None:
    """Handlers and hand-overs go on, whatever had begun before the node froze."""
    lost, living = parted(cluster, victim)
    worker, done = Running(kind, url=cluster.url, heartbeat=0.5, timeout=4.0), list[str]()

    @worker.handler("q", shards=SHARDS, concurrency=10)
    def work(job: Any) -> None:
        done.append(job.key)

    with Queue("q", url=cluster.url, shards=SHARDS, timeout=TIMEOUT_S) as queue, worker:
        queue.enqueue_many([NewJob(b"x", key=key) for key in KEYS])
        until(lambda: len(done) == len(KEYS), "a worker at work")
        with silence(cluster, victim):
            for key in living:
                queue.enqueue(b"y", key=key)
            until(lambda: len(done) == len(KEYS) + len(living), "work on the others")
        queue.enqueue_many([NewJob(b"z", key=key) for key in lost])
        until(lambda: len(done) == 2 * len(KEYS), "work on the one that woke", BACK_S)
        assert queue.admin.drain(30)


def test_when_all_are_silent(connect: Connect, cluster: Cluster) -> None:
    """The call raises an error, because no queue is known to be empty."""
    queue = connect("q", shards=SHARDS, timeout=TIMEOUT_S)
    queue.enqueue_many([NewJob(key.encode(), key=key) for key in KEYS])
    queue.lease().release()
    first, second, third = cluster.masters
    with silence(cluster, first), silence(cluster, second), silence(cluster, third):
        for _ in range(2):
            seconds, error = took(queue.lease)
            assert isinstance(error, errors.TimeoutError)
            assert seconds < 2 * TIMEOUT_S
    until(lambda: queue.lease() is not None, "a job again", BACK_S)


def test_counts_and_listings_say_which_one_it_is(
    connect: Connect, cluster: Cluster, victim: Server
) -> None:
    """Counts and listings must be complete. All nodes are asked at once, and the error names the
    silent one."""
    queue = connect("q", shards=SHARDS, timeout=TIMEOUT_S)
    queue.enqueue_many([NewJob(key.encode(), key=key) for key in KEYS])
    with silence(cluster, victim):
        for call in (queue.counts, lambda: list(queue.admin.waiting()), queue.admin.workers):
            seconds, error = took(call)
            assert isinstance(error, errors.TimeoutError)
            assert f"127.0.0.1:{victim.port}" in str(error)
            assert seconds < TIMEOUT_S + 0.5
    assert queue.counts().waiting == len(list(queue.admin.waiting())) == len(KEYS)


def test_first_calls_of_a_client(colour: str, cluster: Cluster) -> None:
    """The client knows nothing yet but can read the table. Its calls to live masters do not
    wait."""
    victim = next(node for node in cluster.masters if node is not cluster.owner("q"))
    lost, living = parted(cluster, victim)
    with Connect(colour, cluster) as warm:
        warm("q", shards=SHARDS).enqueue_many([NewJob(key.encode(), key=key) for key in KEYS])
    with silence(cluster, victim), Connect(colour, cluster) as connect:
        queue = connect("q", shards=SHARDS, timeout=TIMEOUT_S)
        seconds, receipt = took(lambda: queue.enqueue(b"x", key=living[0]))
        assert (receipt.added, seconds < 1.0) == (True, True)
        assert took(lambda: queue.enqueue(b"x", key=living[1]))[0] < 0.5
        seconds, lease = took(queue.lease)
        assert (lease.job.key in living, seconds < TIMEOUT_S / 2) == (True, True)
        seconds, error = took(lambda: queue.enqueue(b"x", key=lost[0]))
        assert (type(error), seconds < TIMEOUT_S + 0.5) == (errors.TimeoutError, True)
