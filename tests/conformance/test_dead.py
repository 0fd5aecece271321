"""The evidence for a dead worker. It is kept with the queue, so that a new peer knows it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.awaiting import until
from tests.support.steps import LONG, key, looked_after, present

pytestmark = pytest.mark.differs("ops")

TERM = 10.0  # seconds of a peer's timeout here


def ghost(queue: Any, client: Any, late: float = 1.0) -> None:
    """Let a worker lease a job and make its deadline so many seconds old."""
    queue.enqueue(b"x")
    assert queue._run(queue.ops.beat("ghost", LONG, register=True))
    assert len(queue._run(queue.ops.lease("ghost", 1)).claims) == 1
    client.zadd(key("workers"), {"ghost": now(client) - round(late * 1000)})


def now(client: Any) -> int:
    seconds, micros = client.time()
    return int(seconds * 1000 + micros // 1000)


def pulse(client: Any, since: float, seen: float, *, run: str | None = None) -> None:
    """Write a record as if the queue had been watched since *since* seconds ago, and last *seen*
    seconds ago."""
    run = client.info("server")["run_id"] if run is None else run
    at = now(client)
    client.hset(
        key("stats"),
        "pulse",
        f"{at - since * 1000:.0f} {at - seen * 1000:.0f} 0 0 {TERM * 1000:.0f} {run}",
    )


def look(queue: Any, name: str = "young") -> int:
    """Return how many workers a new peer declares dead."""
    assert queue._run(queue.ops.beat(name, LONG, register=True))
    return int(queue._run(queue.ops.reclaim(name, TERM)).declared)


def test_a_peer_that_has_just_started_knows_the_dead(connect: Any, client: Any) -> None:
    queue = connect()
    ghost(queue, client)
    looked_after(client)
    assert look(queue) == 1
    assert present(queue) == {"parked": 1}


def test_nobody_knows_after_a_gap(connect: Any, client: Any) -> None:
    """After a gap of more than a timeout, the server may have been frozen, or all live workers may
    have been cut off.
    """
    queue = connect()
    ghost(queue, client)
    pulse(client, since=LONG, seen=TERM + 1)
    assert [look(queue), look(queue)] == [0, 0]
    assert present(queue) == {"leased": 1}


def test_nobody_knows_where_nobody_has_looked(connect: Any, client: Any) -> None:
    queue = connect()
    ghost(queue, client)
    assert [look(queue), look(queue)] == [0, 0]


def test_another_run_of_the_server(connect: Any, client: Any) -> None:
    """The server was away for less than a timeout. Every worker gets the time to connect again."""
    queue = connect()
    ghost(queue, client)
    pulse(client, since=LONG, seen=TERM * 0.7, run="0123456789abcdef")
    assert [look(queue), look(queue)] == [0, 0]


def test_who_was_late_before_a_short_gap_is_dead(connect: Any, client: Any) -> None:
    """A frozen server has the heartbeats of the other workers from before. They get a moment."""
    queue = connect()
    ghost(queue, client, late=TERM * 0.7 + 1)
    queue.enqueue(b"y")
    assert queue._run(queue.ops.beat("alive", LONG, register=True))
    assert len(queue._run(queue.ops.lease("alive", 1)).claims) == 1
    client.zadd(key("workers"), {"alive": now(client) - 1000})
    pulse(client, since=LONG, seen=TERM * 0.7)
    assert [look(queue), look(queue)] == [1, 0]
    assert present(queue) == {"parked": 1, "leased": 1}
    assert queue._run(queue.ops.beat("alive", LONG))


def test_the_clock_goes_back(connect: Any, client: Any) -> None:
    """Deadlines move back with the clock, and dead workers are found."""
    queue = connect()
    ghost(queue, client, late=-600.0)
    pulse(client, since=LONG, seen=-600.0)
    look(queue)
    assert client.zscore(key("workers"), "ghost") < now(client) + 5000
    client.zadd(key("workers"), {"ghost": now(client) - 1000}, lt=True)
    looked_after(client)
    assert look(queue) == 1
    assert present(queue) == {"parked": 1}


def test_told_when_the_next_deadline_passes(connect: Any, client: Any) -> None:
    """Its jobs are back at that time and not a look later."""
    queue = connect()
    ghost(queue, client, late=-0.4)
    looked_after(client)
    assert queue._run(queue.ops.beat("peer", LONG, register=True))
    swept = queue._run(queue.ops.reclaim("peer", TERM))
    assert swept.declared == 0
    assert swept.again is not None
    assert 0 < swept.again <= 0.401  # who has come in time to the millisecond lives
    until(lambda: queue._run(queue.ops.reclaim("peer", TERM)).declared)


def gone_back(client: Any, seconds: float) -> None:
    """Write a record as if the clock had gone back by so many seconds since the last look."""
    pulse(client, since=LONG, seen=-seconds)


def test_who_beat_since_the_clock_went_back_lives(connect: Any, client: Any) -> None:
    """An idle worker sent a heartbeat before the first look. It does not count as one from
    before."""
    queue = connect()
    assert queue._run(queue.ops.beat("quick", TERM, register=True))
    gone_back(client, 600.0)
    assert [look(queue), look(queue)] == [0, 0]
    assert queue._run(queue.ops.beat("quick", TERM))


def test_the_clock_goes_back_before_many(connect: Any, client: Any) -> None:
    """All deadlines and due times move back once, part by part, however many there are."""
    queue = connect()
    at = now(client)
    many = {f"{number}": at + 600_000 + number // 400 for number in range(2500)}
    for part in ("workers", "leases", "limited"):
        client.zadd(key(part), many)
    gone_back(client, 600.0)
    assert queue._run(queue.ops.beat("young", LONG, register=True))
    looks = 1
    while queue._run(queue.ops.reclaim("young", TERM)).more and looks < 20:
        looks += 1
    assert looks > 3
    latest = now(client) + 10_000
    for part in ("workers", "leases", "limited"):
        scores = dict(client.zrange(key(part), 0, -1, withscores=True))
        assert all(
            at - 10_000 <= score <= latest for name, score in scores.items() if name != b"young"
        )
    assert client.hget(key("stats"), "rewind") is None


def test_the_clock_goes_forward(connect: Any, client: Any) -> None:
    """All workers look late by ten minutes. They may send a heartbeat before one is declared dead.
    Shorter leases end.
    """
    queue = connect(lease=60.0)
    queue.enqueue(b"x")
    for name in ("holder", "idle"):
        assert queue._run(queue.ops.beat(name, TERM, register=True))
    (claim,) = queue._run(queue.ops.lease("holder", 1)).claims
    client.zadd(key("workers"), {name: now(client) - 595_000 for name in ("holder", "idle")})
    client.xclaim(key("jobs"), "workers", "holder", 0, [claim.entry], idle=600_000, justid=True)
    pulse(client, since=LONG, seen=601.0)
    assert [look(queue), look(queue)] == [0, 0]
    assert present(queue) == {"parked": 1}
    assert all(queue._run(queue.ops.beat(name, TERM)) for name in ("holder", "idle"))
    (again,) = queue._run(queue.ops.lease("idle", 1)).claims
    assert (again.entry, again.token) == (claim.entry, claim.token + 1)  # it runs twice
    assert queue._run(queue.ops.release([claim])) == [False]


def test_who_was_gone_at_the_last_look_is_removed(connect: Any, client: Any) -> None:
    """A worker that was gone for ten timeouts at one visit is removed by the next visit."""
    queue = connect()
    assert queue._run(queue.ops.beat("ghost", TERM, register=True))
    client.zadd(key("workers"), {"ghost": now(client) - 600_000})
    pulse(client, since=LONG, seen=550.0)
    assert look(queue) == 0
    pulse(client, since=LONG, seen=450.0)
    assert look(queue) == 1
