"""A call that is sent again with the same lane and number acts once with the same answer. The next
number acts anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import frozen

from headrace._protocol.script import names, script
from tests.scripts.calls import CALLS, Call, agrees, arguments, cases, fill
from tests.scripts.conftest import TERM, Lua
from tests.support.facts import each
from tests.support.steps import looked_after

FLOWS = {"flow_start", "flow_advance", "flow_events", "flow_find", "flow_read"}
# keys whose values are times of the server
TIMES = {"facts", "reported", "relayed", "closing", "outdue", "registered", "workers"}


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


@frozen
class Case:
    """A call that makes its own queue, and the reply of the next call with the same arguments."""

    arguments: Callable[[Lua], list[Any]]
    following: Any


def _dead(lua: Lua) -> list[Any]:
    entries = lua.leased("a", "b")
    lua("dead_letter", "w", 1000, *[x for entry in entries for x in (entry, 1, "why")])
    return ["-", 1]


def _dying(lua: Lua) -> list[Any]:
    lua.leased("a")
    lua("beat", "v", 600_000, TERM, 1)
    looked_after(lua.redis)
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


CASES = {  # beside `filled` in `CALLS`
    "enqueue_if, moved": Case(_conditional("debounce=60000", 3), [-1, "", "i", 3]),
    "enqueue_if, replaced": Case(_conditional("replace=1", 2), [-1, "", "i", 2]),
    "enqueue_if, throttled": Case(
        lambda _: [0, 0, 1, "i", "", "throttle=60000", 2, "data", "a"], [-1, "", "i", 4]
    ),
    "enqueue_if, refused": Case(_refused, [1, "0-0", "", 5]),
    "complete, kept": Case(lambda lua: ["", 1, 1, 0, 0, *lua.leased("a"), "i", "=1 60000"], [0]),
    "reclaim": Case(_dying, [0, -1, 0, 0, 0, -1, -1]),
    "purge_dead": Case(_dead, ...),
    "redrive": Case(lambda lua: [*_dead(lua), "", ""], ...),
    "repair": Case(_broken, ["", "0", *[0] * 12]),
}
PAGES = ["purge_dead", "redrive"]  # the next call is of the next page


def test_every_script_is_called_twice() -> None:
    """The scripts of flows are in `test_flows`."""
    called = {
        name
        for name, calls in CALLS.items()
        if calls.filled or (calls.nothing and not script(name).recorded)
    }
    assert called | {name.split(",")[0] for name in CASES} | {"lease", "lease_fair"} == {
        name for name in names() if name not in FLOWS
    }


@each(("name", "call"), cases(recorded=True), empty=True)
def test_a_repeated_call_acts_once(lua: Lua, name: str, call: Call) -> None:
    given = arguments(call, fill(lua))
    repeated(lua, name, given)
    assert agrees(lua(name, *given, call=8), call[1])


@each("case", CASES, empty=True)
def test_a_repeated_call_acts_once_whatever_it_finds(lua: Lua, case: str) -> None:
    name = case.split(",", maxsplit=1)[0]
    given = CASES[case].arguments(lua)
    first = repeated(lua, name, given)
    following = lua(name, *given, call=8)
    if name in PAGES:
        assert (following[0], following[1] > first[1]) == (1, True)
    else:
        assert following == CASES[case].following


def repeated(lua: Lua, name: str, given: list[Any]) -> Any:
    """Send a call three times, check that it acts once, and return its reply."""
    first = lua(name, *given, call=7)
    after = lua.state()
    assert [lua(name, *given, call=7) for _ in range(2)] == [first] * 2
    assert lua.state() == after
    assert 0 < lua.redis.pttl(lua.key("lane:l")) <= 600_000
    return first


def test_a_repeated_plain_enqueue_adds_once(lua: Lua) -> None:
    """Each call of its lane, and each lane, adds its own."""
    first = lua("enqueue", "plain", "a", call=1)
    assert lua("enqueue", "plain", "a", call=1) == first
    others = [lua("enqueue", "plain", "a", call=2), lua("enqueue", "plain", "a", call=1, lane="m")]
    # without a number nothing is recorded
    others += [lua("enqueue", "plain", "a", lane="l") for _ in range(2)]
    assert len({reply[0] for reply in (first, *others)}) == 5
    assert lua.counts() == {"waiting": 5, "enqueued": 5}


def test_a_repeated_lease_hands_out_what_the_first_did(lua: Lua) -> None:
    """The jobs are read again with their present counts and releases, without a further
    delivery."""
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
    """A first reply has jobs in a flat form, and a repeated one has them with fields."""
    ids = lua.add("a", "b")
    assert lua.lease(call=1)[3] == [ids[0], "a", ids[1], "b"]
    assert lua.lease(call=1)[2:4] == [
        [[ids[0], ["data", "a"], 1, 0], [ids[1], ["data", "b"], 1, 0]],
        [],
    ]


def test_a_repeated_lease_hands_out_nothing_that_was_lost(lua: Lua) -> None:
    """Jobs that are complete or belong to another worker are left out. Without the group there are
    none."""
    a, b, c = lua.add("a", "b", "c")
    lua.lease(call=1)
    lua("complete", "", 1, 0, 0, 0, a)
    lua.redis.xclaim(lua.key("jobs"), "workers", "other", 0, [b])
    assert [row[0] for row in lua.lease(call=1)[2]] == [c]
    lua.redis.xgroup_destroy(lua.key("jobs"), "workers")
    assert lua.lease(call=1)[2:4] == [[], []]


@pytest.mark.long
@each(
    "name",
    [name for name in CALLS if not script(name).recorded and name not in FLOWS],
    empty=True,
)
def test_what_is_not_recorded_comes_to_the_same(lua: Lua, name: str) -> None:
    calls = CALLS[name]
    for call in [*calls.nothing, *calls.filled]:
        lua.redis.flushall()
        given = arguments(call, fill(lua))
        states = []
        for _ in range(2):
            lua(name, *given, extra=[lua.key("result:a")] if name == "result" else [])
            states.append(lua.state())
            for part in TIMES & states[-1].keys():
                states[-1][part] = sorted(dict(states[-1][part]))
        assert states[0] == states[1], given
