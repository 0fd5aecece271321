"""A server that is out of memory and evicts nothing. Adding is refused as a whole, and everything
else works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from headrace._protocol.queue_ops import FOLLOWED
from tests.scripts.conftest import TERM, Lua
from tests.support.steps import looked_after

FULL = "OOM|command not allowed when used memory"  # 6.2 wraps the error, redis-py drops its code


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


@pytest.fixture
def lua(lua: Lua) -> Iterator[Lua]:
    """Restore the memory limit afterwards for the tests that share this server."""
    yield lua
    lua.redis.config_set("maxmemory", 0)


def fill(lua: Lua) -> None:
    lua.redis.config_set("maxmemory-policy", "noeviction")
    lua.redis.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        lua.redis.set("more", "x")


ADDING: dict[str, list[Any]] = {
    "plain": ["plain", "a", "b"],
    "with an id": ["full", "i", "", 4, "data", "a", "id", "i"],
    "with a delay": ["full", "i", "+60000", 4, "data", "a", "id", "i"],
    "one that is there, and one that is not": [
        "full",
        "there",
        "",
        2,
        "data",
        "a",
        "",
        "",
        2,
        "data",
        "b",
    ],
}


@pytest.mark.parametrize("call", ["", 1], ids=["", "recorded"])
@pytest.mark.parametrize("case", ADDING)
def test_enqueue_is_refused_whole(lua: Lua, case: str, call: int | str) -> None:
    lua("enqueue", "full", "there", "", 4, "data", "x", "id", "there")
    lua.leased("a")
    before = lua.state()
    fill(lua)
    with pytest.raises(redis.ResponseError, match=FULL):
        lua("enqueue", *ADDING[case], call=call)
    assert lua.state() == before
    assert not lua.redis.exists(lua.key("lane:l"))
    lua.redis.config_set("maxmemory", 0)
    reply = lua("enqueue", *ADDING[case], call=call)  # asked again, it acts
    added = reply[1::2] if case != "plain" else [1 for _ in reply]
    assert sum(added) == len(added) - ("there" in case)


@pytest.mark.parametrize("call", ["", 1], ids=["", "recorded"])
def test_enqueue_one_is_refused_whole(lua: Lua, call: int | str) -> None:
    lua.leased("a")
    before = lua.state()
    fill(lua)
    with pytest.raises(redis.ResponseError, match=FULL):
        lua("enqueue_one", "b", call=call)
    assert lua.state() == before
    assert not lua.redis.exists(lua.key("lane:l"))
    lua.redis.config_set("maxmemory", 0)
    assert lua("enqueue_one", "b", call=call)
    assert lua.counts() == {"waiting": 1, "leased": 1, "enqueued": 2}


@pytest.mark.parametrize("history", [False, True])
def test_a_full_server_keeps_jobs_and_drops_results(lua: Lua, history: bool) -> None:
    """The winner's answer is the same when the call is repeated. The loser keeps nothing.
    Follow-ups are jobs."""
    a, b, c = lua.leased("a", "b", "c")
    if history:
        lua.redis.hset(lua.key("stats"), "history", "10 60000")
    extra = [lua.key(f"result:{name}") for name in "abc"]
    follow = [lua.key(part) for part in (*FOLLOWED, "jobs")]
    lua("complete", "", 1, 0, 0, 0, c)
    args = [
        "",
        3,
        0,
        3,
        1,
        a,
        b,
        c,
        1,
        60_000,
        "ra",
        2,
        60_000,
        "rb",
        3,
        60_000,
        "rc",
        1,
        "",
        "",
        0,
        2,
        "data",
        "then",
    ]
    fill(lua)
    assert lua("complete", *args, extra=[*extra, *follow], call=7) == [2, 2, 0]
    assert lua("complete", *args, extra=[*extra, *follow], call=7) == [2, 2, 0]
    assert lua("complete", *args, extra=[*extra, *follow], call=8) == [0, 0, 0]
    assert not lua.redis.exists(*extra)
    assert lua.counts() == {"waiting": 1, "enqueued": 4, "completed": 3}
    if history:
        assert [row.split()[3] for row in lua("ended", a, b, c)] == ["0"] * 3  # none has a result
    lua.redis.config_set("maxmemory", 0)
    (d,) = lua.leased("d")
    assert lua("complete", "", 1, 0, 1, 0, d, 1, 60_000, "rd", extra=extra[:1], call=9) == [1]
    assert lua.redis.get(extra[0]) in (b"rd", "rd")


def test_what_is_there_already_can_be_enqueued(lua: Lua) -> None:
    lua("enqueue", "full", "i", "", 4, "data", "a", "id", "i")
    fill(lua)
    assert lua("enqueue", "full", "i", "", 4, "data", "a", "id", "i", call=1) == ["i", 0]


def test_leasing_and_every_settlement_go_on(lua: Lua) -> None:
    entries = lua.add(*"abcdefgh")
    lua("beat", "w", 600_000, TERM, 1)
    fill(lua)
    assert lua("beat", "w", 600_000, TERM, 0) == 1
    assert lua("beat", "v", 600_000, TERM, 1) == 1
    assert lua("rest", "v", 600_000) == 0
    assert lua.lease(ttl=0, call=1)[3][::2] == entries
    a, b, c, d, e, f, g, h = entries
    for number, (name, arguments, reply) in enumerate(
        [
            ("renew", ["w", 5000, 0, a, 1, b, 1], [1, 1]),
            ("complete", ["", 1, 0, 0, 0, a], [1]),
            ("complete", ["w", 1, 0, 0, 0, b, 1], [1]),
            ("release", ["w", 0, c, 1], [1]),
            ("retry", ["w", 0, 1000, d, 1, "", 1, "why"], [1]),
            ("retry", ["w", 0, 1000, e, 1, "+60000", 1, "why"], [1]),
            ("retry", ["w", 1, 1000, f, 1, "", 1, "why"], [2]),
            ("dead_letter", ["w", 1000, g, 1, "why"], [1]),
            ("cancel", [h, TERM], 1),
            ("reclaim", ["v", 10_000, TERM, 500, 0], [0, -1, 0, 0, 0]),
            ("reschedule", [e, "+70000"], 1),
            ("redrive", ["-", 1, "", ""], [1, "("]),
            ("purge_dead", ["-", 500], [1, ""]),
        ],
        2,
    ):
        answered = lua(name, *arguments, call=number)
        if name == "reclaim":
            answered = answered[:5]  # the rest is when something is due
        assert (answered if name != "redrive" else [answered[0], answered[1][:1]]) == reply, name
    assert lua.counts() == {
        "waiting": 2, "parked": 1, "delayed": 1, "enqueued": 8, "completed": 2, "cancelled": 1, "dead_trimmed": 1,
    }  # fmt: skip
    assert len(lua.lease("v", call=1, lane="m")[2]) == 3
    assert lua("leave", "v", 500) == [3, 0]
    assert lua("purge", "-", 500, call=30) == [4, ""]
    assert lua("delete", call=31) == [0, 0]


def test_who_loses_hears_so(lua: Lua) -> None:
    """A settlement that frees nothing is recorded too."""
    (a,) = lua.leased("a")
    fill(lua)
    for number, (name, arguments) in enumerate(
        [
            ("complete", ["", 1, 0, 0, 0, "5-0"]),
            ("complete", ["v", 1, 0, 0, 0, a, 1]),
            ("release", ["v", 60000, a, 1]),
            ("renew", ["v", "", 0, a, 1]),
            ("retry", ["v", 0, 1000, a, 1, "", 1, "why"]),
            ("dead_letter", ["v", 1000, a, 1, "why"]),
        ]
    ):
        assert lua(name, *arguments, call=number) == [0], name
    assert lua("cancel", "nobody", TERM, call=9) == 0
    assert lua.holders() == {a: ("w", 1)}


def test_the_dead_and_the_expired_are_reclaimed(lua: Lua) -> None:
    a, b = lua.add("a", "b")
    lua.lease(limit=1)
    lua.lease("x", duration=1)
    lua("beat", "v", 600_000, TERM, 1)
    looked_after(lua.redis)
    lua.redis.zadd(lua.key("workers"), {"w": 1})
    lua.redis.zadd(lua.key("leases"), {b: 1})
    fill(lua)
    assert lua("reclaim", "v", 10_000, TERM, 500, 0, call=1) == [2, -1, 1, 0, 0, -1, -1]
    assert lua.holders() == {a: ("parked", 1), b: ("parked", 1)}


def test_what_has_come_due_is_promoted(lua: Lua) -> None:
    lua("enqueue", "full", "i", "+60000", 4, "data", "a", "id", "i")
    lua.lease()
    lua.redis.zadd(lua.key("delayed"), {"i": 1})
    fill(lua)
    assert [row[1][1] for row in lua.lease(call=1)[2]] == ["a"]


def test_what_recurs_goes_on(lua: Lua) -> None:
    """A tick is enqueued, because its refusal would stop all workers. A schedule can be removed,
    but not added."""
    lua("schedule", "s", "every 1000", "once", 5, 10, "data", "a")
    fill(lua)
    assert lua("tick", "s", "every 1000", 5, 1005, 5) == 1
    assert lua.lease(call=1)[2][0][1] == ["data", "a", "id", "s@5"]
    with pytest.raises(redis.ResponseError, match=FULL):
        lua("schedule", "t", "every 1000", "once", 5, 10, "data", "a", call=2)
    assert [row[0] for row in lua("schedules", "all")[2]] == ["s"]
    assert [lua("pause_schedule", "s", pause, call=4 + pause) for pause in (1, 0)] == [1, 1]
    assert lua("unschedule", "s", call=3) == 1
    assert lua("recur", "w", "v1", "tasks/a") == [1]
    assert lua("recur", "v", "v2", "tasks/b") == [1]


def test_looking_goes_on(lua: Lua) -> None:
    lua.leased("a")
    fill(lua)
    assert lua("counts")[2] == 1
    assert len(lua("list", "running", "", 100)[2]) == 1
    assert len(lua("workers")) == 2
    assert lua("find", "nobody", "")[1] == []
    assert lua("result", extra=[lua.key("result:a")]) == [None]


def test_the_group_is_made_even_then(lua: Lua) -> None:
    """Otherwise a queue that producers filled before the first lease could not be drained."""
    (a,) = lua.add("a")
    fill(lua)
    assert lua.lease(call=1)[3:5] == [[a, "a"], 1]
    lua.redis.config_set("maxmemory", 0)
    lua.redis.xgroup_destroy(lua.key("jobs"), "workers")
    fill(lua)
    assert lua("reclaim", "v", 10_000, TERM, 500, 0, call=2) == [0, -1, 0, 0, 0, -1, -1]


CONDITIONS = {
    "added": ["new", "", "throttle=60000", 4, "data", "b", "id", "new"],
    "later": ["new", "", "debounce=60000", 4, "data", "b", "id", "new"],
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_enqueue_if_is_refused_whole(lua: Lua, case: str) -> None:
    before = lua.state()
    fill(lua)
    with pytest.raises(redis.ResponseError, match=FULL):
        lua("enqueue_if", 5, 1000, 1, *CONDITIONS[case], call=1)
    assert lua.state() == before
    lua.redis.config_set("maxmemory", 0)
    assert lua("enqueue_if", 5, 1000, 1, *CONDITIONS[case], call=1)[3] == 1


def test_a_job_is_replaced_or_kept(lua: Lua) -> None:
    """It is freed first, so a full server permits it."""
    lua("enqueue", "full", "i", "", 4, "data", "a", "id", "i")
    fill(lua)
    assert lua("enqueue_if", 0, 0, 1, "i", "", "replace=1", 4, "data", "b", "id", "i") == [
        -1,
        "",
        "i",
        2,
    ]
    (row,) = lua.lease()[2]
    assert lua("complete", "", 1, 1, 0, 0, row[0], "i", "=1 60000") == [1]
    assert lua.redis.zcard(lua.key("taken")) == 1
