"""A dead letter that is redriven goes on behind its records, or from a step on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.steps.conftest import TERM, Runs
from tests.support.colours import Connect


def test_a_redriven_run_keeps_its_records(runs: Runs) -> None:
    runs.dies("i", "abc")
    assert runs("redrive", "-", 10, "", "") == [1, ""]
    entry = runs.lease()
    assert runs.names() == ["a", "b", "c"]
    assert runs.step(entry, "d") == 4
    row = runs("find", "i", "")[1]
    assert row[3] - row[4] <= 1  # attempts start again


@pytest.mark.parametrize(("name", "left"), [("a", ""), ("b", "a"), ("c", "ab")])
@pytest.mark.parametrize("id", ["i", ""])
def test_a_run_begins_again_with_a_step(runs: Runs, name: str, left: str, id: str) -> None:
    runs.dies(id, "abc")
    job = id or runs("list", "dead", "", 1)[2][0][1][9]
    assert runs("redrive", "-", 10, name, "", job) == [1, ""]
    entry = runs.lease()
    assert runs.names(job) == [*left]
    for more in "xyz":
        assert runs.step(entry, more, id=job) > len(left)
    assert runs.names(job) == [*left, *"xyz"]
    assert len(runs.lua.redis.hkeys(runs.lua.key("steps"))) == 1 + len(left) + 3


def test_the_bytes_of_forgotten_records_are_free(runs: Runs) -> None:
    entry = runs.begin("i")
    runs.step(entry, "a")
    for number in range(15):
        assert runs.step(entry, f"big{number}", "c" * 65_000) > 0
    assert runs("dead_letter", "w", 1000, entry, 1, "why") == [1]
    for _ in range(2):
        assert runs("redrive", "-", 10, "big0", "", "i") == [1, ""]
        entry = runs.lease()
        for number in range(16):
            assert runs.step(entry, f"big{number}", "c" * 65_000) > 0
        assert runs.step(entry, "more", "c" * 65_000) == -2
        assert runs("dead_letter", "w", 1000, entry, runs.count(entry), "why") == [1]


def test_a_wait_that_is_forgotten_is_open_no_more(runs: Runs) -> None:
    entry = runs.begin("i")
    runs.step(entry, "a")
    assert runs.suspend(entry, "go", "wait", "+1")[0] in {1, 3}
    entry = _again(runs, entry)
    assert runs("dead_letter", "w", 1000, entry, runs.count(entry), "why") == [1]
    assert runs("redrive", "-", 10, "go", "", "i") == [1, ""]
    runs.lease()
    assert runs.names() == ["a"]
    assert runs("signal", "i", "go", "ada", "v") == 2  # kept for the wait to come


@pytest.mark.parametrize("slow", [False, True], ids=["in the same ms", "later"])
def test_a_step_before_a_wait_stays_where_the_signal_came_first(runs: Runs, slow: bool) -> None:
    """The wait has the number of its signal, which was first."""
    entry = runs.begin("i")
    assert runs("signal", "i", "go", "ada", "v") == 2
    assert runs("signal", "i", "later", "ada", "v") == 2
    if slow:
        runs.pass_ms()
    runs.step(entry, "charge")
    assert runs.wait(entry, "go", "wait", "") == [2, 1, "v"]
    runs.step(entry, "ship")
    assert runs("dead_letter", "w", 1000, entry, 1, "why") == [1]
    assert runs("redrive", "-", 10, "go", "", "i") == [1, ""]
    entry = runs.lease()
    assert runs.names() == ["later", "charge"]
    assert runs("signal", "i", "later", "ada", "v") == 1
    assert runs("signal", "i", "go", "ada", "w") == 2
    assert runs.wait(entry, "go", "wait", "") == [2, 3, "w"]
    assert runs("dead_letter", "w", 1000, entry, runs.count(entry), "why") == [1]
    assert runs("redrive", "-", 10, "charge", "", "i") == [1, ""]
    assert runs.names() == ["later"]


def test_a_step_that_began_before_another_stays_though_it_ended_later(runs: Runs) -> None:
    entry = runs.begin("i")
    assert runs.wait(entry, "go", "wait", "")[0] == 1
    for _ in range(3):
        runs.pass_ms()
    assert runs.step(entry, "quick") == 2
    assert runs.step(entry, "slow", took=3_600_000) == 3
    assert runs("dead_letter", "w", 1000, entry, 1, "why") == [1]
    assert runs("redrive", "-", 10, "quick", "", "i") == [1, ""]
    assert runs.names() == ["go", "slow"]
    assert runs("signal", "i", "go", "ada", "w") == 2
    # the wait was open, and took it
    assert [row[5] for row in runs("steps", "i", "")] == ["w", "cv"]


def _again(runs: Runs, entry: str) -> str:
    while runs.lua.holders()[entry][0] != "w":
        runs("lease", "w", 1, "", TERM, 70_000, 3, 1000, 0, "")
    return entry


def test_a_step_that_was_not_recorded(runs: Runs) -> None:
    runs.dies("i", "ab")
    runs.dies("j", "")
    before = runs.lua.state()
    assert runs("redrive", "-", 10, "c", "", "i") == [-1, "", "a", "b"]
    assert runs("redrive", "-", 10, "c", "", "j") == [-1, ""]
    assert runs("redrive", "-", 10, "c", "", "nobody") == [0, ""]
    assert runs.lua.state() == before


def test_both_colours(connect: Connect) -> None:
    queue: Any = connect("q")
    queue.enqueue(b"x", id="i")
    lease = queue.lease()
    lease.dead_letter("why")
    with pytest.raises(
        ValueError, match=r"from_step='ship': the run has no such step; it has recorded none"
    ):
        queue.admin.redrive("i", from_step="ship")
    for ids in ([], ["i", "j"]):
        with pytest.raises(ValueError, match="give the id of one job"):
            queue.admin.redrive(*ids, from_step="ship")
    with pytest.raises(TypeError, match="name must be a str"):
        queue.admin.redrive("i", from_step=5)
    assert queue.counts().dead == 1
    assert queue.admin.redrive("nobody", from_step="ship") == 0
    assert queue.admin.redrive("i") == 1
