"""Stands of the scripts of flows and schedules. See `stands`."""

from __future__ import annotations

from typing import Any

from tests.scripts.conftest import Lua
from tests.scripts.stands import MANY, PAYLOAD, stand
from tests.scripts.test_flows import BEGIN, PARTS

STAGES = ("a", "b")  # `a` has the keys of the queue `q`


def run(number: int) -> str:
    return f"headrace:{{q}}:q:flow:r{number}"


def begin(lua: Lua, number: int, payload: str = PAYLOAD) -> str:
    """Start a run, lease its job and return the entry."""
    name, keys = f"r{number}", [run(number), *(lua.key(part) for part in BEGIN)]
    fields = ("data", payload, "id", name, "headrace-flow", run(number))
    assert lua("flow_start", name, "a", "", "{}", 0, *fields, extra=keys) == 1
    return str(lua.lease()[2][0][0])


def advance(lua: Lua, runs: list[int], *items: Any) -> list[int]:
    """Return the reply of a call of `flow_advance`."""
    stages = [lua.key(part) for part in PARTS] + [f"headrace:{{q}}:q/b:{part}" for part in PARTS]
    extra = [*stages, *map(run, runs)]
    reply: list[Any] = lua(
        "flow_advance", "", 60_000, 1000, 2, "a", "b", "b", "", *items, extra=extra
    )
    return [one for one in reply if not isinstance(one, list)]  # last, dead letters


def all_of_them(lua: Lua, items: list[tuple[int, list[Any]]]) -> None:
    """Advance by all *items*, each a pair of run and item. A call takes as many as it has room
    for."""
    calls = 0
    while items:
        reply = advance(
            lua, [number for number, _ in items], *(x for _, item in items for x in item)
        )
        assert set(reply) == {1}
        items, calls = items[len(reply) :], calls + 1
    assert calls == MANY


def fan(number: int, entry: str, children: int, payload: str, into: str = "b") -> list[Any]:
    """Return the item of a fan-out into a stage that goes on to `b`."""
    child = [
        x
        for i in range(children)
        for x in (f"c{i}", into, "", 4, "data", payload, "headrace-flow", run(number))
    ]
    return ["move", f"r{number}", "a", entry, 1, 0, "", "b", "fail", children, *child]


def leased_of_b(lua: Lua) -> list[tuple[str, str]]:
    """Lease the jobs of `b` and return their ids and entries."""
    jobs = "headrace:{q}:q/b:jobs"
    if not lua.redis.exists(jobs) or not lua.redis.xinfo_groups(jobs):
        lua.redis.xgroup_create(jobs, "workers", "0", mkstream=True)
    ((_, rows),) = lua.redis.xreadgroup("workers", "w", {jobs: ">"})
    return [(fields["id"], entry) for entry, fields in rows]


@stand("flow_start")
def _(lua: Lua) -> None:
    for number in range(3):
        begin(lua, number)


@stand("flow_advance")
def _(lua: Lua) -> None:
    # They go on to the next stage.
    entries = [begin(lua, number) for number in range(MANY)]
    moves = [
        (n, ["move", f"r{n}", "a", entry, 1, 0, "", "b", "", 0]) for n, entry in enumerate(entries)
    ]
    all_of_them(lua, moves)
    # They were completed outside of the flow.
    lua.redis.flushall()
    for number in range(MANY):
        lua("complete", "", 1, 1, 0, 0, begin(lua, number), f"r{number}")
    all_of_them(lua, [(number, ["event", f"r{number}", "a"]) for number in range(MANY)])
    # Their only children end.
    lua.redis.flushall()
    for number in range(MANY):
        assert advance(lua, [number], *fan(number, begin(lua, number), 1, "x")) == [1]
    children = [(int(name[1:].split("/")[0]), name, entry) for name, entry in leased_of_b(lua)]
    all_of_them(
        lua, [(n, ["move", name, "b", entry, 1, 0, "", "", "", 0]) for n, name, entry in children]
    )
    # They fail with their only children.
    lua.redis.flushall()
    for number in range(MANY):
        assert advance(lua, [number], *fan(number, begin(lua, number), 1, "x")) == [1]
        ((_, entry),) = leased_of_b(lua)
        lua.redis.xdel("headrace:{q}:q/b:jobs", entry)
        lua.redis.zadd("headrace:{q}:q/b:flows", {f"r{number}/1/c0": 2})
    all_of_them(lua, [(number, ["event", f"r{number}/1/c0", "b"]) for number in range(MANY)])
    assert lua.redis.xlen(lua.key("dead")) == MANY


@stand("flow_read")
def _(lua: Lua) -> None:
    """A parent and its first stage have large results of children. It is read until all of them
    came."""
    assert advance(lua, [0], *fan(0, begin(lua, 0, "x"), 700, "x")) == [1]
    for at, (name, entry) in enumerate(leased_of_b(lua)[: 3 * MANY]):
        large = PAYLOAD if at % 3 == 0 else "small"
        assert advance(lua, [0], "move", name, "b", entry, 1, 1, large, "", "", 0) == [1]
    lua.redis.hset(run(0), "result:a:r0", PAYLOAD)
    for ids in (["r0"], ["r0", "none", "r0"]):
        cursor, results, children, names, calls = "", 0, [], [*ids], 0
        while names:
            rows = lua("flow_read", 2, cursor, 0, "a", "b", *names, extra=[run(0)] * len(names))
            for row in rows:
                if row:
                    results += len(row[7]) // 2
                    children += row[8][::4]
            cursor = rows[-1][9] if rows[-1] else ""
            names, calls = names[len(rows) - bool(cursor) :], calls + 1
        whole = len(ids) - ids.count("none")
        assert (results, sorted(children)) == (whole, sorted([f"c{i}" for i in range(700)] * whole))
        assert calls >= whole * MANY


@stand("schedules")
def _(lua: Lua) -> None:
    for at in range(MANY):
        lua("schedule", f"s{at}", "every 1000", "all", 1 + at // 3, 100, "data", PAYLOAD)
        lua("schedule", f"small{at}", "every 1000", "all", 2, 100, "data", "x")
    for which in ("all", "due"):
        cursor, names, calls = "", [], 0
        while cursor or not calls:
            _, _, rows, cursor = lua("schedules", which, cursor)
            names, calls = [*names, *(row[0] for row in rows)], calls + 1
        assert sorted(names) == sorted(
            [f"s{at}" for at in range(MANY)] + [f"small{at}" for at in range(MANY)]
        )


@stand("run_schedule")
def _(lua: Lua) -> None:
    lua("schedule", "s", "every 1000", "all", 1000, 100, "data", PAYLOAD)
    for _ in range(3):
        assert lua("run_schedule", "s").endswith("-now")


@stand("tick")
def _(lua: Lua) -> None:
    lua("schedule", "s", "every 1000", "all", 1000, 100, "data", PAYLOAD)
    ticks, done = [1000 * (1 + at) for at in range(MANY)], 2
    while done == 2:
        done = lua("tick", "s", "every 1000", ticks[0], 99_000, *ticks)
        ticks = ticks[1:]
    assert not ticks
    assert done == 1
    assert lua.redis.zscore(lua.key("ticks"), "s") == 99_000
    assert [fields["id"] for _, fields in lua.redis.xrange(lua.key("jobs"))] == [
        f"s@{1000 * (1 + at)}" for at in range(MANY)
    ]
