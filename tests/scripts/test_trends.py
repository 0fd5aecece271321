"""The trends of a queue. A bounded record is kept a minute and an hour by any sweep. Without trends
there is none."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.scripts.conftest import TERM, Lua
from tests.scripts.test_out_of_memory import fill

SWEEP = ["v", 10_000, TERM, 500, 0]
BYTES = 36 * (2880 + 2160)


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


@pytest.fixture
def lua(lua: Lua) -> Iterator[Lua]:
    lua("declare", 0, "trends", "yes")
    yield lua
    lua.redis.config_set("maxmemory", 0)


def told(lua: Lua, hourly: int, number: int) -> tuple[int, int, bytes]:
    """Return the script's answer. Bytes of a record may be valid UTF-8 by chance, so they are
    compared as bytes."""
    now, kept, data = lua("trends", hourly, number)
    return now, kept, data.encode(errors="surrogateescape")


def records(lua: Lua, *, hourly: bool = False, number: int = 3) -> list[tuple[int, ...]]:
    """Return the records of the last minutes or hours without their time."""
    now, kept, data = told(lua, int(hourly), number)
    assert kept == 1
    found = [one for one in struct.iter_unpack(">9I", data) if one[0]]
    assert all(now / 1000 - 3 * (3600 if hourly else 60) <= one[0] <= now / 1000 for one in found)
    return [one[1:] for one in found]


def earlier(lua: Lua, ms: int = 60_000) -> None:
    """Make the last record so much older."""
    lua.redis.hincrby(lua.key("stats"), "trends", -ms)


def test_a_record_is_what_the_counts_are(lua: Lua) -> None:
    a, b, c, *_ = lua.leased(*"abcdefgh", limit=5)
    lua("release", "w", 0, a, 1)
    lua("dead_letter", "w", 1000, b, 1, "why")
    lua("complete", "", 1, 0, 0, 0, c)
    lua(
        "enqueue",
        "full",
        "i",
        "+60000",
        4,
        "data",
        "x",
        "id",
        "i",
        "j",
        "",
        4,
        "data",
        "x",
        "id",
        "j",
    )
    lua("cancel", "j", TERM)
    lua("reclaim", *SWEEP)
    (record,) = records(lua)
    assert records(lua, hourly=True) == [record]
    *counts, lag = record
    assert counts == [10, 1, 1, 4, 2, 1, 1]
    assert 0 <= lag < TERM


def test_two_that_sweep_take_one_record(lua: Lua) -> None:
    """The first record of a minute stays, and a repeated call adds none."""
    lua("reclaim", *SWEEP, call=1)
    taken, at = lua.redis.dump(lua.key("trends")), lua.redis.hget(lua.key("stats"), "trends")
    lua.add("a")
    for worker, lane in (("v", "l"), ("w", "m"), ("w", "m")):
        lua("reclaim", worker, *SWEEP[1:], call=1, lane=lane)
    if lua.redis.hget(lua.key("stats"), "trends") == at:  # or a minute has begun
        assert lua.redis.dump(lua.key("trends")) == taken


def test_each_minute_has_one_also_at_rest(lua: Lua) -> None:
    lua("reclaim", *SWEEP)
    assert lua("reclaim", *SWEEP)[-1] == 1  # at rest
    lua("enqueue", "plain", "a")
    earlier(lua)
    lua("reclaim", *SWEEP)
    assert records(lua)[-1][0] == 1


def test_it_is_of_one_size_and_goes_with_the_queue(lua: Lua) -> None:
    assert not lua.redis.exists(lua.key("trends"))
    lua("reclaim", *SWEEP)
    assert lua.redis.strlen(lua.key("trends")) == BYTES
    lua.redis.setrange(lua.key("trends"), 0, b"\xff" * BYTES)
    earlier(lua, 3_600_000)
    lua("reclaim", *SWEEP)
    assert lua.redis.strlen(lua.key("trends")) == BYTES
    assert lua.redis.memory_usage(lua.key("trends")) <= 200_000
    assert len(told(lua, 0, 9999)[2]) == 36 * 2880
    assert len(told(lua, 1, 9999)[2]) == 36 * 2160
    lua("delete")
    lua("reclaim", *SWEEP)
    assert not lua.redis.exists(lua.key("trends"))
    assert not lua.redis.hexists(lua.key("stats"), "trends")


def test_none_are_declared(lua: Lua) -> None:
    lua("reclaim", *SWEEP)
    lua("declare", 1, "trends", "no")
    assert not lua.redis.exists(lua.key("trends"))
    earlier(lua)
    lua.redis.hdel(lua.key("stats"), "trends")
    lua("reclaim", *SWEEP)
    assert told(lua, 0, 10)[1:] == (0, b"")


def test_the_last_of_a_ring_and_its_first_are_neighbours(lua: Lua) -> None:
    """Wherever the minute lies in the ring, the records before it are returned in order."""
    lua("reclaim", *SWEEP)
    minute = int(lua.redis.time()[0]) // 60
    for back in range(2880):
        at = 36 * ((minute - back) % 2880)
        lua.redis.setrange(lua.key("trends"), at, struct.pack(">I", minute - back))
    for number in (1, 2, 100, 2879, 2880):
        now, _, data = told(lua, 0, number)
        found = [one[0] for one in struct.iter_unpack(">9I", data)]
        if now // 60_000 == minute:
            assert found == list(range(minute - number + 1, minute + 1))


@pytest.mark.parametrize("what", ["a full server", "a foreign key"])
def test_a_sweep_goes_on(lua: Lua, what: str) -> None:
    (entry,) = lua.leased("a", duration=1)
    if what == "a full server":
        fill(lua)
    else:
        lua.redis.sadd(lua.key("trends"), "mine")
    moved: list[Any] = []
    while not moved or not moved[-1]:
        moved.append(lua("reclaim", *SWEEP, call=len(moved) + 1)[0])
    assert lua.holders()[entry][0] == "parked"
    assert (
        len(records(lua)) == 1
        if what == "a full server"
        else lua.redis.type(lua.key("trends")) == "set"
    )
