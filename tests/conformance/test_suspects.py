"""A job whose holder died twice is a suspect and is leased alone by every client. Innocent jobs
complete."""

from __future__ import annotations

import pytest

from tests.conformance.test_reclaim import declare, payloads_of, works
from tests.support.awaiting import until
from tests.support.steps import LONG, payloads, present

pytestmark = pytest.mark.differs("ops")


def dies(queue, jobs, times=1):
    """Let a worker with so many jobs die so many times."""
    for number in range(times):
        works(queue, f"ghost-{queue.counts().enqueued}-{jobs}-{number}", jobs)
        declare(queue, workers=1, moved=jobs)


def retried(lease):
    assert lease.retry()
    return lease.job.payload


def test_a_suspect_is_leased_alone(connect):
    """After one death jobs are leased together. After two they come one by one and after all
    others."""
    queue, other = connect(lease=LONG), connect(lease=LONG)
    queue.enqueue_many([b"a", b"b", b"c"])
    dies(queue, 3)
    together = queue.lease_many(3)
    assert payloads_of(together) == [b"a", b"b", b"c"]
    assert all(lease.release() for lease in together)
    dies(queue, 3)
    queue.enqueue_many([b"new", b"last"])
    assert present(queue) == {"parked": 3, "waiting": 2}
    assert payloads(queue.admin.waiting()) == [b"a", b"b", b"c", b"new", b"last"]
    assert payloads_of(other.lease_many(3)) == [b"new", b"last"]
    (alone,) = queue.lease_many(3)
    assert (alone.job.payload, alone.job.attempt) == (b"a", 3)
    queue.enqueue(b"newer")
    assert queue.lease() is None
    assert other.lease().job.payload == b"newer"
    assert other.lease().job.payload == b"b"


def test_a_suspect_that_waited_for_a_lease_comes_first(connect):
    """A stream of other jobs does not delay it for ever."""
    queue = connect(lease=0.05)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    queue.enqueue_many([b"new"] * 500)
    until(lambda: queue.lease().job.payload == b"a", "the suspect")
    assert queue.counts().waiting > 0


def test_nothing_beside_a_suspect(connect):
    """The holder of a suspect gets no other job, however many it held before."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    queue.enqueue(b"c")
    assert payloads_of([queue.lease(), queue.lease()]) == [b"c", b"a"]
    queue.enqueue(b"d")
    assert queue.lease() is None


def test_poison_ends(connect):
    """Deaths spend no attempt, and twenty of them are the end. Innocent jobs keep all their
    attempts."""
    queue = connect(lease=LONG, max_attempts=1)
    queue.enqueue_many([b"poison", b"good"])
    dies(queue, 2, times=2)
    dies(queue, 1)
    last = queue.lease()  # before the one that has died more often
    assert (last.job.payload, last.job.attempt) == (b"good", 3)
    assert last.complete()
    dies(queue, 1, times=17)
    assert queue.lease() is None
    (letter,) = queue.admin.dead()
    assert (letter.job.payload, letter.job.attempt) == (b"poison", 20)
    assert letter.reason == "no attempts left: its process died 20 times while it ran"


def test_an_end_of_its_own_acquits(connect):
    """A suspect that failed by itself is no suspect any more."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    assert retried(queue.lease()) == b"a"
    assert payloads_of(queue.lease_many(5)) == [b"a"]


def test_deaths_spend_no_attempt(connect):
    """The job's attempts are for its own failures, however often its process died."""
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


def test_a_job_that_had_not_begun(connect):
    """The job reached a worker at the moment of its death. The only attempt is not spent."""
    queue = connect(lease=LONG, max_attempts=1)
    queue.enqueue(b"x")
    dies(queue, 1)
    assert queue.lease().complete()


def test_a_worker_asks_for_no_second_suspect(connect):
    """A lease call says whether it accepts a suspect. A suspect comes with its number of deaths."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    queue.enqueue(b"c")
    assert queue._run(queue.ops.beat("w", LONG, register=True))
    first, second, third = (
        queue._run(queue.ops.lease("w", 9, apart=apart)).claims for apart in (2, 0, 1)
    )
    assert [(claim.job.payload, claim.deaths) for claim in (*first, *second, *third)] == [
        (b"a", 2),
        (b"c", 0),
        (b"b", 2),
    ]


def test_without_an_end_there_are_none(connect):
    """Endless jobs, such as persistent ones, are leased together however often their holders
    died."""
    queue = connect(lease=LONG, max_attempts=None)
    queue.enqueue_many([b"a", b"b", b"c"])
    dies(queue, 3, times=3)
    leases = queue.lease_many(2)
    assert [lease.claim.deaths for lease in leases] == [0, 0]
    assert payloads_of([*leases, *queue.lease_many(2)]) == [b"a", b"b", b"c"]


def test_given_back_it_stays_one(connect):
    """A release does not show what a job does, so it stays a suspect."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"a", b"b"])
    dies(queue, 2, times=2)
    for _ in range(3):
        (alone,) = queue.lease_many(2)
        assert alone.release()


def test_a_lease_that_runs_out_alone(connect):
    """The holder lives and held no other job, so the job spent an attempt."""
    queue = connect(lease=0.05, max_attempts=2)
    queue.enqueue(b"hangs")
    for _ in range(2):
        assert queue.lease(block=60)
    assert queue.lease(block=1.0) is None
    (letter,) = queue.admin.dead()
    assert letter.reason == "no attempts left: its workers died, or let its leases expire"


def test_leases_that_run_out(connect):
    """The holder may have died without a peer that saw it. Expired leases beside each other count
    as deaths."""
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
