"""Records go along to another queue. Suspended runs stay."""

from __future__ import annotations

import pytest

from tests.steps.conftest import DAY, Runs

OTHER = "headrace:{q}:q/to:"


def there(runs: Runs) -> dict[str, str]:
    """Return the fields of the other queue's records."""
    return sorted(runs.lua.redis.execute_command("HKEYS", OTHER + "steps"))


def moved(runs: Runs, *ids: str) -> int:
    cursor, done = "-", 0
    while cursor:
        some, cursor = runs("move", cursor, 2, *ids)
        done += some
    return done


@pytest.mark.sampled
@pytest.mark.parametrize("which", ["all", "chosen"])
@pytest.mark.parametrize("id", ["i", ""])
@pytest.mark.parametrize("how", ["parked", "retried", "delayed"])
def test_records_go_along(runs: Runs, which: str, id: str, how: str) -> None:
    entry = runs.begin(id)
    name = id or entry
    runs.step(entry, "a", id=name)
    assert runs("progress", "w", entry, 1, name, "", "0.5", "half") == 1
    runs.step(entry, "b", id=name)
    if how == "parked":
        assert runs("release", "w", 0, entry, 1) == [1]
    else:
        delay = f"+{DAY}" if how == "delayed" else ""
        assert runs("retry", "w", 3, 1000, entry, 1, delay, "1", "why") == [1]
    # of a job that has left
    runs.lua.redis.hset(OTHER + "steps", name, b"\x95\x01\x00\xa0\x80\xc0")
    runs.lua.redis.hset(OTHER + "steps", f"{name}\t1", "old")
    assert moved(runs, *[name] * (which == "chosen")) == 1
    assert not runs.lua.redis.exists(runs.lua.key("steps"))
    assert there(runs) == sorted([name, f"{name}\t1", f"{name}\t2", f"{name}\tp"])
    assert (
        runs.lua.redis.execute_command("HGET", OTHER + "steps", f"{name}\t1", NEVER_DECODE=True)
        != b"old"
    )


@pytest.mark.parametrize("which", ["all", "chosen"])
def test_suspended_runs_stay(runs: Runs, which: str) -> None:
    runs.sleeps("s")
    runs.waits("w")
    assert moved(runs, *["s", "w"] * (which == "chosen")) == 0
    assert runs.counts() == {"delayed": 1, "blocked": 1}
    assert runs.names("s") == ["charge", "nap"]
    assert not runs.lua.redis.exists(OTHER + "steps")
