"""The calls that `test_bytes` holds against the limits. Each script of the package is called as
often as it needs.

A stand fills the queue with what is large and calls its script by `lua`.

    @stand("dead_letter")
    def _(lua: Lua) -> None:
        large_dead(lua)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from tests.scripts.conftest import Lua

PAYLOAD = "x" * 1_000_000
MANY = 6  # of these: a script that reads them all moves 6 MB
Stand = Callable[[Lua], None]
STANDS: dict[str, Stand] = {}


def stand(script: str) -> Callable[[Stand], Stand]:
    """Register the following function to measure *script*."""

    def add(function: Stand) -> Stand:
        STANDS[script] = function
        return function

    return add


def large(lua: Lua, number: int = MANY) -> list[str]:
    """Enqueue large jobs, one a call, and return their entries."""
    return [lua.add(PAYLOAD)[0] for _ in range(number)]


def large_leased(lua: Lua, worker: str = "w", **options: Any) -> list[str]:
    """Enqueue large jobs, lease them one a call, and return their entries."""
    entries = large(lua)
    for _ in entries:
        lua.lease(worker, 1, **options)
    return entries


def large_delayed(lua: Lua, number: int = MANY, **options: Any) -> list[str]:
    """Enqueue large jobs that are due in a minute, and return their ids."""
    ids = [f"late{i}" for i in range(number)]
    for name in ids:
        lua("enqueue", "full", name, "+60000", 4, "data", PAYLOAD, "id", name, **options)
    return ids


def large_dead(lua: Lua) -> list[str]:
    """Make dead letters of large jobs, and return their ids."""
    entries = large_leased(lua)
    for entry in entries:
        lua("dead_letter", "w", 1000, entry, 1, "why")
    return entries


def large_waiting(lua: Lua) -> list[str]:
    """Make `MANY` large jobs of each kind, which are parked, new and delayed. Return their ids."""
    parked = large_leased(lua)
    for entry in parked:
        lua("release", "w", 0, entry, 1)
    return [*parked, *large(lua), *large_delayed(lua)]


def with_levels(lua: Lua) -> None:
    """Declare levels, so that a script reads a job to know its stream."""
    lua.redis.hset(lua.key("stats"), "levels", 2)


def paged(lua: Lua, script: str, limit: int, *more: str, extra: Sequence[str] = ()) -> int:
    """Call *script* until its cursor is at the end, and return the sum of its replies. It takes a
    few jobs at a time.
    """
    done, cursor = 0, "-"
    while cursor:
        some, cursor = lua(script, cursor, limit, *more, extra=extra)
        done += some
    return int(done)


@contextmanager
def listened(lua: Lua) -> Iterator[None]:
    """Let a listener hear all events."""
    lua("listen")
    with lua.redis.pubsub() as events:
        kinds = (
            "reclaimed",
            "promoted",
            "leased",
            "released",
            "retried",
            "dead",
            "deleted",
            "redriven",
        )
        events.subscribe(*[f"{lua.key('events')}:{kind}" for kind in kinds])
        while lua.redis.pubsub_numsub(f"{lua.key('events')}:redriven")[0][1] == 0:
            pass
        yield


def each_way(lua: Lua) -> Iterator[list[str]]:
    """Yield the streams of the levels for four queues, with and without levels and listeners. The
    scripts read different fields.
    """
    for levels in ([], [lua.key("jobs:1"), lua.key("jobs:2")]):
        for heard in (False, True):
            lua.redis.flushall()
            if levels:
                with_levels(lua)
            with listened(lua) if heard else nullcontext():
                yield levels
