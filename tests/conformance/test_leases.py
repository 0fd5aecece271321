"""Leasing. The tests cover the number of jobs, their duration, the waiting and the returned
values."""

from __future__ import annotations

import pickle
import threading
import time
from copy import copy
from datetime import timedelta

import pytest

from headrace import Counts, NewJob
from tests.support.awaiting import PATIENCE, until
from tests.support.colours import bare
from tests.support.steps import LONG, expire, key, leased, payloads, present

# -- how many --------------------------------------------------------------------------------------


def test_lease_many(queue):
    """Up to n jobs are leased in order. The result is shorter if there are fewer."""
    queue.enqueue_many([b"%d" % i for i in range(5)])
    assert [lease.job.payload for lease in queue.lease_many(2)] == [b"0", b"1"]
    assert [lease.job.payload for lease in queue.lease_many(1)] == [b"2"]
    assert [lease.job.payload for lease in queue.lease_many(10, block=LONG)] == [b"3", b"4"]
    assert queue.lease_many(10) == []
    assert present(queue) == {"leased": 5}


def test_a_lease_may_be_as_long_as_any_duration(connect):
    """Ten years are accepted as a lease of a queue, of a call or of a renewal. More is refused
    everywhere alike."""
    longest = 10 * 365 * 86400.0
    queue = connect(lease=longest)
    queue.enqueue_many([b"a", b"b"])
    leases = [queue.lease(), queue.lease(duration=longest)]
    assert [lease.renew() for lease in leases] == [True, True]
    assert leases[0].renew(longest)
    for call, name in (
        (lambda t: connect(lease=t), "lease"),
        (lambda t: queue.lease(duration=t), "duration"),
    ):
        with pytest.raises(
            ValueError, match=rf"^{name}=.*: give more than 0 and at most 3.1536e\+08 seconds$"
        ):
            call(longest + 1)


def test_a_lease_is_not_pickled(queue):
    """The lease belongs to the queue that made it. Its job can be pickled."""
    queue.enqueue(b"a", id="a")
    lease = bare(queue.lease())
    for take in (pickle.dumps, copy):
        with pytest.raises(
            TypeError,
            match=r"a (Async)?Lease is neither pickled nor copied: send its job, and settle it",
        ):
            take(lease)
    sent = pickle.loads(pickle.dumps(lease.job))
    assert (sent.id, sent.payload, sent.attempt) == ("a", b"a", 1)


def test_many_large_ones(queue):
    """One script leases about 1 MiB. A call repeats it until it has enough jobs or there are no
    more."""
    payloads = [b"%02d" % i * 100_000 for i in range(24)]
    queue.enqueue_many(payloads)
    assert [lease.job.payload for lease in queue.lease_many(20)] == payloads[:20]
    assert [lease.job.payload for lease in queue.lease_many(20, block=5)] == payloads[20:]
    assert queue.counts() == Counts(leased=24, enqueued=24)


def test_one_at_a_time(connect):
    """A job is leased to one client at a time, however many ask."""
    queues = [connect() for _ in range(3)]
    queues[0].enqueue_many([b"%d" % i for i in range(30)])
    got = []
    for _ in range(4):
        for queue in queues:
            got += [lease.job.payload for lease in queue.lease_many(3)]
    assert got == [b"%d" % i for i in range(30)]


def test_front_before_new(queue):
    """One call leases released jobs, then expired ones by age, then new ones."""
    queue.enqueue_many([b"%d" % i for i in range(6)])
    leases = queue.lease_many(4, duration=LONG)
    leases[3].renew(0.001)
    leases[1].renew(0.001)
    expire(queue, 2)
    leases[2].release()
    assert [lease.job.payload for lease in queue.lease_many(4)] == [b"1", b"2", b"3", b"4"]


def test_what_a_lease_knows(connect):
    """A lease knows its job, its token, and the name it was leased under, which is the client's
    own."""
    one, two = connect(), connect()
    one.enqueue_many([b"x"] * 3)
    first, second, third = one.lease(), one.lease(), two.lease()
    assert first.worker == second.worker != third.worker
    assert (first.token, first.job.queue, first.job.headers) == (1, "q", {})
    assert [state.worker for state in one.admin.running()] == [
        lease.worker for lease in (first, second, third)
    ]


# -- for how long ----------------------------------------------------------------------------------


def test_durations(connect):
    """A lease has the length of its queue or of its call. Shorter leases end first."""
    queue = connect(lease=LONG)
    queue.enqueue_many([b"%d" % i for i in range(5)])
    queue.lease()
    queue.lease(duration=timedelta(milliseconds=1))
    queue.lease_many(1, duration=LONG)
    queue.lease_many(2, duration=0.001)
    expire(queue, 3)
    assert payloads(queue.admin.running()) == [b"0", b"2"]
    assert payloads(queue.admin.waiting()) == [b"1", b"3", b"4"]


def test_duration_of_the_queue(connect):
    """A lease without a duration of its own lasts as long as the queue of the one who leased
    says."""
    short, long = connect(lease=timedelta(milliseconds=1)), connect(lease=LONG)
    short.enqueue_many([b"long", b"short"])
    long.lease()
    short.lease()
    expire(long)
    assert payloads(long.admin.waiting()) == [b"short"]


def test_a_lease_that_runs_out(connect):
    """A job of a silent holder comes back to others by itself, once and with its attempt spent
    (M-7, H-5)."""
    silent, queue = connect(lease=0.05), connect()
    silent.enqueue_many([b"%d" % i for i in range(3)])
    held = silent.lease_many(3)
    got = []
    while len(got) < 3:
        got += queue.lease_many(3 - len(got), block=PATIENCE)
    assert [(lease.job.payload, lease.job.attempt) for lease in got] == [
        (b"0", 2),
        (b"1", 2),
        (b"2", 2),
    ]
    assert [lease.renew() for lease in held] == [False] * 3
    assert queue.lease() is None


def test_others_are_left_alone(connect):
    """Leases of other clients, and other leases of the same client, stay when some leases expire
    (W-18)."""
    one, two = connect(), connect()
    one.enqueue_many([b"%d" % i for i in range(4)])
    one.lease()
    gone = one.lease()
    two.lease()
    gone.renew(0.001)
    expire(two)
    assert payloads(two.admin.running()) == [b"0", b"2"]
    assert gone.renew() is False


def test_many_reapers(connect):
    """However many clients look for expired leases, each job comes back once (H-5)."""
    connect().enqueue_many([b"x"] * 50)
    assert len(connect(lease=0.05).lease_many(50)) == 50
    others = [connect(lease=LONG) for _ in range(6)]
    got = []

    def all_are_back():
        got.extend(lease for other in others for lease in other.lease_many(10))
        return len(got) >= 50

    until(all_are_back)
    assert len({lease.job.id for lease in got}) == len(got) == 50
    assert {lease.job.attempt for lease in got} == {2}


# -- renew -----------------------------------------------------------------------------------------


def test_renew(queue):
    """A renewed lease starts again from now. The attempt, the token and the place of the job
    stay."""
    queue.enqueue_many([b"renewed", b"not", b"shortened"])
    leases = queue.lease_many(3, duration=0.2)
    assert leases[0].renew(LONG) is True
    assert leases[0].renew(timedelta(seconds=LONG)) is True
    assert leases[2].renew(0.001) is True
    expire(queue, 2)
    assert payloads(queue.admin.running()) == [b"renewed"]
    assert (leases[0].renew(), leases[1].renew(), leases[2].renew()) == (True, False, False)
    assert leases[0].release()
    again = queue.lease()
    assert (again.job.payload, again.job.attempt, again.token) == (b"renewed", 1, 2)


def test_renew_for_the_same_time(connect):
    """Without a duration a lease is renewed for as long as it was leased for."""
    queue = connect(lease=LONG)
    short, long = leased(queue, duration=0.001), leased(queue)
    assert (short.renew(), long.renew()) == (True, True)
    expire(queue)
    assert (short.renew(), long.renew()) == (False, True)
    assert long.renew(0.001)
    expire(queue)
    assert long.renew() is False


def test_renewals_are_seen(queue):
    """`since` of a running job is its last renewal."""
    lease = leased(queue)
    before = next(queue.admin.running()).since
    until(lambda: lease.renew() and next(queue.admin.running()).since > before)


# -- at most once ----------------------------------------------------------------------------------


@pytest.mark.differs("order")
def test_at_most_once(queue, client):
    """The job is complete before it is handed out. It runs at most once and needs no settlement
    (M-6)."""
    queue.enqueue_many([NewJob(b"%d" % i, id=str(i)) for i in range(5)])
    leases = [
        queue.lease(at_most_once=True),
        *queue.lease_many(9, at_most_once=True, duration=LONG),
    ]
    assert [(lease.job.id, lease.job.payload, lease.job.attempt) for lease in leases] == [
        (str(i), b"%d" % i, 1) for i in range(5)
    ]
    assert queue.counts() == Counts(enqueued=5, completed=5)
    assert [
        (lease.complete(), lease.release(), lease.retry(), lease.renew()) for lease in leases
    ] == [(False,) * 4] * 5
    assert queue.lease(at_most_once=True) is None
    assert client.xlen(key("jobs")) == 0
    assert not client.exists(key("ids"), key("leases"), key("released"))


def test_at_most_once_after_a_release(queue):
    """A job that was given back is as good as new."""
    leased(queue).release()
    lease = queue.lease(at_most_once=True)
    assert (lease.job.attempt, lease.token) == (1, 2)
    assert queue.counts() == Counts(enqueued=1, completed=1)


# -- waiting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 0.0, 0.0001, 0.2, timedelta(milliseconds=50)])
def test_waiting_in_vain(queue, block):
    """Without a job the call returns None in time. A time below a millisecond does not mean for
    ever (M-8)."""
    began = time.monotonic()
    assert queue.lease(block) is None
    assert queue.lease_many(5, block=block) == []
    least = block.total_seconds() if isinstance(block, timedelta) else block
    assert time.monotonic() - began >= 2 * least


@pytest.mark.differs("keys")
def test_ghosts_do_not_end_the_waiting(queue, client):
    """Entries that were removed by hand are skipped, and the call waits to the end of its time
    (M-11)."""
    queue.enqueue_many([b"x"] * 4)
    released, held, *_ = queue.lease_many(3, duration=0.001)
    released.release()
    expire(queue, 2)
    for state in list(queue.admin.waiting()):
        assert client.xdel(key("jobs"), state.entry) == 1
    began = time.monotonic()
    assert queue.lease_many(9, block=0.2) == []
    assert time.monotonic() - began >= 0.2
    assert not held.renew()
    assert present_now(queue) == {}
    queue.enqueue(b"next")
    assert queue.lease().job.payload == b"next"


def present_now(queue):
    """Return the same as `present`, although entries were removed without the counters."""
    counts = queue.counts()
    return {"present": counts.present} if counts.present else {}


ARRIVALS = {
    "enqueue": lambda other: other.enqueue(b"x"),
    "enqueue_many": lambda other: other.enqueue_many([b"x"]),
    "enqueue with an id": lambda other: other.enqueue(b"x", id="a"),
    "due": lambda other: other.enqueue(b"x", delay=0.05),
}
RETURNS = {
    "release": lambda lease, other: lease.release(),
    "retry": lambda lease, other: lease.retry(),
    "retry later": lambda lease, other: lease.retry(0.05),
    "redrive": lambda lease, other: lease.dead_letter("no") and other.admin.redrive(),
    "run out": lambda lease, other: lease.renew(0.05),
    "complete": lambda lease, other: lease.complete(then=[NewJob(b"x")]),
}


@pytest.mark.parametrize(
    ("arrival", "block"), [*((name, PATIENCE) for name in ARRIVALS), ("enqueue", None)]
)
def test_waiting_for_a_job(queue, meanwhile, arrival, block):
    """A waiting call gets a job that is enqueued meanwhile, also if it waits for ever (M-8)."""
    assert queue.lease() is None
    meanwhile(ARRIVALS[arrival])
    lease = queue.lease(block)
    assert lease.job.payload == b"x"
    assert lease.complete()


@pytest.mark.parametrize("back", [name for name in RETURNS if name != "run out"])
def test_waiting_for_a_job_that_comes_back(connect, meanwhile, back):
    """A waiting call gets a job that comes back meanwhile."""
    with connect.server.queue("q") as other:
        other.enqueue(b"x")
        held = other.lease()
        meanwhile(lambda _: RETURNS[back](held, other))
        (lease,) = connect().lease_many(5, block=PATIENCE)
        assert lease.job.payload == b"x"
        assert lease.complete()


@pytest.mark.differs("keys")
@pytest.mark.parametrize("back", ["enqueue", *RETURNS])
def test_woken(server, client, meanwhile, back):
    """A job that can be leased ends the blocked read itself. The caller does not wait for its next
    look."""
    with server.queue("q") as other, server.client(socket_timeout=None) as reader:
        other.enqueue(b"x")
        held = other.lease()

        def act(_):
            assert ARRIVALS[back](other) if back in ARRIVALS else RETURNS[back](held, other)
            if back == "run out":
                expire(other)

        meanwhile(act)
        assert reader.execute_command(*other.ops.wait(2 * PATIENCE))
        # a delay rings too, so that who waits learns of it
        assert other.lease(block=PATIENCE).job.payload == b"x"


def test_deleted_under_a_reader(queue, meanwhile):
    """A waiting call survives the deletion of the queue and gets the next job (W-13, W-14)."""
    queue.enqueue(b"before")
    assert queue.lease().complete()

    def delete_and_enqueue(other):
        other.admin.delete()
        other.enqueue(b"after")

    meanwhile(delete_and_enqueue)
    assert queue.lease(block=PATIENCE).job.payload == b"after"


def test_flushed_under_a_reader(queue, client, meanwhile):
    """A waiting client survives the loss of all keys, including the group and the wake stream."""
    assert queue.lease() is None

    def flush_and_enqueue(other):
        client.flushall()
        other.enqueue(b"after")

    meanwhile(flush_and_enqueue)
    assert queue.lease(block=PATIENCE).job.payload == b"after"
    assert present(queue) == {"leased": 1}


# -- several clients -------------------------------------------------------------------------------


def test_four_workers(connect):
    """Four clients share a thousand jobs. Each job is completed once by one of them (H-1)."""
    connect().enqueue_many([b"%d" % i for i in range(1000)])
    got, answers = [], []

    def work():
        with connect.server.queue("q") as queue:
            while leases := queue.lease_many(50):
                got.extend(lease.job.payload for lease in leases)
                answers.extend(queue.complete_many(leases))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(map(int, got)) == list(range(1000))
    assert answers == [True] * 1000
    assert connect().counts() == Counts(enqueued=1000, completed=1000)


def test_never_a_false_empty(connect):
    """Waiting and leased are counted at one instant. No job is counted twice or missed while jobs
    move (M-12)."""
    queue, over = connect(), threading.Event()
    queue.enqueue_many([b"x"] * 5)

    def move():
        with connect.server.queue("q") as other:
            while not over.is_set():
                for number, lease in enumerate(other.lease_many(3)):
                    if number % 2:
                        lease.release()
                    else:
                        lease.retry()

    mover = threading.Thread(target=move)
    mover.start()
    try:
        seen = [queue.counts() for _ in range(200)]
    finally:
        over.set()
        mover.join(PATIENCE)
    assert {(counts.present, counts.lost) for counts in seen} == {(5, 0)}
    assert len(set(seen)) > 1  # they did move
