"""No script moves more than about 1 MiB of payloads, or one job if that alone is more, however much there is.

Counted, not timed: the scripts run as they are, with the commands that they call counted (`metered`). A script of the
package has its stand here, or is named among those that touch no payloads, with the reason. A stand fills the queue and
calls its script by `lua` as often as it takes; each call is held against the limits.

    @stand("dead_letter")
    def _(lua: Lua) -> None:
        large_dead(lua)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.scripts.conftest import TERM, Lua
from tests.scripts.metered import Cost, cost, metered

MIB = 1 << 20
PAYLOAD = "x" * 1_000_000
MANY = 12  # of these: a script that reads them all moves 12 MB
ASIDE = 100_000  # bytes that are no payloads
LIMIT = MIB + len(PAYLOAD) + ASIDE  # what is read before it is known to be too much
# XINFO STREAM shows the first and the last entry, whatever is asked of it.
JOBS = {"counts": 2, "delete": 2, "measure": 3, "repair": 3}

Stand = Callable[[Lua], None]
STANDS: dict[str, Stand] = {}
WITHOUT = {  # touch no payload, and nothing that grows with the queue
    "beat": "two keys of one worker",
    "levels": "one field",
    "listen": "one field",
    "pause": "one field",
    "paused": "one field",
    "register": "two keys of one worker",
    "unschedule": "one schedule",
    "workers": "one row a worker",
}
LATER = (
    "cancel complete enqueue flow_advance flow_events flow_find flow_read flow_start lease reclaim"
    " release renew reschedule retry schedule schedules tick"
)


def stand(script: str) -> Callable[[Stand], Stand]:
    """Have *script* measured by the function that follows."""

    def add(function: Stand) -> Stand:
        STANDS[script] = function
        return function

    return add


@pytest.fixture
def protocol() -> int:
    """One will do here."""
    return 2


def large(lua: Lua, number: int = MANY) -> list[str]:
    """Enqueue large jobs, one a call; their entries."""
    return [lua.add(PAYLOAD)[0] for _ in range(number)]


def large_leased(lua: Lua, worker: str = "w", **options: Any) -> list[str]:
    """Enqueue large jobs and lease them, one a call; their entries."""
    entries = large(lua)
    for _ in entries:
        lua.lease(worker, 1, **options)
    return entries


def large_delayed(lua: Lua, number: int = MANY) -> list[str]:
    """Enqueue large jobs that are due in a minute; their ids."""
    ids = [f"late{i}" for i in range(number)]
    for name in ids:
        lua("enqueue", "full", name, "+60000", 4, "data", PAYLOAD, "id", name)
    return ids


def large_dead(lua: Lua) -> list[str]:
    """Dead letters of large jobs; their ids."""
    entries = large_leased(lua)
    for entry in entries:
        lua("dead_letter", "w", 1000, entry, 1, "why")
    return entries


@stand("dead_letter")
def _(lua: Lua) -> None:
    large_dead(lua)


def mixed(lua: Lua) -> list[str]:
    """Enqueue small jobs, and large ones behind them; their entries."""
    return [*lua.add(*["x"] * 20), *large(lua)]


@stand("counts")
def _(lua: Lua) -> None:
    large(lua)
    lua("counts")


@stand("measure")
def _(lua: Lua) -> None:
    large_leased(lua)
    lua("leave", "w", 500)
    large(lua)
    lua("measure")


@stand("list")
def _(lua: Lua) -> None:
    large_dead(lua)
    large_leased(lua)
    for entry in large_leased(lua, "v"):
        lua("release", "v", 0, entry, 1)
    large_delayed(lua)
    large(lua)
    for state in ("waiting", "running", "delayed", "dead"):
        cursor, listed = "", 0
        while cursor or not listed:
            cursor, _, rows = lua("list", state, cursor, 200)
            listed += len(rows)
        assert listed == (2 * MANY if state == "waiting" else MANY)


@stand("find")
def _(lua: Lua) -> None:
    dead = large_dead(lua)
    for name in ("nobody", dead[0], large(lua, 1)[0]):
        cursor, row, calls = "", [], 0
        while not row and (cursor or not calls):
            _, row, cursor = lua("find", name, cursor)
            calls += 1
        assert bool(row) == (name != "nobody")
        assert calls >= (1 if row and row[2] == "waiting" else MANY - 1)


@stand("position")
def _(lua: Lua) -> None:
    last = large(lua)[-1]
    number, cursor = lua("position", last, 1000, "")
    while cursor:
        more, cursor = lua("position", last, 1000, cursor)
        number += more
    assert number == MANY - 1


@stand("repair")
def _(lua: Lua) -> None:
    """Every id has been lost, and is taken again."""
    for i in range(MANY):
        lua("enqueue", "full", f"i{i}", "", 4, "data", PAYLOAD, "id", f"i{i}")
    large_delayed(lua)
    for lost in (True, False):
        if lost:
            lua.redis.delete(lua.key("ids"))
        place, cursor, taken = "jobs", "-", 0
        while place:
            place, cursor, *found = lua("repair", place, cursor, 500, TERM)
            taken += found[6]
        assert taken == (2 * MANY if lost else 0)


@stand("cancel_payload")
def _(lua: Lua) -> None:
    large(lua)
    large_delayed(lua)
    place, cursor, gone = "jobs", "-", 0
    while place:
        more, place, cursor = lua("cancel_payload", PAYLOAD, place, cursor, 500)
        gone += more
    assert gone == 2 * MANY


def test_small_jobs_say_nothing_of_the_large_ones_behind_them(lua: Lua) -> None:
    """At most eight are read that are not shown to fit."""
    mixed(lua)
    lua.costs = []
    lua("list", "waiting", "", 200)
    assert max(noted.read for noted in lua.costs) < 9 * len(PAYLOAD)


def test_every_script_has_its_stand(script_names: list[str]) -> None:
    named = [*STANDS, *WITHOUT, *LATER.split()]
    assert sorted(named) == script_names, "exactly one of: a stand, a reason in WITHOUT"


def problems(costs: list[Cost]) -> list[str]:
    """What is over the limits."""
    return [
        f"{noted.script}: {name} {number:,}, at most {most:,}"
        for noted in costs
        for name, number, most in (
            ("bytes read", noted.read, max(LIMIT, JOBS.get(noted.script, 1) * len(PAYLOAD) + ASIDE)),
            ("bytes written", noted.written, LIMIT),
            ("bytes answered", noted.answered, LIMIT),
            ("commands", noted.commands, 15_000),
            ("items read", noted.elements, 20_000),
        )
        if number > most
    ]


@pytest.mark.parametrize("name", sorted(STANDS))
def test_a_script_is_bounded_by_bytes(lua: Lua, name: str) -> None:
    lua.costs = []
    STANDS[name](lua)
    measured = [noted for noted in lua.costs if noted.script == name]
    assert measured, "the stand does not call its script"
    assert not problems(measured)


def test_one_that_is_not_would_be_seen(lua: Lua) -> None:
    large(lua)
    source = metered("return #redis.call('XRANGE', KEYS[1], '-', '+')")
    reply, noted = cost("all", lua.redis.eval(source, 1, lua.key("jobs")))
    assert reply == MANY
    assert noted.read > MANY * len(PAYLOAD)
    assert len(problems([noted])) == 1


def paged(lua: Lua, script: str, limit: int, *more: str, extra: Sequence[str] = ()) -> int:
    """Call *script* until its cursor is at the end; how many it has done in all, a few at a time."""
    done, cursor, calls = 0, "-", 0
    while cursor:
        some, cursor = lua(script, cursor, limit, *more, extra=extra)
        done, calls = done + some, calls + 1
    assert calls >= done
    return int(done)


@stand("redrive")
def _(lua: Lua) -> None:
    dead = large_dead(lua)
    assert paged(lua, "redrive", 250, dead[3]) == 1
    assert paged(lua, "redrive", 250) == MANY - 1


@stand("purge_dead")
def _(lua: Lua) -> None:
    dead = large_dead(lua)
    assert paged(lua, "purge_dead", 500, dead[3]) == 1
    assert paged(lua, "purge_dead", 500) == MANY - 1


def large_waiting(lua: Lua) -> list[str]:
    """Large jobs that are parked, new and delayed, `MANY` each; their ids."""
    parked = large_leased(lua)
    for entry in parked:
        lua("release", "w", 0, entry, 1)
    return [*parked, *large(lua), *large_delayed(lua)]


@stand("purge")
def _(lua: Lua) -> None:
    large_waiting(lua)
    assert paged(lua, "purge", 500) == 3 * MANY


@stand("move")
def _(lua: Lua) -> None:
    waiting = large_waiting(lua)
    assert paged(lua, "move", 200) == 3 * MANY
    lua.redis.flushall()
    waiting = large_waiting(lua)
    assert paged(lua, "move", 200, *waiting) == 3 * MANY


def with_levels(lua: Lua) -> None:
    """Whose jobs have to be read to know where they are parked."""
    lua.redis.hset(lua.key("stats"), "levels", 2)


@stand("expire")
def _(lua: Lua) -> None:
    for wanted in (False, True):
        lua.redis.flushall()
        entries = large_leased(lua)
        with_levels(lua)
        assert paged(lua, "expire", 500, *(entries if wanted else [])) == MANY


@stand("fail_worker")
def _(lua: Lua) -> None:
    large_leased(lua, "w.1")
    with_levels(lua)
    calls, more = 0, 1
    while more:
        moved, more = lua("fail_worker", "w", 500)
        assert moved
        calls += 1
    assert calls == MANY


@stand("leave")
def _(lua: Lua) -> None:
    large_leased(lua)
    with_levels(lua)
    calls, more = 0, 1
    while more:
        _, more = lua("leave", "w", 500)
        calls += 1
    assert calls >= MANY
    assert lua.counts() == {"parked": MANY, "enqueued": MANY}


@stand("delete")
def _(lua: Lua) -> None:
    """More jobs of flows than a call has time for, large ones among the others."""
    names = [f"f{i}" for i in range(2500)]
    lua("enqueue", "full", *[x for name in names for x in (name, "", 4, "data", "x", "id", name)])
    lua.redis.zadd(lua.key("flows"), dict.fromkeys(names, 77) | {"seen": 2**50 + 77})
    large_dead(lua)
    large_waiting(lua)
    last = lua.redis.xadd(lua.key("jobs"), {"data": "foreign"})
    answers = [lua("delete") for _ in range(3)]
    assert [more for _, more in answers] == [1, 1, 0]
    everything = 2500 + 4 * MANY + 1
    assert sum(gone for gone, _ in answers) == everything
    assert lua.redis.zcount(lua.key("flows"), 3 * 2**50, 3 * 2**50 + 77) == 2500
    assert lua.redis.zscore(lua.key("flows"), "seen") == 2**50 + 77
    counts = lua.counts()
    assert counts["deleted"] == everything
    assert counts.get("enqueued") in {everything, everything - 1}  # 6.2 does not count foreign entries
    after = lua.add("x")[0]
    assert tuple(map(int, after.split("-"))) > tuple(map(int, last.split("-")))
    assert lua.counts() == {"waiting": 1, "enqueued": counts["enqueued"] + 1, "deleted": everything}


@stand("result")
def _(lua: Lua) -> None:
    keys = [lua.key(f"result:{i}") for i in range(MANY)]
    for key in keys[1:]:
        lua.redis.set(key, PAYLOAD)
    answers = lua("result", extra=keys)
    assert answers == [None, PAYLOAD, PAYLOAD, *[0] * (MANY - 3)]
    assert lua("result", extra=keys[-1:]) == [PAYLOAD]


def test_a_payload_that_goes_on_coming_is_cancelled_to_the_end_that_there_was(lua: Lua) -> None:
    lua.add(*["x"] * 3)
    place, cursor, gone, calls = "jobs", "-", 0, 0
    while place == "jobs":
        more, place, cursor = lua("cancel_payload", "x", place, cursor, 1)
        lua.add("x")
        gone, calls = gone + more, calls + 1
        assert calls < 10
    assert gone == 3
    assert lua.counts() == {"waiting": calls, "enqueued": 3 + calls, "cancelled": 3}
