"""Bulk actions. They take all matching jobs of a state and no others, in bounded steps that
continue each other."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import NewJob
from tests.support.steps import LONG

REASONS = {"a": "no user", "b": "too late"}


@pytest.fixture
def queue(connect: Any) -> Any:
    return connect(dead_limit=10_000)


def through(queue: Any, *given: str, **more: str) -> tuple[list[int], int]:
    """Take all steps. Return how many jobs each step read, and the total number of changed jobs."""
    steps = [queue.admin.bulk(*given, **more)]
    while steps[-1].cursor:
        steps.append(queue.admin.bulk(*given, **more, cursor=steps[-1].cursor))
    return [step.looked for step in steps], sum(step.done for step in steps)


def dead(queue: Any, number: int) -> None:
    """Make so many dead letters. A third are late and of another kind."""
    for start in range(0, number, 500):
        end = min(number, start + 500)
        queue.enqueue_many(
            [
                NewJob(b"x", id=f"i{n}", headers={"kind": "ab"[n % 3 == 0]})
                for n in range(start, end)
            ]
        )
        letters = [
            (lease.claim, REASONS[lease.job.headers["kind"]]) for lease in queue.lease_many(500)
        ]
        assert all(queue._run(queue.ops.dead_letter(letters)))


@pytest.mark.differs("ops")
def test_dead_letters_that_match_go_back(queue: Any) -> None:
    dead(queue, 2100)
    assert through(queue, "redrive", "dead", reason="late", kind="a") == ([1000, 1000, 100], 0)
    assert through(queue, "redrive", "dead", reason="late") == ([1000, 1000, 100], 700)
    assert {one.job.headers["kind"] for one in queue.admin.waiting()} == {"b"}
    assert through(queue, "purge_dead", "dead", kind="a") == ([1000, 400], 1400)
    counts = queue.counts()
    assert (counts.waiting, counts.dead, counts.dead_trimmed, counts.lost) == (700, 0, 1400, 0)


@pytest.mark.differs("parts")
def test_letters_of_one_id_are_told_apart(queue: Any) -> None:
    for reason in ("one", "two", "one"):
        queue.enqueue(b"x", id="same")
        queue.lease().dead_letter(reason)
    assert through(queue, "purge_dead", "dead", reason="one") == ([3], 2)
    assert [one.reason for one in queue.admin.dead()] == ["two"]


@pytest.mark.differs("ops")
def test_what_dies_again_is_not_redriven_again(queue: Any) -> None:
    dead(queue, 1500)
    step = queue.admin.bulk("redrive", "dead")
    assert (step.looked, step.matched, step.done) == (1000, 1000, 1000)
    while leases := queue.lease_many(500):
        assert all(queue._run(queue.ops.dead_letter([(lease.claim, "again") for lease in leases])))
    step = queue.admin.bulk("redrive", "dead", cursor=step.cursor)
    assert (step.matched, step.done, step.cursor) == (500, 500, "")
    assert queue.counts().dead == 1000


@pytest.mark.differs("parts")
def test_jobs_in_each_state(queue: Any) -> None:
    queue.enqueue_many([NewJob(b"x", headers={"kind": kind}) for kind in "aabb"])
    leases = queue.lease_many(4)
    for lease in leases[:2]:
        lease.retry(LONG, reason="why")
    queue.enqueue_many(
        [
            NewJob(b"x", headers={"kind": kind}, delay=LONG * late)
            for kind in "ab"
            for late in (0, 1)
        ]
    )
    assert through(queue, "reschedule", "delayed", reason="why") == ([4], 2)
    assert through(queue, "cancel", "delayed", kind="a") == ([2], 1)
    assert through(queue, "expire", "running", kind="b") == ([2], 2)
    assert through(queue, "cancel", "waiting", kind="b")[1] == 3  # two of them were expired
    counts = queue.counts()
    assert (counts.waiting, counts.parked, counts.leased, counts.delayed, counts.cancelled) == (
        3,
        0,
        0,
        1,
        4,
    )
    assert counts.lost == 0


@pytest.mark.parametrize(
    ("given", "more", "error"),
    [
        (("purge", "dead"), {}, "action 'purge': give one of cancel, "),
        (("redrive", "waiting"), {}, "state 'waiting': redrive takes jobs that are dead"),
        (("redrive", "dead"), {"cursor": "x"}, "cursor 'x': give that of the step before"),
    ],
)
def test_what_can_not_be(
    queue: Any, given: tuple[str, ...], more: dict[str, str], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        queue.admin.bulk(*given, **more)
