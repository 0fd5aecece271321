"""Foreign data in the streams, hashes and sets of a queue. No verb fails, and all of it can be seen
and removed."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from msgspec import msgpack

from headrace._model.job import Escaped
from tests.support.colours import Connect
from tests.support.steps import key

Fields = dict[Any, Any]
SHAPES: dict[str, Fields] = {
    "no payload": {"x": "1"},
    "an empty name": {"": "", "data": "a"},
    "an empty id": {"id": "", "data": "a"},
    "two bytes that are no text": {b"\xff\xfe": b"\xfe\xff", "data": b"\xff"},
    "an id that is no UTF-8": {"data": "a", "id": b"i\xff"},
    "an id of another's shape": {"data": "a", "id": "5-0"},
    "an id that is a word of ours": {"data": "a", "id": "delayed"},
    "a long id": {"data": "a", "id": "i" * 2000},
    "control characters": {"data": "a", "id": "i\n\x00"},
    "no number of attempts": {"data": "a", "attempt": "many"},
    "too many attempts": {"data": "a", "attempt": "9" * 30},
    "negative attempts": {"data": "a", "attempt": "-4"},
    "no time": {"data": "a", "enq": "yesterday"},
    "a time of another age": {"data": "a", "enq": "9" * 300},
    "a level that there is not": {"data": "a", "headrace-priority": "77"},
    "a letter that is cut off": {"reason": "r", "worker": "w"},
    "a letter out of order": {"worker": "w", "reason": "r", "released": "x", "data": "a"},
    "a letter whose number is none": {"reason": "r", "worker": "w", "released": "x", "data": "a"},
    "half a letter": {"reason": b"\xff", "worker": b"\xff", "released": "1"},
    "many headers": {f"h{i}": "1" for i in range(4000)},
}
BODIES = {
    "no msgpack": b"\xc1",
    "cut off": b"\x92\xa4da",
    "a number": msgpack.encode(5),
    "an empty list": msgpack.encode([]),
    "an odd list": msgpack.encode(["data"]),
    "numbers in a list": msgpack.encode(["data", 5]),
    "a mapping": msgpack.encode({"data": "a"}),
    "a nested list": msgpack.encode(["data", ["a"]]),
    "nothing": b"",
    "two values": msgpack.encode(["data", "a"]) + msgpack.encode(1),
    "a foreign id": msgpack.encode(["data", "a", "id", "other"]),
}


def states(queue: Any) -> list[Any]:
    """Return every job that the queue lists."""
    return [
        item
        for state in ("waiting", "running", "delayed", "dead")
        for item in getattr(queue.admin, state)()
    ]


def looked_at(queue: Any) -> list[Any]:
    """Read the queue by every verb that reads."""
    for look in (queue.admin.peek, queue.counts, queue.admin.workers, queue.admin.schedules):
        look()
    assert queue.find("nobody") is queue.admin.position("nobody") is None
    found = states(queue)
    for item in found:
        assert str(item.job.id).encode()
        if isinstance(item.job.id, Escaped) or (
            0 < len(item.job.id) <= 500 and item.job.id.isprintable()
        ):
            queue.find(item.job.id)
            queue.admin.position(item.job.id)
    return found


@pytest.mark.sampled
@pytest.mark.differs("position")
@pytest.mark.parametrize("shape", SHAPES)
def test_an_entry_in_every_state(
    queue: Any, connect: Connect, client: redis.Redis, shape: str
) -> None:
    """The entry is leased, released, retried, delayed, expired, moved, dead, redriven and
    completed. Other jobs go on.
    """
    fields = SHAPES[shape]
    for _ in range(4):
        client.xadd(key("jobs"), fields)
    assert len(looked_at(queue)) == 4
    queue.enqueue(b"fine", id="fine")
    leases = queue.lease_many(10)  # what has no payload is a dead letter now
    readable = "data" in fields
    assert [lease.job.payload for lease in leases][-1] == b"fine"
    assert len(leases) == (5 if readable else 1)
    assert queue.counts().dead == (0 if readable else 4)
    looked_at(queue)
    leases.pop().complete()
    if readable:
        first, second, third, fourth = leases
        assert first.release()
        assert second.retry(delay=3600)
        assert third.retry()
        assert fourth.dead_letter("why")
        looked_at(queue)
        queue.admin.repair()
        assert len(looked_at(queue)) == 4
        again = queue.lease_many(10)
        assert len(again) == 2
        assert queue.admin.expire() == 2
        other = connect("q/to")
        # of those with one id the others stay
        assert queue.admin.move("q/to") == (1 if fields.get("id") else 3)
        assert len(looked_at(other)) + len(looked_at(queue)) == 4
        other.admin.move("q")
        other.admin.purge()
        for lease in queue.lease_many(10):
            assert lease.dead_letter("again")
    queue.admin.purge()
    looked_at(queue)
    assert queue.admin.redrive() >= 1
    looked_at(queue)
    for lease in queue.lease_many(10):
        assert lease.complete()
    queue.admin.purge_dead()
    queue.admin.purge()
    assert states(queue) == []
    queue.admin.repair()  # 6.2 does not count what others add
    assert queue.counts().present == queue.counts().lost == 0
    assert not client.exists(
        key("ids"), key("released"), key("leases"), key("delayed"), key("bodies")
    )


@pytest.mark.sampled
@pytest.mark.differs("position")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_dead_letter(queue: Any, client: redis.Redis, shape: str) -> None:
    fields = SHAPES[shape]
    for _ in range(2):
        client.xadd(key("dead"), fields)
    queue.enqueue(b"fine")
    queue.lease().dead_letter("why")
    letters = looked_at(queue)
    assert [letter.state for letter in letters] == ["dead"] * 3
    assert all(letter.reason is not None for letter in letters)
    assert letters[2].reason == "why"
    queue.admin.repair()
    before = queue.counts().lost
    assert queue.admin.redrive() >= 2  # of two with one id the second stays
    queue.admin.redrive()
    queue.lease_many(10)
    queue.admin.expire()
    queue.admin.purge()
    queue.admin.purge_dead()
    assert queue.counts().present == 0
    assert queue.counts().lost == before


@pytest.mark.sampled
@pytest.mark.differs("position")
@pytest.mark.parametrize("body", BODIES)
def test_a_delayed_body(queue: Any, client: redis.Redis, body: str) -> None:
    """The body is listed as its bytes. When it is due, it is delivered like all others."""
    far = 4_000_000_000_000
    for name, due in (("late", far), ("due", 1), ("odd", 1.5)):
        client.hset(key("bodies"), name, BODIES[body])
        client.zadd(key("delayed"), {name: due})
    client.zadd(key("delayed"), {"hollow": far})
    queue.enqueue(b"fine", id="fine")
    assert len(looked_at(queue)) == 4
    assert queue.find("fine").state == "waiting"
    queue.admin.repair()
    looked_at(queue)
    leases = queue.lease_many(10)
    assert {lease.job.payload for lease in leases} >= {b"fine"}
    assert len(leases) == 3
    for lease in leases:
        assert lease.complete()
    assert [item.state for item in looked_at(queue)] == ["delayed"]
    assert queue.admin.cancel_payload(b"nothing such") == 0
    assert queue.admin.reschedule("late", 3600) in (True, False)
    assert queue.admin.purge() == 1


@pytest.mark.differs("keys")
def test_schedules_registrations_and_releases(queue: Any, client: redis.Redis) -> None:
    for name, body in BODIES.items():
        client.hset(key("schedules"), name, body)
        client.zadd(key("ticks"), {name: 1})
    for number, stored in enumerate(
        [["every x", "once", ["data", "a"]], ["every 0", "once", ["data", "a"]], ["", "", []]]
    ):
        client.hset(key("schedules"), f"s{number}", msgpack.encode(stored))
        client.zadd(key("ticks"), {f"s{number}": 1})
    assert len(queue.admin.schedules()) == len(BODIES) + 3
    queue.admin.schedule("ours", b"tick", every=3600)
    assert queue.admin.unschedule("a number")
    entry = client.xadd(key("jobs"), {"data": "a"})
    client.hset(key("released"), entry, "many")
    for name, value in (("x", "y"), ("z", b"\xff"), ("1", "9" * 400 + " 5"), ("2", "-1 -1 -1")):
        client.hset(key("registered"), name, value)
        client.zadd(key("workers"), {name: 1})
    client.zadd(key("workers"), {b"\xff": "inf", "": 5})
    looked_at(queue)
    queue.admin.repair()
    (lease,) = queue.lease_many(10)
    assert lease.job.attempt == 1
    assert lease.retry()
    assert queue.lease().complete()
    looked_at(queue)


@pytest.mark.differs("keys")
def test_an_id_that_is_no_utf8_is_free_again(queue: Any, client: redis.Redis) -> None:
    client.xadd(key("jobs"), {"data": "a", "id": b"i\xff"})
    queue.admin.repair()
    assert client.hkeys(key("ids")) == [b"i\xff"]
    name = queue.admin.peek().id
    assert name == "i\\xff"
    assert queue.find(name).state == "waiting"
    assert queue.find("i\\xff") is None  # what only looks like it is another
    assert queue.admin.position(name) == 0
    assert queue.lease().complete()
    assert client.exists(key("ids")) == 0
    client.xadd(key("jobs"), {"data": "a", "id": b"i\xff"})
    queue.admin.repair()
    assert queue.cancel(queue.admin.peek().id)
    assert queue.counts().present == 0
