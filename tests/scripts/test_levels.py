"""Scripts of a queue with priority levels touch declared keys only, also on a full server. Foreign
keys stop them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from itertools import product
from typing import Any

import pytest
import redis

from headrace._protocol.script import names, script
from tests.scripts.conftest import TERM, Lua, dumps, restore
from tests.scripts.test_out_of_memory import FULL, fill
from tests.support.facts import each

LEVEL = "headrace-priority"
LATER = "+60000"


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


class Levels:
    """Scripts with the streams of two levels behind the first."""

    def __init__(self, lua: Lua) -> None:
        self.lua = lua
        self.streams = [lua.key("jobs:1"), lua.key("jobs:2")]

    def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        return self.lua(name, *args, extra=self.streams if script(name).levelled else (), **options)

    def add(self, *levels: int, delay: str = "", call: int | str = "") -> list[str]:
        """Add a job at each of these levels and return their ids."""
        items: list[Any] = []
        for number, level in enumerate(levels):
            name = f"{delay}{number}" if delay else ""
            fields = [
                "data",
                f"{level}",
                *(["id", name] if name else []),
                *([LEVEL, f"{level}"] if level else []),
            ]
            items += [name, delay, len(fields), *fields]
        reply = self("enqueue", "full", *items, call=call)
        assert set(reply[1::2]) == {1}
        return list(reply[::2])

    def lease(self, limit: int = 100, call: int | str = "") -> list[list[Any]]:
        """Return the leased jobs in order as entry, fields, count and releases."""
        _, _, taken, fresh, _, _ = self(
            "lease", "w", limit, "", TERM, 70_000, 0, 1000, 0, "", call=call
        )
        return [
            *taken,
            *(
                [entry, ["data", data], 1, 0]
                for entry, data in zip(fresh[::2], fresh[1::2], strict=True)
            ),
        ]


@pytest.fixture
def levels(lua: Lua) -> Iterator[Levels]:
    """Restore the memory limit afterwards for the tests that share this server."""
    yield Levels(lua)
    lua.redis.config_set("maxmemory", 0)


def story(levels: Levels) -> list[list[Any]]:
    """Make waiting, parked, delayed and dead jobs at every level. Return the rows of the leased
    ones."""
    levels.add(0, 1, 2, 0, 1, 2, 0, 1, 2)
    taken = levels.lease()
    assert [row[1][1] for row in taken] == list("000111222")
    for row in (taken[1], taken[4], taken[7]):
        assert levels("release", "w", 0, row[0], row[2]) == [1]
    assert levels("dead_letter", "w", 1000, taken[5][0], 1, "why") == [1]
    levels.add(0, 1, 2)
    levels.add(1, 2, delay=LATER)
    return [taken[0], taken[3], taken[6], taken[8]]


CALLS: dict[str, list[Any]] = {
    "enqueue": ["full", "", "", 4, "data", "x", LEVEL, "2"],
    "enqueue_if": [0, 0, 0, "", "", "", 4, "data", "x", LEVEL, "2"],
    "lease": ["w", 100, "", TERM, 70_000, 0, 1000, 0, ""],
    "lease_fair": ["w", 100, "", TERM, 70_000, 0, 1000, 0, "", 1, 1, 0],
    "reclaim": ["v", 10_000, TERM, 500, 1],
    "redrive": ["-", 500, "", ""],
    "reschedule": [f"{LATER}1", ""],
    "cancel": [f"{LATER}1", TERM],
    "signal": [f"{LATER}1", "approved", "ada", "x"],
    "cancel_payload": ["2", "level:2", "-", 500, TERM],
    "purge": ["-", 500],
    "delete": [],
    "repair": ["jobs", "-", 500, TERM],
    "counts": [],
    "drained": [],
    "wipe": [],
    "measure": [],
    "find": [f"{LATER}1", ""],
    "ended": [f"{LATER}1"],
    "list": ["waiting", "new:2 -", 100],
    "position": ["nobody", 100, ""],
    "tick": ["s", "every 1000", 5, 10, 5],
    "run_schedule": ["s"],
}


def test_every_script_with_levels_is_here() -> None:
    assert {name for name in names() if script(name).levelled} == {*CALLS, "retry"}


@each("name", CALLS, empty=True)
def test_streams_that_are_none(levels: Levels, name: str) -> None:
    """The call is refused before the first write."""
    story(levels)
    levels("schedule", "s", "every 1000", "once", 5, 10, "data", "x", LEVEL, "1")
    prepared = dumps(levels.lua.redis)
    for stream in levels.streams:
        restore(levels.lua.redis, prepared)
        levels.lua.redis.delete(stream)
        levels.lua.redis.set(stream, "mine")
        before = levels.lua.state()
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            levels(name, *CALLS[name], call=1)
        assert levels.lua.state() == before


# of a worker, which goes on with the levels that it knows
SERVING = ("reclaim", "measure", "tick", "run_schedule")


@each("name", [name for name in CALLS if name not in SERVING], empty=True)
def test_who_knows_of_fewer_changes_nothing(levels: Levels, name: str) -> None:
    story(levels)
    before = levels.lua.state()
    with pytest.raises(redis.ResponseError, match="PRIORITIES 3"):
        levels.lua(name, *CALLS[name], call=1, extra=levels.streams[:1])
    assert levels.lua.state() == before


def test_a_worker_that_knows_of_fewer_serves_these(levels: Levels) -> None:
    """The worker learns the number of levels and leaves the jobs of the others in place."""
    story(levels)
    few = levels.streams[:1]
    assert levels.lua("beat", "w", 60_000, TERM, 1) == 1
    for name in SERVING:
        levels.lua(name, *CALLS[name], extra=few)
    _, _, taken, fresh, _, _, there = levels.lua(
        "lease", "w", 100, "", TERM, 0, 0, 1000, 0, "", extra=few
    )
    assert {row[1][1] for row in taken} == {"0", "1"}
    assert (fresh, there) == ([], 3)
    assert levels("counts")[:2] == [1, 1]  # one that was never leased, and one at the front
    some = [value for row in taken for value in (row[0], row[2], "", 1, "")]
    assert levels.lua("retry", "w", 0, 1000, *some, extra=few) == [1] * len(taken)
    assert [row[1][1] for row in levels.lease()] == [*(["0"] * 2), *(["1"] * 2), *(["2"] * 2)]


def test_a_queue_has_the_levels_of_its_jobs(levels: Levels) -> None:
    """A queue has only the levels of its jobs, whatever its producers know. A deleted queue has
    one."""
    levels.add(0, 1)
    assert levels.lua("levels") == 1
    levels.add(2, 0)
    assert levels.lua("levels") == 2
    assert levels("delete")[1] == 0
    assert levels.lua("levels") == 0


def test_a_full_server_lets_all_go_on(levels: Levels) -> None:
    """Everything but adding goes on."""
    a, b, c, d = story(levels)
    fill(levels.lua)
    with pytest.raises(redis.ResponseError, match=FULL):
        levels.add(2, call=1)
    assert levels.lua.redis.xlen(levels.streams[1]) == 1
    assert levels("retry", "w", 0, 1000, c[0], 1, "", 1, "", d[0], 1, LATER, 1, "", call=2) == [
        1,
        1,
    ]
    assert levels("release", "w", 0, b[0], 1, call=3) == [1]
    assert levels("complete", "", 1, 0, 0, 0, a[0], call=4) == [1]
    assert levels("reschedule", f"{LATER}0", "", call=5) == 1
    assert levels("redrive", "-", 500, "", "", call=6) == [1, ""]
    found = levels.lease(call=7)
    assert [row[1][1] for row in found] == list("00") + list("11111") + list("222")
    assert levels("purge", "-", 500, call=8) == [2, ""]  # delayed ones


def test_a_lease_of_many(levels: Levels) -> None:
    """Each call takes 150 jobs in order, because they take longer. No entry is left pending in a
    stream of a level."""
    levels.add(*[2] * 500)
    levels.add(*[1] * 500)
    calls = [levels.lease(1000) for _ in range(7)]
    assert [len(rows) for rows in calls] == [150] * 6 + [100]
    found = [row for rows in calls for row in rows]
    assert [row[1][1] for row in found] == ["1"] * 500 + ["2"] * 500
    assert [levels.lua.redis.xlen(stream) for stream in levels.streams] == [0, 0]


def test_a_call_that_is_repeated_hands_out_the_same(levels: Levels) -> None:
    levels.add(0, 1, 2)
    first = levels.lease(call=7)
    after = levels.lua.state()
    assert levels.lease(call=7) == first
    assert levels.lua.state() == after


NAMES = ("id", "enq", "attempt", "headrace-reason", "data", "a", "headrace-priority")
CARRIED = """
local function both(...)
  local fields, flat = {...}, {...}
  local own, headers = parse(flat)
  local had = own.id
  own.id, own.enq = own.id or 'new', own.enq or '7'
  local moved, told = carried(fields, 'new', '7')
  return {compose(own, headers), had or '', moved, told or ''}
end
return both(unpack(ARGV))
"""


def test_what_moves_is_as_if_taken_apart(lua: Lua) -> None:
    """Fields may come in any order, twice, empty, or with a wrong number. The fast way returns the
    same as the slow one.
    """
    source = (files("headrace") / "lua" / "lib" / "fields.lua").read_text() + CARRIED
    sha = lua.redis.script_load(source)
    apart = 0
    for number in range(4):
        for some in product(NAMES, repeat=number):
            for value in ("", "1", "x"):
                flat = ["data", "p", *(text for name in some for text in (name, value))]
                expected, had, moved, told = lua.redis.evalsha(sha, 0, *flat)
                assert (moved, told) == (expected, had), flat
                apart += moved[: len(flat)] != flat
    assert lua.redis.evalsha(sha, 0, "a", "1", "data", "p")[2][:2] == ["data", "p"]
    assert apart > 100
