"""What is easy to get wrong, one test each: who finishes a job, what a delivery counts, what may be written first."""

from __future__ import annotations

import pytest

from headrace import NewJob
from tests.conformance.steps import LONG, expire, key, payloads

# -- entries of foreign producers --------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"attempt": "abc"},
        {"attempt": ""},
        {"attempt": "-7"},
        {"attempt": "1e999"},
        {"attempt": "nan"},
        {"attempt": "9" * 400},
        {"attempt": b"\xff\x00"},
        {"enq": "abc"},
        {"enq": "-7"},
        {"enq": "9" * 400},
        {"id": b"\xff\x00"},
        {"id": ""},
        {"a": "1", "attempt": "x", "enq": "y"},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_a_foreign_entry_stops_nothing(queue, client, fields):
    """Whatever a bare XADD wrote where numbers are meant: the job goes round, by every way, and the next one too."""
    client.xadd(key("jobs"), {"data": b"odd", **fields})
    queue.enqueue(b"next")
    assert payloads(queue.waiting()) == [b"odd", b"next"]
    assert queue.lease().release()
    lease = queue.lease(duration=0.001)
    assert (lease.job.payload, lease.job.attempt) == (b"odd", 1)
    expire(queue)
    lease = queue.lease()
    assert (lease.job.payload, lease.job.attempt, lease.token) == (b"odd", 2, 3)
    assert lease.retry()
    assert queue.lease().job.payload == b"next"
    lease = queue.lease()
    assert (lease.job.payload, lease.job.attempt, lease.token) == (b"odd", 3, 4)
    assert lease.dead_letter("no")
    assert [(state.job.payload, state.job.attempt) for state in queue.dead()] == [(b"odd", 3)]
    assert queue.redrive() == 1
    lease = queue.lease()
    assert (lease.job.payload, lease.job.attempt, lease.token) == (b"odd", 1, 5)
    assert queue.cancel_payload(b"odd") == 1
    assert lease.complete() is False
    counts = queue.counts()
    assert (counts.leased, counts.present) == (1, 1)  # 6.2 does not count what a bare XADD added


# -- listings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["the first page", "the last of it", "the first"])
def test_a_listing_misses_nothing_that_stays(queue, gone):
    """Delayed jobs that go while they are listed, in whatever place, hide none that stays."""
    queue.enqueue_many([NewJob(b"%d" % i, id=f"job {i}", delay=LONG + i // 7) for i in range(450)])
    page = queue._run(queue.ops.listing("delayed", ""))
    assert len(page.items) == 200
    listed = [state.job.id for state in page]
    leaving = {"the first page": listed, "the last of it": listed[-1:], "the first": listed[:1]}[gone]
    assert [queue.cancel(job) for job in leaving] == [True] * len(leaving)
    while page.cursor:
        page = queue._run(queue.ops.listing("delayed", page.cursor))
        listed += [state.job.id for state in page]
    assert set(listed) == {f"job {i}" for i in range(450)}
    assert len(listed) <= 450 + 6  # others of the same time may come twice
