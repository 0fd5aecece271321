"""Schedules that code declares. They end with the last live worker of that code, and no other
schedule ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts.conftest import TERM, Lua


def names(lua: Lua) -> list[str]:
    return sorted(lua.redis.hkeys(lua.key("schedules")))


def make(lua: Lua, *some: str) -> None:
    for name in some:
        lua("schedule", name, "every 1000", "once", 5, 1000, "data", "x", call="")


def come(lua: Lua, worker: str) -> None:
    lua("beat", worker, 600_000, TERM, 1)


def recur(lua: Lua, worker: str, *rest: Any) -> tuple[int, list[str]]:
    changed, *ended = lua("recur", worker, *rest)
    return changed, sorted(ended)


def take(lua: Lua, name: str, due: str, kept: str, *sets: str) -> Any:
    return lua("take_schedule", name, due, kept.encode(errors="surrogateescape"), *sets)


def test_what_left_the_code_ends_with_its_last_worker(lua: Lua) -> None:
    """The schedule stays during a rolling restart. Declared again, it is the same."""
    for worker in ("a1", "a2", "b1"):
        come(lua, worker)
    make(lua, "by hand", "t/kept", "t/old", "t/new")
    assert recur(lua, "a1", "A", "t/kept", "t/old") == (1, [])
    assert recur(lua, "a2", "A", "t/kept", "t/old") == (0, [])
    assert recur(lua, "b1", "B", "t/kept", "t/new") == (1, [])
    lua("leave", "a1", 500)
    for _ in range(2):
        assert recur(lua, "b1", "B", "t/kept", "t/new") == (0, [])
    assert recur(lua, "a2", "A", "t/kept", "t/old") == (0, [])
    assert names(lua) == ["by hand", "t/kept", "t/new", "t/old"]
    lua("leave", "a2", 500)
    assert recur(lua, "b1", "B", "t/kept", "t/new") == (1, ["t/old"])
    assert recur(lua, "b1", "B", "t/kept", "t/new") == (0, [])
    assert names(lua) == ["by hand", "t/kept", "t/new"]
    assert sorted(lua.redis.zrange(lua.key("ticks"), 0, -1)) == names(lua)
    assert sorted(lua.redis.hkeys(lua.key("recurring"))) == ["=B", "b1"]


def test_while_nobody_works_nothing_ends(lua: Lua) -> None:
    """A program that starts again later finds its schedules with their due times."""
    come(lua, "a1")
    make(lua, "t/x")
    recur(lua, "a1", "A", "t/x")
    lua("leave", "a1", 500)
    assert names(lua) == ["t/x"]
    come(lua, "a2")
    assert recur(lua, "a2", "A", "t/x") == (0, [])
    assert sorted(lua.redis.hkeys(lua.key("recurring"))) == ["=A", "a2"]


def test_a_silent_worker_lives_until_it_is_declared_dead(lua: Lua) -> None:
    """After an outage all workers are late. A worker that was declared dead declares its schedules
    again."""
    come(lua, "a1")
    come(lua, "b1")
    make(lua, "t/x")
    recur(lua, "a1", "A", "t/x")
    lua.redis.zadd(lua.key("workers"), {"a1": 1})
    assert recur(lua, "b1", "B", "t/y") == (1, [])
    lua.redis.zadd(lua.key("workers"), {"a1": 0})
    assert recur(lua, "b1", "B", "t/y") == (1, ["t/x"])
    come(lua, "a3")
    assert recur(lua, "a3", "A", "t/x") == (1, [])


def test_code_without_schedules_ends_those_of_before(lua: Lua) -> None:
    come(lua, "a1")
    make(lua, "t/x")
    recur(lua, "a1", "A", "t/x")
    lua("leave", "a1", 500)
    come(lua, "b1")
    assert recur(lua, "b1", "") == (1, ["t/x"])
    assert recur(lua, "b1", "") == (0, [])
    assert not lua.redis.exists(lua.key("recurring"), lua.key("schedules"), lua.key("ticks"))


def test_what_is_foreign_ends_nothing(lua: Lua) -> None:
    come(lua, "a1")
    make(lua, "t/x", "by hand")
    lua.redis.hset(lua.key("recurring"), mapping={"=Z": b"\xc1", "=Y": "text", "who": "Z"})
    assert recur(lua, "a1", "A", "t/x") == (1, [])
    assert names(lua) == ["by hand", "t/x"]
    assert sorted(lua.redis.hkeys(lua.key("recurring"))) == ["=A", "a1"]


def test_delete_forgets_it(lua: Lua) -> None:
    come(lua, "a1")
    make(lua, "t/x")
    recur(lua, "a1", "A", "t/x")
    lua("delete")
    assert not lua.redis.exists(lua.key("recurring"), lua.key("schedules"))
    assert recur(lua, "a1", "A", "t/x") == (1, [])


@pytest.mark.slow
def test_a_thousand_schedules_and_many_workers(lua: Lua, large: bool) -> None:
    """One call removes the maximum number of schedules of one version."""
    some = [f"t/{i}" for i in range(1000)]
    come(lua, "b1")
    make(lua, *some)
    recur(lua, "a1", "A", *some)
    workers = 300 if large else 100
    for i in range(workers):
        come(lua, f"b{i}")
        recur(lua, f"b{i}", "B", "t/1")
    assert names(lua) == ["t/1"]
    assert lua.redis.hlen(lua.key("recurring")) == workers + 1


def test_one_that_moved_to_another_shard_ends_there(lua: Lua) -> None:
    """No worker of the declaring code was ever in the new shard. Schedules that were made by hand
    stay."""
    come(lua, "a1")
    make(lua, "by hand", "t/kept", "t/old")
    recur(lua, "a1", "A", "t/kept", "t/old")
    moved = {name: lua("hand_schedule", name) for name in names(lua)}
    assert [rest for _, _, *rest in moved.values()] == [[], ["A"], ["A"]]
    lua.redis.flushdb()  # and now it is the other one
    come(lua, "b1")
    assert recur(lua, "b1", "B", "t/kept") == (1, [])
    for name, (due, kept, *sets) in moved.items():
        assert take(lua, name, due, kept, *sets) == 1
    assert recur(lua, "b1", "B", "t/kept") == (1, ["t/old"])
    assert recur(lua, "b1", "B", "t/kept") == (0, [])
    assert names(lua) == ["by hand", "t/kept"]
    assert sorted(lua.redis.hkeys(lua.key("recurring"))) == ["=B", "b1"]


def test_a_paused_one_moves(lua: Lua) -> None:
    """The schedule stays paused in the new shard and keeps its last run. It fires in neither
    shard."""
    make(lua, "t/x")
    assert lua("tick", "t/x", "every 1000", 5, 1005, 5) == 1
    assert lua("pause_schedule", "t/x", 1, call=5) == 1
    for _ in range(2):  # a move may be repeated
        due, kept, *_ = lua("hand_schedule", "t/x")
    assert lua("schedules", "due", "")[2] == []
    assert [lua("pause_schedule", "t/x", pause, call=6 + pause) for pause in (0, 1)] == [1, 0]
    assert lua("run_schedule", "t/x", call=8) == ""
    lua("unschedule", "t/x", call=9)
    assert take(lua, "t/x", due, kept) == 1
    row = ["t/x", 2 * 10**14 + 1005, "every 1000", "once", "5 t/x@5"]
    assert lua("schedules", "all", "")[2] == [row]
    assert lua("schedules", "one", "t/x")[2] == [[*row, ["data", "x"]]]
    assert lua("pause_schedule", "t/x", 0, call=10) == 1
    assert lua("schedules", "due", "")[2][0][:2] == ["t/x", 1005]


def test_one_that_moved_is_kept_where_its_code_runs(lua: Lua) -> None:
    come(lua, "a1")
    make(lua, "t/x")
    recur(lua, "a1", "A", "t/x")
    due, kept, *sets = lua("hand_schedule", "t/x")
    lua("unschedule", "t/x")
    assert take(lua, "t/x", due, kept, *sets, "A of a part") == 1
    assert take(lua, "t/x", due, kept, *sets, "A of a part") == 0
    assert recur(lua, "a1", "A", "t/x") == (1, [])
    assert recur(lua, "a1", "A", "t/x") == (0, [])
    assert names(lua) == ["t/x"]
