"""The traps of Redis Streams, one test each. The docstring says what a naive queue does, and the
test that headrace does not.

Each was measured on servers first, and has a number since. Where the trap is a foreign command, it
is sent by hand.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import AsyncQueue, Counts, Lease, NewJob
from headrace._api.aio.lease import AsyncLease
from headrace._protocol.limits import CLAIMS_PER_SCRIPT
from tests.support.awaiting import PATIENCE, until
from tests.support.steps import LONG, expire, key, leased, payloads, present


def pending(client, queue="q"):
    """Return the pending entries as {entry: (consumer, deliveries)}."""
    rows = client.xpending_range(key("jobs", queue), "workers", "-", "+", 10_000)
    return {
        row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"])
        for row in rows
    }


def entries(leases):
    return [lease.claim.entry for lease in leases]


# -- finishing -------------------------------------------------------------------------------------


@pytest.mark.differs("keys")
def test_t1_a_deleted_job_is_not_completed(queue, client):
    """T1. A naive queue trusts XACK, which still returns 1 after the running job was deleted.

    Here XDEL decides: what was cancelled, or deleted by hand, completes for nobody, and nothing of
    it is left.
    """
    leases = [leased(queue) for _ in range(3)]
    assert queue.cancel(leases[0].job.id)
    client.xdel(key("jobs"), leases[1].claim.entry)
    assert [lease.complete() for lease in leases] == [False, False, True]
    assert [lease.complete(fenced=True) for lease in leases] == [False] * 3
    assert queue.counts() == Counts(enqueued=3, cancelled=1, completed=1)
    assert pending(client) == {}


@pytest.mark.differs("order")
def test_t1_a_deleted_job_is_not_handed_out(queue, client):
    """T1. A naive queue hands out pending entries, although XCLAIM returns nothing (or nil on 6.2)
    for a deleted one.

    Here the next job is handed out instead, in the same call, and nothing dangles.
    """
    queue.enqueue_many([b"%d" % i for i in range(6)])
    leases = queue.lease_many(4)
    assert all(lease.release() for lease in leases)
    client.xdel(key("jobs"), *entries(leases[:3]))
    assert queue.lease().job.payload == b"3"
    assert [lease.job.payload for lease in queue.lease_many(9)] == [b"4", b"5"]
    assert len(pending(client)) == 3


@pytest.mark.differs("ops")
def test_t1_a_deleted_job_that_rang_is_not_handed_out(queue, client):
    """T1. The same for jobs that a blocked reader was woken by, and that were then deleted by
    hand."""
    queue.lease()
    receipts = queue.enqueue_many([b"%d" % i for i in range(4)])
    for _ in range(3):
        assert client.execute_command(*queue.ops.wait(PATIENCE))
    client.xdel(key("jobs"), receipts[0].id, receipts[1].id)
    assert [queue.lease().job.payload for _ in range(2)] == [b"2", b"3"]
    assert queue.lease() is None
    assert len(pending(client)) == 2


@pytest.mark.differs("keys")
def test_t6_a_renewal_does_not_steal(connect, client):
    """T6. A naive queue renews by XCLAIM JUSTID, which also takes the job back from its present
    holder.

    Here it is asked first whose it is, for one and for many.
    """
    one, two = connect(lease=0.001), connect(lease=LONG)
    one.enqueue_many([b"%d" % i for i in range(3)])
    stale = one.lease_many(3)
    expire(two, 3)
    fresh = two.lease_many(3)
    before = pending(client)
    assert [lease.renew() for lease in stale] == [False] * 3
    assert one._run(one.ops.renew([lease.claim for lease in stale])) == [False] * 3
    assert pending(client) == before == dict.fromkeys(entries(fresh), (two._leaser.name, 2))
    assert two.complete_many(fresh, fenced=True) == [True] * 3


def test_t6_a_renewal_does_not_revive(queue, client):
    """T6. A naive queue's XCLAIM also takes jobs that wait in front.

    Here a lease that was given up can't be renewed: by its worker neither before, nor after it
    leased the job again.
    """
    stale = leased(queue)
    assert stale.release()
    assert stale.renew() is False
    assert present(queue) == {"parked": 1}
    fresh = queue.lease()
    assert stale.renew() is False
    assert fresh.renew() is True
    assert fresh.token > stale.token


@pytest.mark.differs("keys")
@pytest.mark.parametrize("way", ["cancelled", "completed", "deleted"])
def test_t12_an_emptied_queue_goes_on_counting(queue, client, way):
    """T12. An emptied stream keeps its key, its group and its last ID. A naive queue takes an
    existing key for work.

    Here the queue is empty, and the next entry comes after every one there was.
    """
    seen = []
    for _ in range(5):
        lease = leased(queue)
        seen.append(tuple(map(int, lease.claim.entry.split("-"))))
        if way == "cancelled":
            assert queue.cancel(lease.job.id)
        elif way == "completed":
            assert lease.complete()
        else:
            assert queue.admin.delete() == 1
        assert client.exists(key("jobs"))
        assert (queue.lease(), queue.admin.peek(), list(queue.admin.waiting())) == (None, None, [])
        assert present(queue) == {}
    assert seen == sorted(set(seen))


def test_t21_races_have_one_winner(connect, server):
    """T21. A naive queue reads, decides and then deletes. Two clients may have read before either
    deletes.

    Here of two who complete the same 300 jobs at the same time, each job has one winner.
    """
    queue = connect(lease=LONG)
    queue.enqueue_many([b"x"] * 300)
    claims = [lease.claim for lease in queue.lease_many(300)]

    def thread(forwards):
        with server.queue("q") as mine:
            return [mine.complete(Lease(claim, mine)) for claim in claims[::forwards]][::forwards]

    async def task(forwards):
        async with AsyncQueue("q", url=server.url, **server.binary.options) as mine:
            return [await mine.complete(AsyncLease(claim, mine)) for claim in claims[::forwards]][
                ::forwards
            ]

    async def tasks():
        return await asyncio.gather(task(1), task(-1))

    if connect.colour == "async":
        verdicts = asyncio.run(tasks())
    else:
        with ThreadPoolExecutor(2) as pool:
            verdicts = list(pool.map(thread, [1, -1]))
    assert [one + other for one, other in zip(*verdicts, strict=True)] == [1] * 300
    assert queue.counts() == Counts(enqueued=300, completed=300)


# -- giving back -----------------------------------------------------------------------------------


@pytest.mark.differs("keys")
def test_t3_coming_back_is_no_delivery(queue, client):
    """T3. A naive queue moves expired jobs by XAUTOCLAIM, which counts a delivery. Handing them out
    counts another.

    Here only handing out counts: an attempt for each, and none for what was released.
    """
    lease = leased(queue, duration=0.001)
    expire(queue)
    assert pending(client) == {lease.claim.entry: ("parked", 1)}
    again = queue.lease()
    assert pending(client) == {lease.claim.entry: (again.worker, 2)}
    assert (again.job.attempt, again.token) == (2, 2)
    assert again.release()
    assert pending(client) == {lease.claim.entry: ("parked", 2)}
    once_more = queue.lease()
    assert (once_more.job.attempt, once_more.token) == (2, 3)


@pytest.mark.differs("ops")
def test_t4_what_expired_is_found_behind_what_did_not(queue):
    """T4. A naive queue calls XAUTOCLAIM from the start each time. It looks at ten entries for each
    one asked for, so it never reaches an expired entry behind many live ones.

    Here a sweep goes on where the last call stopped, and a call looks at so many entries at most.
    """
    queue.enqueue_many([b"x"] * 1200)
    queue.lease_many(1200)
    lease = leased(queue, b"hung", duration=0.001)
    until(lambda: queue._run(queue.ops.reclaim("sweeper", 10.0)).moved)
    assert payloads(queue.admin.waiting()) == [b"hung"]
    assert queue.lease().claim.entry == lease.claim.entry


def test_t5_the_front_keeps_its_order(queue):
    """T5. A naive queue pushes returned jobs to the front, so the last to return comes first.

    Here it is handed out in its first order, in whatever order it came back.
    """
    jobs = [b"%d" % i for i in range(40)]
    queue.enqueue_many(jobs)
    leases = queue.lease_many(35)
    for number in (31, 7, 20):
        assert leases[number].release()
    assert payloads(queue.admin.waiting()) == [b"7", b"20", b"31", *jobs[35:]]
    assert [queue.lease().job.payload for _ in range(4)] == [b"7", b"20", b"31", b"35"]


@pytest.mark.differs("ops")
def test_t14_a_release_wakes(connect, server, client):
    """T14. A naive queue's blocked reader sleeps on until its time is over when a job returns to
    the pending list.

    Here it is woken: the read that blocks, which would last far longer than this test may, has an
    answer.
    """
    queue, other = connect(), connect()
    lease = leased(queue)
    with (
        server.client(socket_timeout=2 * PATIENCE) as blocked,
        ThreadPoolExecutor(1) as pool,
    ):
        reply = pool.submit(blocked.execute_command, *other.ops.wait(PATIENCE))
        until(lambda: client.info("clients")["blocked_clients"])
        assert lease.release()
        assert reply.result(2 * PATIENCE), "nobody woke it"
    assert other.lease().job.id == lease.job.id


@pytest.mark.differs("order")
def test_t15_the_front_is_no_new_entry(queue, client):
    """T15. A naive queue uses XADD with the old ID, which a stream refuses, or with a new one,
    which is the back.

    Here a released job keeps its entry, and is next; a retried one goes to the back, and keeps its
    id and time.
    """
    first, second = leased(queue, b"first"), leased(queue, b"second")
    queue.enqueue(b"third")
    assert first.retry()
    assert second.release()
    got = [queue.lease() for _ in range(3)]
    assert [lease.job.payload for lease in got] == [b"second", b"third", b"first"]
    assert got[0].claim.entry == second.claim.entry
    assert got[2].claim.entry > first.claim.entry
    assert (got[2].job.id, got[2].job.enqueued_at) == (first.job.id, first.job.enqueued_at)
    assert len(client.xrange(key("jobs"))) == 3


def test_t16_giving_back_one_gives_back_one(connect):
    """T16. A naive queue moves the group back to the released entry by XGROUP SETID. All jobs
    behind it then run twice.

    Here nothing but what was released is handed out again.
    """
    one, two = connect(), connect()
    one.enqueue_many([b"%d" % i for i in range(5)])
    leases = one.lease_many(5)
    assert leases[1].release()
    (again,) = two.lease_many(9)
    assert again.claim.entry == leases[1].claim.entry
    assert [lease.renew() for lease in leases] == [True, False, True, True, True]


@pytest.mark.differs("keys")
def test_t16_set_back_by_hand(connect, client):
    """T16. After a foreign XGROUP SETID jobs run twice. Each still completes once, and only the
    last holder may do anything else.
    """
    one, two = connect(), connect()
    one.enqueue_many([b"%d" % i for i in range(4)])
    old = one.lease_many(4)
    client.xgroup_setid(key("jobs"), "workers", "0")
    new = two.lease_many(9)
    assert entries(new) == entries(old)
    verbs = ["renew", "release", "retry"]
    assert [getattr(lease, verb)() for lease, verb in zip(old, verbs, strict=False)] == [False] * 3
    assert old[3].complete(fenced=True) is False
    assert old[0].complete() is True
    assert two.complete_many(new) == [False, True, True, True]
    assert one.counts() == Counts(enqueued=4, completed=4)


# -- the group, the key, the consumer --------------------------------------------------------------


@pytest.mark.differs("ops")
def test_t7_a_consumer_is_removed_empty(connect, client):
    """T7. A naive queue uses XGROUP DELCONSUMER for a worker that leaves or is dead. Its jobs are
    then lost.

    Here its jobs move first, and it is removed when it holds none.
    """
    queue = connect(lease=LONG)
    queue.enqueue_many([b"%d" % i for i in range(1200)])
    assert queue._run(queue.ops.beat("leaver", LONG, register=True))
    assert queue._run(queue.ops.beat("ghost", 0.001, register=True))
    for name in ("leaver", "ghost"):
        for number in (CLAIMS_PER_SCRIPT, 600 - CLAIMS_PER_SCRIPT):
            assert len(queue._run(queue.ops.lease(name, number)).claims) == number
    calls = []
    until(lambda: calls.append(queue._run(queue.ops.leave("leaver"))) or calls[-1][1] == "0")
    assert [moved for moved, _ in calls] == [CLAIMS_PER_SCRIPT, 600 - CLAIMS_PER_SCRIPT]
    assert present(queue) == {"parked": 600, "leased": 600}
    assert queue._run(queue.ops.beat("peer", LONG, register=True))
    until(
        lambda: queue._run(queue.ops.reclaim("peer", 0.1)) and "leased" not in present(queue),
        longest=0.01,
    )
    assert present(queue) == {"parked": 1200}
    names = {consumer["name"] for consumer in client.xinfo_consumers(key("jobs"), "workers")}
    assert names == {b"parked"}
    leases = [*queue.lease_many(700), *queue.lease_many(700)]
    assert [lease.job.payload for lease in leases] == [b"%d" % i for i in range(1200)]
    assert {lease.job.attempt for lease in leases[:600]} == {1}
    assert {lease.job.attempt for lease in leases[600:]} == {2}


def by_del(client, _):
    client.delete(key("jobs"))


def by_destroy(client, _):
    client.xgroup_destroy(key("jobs"), "workers")


def by_both(client, _):
    client.delete(key("jobs"), key("wake"))


def by_us(_, other):
    other.admin.delete()


@pytest.mark.differs("keys", "by_destroy")
@pytest.mark.parametrize("act", [by_del, by_destroy, by_both, by_us])
def test_t8_the_queue_vanishes_under_a_reader(queue, client, meanwhile, act):
    """T8. A naive worker ends at UNBLOCKED or NOGROUP, whose text differs by server, or sleeps on.

    Here it goes on waiting, and is given what is enqueued next.
    """

    def acts(other):
        act(client, other)
        other.enqueue(b"a")

    meanwhile(acts)
    lease = queue.lease(block=PATIENCE)
    assert lease.job.payload == b"a"
    assert lease.complete(fenced=True)


@pytest.mark.differs("keys")
def test_t9_a_deleted_queue_has_nothing_pending(queue, client):
    """T9. A naive queue empties the stream by XTRIM MAXLEN 0. Leased entries then stay pending for
    ever.

    Here that goes too: holders find their leases lost, and the next job is the only one.
    """
    leases = [leased(queue, b"%d" % i, duration=LONG) for i in range(3)]
    assert leases[0].release()
    queue.enqueue_many([b"a", NewJob(b"b", delay=LONG)])
    assert queue.admin.delete() == 5
    assert pending(client) == {}
    assert queue.counts() == Counts(enqueued=5, deleted=5)
    assert [lease.complete() for lease in leases] == [False] * 3
    assert [
        lease.release() or lease.renew() or lease.retry() or lease.dead_letter("no")
        for lease in leases
    ] == [False] * 3
    assert queue.lease() is None
    assert leased(queue, b"next").complete()
    assert queue.counts() == Counts(enqueued=6, deleted=5, completed=1)


@pytest.mark.differs("keys")
def test_t10_entry_ids_never_repeat(queue):
    """T10. A naive queue uses DEL. The stream may begin anew within a millisecond, and an old
    handle then completes a new job.

    Here the key stays: of 100 jobs, each deleted with its queue, no two have the same entry.
    """
    seen = set()
    stale = None
    for number in range(100):
        receipt = queue.enqueue(b"x")
        if number % 10 == 0:
            lease = queue.lease()
            assert lease.claim.entry == receipt.id
            assert stale is None or stale.complete() is False
            stale = lease
        seen.add(receipt.id)
        assert queue.admin.delete() == 1
    assert len(seen) == 100


@pytest.mark.differs("keys")
def test_t11_what_was_added_before_the_group(queue, client):
    """T11. A naive queue fails with NOGROUP, or makes the group at `$` and never delivers earlier
    entries.

    Here the group begins at the beginning, again after the key was deleted by hand; XACK's 0 and
    XPENDING's error on a missing group are a lost lease, and no exception.
    """
    client.xadd(key("jobs"), {"data": b"a"})
    stale = queue.lease()
    assert stale.job.payload == b"a"
    client.delete(key("jobs"))
    verbs = [
        stale.complete,
        stale.release,
        stale.renew,
        stale.retry,
        lambda: stale.dead_letter("no"),
    ]
    assert [verb() for verb in verbs] == [False] * 5
    assert stale.complete(fenced=True) is False
    client.xadd(key("jobs"), {"data": b"b"})
    assert payloads(queue.admin.waiting()) == [b"b"]
    assert stale.renew() is False
    assert queue.lease().job.payload == b"b"


def test_t13_waiting_holds_nobody_up(queue, client, meanwhile):
    """T13. A naive queue uses BLOCK in a script, which is an error or is ignored, depending on the
    server's version.

    Here the wait is a command of its own: it lasts, and the server answers others meanwhile.
    """
    assert queue.lease(block=0.05) is None
    meanwhile(lambda other: [other.counts().waiting, other.enqueue(b"a")])
    assert queue.lease(block=PATIENCE).job.payload == b"a"


# -- numbers and replies ---------------------------------------------------------------------------


@pytest.mark.differs("keys")
def test_t2_counts_need_no_lag(queue, client):
    """T2. A naive queue counts by `lag`, which is null after a deletion ahead of the group and is
    missing on 6.2.

    Here counts and order are right after every step.
    """
    receipts = queue.enqueue_many([b"%d" % i for i in range(6)])
    leases = [queue.lease()]
    assert queue.cancel(receipts[2].id)
    assert present(queue) == {"leased": 1, "waiting": 4}
    client.xdel(key("jobs"), receipts[4].id)
    counts = queue.counts()
    assert (counts.leased, counts.waiting, counts.lost) == (1, 3, 1)
    while lease := queue.lease():
        leases.append(lease)
        assert queue.counts().waiting == 4 - len(leases)
    assert [lease.job.payload for lease in leases] == [b"0", b"1", b"3", b"5"]


@pytest.mark.differs("ops")
def test_t17_only_handing_out_counts(queue, client):
    """T17. A naive worker reads its own history to see its jobs. Each look counts a delivery,
    restarts the lease, and is not replicated.

    Here looking, renewing and asking again for a lost reply count nothing, so that the fence of the
    holder stays shut.
    """
    queue.enqueue_many([b"a", b"b"])
    op = queue.ops.lease("w", 2, ttl=LONG)
    for _ in range(3):
        grant = op.decode(client.execute_command(*op.wire("EVAL", "lane", "1")))
        assert [claim.job.attempt for claim in grant.claims] == [1, 1]
    for _ in range(3):
        assert queue._run(queue.ops.renew(grant.claims)) == [True, True]
        assert len(list(queue.admin.running())) == 2
        assert queue.find(grant.claims[0].job.id).job.attempt == 1
    assert pending(client) == {claim.entry: ("w", 1) for claim in grant.claims}
    assert queue._run(queue.ops.complete(grant.claims, fenced=True)) == [True, True]


@pytest.mark.differs("ops")
@pytest.mark.parametrize(
    "fields", [{}, {"id": "job"}, {"headers": {"a": "b"}}], ids=["plain", "id", "header"]
)
def test_t17_attempts_are_deliveries_less_releases(queue, fields):
    """T17. A naive queue takes the delivery count for the attempt. A release then spends one, and a
    new entry begins at 1.

    Here an attempt is spent by a retry and by a lease that ran out; the token grows with every
    delivery.
    """
    queue.enqueue(b"x", **fields)
    attempts, tokens = [], []

    def step(**options):
        lease = queue.lease(**options)
        attempts.append(lease.job.attempt)
        tokens.append(lease.token)
        return lease

    assert step().release()
    assert step().retry()
    assert step().release()
    step(duration=0.001)
    expire(queue)
    lease = step()
    assert lease.renew()
    assert lease.retry(0.001)
    until(lambda: queue._run(queue.ops.reclaim("sweeper", 10.0)).promoted)
    assert step().release()
    assert step().dead_letter("no")
    assert queue.admin.redrive() == 1
    assert step().release()
    assert step().complete()
    assert attempts == [1, 1, 2, 2, 3, 4, 4, 1, 1]
    assert tokens == list(range(1, 10))


@pytest.mark.differs("keys")
def test_t18_nothing_dangles(queue, client):
    """T18. A naive queue counts waiting jobs as XLEN less pending ones, which is too few by each
    deleted pending entry.

    Here nothing that removes a leased or parked job leaves it pending.
    """
    queue.enqueue_many([NewJob(b"%d" % i, id=f"j{i}") for i in range(12)])
    leases = queue.lease_many(9)
    assert leases[0].complete()
    assert leases[1].retry()
    assert leases[2].retry(LONG)
    assert leases[3].dead_letter("no")
    assert queue.cancel("j4")
    assert queue.admin.cancel_payload(b"5") == 1
    assert leases[6].release()
    assert leases[7].release()
    assert queue.cancel("j6")
    assert len(pending(client)) == 2
    assert present(queue) == {"waiting": 4, "parked": 1, "leased": 1, "delayed": 1, "dead": 1}
    assert queue.admin.purge() == 6
    assert list(pending(client)) == [leases[8].claim.entry]
    assert present(queue) == {"leased": 1, "dead": 1}


def test_t19_nothing_is_told_from_something(queue):
    """T19. A naive Lua script tests `x ~= nil`, which is true of a missing value, because that is
    `false`.

    Here what is not there is not there, for each verb, also when the call is asked again, and with
    empty values about.
    """
    queue.enqueue(b"", id="empty", headers={"a": ""})
    lease = queue.lease()
    assert (lease.job.payload, lease.job.headers) == (b"", {"a": ""})
    assert (queue.lease(), queue.admin.peek(), queue.find("no"), queue.result("no")) == (None,) * 4
    with pytest.raises(TimeoutError):
        queue.result("empty")
    assert (
        queue.cancel("no"),
        queue.admin.cancel_payload(b"no"),
        queue.admin.redrive("no"),
        queue.admin.purge_dead("no"),
    ) == (0,) * 4
    assert queue.enqueue(b"", id="empty").added is False
    assert lease.complete(result=b"")
    assert queue.result("empty") == b""
    assert queue.find("empty") is None
    assert queue.enqueue(b"", id="empty").added is True


@pytest.mark.differs("one server")
@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_t20_ids_are_not_taken_for_entries(connect, server, decode, protocol):
    """T20. A naive client parses a raw XCLAIM … JUSTID as entries, and decodes bytes that are no
    text.

    Here replies are those of scripts, of one shape, on connections of our own, whatever the user's
    client is set to.
    """
    queue = connect(
        client=lambda module: module.Redis(
            unix_socket_path=server.path,
            decode_responses=decode,
            protocol=protocol,
            socket_timeout=None,
        )
    )
    payload = b"\xff\x00\r\n" + bytes(range(256))
    queue.enqueue(payload, headers={"a": "ä"})
    first = queue.lease()
    assert first.renew()
    assert first.release()
    lease = queue.lease()
    assert (lease.job.payload, lease.job.headers, lease.job.id) == (
        payload,
        {"a": "ä"},
        first.job.id,
    )
    assert lease.complete(result=payload)
    assert queue.result(lease.job.id) == payload
