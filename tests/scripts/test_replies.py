"""Replies of every script on every server and with both protocols, for each case of its REPLY
line."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from headrace._protocol.queue_ops import FOLLOWED
from tests.scripts.conftest import TERM, Lua
from tests.support.awaiting import until
from tests.support.steps import looked_after

LATER = "+60000"


def ms(entry: str) -> int:
    """Return the time in an entry's ID."""
    return int(entry.partition("-")[0])


def near(moment: int) -> bool:
    """Tell whether a time is about now."""
    return abs(time.time() * 1000 - moment) < 60_000


def full(*items: tuple[str, str, dict[str, str]]) -> list[Any]:
    """Return items of the form "full", with id, delay and fields."""
    args: list[Any] = ["full"]
    for name, delay, fields in items:
        flat = [x for pair in fields.items() for x in pair]
        args += (name, delay, len(flat), *flat)
    return args


# -- enqueue ---------------------------------------------------------------------------------------


def test_enqueue_plain(lua: Lua) -> None:
    reply = lua("enqueue", "plain", "a", "b")
    (first, _), (second, _) = entries = lua.redis.xrange(lua.key("jobs"))
    assert entries == [(first, {"data": "a"}), (second, {"data": "b"})]
    consecutive = second.split("-") == [first.split("-")[0], str(int(first.split("-")[1]) + 1)]
    # 6.2 looks at the clock for each
    assert reply == ([first, 2] if consecutive else [first, second])
    assert lua.counts() == {"waiting": 2, "enqueued": 2}


def test_enqueue_plain_into_the_next_millisecond(lua: Lua) -> None:
    """Ids that are not consecutive are answered one by one."""
    lua.redis.xadd(lua.key("jobs"), {"data": "x"}, id=f"9999999999999-{2**64 - 2}")
    last, following = f"9999999999999-{2**64 - 1}", "10000000000000-0"
    assert lua("enqueue", "plain", "a", "b", "c") == [last, following, "10000000000000-1"]
    assert lua("enqueue", "plain", "d") == ["10000000000000-2", 1]


def test_enqueue_one(lua: Lua) -> None:
    """The entry equals the entry of a plain item. Its size is recorded for `lease`."""
    ids = [lua("enqueue_one", "a"), lua("enqueue_one", "b" * 5000)]
    assert lua.redis.xrange(lua.key("jobs")) == [
        (ids[0], {"data": "a"}),
        (ids[1], {"data": "b" * 5000}),
    ]
    assert lua.redis.hget(lua.key("stats"), "largest") == "5000"
    assert lua.counts() == {"waiting": 2, "enqueued": 2}


def test_enqueue_full(lua: Lua) -> None:
    """Ids alternate with whether they were added. A job without an id has the id of its entry."""
    items = full(
        ("i", "", {"data": "a", "id": "i", "h": "1"}),
        ("", "", {"data": "b"}),
        ("i", "", {"data": "c"}),
    )
    reply = lua("enqueue", *items)
    (first, fields), (second, _) = lua.redis.xrange(lua.key("jobs"))
    assert reply == ["i", 1, second, 1, "i", 0]
    assert fields == {"data": "a", "id": "i", "h": "1"}
    assert lua.redis.hgetall(lua.key("ids")) == {"i": first}
    assert lua.counts() == {"waiting": 2, "enqueued": 2}


def test_enqueue_delayed(lua: Lua) -> None:
    moment = 4_000_000_000_000
    items = [
        ("a", LATER, {"data": "a"}),
        ("b", f"@{moment}", {"data": "b"}),
        ("c", "@5", {"data": "c"}),
    ]
    assert lua("enqueue", *full(*items)) == ["a", 1, "b", 1, "c", 1]
    assert lua("enqueue", *full(("a", "", {"data": "again"}))) == ["a", 0]
    due = dict(lua.redis.zrange(lua.key("delayed"), 0, -1, withscores=True))
    assert near(due["a"] - 60_000)
    assert due["b"] == moment
    # what is past is not delayed
    assert lua.counts() == {"waiting": 1, "delayed": 2, "enqueued": 3}


# -- lease -----------------------------------------------------------------------------------------


def test_lease_fresh(lua: Lua) -> None:
    """Jobs with a payload and nothing else come in a flat form."""
    a, b = lua.add("a", "b")
    known, due, taken, fresh, healed, now = lua.lease()
    assert (known, due, taken, fresh, healed) == (1, -1, [], [a, "a", b, "b"], 1)
    assert near(now)
    assert lua.holders() == {a: ("w", 1), b: ("w", 1)}
    assert lua.lease()[:5] == [1, -1, [], [], 0]


def test_lease_taken(lua: Lua) -> None:
    """Parked jobs come first with their counts and releases, then the jobs that woke a reader."""
    parked, rung, new = lua.add("a", "b", "c")
    lua.lease(limit=1)
    lua("release", "w", 0, parked, 1)
    lua.redis.xreadgroup("workers", "idle", {lua.key("jobs"): ">"}, count=1)
    lua("enqueue", *full(("", "", {"data": "d", "h": "1"})))
    known, _, taken, fresh, healed, _ = lua.lease("v")
    assert (known, fresh, healed) == (1, [], 0)
    assert [row[:2] for row in taken[:2]] == [[parked, ["data", "a"]], [rung, ["data", "b"]]]
    assert [row[2:] for row in taken] == [[2, 1], [1, 0], [1, 0], [1, 0]]
    assert taken[2][0] == new
    assert taken[3][1] == ["data", "d", "h", "1"]


def test_lease_limit(lua: Lua) -> None:
    ids = lua.add(*"abcde")
    assert lua.lease(limit=2)[3] == [ids[0], "a", ids[1], "b"]
    lua("release", "w", 0, ids[0], 1, ids[1], 1)
    assert [row[0] for row in lua.lease(limit=1)[2]] == ids[:1]
    _, _, taken, fresh, _, _ = lua.lease(limit=3)
    assert [row[0] for row in taken] == ids[1:4]  # what follows a parked one is not flat
    assert fresh == [] or [row[0] for row in taken] + fresh[::2] == ids[1:4]


def test_lease_unknown_worker(lua: Lua) -> None:
    """Without ttl a worker must be registered by a heartbeat. An unregistered one gets no job."""
    lua.add("a")
    assert lua.lease(ttl=0)[:4] == [0, -1, [], []]
    assert lua.counts() == {"waiting": 1, "enqueued": 1}
    assert lua("beat", "w", 10_000, TERM, 1) == 1
    assert len(lua.lease(ttl=0)[3]) == 2


def test_lease_declared_dead(lua: Lua) -> None:
    lua.add("a")
    lua.redis.zadd(lua.key("workers"), {"w": 0})
    assert lua.lease(ttl=0)[:4] == [0, -1, [], []]


def test_lease_next_due(lua: Lua) -> None:
    lua("enqueue", *full(("a", LATER, {"data": "a"})))
    assert 0 < lua.lease()[1] <= 60_000


def test_lease_promotes(lua: Lua) -> None:
    """A due job is handed out with its id and the time of its enqueue."""
    lua("enqueue", *full(("a", "+5", {"data": "a", "id": "a", "h": "1"})))
    until(lambda: (lua.lease()[2] or [None])[0])
    (entry, fields), *_ = lua.redis.xrange(lua.key("jobs"))
    assert list(fields) == ["data", "id", "enq", "h"]
    assert lua.redis.hgetall(lua.key("ids")) == {"a": entry}
    assert lua.counts() == {"leased": 1, "enqueued": 1}


def test_lease_no_attempts_left(lua: Lua) -> None:
    """A job with max_attempts deliveries becomes a dead letter, and the next one is handed out."""
    (a,) = lua.leased("a")
    _park(lua, a)
    assert lua.lease(most=1)[2:4] == [[], []]
    ((_, letter),) = lua.redis.xrange(lua.key("dead"))
    assert list(letter) == ["reason", "worker", "released", "data", "id", "attempt", "enq"]
    assert (letter["data"], letter["id"], letter["attempt"], letter["enq"]) == (
        "a",
        a,
        "1",
        str(ms(a)),
    )
    assert lua.counts() == {"dead": 1, "enqueued": 1}


def _park(lua: Lua, *entries: str) -> None:
    """Park entries as `reclaim` does."""
    lua.redis.xclaim(lua.key("jobs"), "workers", "parked", 0, entries, justid=True)


def test_lease_passes_what_is_gone(lua: Lua) -> None:
    """An entry that was removed by hand is not handed out and does not stay pending."""
    a, b = lua.leased("a", "b")
    _park(lua, a, b)
    lua.redis.xdel(lua.key("jobs"), a)
    assert [row[0] for row in lua.lease()[2]] == [b]
    assert lua.holders() == {b: ("w", 2)}


def test_lease_duration(lua: Lua) -> None:
    """A lease's own duration is a deadline in `leases`."""
    (a,) = lua.leased("a", duration=5000)
    ((entry, deadline),) = lua.redis.zrange(lua.key("leases"), 0, -1, withscores=True)
    assert entry == a
    assert near(deadline - 5000)


# -- settling --------------------------------------------------------------------------------------


def complete(
    lua: Lua, *entries: str, fence: str = "", counts: tuple[int, ...] = (), **options: Any
) -> Any:
    return lua("complete", fence, len(entries), 0, 0, 0, *entries, *counts, **options)


def test_complete(lua: Lua) -> None:
    a, b, c = lua.leased("a", "b", "c")
    assert complete(lua, a, b) == [1, 1]
    assert complete(lua, a, c, "5-0") == [0, 1, 0]
    assert lua.counts() == {"enqueued": 3, "completed": 3}


def test_complete_first_wins(lua: Lua) -> None:
    """Without a fence, the first caller completes the job, even if it is parked or leased to
    another worker."""
    a, b = lua.leased("a", "b")
    _park(lua, a, b)
    assert complete(lua, a) == [1]
    lua.lease("other")
    assert complete(lua, a, b) == [0, 1]
    assert lua.holders() == {}


def test_complete_fenced(lua: Lua) -> None:
    """With a fence, worker and delivery count must be the present ones."""
    a, b = lua.leased("a", "b")
    assert complete(lua, a, fence="other", counts=(1,)) == [0]
    assert complete(lua, a, b, fence="w", counts=(2, 1)) == [0, 1]
    assert complete(lua, a, b, fence="w", counts=(1, 1)) == [1, 0]
    assert lua.counts() == {"enqueued": 2, "completed": 2}


def test_complete_removed_by_hand(lua: Lua) -> None:
    """A job that was removed by XDEL does not count as completed."""
    (a,) = lua.leased("a")
    lua.redis.xdel(lua.key("jobs"), a)
    assert complete(lua, a) == [0]
    assert lua.holders() == {}


def test_complete_with_ids(lua: Lua) -> None:
    lua("enqueue", *full(("i", "", {"data": "a", "id": "i"}), ("", "", {"data": "b"})))
    taken = [row[0] for row in lua.lease()[2]]
    assert lua("complete", "w", 2, 1, 0, 0, *taken, 1, 1, "i", "") == [1, 1]
    assert not lua.redis.exists(lua.key("ids"))


def test_complete_with_results_and_followers(lua: Lua) -> None:
    """Only the winner's call has effects."""
    a, b = lua.leased("a", "b")
    other = "headrace:{q}:q/next:"
    extra = [lua.key("result:a"), lua.key("result:b")]
    parts = (*FOLLOWED, "jobs")
    extra += [base + part for base in (lua.key(""), other) for part in parts]
    lua("complete", "", 1, 0, 0, 0, b)
    args = ["", 2, 0, 2, 2, a, b, 1, 5000, "ra", 2, 5000, "rb"]
    args += [1, "n", LATER, 0, 2, "data", "next", 1, "", "", 0, 2, "data", "then"]
    assert lua("complete", *args, extra=extra) == [1, 0]
    assert lua("result", "a", "b", extra=extra[:2]) == ["ra", None]
    assert 0 < lua.redis.pttl(extra[0]) <= 5000
    assert lua.counts() == {"delayed": 1, "enqueued": 3, "completed": 2}
    assert [fields for _, fields in lua.redis.xrange(other + "jobs")] == [{"data": "then"}]
    assert lua("complete", *args, extra=extra) == [0, 0]
    assert lua.redis.xlen(other + "jobs") == 1


def test_renew(lua: Lua) -> None:
    a, b = lua.leased("a", "b")
    assert lua("renew", "w", "", 0, a, 1, b, 1) == [1, 1]
    assert lua("renew", "w", "", 0, a, 2, b, 1) == [0, 1]
    assert lua("renew", "other", "", 0, a, 1) == [0]
    assert lua.holders() == {a: ("w", 1), b: ("w", 1)}  # a renewal is no delivery


def test_renew_duration(lua: Lua) -> None:
    (a,) = lua.leased("a")
    assert lua("renew", "w", 5000, 0, a, 1) == [1]
    assert near(lua.redis.zscore(lua.key("leases"), a) - 5000)
    assert lua("renew", "w", "", 0, a, 1) == [1]
    assert not lua.redis.exists(lua.key("leases"))


def test_renew_keeps_its_worker_alive(lua: Lua) -> None:
    """With ttl the worker's registration is prolonged. A dead worker stays dead."""
    (a,) = lua.leased("a")
    before = lua.redis.zscore(lua.key("workers"), "w")
    lua("renew", "w", "", 900_000, a, 1)
    assert lua.redis.zscore(lua.key("workers"), "w") > before + 500_000
    lua.redis.zadd(lua.key("workers"), {"w": 0})
    lua("renew", "w", "", 900_000, a, 1)
    assert lua.redis.zscore(lua.key("workers"), "w") == 0


def test_release(lua: Lua) -> None:
    a, b, c = lua.leased("a", "b", "c")
    assert lua("release", "w", 0, b, 1, a, 1, c, 2) == [1, 1, 0]
    assert lua("release", "w", 0, b, 1) == [0]
    assert lua.holders() == {a: ("parked", 1), b: ("parked", 1), c: ("w", 1)}
    assert lua.redis.hgetall(lua.key("released")) == {a: "1", b: "1"}
    assert lua.redis.xlen(lua.key("wake")) == 2
    assert lua.counts() == {"parked": 2, "leased": 1, "enqueued": 3}


def test_release_after_a_pause(lua: Lua) -> None:
    """The job is not leased during the pause. It then comes before all others, including parked
    ones."""
    a, b, c = lua.leased("a", "b", "c", duration=5000)
    assert lua("release", "w", 0, a, 1) == [1]
    assert lua("release", "w", 60_000, b, 1, c, 2) == [1, 0]
    assert lua.holders() == {a: ("parked", 1), b: ("limited", 1), c: ("w", 1)}
    assert near(lua.redis.zscore(lua.key("limited"), b) - 60_000)
    assert lua.redis.hgetall(lua.key("released")) == {a: "1", b: "1"}
    assert list(lua.redis.zrange(lua.key("leases"), 0, -1)) == [c]
    assert lua.counts() == {"parked": 1, "leased": 1, "delayed": 1, "enqueued": 3}
    (found, due, taken, *_) = lua.lease("v")
    assert (found, [row[0] for row in taken]) == (1, [a])
    assert 30_000 < due <= 60_000
    # told to those who sleep
    assert 30_000 < lua("reclaim", "v", 10_000, TERM, 500, 0)[5] <= 60_000
    lua("release", "v", 0, a, 2)
    lua.redis.zadd(lua.key("limited"), {b: 1})
    assert [(row[0], row[2], row[3]) for row in lua.lease("v")[2]] == [(b, 2, 1), (a, 3, 2)]
    assert not lua.redis.exists(lua.key("limited"))


def test_retry(lua: Lua) -> None:
    """The job goes to the back with all its deliveries. Its fields have the cheapest order."""
    a, b, c = lua.leased("a", "b", "c")
    spend = [(a, 1, "", 1, "why"), (b, 1, LATER, 0, ""), (c, 2, "", 1, "")]
    assert lua("retry", "w", 0, 1000, *[x for item in spend for x in item]) == [1, 1, 0]
    ((_, first), (entry, again)) = lua.redis.xrange(lua.key("jobs"))
    assert first == {"data": "c"}
    own = [("data", "a"), ("id", a), ("attempt", "1"), ("enq", str(ms(a)))]
    assert list(again.items()) == [*own, ("headrace-reason", "why")]
    assert lua.redis.hgetall(lua.key("ids")) == {a: entry, b: "delayed"}
    assert lua.redis.hgetall(lua.key("released")) == {b: "1"}
    assert lua.counts() == {"waiting": 1, "leased": 1, "delayed": 1, "enqueued": 3}


def test_a_reason_and_a_traceback_are_bounded_and_replaced(lua: Lua) -> None:
    """The traceback follows the byte 255, which is written as 0 here. Both texts end between two
    characters."""
    (entry,) = lua.leased("a")
    story = [
        ("why\0where", "why", "where"),
        ("x" * 501 + "\0" + "y" * 4097, "x" * 500, "y" * 4096),
        ("xé" * 400 + "\0" + "€" * 2000, "xé" * 166 + "x", "€" * 1365),
        ("𝄞" * 126 + "\0x" + "𝄞" * 1025, "𝄞" * 125, "x" + "𝄞" * 1023),
        ("\0where", None, "where"),
        ("why\0", "why", None),
        ("", None, None),
    ]
    for given, reason, traceback in story:
        assert lua(
            "retry", "w", 0, 1000, entry, 1, "", 1, given.encode().replace(b"\0", b"\xff")
        ) == [1]
        ((_, fields),) = lua.redis.xrange(lua.key("jobs"))
        assert (fields.get("headrace-reason"), fields.get("headrace-traceback")) == (
            reason,
            traceback,
        )
        entry = lua.lease()[2][0][0]
    assert lua("dead_letter", "w", 1000, entry, 1, b"x" * 501 + b"\xffwhere") == [1]
    ((_, fields),) = lua.redis.xrange(lua.key("dead"))
    assert (fields["reason"], fields["headrace-traceback"]) == ("x" * 501, "where")
    assert "headrace-reason" not in fields
    assert lua("redrive", "-", 100, "", "") == [1, ""]
    ((_, fields),) = lua.redis.xrange(lua.key("jobs"))
    assert (fields["headrace-reason"], fields["headrace-traceback"]) == ("x" * 500, "where")


def test_retry_gives_attempts_back(lua: Lua) -> None:
    """The attempt starts anew while the token grows. No delivery counts against max_attempts."""
    (a,) = lua.leased("a")
    assert lua("retry", "w", 9, 1000, a, 1, "", 1, "why") == [1]
    ((entry, again),) = lua.redis.xrange(lua.key("jobs"))
    lua.lease()
    assert lua("retry", "w", 2, 1000, entry, 1, "", -1, "why") == [1]
    ((entry, again),) = lua.redis.xrange(lua.key("jobs"))
    assert again["attempt"] == "2"
    assert lua.redis.hgetall(lua.key("released")) == {entry: "2"}
    assert lua.counts() == {"waiting": 1, "enqueued": 1}


def test_retry_tells_where_an_attempt_is_traced(lua: Lua) -> None:
    """One header has the latest attempt's span, also for delayed and dead jobs."""
    (entry,) = lua.leased("a")
    for spend, delay, header in (
        ("1 00-a", "", "00-a"),
        ("0 00-b", "", "00-b"),
        ("-1", "", "00-b"),
    ):
        assert lua("retry", "w", 0, 1000, entry, 1, delay, spend, "") == [1]
        ((entry, again),) = lua.redis.xrange(lua.key("jobs"))
        assert (list(again)[4:], again["headrace-attempt"]) == (["headrace-attempt"], header)
        lua.lease()
    assert lua("retry", "w", 1, 1000, entry, 1, "", "1 00-c", "why") == [2]
    ((_, letter),) = lua.redis.xrange(lua.key("dead"))
    assert letter["headrace-attempt"] == "00-c"


def test_retry_no_attempts_left(lua: Lua) -> None:
    a, b = lua.leased("a", "b")
    # who spends none has it left
    assert lua("retry", "w", 1, 1000, a, 1, LATER, 1, "why", b, 1, "", 0, "") == [2, 1]
    ((_, letter),) = lua.redis.xrange(lua.key("dead"))
    expected = {
        "reason": "why",
        "worker": "w",
        "released": "0",
        "data": "a",
        "id": a,
        "attempt": "1",
        "enq": str(ms(a)),
    }
    assert list(letter.items()) == list(expected.items())
    assert lua.counts() == {"waiting": 1, "dead": 1, "enqueued": 2}


def test_dead_letter(lua: Lua) -> None:
    a, b = lua.leased("a", "b")
    assert lua("dead_letter", "w", 1000, a, 1, "why", b, 2, "not mine") == [1, 0]
    assert lua("dead_letter", "w", 1000, a, 1, "again") == [0]
    ((_, letter),) = lua.redis.xrange(lua.key("dead"))
    expected = {
        "reason": "why",
        "worker": "w",
        "released": "0",
        "data": "a",
        "id": a,
        "attempt": "1",
        "enq": str(ms(a)),
    }
    assert list(letter.items()) == list(expected.items())
    assert lua.counts() == {"leased": 1, "dead": 1, "enqueued": 2}


@pytest.mark.parametrize(("limit", "kept"), [(0, ""), (1, "c"), (2, "bc")])
def test_dead_letters_are_the_newest(lua: Lua, limit: int, kept: str) -> None:
    items = [x for entry in lua.leased("a", "b", "c") for x in (entry, 1, "why")]
    assert lua("dead_letter", "w", limit, *items) == [1, 1, 1]
    assert [fields["data"] for _, fields in lua.redis.xrange(lua.key("dead"))] == list(kept)
    expected = {"dead": limit, "enqueued": 3, "dead_trimmed": 3 - limit}
    assert lua.counts() == {name: number for name, number in expected.items() if number}


# -- a worker's life -------------------------------------------------------------------------------


def test_beat(lua: Lua) -> None:
    assert lua("beat", "w", 10_000, 5000, 0) == 0  # never registered
    assert lua("beat", "w", 10_000, 5000, 1) == 1
    assert lua("beat", "w", 20_000, 5000, 0) == 1
    assert near(lua.redis.zscore(lua.key("workers"), "w") - 20_000)
    since, term = lua.redis.hget(lua.key("registered"), "w").split()
    assert near(int(since))
    assert term == "5000"
    lua.redis.zadd(lua.key("workers"), {"w": 0})
    assert lua("beat", "w", 10_000, 5000, 0) == 0  # declared dead


def test_beat_after_its_deadline(lua: Lua) -> None:
    """The worker is alive, but must wait before it declares others dead."""
    lua("beat", "w", 1, 5000, 1)
    registered = lua.redis.hget(lua.key("registered"), "w")
    until(
        lambda: (
            lua("beat", "w", 1, 5000, 0) == 1
            and lua.redis.hget(lua.key("registered"), "w") != registered
        )
    )


def veteran(lua: Lua, worker: str = "v") -> None:
    """Register *worker* as if long ago."""
    lua("beat", worker, 600_000, TERM, 1)
    looked_after(lua.redis)


def test_reclaim_of_the_dead(lua: Lua) -> None:
    a, b = lua.leased("a", "b")
    veteran(lua)
    assert lua("reclaim", "v", 10_000, TERM, 500, 0) == [0, -1, 0, 0, 0, -1, -1]
    lua.redis.zadd(lua.key("workers"), {"w": 1})  # its deadline was in 1970
    assert lua("reclaim", "v", 10_000, TERM, 500, 0) == [2, -1, 1, 0, 0, -1, -1]
    assert lua.holders() == {a: ("parked", 1), b: ("parked", 1)}
    assert lua.redis.zscore(lua.key("workers"), "w") is None
    assert not lua.redis.hexists(lua.key("registered"), "w")
    assert "w" not in [
        consumer["name"] for consumer in lua.redis.xinfo_consumers(lua.key("jobs"), "workers")
    ]
    assert lua.redis.xlen(lua.key("wake")) == 2


def test_reclaim_by_one_who_is_new(lua: Lua) -> None:
    """A worker that is younger than a timeout declares none dead. An unregistered one does not
    either."""
    lua.leased("a")
    lua.redis.zadd(lua.key("workers"), {"w": 1})
    lua("beat", "v", 600_000, TERM, 1)
    assert lua("reclaim", "v", 600_000, TERM, 500, 0) == [0, -1, 0, 0, 0, -1, -1]
    assert lua("reclaim", "nobody", 600_000, TERM, 500, 0) == [0, -1, 0, 0, 0, -1, -1]


def test_reclaim_of_expired_leases(lua: Lua) -> None:
    """Leases have their own deadlines or end by idle time. Consumers that never registered have the
    duration `lease`.
    """
    a, b = lua.add("a", "b")
    lua.lease(limit=1, duration=1)
    lua.redis.xreadgroup("workers", "foreign", {lua.key("jobs"): ">"})
    lua.redis.xclaim(lua.key("jobs"), "workers", "foreign", 0, [b], idle=5000, justid=True)
    until(lambda: lua("reclaim", "v", 10_000, 600_000, 500, 0)[0] == 1)
    assert lua.holders() == {a: ("parked", 1), b: ("foreign", 1)}
    until(lambda: lua("reclaim", "v", 10_000, 5000, 500, 0) == [1, -1, 0, 0, 0, -1, -1])
    assert lua.holders()[b] == ("parked", 1)


def test_reclaim_goes_on_where_it_stopped(lua: Lua) -> None:
    """Any worker takes the next step. A worker that comes too soon takes none and is not asked
    to."""
    lua.leased(*["x"] * 600, limit=600)
    found, ends = [], []

    def step(name: str) -> int:
        again = lua("reclaim", name, 10_000, TERM, 5, 0)[1]
        # the next may begin anew
        ends.append(lua.redis.hget(lua.key("stats"), "sweep").split()[2] == "-")
        return again

    def swept() -> bool:
        found.append(tuple(step(name) for name in "vu"))
        return (
            any(ends) and (15, -1) in found
        )  # through a whole sweep, a busy machine may have let nobody come too soon

    until(swept)
    assert {number for pair in found for number in pair} == {15, -1}


def test_reclaim_promotes(lua: Lua) -> None:
    lua("enqueue", *full(("a", "+5", {"data": "a", "id": "a"})))
    until(lambda: lua("reclaim", "v", 10_000, TERM, 500, 0)[4] == 1)
    assert lua.counts() == {"waiting": 1, "enqueued": 1}


def test_leave(lua: Lua) -> None:
    a, b, c = lua.leased("a", "b", "c")
    assert lua("leave", "w", 2) == [2, 1]
    assert lua("leave", "w", 2) == [1, 0]
    assert lua("leave", "w", 2) == [0, 0]
    assert set(lua.holders().values()) == {("parked", 1)}
    assert lua.redis.hgetall(lua.key("released")) == {a: "1", b: "1", c: "1"}
    assert not lua.redis.exists(lua.key("workers"), lua.key("registered"))
    assert "w" not in [
        consumer["name"] for consumer in lua.redis.xinfo_consumers(lua.key("jobs"), "workers")
    ]


def test_facts_leave_with_their_worker(lua: Lua) -> None:
    """The last worker's facts are removed, and so are the facts of a killed one."""
    for worker in ("v.1", "w.1"):
        lua("beat", worker, 10_000, TERM, 1)
        lua("report", worker, 0, "{}")
    lua("report", "killed.1", 0, "{}")
    assert lua("ask_worker", "v", "quiet") == [1, 0]
    assert lua("report", "v.1", 0, "{}") == ["quiet", 0]
    lua("leave", "v.1", 500)
    assert set(lua.redis.hgetall(lua.key("facts"))) == {"w.1", "killed.1"}
    lua("leave", "w.1", 500)
    assert not lua.redis.exists(lua.key("facts"))


def test_facts_are_bounded(lua: Lua) -> None:
    """When there are many facts, those of workers that vanished are removed."""
    lua("beat", "w.1", 10_000, TERM, 1)
    for number in range(40):
        lua("report", f"gone.{number}", 0, "{}")
    assert lua.redis.hlen(lua.key("facts")) <= 25


def test_leave_if_idle(lua: Lua) -> None:
    (a,) = lua.leased("a")
    assert lua("leave", "w", 500, 1) == [0, 1]
    assert lua.holders() == {a: ("w", 1)}
    assert lua.redis.zscore(lua.key("workers"), "w")
    lua.redis.xack(lua.key("jobs"), "workers", a)
    assert lua("leave", "w", 500, 1) == [0, 0]
    assert not lua.redis.exists(lua.key("workers"), lua.key("registered"))
    assert "w" not in [
        consumer["name"] for consumer in lua.redis.xinfo_consumers(lua.key("jobs"), "workers")
    ]


def test_workers(lua: Lua) -> None:
    assert len(lua("workers")) == 1
    lua.leased("a", "b")
    lua("beat", "v", 10_000, TERM, 1)
    now, *rows = lua("workers")
    assert near(now)
    assert sorted((name, leased) for name, _, _, leased, *_ in rows) == [("v", 0), ("w", 2)]
    assert all(near(since) and deadline > now for _, deadline, since, *_ in rows)


# -- the whole queue -------------------------------------------------------------------------------


def test_cancel(lua: Lua) -> None:
    lua(
        "enqueue",
        *full(("i", "", {"data": "a", "id": "i"}), ("late", LATER, {"data": "b", "id": "late"})),
    )
    (running,) = lua.leased("c")
    (waiting,) = lua.add("d")
    for job in ("i", "late", running, waiting):
        assert lua("cancel", job, TERM) == 1
        assert lua("cancel", job, TERM) == 0
    assert lua.counts() == {"enqueued": 4, "cancelled": 4}
    assert lua.holders() == {}


def test_cancel_leaves_others_alone(lua: Lua) -> None:
    """The entry of a job with an id of its own is not that job's id."""
    lua("enqueue", *full(("i", "", {"data": "a", "id": "i"})))
    ((entry, _),) = lua.redis.xrange(lua.key("jobs"))
    assert lua("cancel", entry, TERM) == 0
    assert lua("cancel", "nobody", TERM) == 0
    assert lua.counts() == {"waiting": 1, "enqueued": 1}


def test_cancel_payload(lua: Lua) -> None:
    """The stream comes first page by page, then the delayed jobs."""
    lua(
        "enqueue",
        *full(("i", "", {"data": "x", "id": "i"}), ("late", LATER, {"data": "x", "id": "late"})),
    )
    lua.leased("x", "y")
    gone, place, cursor = lua("cancel_payload", "x", "jobs", "-", 2, TERM)
    assert (gone, place) == (2, "jobs")
    assert lua("cancel_payload", "x", place, cursor, 2, TERM) == [0, "delayed", "0"]
    assert lua("cancel_payload", "x", "delayed", "0", 2, TERM) == [1, "", "0"]
    assert lua.counts() == {"leased": 1, "enqueued": 4, "cancelled": 3}


def test_purge(lua: Lua) -> None:
    """Waiting jobs are removed page by page. Jobs that arrive meanwhile stay."""
    parked, _ = lua.leased("a", "b")
    lua("release", "w", 0, parked, 1)
    lua(
        "enqueue",
        *full(("i", "", {"data": "c", "id": "i"}), ("late", LATER, {"data": "d", "id": "late"})),
    )
    lua.redis.xreadgroup("workers", "idle", {lua.key("jobs"): ">"}, count=1)
    lua.add("e")
    gone, cursor = [], "-"
    while cursor:
        more, cursor = lua("purge", cursor, 2)
        gone.append(more)
        lua.add("meanwhile")
    assert sum(gone) == 4
    assert lua.counts() == {
        "leased": 1,
        "waiting": len(gone),
        "enqueued": 5 + len(gone),
        "deleted": 4,
    }
    assert not lua.redis.exists(
        lua.key("ids"), lua.key("released"), lua.key("delayed"), lua.key("bodies")
    )


def test_delete(lua: Lua) -> None:
    """All keys go but the stream, which stays so that its entry IDs do not repeat."""
    a, b, _ = lua.leased("a", "b", "c")
    lua("dead_letter", "w", 1000, a, 1, "why")
    lua("enqueue", *full(("late", LATER, {"data": "d", "id": "late"})))
    assert lua("delete") == [4, 0]
    assert lua("delete") == [0, 0]
    assert lua.counts() == {"enqueued": 4, "deleted": 4}
    assert complete(lua, b) == [0]
    (d,) = lua.add("d")
    assert (ms(d), int(d.partition("-")[2])) > (ms(b), int(b.partition("-")[2]))
    assert lua.lease()[3] == [d, "d"]


def dead(lua: Lua, *payloads: str) -> list[str]:
    """Make dead letters and return their ids."""
    entries = lua.leased(*payloads)
    lua("dead_letter", "w", 1000, *[x for entry in entries for x in (entry, 1, "why")])
    return entries


def test_redrive(lua: Lua) -> None:
    """Letters are moved page by page. The attempts start anew, and the token does not."""
    a, b, c = dead(lua, "a", "b", "c")
    moved, cursor = lua("redrive", "-", 2, "", "")
    assert moved == 2
    assert lua("redrive", cursor, 2, "", "") == [1, ""]
    assert lua("redrive", "-", 2, "", "") == [0, ""]
    rows = lua.lease()[2]
    assert [
        dict(zip(fields[::2], fields[1::2], strict=True))["id"] for _, fields, _, _ in rows
    ] == [a, b, c]
    assert [row[1][4:6] + row[2:] for row in rows] == [["attempt", "1", 1, 1]] * 3
    assert lua.counts() == {"leased": 3, "enqueued": 3}


def test_redrive_wanted(lua: Lua) -> None:
    """A letter whose id is taken again stays."""
    _, b, c = dead(lua, "a", "b", "c")
    lua("enqueue", *full((c, "", {"data": "again", "id": c})))
    assert lua("redrive", "-", 500, "", "", b, c, "nobody") == [1, ""]
    assert lua.counts() == {"waiting": 2, "dead": 2, "enqueued": 4}


def test_redrive_with_another_payload(lua: Lua) -> None:
    """Other letters keep their payloads. The queue records the size of the job."""
    _, b = dead(lua, "a", "b")
    assert lua("redrive", "-", 500, "", "=" + 5000 * "=", b) == [1, ""]
    ((_, fields, _, _),) = lua.lease()[2]
    assert dict(zip(fields[::2], fields[1::2], strict=True))["data"] == 5000 * "="
    assert int(lua.redis.hget(lua.key("stats"), "largest")) > 5000
    assert lua("redrive", "-", 500, "", "", "nobody") == [0, ""]
    assert lua.counts() == {"leased": 1, "dead": 1, "enqueued": 2}


def test_purge_dead(lua: Lua) -> None:
    a, *_ = dead(lua, "a", "b", "c", "d")
    assert lua("purge_dead", "-", 500, a, "nobody") == [1, ""]
    gone, cursor = lua("purge_dead", "-", 2)
    assert gone == 2
    assert lua("purge_dead", cursor, 2) == [1, ""]
    assert lua.counts() == {"enqueued": 4, "dead_trimmed": 4}


def test_counts(lua: Lua) -> None:
    """Jobs that woke a reader count as waiting. Foreign entries count as enqueued from 7.0 on."""
    lua.leased("a")
    lua.add("b", "c")
    lua.redis.xreadgroup("workers", "idle", {lua.key("jobs"): ">"}, count=1)
    lua.redis.xadd(lua.key("jobs"), {"data": "foreign"})
    counted = lua("counts")
    old = lua.redis.info("server")["redis_version"].startswith("6.")
    assert counted == [3, 0, 1, 0, 0, 0, 3 if old else 4, 0, 0, 0, 0, 0]


def test_list(lua: Lua) -> None:
    """Every state is listed page by page, oldest first."""
    dead(lua, "dead")
    a, b, c = lua.leased("a", "b", "c")
    lua("release", "w", 0, c, 1)
    d, e = lua.add("d", "e")
    lua.redis.xreadgroup("workers", "idle", {lua.key("jobs"): ">"}, count=1)
    lua(
        "enqueue",
        *full(("late", LATER, {"data": "f", "id": "late"}), ("later", "+90000", {"data": "g"})),
    )
    lua.redis.hset(
        lua.key("blocked"), mapping={"x": "by hand", "y z": b"\x94\xa4data\xa1y\xa3enq\xa19"}
    )
    states = ("running", "waiting", "delayed", "blocked", "dead")
    running, waiting, delayed, blocked, buried = (_pages(lua, state) for state in states)
    assert [row[:6] for row in running] == [
        [x, ["data", y], "leased", 1, 0, "w"] for x, y in ((a, "a"), (b, "b"))
    ]
    assert [row[:5] for row in waiting] == [
        [c, ["data", "c"], "parked", 1, 1],
        [d, ["data", "d"], "waiting", 0, 0],
        [e, ["data", "e"], "waiting", 0, 0],
    ]
    assert [(row[0], row[2:6]) for row in delayed] == [
        (x, ["delayed", 0, 0, ""]) for x in ("late", "later")
    ]
    assert all(near(row[6] - 60_000) for row in delayed)
    of_flows = {"x": ["data", "by hand"], "y z": ["data", "y", "enq", "9"]}
    assert sorted(blocked) == [
        [name, fields, "blocked", 0, 0, "", 0] for name, fields in of_flows.items()
    ]
    assert [(row[1][1], row[2:]) for row in buried] == [("why", ["dead", 0, 0, "", 0])]


def _pages(lua: Lua, state: str) -> list[Any]:
    rows, cursor, more = [], "", True
    while more:
        cursor, now, page = lua("list", state, cursor, 1)
        assert near(now)
        assert len(page) <= 1
        rows += page
        more = cursor != ""
    return rows


def test_find(lua: Lua) -> None:
    (died,) = dead(lua, "dead")
    running, parked = lua.leased("a", "b")
    lua("release", "w", 0, parked, 1)
    (waiting,) = lua.add("c")
    lua(
        "enqueue",
        *full(("i", "", {"data": "d", "id": "i"}), ("late", LATER, {"data": "e", "id": "late"})),
    )
    found = {
        job: lua("find", job, "")
        for job in (died, running, parked, waiting, "i", "late", "nobody", "5-0")
    }
    assert all(near(now) for now, _, _ in found.values())
    states = {job: row[2] if row else None for job, (_, row, _) in found.items()}
    expected = [
        (died, "dead"),
        (running, "leased"),
        (parked, "parked"),
        (waiting, "waiting"),
        ("i", "waiting"),
    ]
    assert states == {**dict(expected), "late": "delayed", "nobody": None, "5-0": None}
    assert found[running][1][:6] == [running, ["data", "a"], "leased", 1, 0, "w"]
    entry = found["i"][1][0]
    assert lua("find", entry, "")[1] == []  # another's entry ID is not its job's id


def test_result(lua: Lua) -> None:
    keys = [lua.key("result:a"), lua.key("result:b")]
    assert lua("result", "a", "b", extra=keys) == [None, None]
    lua.redis.set(keys[1], "x")
    assert lua("result", "a", "b", extra=keys) == [None, "x"]
    lua.redis.lpush(keys[0], "x")  # of another type: as if it were not there
    assert lua("result", "a", "b", extra=keys) == [None, "x"]
    lua.redis.zadd(lua.key("cancels"), {"a": 10**14, "b": 1})
    assert lua("result", "a", "b", extra=keys) == [None, "x"]
    lua.redis.zadd(lua.key("cancels"), {"b": 10**14})  # the result is of an earlier job
    assert lua("result", "a", "b", extra=keys) == [None, None]


# -- errors ----------------------------------------------------------------------------------------


def test_a_key_of_another_type_is_an_error_that_says_so(lua: Lua) -> None:
    lua.redis.set(lua.key("jobs"), "mine")
    calls: dict[str, list[Any]] = {
        "enqueue": ["plain", "a"],
        "lease": ["w", 1, "", TERM, TERM, 0, 1000, 0],
        "complete": ["", 1, 0, 0, 0, "1-0"],
        "release": ["w", 0, "1-0", 1],
        "reclaim": ["w", 10_000, TERM, 500, 0],
        "leave": ["w", 500],
    }
    for name, args in calls.items():
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            lua(name, *args)


def test_measure(lua: Lua) -> None:
    """The reply has the counts and the age of the oldest parked, woken and new job of each
    level."""
    streams = [lua.key("jobs:1"), lua.key("jobs:2")]

    def age() -> int:
        *counts, found, _, about = lua("measure", extra=streams)
        assert counts == lua("counts", extra=streams)
        assert about[1:] == lua("about")[1:]
        return int(found)

    def since(ago: int) -> dict[str, str]:
        seconds, micros = lua.redis.time()
        return {"data": "x", "enq": str(seconds * 1000 + micros // 1000 - ago)}

    assert age() == 0
    for stream, ago in ((streams[1], 10_000), (streams[0], 20_000), (lua.key("jobs"), 30_000)):
        lua.redis.xadd(stream, since(ago))
        assert ago <= age() < ago + 5_000
    (taken,) = lua("lease", "w", 1, "", TERM, 70_000, 0, 1000, 0, "", extra=streams)[2]
    assert 20_000 <= age() < 25_000  # what is leased does not wait
    lua("release", "w", 0, taken[0], 1)
    assert 30_000 <= age() < 35_000
    lua.redis.xadd(lua.key("jobs"), since(40_000))
    lua.redis.xreadgroup("workers", "idle", {lua.key("jobs"): ">"})
    assert 40_000 <= age() < 45_000
