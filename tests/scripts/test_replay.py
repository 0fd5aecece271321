"""A call that is sent again, under its lane and number, answers the same and acts once; the next number acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import frozen

from headrace._protocol.script import script
from tests.scripts.conftest import TERM, Lua

UNRECORDED = {
    "about",
    "accept",
    "beat",
    "close",
    "company",
    "counts",
    "declare",
    "ended",
    "find",
    "flow_events",
    "flow_find",
    "flow_read",
    "hand",
    "handing",
    "lease_of",
    "shards",
    "seal",
    "inherit",
    "present",
    "drained",
    "wipe",
    "hand_schedule",
    "take_schedule",
    "leave",
    "levels",
    "list",
    "listen",
    "measure",
    "paused",
    "position",
    "recur",
    "register",
    "rest",
    "result",
    "schedules",
    "tick",
    "trends",
    "workers",
}  # repeated, they come to the same
FLOWS = {"flow_start", "flow_advance"}  # see test_flows.py


@pytest.fixture
def protocol() -> int:
    """One will do here."""
    return 2


@frozen
class Case:
    """A call: what there must be before it, and what the next call of the same arguments answers."""

    arguments: Callable[[Lua], list[Any]]
    following: Any


def _dead(lua: Lua) -> list[Any]:
    entries = lua.leased("a", "b")
    lua("dead_letter", "w", 1000, *[x for entry in entries for x in (entry, 1, "why")])
    return ["-", 1]


def _dying(lua: Lua) -> list[Any]:
    lua.leased("a")
    lua("beat", "v", 600_000, TERM, 1)
    lua.looked_after()
    lua.redis.zadd(lua.key("workers"), {"w": 1})
    return ["v", 10_000, TERM, 500, 0]


def _late(lua: Lua) -> list[Any]:
    lua("enqueue", "full", "i", "+60000", 4, "data", "a", "id", "i")
    return ["i", ""]


def _recurring(lua: Lua) -> list[Any]:
    lua("schedule", "s", "every 1000", "once", 5, 10, "data", "x")
    return ["s"]


def _two(lua: Lua, *arguments: Any) -> list[Any]:
    lua.add("a", "b")
    return [*arguments]


def _broken(lua: Lua) -> list[Any]:
    a, b = lua.leased("a", "b")
    lua.redis.xdel(lua.key("jobs"), a)
    lua.redis.xack(lua.key("jobs"), "workers", b)
    return ["jobs", "-", 500, TERM]


def _conditional(condition: str, _: int) -> Callable[[Lua], list[Any]]:
    def there(lua: Lua) -> list[Any]:
        lua("enqueue", "full", "i", "", 4, "data", "a", "id", "i")
        return [0, 0, 1, "i", "", condition, 4, "data", "b", "id", "i"]

    return there


def _refused(lua: Lua) -> list[Any]:
    lua.add("a")
    return [1, 5000, 1, "", "", "", 2, "data", "b"]


CASES = {
    "enqueue": Case(lambda _: ["full", "i", "", 4, "data", "a", "id", "i"], ["i", 0]),
    "enqueue_if": Case(lambda _: [1, 0, 1, "i", "", "replace=1", 4, "data", "a", "id", "i"], [-1, "", "i", 2]),
    "enqueue_if, moved": Case(_conditional("debounce=60000", 3), [-1, "", "i", 3]),
    "enqueue_if, replaced": Case(_conditional("replace=1", 2), [-1, "", "i", 2]),
    "enqueue_if, throttled": Case(lambda _: [0, 0, 1, "i", "", "throttle=60000", 2, "data", "a"], [-1, "", "i", 4]),
    "enqueue_if, refused": Case(_refused, [1, "0-0", "", 5]),
    "complete, kept": Case(lambda lua: ["", 1, 1, 0, 0, *lua.leased("a"), "i", "=1 60000"], [0]),
    "enqueue_one": Case(lambda _: ["a"], None),
    "complete": Case(lambda lua: ["", 1, 0, 0, 0, *lua.leased("a")], [0]),
    "complete, fenced": Case(lambda lua: ["w", 1, 0, 0, 0, *lua.leased("a"), 1], [0]),
    "renew": Case(lambda lua: ["w", "", 0, *lua.leased("a", duration=5000), 1], [1]),
    "release": Case(lambda lua: ["w", 0, *lua.leased("a"), 1], [0]),
    "release, after a pause": Case(lambda lua: ["w", 60000, *lua.leased("a"), 1], [0]),
    "retry": Case(lambda lua: ["w", 0, 1000, *lua.leased("a"), 1, "", 1, "why"], [0]),
    "retry, delayed": Case(lambda lua: ["w", 0, 1000, *lua.leased("a"), 1, "+60000", 1, "why"], [0]),
    "dead_letter": Case(lambda lua: ["w", 1000, *lua.leased("a"), 1, "why"], [0]),
    "reclaim": Case(_dying, [0, -1, 0, 0, 0, -1, -1]),
    "cancel": Case(lambda lua: [*lua.add("a")], 0),
    "cancel_payload": Case(lambda lua: _two(lua, "a", "jobs", "-", 500), [0, "delayed", "0"]),
    "purge": Case(lambda lua: _two(lua, "-", 500), [0, ""]),
    "purge_dead": Case(_dead, ...),
    "redrive": Case(_dead, ...),
    "delete": Case(_two, [0, 0]),
    "reschedule": Case(_late, 0),
    "schedule": Case(lambda _: ["s", "every 1000", "once", 5, 10, "data", "x"], 0),
    "unschedule": Case(_recurring, 0),
    "pause": Case(lambda _: [1], 0),
    "expire": Case(lambda lua: ["-", 500, *lua.leased("a")], [0, ""]),
    "fail_worker": Case(lambda lua: ["w", 500, *lua.leased("a")][:2], [0, 0]),
    "move": Case(lambda lua: ["-", 200, *lua.add("a", "b")], [0, ""]),
    "repair": Case(_broken, ["", "0", *[0] * 11]),
}


def test_every_recorded_script_has_a_case(script_names: list[str]) -> None:
    assert {name for name in script_names if not script(name).recorded} == UNRECORDED
    assert {name.split(",")[0] for name in CASES} | {"lease"} | FLOWS | UNRECORDED == set(script_names)


@pytest.mark.parametrize("case", CASES)
def test_a_repeated_call_acts_once(lua: Lua, case: str) -> None:
    name = case.split(",", maxsplit=1)[0]
    arguments = CASES[case].arguments(lua)
    first = lua(name, *arguments, call=7)
    after = lua.state()
    assert [lua(name, *arguments, call=7) for _ in range(2)] == [first] * 2
    assert lua.state() == after
    assert 0 < lua.redis.pttl(lua.key("lane:l")) <= 600_000
    following = lua(name, *arguments, call=8)
    if CASES[case].following is ...:  # the next page
        assert (following[0], following[1] > first[1]) == (1, True)
    elif CASES[case].following is None:  # another job
        assert following > first
    else:
        assert following == CASES[case].following


def test_a_repeated_plain_enqueue_adds_once(lua: Lua) -> None:
    """Each call of its lane, and each lane, adds its own."""
    first = lua("enqueue", "plain", "a", call=1)
    assert lua("enqueue", "plain", "a", call=1) == first
    others = [lua("enqueue", "plain", "a", call=2), lua("enqueue", "plain", "a", call=1, lane="m")]
    others += [lua("enqueue", "plain", "a", lane="l") for _ in range(2)]  # without a number nothing is recorded
    assert len({reply[0] for reply in (first, *others)}) == 5
    assert lua.counts() == {"waiting": 5, "enqueued": 5}


def test_a_repeated_lease_hands_out_what_the_first_did(lua: Lua) -> None:
    """Read anew, with counts and releases as they are; no delivery more."""
    a, b = lua.leased("a", "b")
    lua("release", "w", 0, a, 1)
    c = lua("enqueue", "full", "c", "", 4, "data", "c", "id", "c")[0]
    (_, _, taken, fresh, _, _) = lua.lease("v", call=1)
    assert fresh == []
    after = lua.state()
    again = lua.lease("v", call=1)
    assert again[:5] == [1, 0, taken, [], 0]  # and perhaps there is more
    assert [row[2:] for row in again[2]] == [[2, 1], [1, 0]]
    assert again[2][1][1] == ["data", "c", "id", c]
    assert lua.state() == after
    assert lua.lease("v", call=2)[2:4] == [[], []]
    assert lua.holders() == {a: ("v", 2), b: ("w", 1), again[2][1][0]: ("v", 1)}


def test_a_repeated_lease_of_plain_jobs(lua: Lua) -> None:
    """What came flat the first time comes with its fields the second."""
    ids = lua.add("a", "b")
    assert lua.lease(call=1)[3] == [ids[0], "a", ids[1], "b"]
    assert lua.lease(call=1)[2:4] == [[[ids[0], ["data", "a"], 1, 0], [ids[1], ["data", "b"], 1, 0]], []]


def test_a_repeated_lease_hands_out_nothing_that_was_lost(lua: Lua) -> None:
    """Completed, or another's by then: it is not ours any more. Nor is anything when the group is gone."""
    a, b, c = lua.add("a", "b", "c")
    lua.lease(call=1)
    lua("complete", "", 1, 0, 0, 0, a)
    lua.redis.xclaim(lua.key("jobs"), "workers", "other", 0, [b])
    assert [row[0] for row in lua.lease(call=1)[2]] == [c]
    lua.redis.xgroup_destroy(lua.key("jobs"), "workers")
    assert lua.lease(call=1)[2:4] == [[], []]


@pytest.mark.parametrize("name", ["beat", "leave"])
def test_what_is_not_recorded_comes_to_the_same(lua: Lua, name: str) -> None:
    lua.leased("a")
    arguments = ["w", 10_000, TERM, 1] if name == "beat" else ["w", 500]
    lua(name, *arguments)
    lua.redis.zadd(lua.key("workers"), {"w": 5e12}, xx=True)  # the time is the server's
    after = lua.state()
    lua(name, *arguments)
    lua.redis.zadd(lua.key("workers"), {"w": 5e12}, xx=True)
    assert lua.state() == after
