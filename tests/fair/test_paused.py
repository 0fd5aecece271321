"""Paused values: their jobs wait, and others go on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis

from headrace import ConfigurationError, Limit, NewJob, Rate
from tests.support.servers import Server


def of(tenant: str | None, number: int = 1, **more: Any) -> list[NewJob[bytes]]:
    headers = more.pop("headers", {}) | ({} if tenant is None else {"tenant": tenant})
    return [NewJob(b"x", headers=headers, **more) for _ in range(number)]


def took(queue: Any, number: int = 100, *, calls: int = 1) -> dict[str, int]:
    """Lease and complete so many jobs; the number of each tenant."""
    found: Counter[str] = Counter()
    for _ in range(calls):
        leases = queue.lease_many(number)
        found.update(lease.job.headers.get("tenant", "-") for lease in leases)
        queue.complete_many(leases)
    return dict(found)


TERMS: list[dict[str, Any]] = [
    {"fair": "tenant"},
    {"fair": "tenant", "priorities": 2},
    {"fair": "tenant", "limits": [Limit(50, key="tenant"), Limit(90)]},
    {"fair": "tenant", "limits": Limit(50, key="api")},
    {"limits": Limit(50, key="tenant")},
    {"fair": "tenant", "rate": Rate(10_000, 1, key="tenant", burst=1000)},
    {"fair": "tenant", "ordered": True},
]


@pytest.mark.parametrize("terms", TERMS, ids="-".join)
def test_a_paused_value_waits(connect: Any, terms: Any) -> None:
    """Its jobs in lines, its new jobs and its returned jobs are not leased. Jobs of others are
    leased. A running job ends.
    """
    queue = connect(**terms)
    queue.enqueue_many(
        [job for tenant in ("a", "b", None) for job in of(tenant, 9, headers={"api": "m"})]
    )
    first = queue.lease_many(3)
    own = [lease for lease in first if lease.job.headers.get("tenant") == "a"]
    others = len(first) - len(own)
    assert queue.admin.pause(value="a")
    assert not queue.admin.pause(value="a")
    assert queue.admin.paused_values() == [("a",)]
    assert took(queue, calls=2).get("a", 0) == 0
    assert took(queue) == {}
    assert [queue.retry(lease) for lease in own] == [True] * len(own)
    queue.complete_many([lease for lease in first if lease not in own])
    queue.enqueue_many(of("a", 3) + of("b", 2))
    queue.enqueue_many(of("a", 1, delay=0.001))
    assert took(queue, calls=2) == {"b": 2}
    assert not queue.admin.paused()
    assert len([*queue.admin.waiting(value="a")]) >= 12
    assert queue.counts().waiting + queue.counts().parked + queue.counts().delayed == 13
    assert queue.admin.resume(value="a")
    assert not queue.admin.resume(value="a")
    assert queue.admin.paused_values() == []
    left = 13
    while left:
        found = took(queue).get("a", 0)
        assert found
        left -= found
    assert others <= 3
    assert queue.counts().waiting + queue.counts().held == 0
    assert not queue.admin.repair()


@pytest.mark.parametrize("how", ["release", "retry", "expire"])
def test_a_job_that_comes_back_stays(connect: Any, how: str) -> None:
    queue = connect(fair="tenant", limits=Limit(3, key="tenant"))
    queue.enqueue_many(of("a", 2) + of("b", 2))
    leases = [lease for lease in queue.lease_many(4) if lease.job.headers["tenant"] == "a"]
    queue.admin.pause(value="a")
    for lease in leases:
        if how == "expire":
            queue.admin.expire(lease.job.id)
        else:
            getattr(queue, how)(lease)
    assert took(queue) == {}
    queue.admin.resume(value="a")
    assert took(queue, calls=2) == {"a": 2}


def test_an_organisation_and_its_users(connect: Any) -> None:
    """Each may be paused alone. A value that is paused twice waits for both."""
    queue = connect(fair="org/tenant", limits=Limit(100, key="api"))
    queue.enqueue_many(
        [
            job
            for org in ("x", "y")
            for user in ("a", "b", None)
            for job in of(user, 4, headers={"org": org, "api": "m"})
        ]
    )

    def users() -> set[str]:
        leases = queue.lease_many(100)
        for lease in leases:
            queue.release(lease)
        return {
            "/".join(filter(None, map(lease.job.headers.get, ("org", "tenant"))))
            for lease in leases
        }

    assert users() == {"x", "x/a", "x/b", "y", "y/a", "y/b"}
    queue.admin.pause(value="x/a")
    assert users() == {"x", "x/b", "y", "y/a", "y/b"}
    queue.admin.pause(value="x")
    queue.admin.pause(value=("y", None))
    assert users() == {"y/a", "y/b"}
    paused = {share.name for share in queue.admin.shares() if share.paused}
    assert paused == {"x/-", "x/a", "x/b", "y/-"}
    assert queue.admin.paused_values() == [("x",), ("x", "a"), ("y", None)]
    queue.admin.resume(value="x/a")
    assert users() == {"y/a", "y/b"}
    queue.admin.pause(value="x/a")
    queue.admin.resume(value="x")
    assert users() == {"x", "x/b", "y/a", "y/b"}
    queue.admin.resume(value=("y", None))
    queue.admin.resume(value="x/a")
    assert users() == {"x", "x/a", "x/b", "y", "y/a", "y/b"}


def test_a_slot_passes_a_paused_line(connect: Any) -> None:
    """The line of a limit has paused values in front."""
    queue = connect(fair="tenant", limits=Limit(1, key="api"))
    queue.enqueue_many([job for tenant in "abcd" for job in of(tenant, 2, headers={"api": "m"})])
    (first,) = queue.lease_many(10)
    for tenant in "bc":
        queue.admin.pause(value=tenant)
    queue.complete(first)
    assert took(queue, calls=8) == {"a": 1, "d": 2}
    for tenant in "bc":
        queue.admin.resume(value=tenant)
    assert took(queue, calls=8) == {"b": 2, "c": 2}


@pytest.mark.slow
def test_many_paused_lines(connect: Any, large: bool) -> None:
    """They leave their rings and the lines of limits in steps, and so they come back; others run
    meanwhile."""
    number = 1200 if large else 300
    queue = connect(fair="org/tenant", limits=Limit(1, key="api"))
    jobs = [job for at in range(number) for job in of(f"{at}", 1, headers={"org": "x"})]
    jobs += [
        job for at in range(number) for job in of(f"s{at}", 1, headers={"org": "x", "api": "m"})
    ]
    queue.enqueue_many(
        [*jobs, *of("b", 9, headers={"org": "y", "api": "m"}), *of("c", 9, headers={"org": "y"})]
    )
    queue.release(queue.lease())
    queue.admin.pause(value="x")
    found: Counter[str] = Counter()
    for _ in range(60):
        found.update(took(queue, 1))
    assert found == {"b": 9, "c": 9}
    queue.admin.resume(value="x")
    done = 0
    for _ in range(3 * number):
        done += sum(took(queue, 50).values())
        if done == 2 * number:
            break
    assert done == 2 * number
    assert not queue.admin.repair()


def test_the_paused_value_has_no_job(connect: Any) -> None:
    """It is known; so it is before workers have declared the terms."""
    queue = connect(fair="tenant")
    assert queue.admin.pause(value="a")
    assert queue.admin.pause(value=(None,))
    queue.enqueue_many(of("a", 2) + of("b", 2) + of(None))
    assert took(queue, calls=3) == {"b": 2}
    assert queue.admin.purge(value="a") == 2
    assert queue.admin.paused_values() == [(None,), ("a",)]
    assert queue.admin.resume(value=(None,))
    assert took(queue) == {"-": 1}


def test_a_pause_survives_new_numbers(connect: Any) -> None:
    """And ends when the queue tells its jobs apart by other headers."""
    queue = connect(fair="tenant", limits=Limit(5, key="tenant"))
    queue.enqueue_many(of("a", 2, headers={"org": "o"}) + of("b", 2, headers={"org": "o"}))
    queue.release(queue.lease())
    queue.admin.pause(value="a")
    queue.admin.redeclare(fair="tenant", weights={"a": 3.0}, limits=Limit(4, key="tenant"))
    assert took(queue) == {"b": 2}
    queue.admin.redeclare(fair="tenant/org")
    assert queue.admin.paused_values() == [("a",)]
    assert took(queue, calls=2) == {}
    queue.admin.redeclare(fair="org")
    assert queue.admin.paused_values() == []
    assert took(queue, calls=2) == {"a": 2}


def test_batches_of_one_value(connect: Any) -> None:
    queue = connect(fair="tenant")
    queue.enqueue_many(of("a", 5) + of("b", 5))
    queue.release(queue.lease())
    queue.admin.pause(value="a")
    assert took(queue, calls=4) == {"b": 5}


def test_a_pause_is_in_all_shards(connect: Any) -> None:
    queue = connect(fair="tenant", shards=3)
    queue.enqueue_many(
        [
            NewJob(b"x", key=f"{at}", headers={"tenant": tenant})
            for at in range(20)
            for tenant in "ab"
        ]
    )
    assert queue.admin.pause(value="a")
    assert took(queue, calls=9) == {"b": 20}
    assert queue.admin.paused_values() == [("a",)]
    assert queue.admin.resume(value="a")
    assert took(queue, calls=9) == {"a": 20}


def test_new_shards_know_paused_values(connect: Any) -> None:
    queue = connect(fair="tenant", shards=2)
    jobs = [
        NewJob(b"x", key=f"{at}", headers={"tenant": tenant}) for at in range(20) for tenant in "ab"
    ]
    queue.enqueue_many(jobs)
    assert queue.admin.pause(value="a")
    assert queue.admin.reshard(3)
    queue.enqueue_many(jobs)
    assert took(queue, calls=20) == {"b": 40}
    assert queue.admin.paused_values() == [("a",)]
    assert queue.admin.resume(value="a")
    assert took(queue, calls=20) == {"a": 40}


def test_a_paused_suspect_is_passed_over(connect: Any, client: redis.Redis) -> None:
    """Others that their workers' deaths made suspects are handed out, although they have died more
    often."""
    queue = connect(fair="tenant", limits=Limit(5, key="tenant"))
    queue.enqueue_many(of("a", 2) + of("b", 2))
    for lease in queue.lease_many(4):
        died = 2 if lease.job.headers["tenant"] == "a" else 3
        client.hset(queue.ops.keys.key("deaths"), lease.claim.entry, died)
        queue.release(lease)
    queue.admin.pause(value="a")
    assert took(queue, calls=8) == {"b": 2}
    queue.admin.resume(value="a")
    assert took(queue, calls=8) == {"a": 2}


def test_resume_wakes_a_reader(connect: Any) -> None:
    queue = connect(fair="tenant")
    queue.enqueue_many(of("a"))
    queue.admin.pause(value="a")
    assert took(queue, calls=2) == {}
    queue.admin.resume(value="a")
    assert [lease.job.headers["tenant"] for lease in queue.lease_many(1, block=5.0)] == ["a"]


def test_values_that_cannot_be_paused(newest: Server) -> None:
    with newest.queue("q") as queue, pytest.raises(ConfigurationError, match="no fair="):
        queue.admin.pause(value="a")
    with newest.queue("f", fair="tenant") as queue:
        for at in range(1000):
            assert queue.admin.pause(value=f"{at}")
        with pytest.raises(ConfigurationError, match="1,000 values of this queue are paused"):
            queue.admin.pause(value="one more")
        queue.enqueue_many(of("1") + of("one more"))
        assert took(queue) == {"one more": 1}
        assert len(queue.admin.paused_values()) == 1000
