"""Jobs that wait for their time, by the server's clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest

from headrace import Counts, NewJob
from tests.support.awaiting import PATIENCE, until
from tests.support.steps import LONG, key, leased, payloads, present, promote, somebody_waits


def test_delayed(queue):
    """A delayed job is not leased. It is listed with its due time, and the earliest comes first."""
    for payload, delay in ((b"3", 3 * LONG), (b"1", LONG), (b"2", timedelta(seconds=2 * LONG))):
        assert queue.enqueue(payload, delay=delay).added
    assert queue.lease() is None
    assert queue.admin.peek() is None
    states = list(queue.admin.delayed())
    assert payloads(states) == [b"1", b"2", b"3"]
    assert [state.state for state in states] == ["delayed"] * 3
    assert [round(state.due - state.job.enqueued_at) for state in states] == [
        LONG,
        2 * LONG,
        3 * LONG,
    ]
    assert queue.counts() == Counts(delayed=3, enqueued=3)


@pytest.mark.differs("order")
def test_due(queue):
    """A due job goes to the back, and a waiting caller leases it. It keeps its first time and
    attempt 1."""
    late = queue.enqueue(b"late", delay=0.1, headers={"a": "b"})
    enqueued_at = next(queue.admin.delayed()).job.enqueued_at
    queue.enqueue(b"first")
    first = queue.lease(block=PATIENCE)
    lease = queue.lease(block=PATIENCE)
    assert (first.job.payload, lease.job.payload) == (b"first", b"late")
    assert (lease.job.id, lease.job.attempt, lease.token) == (late.id, 1, 1)
    assert (lease.job.headers, lease.job.enqueued_at) == ({"a": "b"}, enqueued_at)
    assert lease.claim.leased_at >= enqueued_at + 0.1
    assert lease.complete()
    assert queue.find(late.id) is None


def test_one_after_the_other(queue):
    """Jobs with increasing times become due in the order of their times (H-14)."""
    delays = [0.15, 0.05, 0.1, LONG]
    queue.enqueue_many([NewJob(b"%g" % delay, delay=delay) for delay in delays])
    got = [queue.lease(block=PATIENCE).job.payload for _ in range(3)]
    assert got == [b"0.05", b"0.1", b"0.15"]
    assert present(queue) == {"leased": 3, "delayed": 1}


def test_moments(queue, client):
    """An aware datetime is a moment of the server's clock, in whatever time zone."""
    now = datetime.fromtimestamp(client.time()[0], UTC)
    moments = [now + timedelta(hours=hours) for hours in (1, 2, 3)]
    zones = [UTC, timezone(timedelta(hours=9)), timezone(timedelta(hours=-3, minutes=-30))]
    jobs = [
        NewJob(b"x", delay=moment.astimezone(zone))
        for moment, zone in zip(moments, zones, strict=True)
    ]
    queue.enqueue_many(jobs)
    assert [state.due for state in queue.admin.delayed()] == [
        moment.timestamp() for moment in moments
    ]


@pytest.mark.parametrize("delay", [None, 0, 0.0, timedelta(0), datetime(1, 1, 1, tzinfo=UTC)])
def test_no_delay(queue, delay):
    """No delay, or a moment that has passed, is now."""
    assert queue.enqueue(b"x", delay=delay).added
    assert queue.lease().job.payload == b"x"


def test_the_shortest_delay(queue):
    """A delay below a millisecond is a delay, and over at once."""
    queue.enqueue(b"x", delay=1e-9)
    assert queue.lease(block=PATIENCE).job.payload == b"x"


def test_far_away(queue):
    """Delays may be years."""
    queue.enqueue(b"x", delay=timedelta(days=3650))
    queue.enqueue(b"x", delay=datetime(2999, 12, 31, tzinfo=UTC))
    assert [state.state for state in queue.admin.delayed()] == ["delayed"] * 2
    assert (
        next(queue.admin.delayed()).due
        > next(queue.admin.delayed()).job.enqueued_at + 3600 * 24 * 3649
    )


def test_delays_and_ids(queue):
    """A delayed job has its id. After a cancel, a purge or a delete it never becomes due (G-11)."""
    ends = {
        "a": queue.cancel,
        "b": lambda _: queue.admin.cancel_payload(b"b"),
        "c": lambda _: queue.admin.purge(),
    }
    for name, end in ends.items():
        queue.enqueue(name, id=name, delay=0.05)
        assert not queue.enqueue(b"x", id=name).added
        assert queue.find(name).due > queue.find(name).job.enqueued_at
        assert end(name) == 1
        assert queue.find(name) is None
    queue.enqueue(b"d", id="d", delay=0.05)
    assert queue.admin.delete() == 1
    queue.enqueue(b"witness", delay=0.06)
    assert queue.lease(block=PATIENCE).job.payload == b"witness"
    assert queue.lease() is None
    assert queue.counts() == Counts(leased=1, enqueued=5, cancelled=2, deleted=2)


def test_delays_leave_nothing(queue, client):
    """Once due and done, nothing of a delayed job is left."""
    queue.enqueue(b"x", delay=0.001)
    promote(queue)
    assert queue.lease().release()
    assert queue.lease().retry(0.001)
    promote(queue)
    assert queue.lease().complete()
    assert not client.exists(key("delayed"), key("bodies"), key("ids"), key("released"))


def test_many_due_at_once(queue):
    """Hundreds of jobs that come due at once are all there, in order."""
    queue.enqueue_many([NewJob(b"%d" % i, delay=0.001) for i in range(700)])
    got = []

    def all_came():
        got.extend(queue.lease_many(1000))
        return len(got) >= 700

    until(all_came)
    assert sorted(int(lease.job.payload) for lease in got) == list(range(700))
    assert queue.complete_many(got) == [True] * 700


def test_attempts_and_delays(queue):
    """A delayed retry spends an attempt like any retry. Attempts and tokens are counted on."""
    lease = leased(queue)
    assert lease.release()
    for attempt in (1, 2, 3):
        lease = queue.lease()
        assert (lease.job.attempt, lease.token) == (attempt, attempt + 1)
        assert lease.retry(0.001)
        assert (
            next(queue.admin.delayed(), None) is None
            or next(queue.admin.delayed()).job.attempt == attempt
        )
        promote(queue)


# -- reschedule ------------------------------------------------------------------------------------


def test_rescheduled(queue):
    """Brought forward or pushed back, a delayed job is listed, found and cancelled as before, at
    its new place."""
    for name, delay in (("a", LONG), ("b", 2 * LONG), ("c", 3 * LONG)):
        queue.enqueue(name, id=name, delay=delay, headers={"a": "b"})
    before = queue.find("c")
    assert queue.admin.reschedule("c", timedelta(seconds=LONG / 2))
    assert queue.admin.reschedule("a", 4 * LONG)
    assert queue.admin.reschedule("b", datetime(2999, 1, 1, tzinfo=UTC))
    states = list(queue.admin.delayed())
    assert payloads(states) == [b"c", b"a", b"b"]
    assert states[2].due == datetime(2999, 1, 1, tzinfo=UTC).timestamp()
    found = queue.find("c")
    assert round(before.due - found.due) in range(round(2.5 * LONG) - 30, round(2.5 * LONG) + 1)
    assert (found.job.headers, found.job.enqueued_at) == (
        before.job.headers,
        before.job.enqueued_at,
    )
    assert queue.cancel("c")
    assert not queue.admin.reschedule("c", 1)
    assert queue.counts() == Counts(delayed=2, cancelled=1, enqueued=3)


@pytest.mark.differs("order")
@pytest.mark.parametrize("delay", [None, 0, datetime(2001, 1, 1, tzinfo=UTC)])
def test_rescheduled_to_now(queue, delay):
    """It goes to the back of the queue, behind the waiting jobs, with its attempts and its id."""
    lease = leased(queue, b"late", id="late")
    assert lease.retry(LONG)
    queue.enqueue(b"first")
    assert queue.admin.reschedule("late", delay)
    assert [lease.job.payload for lease in (queue.lease(), queue.lease())] == [b"first", b"late"]
    assert queue.find("late").job.attempt == 2
    assert not queue.enqueue(b"x", id="late").added
    assert present(queue) == {"leased": 2}


def test_rescheduled_while_somebody_waits(connect, server):
    """A blocked reader learns of a delay that is now the first to end."""
    queue = connect()
    name = queue.enqueue(b"x", delay=LONG).id
    with server.queue("q") as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.lease, PATIENCE)
        somebody_waits(server)
        assert queue.admin.reschedule(name, 0.05)
        lease = waiting.result()
        assert lease.job.id == name
        assert lease.complete()


@pytest.mark.differs("keys")
def test_a_delay_by_another_client_while_a_reader_is_blocked(connect, server):
    """A delay wakes the reader at once, after an enqueue, a retry or a follow-up (G-9)."""
    queue = connect()
    first, second = leased(queue), leased(queue)
    ways = [
        lambda: queue.enqueue(b"x", delay=0.05),
        lambda: first.retry(0.05),
        lambda: second.complete(then=[NewJob(b"x", delay=0.05)]),
    ]
    for way in ways:
        with server.client() as client:
            client.xtrim(key("wake"), maxlen=0)
            assert way()
            assert client.xlen(key("wake")) == 1  # rung
            assert queue.enqueue(b"later", delay=LONG).added
            assert client.xlen(key("wake")) == 1
        lease = queue.lease(block=PATIENCE)
        assert lease.job.payload == b"x"
        assert lease.complete()
        assert queue.admin.purge() == 1


@pytest.mark.differs("ops")
def test_promotion_is_in_the_order_of_due_times(queue, client):
    """Any number of late jobs is promoted in the order of due times."""
    queue.enqueue_many([NewJob(b"%d" % i, id=f"{i}", delay=LONG) for i in range(250)])
    client.zadd(key("delayed"), {f"{i}": 1000 - i for i in range(250)})
    until(lambda: promoted_all(queue))
    assert payloads(queue.admin.waiting()) == [b"%d" % i for i in reversed(range(250))]


def promoted_all(queue):
    queue._run(queue.ops.reclaim("sweeper", 10.0))
    return queue.counts().delayed == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((5, 1), TypeError), (("", 1), ValueError), (("i", -1), ValueError), (("i", "1"), TypeError)],
)
def test_rescheduled_wrongly(queue, arguments, error):
    with pytest.raises(error):
        queue.admin.reschedule(*arguments)
