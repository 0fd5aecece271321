"""Sharded queues with terms. Each shard is fair, limits hold as documented, and shares are sums."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace import Limit, NewJob, Queue, Worker
from tests.support.awaiting import until
from tests.support.servers import Server


def of(tenant: str, number: int, **more: Any) -> list[NewJob[bytes]]:
    """Make jobs of a tenant."""
    return [NewJob(b"x", headers={"tenant": tenant}, **more) for _ in range(number)]


def test_a_flood_does_not_hold_up_others(newest_connect: Any) -> None:
    queue = newest_connect("q", shards=3, fair="tenant")
    queue.enqueue_many(of("flood", 900))
    queue.enqueue_many(of("ada", 3))
    found = Counter(lease.job.headers["tenant"] for _ in range(24) for lease in queue.lease_many(1))
    assert found["ada"] == 3


def test_a_limit_of_each_key_is_exact(newest_connect: Any) -> None:
    queue = newest_connect("q", shards=3, limits=Limit(2, key="headrace-key"))
    queue.enqueue_many([NewJob(b"x", key=f"k{at % 5}") for at in range(50)])
    leases = [lease for _ in range(9) for lease in queue.lease_many(50)]
    assert Counter(lease.job.key for lease in leases) == {f"k{at}": 2 for at in range(5)}


def test_a_limit_per_shard(newest_connect: Any) -> None:
    queue = newest_connect("q", shards=3, limits=Limit(7, per_shard=True))
    queue.enqueue_many([NewJob(b"x", key=f"{at}") for at in range(90)])
    leases = [lease for _ in range(9) for lease in queue.lease_many(50)]
    assert Counter(lease.job.shard for lease in leases) == {0: 3, 1: 3, 2: 3}


def test_shares_are_sums(newest_connect: Any) -> None:
    queue = newest_connect("q", shards=3, fair="tenant")
    queue.enqueue_many([NewJob(b"x", headers={"tenant": "a"}, key=f"{at}") for at in range(30)])
    leases = [lease for _ in range(3) for lease in queue.lease_many(3)]
    (share,) = queue.admin.shares()
    assert len({lease.job.shard for lease in leases}) == 3
    assert (share.value, share.running) == (("a",), len(leases))
    assert share.running + share.waiting <= 30


def test_a_worker_serves_all_shards(newest: Server) -> None:
    done: list[str] = []
    with Queue[bytes](
        "q", url=newest.url, shards=3, fair="tenant", limits=Limit(9, per_shard=True)
    ) as queue:
        queue.enqueue_many([job for tenant in "abc" for job in of(tenant, 40)])
        worker = Worker(newest.url)
        worker.handler(queue, concurrency=6)(lambda job: done.append(job.headers["tenant"]))
        with worker:
            until(lambda: queue.counts().completed == 120)
        assert Counter(done) == {"a": 40, "b": 40, "c": 40}


def test_programs_with_other_terms_obey_in_each_shard(newest_connect: Any) -> None:
    queue = newest_connect("q", shards=3, limits=Limit(1, key="headrace-key"))
    queue.enqueue_many([NewJob(b"x", key=f"{at % 9}") for at in range(60)])
    found = len(queue.lease_many(60))
    for options in ({}, {"fair": "org"}):
        other = newest_connect("q", shards=3, **options)
        found += sum(len(other.lease_many(60)) for _ in range(4))
    assert found == 9


def test_an_operator_changes_all_shards(newest_connect: Any) -> None:
    queue = newest_connect("q", shards=3, fair="tenant")
    queue.enqueue_many([NewJob(b"x", headers={"tenant": "a"}, key=f"{at}") for at in range(30)])
    assert queue.lease_many(3)
    queue.admin.redeclare(fair="org")
    for ops in queue._verbs.map.ordered():
        assert ops.settings.fair == "tenant"  # of this program, as before
    assert newest_connect("q", shards=3, fair="org").lease_many(30)
