"""A lease call reads about 1 MiB, or one larger job, wherever the jobs wait. It hands out all jobs
that it read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts.conftest import TERM, Lua

MIB = 1 << 20
SIZES = {
    "small": [100] * 600,
    "medium": [50_000] * 60,
    "large": [1_000_000] * 6,
    "larger than a call": [1_500_000, 10, 1_500_000, 10],
    "mixed": [100, 100, 400_000, 5000, 900_000, 20, 20, 700_000, 4096, 1_200_000, 30, 4097] * 2,
    "many and one": [4000] * 200 + [1_000_000] + [4000] * 200,
}
PLACES = [
    "new",
    "foreign",
    "parked",
    "woke",
    "heir",
    "held back",
    "level",
    "parked at a level",
    "delayed",
]
BY_KEY = ["k", "1", 10_000]


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


def fill(lua: Lua, place: str, sizes: list[int]) -> list[str]:
    """Put jobs of *sizes* into *place*. Return the extra keys of a lease call."""
    payloads = [f"{i:06d}".ljust(size, "x") for i, size in enumerate(sizes)]
    levels = [lua.key("jobs:1")] if "level" in place else []
    headers = ["headrace-priority", "1"] if levels else ["k", "a"] if place == "held back" else []
    for at in range(0, len(payloads), 10):
        if place == "foreign":
            for payload in payloads[at : at + 10]:
                lua.redis.xadd(lua.key("jobs"), {"data": payload, "h": "x"})
        else:
            delay = "+60000" if place == "delayed" else ""
            part = enumerate(payloads[at : at + 10], at)
            jobs = [
                (f"i{i}", delay, 2 + len(headers), "data", payload, *headers) for i, payload in part
            ]
            lua("enqueue", "full", *[x for job in jobs for x in job], extra=levels)
    jobs = lua.key("jobs")
    if place == "delayed":
        lua.redis.zadd(lua.key("delayed"), {f"i{i}": 1 + i for i in range(len(sizes))})
    if place in {"parked", "woke", "heir", "held back", "parked at a level"}:
        if "level" in place:
            assert handed_out(lua, levels) == [len(p) for p in payloads]
        elif not lua.redis.exists(jobs) or not lua.redis.xinfo_groups(jobs):
            lua.redis.xgroup_create(jobs, "workers", "0")
        owner = {"parked": "parked", "woke": "idle", "heir": "old", "held back": "limited"}.get(
            place, "parked:1"
        )
        if "level" not in place:
            lua.redis.xreadgroup("workers", owner, {jobs: ">"})
        entries = [entry for entry, _ in lua.redis.xrange(jobs)]
        lua.redis.xclaim(jobs, "workers", owner, 0, entries, justid=True)
        if place == "held back":
            lua.redis.zadd(lua.key("limited"), dict.fromkeys(entries, 1))
    return levels


def handed_out(lua: Lua, levels: list[str], *rates: Any, heir: str = "") -> list[int]:
    """Lease until there are no more jobs, each call bounded. Return their sizes."""
    found: list[int] = []
    while True:
        known, due, taken, fresh, *_ = lua(
            "lease", "w", 250, "", TERM, 70_000, 0, 1000, 0, heir, 1, *rates, extra=levels
        )
        assert known == 1
        sizes = [len(fields[fields.index("data") + 1]) for _, fields, *_ in taken] + [
            len(p) for p in fresh[1::2]
        ]
        assert sum(sizes) <= 1.5 * MIB or len(sizes) <= 2
        assert sum(sizes[:-1]) <= MIB
        found += sizes
        held = [entry for entry, (owner, _) in lua.holders().items() if owner == "w"]
        assert len(held) == len(found), "delivered, but not handed out"
        if due != 0 and len(sizes) < 250:
            return found
        heir = ""


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("place", PLACES)
def test_a_call_is_bounded_by_bytes(lua: Lua, place: str, sizes: list[int]) -> None:
    levels = fill(lua, place, sizes)
    rates = BY_KEY if place == "held back" else []
    foreign = place not in {"new", "delayed", "level"} and max(sizes) > 4096
    if foreign:  # what was put there by hand is seen when it comes
        lua.redis.hset(lua.key("stats"), "largest", max(sizes) + 100)
    found = handed_out(lua, levels, *rates, heir="old" if place == "heir" else "")
    assert found == sizes


def test_large_foreign_jobs_are_noticed(lua: Lua) -> None:
    """Their size was not recorded. The first read returns at most 16 jobs, and later calls are
    bounded."""
    for _ in range(40):
        lua.redis.xadd(lua.key("jobs"), {"data": "x" * 300_000})
    assert len(lua.lease("w", 250)[3]) == 2 * 16
    assert lua.redis.hget(lua.key("stats"), "largest") == "300000"
    assert len(lua.lease("w", 250)[3]) == 2 * 3
    entries = [entry for entry, _ in lua.redis.xrange(lua.key("jobs"))]
    lua("beat", "v", 10_000, TERM, 1)
    lua("reclaim", "v", 10_000, TERM, 500, 0)
    assert lua.redis.hexists(lua.key("stats"), "largest")
    lua("complete", "", len(entries), 0, 0, 0, *entries)
    lua("reclaim", "v", 10_000, TERM, 500, 0)
    assert not lua.redis.hexists(lua.key("stats"), "largest")


def test_the_reply_says_that_there_is_more(lua: Lua) -> None:
    lua.add(*["x" * 400_000] * 2)
    lua.add("x" * 400_000)
    assert (lua.lease()[1], lua.lease()[1], lua.lease()[1]) == (0, -1, -1)


def test_few_reads_where_jobs_are_small(lua: Lua) -> None:
    """A call sends a few commands, however many jobs it leases."""
    lua.add(*["x"] * 1000)
    for number, reads in ((1, 1), (16, 1), (250, 3)):
        lua.redis.config_resetstat()
        assert len(lua.lease("w", number)[3]) == 2 * number
        assert lua.redis.info("commandstats")["cmdstat_xreadgroup"]["calls"] == reads
