"""The tallies of a queue. Its workers add what they count, a record a minute and one a ten
minutes."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import redis

from headrace._protocol.features.trends import _record
from tests.scripts.conftest import Lua
from tests.scripts.test_out_of_memory import fill

KIND = [3, 2, 1, *range(32)]


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


def add(lua: Lua, **rows: list[int]) -> int:
    return int(lua("tally", json.dumps(rows)))


def raw(lua: Lua) -> Any:
    """Return a client that leaves bytes as they are."""
    return redis.Redis(unix_socket_path=lua.redis.connection_pool.connection_kwargs["path"])


def rows(lua: Lua, ring: str = "m") -> dict[str, tuple[int, ...]]:
    """Return the sums of the records of a ring, which are of the last moments."""
    with raw(lua) as client:
        found = client.hgetall(lua.key("tallies"))
    whole: dict[str, tuple[int, ...]] = {}
    for place, packed in found.items():
        if place.decode().startswith(ring):
            for name, sums in _record(packed)[1].items():
                there = whole.get(name, (0,) * len(sums))
                whole[name] = tuple(a + b for a, b in zip(there, sums, strict=True))
    return whole


def test_sums(lua: Lua) -> None:
    assert add(lua, kmail=KIND, hvm=[3, 2, 1, 500, 9000]) == 1
    assert add(lua, kmail=KIND, k=[70_000, *KIND[1:]]) == 1
    for ring in "mt":
        assert rows(lua, ring) == {
            "kmail": tuple(2 * one for one in KIND),
            "k": (70_000, *KIND[1:]),
            "hvm": (3, 2, 1, 500, 9000),
        }
    assert 0 < lua.redis.pttl(lua.key("tallies")) <= 86_400_000


def test_it_is_read_by_number(lua: Lua) -> None:
    add(lua, kmail=KIND)
    now, record, *_ = lua("tallies", "m", 0)
    minute = int(now) // 60_000
    assert struct.unpack(">I", record.encode("utf-8", "surrogateescape")[:4])[0] in (
        minute,
        minute - 1,
    )
    assert lua("tallies", "t", 0)[1:]
    assert len(lua("tallies", "m", minute + 5)) == 1


def test_names_are_bounded(lua: Lua) -> None:
    """A record has eight kinds and eight machines. The rest is summed, and so is a row of an
    endless name."""
    add(lua, **{f"k{n}": KIND for n in range(20)}, **{f"h{n}": [1, 0, 0, 5, 9] for n in range(10)})
    found = rows(lua)
    assert len(found) == 8 + 8 + 2
    assert found["ok"] == tuple(12 * one for one in KIND)
    assert found["oh"] == (2, 0, 0, 10, 18)
    add(lua, **{"k" + "x" * 5000: KIND})
    assert rows(lua)["ok"][0] == 13 * 3
    assert lua.redis.memory_usage(lua.key("tallies")) < 4000


def test_the_busiest_kinds_stay(lua: Lua) -> None:
    """A kind that comes late in a minute has a row if it had more jobs than another."""
    add(lua, **{f"k{n}": [1, 0, 0, *range(32)] for n in range(8)})
    add(lua, klate=KIND)
    found = rows(lua)
    assert found["klate"] == tuple(KIND)
    assert found["ok"][0] == 1


def test_values_are_bounded(lua: Lua) -> None:
    """The 50 values of a fair queue with the most jobs stay in a minute. The records of an hour
    take less than 250 kB."""
    names = {f"v{n:064}": [n, 1] for n in range(1, 61)}
    assert add(lua, **names, ov=[5, 0], hvm=[1, 0, 0, 5, 9]) == 1
    found = rows(lua, "v")
    assert len(found) == 51
    assert found["ov"] == (5 + sum(range(1, 11)), 10)
    assert found[f"v{60:064}"] == (60, 1)
    assert rows(lua).keys() == {"hvm"}
    with raw(lua) as client:
        (record,) = client.hvals(lua.key("tallies"))[2:]
        client.hset(lua.key("tallies"), mapping={f"v{n}": record for n in range(60)})
        assert client.memory_usage(lua.key("tallies"), samples=0) < 250_000
    minute = int(lua("tallies", "v", 0)[0]) // 60_000
    assert lua("tallies", "v", minute - 2)[1:]
    with pytest.raises(redis.ResponseError, match="no such ring"):
        lua("tallies", "x", 0)


def test_a_full_day_is_bounded(lua: Lua) -> None:
    """Eight kinds in each record of two hours and a day take less than 220 kB."""
    add(lua, **{f"k{n}": KIND for n in range(8)}, hvm=[3, 2, 1, 500, 9000])
    with raw(lua) as client:
        record = next(iter(client.hgetall(lua.key("tallies")).values()))
        places = [f"m{n}" for n in range(120)] + [f"t{n}" for n in range(144)]
        client.hset(lua.key("tallies"), mapping=dict.fromkeys(places, record))
        assert client.memory_usage(lua.key("tallies"), samples=0) < 220_000


def test_an_old_record_begins_anew(lua: Lua) -> None:
    add(lua, kmail=KIND)
    for place in lua.redis.hkeys(lua.key("tallies")):
        lua.redis.hset(lua.key("tallies"), place, "\0\0\0\1old")
    assert add(lua, kmail=KIND) == 1
    assert rows(lua) == {"kmail": tuple(KIND)}
    for place in lua.redis.hkeys(lua.key("tallies")):  # cut off by a foreign hand
        packed = struct.pack(">I", int(lua("tallies", "m", 0)[0]) // 60_000) + b"\x09\x01"
        lua.redis.hset(lua.key("tallies"), place, packed.decode("latin1"))
    assert add(lua, kmail=KIND) == 1


def test_a_full_server(lua: Lua) -> None:
    """A full server keeps nothing, and fails no worker."""
    fill(lua)
    try:
        assert add(lua, kmail=KIND) == 0
    finally:
        lua.redis.config_set("maxmemory", 0)


def test_they_go_with_the_queue(lua: Lua) -> None:
    add(lua, kmail=KIND)
    lua("delete")
    assert not lua.redis.exists(lua.key("tallies"))
