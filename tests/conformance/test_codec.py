"""Payloads by a codec. Jobs that do not decode are quarantined with their bytes and stop no other
job."""

from __future__ import annotations

import msgspec
import pytest

from headrace import Counts, NewJob
from headrace.codecs import JSONCodec
from headrace.errors import CodecError
from tests.support.steps import LONG, expire, key, leased, payloads, present, promote


class Reversed:
    """A codec of the user."""

    def encode(self, payload):
        if payload is None:
            raise LookupError("nothing to encode")
        return payload[::-1].encode()

    def decode(self, data):
        return data.decode("ascii")[::-1]


VALUES = [{"a": [1, 2.5, None, True, "é"]}, [], {}, "", "text", 0, None, False, [{"b": {}}]]


@pytest.mark.differs("keys")
def test_json(connect, client):
    """A JSON value comes back equal. The stored bytes are compact JSON in UTF-8 (M-14)."""
    queue = connect(codec=JSONCodec())
    queue.enqueue({"a": [1, "é"], "b": None})
    queue.enqueue_many([*VALUES, NewJob({"c": 1}, id="c")])
    ((_, fields),) = client.xrange(key("jobs"), count=1)
    assert fields == {b"data": '{"a":[1,"é"],"b":null}'.encode()}
    everything = [{"a": [1, "é"], "b": None}, *VALUES, {"c": 1}]
    assert payloads(queue.admin.waiting()) == everything
    assert queue.find("c").job.payload == {"c": 1}
    assert [lease.job.payload for lease in queue.lease_many(99)] == everything


def test_json_results(connect):
    """A result is encoded by the codec, and decoded by it."""
    queue = connect(codec=JSONCodec())
    assert leased(queue, {}, id="a").complete({"answer": 42}, then=[NewJob([1])])
    assert queue.result("a") == {"answer": 42}
    assert queue.results(["a", "b"]) == {"a": {"answer": 42}}
    assert connect().result("a") == b'{"answer":42}'
    assert payloads(queue.admin.waiting()) == [[1]]
    with pytest.raises(CodecError, match="result: payload does not encode as JSON"):
        queue.lease().complete(object())
    assert present(queue) == {"leased": 1}


class Order(msgspec.Struct):
    number: int
    items: list[str]


@pytest.mark.differs("order")
def test_typed_json(connect):
    """With a type, payloads are built as this type. A payload that does not fit is quarantined."""
    queue = connect(codec=JSONCodec(Order))
    queue.enqueue(Order(7, ["tea"]))
    connect().enqueue_many([b'{"number": "x", "items": []}', b"{}", b'{"number": 8, "items": []}'])
    assert [lease.job.payload for lease in queue.lease_many(9)] == [Order(7, ["tea"]), Order(8, [])]
    reasons = [state.reason for state in queue.admin.dead()]
    assert len(reasons) == 2
    assert "Expected `int`, got `str` - at `$.number`" in reasons[0]
    assert "missing required field" in reasons[1]


@pytest.mark.differs("keys")
def test_a_codec_of_your_own(connect, client):
    """Any object with encode and decode is a codec. Its exceptions pass through, and no call is
    sent."""
    queue = connect(codec=Reversed())
    with pytest.raises(LookupError, match="nothing to encode"):
        queue.enqueue_many(["abc", None])
    assert client.dbsize() == 0
    queue.enqueue_many(["abc", "x"])
    queue.enqueue("late", delay=LONG)
    assert [fields for _, fields in client.xrange(key("jobs"))] == [
        {b"data": b"cba"},
        {b"data": b"x"},
    ]
    assert [lease.job.payload for lease in queue.lease_many(2)] == ["abc", "x"]
    assert payloads(queue.admin.delayed()) == ["late"]


# -- what does not decode --------------------------------------------------------------------------


@pytest.mark.differs("order")
def test_quarantine(connect):
    """A job that does not decode becomes a dead letter once, with its bytes and the reason. The
    others go on (H-7)."""
    plain, queue = connect(), connect(codec=JSONCodec())
    broken = plain.enqueue(b"\x00{\xff", id="broken", headers={"a": "b"})
    plain.enqueue_many([b"1", b"[", b"2", b""])
    assert [lease.job.payload for lease in queue.lease_many(9)] == [1, 2]
    assert queue.lease_many(9) == []
    letters = list(queue.admin.dead())
    assert payloads(letters) == [b"\x00{\xff", b"[", b""]
    assert all(
        letter.reason.startswith("payload does not decode: DecodeError: ") for letter in letters
    )
    assert all(letter.worker for letter in letters)
    assert (letters[0].job.id, letters[0].job.headers, letters[0].job.attempt) == (
        broken.id,
        {"a": "b"},
        1,
    )
    assert queue.counts() == Counts(leased=2, dead=3, enqueued=5)


def test_quarantine_on_the_way(connect):
    """A lease call gets the next job that decodes in the same call, after any number of others."""
    plain, queue = connect(), connect(codec=JSONCodec())
    plain.enqueue_many([*[b"["] * 5, b"1", *[b"["] * 5, b"2"])
    assert queue.lease().job.payload == 1
    assert queue.lease(at_most_once=True).job.payload == 2
    assert queue.lease(block=0.01) is None
    assert queue.counts() == Counts(leased=1, dead=10, enqueued=12, completed=1)


@pytest.mark.differs("order")
def test_quarantine_of_what_came_back(connect):
    """A job that was released, delayed, or had an expired lease is quarantined too."""
    plain, queue = connect(), connect(codec=JSONCodec())
    released, expired, delayed = [leased(plain, b"[") for _ in range(3)]
    assert released.release()
    assert expired.renew(0.001)
    expire(plain)
    assert delayed.retry(0.001)
    promote(plain)
    assert queue.lease_many(9) == []
    assert [letter.job.attempt for letter in queue.admin.dead()] == [1, 2, 2]
    assert present(queue) == {"dead": 3}


def test_quarantined_and_redriven(connect):
    """A client that can decode the quarantined job gets it unchanged after a redrive."""
    plain, queue = connect(), connect(codec=JSONCodec())
    plain.enqueue(b"\xff\x00", id="a", headers={"a": "b"})
    assert queue.lease() is None
    assert queue.admin.redrive() == 1
    job = plain.lease().job
    assert (job.id, job.payload, job.headers, job.attempt) == ("a", b"\xff\x00", {"a": "b"}, 1)


def test_listings_of_what_does_not_decode(connect):
    """A listing shows the bytes of a job that does not decode, and raises no error."""
    plain, queue = connect(), connect(codec=JSONCodec())
    plain.enqueue_many([b"[", b"["])
    plain.enqueue(b"[", id="a", delay=LONG)
    plain.lease()
    assert (
        payloads(queue.admin.waiting())
        == payloads(queue.admin.running())
        == payloads(queue.admin.delayed())
        == [b"["]
    )
    assert queue.find("a").job.payload == queue.admin.peek().payload == b"["


@pytest.mark.differs("keys")
def test_entries_without_data(queue, client):
    """An entry that a foreign producer added without `data` is quarantined. Other entries are
    not."""
    entry = client.xadd(key("jobs"), {"type": "mail", "to": "ada"}).decode()
    client.xadd(key("jobs"), {"data": b"fine", "type": "mail"})
    lease = queue.lease()
    assert (lease.job.payload, lease.job.headers) == (b"fine", {"type": "mail"})
    (letter,) = queue.admin.dead()
    assert (letter.job.id, letter.job.payload) == (entry, b"")
    assert letter.job.headers == {"type": "mail", "to": "ada"}
    assert letter.reason == "no payload: the entry has no field 'data'"
    assert queue.admin.redrive() == 1
    assert queue.lease() is None
    assert queue.find(entry).state == "dead"


def test_quarantine_respects_the_limit(connect):
    """Quarantined jobs are dead letters like others. The newest are kept."""
    connect().enqueue_many([b"[%d" % i for i in range(5)])
    queue = connect(codec=JSONCodec(), dead_limit=2)
    assert queue.lease_many(9) == []
    assert payloads(queue.admin.dead()) == [b"[3", b"[4"]
    assert queue.counts() == Counts(dead=2, enqueued=5, dead_trimmed=3)
