"""The picks obey other rules too. They are rates by key, suspects that run alone, and one caller at
a time."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import ConfigurationError, NewJob, Queue, Rate
from tests.support.servers import Server


def of(tenant: str, number: int = 1, **more: Any) -> list[NewJob[bytes]]:
    return [NewJob(b"x", headers={"tenant": tenant}, **more) for _ in range(number)]


def leased(queue: Any, number: int) -> str:
    return "".join(lease.job.headers["tenant"] for lease in queue.lease_many(number))


def test_a_line_rests_until_its_rate_has_a_token(connect: Any) -> None:
    """Other lines go on, and the next lease call says when the line may."""
    queue = connect(fair="tenant", rate=Rate(2, per=0.2, key="tenant"))
    queue.enqueue_many(of("a", 4) + of("b", 1))
    assert sorted(leased(queue, 10)) == ["a", "a", "b"]
    counts = queue.counts()
    assert (counts.waiting, counts.delayed) == (2, 0)
    assert [lease.job.headers["tenant"] for lease in queue.lease_many(2, block=5.0)] == ["a"]


def test_a_rate_of_two_values_is_shared(connect: Any) -> None:
    """Both tenants wait for a token of their api. The tenant that had less gets it."""
    queue = connect(fair="tenant", rate=Rate(1, per=0.1, key="api"))
    for tenant in "ab":
        queue.enqueue_many(
            [NewJob(b"x", headers={"tenant": tenant, "api": "m"}, cost=1.0) for _ in range(3)]
        )
    found = ""
    while len(found) < 6:
        found += "".join(lease.job.headers["tenant"] for lease in queue.lease_many(1, block=5.0))
    assert sorted(found[:2]) == sorted(found[2:4]) == ["a", "b"]


def test_values_that_come_and_go_leave_nothing(newest: Server) -> None:
    """The queue is never empty meanwhile."""
    with newest.queue("q", fair="org/tenant") as queue, newest.client() as client:
        queue.enqueue_many(
            [NewJob(b"x", headers={"org": "o", "tenant": "always"}, cost=1.0) for _ in range(900)]
        )
        for number in range(60):
            queue.enqueue_many(
                [
                    NewJob(b"x", headers={"org": f"o{number}", "tenant": f"{number}-{n}"}, cost=1.0)
                    for n in range(6)
                ]
            )
            queue.complete_many(queue.lease_many(12))
        assert client.hlen(queue.ops.keys.key("shares")) < 300


def test_ageing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ageing"):
        Queue("q", fair="tenant", priorities=2, ageing=60.0)
