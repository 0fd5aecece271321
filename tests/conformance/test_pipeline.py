"""Operations as values in the caller's own MULTI. They run together with the caller's writes or not
at all."""

from __future__ import annotations

import pytest
import redis

from headrace import Counts, NewJob
from tests.support.steps import LONG, key, leased, payloads, present


def test_enqueue_in_a_transaction(connect, client):
    """A job is enqueued together with the caller's own write."""
    queue = connect()
    begin = connect.client().pipeline
    op = queue.ops.enqueue(
        [queue.ops.item(NewJob(b"\x00\xff", id="a", headers={"h": "1"})), queue.ops.item(b"plain")]
    )
    pipe = begin()
    pipe.set("state", "new")
    pipe.execute_command(*op.wire())
    assert client.dbsize() == 0  # nothing is sent before EXEC
    _, reply = pipe.execute()
    receipts = op.decode(reply)
    assert [(receipt.id, receipt.added) for receipt in receipts] == [
        ("a", True),
        (receipts[1].id, True),
    ]
    assert client.get("state") == b"new"
    assert payloads(queue.admin.waiting()) == [b"\x00\xff", b"plain"]
    assert queue.find(receipts[1].id).state == "waiting"
    assert queue.counts() == Counts(waiting=2, enqueued=2)


@pytest.mark.differs("one server")
def test_nothing_happens_without_exec(connect, client):
    """A transaction that is given up, or whose watched key has changed, enqueues nothing."""
    queue = connect()
    begin = connect.client().pipeline
    op = queue.ops.enqueue([queue.ops.item(b"x")])
    pipe = begin()
    pipe.execute_command(*op.wire())
    pipe.reset()
    pipe.watch("state")
    pipe.multi()
    pipe.execute_command(*op.wire())
    client.set("state", "changed")
    with pytest.raises(redis.WatchError):
        pipe.execute()
    assert present(queue) == {}


@pytest.mark.differs("one server")
def test_a_transaction_twice(connect):
    """No call is recorded, so a transaction that is sent twice acts twice. An id keeps the job from
    being added twice.
    """
    queue = connect()
    begin = connect.client().pipeline
    named = queue.ops.enqueue([queue.ops.item(NewJob(b"named", id="a"))])
    plain = queue.ops.enqueue([queue.ops.item(b"plain")])
    added = []
    for _ in range(2):
        pipe = begin()
        pipe.execute_command(*named.wire())
        pipe.execute_command(*plain.wire())
        added.append(
            [
                op.decode(reply)[0].added
                for op, reply in zip((named, plain), pipe.execute(), strict=True)
            ]
        )
    assert added == [[True, True], [False, True]]
    assert payloads(queue.admin.waiting()) == [b"named", b"plain", b"plain"]


@pytest.mark.differs("one server")
def test_every_kind_of_operation(connect, client):
    """Every operation may be part of a transaction, and its reply decodes as it does elsewhere, on
    RESP3 too."""
    queue = connect("g/q")
    for protocol in (2, 3):
        begin = connect.client(protocol=protocol).pipeline
        held = [
            leased(queue, b"x", id=name)
            for name in ("complete", "release", "retry", "dead", "renew")
        ]
        queue.enqueue(b"x", id="cancel")
        claims = [lease.claim for lease in held]
        ops = [
            (queue.ops.complete(claims[:1], then=[NewJob(b"next", queue="g/next")]), [True]),
            (queue.ops.complete(claims[:1]), [False]),
            (queue.ops.release(claims[1:2]), [True]),
            (queue.ops.retry([(claims[2], LONG, True, "later")]), [True]),
            (queue.ops.dead_letter([(claims[3], "no")]), [True]),
            (queue.ops.renew(claims[4:], duration=LONG), [True]),
            (queue.ops.cancel("cancel"), True),
            (queue.ops.cancel("nobody"), False),
        ]
        counts, found, page = (
            queue.ops.counts(),
            queue.ops.find("retry"),
            queue.ops.listing("dead", ""),
        )
        pipe = begin()
        for op in [*(op for op, _ in ops), counts, found, page]:
            pipe.execute_command(*op.wire())
        replies = pipe.execute()
        assert [op.decode(reply) for (op, _), reply in zip(ops, replies, strict=False)] == [
            want for _, want in ops
        ]
        assert counts.decode(replies[-3]).lost == 0
        assert found.decode(replies[-2]).state == "delayed"
        assert [letter.reason for letter in page.decode(replies[-1])] == ["no"]
        assert payloads(connect("g/next").admin.waiting()) == [b"next"]
        assert present(queue) == {"parked": 1, "leased": 1, "delayed": 1, "dead": 1}
        client.flushall()


@pytest.mark.differs("one server")
def test_lease_in_a_transaction(connect):
    """Leasing is an operation too. The queue's operations settle the claims that it returns."""
    queue = connect()
    queue.enqueue_many([b"1", b"2", b"3"])
    begin = connect.client().pipeline
    op = queue.ops.lease("mine", 2, duration=LONG, ttl=LONG)
    pipe = begin()
    pipe.execute_command(*op.wire())
    grant = op.decode(pipe.execute()[0])
    assert [claim.job.payload for claim in grant.claims] == [b"1", b"2"]
    assert [state.worker for state in queue.admin.running()] == ["mine"] * 2
    assert queue._run(queue.ops.complete(grant.claims, fenced=True)) == [True, True]


@pytest.mark.differs("one server")
def test_a_client_that_decodes(connect):
    """The caller's client may decode its replies."""
    queue = connect()
    begin = connect.client(decode_responses=True).pipeline
    enqueue = queue.ops.enqueue([queue.ops.item(NewJob(b"text", id="é")), queue.ops.item(b"plain")])
    lease, counts = queue.ops.lease("mine", 9, ttl=LONG), queue.ops.counts()
    pipe = begin()
    for op in (enqueue, lease, counts):
        pipe.execute_command(*op.wire())
    receipts, grant, after = (
        op.decode(reply) for op, reply in zip((enqueue, lease, counts), pipe.execute(), strict=True)
    )
    assert receipts[0].id == "é"
    assert [(claim.job.id, claim.job.payload) for claim in grant.claims] == [
        ("é", b"text"),
        (receipts[1].id, b"plain"),
    ]
    assert after == Counts(leased=2, enqueued=2)


def test_by_hash(connect, client):
    """A script that is sent by its hash must be loaded. In a MULTI a missing one is an error, and
    the others run."""
    queue = connect()
    begin = connect.client().pipeline
    op = queue.ops.enqueue([queue.ops.item(b"x")])

    def transaction():
        pipe = begin()
        pipe.incr("tries")
        pipe.execute_command(*op.wire("EVALSHA"))
        return pipe.execute(raise_on_error=False)

    client.script_flush()
    assert isinstance(transaction()[1], redis.exceptions.NoScriptError)
    assert present(queue) == {}
    client.script_load(op.script.source)
    assert op.decode(transaction()[1])[0].added
    assert client.get("tries") == b"2"
    assert present(queue) == {"waiting": 1}


@pytest.mark.differs("ops")
def test_operations_are_values(connect, client):
    """Making an operation sends nothing. Bad arguments are refused when it is made."""
    queue = connect()
    op = queue.ops.enqueue([queue.ops.item(NewJob(b"x", delay=LONG))])
    queue.ops.cancel("a")
    with pytest.raises(ValueError, match="id ''"):
        queue.ops.item(NewJob(b"x", id=""))
    with pytest.raises(TypeError, match="payload must be"):
        queue.ops.item(5)
    with pytest.raises(ValueError, match="queue 'other'"):
        queue.ops.item(NewJob(b"x", queue="other"))
    assert client.dbsize() == 0
    assert key("jobs") in op.keys
