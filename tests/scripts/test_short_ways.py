"""`lease` and `complete` have a fast path for nearly every call. It does the same as the slow one,
with few commands.

A note of releases of a job that is not there is all that makes a call take the long way.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts.conftest import Lua

WOKE: dict[str, dict[str, str]] = {
    "plain": {"data": "a"},
    "with a header": {"data": "a", "h": "1"},
    "with an id": {"data": "a", "id": "one"},
    "before its last attempt": {"data": "a", "attempt": "4"},
    "without attempts": {"data": "a", "id": "one", "attempt": "5"},
    "large": {"data": "x" * 9000},
    "removed by hand": {"data": "a"},
    "none": {},
}


def begin(lua: Lua, *, long: bool) -> None:
    """Make a queue with a worker and nothing else."""
    lua.redis.flushall()
    lua.lease()
    if long:
        lua.redis.hset(lua.key("released"), "0-1", 1)
    lua.redis.config_resetstat()


def commands(lua: Lua, *but: str) -> dict[str, int]:
    """Return the commands that scripts have called since."""
    rows = lua.redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in rows.items()}
    ours = {"eval", "info", "config|resetstat", "config", "acl", "acl|setuser", *but}
    return {name: number for name, number in calls.items() if name not in ours}


def left(lua: Lua) -> dict[str, Any]:
    """Return the keys of the queue, without values that differ by design or by the clock."""
    return {
        key: value
        for key, value in lua.state().items()
        if key not in ("released", "workers", "registered", "dead")
    }


def leased(lua: Lua, woke: str, *, long: bool) -> tuple[Any, ...]:
    """Return the reply of a lease call after a blocked read, the resulting keys, and whether it
    took the slow path."""
    begin(lua, long=long)
    jobs, wake = lua.key("jobs"), lua.key("wake")
    if WOKE[woke]:
        lua.redis.xadd(jobs, WOKE[woke], id="1-0")
    for number, fields in enumerate(
        ({"data": "b"}, {"data": "c", "h": "2"}, {"data": "d", "id": "d"}, {"data": "e"}), 2
    ):
        lua.redis.xadd(jobs, fields, id=f"{number}-0")
    if woke == "none":
        lua.redis.xadd(wake, {"w": "1"}, id="1-0")
    lua.redis.xreadgroup("workers", "idle", {jobs if WOKE[woke] else wake: ">"}, count=1)
    if woke == "removed by hand":
        lua.redis.xdel(jobs, "1-0")
    lua.redis.config_resetstat()
    known, due, taken, fresh, healed, *_ = lua.lease(limit=4, ttl=0, most=5, woken=2)
    went = "zrangebyscore" in commands(lua)
    assert (int(lua.redis.hget(lua.key("stats"), "largest") or 0) >= 9000) == (woke == "large")
    lua.redis.hdel(lua.key("stats"), "largest")  # with or without the names of fields
    plain = [
        [entry, ["data", data], 1, 0] for entry, data in zip(fresh[::2], fresh[1::2], strict=True)
    ]
    return known, due, [*taken, *plain], healed, left(lua), lua.counts(), went


@pytest.mark.parametrize("woke", WOKE)
def test_both_ways_lease_alike(lua: Lua, woke: str) -> None:
    *short, went = leased(lua, woke, long=False)
    *long, other = leased(lua, woke, long=True)
    assert other
    assert went == (woke in ("before its last attempt", "without attempts", "none"))
    assert short == long


def completed(lua: Lua, *, long: bool, ids: bool) -> tuple[Any, ...]:
    """Return the reply and the keys. One job was cancelled, one parked, and one shares its id with
    another."""
    begin(lua, long=long)
    jobs = lua.key("jobs")
    for number in range(1, 6):
        lua.redis.xadd(
            jobs, {"data": "a"} | ({"id": f"j{number}"} if ids else {}), id=f"{number}-0"
        )
    lua.lease(limit=4, ttl=0)
    if ids:
        lua.redis.hset(
            lua.key("ids"),
            mapping={"j1": "1-0", "j2": "9-9", "j3": "3-0", "j4": "4-0", "j5": "5-0"},
        )
    lua.redis.xack(jobs, "workers", "3-0")
    lua.redis.xdel(jobs, "3-0")
    lua.redis.config_resetstat()
    entries = [f"{number}-0" for number in range(1, 6)]
    names = [f"j{number}" for number in range(1, 6)] if ids else []
    reply = lua("complete", "", 5, int(ids), 0, 0, *entries, *names)
    went = "hlen" in commands(lua)
    return reply, left(lua), lua.counts(), went


@pytest.mark.parametrize("ids", [False, True], ids=["bare", "with ids"])
def test_both_ways_complete_alike(lua: Lua, ids: bool) -> None:
    *short, went = completed(lua, long=False, ids=ids)
    *long, other = completed(lua, long=True, ids=ids)
    assert (went, other) == (False, True)
    assert short == long
    assert short[0] == [1, 1, 0, 1, 1]


def test_what_a_lone_job_costs(lua: Lua) -> None:
    """The job woke a reader. To lease it takes 12 commands and to complete it 7, all cheap."""
    begin(lua, long=False)
    lua.redis.xadd(lua.key("jobs"), {"data": "a"}, id="1-0")
    lua.redis.xreadgroup("workers", "idle", {lua.key("jobs"): ">"}, count=1)
    lua.redis.config_resetstat()
    assert lua.lease(ttl=0, woken=2, call=1)[3] == ["1-0", "a"]
    assert sum(commands(lua).values()) == 12
    lua.redis.config_resetstat()
    assert lua("complete", "", 1, 0, 0, 0, "1-0", call=2) == [1]
    assert sum(commands(lua).values()) == 7
