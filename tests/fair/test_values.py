"""The verbs for one value of a queue with terms. They list and remove its waiting jobs."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace import ConfigurationError, Limit, NewJob, Rate

VALUES = ["acme", "ben", None, "x" * 600]


def mixed(number: int, **more: Any) -> list[NewJob[bytes]]:
    """Make jobs of each value in turn, with payloads that name value and number."""
    return [
        NewJob(
            f"{str(value)[:4]}{at}".encode(),
            headers={} if value is None else {"tenant": value},
            **more,
        )
        for at in range(number)
        for value in VALUES
    ]


def waiting(queue: Any, value: Any) -> list[bytes]:
    return [one.job.payload for one in queue.admin.waiting(value=value)]


def named(value: str, *numbers: int) -> list[bytes]:
    return [f"{value}{at}".encode() for at in numbers]


@pytest.mark.parametrize("terms", [{"fair": "tenant"}, {"limits": [Limit(5, key="tenant")]}])
def test_waiting_jobs_of_a_value(connect: Any, terms: Any) -> None:
    """Jobs in lines, new jobs and parked jobs are listed in the order of leases."""
    queue = connect(**terms)
    queue.enqueue_many(mixed(10))
    leases = queue.lease_many(8)
    own = [lease for lease in leases if lease.job.headers.get("tenant") == "acme"]
    others = len(own)
    assert waiting(queue, "acme") == named("acme", *range(others, 10))
    queue.release(own[0])
    queue.enqueue_many(mixed(2))
    expected = named("acme", 0, *range(others, 10), 0, 1)
    assert waiting(queue, "acme") == expected
    assert waiting(queue, (None,))[-2:] == named("None", 0, 1)
    assert waiting(queue, "x" * 600) == waiting(queue, "x" * 500) != []
    assert waiting(queue, "nobody") == []
    queue.complete_many([lease for lease in leases if lease is not own[0]])
    leased = [
        lease.job for _ in range(60) for lease in queue.lease_many(1) if queue.complete(lease)
    ]
    assert [job.payload for job in leased if job.headers.get("tenant") == "acme"] == expected


@pytest.mark.long
def test_purge_of_a_value(connect: Any) -> None:
    """The purge removes the value's jobs in lines, new, delayed, parked and of all levels. Leased
    jobs and others stay.
    """
    queue = connect(fair="tenant", history=100, priorities=3)
    queue.enqueue_many(
        [*mixed(600), *mixed(20, priority=1), *mixed(20, priority=2), *mixed(600, delay=600)]
    )
    leases = queue.lease_many(12)
    own = [lease for lease in leases if lease.job.headers.get("tenant") == "acme"]
    queue.release(own[0])
    before = queue.counts()
    assert queue.admin.purge(value="acme") == 600 + 40 + 600 - len(own) + 1
    assert waiting(queue, "acme") == []
    assert queue.admin.purge(value="acme") == 0
    counts = queue.counts()
    assert counts.leased == len(leases) - 1
    assert counts.delayed == 1800
    assert counts.deleted - before.deleted == 600 + 40 + 600 - len(own) + 1
    assert counts.lost == 0
    ended = [end.state for end in queue.admin.ended()]
    assert ended
    assert set(ended) == {"deleted"}
    left = counts.waiting + counts.parked
    assert len([*queue.admin.waiting()]) == left == 3 * 640 - (len(leases) - len(own))
    queue.complete_many(leases)
    found = [lease for _ in range(40) for lease in queue.lease_many(100) if queue.complete(lease)]
    assert len(found) == left
    assert not queue.admin.repair()


def test_purge_leaves_no_places_in_lines(connect: Any, client: redis.Redis) -> None:
    """Otherwise lease calls would drop each of them."""
    queue = connect(fair="tenant", priorities=2)
    queue.enqueue_many([NewJob(b"x", headers={"tenant": tenant}, cost=0.5) for tenant in "ab" * 90])
    queue.enqueue_many(
        [NewJob(b"x", headers={"tenant": tenant}, priority=1) for tenant in "ab" * 20]
    )
    leases = queue.lease_many(10)
    queue.release(next(lease for lease in leases if lease.job.headers["tenant"] == "a"))
    assert queue.admin.purge(value="a") > 80
    places: Any = client.zrange(queue.ops.keys.key("lines"), 0, -1)
    assert places
    assert not [place for place in places if place.startswith((b"01:a", b"11:a"))]


def test_purge_of_delayed_jobs_that_are_due_together(connect: Any) -> None:
    """More than a page of other jobs are due at the same moment, and stay."""
    queue = connect(fair="tenant")
    queue.lease()
    queue.enqueue_many(
        [NewJob(b"x", headers={"tenant": "ab"[at % 7 == 6]}, delay=3600) for at in range(2100)]
    )
    assert queue.admin.purge(value="b") == 300
    assert queue.counts().delayed == 1800


def test_values_of_two_levels(connect: Any) -> None:
    queue = connect(fair="org/user")
    for org, user in [("acme", "ada"), ("acme", "ben"), ("b/c", "ada"), ("acme", None)]:
        headers = {"org": org} | ({} if user is None else {"user": user})
        queue.enqueue_many([NewJob(f"{org}-{user}".encode(), headers=headers)] * 3)
    queue.lease()
    assert waiting(queue, "acme/ben") == waiting(queue, ("acme", "ben")) == [b"acme-ben"] * 3
    assert waiting(queue, ("b/c", "ada")) == [b"b/c-ada"] * 3
    assert waiting(queue, ("acme", None)) == [b"acme-None"] * 3
    assert queue.admin.purge(value="acme") == 8
    assert queue.counts().waiting == 3


def test_values_of_ordered_queues(connect: Any) -> None:
    """A job behind another of its key still belongs to its own value."""
    queue = connect(fair="tenant", rate=Rate(1000, 1), ordered=True)
    queue.enqueue_many(
        [NewJob(b"x", key="k", headers={"tenant": tenant}) for tenant in ("a", "b", "a", "b")]
    )
    lease = queue.lease()
    assert lease is not None
    assert len(waiting(queue, "a")) == 1
    assert queue.admin.purge(value="b") == 2
    queue.complete(lease)
    lease = queue.lease()
    assert lease is not None
    assert lease.job.headers["tenant"] == "a"
    assert not queue.admin.repair()


@pytest.mark.parametrize(
    ("terms", "value", "error", "why"),
    [
        ({}, "a", ConfigurationError, "this queue has no fair=, and no single Limit with a key="),
        ({"limits": [Limit(5)]}, "a", ConfigurationError, "and no single Limit"),
        (
            {"limits": [Limit(5, key="a"), Limit(5, key="b")]},
            "a",
            ConfigurationError,
            "and no single Limit",
        ),
        ({"fair": "tenant"}, ("a", "b"), ConfigurationError, "give a value of 'tenant'"),
        ({"fair": "tenant"}, (), ConfigurationError, "give a value of 'tenant'"),
        ({"fair": "tenant"}, 5, ConfigurationError, "as shares.. names it"),
    ],
)
def test_values_that_a_queue_has_not(
    connect: Any, terms: Any, value: Any, error: type[Exception], why: str
) -> None:
    queue = connect(**terms)
    queue.enqueue(b"x")
    queue.lease()
    for verb in (lambda: waiting(queue, value), lambda: queue.admin.purge(value=value)):
        with pytest.raises(error, match=why):
            verb()


def test_values_over_shards(connect: Any) -> None:
    queue = connect(fair="tenant", shards=3)
    queue.enqueue_many(mixed(50))
    queue.lease_many(9)
    expected = len(waiting(queue, "acme"))
    assert 40 < expected < 50
    assert queue.admin.purge(value="acme") == expected
    assert waiting(queue, "acme") == []


def test_values_before_any_worker_has_declared_the_terms(connect: Any) -> None:
    """The terms of the calling program are used. A program without terms can't know them."""
    queue = connect(fair="tenant")
    queue.enqueue_many(mixed(3))
    assert waiting(queue, "acme") == named("acme", 0, 1, 2)
    assert queue.admin.purge(value="acme") == 3
    assert waiting(queue, "acme") == []
    assert waiting(queue, "ben") == named("ben", 0, 1, 2)
    with pytest.raises(ConfigurationError, match="no fair="):
        waiting(connect(), "ben")
