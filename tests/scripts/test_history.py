"""The history of a queue. Each script that ends a job records how, within bounds. Without a history
it records nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.scripts.conftest import TERM, Lua
from tests.scripts.test_out_of_memory import FULL, fill
from tests.support.facts import each

DAY = 86_400_000
KEPT = "completed 5 1 0 w "


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


def history(lua: Lua, most: int = 100, ttl: int = 86_400) -> None:
    lua("declare", 0, "history", most, "history_ttl", ttl)


def ends(lua: Lua) -> dict[str, str]:
    """Return how each job ended, without its time and its packed job."""
    whole = "local all = redis.call('HGETALL', KEYS[1]) for i = 2, #all, 2 do "
    flat = lua.redis.eval(
        whole + "all[i] = string.match(all[i], '^[^\\255]*') end return all", 1, lua.key("ends")
    )
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    assert set(found) == set(lua.redis.zrange(lua.key("ended"), 0, -1))
    moments = dict(lua.redis.zrange(lua.key("ended"), 0, -1, withscores=True))
    parts = {name: end.split(" ", 2) for name, end in found.items()}
    assert all(float(part[1]) == moments[name] for name, part in parts.items())
    return {name: f"{part[0]} {part[2]}" for name, part in parts.items()}


def enqueue(lua: Lua, *names: str, delay: str = "") -> None:
    lua(
        "enqueue", "full", *[x for name in names for x in (name, delay, 4, "data", "x", "id", name)]
    )


def held(lua: Lua, *names: str, **options: Any) -> list[str]:
    enqueue(lua, *names)
    return [row[0] for row in lua.lease("w", **options)[2]]


def completed(lua: Lua, *more: Any) -> None:
    (entry,) = held(lua, "i")
    lua("complete", "", 1, 1, 1, 0, entry, "i", 1, TERM, "r", *more, extra=[lua.key("result:i")])


def retried(lua: Lua) -> None:
    (entry,) = held(lua, "i")
    assert lua("retry", "w", 1, 10, entry, 1, "", 1, "why") == [2]


def worn_out(lua: Lua) -> None:
    held(lua, "i")
    lua("expire", "-", 500, "i")
    assert lua.lease("v", most=1)[2] == []


def moved(lua: Lua) -> None:
    enqueue(lua, "i")
    parts = (
        "wake",
        "jobs",
        "ids",
        "released",
        "delayed",
        "bodies",
        "stats",
        "events",
        "steps",
        "cancels",
    )
    extra = [f"headrace:{{q}}:q/to:{part}" for part in parts]
    assert lua("move", "-", 200, "i", extra=extra)[0] == 1


CASES: dict[str, tuple[Callable[[Lua], object], str]] = {
    "completed": (completed, "completed 1 1 w "),
    "completed by one that says who": (lambda lua: completed(lua, "7 v"), "completed 7 1 v "),
    "completed without a result": (
        lambda lua: lua("complete", "w", 1, 1, 0, 0, *held(lua, "i"), 1, "i"), "completed 1 0 w ",
    ),
    "dead": (lambda lua: lua("dead_letter", "w", 10, *held(lua, "i"), 1, b"why\xfftrace"), "dead 1 0 w why"),
    "dead after its last attempt": (retried, "dead 1 0 w why"),
    "dead as it is leased": (worn_out, "dead 1 0 - no attempts left: its workers died, or let its leases expire"),
    "cancelled": (lambda lua: (enqueue(lua, "i"), lua("cancel", "i", TERM)), "cancelled 0 0 - "),
    "cancelled late": (lambda lua: (enqueue(lua, "i", delay="+60000"), lua("cancel", "i", TERM)), "cancelled 0 0 - "),
    "cancelled by its payload": (
        lambda lua: (enqueue(lua, "i"), lua("cancel_payload", "x", "jobs", "-", 500, TERM)), "cancelled 0 0 - ",
    ),
    "purged": (lambda lua: (enqueue(lua, "i"), lua("purge", "-", 500)), "deleted 0 0 - "),
    "moved": (moved, "deleted 0 0 - moved to q/to"),
}  # fmt: skip


@each("case", CASES, empty=True)
def test_each_end_is_kept(lua: Lua, case: str) -> None:
    history(lua)
    act, end = CASES[case]
    act(lua)
    assert ends(lua) == {"i": end}
    for part in ("ends", "ended"):
        assert 0 < lua.redis.pttl(lua.key(part)) <= DAY
    (kept,) = lua("ended", "i")
    assert kept.split(" ")[0] == end.split(" ")[0]
    _, row, cursor = lua("find", "i", "")
    state, _, _, worker, reason = end.split(" ", 4)
    if state == "dead":
        assert (row[2], row[1][1]) == ("dead", reason)
    else:
        fields = dict(zip(row[1][::2], row[1][1::2], strict=True))
        assert (fields.get("data"), "enq" in fields) == (
            ("x", True) if state != "deleted" else (None, False)
        )
        expected = [
            "i",
            ["id", "i", "headrace-reason", reason],
            f"ended:{state}",
            int(end.split(" ")[1]),
            0,
        ]
        row[1] = row[1][:4]
        assert [*row[:5], row[5] or "-", cursor] == [*expected, worker, ""]


@each("case", CASES, empty=True)
def test_without_a_history_nothing_is_kept(lua: Lua, case: str) -> None:
    CASES[case][0](lua)
    assert not lua.redis.exists(lua.key("ends"), lua.key("ended"))


def test_a_job_without_an_id_is_known_by_its_entry(lua: Lua) -> None:
    history(lua)
    a, b = lua.leased("a", "b")
    assert lua("complete", "", 1, 0, 0, 0, a, "3 w") == [1]
    assert lua("complete", "", 1, 0, 0, 0, a, "4 v") == [0]  # and only the winner's
    assert ends(lua) == {a: "completed 3 0 w "}
    assert lua("ended", a, b, "9-9")[1:] == [0, 1]


def test_a_dead_one_s_end_outlives_its_letter(lua: Lua) -> None:
    history(lua)
    lua("dead_letter", "w", 10, *held(lua, "i"), 1, "why")
    assert lua("find", "i", "")[1][2] == "dead"
    lua("purge_dead", "-", 500)
    _, row, _ = lua("find", "i", "")
    assert row[2] == "ended:dead"
    assert row[1][:6] == ["id", "i", "headrace-reason", "why", "data", "x"]


def test_a_job_that_is_there_has_not_ended(lua: Lua) -> None:
    """The end of an earlier job of the id does not count."""
    history(lua)
    enqueue(lua, "i")
    lua("cancel", "i", TERM)
    enqueue(lua, "i", "late", delay="+60000")
    assert lua("ended", "i", "late", "nobody") == [0, 0, 1]
    assert lua("find", "i", "")[1][2] == "delayed"


def test_it_is_bounded_in_number(lua: Lua) -> None:
    """The bound also holds if as many jobs end at once as it allows, or if it has become
    smaller."""
    history(lua, 5)
    names = [f"i{n:03}" for n in range(300)]
    entries = held(lua, *names, limit=1000)
    items = [*entries, *names, *[f"1 w{n}" for n in range(300)]]
    assert lua("complete", "", 300, 1, 0, 0, *items) == [1] * 300
    assert len(ends(lua)) == 5
    history(lua, 400)
    lua("declare", 1, "history", 400, "history_ttl", 86_400)
    lua.redis.zadd(lua.key("ended"), {f"o{n}": n for n in range(390)})
    lua.redis.hset(lua.key("ends"), mapping=dict.fromkeys([f"o{n}" for n in range(390)], KEPT))
    lua("declare", 1, "history", 5, "history_ttl", 86_400)
    for left in (295, 194, 93, 5):  # a hundred and one at a time
        enqueue(lua, "i")
        lua("cancel", "i", TERM)
        assert lua.redis.hlen(lua.key("ends")) == lua.redis.zcard(lua.key("ended")) == left


def test_it_is_bounded_in_time(lua: Lua) -> None:
    """Old ends are not returned. The next end removes them."""
    history(lua, 1000)
    lua.redis.zadd(lua.key("ended"), {"old": 5})
    lua.redis.hset(lua.key("ends"), "old", KEPT)
    assert lua("ended", "old") == [1]
    assert lua("find", "old", "")[1] == []
    enqueue(lua, "i")
    lua("cancel", "i", TERM)
    assert ends(lua) == {"i": "cancelled 0 0 - "}


def test_a_reason_is_bounded(lua: Lua) -> None:
    history(lua)
    lua("dead_letter", "w", 10, *held(lua, "i"), 1, "w" * 10_000)
    assert ends(lua) == {"i": "dead 1 0 w " + "w" * 500}


def test_a_repeated_call_keeps_one_end(lua: Lua) -> None:
    history(lua)
    enqueue(lua, "i")
    assert lua("cancel", "i", TERM, call=1) == 1
    before = lua.state()
    assert lua("cancel", "i", TERM, call=1) == 1
    assert lua.state() == before


def test_a_full_server_keeps_ends(lua: Lua) -> None:
    """The jobs are removed first, which makes room for their ends."""
    history(lua)
    entry, *_ = held(lua, "i", "j", "k", "l")
    fill(lua)
    try:
        assert lua("complete", "", 1, 1, 0, 0, entry, "i", "1 w") == [1]
        assert lua("cancel", "j", TERM) == 1
        assert lua("cancel_payload", "x", "jobs", "-", 500, TERM)[0] == 2
        with pytest.raises(redis.ResponseError, match=FULL):
            enqueue(lua, "i")
    finally:
        lua.redis.config_set("maxmemory", 0)
    assert sorted(ends(lua)) == ["i", "j", "k", "l"]


@each("part", ["ends", "ended"])
@each("case", CASES, empty=True)
def test_a_key_of_another_type_is_refused_before_anything_is_written(
    lua: Lua, case: str, part: str
) -> None:
    history(lua)
    if case == "dead as it is leased":
        held(lua, "i")
        lua("expire", "-", 500, "i")
    lua.redis.set(lua.key(part), "mine")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        CASES[case][0](lua)
    assert (
        lua.counts().get("completed", 0)
        == lua.counts().get("cancelled", 0)
        == lua.counts().get("dead", 0)
        == 0
    )


def test_delete_takes_it_along(lua: Lua) -> None:
    history(lua)
    enqueue(lua, "i", "j")
    lua("cancel", "i", TERM)
    lua("delete")
    assert not lua.redis.exists(lua.key("ends"), lua.key("ended"))
    enqueue(lua, "i")
    lua("cancel", "i", TERM)  # the queue goes on as it was declared
    assert ends(lua) == {"i": "cancelled 0 0 - "}


def test_none_is_declared(lua: Lua) -> None:
    """A declared 0 ends it at once."""
    history(lua)
    enqueue(lua, "i", "j")
    lua("cancel", "i", TERM)
    lua("declare", 0, "history", 0)
    assert ends(lua) != {}  # a producer does not overrule what counts
    lua("declare", 1, "history", 0)
    assert not lua.redis.exists(lua.key("ends"), lua.key("ended"))
    lua("cancel", "j", TERM)
    assert not lua.redis.exists(lua.key("ends"), lua.key("ended"))


def test_repair_mends_halves(lua: Lua) -> None:
    history(lua)
    enqueue(lua, "i")
    lua("cancel", "i", TERM)
    lua.redis.hset(lua.key("ends"), "half", KEPT)
    lua.redis.zadd(lua.key("ended"), {"other": 5})
    place, cursor, leftovers = "jobs", "-", 0
    while place:
        place, cursor, *found = lua("repair", place, cursor, 500, TERM)
        leftovers += found[7]
    assert leftovers == 2
    assert ends(lua) == {"i": "cancelled 0 0 - "}
