"""Traps of the semantics, one test each. They concern completion, the count of deliveries, and
checks before writes."""

from __future__ import annotations

import pytest
import redis

from headrace import Counts, NewJob
from headrace._protocol.limits import CLAIMS_PER_SCRIPT
from tests.support.awaiting import until
from tests.support.steps import LONG, expire, key, leased, payloads, present, promote

# -- finishing is a fact about the job, everything else a decision about a lease -------------------

FENCED = {
    "release": lambda queue, claims: queue.ops.release(claims),
    "renew": lambda queue, claims: queue.ops.renew(claims),
    "renew for long": lambda queue, claims: queue.ops.renew(claims, duration=LONG),
    "retry": lambda queue, claims: queue.ops.retry([(claim, None, True, "") for claim in claims]),
    "retry later": lambda queue, claims: queue.ops.retry(
        [(claim, LONG, False, "") for claim in claims]
    ),
    "dead_letter": lambda queue, claims: queue.ops.dead_letter([(claim, "no") for claim in claims]),
    "complete": lambda queue, claims: queue.ops.complete(claims, fenced=True),
}


def everything(client):
    """Return all keys with their values, except records of calls, registrations and ages of
    leases."""
    held = {}
    for name in sorted(client.scan_iter()):
        part = name.decode().rpartition(":")[2]
        if part not in ("workers", "registered") and b":lane:" not in name:
            held[part] = client.dump(name)
    rows = client.xpending_range(key("jobs"), "workers", "-", "+", 1000)
    held["jobs"] = [
        client.xrange(key("jobs")),
        [(r["message_id"], r["consumer"], r["times_delivered"]) for r in rows],
    ]
    return held


@pytest.mark.differs("keys")
@pytest.mark.parametrize("many", [1, 3], ids=["one", "many"])
@pytest.mark.parametrize("present_holder", ["another", "the same", "nobody"])
def test_a_stale_lease_decides_nothing(connect, client, many, present_holder):
    """A lost lease moves no job by any verb, one by one or in bulk, even if its owner holds the job
    again. A fenced completion fails too.
    """
    one, two = connect(lease=LONG), connect(lease=LONG)
    one.enqueue_many([b"%d" % i for i in range(many)])
    stale = one.lease_many(many, duration=0.001)
    expire(two, many)
    if present_holder != "nobody":
        holder = one if present_holder == "the same" else two
        fresh = holder.lease_many(many)
        assert len(fresh) == many
    before = everything(client)
    for verb, build in FENCED.items():
        assert one._run(build(one, [lease.claim for lease in stale])) == [False] * many, verb
    assert everything(client) == before
    if present_holder != "nobody":
        assert holder.complete_many(fresh, fenced=True) == [True] * many


@pytest.mark.differs("ops")
@pytest.mark.parametrize("verb", FENCED)
def test_a_batch_of_all_sorts(connect, verb):
    """One call settles the held leases among many and changes nothing about the others."""
    one, two = connect(lease=LONG), connect(lease=LONG)
    one.enqueue_many([b"%d" % i for i in range(6)])
    leases = one.lease_many(6)
    assert leases[1].complete()
    assert leases[3].release()
    assert two.lease().job.payload == b"3"
    assert leases[4].release()
    again = one.lease()
    assert again.job.payload == b"4"
    verdicts = one._run(FENCED[verb](one, [lease.claim for lease in leases]))
    assert verdicts == [True, False, True, False, False, True]
    settled = {
        "release": {"parked": 3},
        "renew": {"leased": 3},
        "renew for long": {"leased": 3},
        "retry": {"waiting": 3},
        "retry later": {"delayed": 3},
        "dead_letter": {"dead": 3},
        "complete": {},
    }[verb]
    assert present(one) == {**settled, "leased": 2 + settled.get("leased", 0)}
    assert again.renew()


def test_the_first_completer_wins(connect):
    """A stale holder may complete a job that is not complete, in any state, but not its later
    entry."""
    one, two = connect(lease=LONG), connect(lease=LONG)
    one.enqueue_many([b"leased", b"parked", b"retried", b"delayed", b"dead"])
    stale = one.lease_many(5, duration=0.001)
    expire(two, 5)
    fresh = two.lease_many(5)
    assert fresh[1].release()
    assert fresh[2].retry()
    assert fresh[3].retry(LONG)
    assert fresh[4].dead_letter("no")
    assert one.complete_many(stale) == [True, True, False, False, False]
    assert two.complete(fresh[0]) is False
    assert present(two) == {"waiting": 1, "delayed": 1, "dead": 1}


def test_the_fence_of_a_queue(connect):
    """fenced=True of a queue applies to its completions, and a call may override it."""
    one, two = connect(lease=LONG, fenced=True), connect(lease=LONG)
    one.enqueue_many([b"a", b"b"])
    stale = one.lease_many(2, duration=0.001)
    expire(two, 2)
    assert len(two.lease_many(2)) == 2
    assert one.complete_many(stale) == [False, False]
    assert stale[0].complete() is False
    assert stale[0].complete(fenced=False) is True
    assert one.complete_many(stale, fenced=False) == [False, True]


# -- who is there ----------------------------------------------------------------------------------


@pytest.mark.differs("parts")
def test_readers_have_names_of_their_own(connect, client):
    """Each queue has its own name for leases, and is registered before it holds a job."""
    queues = [connect() for _ in range(5)]
    for queue in queues:
        assert queue.lease() is None
        assert queue._leaser.name in {worker.name for worker in queue.admin.workers()}
    assert len({worker.name for worker in queues[0].admin.workers()}) == 5
    assert all(worker.alive and worker.leased == 0 for worker in queues[0].admin.workers())
    queues[0].enqueue(b"a")
    lease = queues[1].lease()
    assert [
        (worker.name, worker.leased) for worker in queues[0].admin.workers() if worker.leased
    ] == [(lease.worker, 1)]


@pytest.mark.differs("ops")
def test_a_blocking_read_is_bounded(queue):
    """A wait is always bounded, also after rounding."""
    for block in (0.0, 1e-9, 0.0001, 0.5, 1.0):
        command = queue.ops.wait(block)
        milliseconds = command[command.index("BLOCK") + 1]
        assert milliseconds >= 1
        assert milliseconds <= max(1, block * 1000)
        assert command[command.index("COUNT") + 1] == 1
    for block in (0, 1e-9, 0.0001, 0.02):
        assert queue.lease(block=block) is None


def test_our_connections_send_nothing_again(queue):
    """The client library's own retries, which send a command again that was carried out, are
    off."""
    assert queue.lease() is None
    retry = queue._executor.pool.connection_kwargs["retry"]
    assert retry.get_retries() == 0


# -- what is written, and when ---------------------------------------------------------------------


@pytest.fixture
def full(client):
    """Fill the server. From then on it accepts no new job."""
    yield lambda: client.config_set("maxmemory", 1)
    client.config_set("maxmemory", 0)


@pytest.mark.differs("ops")
def test_a_full_server_is_drained(connect, client, full):
    """A server out of memory refuses new jobs. Its jobs can be settled in every way, and no worker
    looks dead."""
    queue = connect(lease=LONG, dead_limit=5)
    queue.enqueue_many([NewJob(b"%d" % i, id=f"j{i}") for i in range(9)])
    queue.enqueue(b"late", delay=0.001)
    assert queue._run(queue.ops.beat("alive", LONG, register=True))
    full()
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.xadd("other", {"data": b"x"})
    leases = queue.lease_many(6)
    assert leases[0].complete(result=b"done")
    assert leases[1].release()
    assert leases[2].retry()
    assert leases[3].retry(LONG)
    assert leases[4].dead_letter("no")
    assert leases[5].renew(0.001)
    expire(queue)
    promote_soon(queue)
    assert queue._run(queue.ops.beat("alive", LONG))
    assert queue._run(queue.ops.beat("newcomer", LONG, register=True))
    assert queue.admin.redrive() == 1
    assert queue.cancel("j8")
    got = [lease.job.payload for lease in queue.lease_many(20)]
    assert got[:2] == [b"1", b"5"]
    assert sorted(got) == [b"1", b"2", b"4", b"5", b"6", b"7", b"late"]
    assert {one.name for one in queue.admin.workers() if one.alive} == {
        "alive",
        "newcomer",
        queue._leaser.name,
    }
    assert queue.result("j0") is None  # a result is new: it is dropped, and the job is done
    assert queue.admin.delete() == 8
    assert present(queue) == {}


def promote_soon(queue):
    """Wait until no job is due any more."""
    until(lambda: queue._run(queue.ops.reclaim("sweeper", 10.0)) and present(queue)["delayed"] == 1)


@pytest.mark.differs("keys")
def test_fields_in_one_order(queue, client):
    """A job that goes back has its fields in the order of the queue, and its headers in the
    producer's order."""
    client.xadd(
        key("jobs"),
        {"b": b"1", "enq": b"5000", "attempt": b"2", "a": b"2", "id": b"x", "data": b"odd"},
    )
    lease = queue.lease()
    assert (lease.job.attempt, lease.job.enqueued_at, dict(lease.job.headers)) == (
        3,
        5.0,
        {"b": "1", "a": "2"},
    )
    order = [b"data", b"id", b"attempt", b"enq", b"b", b"a"]
    assert lease.retry()
    assert list(client.xrange(key("jobs"))[0][1]) == order
    assert queue.lease().retry(0.001)
    promote(queue)
    assert list(client.xrange(key("jobs"))[0][1]) == order
    assert queue.lease().dead_letter("no")
    assert list(client.xrange(key("dead"))[0][1])[-6:] == order
    assert queue.admin.redrive() == 1
    assert list(client.xrange(key("jobs"))[0][1]) == [*order[:4], b"headrace-reason", *order[4:]]
    lease = queue.lease()
    assert (lease.job.id, lease.job.attempt, lease.token, lease.job.enqueued_at) == ("x", 1, 6, 5.0)
    assert list(lease.job.headers.items()) == [("b", "1"), ("a", "2")]


@pytest.mark.differs("keys")
def test_an_empty_queue_keeps_little(queue, client):
    """When all jobs are gone, no record of them is left. Records of calls and results expire by
    themselves."""
    for i in range(20):
        lease = leased(queue, b"x", id=f"j{i}", duration=LONG)
        assert lease.release()
        lease = queue.lease(duration=LONG)
        if i % 4 == 0:
            assert lease.retry(LONG)
            assert queue.cancel(f"j{i}")
        elif i % 4 == 1:
            assert lease.dead_letter("no")
            assert queue.admin.purge_dead() == 1
        elif i % 4 == 2:
            assert lease.retry()
            assert queue.admin.purge() == 1
        else:
            assert lease.complete(result=b"done")
    keys = {name.decode().removeprefix(key("")): client.pttl(name) for name in client.scan_iter()}
    assert {name for name, left in keys.items() if left < 0} == {
        name for name in ("jobs", "wake", "dead", "stats", "workers", "registered") if name in keys
    }
    assert all(
        name.startswith(("lane:", "result:")) or name == "cancels"
        for name, left in keys.items()
        if left >= 0
    )
    assert sum(name.startswith("lane:") for name in keys) == 1
    assert (client.xlen(key("jobs")), client.xlen(key("dead"))) == (0, 0)
    assert client.xlen(key("wake")) <= 16
    assert client.xpending(key("jobs"), "workers")["pending"] == 0
    assert present(queue) == {}


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.differs("order")
def test_more_than_one_script_takes(queue):
    """Verbs for many jobs take all of them in order, even if one script can't."""
    many = 2500
    jobs = [b"%d" % i for i in range(many)]
    queue.enqueue_many(jobs)
    leases = queue.lease_many(many)
    assert [lease.job.payload for lease in leases] == jobs
    assert queue.complete_many(leases[:1800], fenced=True) == [True] * 1800
    for lease in leases[1800::100]:
        assert lease.dead_letter("no")
    assert queue.counts() == Counts(leased=693, dead=7, enqueued=many, completed=1800)
    assert queue._run(queue.ops.leave(queue._leaser.name)) == (CLAIMS_PER_SCRIPT, "1")
    assert queue._run(queue.ops.leave(queue._leaser.name)) == (693 - CLAIMS_PER_SCRIPT, "0")
    assert [lease.job.attempt for lease in queue.lease_many(many)] == [1] * 693
    queue.enqueue_many([NewJob(b"x", delay=LONG) for _ in range(600)])
    queue.enqueue_many([b"x"] * 600)
    assert queue.admin.cancel_payload(b"x") == 1200
    queue.enqueue_many([NewJob(b"x", delay=LONG) for _ in range(600)])
    queue.enqueue_many([b"x"] * 600)
    assert queue.admin.purge() == 1200
    assert present(queue) == {"leased": 693, "dead": 7}


def test_many_headers(queue):
    """A job with the maximum number of headers goes every way."""
    headers = {f"header {i}": f"value {i}" for i in range(1000)}
    queue.enqueue(b"x", headers=headers)
    ways = [
        lambda lease: lease.release(),
        lambda lease: lease.retry(),
        lambda lease: lease.retry(0.001),
    ]
    for way in [*ways, lambda lease: lease.dead_letter("no"), lambda lease: lease.complete()]:
        lease = queue.lease()
        assert lease.job.headers == headers
        assert way(lease)
        if present(queue).get("delayed"):
            promote(queue)
        queue.admin.redrive()
    assert present(queue) == {}


# -- entries of foreign producers ------------------------------------------------------------------


@pytest.mark.differs("keys")
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
    """A bare XADD may write anything in place of a number. The job and the next one still go every
    way."""
    client.xadd(key("jobs"), {"data": b"odd", **fields})
    queue.enqueue(b"next")
    assert payloads(queue.admin.waiting()) == [b"odd", b"next"]
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
    assert [(state.job.payload, state.job.attempt) for state in queue.admin.dead()] == [(b"odd", 3)]
    assert queue.admin.redrive() == 1
    lease = queue.lease()
    assert (lease.job.payload, lease.job.attempt, lease.token) == (b"odd", 1, 5)
    assert queue.admin.cancel_payload(b"odd") == 1
    assert lease.complete() is False
    counts = queue.counts()
    assert (counts.leased, counts.present) == (1, 1)  # 6.2 does not count what a bare XADD added


# -- listings --------------------------------------------------------------------------------------


@pytest.mark.differs("ops")
@pytest.mark.parametrize("gone", ["the first page", "the last of it", "the first"])
def test_a_listing_misses_nothing_that_stays(queue, gone):
    """Delayed jobs that leave during the listing hide none that stays."""
    queue.enqueue_many([NewJob(b"%d" % i, id=f"job {i}", delay=LONG + i // 7) for i in range(450)])
    page = queue._run(queue.ops.listing("delayed", ""))
    assert len(page.items) == 200
    listed = [state.job.id for state in page]
    leaving = {"the first page": listed, "the last of it": listed[-1:], "the first": listed[:1]}[
        gone
    ]
    assert [queue.cancel(job) for job in leaving] == [True] * len(leaving)
    for _ in range(4):
        if not page.cursor:
            break
        page = queue._run(queue.ops.listing("delayed", page.cursor))
        listed += [state.job.id for state in page]
    assert set(listed) == {f"job {i}" for i in range(450)}
    assert not page.cursor
    assert len(listed) <= 450 + 6  # others of the same time may come twice
