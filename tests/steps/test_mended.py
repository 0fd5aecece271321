"""Repairs, sweeps and operators leave suspended runs alone, unless something is broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts.conftest import TERM
from tests.steps.conftest import DAY, Runs

KINDS = pytest.mark.parametrize("kind", ["sleep", "wait"])
NAMES = [
    "groups", "dangling", "stranded", "undated", "hollow", "ids_released", "ids_taken", "leftovers", "workers",
    "deleted", "enqueued", "slots",
]  # fmt: skip


def repair(runs: Runs) -> dict[str, int]:
    """Return the repairs. A second repair must find nothing."""
    found = [_repaired(runs), _repaired(runs)]
    assert found[1] == {}
    return found[0]


def _repaired(runs: Runs) -> dict[str, int]:
    place, cursor, sums = "jobs", "-", [0] * len(NAMES)
    while place:
        place, cursor, *numbers = runs("repair", place, cursor, 2, TERM)
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
    return {name: number for name, number in zip(NAMES, sums, strict=True) if number}


def holders(runs: Runs) -> set[str]:
    return {owner for owner, _ in runs.lua.holders().values()}


@KINDS
def test_what_is_sound_stays(runs: Runs, kind: str) -> None:
    runs.suspended(kind)
    runs.dies("d", "a")
    runs.step(runs.begin("l"), "a", id="l")
    before = runs.lua.state()
    assert repair(runs) == {}
    assert runs.lua.state() == before


@KINDS
def test_a_moment_that_was_lost_is_now(runs: Runs, kind: str) -> None:
    """The run sees that its time has not come, and is suspended again."""
    entry = runs.suspended(kind)
    runs.lua.redis.delete(runs.lua.key("asleep"), runs.lua.key("leases"))
    assert repair(runs) == {"undated": 1}
    assert runs.lua.redis.zscore(runs.lua.key("leases"), entry) == float("inf")
    assert runs.lease() == entry


def test_leftovers_are_removed(runs: Runs) -> None:
    entry = runs.begin("i")
    runs.lua.redis.zadd(runs.lua.key("asleep"), {entry: 1, "9-9": 1})
    for name in "ab":  # a worker that knows no records completes them
        other = runs.sleeps(name)
        runs.lua.redis.xdel(runs.lua.key("jobs"), other)
        runs.lua.redis.xack(runs.lua.key("jobs"), "workers", other)
        runs.lua.redis.hdel(runs.lua.key("ids"), name)
    runs.lua.redis.hdel(runs.lua.key("steps"), "b")
    found = repair(runs)
    # of asleep; the run a; the records of b, which have no run
    assert found.pop("leftovers") >= 2 + 1 + 2
    assert found == {"deleted": 2}
    assert not runs.lua.redis.exists(runs.lua.key("asleep"))
    assert not runs.lua.redis.exists(runs.lua.key("steps"))


def test_the_records_of_a_letter_that_was_trimmed_are_removed(runs: Runs) -> None:
    runs.dies("a", "x")
    runs.dies("b", "x")
    one, two = runs.letter("a"), runs.letter("b")
    runs.lua.redis.xtrim(runs.lua.key("dead"), maxlen=1, approximate=False)
    assert repair(runs) == {"leftovers": 1, "deleted": 1}
    assert (runs.names(one), runs.names(two)) == ([], ["x"])


@KINDS
def test_sweeps_leave_suspended_runs(runs: Runs, kind: str) -> None:
    entry = runs.suspended(kind)
    owner = runs.lua.holders()[entry]
    for _ in range(3):
        runs("reclaim", "v", 1, 1, 500, 1)
    assert runs.lua.holders()[entry] == owner
    assert runs.counts() in ({"delayed": 1}, {"blocked": 1})


@pytest.mark.sampled
@KINDS
@pytest.mark.parametrize(
    "call",
    [
        ("expire", "-", 500),
        ("expire", "-", 500, "i"),
        ("fail_worker", "w", 500),
        ("fail_worker", "parked", 500),
        ("leave", "w", 500, 0),
        ("reschedule", "i", ""),
        ("inherit", "paused", "1"),
        ("release", "w", 0, None, 1),
        ("renew", "w", "", 0, None, 1),
        ("complete", "w", 1, 1, 0, 0, None, 1, "i"),
        ("retry", "w", 3, 1000, None, 1, "", "1", "why"),
        ("dead_letter", "w", 1000, None, 1, "why"),
    ],
    ids=lambda call: " ".join(map(str, call[:1])),
)
def test_calls_that_leave_suspended_runs(runs: Runs, kind: str, call: tuple[Any, ...]) -> None:
    entry = runs.suspended(kind)
    before = runs.lua.state()
    name, *args = [entry if word is None else word for word in call]
    runs(name, *args)
    after = runs.lua.state()
    for part in ("holders", "asleep", "steps", "ids", "jobs", "leases", "released"):
        assert after[part] == before[part], part


@KINDS
def test_no_lease_is_of_a_suspended_run(runs: Runs, kind: str) -> None:
    assert runs("lease_of", runs.suspended(kind)) == []


@KINDS
@pytest.mark.parametrize("condition", ["debounce=60000", "replace=1"])
def test_a_suspended_run_has_begun(runs: Runs, kind: str, condition: str) -> None:
    runs.suspended(kind)
    given = [0, 0, 0, "i", f"+{DAY}", condition, 4, "data", "new", "id", "i"]
    assert runs("enqueue_if", *given)[2:] == ["i", 0]
    assert "new" not in str(runs.lua.state()["jobs"])


@pytest.mark.parametrize("condition", ["debounce=60000", "replace=1"])
@pytest.mark.parametrize("delay", ["", f"+{DAY}"])
def test_a_run_with_records_has_begun(runs: Runs, condition: str, delay: str) -> None:
    """The job was retried with all attempts restored. It still counts as begun."""
    entry = runs.begin("i")
    runs.step(entry, "a")
    assert runs("retry", "w", 3, 1000, entry, 1, delay, "-1", "why") == [1]
    given = [0, 0, 0, "i", "", condition, 4, "data", "new", "id", "i"]
    assert runs("enqueue_if", *given)[2:] == ["i", 0]


@pytest.mark.parametrize("delay", ["", f"+{DAY}"])
def test_a_job_that_has_only_signals_has_not_begun(runs: Runs, delay: str) -> None:
    runs("enqueue", "full", "i", delay, 4, "data", "x", "id", "i")
    assert runs("signal", "i", "go", "ada", "v") == 2
    assert runs("enqueue_if", 0, 0, 0, "i", "", "replace=1", 4, "data", "new", "id", "i")[2:] == [
        "i",
        2,
    ]
    assert runs.names() == ["go"]  # the signal stays


@KINDS
@pytest.mark.parametrize("release_key", [0, 1])
def test_a_suspended_run_keeps_its_key(runs: Runs, kind: str, release_key: int) -> None:
    entry = runs.begin("i", "headrace-key", "k")
    runs.step(entry, "a")
    runs.suspend(entry, "later", kind, f"+{DAY}", release_key=release_key)
    runs("enqueue", "full", "j", "", 6, "data", "y", "id", "j", "headrace-key", "k")
    for _ in range(2):
        assert repair(runs) == {}
        runs("reclaim", "v", 10_000, TERM, 500, 1)
        taken = runs("lease", "w", 1, "", TERM, 70_000, 3, 1000, 0, "", 1, "headrace-key", 0, 1)
        if release_key:
            break
    assert len(taken[2]) == release_key
    if not release_key:
        assert runs("cancel", "i", TERM) == 1
        taken = runs("lease", "w", 1, "", TERM, 70_000, 3, 1000, 0, "", 1, "headrace-key", 0, 1)
        assert len(taken[2]) == 1


@pytest.mark.parametrize("name", ["i", "i\t1"])
def test_foreign_bytes_stop_nothing(runs: Runs, name: str) -> None:
    entry = runs.begin("i")
    runs.step(entry, "a")
    runs.step(entry, "b")
    for value in ("?", "\xc1", "1"):
        runs.lua.redis.hset(runs.lua.key("steps"), name, value)
        assert runs("find", "i", "")[1][2] == "leased"
        assert [row[0] for row in runs("steps", "i", "")] == ([] if name == "i" else ["", "b"])
    assert runs.step(entry, "c") > 0
    assert runs("signal", "i", "go", "ada", "v") == 2
    assert runs("complete", "w", 1, 1, 0, 0, entry, 1, "i") == [1]
    repair(runs)
    assert not runs.lua.redis.exists(runs.lua.key("steps"))
