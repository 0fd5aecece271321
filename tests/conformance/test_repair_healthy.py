"""A queue in good order has nothing to repair, with any features. The cases are a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import Limit, NewJob, Rate, Throttle
from headrace.errors import RunSuspended

TENANTS = [NewJob(b"x", headers={"tenant": tenant}) for tenant in "aabbc"]


def plain(queue: Any) -> None:
    queue.enqueue_many([b"x"] * 9)
    first, second, third, fourth, fifth = queue.lease_many(5)
    assert first.complete()
    assert second.release()
    assert third.retry(delay=60, reason="later")
    assert fourth.dead_letter("why")
    assert fifth.renew(90)
    queue.enqueue(b"x", id="d", delay=60)


def ids(queue: Any) -> None:
    queue.enqueue_many([NewJob(b"x", id=f"i{at}", unique_for=60) for at in range(5)])
    queue.enqueue(b"x", id="t", if_exists=Throttle(60))
    first, second, _ = queue.lease_many(3)
    assert first.complete(result=b"done")
    assert second.retry(reason="again")
    assert queue.cancel("i4")
    assert queue.admin.pause()


def taken(queue: Any) -> None:
    queue.enqueue_many([b"x"] * 3)
    assert queue.lease(at_most_once=True) is not None
    lease = queue.lease(duration=600)
    assert queue.cancel(lease.job.id)


def schedules(queue: Any) -> None:
    queue.admin.schedule("s t", b"x", every=60)
    queue.admin.run_schedule("s t")
    queue.admin.pause_schedule("s t")


def tenants(queue: Any) -> None:
    queue.enqueue_many(TENANTS * 3)
    first, second, *_ = queue.lease_many(4)
    assert first.complete()
    assert second.release()


def drained(queue: Any) -> None:
    """Lease or complete all jobs, which were in lines."""
    tenants(queue)
    while leases := queue.lease_many(9):
        for lease in leases[1:]:
            assert lease.complete()
        if not leases[1:]:
            break


def cancelled(queue: Any) -> None:
    tenants(queue)
    for state in list(queue.admin.waiting())[:5]:
        assert queue.cancel(state.job.id)
    assert queue.admin.purge() > 0


def costs(queue: Any) -> None:
    some = (0.5, 4.0, 1 / 3, 123456.789, 3.0)
    queue.enqueue_many([NewJob(b"x", headers={"tenant": "a"}, cost=cost) for cost in some])
    first, second = queue.lease_many(2)
    assert first.release()
    assert second.retry()


def order(queue: Any) -> None:
    queue.enqueue_many([NewJob(b"x", key=key) for key in "aabbbc"])
    first, second, _ = queue.lease_many(9)
    assert first.complete()
    assert second.retry(delay=60)


def levels(queue: Any) -> None:
    queue.enqueue_many(
        [NewJob(b"x", id=f"{at}", priority=at % 3, headers={"tenant": "a"}) for at in range(9)]
    )
    first, second = queue.lease_many(2)
    assert first.release()
    assert second.retry()
    assert len(queue.lease_many(3)) == 3


def rates(queue: Any) -> None:
    queue.enqueue_many([NewJob(b"x", headers={"user": user}) for user in "aaabb"])
    queue.lease_many(9)


def steps(queue: Any) -> None:
    """Make runs that wait and sleep, and a signal that came early."""
    queue.enqueue_many([NewJob(b"x", id=name) for name in "abc"])
    assert queue.signal("c", "go", 1) == "kept"
    for wait in (lambda job: job.wait_for("go", 60), lambda job: job.sleep("a while", 60)):
        job = queue.lease().job
        assert job.step("one", lambda: 1) == 1
        with pytest.raises(RunSuspended):
            wait(job)
    assert queue.lease().job.progress(0.5, "half") in (None, True)


FEATURES: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "plain": (plain, {}),
    "history": (plain, {"history": 10, "tracebacks": True}),
    "ids": (ids, {"result_ttl": 60}),
    "at most once": (taken, {}),
    "schedules": (schedules, {}),
    "trends": (plain, {"trends": True}),
    "fair": (tenants, {"fair": "tenant"}),
    "two levels of values": (tenants, {"fair": "org/tenant", "weights": {("", "a"): 2.0}}),
    "limits": (tenants, {"limits": [Limit(1, key="tenant"), Limit(3)]}),
    "all left the lines": (drained, {"limits": Limit(1, key="tenant")}),
    "all left the lines, fair": (drained, {"fair": "tenant"}),
    "cancelled in lines": (cancelled, {"fair": "tenant", "limits": Limit(2, key="tenant")}),
    "costs": (costs, {"fair": "tenant"}),
    "costs and limits": (costs, {"limits": Limit(2, key="tenant")}),
    "an order": (order, {"ordered": True}),
    "an order, fair": (order, {"ordered": True, "fair": "headrace-key"}),
    "priorities": (levels, {"priorities": 3}),
    "priorities, fair": (levels, {"priorities": 3, "fair": "tenant"}),
    "rates": (rates, {"rate": [Rate(1, per=600, key="user"), Rate(3, per=600)]}),
    "rates, fair": (rates, {"fair": "user", "rate": Rate(1, per=600, key="user")}),
    "steps": (steps, {"history": 10}),
    "steps and limits": (steps, {"limits": Limit(2)}),
}


@pytest.mark.sampled
@pytest.mark.parametrize(("fill", "options"), FEATURES.values(), ids=FEATURES.keys())
def test_a_healthy_queue_repairs_to_nothing(
    connect: Any, fill: Callable[[Any], None], options: dict[str, Any]
) -> None:
    """A second repair finds nothing either. No job loses its place."""
    if fill is steps and connect.colour != "sync":
        pytest.skip("steps of leases are the same in both colours")
    queue = connect(**options)
    fill(queue)
    order = [one.job.id for one in queue.admin.waiting()]
    counts = queue.counts()
    for _ in range(2):
        assert not queue.admin.repair(dry_run=True)
        assert not queue.admin.repair()
    assert [one.job.id for one in queue.admin.waiting()] == order
    assert queue.counts() == counts
