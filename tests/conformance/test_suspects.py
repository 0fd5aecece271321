"""Jobs whose holder has died twice are handed out alone, whoever leases; those that are innocent complete."""

from __future__ import annotations

import pytest

from tests.conformance.test_reclaim import declare, payloads_of, works
from tests.support.awaiting import until
from tests.support.steps import LONG, payloads, present

pytestmark = pytest.mark.differs("ops")


def dies(queue, jobs, times=1):
    """A worker that has so many jobs dies, so many times."""
    for number in range(times):
        works(queue, f"ghost-{queue.counts().enqueued}-{jobs}-{number}", jobs)
        declare(queue, workers=1, moved=jobs)


def retried(lease):
    assert lease.retry()
    return lease.job.payload


def test_a_suspect_is_leased_alone(connect):
    """After one death they are leased together, after two one by one, and others only when it has ended."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b", b"c"])
    dies(queue, 3)
    together = queue.lease_many(3)
    assert payloads_of(together) == [b"a", b"b", b"c"]
    assert all(lease.release() for lease in together)
    dies(queue, 3)
    queue.enqueue(b"new")
    assert present(queue) == {"parked": 3, "waiting": 1}
    assert payloads(queue.admin.waiting()) == [b"a", b"b", b"c", b"new"]
    (alone,) = queue.lease_many(3)
    assert (alone.job.payload, alone.job.attempt) == (b"a", 3)
    assert queue.lease() is None
    assert alone.complete()
    assert queue.lease().job.payload == b"new"  # by turns


def test_a_worker_makes_room(connect):
    """One that holds others gets no suspect, and nothing else, until it holds nothing; another goes on meanwhile."""
    queue, other = connect(lease=LONG), connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    queue.enqueue_many([b"c", b"d", b"e"])
    assert queue.lease().complete()  # a suspect
    held = queue.lease()
    assert held.job.payload == b"c"
    assert queue.lease() is None
    assert other.lease().job.payload == b"b"
    assert other.lease() is None
    assert held.complete()
    assert queue.lease().job.payload == b"d"


def test_only_deaths_while_alone_count(connect):
    """Innocent jobs are run again as often as it takes, the others die, each with its reason."""
    queue = connect(lease=LONG, max_attempts=2)
    queue.enqueue_many([b"poison", b"good"])
    dies(queue, 2, times=2)
    dies(queue, 1, times=2)
    last = queue.lease()
    assert (last.job.payload, last.job.attempt) == (b"good", 3)
    assert last.complete()
    (letter,) = queue.admin.dead()
    assert (letter.job.payload, letter.job.attempt) == (b"poison", 4)
    assert letter.reason == "no attempts left: it ended its process 2 times while alone"


def test_an_end_of_its_own_acquits(connect):
    """A suspect that failed is none any more."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    assert [retried(queue.lease()) for _ in range(3)] == [b"a", b"a", b"b"]
    assert payloads_of(queue.lease_many(5)) == [b"a", b"b"]


def test_deaths_beside_are_free(connect):
    """An innocent has all its attempts left for failures of its own, however many others died beside it."""
    queue = connect(lease=LONG, max_attempts=2)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    assert queue.lease().complete()
    first = queue.lease()
    assert first.job.attempt == 3
    assert first.retry(reason="once")
    last = queue.lease()
    assert last.job.attempt == 2
    assert last.retry(reason="twice")
    (letter,) = queue.admin.dead()
    assert (letter.reason, letter.job.attempt) == ("twice", 2)


def dies_in_a_process(queue, *, alone):
    """A worker of several queues dies as it holds one job of this; how long it was told to run nothing else."""
    assert queue._run(queue.ops.beat("ghost", 0.001, register=True))
    assert queue._run(queue.ops.company("ghost", beside=True))
    grant = queue._run(queue.ops.lease("ghost", 9))
    assert len(grant.claims) == 1
    if alone:
        assert queue._run(queue.ops.company("ghost", beside=False))
    declare(queue, workers=1, moved=1)
    return grant.alone_for


def test_alone_in_its_process(connect):
    """A worker of several queues says whether anything else runs; only a death while nothing does counts."""
    queue = connect(lease=LONG, max_attempts=2)
    queue.enqueue(b"x")
    told = [dies_in_a_process(queue, alone=False) for _ in range(5)]
    assert told == [None, None, 0, LONG, 2 * LONG]
    assert [dies_in_a_process(queue, alone=True) for _ in range(2)] == [3 * LONG, 3 * LONG]
    assert queue.lease() is None
    (letter,) = queue.admin.dead()
    assert letter.reason == "no attempts left: it ended its process 2 times while alone"


def test_never_alone(connect):
    """Something else may run for ever in each process that there is."""
    queue = connect(lease=LONG, max_attempts=2)
    queue.enqueue(b"x")
    for _ in range(22):
        dies_in_a_process(queue, alone=False)
    assert queue.lease() is None
    (letter,) = queue.admin.dead()
    assert letter.reason == "no attempts left: its workers died, or let its leases expire"


def test_given_back_it_stays_one(connect):
    """A release says nothing of what a job does."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    for _ in range(3):
        (alone,) = queue.lease_many(2)
        assert alone.release()


def test_leases_by_hand_that_expire_together(connect):
    """Its holder may have died: they count as deaths beside others, if it is another that takes them back."""
    queue = connect(lease=0.05, max_attempts=1)
    queue.enqueue_many([b"a", b"b"])
    for _ in range(2):
        assert len(connect(lease=0.05, max_attempts=1).lease_many(2)) == 2

        def expired():
            queue._run(queue.ops.reclaim("peer", LONG))
            return len(payloads(queue.admin.waiting())) == 2

        until(expired, "the end of both leases")
    assert queue.counts().dead == 0
    assert len(queue.lease_many(2)) == 1
