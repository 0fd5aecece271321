"""Stands of the scripts that look through a queue, or work on all of it. See `stands`."""

from __future__ import annotations

from tests.scripts.conftest import TERM, Lua
from tests.scripts.stands import (
    MANY,
    PAYLOAD,
    each_way,
    large,
    large_dead,
    large_delayed,
    large_leased,
    large_waiting,
    paged,
    stand,
)  # fmt: skip


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


@stand("signs")
def _(lua: Lua) -> None:
    large_dead(lua)
    large_delayed(lua)
    large(lua)
    lua("signs", 3600, 100)


@stand("list")
def _(lua: Lua) -> None:
    large_dead(lua)
    large_leased(lua)
    for entry in large_leased(lua, "v"):
        lua("release", "v", 0, entry, 1)
    large_delayed(lua)
    large(lua)
    lua.redis.hset(lua.key("blocked"), mapping={f"i{at}": PAYLOAD for at in range(MANY)})
    for state in ("waiting", "running", "delayed", "blocked", "dead"):
        cursor, listed = "", 0
        while cursor or not listed:
            cursor, _, rows = lua("list", state, cursor, 200)
            listed += len(rows)
        assert listed == (2 * MANY if state == "waiting" else MANY)
    # Ends of the longest ids and reasons, and a foreign one that is as long as jobs are.
    lua("declare", 0, "history", 10_000, "history_ttl", 86_400)
    for at in range(2 * MANY):
        record = PAYLOAD if at == MANY else f"dead {at + 10**14} 1 0 w " + "r" * 500
        lua.redis.hset(lua.key("ends"), f"{at:0500d}", record)
        lua.redis.zadd(lua.key("ended"), {f"{at:0500d}": at + 10**14})
    cursor, found = "", []
    while cursor or not found:
        cursor, _, rows = lua("list", "ended", cursor, 20)
        found += [int(row[0]) for row in rows]
    assert found == [at for at in range(2 * MANY) if at != MANY]


@stand("ended")
def _(lua: Lua) -> None:
    large_dead(lua)
    entries = large(lua)
    asked, replies = ["nobody", *entries], []
    while asked:
        reply = lua("ended", *asked)
        replies.append(reply)
        asked = asked[len(reply) - reply.count(-1) :]
    assert [one for reply in replies for one in reply if one != -1] == [2, *[0] * MANY]
    assert len(replies) > 1


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
        more, place, cursor = lua("cancel_payload", PAYLOAD, place, cursor, 500, TERM)
        gone += more
    assert gone == 2 * MANY


@stand("redrive")
def _(lua: Lua) -> None:
    dead = large_dead(lua)
    assert paged(lua, "redrive", 250, "", "", dead[3]) == 1
    assert paged(lua, "redrive", 250, "", "") == MANY - 1


@stand("purge_dead")
def _(lua: Lua) -> None:
    dead = large_dead(lua)
    assert paged(lua, "purge_dead", 500, dead[3]) == 1
    assert paged(lua, "purge_dead", 500) == MANY - 1


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


@stand("expire")
def _(lua: Lua) -> None:
    for levels in each_way(lua):
        for wanted in (False, True):
            entries = large_leased(lua, extra=levels)
            assert paged(lua, "expire", 500, *(entries if wanted else [])) == MANY
            lua.redis.delete(lua.key("jobs"))


@stand("fail_worker")
def _(lua: Lua) -> None:
    for levels in each_way(lua):
        large_leased(lua, "w.1", extra=levels)
        moved, more = 0, 1
        while more:
            some, more = lua("fail_worker", "w", 500)
            moved += some
        assert moved == MANY


@stand("leave")
def _(lua: Lua) -> None:
    for levels in each_way(lua):
        large_leased(lua, extra=levels)
        more = 1
        while more:
            _, more = lua("leave", "w", 500)
        assert (
            len(lua.redis.xpending_range(lua.key("jobs"), "workers", "-", "+", 99, "parked"))
            == MANY
        )


@stand("delete")
def _(lua: Lua) -> None:
    """More jobs of flows than a call has time for, large ones among the others."""
    names = [f"f{i}" for i in range(700)]
    lua("enqueue", "full", *[x for name in names for x in (name, "", 4, "data", "x", "id", name)])
    lua.redis.zadd(lua.key("flows"), dict.fromkeys(names, 77) | {"seen": 2**50 + 77})
    large_dead(lua)
    large_waiting(lua)
    last = lua.redis.xadd(lua.key("jobs"), {"data": "foreign"})
    answers = [lua("delete") for _ in range(3)]
    assert [more for _, more in answers] == [1, 1, 0]
    everything = 700 + 4 * MANY + 1
    assert sum(gone for gone, _ in answers) == everything
    assert lua.redis.zcount(lua.key("flows"), 3 * 2**50, 3 * 2**50 + 77) == 700
    assert lua.redis.zscore(lua.key("flows"), "seen") == 2**50 + 77
    counts = lua.counts()
    assert counts["deleted"] == everything
    # 6.2 does not count foreign entries
    assert counts.get("enqueued") in {everything, everything - 1}
    after = lua.add("x")[0]
    assert tuple(map(int, after.split("-"))) > tuple(map(int, last.split("-")))
    assert lua.counts() == {"waiting": 1, "enqueued": counts["enqueued"] + 1, "deleted": everything}


@stand("result")
def _(lua: Lua) -> None:
    keys = [lua.key(f"result:{i}") for i in range(MANY)]
    for key in keys[1:]:
        lua.redis.set(key, PAYLOAD)
    answers = lua("result", *map(str, range(MANY)), extra=keys)
    assert answers == [None, PAYLOAD, PAYLOAD, *[0] * (MANY - 3)]
    assert lua("result", str(MANY - 1), extra=keys[-1:]) == [PAYLOAD]
