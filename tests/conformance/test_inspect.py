"""Verbs about the whole queue. They are counts, listings, find, cancel, redrive, purge, delete,
results and workers."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from headrace import Counts, JobFailed, NewJob, Queue
from headrace._model import checks
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.sync.executor import Executor
from headrace.codecs import JSONCodec
from tests.support.awaiting import PATIENCE
from tests.support.steps import LONG, expire, key, leased, payloads, present, promote

MANY = 1050  # more than two calls of anything that goes through a queue take
PAGES = 450  # more than two pages of a listing


def in_every_state(queue):
    """Make one job in each state and return their ids."""
    queue.enqueue(b"x", id="delayed", delay=LONG)
    leases = {}
    for name in ("dead", "parked", "leased"):
        queue.enqueue(b"x", id=name)
        leases[name] = queue.lease()
    leases["dead"].dead_letter("no")
    leases["parked"].release()
    queue.enqueue(b"x", id="waiting")
    return ["waiting", "parked", "leased", "delayed", "dead"]


# -- listings --------------------------------------------------------------------------------------


def test_states(queue):
    """`find` tells the state of a job. The listings and the counts agree with it (G-14)."""
    states = in_every_state(queue)
    assert [queue.find(name).state for name in states] == states
    assert [(state.job.id, state.state) for state in queue.admin.waiting()] == [
        ("parked",) * 2,
        ("waiting",) * 2,
    ]
    assert [(state.job.id, state.state) for state in queue.admin.running()] == [("leased",) * 2]
    assert [(state.job.id, state.state) for state in queue.admin.delayed()] == [("delayed",) * 2]
    assert [(state.job.id, state.state) for state in queue.admin.dead()] == [("dead",) * 2]
    assert queue.counts() == Counts(waiting=1, parked=1, leased=1, delayed=1, dead=1, enqueued=5)
    for name, listing in (
        ("leased", queue.admin.running),
        ("delayed", queue.admin.delayed),
        ("dead", queue.admin.dead),
    ):
        (listed,), found = listing(), queue.find(name)
        for what in ("worker", "due", "reason"):
            assert getattr(listed, what) == getattr(found, what)
    assert queue.find("nobody") is None


def test_running(queue, client):
    """A running job is listed with its worker, its start and its attempt (H-11)."""
    before = client.time()[0]
    leased(queue, b"x", id="a", headers={"a": "b"}).retry()
    lease = queue.lease()
    (state,) = queue.admin.running()
    assert (state.job.id, state.job.payload, state.job.attempt) == ("a", b"x", 2)
    assert (state.job.headers, state.worker) == ({"a": "b"}, lease.worker)
    assert before <= state.since <= before + 30
    assert (state.due, state.reason) == (None, None)


@pytest.mark.differs("order")
def test_long_listings(connect):
    """Listings go on over as many pages as there are, in order, each job once."""
    queue = connect(codec=JSONCodec())
    queue.enqueue_many([NewJob(i, headers={"a": "b"}) if i % 50 == 0 else i for i in range(PAGES)])
    assert payloads(queue.admin.waiting()) == list(range(PAGES))
    assert len(queue.lease_many(PAGES, duration=0.001)) == PAGES
    assert payloads(queue.admin.running()) == list(range(PAGES))
    expire(queue, PAGES)
    assert payloads(queue.admin.waiting()) == list(range(PAGES))
    assert connect(codec=Broken()).lease_many(PAGES) == []
    assert payloads(queue.admin.dead()) == list(range(PAGES))
    queue.enqueue_many([NewJob(i, delay=LONG + i) for i in range(PAGES)])
    assert payloads(queue.admin.delayed()) == list(range(PAGES))
    assert present(queue) == {"dead": PAGES, "delayed": PAGES}


class Broken(JSONCodec):
    """A codec that decodes nothing."""

    def decode(self, data):
        raise ValueError("no")


@pytest.mark.differs("ops")
def test_pages(queue):
    """A page has as many jobs as asked for, and its cursor leads on. 45 jobs make pages of 10, 10,
    10, 10 and 5 (H-15).
    """
    queue.enqueue_many([b"x"] * 45)
    sizes, cursor, more = [], "", True
    while more:
        page = queue._run(queue.ops.listing("waiting", cursor, 10))
        sizes.append(len(page.items))
        cursor, more = page.cursor, bool(page.cursor)
    assert [size for size in sizes if size] == [10, 10, 10, 10, 5]


def test_peek(queue):
    """`peek` returns the job that would be leased next and does not lease it (W-10)."""
    assert queue.admin.peek() is None
    queue.enqueue_many([b"a", b"b"])
    assert queue.admin.peek().payload == queue.admin.peek().payload == b"a"
    lease = queue.lease()
    assert queue.admin.peek().payload == b"b"
    lease.release()
    assert (queue.admin.peek().payload, queue.admin.peek().attempt) == (b"a", 1)
    assert queue.lease_many(2)
    assert queue.admin.peek() is None


def test_looking_changes_nothing(queue, client):
    """Verbs that only read write no key."""
    in_every_state(queue)

    def everything():
        return {name: client.dump(name) for name in client.scan_iter() if b":lane:" not in name}

    before = everything()
    queue.counts()
    for name in ("waiting", "parked", "leased", "delayed", "dead", "nobody"):
        queue.find(name)
        with suppress(TimeoutError, JobFailed):
            queue.result(name)
    for listing in (
        queue.admin.waiting,
        queue.admin.running,
        queue.admin.delayed,
        queue.admin.dead,
    ):
        assert list(listing())
    queue.admin.peek()
    queue.admin.workers()
    assert everything() == before


ENDS = {
    "lease": lambda queue: queue.lease().complete(),
    "cancel": lambda queue: queue.cancel("a"),
    "cancel_payload": lambda queue: queue.admin.cancel_payload(b"rung") == 1,
    "purge": lambda queue: queue.admin.purge() == 2,
    "delete": lambda queue: queue.admin.delete() == 2,
}


@pytest.mark.differs("ops")
@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_woke_a_reader_who_is_gone(queue, client, end):
    """A job that woke a vanished reader waits like others, and comes before them."""
    assert queue.lease() is None
    queue.enqueue(b"rung", id="a")
    assert client.execute_command(*queue.ops.wait(0.01))
    queue.enqueue(b"next")
    assert [(state.job.payload, state.state) for state in queue.admin.waiting()] == [
        (b"rung", "waiting"),
        (b"next", "waiting"),
    ]
    assert (queue.find("a").state, queue.admin.peek().payload) == ("waiting", b"rung")
    assert list(queue.admin.running()) == []
    assert queue.counts() == Counts(waiting=2, enqueued=2)
    assert ENDS[end](queue)
    assert queue.find("a") is None
    assert queue.counts().lost == 0
    queue.enqueue(b"last")
    (*_, last) = queue.lease_many(9)
    assert (last.job.payload, last.job.attempt, last.token) == (b"last", 1, 1)


@pytest.mark.differs("ops")
def test_first_attempt_of_a_job_that_woke_a_reader(queue, client):
    """Waking a reader is no attempt. The first lease is the job's first attempt, whichever client
    has it."""
    assert queue.lease() is None
    queue.enqueue(b"x")
    assert client.execute_command(*queue.ops.wait(0.01))
    lease = queue.lease()
    assert (lease.job.attempt, lease.token) == (1, 1)
    assert lease.complete(fenced=True)


# -- find ------------------------------------------------------------------------------------------


@pytest.mark.differs("ops")
def test_find_among_many_dead(queue):
    """A dead job is found behind many others. Of one id that died twice, the last one is found."""
    queue.enqueue(b"first", id="a")
    queue.lease().dead_letter("first")
    queue.enqueue(b"second", id="a")
    queue.lease().dead_letter("second")
    foreign = [{}] * 250
    queue.enqueue_many([b"x"] * len(foreign))
    leases = queue.lease_many(len(foreign))
    queue._run(queue.ops.dead_letter([(lease.claim, "no") for lease in leases]))
    assert (queue.find("a").reason, queue.find("a").job.payload) == ("second", b"second")
    assert queue.find(leases[100].job.id).state == "dead"
    assert queue.enqueue(b"third", id="a").added
    assert queue.find("a").state == "waiting"


def test_find_by_receipt(queue):
    """A job without an own id is found by the id of its receipt in every state. Another entry's ID
    does not find it."""
    receipt = queue.enqueue(b"x")
    assert queue.find(receipt.id).state == "waiting"
    lease = queue.lease()
    assert queue.find(receipt.id).state == "leased"
    lease.retry()
    state = queue.find(receipt.id)
    assert (state.state, state.job.id, state.job.attempt) == ("waiting", receipt.id, 1)
    assert state.entry != receipt.id
    assert queue.find(state.entry) is None
    assert queue.cancel(state.entry) is False
    assert queue.find("0" + receipt.id) is None
    lease = queue.lease()
    lease.retry(LONG)
    assert queue.find(receipt.id).state == "delayed"
    assert queue.cancel(receipt.id) is True
    assert queue.find(receipt.id) is None


# -- cancel ----------------------------------------------------------------------------------------


def test_cancel(queue):
    """A job is cancelled in every state but dead. Its holder finds the lease lost, and the job
    never comes back (W-12).
    """
    states = in_every_state(queue)
    (lease,) = queue.admin.running()
    assert [queue.cancel(name) for name in states] == [True, True, True, True, False]
    assert [queue.cancel(name) for name in states] == [False] * 5
    assert [queue.find(name) and queue.find(name).state for name in states] == [None] * 4 + ["dead"]
    assert queue.counts() == Counts(dead=1, enqueued=5, cancelled=4)
    assert (queue.lease(), list(queue.admin.running()), lease.job.id) == (None, [], "leased")


def test_cancelled_under_its_holder(queue):
    """The holder of a cancelled job settles nothing, and no record of the job is left (W-12)."""
    lease = leased(queue, id="a")
    assert queue.cancel("a")
    assert (lease.renew(), lease.release(), lease.retry(), lease.retry(LONG)) == (False,) * 4
    assert (lease.dead_letter("no"), lease.complete(b"x")) == (False, False)
    with pytest.raises(JobFailed, match="cancelled"):
        queue.result("a")
    assert queue.counts() == Counts(enqueued=1, cancelled=1)


def test_cancel_payload(queue):
    """Every job of a payload is cancelled in every state but dead, and no other job (W-11)."""
    held = [
        leased(queue, b"x"),
        leased(queue, b"x", id="id"),
        leased(queue, b"x"),
        leased(queue, b"other"),
    ]
    assert held[0].release()
    assert held[2].dead_letter("no")
    queue.enqueue_many(
        [
            b"x",
            b"xx",
            "x",
            NewJob(b"x", delay=LONG),
            NewJob(b"y", delay=LONG),
            NewJob(b"x", headers={"a": "b"}),
        ]
    )
    assert queue.admin.cancel_payload("x") == 6
    assert queue.admin.cancel_payload(b"x") == 0
    assert held[1].complete() is False
    assert queue.enqueue(b"x", id="id").added
    assert payloads(queue.admin.waiting()) == [b"xx", b"x"]
    assert payloads(queue.admin.delayed()) == [b"y"]
    assert queue.counts() == Counts(
        waiting=2, leased=1, delayed=1, dead=1, enqueued=11, cancelled=6
    )


def test_cancel_a_payload_of_many(queue):
    """A payload is cancelled however long the queue is."""
    jobs = [b"x" if i % 3 else b"y" for i in range(MANY)]
    queue.enqueue_many(jobs)
    queue.enqueue_many([NewJob(job, delay=LONG) for job in jobs])
    assert queue.admin.cancel_payload(b"x") == 2 * jobs.count(b"x")
    assert (
        payloads(queue.admin.waiting())
        == payloads(queue.admin.delayed())
        == [b"y"] * jobs.count(b"y")
    )


def test_cancel_by_what_the_codec_makes(connect):
    """A payload to cancel is encoded like one to enqueue."""
    queue = connect(codec=JSONCodec())
    queue.enqueue_many([{"a": 1}, [1], {"a": 1}])
    assert queue.admin.cancel_payload({"a": 1}) == 2
    assert payloads(queue.admin.waiting()) == [[1]]


# -- redrive and purge -----------------------------------------------------------------------------


def bury(queue, *names):
    for name in names:
        leased(queue, name, id=name, headers={"h": name}).dead_letter(f"because {name}")


@pytest.mark.differs("order")
def test_redrive(queue):
    """Dead letters go to the back, oldest first, with their id, headers and first time. Their
    attempts start anew."""
    bury(queue, "a", "b", "c")
    died = {state.job.id: state.job for state in queue.admin.dead()}
    queue.enqueue(b"before")
    assert queue.admin.redrive("c", "a", "nobody") == 2
    assert queue.admin.redrive() == 1
    assert queue.admin.redrive() == 0
    leases = queue.lease_many(9)
    assert [lease.job.payload for lease in leases] == [b"before", b"a", b"c", b"b"]
    for lease in leases[1:]:
        job = died[lease.job.id]
        assert (lease.job.headers, lease.job.enqueued_at) == (job.headers, job.enqueued_at)
        assert (lease.job.attempt, lease.token) == (1, 2)
        assert not queue.enqueue(b"x", id=lease.job.id).added
    assert queue.counts() == Counts(leased=4, enqueued=4)


def test_a_letter_is_mended_and_sent_again(queue, connect):
    """The change and the redrive are one step. The job keeps its id, headers and first time. Its
    attempts start anew.
    """
    queue.enqueue(b"bad", id="i", headers={"kind": "mail"})
    queue.lease().dead_letter("why")
    (died,) = [state.job for state in queue.admin.dead()]
    for ids, payload, text in [
        ((), b"x", "payload= with 0 ids: give the id of one job"),
        (("i", "j"), b"x", "payload= with 2 ids: give the id of one job"),
        (("i",), bytes(checks.VALUE_BYTES + 1), "payload"),
    ]:
        with pytest.raises(ValueError, match=text):
            queue.admin.redrive(*ids, payload=payload)
    with pytest.raises(TypeError, match="payload must be bytes or str"):
        queue.admin.redrive("i", payload=None)
    assert queue.admin.redrive("nobody", payload=b"x") == 0
    assert payloads(queue.admin.dead()) == [b"bad"]
    assert queue.admin.redrive("i", payload=b"") == 1
    job = queue.lease().job
    assert (job.payload, job.id, job.headers, job.enqueued_at) == (
        b"",
        "i",
        died.headers,
        died.enqueued_at,
    )
    assert job.attempt == 1
    assert not list(queue.admin.dead())


@pytest.mark.differs("order")
def test_redrive_of_a_taken_id(queue):
    """A dead letter whose id is taken again stays where it is, until the id is free."""
    bury(queue, "a", "b", "a")
    assert [state.job.id for state in queue.admin.dead()] == ["a", "b", "a"]
    assert queue.admin.redrive("a") == 1
    assert queue.admin.redrive() == 1
    assert [state.reason for state in queue.admin.dead()] == ["because a"]
    assert queue.cancel("a")
    assert queue.admin.redrive() == 1
    assert payloads(queue.admin.waiting()) == [b"b", b"a"]


def test_redriven_and_out_of_attempts(connect):
    """A redriven job has all its attempts again."""
    queue = connect(max_attempts=2)
    queue.enqueue(b"x")
    for _ in range(2):
        for attempt in (1, 2):
            lease = queue.lease()
            assert lease.job.attempt == attempt
            assert lease.retry()
        assert present(queue) == {"dead": 1}
        assert queue.admin.redrive() == 1


def test_redrive_and_purge_many(connect):
    """However many dead letters there are, all go back, or all are purged."""
    queue, broken = connect(dead_limit=MANY), connect(codec=Broken(), dead_limit=MANY)
    queue.enqueue_many([b"%d" % i for i in range(MANY)])
    assert broken.lease_many(MANY) == []
    assert queue.admin.redrive() == MANY
    assert payloads(queue.admin.waiting()) == [b"%d" % i for i in range(MANY)]
    assert broken.lease_many(MANY) == []
    assert queue.admin.purge_dead() == MANY
    assert queue.counts() == Counts(enqueued=MANY, dead_trimmed=MANY)


def test_purge_dead(queue):
    """Dead letters are removed for good, either all or those with the given ids."""
    bury(queue, "a", "b", "c", "a")
    assert queue.admin.purge_dead("a", "nobody") == 2
    assert [state.job.id for state in queue.admin.dead()] == ["b", "c"]
    assert queue.admin.purge_dead() == 2
    assert queue.admin.purge_dead() == 0
    assert queue.admin.redrive() == 0
    assert queue.counts() == Counts(enqueued=4, dead_trimmed=4)


@pytest.mark.sampled("colour")
@pytest.mark.differs("parts")
@pytest.mark.parametrize("verb", ["redrive", "purge", "purge_dead", "move", "expire"])
def test_what_comes_after_a_verb_has_begun_is_left_alone(connect, server, monkeypatch, verb):
    """Each page meets as many new jobs as it took. The verb still ends, and has done all that was
    there at its start.
    """
    queue, other = connect("g/q", dead_limit=10_000), server.queue("g/q", dead_limit=10_000)
    leases = []

    def bring(number: int) -> None:
        other.enqueue_many([b"x"] * number)
        if verb in {"redrive", "purge_dead"}:
            for lease in other.lease_many(number):
                lease.dead_letter("why")
        if verb == "expire":
            leases.extend(other.lease_many(number))

    asked = []
    send = Executor.run if isinstance(queue, Queue) else AsyncExecutor.run

    def run(self, op, *more, **options):
        if op.name == verb and self is not other._executor:
            asked.append(op)
            if len(asked) > 1:
                assert len(asked) < 30, "it never ends"
                bring(300)
        return send(self, op, *more, **options)

    # more than two pages of the verb's
    first = {"redrive": 350, "purge_dead": 1050}.get(verb, 1500)
    with other:
        bring(first)
        monkeypatch.setattr(Executor if isinstance(queue, Queue) else AsyncExecutor, "run", run)
        done = queue.admin.move("g/r") if verb == "move" else getattr(queue.admin, verb)()
    assert len(asked) > 2
    assert done == first


def test_purge(queue):
    """A purge removes waiting, parked and delayed jobs. Leased and dead jobs stay."""
    in_every_state(queue)
    assert queue.admin.purge() == 3
    assert queue.admin.purge() == 0
    assert queue.counts() == Counts(leased=1, dead=1, enqueued=5, deleted=3)
    assert [
        queue.enqueue(b"x", id=name).added for name in ("waiting", "parked", "delayed", "leased")
    ] == [True] * 3 + [False]


def test_purge_many(queue):
    """The purge takes any number of waiting jobs."""
    queue.enqueue_many([b"x"] * MANY)
    for lease in queue.lease_many(10):
        lease.release()
    queue.enqueue_many([NewJob(b"x", delay=LONG)] * MANY)
    assert queue.admin.purge() == 2 * MANY
    assert queue.counts() == Counts(enqueued=2 * MANY, deleted=2 * MANY)


# -- delete ----------------------------------------------------------------------------------------


@pytest.mark.differs("keys")
def test_delete(queue, client):
    """All jobs go in whatever state. Holders find their leases lost, and no job comes back
    (W-13)."""
    leases = [leased(queue, duration=LONG) for _ in range(6)]
    in_every_state(queue)
    assert queue.admin.delete() == 11
    assert queue.admin.delete() == 0
    assert queue.counts() == Counts(enqueued=11, deleted=11)
    assert [
        list(listing())
        for listing in (
            queue.admin.waiting,
            queue.admin.running,
            queue.admin.delayed,
            queue.admin.dead,
        )
    ] == [[]] * 4
    assert (
        leases[0].complete(),
        leases[1].release(),
        leases[2].retry(),
        leases[3].retry(LONG),
    ) == (False,) * 4
    assert (leases[4].dead_letter("no"), leases[5].renew()) == (False, False)
    assert queue.lease() is None
    assert queue.counts() == Counts(enqueued=11, deleted=11)
    left = {name.rpartition(b":")[2] for name in client.scan_iter() if b":lane:" not in name}
    assert left <= {b"jobs", b"wake", b"stats", b"workers", b"registered"}


def test_used_again_after_delete(queue):
    """A deleted queue is made again by an enqueue. Old leases do not fit the new jobs, whose ids
    are new (W-14)."""
    queue.enqueue_many([NewJob(b"old", id="a"), b"old"])
    old = queue.lease_many(2)
    queue.admin.delete()
    receipts = queue.enqueue_many([NewJob(b"new", id="a"), b"new"])
    assert receipts[1].id not in {lease.job.id for lease in old}
    assert queue.complete_many(old) == [False, False]
    new = queue.lease_many(9)
    assert [(lease.job.payload, lease.job.attempt) for lease in new] == [(b"new", 1)] * 2
    assert queue.complete_many(old) == [False, False]
    assert queue.complete_many(new) == [True, True]
    assert queue.counts() == Counts(enqueued=4, completed=2, deleted=2)


@pytest.mark.differs("keys")
def test_entry_ids_never_repeat(queue, client):
    """The IDs of a deleted queue are continued, because a lease of an earlier job may still be in
    use."""
    client.xadd(key("jobs"), {"data": b"old"}, id="9999999999999-7")
    old = queue.lease()
    assert queue.admin.delete() == 1
    milliseconds, number = queue.enqueue(b"new").id.split("-")
    assert (milliseconds, int(number) > 7) == ("9999999999999", True)
    assert old.complete() is False
    assert payloads(queue.admin.waiting()) == [b"new"]


def test_results_outlive_the_queue(queue):
    """A result that was kept is there after the queue is deleted, until its time is over."""
    assert leased(queue, id="a").complete(b"x")
    queue.admin.delete()
    assert queue.result("a") == b"x"


# -- results ---------------------------------------------------------------------------------------


def test_waiting_for_a_result(connect):
    """A waiting caller gets a result as soon as it is there, and `TimeoutError` when the time is
    over."""
    queue = connect()
    queue.enqueue(b"x", id="a")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        queue.result("a", timeout=0.15)
    assert time.monotonic() - began >= 0.15

    def complete():
        with connect.server.queue("q") as other:
            other.lease().complete(b"done")

    worker = threading.Thread(target=complete)
    worker.start()
    assert queue.result("a", timeout=PATIENCE) == b"done"
    worker.join(PATIENCE)
    assert queue.result("a", timeout=0) == b"done"


# -- workers ---------------------------------------------------------------------------------------


@pytest.mark.differs("parts")
def test_workers(connect, client):
    """A leasing client is listed with the number of its jobs and the end of its registration. A
    reading client is not (W-4).
    """
    one, two, idle = connect(lease=LONG), connect(), connect()
    one.enqueue_many([b"x"] * 5)
    assert idle.admin.workers() == []
    before = client.time()[0]
    held = one.lease_many(3)
    two.lease()
    workers = {worker.name: worker for worker in idle.admin.workers()}
    assert set(workers) == {state.worker for state in one.admin.running()}
    mine = workers[held[0].worker]
    assert (mine.leased, mine.queue, mine.alive) == (3, "q", True)
    assert before <= mine.since <= before + 30
    assert mine.deadline >= mine.since + LONG
    one.complete_many(held)
    assert [worker.leased for worker in one.admin.workers() if worker.name == mine.name] == [0]


def test_nothing_grows(queue, client):
    """When all jobs are done, the remaining keys do not depend on the number of jobs."""
    for _ in range(3):
        queue.enqueue_many(
            [NewJob(b"%d" % i, id=str(i), delay=0.001 if i % 2 else None) for i in range(40)]
        )
        promote(queue, 20)
        for number, lease in enumerate(queue.lease_many(40, duration=0.001)):
            assert lease.renew(LONG if number % 3 else 0.001)
        expire(queue, 14)
        for lease in queue.lease_many(40):
            assert lease.release()
        for lease in queue.lease_many(40):
            assert lease.retry()
        queue.admin.purge()
        for state in list(queue.admin.running()):
            assert queue.cancel(state.job.id)
    assert present(queue) == {}
    sizes = {
        "ids": client.hlen,
        "leases": client.zcard,
        "released": client.hlen,
        "delayed": client.zcard,
    }
    sizes |= {"bodies": client.hlen, "jobs": client.xlen, "dead": client.xlen}
    assert {part: size(key(part)) for part, size in sizes.items()} == dict.fromkeys(sizes, 0)
    assert client.xlen(key("wake")) <= 16
    assert all(client.ttl(lane) > 0 for lane in client.scan_iter("*:lane:*"))


# -- what woke a reader ----------------------------------------------------------------------------


@pytest.mark.differs("ops")
def test_to_wake_a_reader_shows_no_attempt(queue, client):
    """A retried job that woke a reader has had one attempt, in every listing, until somebody leases
    it."""
    queue.enqueue(b"x", id="a")
    queue.lease().retry()
    assert client.execute_command(*queue.ops.wait(0.01))
    assert [state.job.attempt for state in queue.admin.waiting()] == [1]
    assert (queue.admin.peek().attempt, queue.find("a").job.attempt, queue.find("a").state) == (
        1,
        1,
        "waiting",
    )
    assert queue.lease().job.attempt == 2
