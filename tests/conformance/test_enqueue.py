"""Enqueueing. The tests cover payloads, ids and their lifetime, headers, and many jobs at once."""

from __future__ import annotations

import pytest
import redis

from headrace import Counts, NewJob, Receipt
from headrace._protocol.keys import Keys
from headrace._protocol.limits import BYTES_PER_SCRIPT, JOBS_PER_SCRIPT
from headrace._protocol.queue_ops import Ops
from headrace.codecs import JSONCodec
from tests.support.steps import LONG, expire, key, leased, payloads, present, promote

# -- payloads --------------------------------------------------------------------------------------

PAYLOADS = {
    "empty": (b"", b""),
    "NUL and invalid UTF-8": (b"\x00\xff\xfe\r\n$-1\r\n\xc3", b"\x00\xff\xfe\r\n$-1\r\n\xc3"),
    "empty text": ("", b""),
    "text": ("déjà vu 🙂", "déjà vu 🙂".encode()),
    "bytearray": (bytearray(b"a\x00"), b"a\x00"),
    "memoryview": (memoryview(b"abc")[1:], b"bc"),
    "1 MiB": (b"\x00\xff" * (1 << 19), b"\x00\xff" * (1 << 19)),
}


def test_payloads(queue):
    """Any bytes come back unchanged wherever a job is shown, and text as UTF-8 (W-16, M-15)."""
    for payload, expected in PAYLOADS.values():
        queue.enqueue(payload)
        queue.enqueue(payload, headers={"a": "b"})
        assert payloads(queue.admin.waiting()) == [expected] * 2
        plain, full = queue.lease_many(2)
        assert plain.job.payload == full.job.payload == expected
        assert plain.retry()
        assert queue.admin.peek().payload == expected
        assert queue.lease().job.payload == expected
        assert queue.admin.delete() == 2
        queue.enqueue_many([payload, NewJob(payload, id="a")])
        assert queue.admin.cancel_payload(payload) == 2


def test_enqueued_at(queue, client):
    """The time of the first enqueue, by the server's clock, stays with the job wherever it goes."""

    def now():
        seconds, micros = client.time()
        return seconds + micros // 1000 / 1000

    before = now()
    queue.enqueue(b"a")
    queue.enqueue(b"a", id="a")
    queue.enqueue(b"a", delay=0.001)
    after = now()
    promote(queue)
    times = {}
    for step in ("lease", "retry", "delay", "dead"):
        leases = queue.lease_many(3)
        assert len(leases) == 3
        times[step] = sorted(lease.job.enqueued_at for lease in leases)
        for lease in leases:
            if step == "dead":
                lease.dead_letter("no")
            else:
                lease.retry(0.001 if step == "delay" else 0)
        if step == "delay":
            promote(queue, 3)
    assert before <= times["lease"][0] <= times["lease"][2] <= after
    assert times["lease"] == times["retry"] == times["delay"] == times["dead"]
    assert sorted(state.job.enqueued_at for state in queue.admin.dead()) == times["lease"]


# -- ids -------------------------------------------------------------------------------------------


@pytest.mark.differs("ids", "1-1", "9999999999999999999999999-1")
@pytest.mark.parametrize(
    "id", ["a", "é" * 250, "x" * 500, "a b:{c}/d%'\"*[]\\", "1-1", "9" * 25 + "-1", "🙂"]
)
def test_ids(queue, id):
    """An id is any text without control characters, up to 500 bytes, and comes back as it went."""
    assert queue.enqueue(b"a", id=id) == Receipt(id, added=True)
    assert queue.enqueue(b"b", id=id) == Receipt(id, added=False)
    assert queue.find(id).job.id == id
    lease = queue.lease()
    assert (lease.job.id, lease.job.payload) == (id, b"a")
    assert lease.complete(b"done")
    assert queue.result(id) == b"done"
    assert (queue.find(id), queue.cancel(id)) == (None, False)
    assert queue.enqueue(b"c", id=id, delay=LONG).added
    assert queue.cancel(id) is True


def test_generated_ids(queue):
    """Jobs without an id get one of their own, delayed ones too, and keep it."""
    receipts = queue.enqueue_many(
        [b"a", NewJob(b"a", delay=0.001), NewJob(b"a", headers={"a": "b"})]
    )
    receipts += [queue.enqueue(b"a"), queue.enqueue(b"a", delay=0.001)]
    ids = {receipt.id for receipt in receipts}
    assert len(ids) == 5
    assert all(receipt.added for receipt in receipts)
    promote(queue, 2)
    for lease in queue.lease_many(9):
        assert lease.retry()
    assert {lease.job.id for lease in queue.lease_many(9)} == ids


@pytest.mark.parametrize("delay", [None, LONG])
def test_first_job_is_left(queue, delay):
    """A second job of an id changes nothing about the first."""
    queue.enqueue(b"first", id="a", headers={"h": "1"}, delay=delay)
    before = queue.find("a")
    for options in ({}, {"delay": 1.0}, {"headers": {"h": "2"}}):
        assert not queue.enqueue(b"second", id="a", **options).added
    after = queue.find("a")
    assert (after.job.payload, after.job.headers, after.due) == (b"first", {"h": "1"}, before.due)
    assert queue.counts().enqueued == 1


KEPT = {
    "leased": lambda queue, lease: True,
    "renewed": lambda queue, lease: lease.renew(LONG),
    "released": lambda queue, lease: lease.release(),
    "retried": lambda queue, lease: lease.retry(),
    "delayed": lambda queue, lease: lease.retry(LONG),
    "reclaimed": lambda queue, lease: lease.renew(0.001) and expire(queue) is None,
    "released again": lambda queue, lease: lease.release() and queue.lease().release(),
    "promoted": lambda queue, lease: lease.retry(0.001) and promote(queue) is None,
    "redriven": lambda queue, lease: lease.dead_letter("no") and queue.admin.redrive() == 1,
}


@pytest.mark.differs("ids")
@pytest.mark.parametrize("step", KEPT)
def test_id_is_kept(queue, step):
    """An id stays taken while its job is in the queue. This includes a generated id (W-15)."""
    assert KEPT[step](queue, leased(queue, b"first", id="a"))
    assert queue.enqueue(b"second", id="a") == Receipt("a", added=False)
    queue.admin.purge()
    plain = leased(queue, b"plain")
    assert KEPT[step](queue, plain)
    assert queue.enqueue(b"second", id=plain.job.id) == Receipt(plain.job.id, added=False)
    assert queue.find(plain.job.id).job.payload == b"plain"


def at_most_once(queue, lease):
    return lease.release() and queue.lease(at_most_once=True) is not None


def last_attempt(queue, lease):
    return queue._run(queue.ops.retry([(lease.claim, 0, True, "late")], max_attempts=1)) == [True]


FREE = {
    "complete": lambda queue, lease: lease.complete(),
    "complete fenced": lambda queue, lease: lease.complete(fenced=True),
    "complete_many": lambda queue, lease: queue.complete_many([lease]) == [True],
    "cancel leased": lambda queue, lease: queue.cancel("a"),
    "cancel parked": lambda queue, lease: lease.release() and queue.cancel("a"),
    "cancel waiting": lambda queue, lease: lease.retry() and queue.cancel("a"),
    "cancel delayed": lambda queue, lease: lease.retry(LONG) and queue.cancel("a"),
    "cancel_payload leased": lambda queue, lease: queue.admin.cancel_payload(b"first") == 1,
    "cancel_payload delayed": lambda queue, lease: (
        lease.retry(LONG) and queue.admin.cancel_payload(b"first") == 1
    ),
    "delete": lambda queue, lease: queue.admin.delete() == 1,
    "purge parked": lambda queue, lease: lease.release() and queue.admin.purge() == 1,
    "purge waiting": lambda queue, lease: lease.retry() and queue.admin.purge() == 1,
    "purge delayed": lambda queue, lease: lease.retry(LONG) and queue.admin.purge() == 1,
    "dead_letter": lambda queue, lease: lease.dead_letter("no"),
    "the last attempt": last_attempt,
    "at most once": at_most_once,
}


@pytest.mark.differs("ops", "the last attempt")
@pytest.mark.parametrize("end", FREE)
def test_id_is_free_again(queue, end):
    """An id is free once its job is gone or dead, and the next job can take it (W-15)."""
    assert FREE[end](queue, leased(queue, b"first", id="a"))
    assert queue.enqueue(b"second", id="a") == Receipt("a", added=True)
    assert queue.enqueue(b"third", id="a") == Receipt("a", added=False)
    assert (queue.find("a").job.payload, queue.find("a").state) == (b"second", "waiting")
    assert queue.lease().job.payload == b"second"


def test_id_of_a_job_whose_workers_die(connect):
    """An id is free once its job is dead because every lease of it ran out."""
    queue = connect(max_attempts=1)
    leased(queue, b"first", id="a", duration=0.001)
    expire(queue)
    assert not queue.enqueue(b"second", id="a").added
    assert queue.lease() is None
    assert queue.enqueue(b"second", id="a").added


def test_id_of_an_undecodable_job(connect):
    """An id is free once its job has been put aside because it does not decode."""
    connect().enqueue(b"{", id="a")
    queue = connect(codec=JSONCodec())
    assert queue.lease() is None
    assert queue.enqueue({}, id="a").added
    assert queue.lease().job.payload == {}


def test_an_old_holder_does_not_free_an_id(queue):
    """The id belongs to the next job of that id. A holder of the first job can't free it."""
    old = leased(queue, b"first", id="a")
    queue.cancel("a")
    queue.enqueue(b"second", id="a")
    assert (old.complete(), old.release(), old.retry(), old.dead_letter("no")) == (False,) * 4
    assert not queue.enqueue(b"third", id="a").added
    assert payloads(queue.admin.waiting()) == [b"second"]


def test_ids_of_two_queues(connect):
    """An id is taken in one queue only. Jobs without ids may be equal (W-15)."""
    one, two = connect("g/one"), connect("g/two")
    assert one.enqueue(b"x", id="a").added
    assert two.enqueue(b"x", id="a").added
    assert one.enqueue(b"x").added
    assert one.enqueue(b"x").added
    assert (present(one), present(two)) == ({"waiting": 3}, {"waiting": 1})


def test_two_producers(connect):
    """Two clients enqueue the same ids. Each job is added once, and each client learns which it
    added (M-3)."""
    one, two = connect(), connect()
    jobs = [NewJob(b"x", id=str(i)) for i in range(50)]
    first = one.enqueue_many(jobs[::2])
    second = two.enqueue_many(jobs)
    assert [receipt.added for receipt in first] == [True] * 25
    assert [receipt.added for receipt in second] == [False, True] * 25
    assert [receipt.id for receipt in second] == [job.id for job in jobs]
    assert present(one) == {"waiting": 50}


@pytest.mark.differs("keys")
def test_unchecked_adds(queue, client):
    """A foreign producer may add an id twice by a bare XADD. Both jobs live, and none is lost
    (M-4)."""
    queue.enqueue(b"ours", id="a", delay=LONG)
    client.xadd(key("jobs"), {"data": b"theirs", "id": "a"})
    client.xadd(key("jobs"), {"data": b"theirs again", "id": "a"})
    for lease in queue.lease_many(2):
        assert lease.retry(LONG)
    assert sorted(payloads(queue.admin.delayed())) == [b"ours", b"theirs", b"theirs again"]
    assert queue.find("a").job.payload == b"ours"
    assert not queue.enqueue(b"x", id="a").added
    assert queue.cancel("a") is True
    assert sorted(payloads(queue.admin.delayed())) == [b"theirs", b"theirs again"]
    assert queue.admin.purge() == 2
    assert not client.exists(key("ids"), key("bodies"), key("delayed"))


@pytest.mark.differs("keys")
def test_unchecked_adds_come_back(queue, client):
    """A foreign job of a taken id is retried and released. It never takes the id from its owner
    (M-4)."""
    queue.enqueue(b"ours", id="a")
    client.xadd(key("jobs"), {"data": b"theirs", "id": "a"})
    ours, theirs = queue.lease_many(2)
    assert theirs.retry()
    theirs = queue.lease()
    assert theirs.retry(0.001)
    promote(queue)
    theirs = queue.lease()
    assert (theirs.job.id, theirs.job.payload, theirs.job.attempt, theirs.token) == (
        "a",
        b"theirs",
        3,
        3,
    )
    assert queue.find("a").job.payload == b"ours"
    assert theirs.complete()
    assert not queue.enqueue(b"x", id="a").added
    assert ours.complete()
    assert queue.enqueue(b"x", id="a").added
    assert client.hlen(key("ids")) == 1


# -- headers ---------------------------------------------------------------------------------------

HEADERS = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "z": "",
    "a": "é 🙂",
    "b\n": "\x00",
}


def test_headers(queue):
    """Headers are text, keep their order, and stay with the job wherever it goes."""
    queue.enqueue(b"x", headers=HEADERS)
    steps = {
        "release": lambda lease: lease.release(),
        "retry": lambda lease: lease.retry(),
        "delay": lambda lease: lease.retry(0.001) and promote(queue) is None,
        "expire": lambda lease: lease.renew(0.001) and expire(queue) is None,
        "redrive": lambda lease: lease.dead_letter("no") and queue.admin.redrive() == 1,
        "complete": lambda lease: lease.complete(then=[NewJob(b"x", headers=HEADERS, delay=0.001)]),
    }
    for step in steps.values():
        assert list(queue.admin.peek().headers.items()) == list(HEADERS.items())
        lease = queue.lease()
        assert list(lease.job.headers.items()) == list(HEADERS.items())
        assert step(lease)
    assert list(next(queue.admin.delayed()).job.headers.items()) == list(HEADERS.items())


def test_many_headers(queue):
    """A job may have a thousand headers."""
    headers = {f"h{i}": str(i) for i in range(1000)}
    queue.enqueue_many([NewJob(b"x", headers=headers), b"y"])
    assert queue.lease().retry()
    assert queue.lease().complete()
    assert queue.lease().job.headers == headers


def test_no_headers(queue):
    """None and an empty mapping are no headers."""
    queue.enqueue_many([NewJob(b"x", headers={}), NewJob(b"x", headers=None)])
    assert [lease.job.headers for lease in queue.lease_many(2)] == [{}, {}]


# -- many ------------------------------------------------------------------------------------------


@pytest.mark.differs("parts")
def test_what_one_takes(queue, client):
    """A job that is its payload and nothing else takes one round trip, and six commands inside its
    script."""

    def called():
        return {
            name.removeprefix("cmdstat_"): row["calls"]
            for name, row in client.info("commandstats").items()
        }

    queue.enqueue(b"the first loads the script, and declares the queue")
    before = called()
    for i in range(10):
        queue.enqueue(b"%d" % i)
    after = called()
    sent = {
        name: n - before.get(name, 0)
        for name, n in after.items()
        if n > before.get(name, 0) and name != "info"
    }
    assert sent == {"evalsha": 10, "get": 10, "hget": 10, "xadd": 10, "hincrby": 20, "set": 10}


@pytest.mark.differs("order")
def test_enqueue_many(queue):
    """Payloads and jobs of every kind are enqueued at once. Receipts come in order. A repeated id
    is added once."""
    jobs = [
        b"1",
        "2",
        NewJob("3", id="c"),
        NewJob(b"4", headers={"a": "b"}),
        NewJob(b"x", id="c"),
        bytearray(b"5"),
    ]
    receipts = queue.enqueue_many(iter(jobs))
    assert [receipt.added for receipt in receipts] == [True, True, True, True, False, True]
    assert receipts[2].id == receipts[4].id == "c"
    leases = queue.lease_many(10)
    assert [lease.job.payload for lease in leases] == [b"1", b"2", b"3", b"4", b"5"]
    assert [lease.job.id for lease in leases] == [
        receipt.id for receipt in receipts if receipt.added
    ]


@pytest.mark.differs("keys")
def test_ids_that_are_not_consecutive(queue, client):
    """A part whose entry IDs continue in the next millisecond has the right receipts."""
    client.xadd(queue.ops.keys.key("jobs"), {"data": b"0"}, id=f"9999999999999-{2**64 - 3}")
    receipts = queue.enqueue_many([b"1", b"2", b"3", b"4"])
    ids = [
        f"9999999999999-{2**64 - 2}",
        f"9999999999999-{2**64 - 1}",
        "10000000000000-0",
        "10000000000000-1",
    ]
    assert [receipt.id for receipt in receipts] == ids
    assert [lease.job.id for lease in queue.lease_many(5)][1:] == ids


@pytest.mark.differs("order")
def test_enqueue_very_many(queue):
    """The jobs are more than one script takes. Every job is added once and in order, with its own
    receipt."""
    jobs = [b"%d" % i if i % 7 else NewJob(b"%d" % i, id=f"id-{i}") for i in range(2500)]
    receipts = queue.enqueue_many(jobs)
    leases = queue.lease_many(3000)
    assert [lease.job.payload for lease in leases] == [b"%d" % i for i in range(2500)]
    assert [lease.job.id for lease in leases] == [receipt.id for receipt in receipts]
    assert queue.complete_many(leases) == [True] * 2500
    assert queue.counts() == Counts(enqueued=2500, completed=2500)


def test_a_script_is_bounded():
    """Jobs are split into scripts of at most 1,000 jobs and about 1 MiB. A larger job goes
    alone."""
    ops = Ops(Keys.of("q"))

    def sizes(jobs):
        return [len(op.args) - 1 for op in ops.batches(jobs)]

    assert sizes([]) == []
    assert sizes([b"x"] * JOBS_PER_SCRIPT) == [JOBS_PER_SCRIPT]
    assert sizes([b"x"] * (2 * JOBS_PER_SCRIPT + 1)) == [JOBS_PER_SCRIPT, JOBS_PER_SCRIPT, 1]
    assert sizes([b"x" * (BYTES_PER_SCRIPT // 2)] * 5) == [2, 2, 1]
    assert sizes([b"a", b"x" * BYTES_PER_SCRIPT * 2, b"b", b"c"]) == [1, 1, 2]
    assert [len(op.items) for op in ops.batches([NewJob(b"x", id="a")] * JOBS_PER_SCRIPT)] == [
        333,
        333,
        333,
        1,
    ]


def test_large_batches(queue):
    """Jobs of 5 MiB in all arrive, in several scripts."""
    jobs = [bytes([i]) * 200_000 for i in range(25)]
    assert len(queue.enqueue_many(jobs)) == 25
    assert [lease.job.payload for lease in queue.lease_many(25)] == jobs


def test_all_or_none(queue, client):
    """A bad job in a batch means that no job was sent, wherever it stands (W-23, H-16)."""
    for bad in (
        None,
        NewJob(b"x", id="\n"),
        NewJob(b"x", headers={"a": "\ud800"}),
        "\ud800",
        NewJob(b"x", delay=-1),
    ):
        with pytest.raises((TypeError, ValueError)):
            queue.enqueue_many([*[b"x"] * 2500, bad])
    assert client.dbsize() == 0
    assert len(queue.enqueue_many([b"x"] * 100)) == 100
    assert queue.counts() == Counts(waiting=100, enqueued=100)


@pytest.mark.differs("keys")
def test_a_later_part_fails(queue, client):
    """The server refuses a later part. The error has the receipts of the earlier parts, whose jobs
    are enqueued."""
    # so that ids can't be looked up, and plain jobs can be added
    client.set(key("ids"), "not a hash")
    jobs = [*[b"%d" % i for i in range(2000)], *[NewJob(b"x", id=str(i)) for i in range(1500)]]
    with pytest.raises(redis.ResponseError, match="WRONGTYPE") as error:
        queue.enqueue_many(jobs)
    receipts = error.value.receipts
    assert [receipt.added for receipt in receipts] == [True] * 2000
    assert any("2000 jobs of this enqueue_many" in note for note in error.value.__notes__)
    states = list(queue.admin.waiting())
    assert [state.job.id for state in states] == [receipt.id for receipt in receipts]
    assert payloads(states) == jobs[:2000]
    assert queue.counts() == Counts(waiting=2000, enqueued=2000)


@pytest.mark.differs("keys")
def test_the_first_part_fails(queue, client):
    """When the first part is refused there are no receipts, and nothing is there."""
    client.set(key("jobs"), "not a stream")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE") as error:
        queue.enqueue_many([b"x"] * 1500)
    assert error.value.receipts == []
    assert client.dbsize() == 1


# -- other producers -------------------------------------------------------------------------------


@pytest.mark.differs("keys")
def test_foreign_producers(queue, client):
    """A bare XADD is a job. Its foreign fields are headers, even if they are not UTF-8."""
    entry = client.xadd(key("jobs"), {"data": b"a"}).decode()
    client.xadd(key("jobs"), {"lang": "en", "data": b"b", "raw": b"\xff", "id": "mine"})
    client.xadd(key("jobs"), {"data": b"c", "attempt": "2", "enq": "1500"})
    client.xadd(key("jobs"), {"data": b"d", "attempt": "many", "enq": ""})
    jobs = [lease.job for lease in queue.lease_many(9)]
    assert [job.payload for job in jobs] == [b"a", b"b", b"c", b"d"]
    assert (jobs[0].id, jobs[0].attempt, jobs[0].headers) == (entry, 1, {})
    assert jobs[0].enqueued_at == int(entry.partition("-")[0]) / 1000
    assert (jobs[1].id, jobs[1].headers) == ("mine", {"lang": "en", "raw": "\\xff"})
    assert (jobs[2].attempt, jobs[2].enqueued_at, jobs[2].headers) == (3, 1.5, {})
    assert jobs[3].attempt == 1


@pytest.mark.differs("keys")
def test_foreign_fields_stay(queue, client):
    """Fields that we do not know, not UTF-8 or there twice, stay with a job that goes round, byte
    by byte."""
    theirs = ["lang", b"\xff\x00", "data", b"x", b"\xfe", "1", "data", "second"]
    client.execute_command("XADD", key("jobs"), "*", *theirs)
    assert queue.lease().retry()
    assert queue.lease().retry(0.001)
    promote(queue)
    lease = queue.lease()
    assert lease.job.payload == b"x"
    assert lease.dead_letter("no")
    assert queue.admin.redrive() == 1
    script = "return redis.call('XRANGE', KEYS[1], '-', '+')[1][2]"
    fields = client.eval(script, 1, key("jobs"))
    assert fields[:2] == [b"data", b"x"]
    assert fields[-6:] == [b"lang", b"\xff\x00", b"\xfe", b"1", b"data", b"second"]
