"""Jobs in lines, as listings, counts and verbs show them. They are waiting or parked like other
jobs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Counts, Limit, NewJob

TERMS: Any = {"fair": "tenant", "limits": Limit(1, key="tenant")}


@pytest.fixture
def queue(connect: Any) -> Any:
    """Lease one job of `ada`, park one and put two into her line. The job of `bob` has not been
    looked at."""
    queue = connect("q", **TERMS)
    queue.enqueue_many([NewJob(b"x", id=f"a{n}", headers={"tenant": "ada"}) for n in range(4)])
    assert [lease.job.id for lease in queue.lease_many(5)] == ["a0"]
    queue.admin.expire()
    assert queue.admin.expire() == 0
    assert queue.enqueue(b"x", id="b", headers={"tenant": "bob"}).added
    return queue


def test_counts(queue: Any) -> None:
    """The law of slots holds beside the law of conservation."""
    assert queue.counts() == Counts(waiting=4, parked=1, enqueued=5)
    assert len(queue.lease_many(5)) == 2
    counts = queue.counts()
    assert counts == Counts(waiting=3, leased=2, enqueued=5, held=2)
    assert (counts.lost, counts.held) == (0, counts.leased)


def test_listings(queue: Any) -> None:
    """Jobs are listed in the order of their entries, and parked ones first."""
    assert [(item.job.id, item.state) for item in queue.admin.waiting()] == [
        ("a0", "parked"), ("a1", "waiting"), ("a2", "waiting"), ("a3", "waiting"), ("b", "waiting"),
    ]  # fmt: skip
    leased = {lease.job.id for lease in queue.lease_many(5)}
    assert leased == {"a0", "b"}
    assert {item.job.id for item in queue.admin.running()} == leased
    assert [item.job.id for item in queue.admin.waiting()] == ["a1", "a2", "a3"]
    assert queue.admin.peek().id == "a1"


def test_a_job_is_found(queue: Any) -> None:
    """An attempt is a delivery. A job in a line was not delivered."""
    for name, state, attempt, position in (
        ("a0", "parked", 1, 0),
        ("a1", "waiting", 1, 1),
        ("b", "waiting", 1, 4),
    ):
        found = queue.find(name)
        assert (found.state, found.job.attempt) == (state, attempt), name
        assert queue.admin.position(name) == position
    assert {lease.job.id: lease.job.attempt for lease in queue.lease_many(5)} == {"a0": 2, "b": 1}


def test_a_job_that_came_back_to_its_line_keeps_its_attempts(queue: Any) -> None:
    """The job stands behind another that has the slot."""
    (first,) = [lease for lease in queue.lease_many(5) if lease.job.id == "a0"]
    assert first.release()
    (again,) = queue.lease_many(5)
    assert (again.job.id, again.job.attempt) == ("a0", 2)
    assert again.complete()
    assert [(lease.job.id, lease.job.attempt) for lease in queue.lease_many(5)] == [("a1", 1)]


@pytest.mark.differs("keys")
def test_purge_and_move_take_them_all(queue: Any, connect: Any) -> None:
    """No job stays in a line."""
    assert queue.cancel("a1")
    assert queue.admin.move("q2", "a2") == 1
    other = connect("q2")
    assert [item.job.id for item in other.admin.waiting()] == ["a2"]
    assert queue.admin.purge() == 3
    assert queue.counts().present == 0
    assert queue.lease_many(5) == []
