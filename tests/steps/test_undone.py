"""The records of a run that is undone, in the scripts that end its job and begin it again."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import RunLost
from tests.steps.conftest import Runs
from tests.support.colours import Connect


def booked(runs: Runs) -> str:
    """Make a run with two steps that can be undone, and one between them."""
    entry = runs.begin()
    for name, kind in (("flight", "undoable"), ("note", "step"), ("hotel", "undoable")):
        assert runs.step(entry, name, kind=kind) > 0
    return entry


def rows(runs: Runs, id: str = "i") -> list[list[Any]]:
    return [row[:2] for row in runs("steps", id, "")]


def reasons(runs: Runs) -> list[str]:
    return [fields["reason"] for _, fields in runs.lua.redis.xrange(runs.lua.key("dead"))]


def die(runs: Runs, entry: str) -> None:
    assert runs("dead_letter", "w", 1000, entry, runs.count(entry), "why") == [1]


def test_what_is_not_undone_is_named(runs: Runs) -> None:
    """The last step stands first, as it is to be undone first."""
    die(runs, booked(runs))
    assert reasons(runs) == ["why; not undone: hotel, flight"]


def test_what_a_retry_without_attempts_left_has_not_undone(runs: Runs) -> None:
    entry = booked(runs)
    assert runs("retry", "w", 1, 1000, entry, 1, "", "1", "why") == [2]
    assert reasons(runs) == ["why; not undone: hotel, flight"]


def test_workers_that_died_have_not_undone(runs: Runs) -> None:
    """No handler could undo the run. Redriven, it goes on."""
    entry = booked(runs)
    runs.lua.redis.xclaim(runs.lua.key("jobs"), "workers", "w", 0, [entry], retrycount=9)
    assert runs("release", "w", 0, entry, runs.count(entry)) == [1]
    assert runs.leases_nothing()
    (reason,) = reasons(runs)
    assert reason.startswith("no attempts left: ")
    assert reason.endswith("; not undone: hotel, flight")
    assert runs("redrive", "-", 10, "", "") == [1, ""]
    assert entry != runs.lease()
    assert rows(runs) == [["flight", "undoable"], ["note", "step"], ["hotel", "undoable"]]


def undo(runs: Runs, entry: str, *names: str) -> None:
    for name in names:
        number = runs.names().index(name) + 1
        assert runs.step(entry, name, kind="undone", number=number) == number


def test_a_run_that_is_undone_half_way_goes_on(runs: Runs) -> None:
    entry = booked(runs)
    assert runs.step(entry, "", kind="dying") == 4
    undo(runs, entry, "hotel")
    die(runs, entry)
    assert reasons(runs) == ["why; not undone: flight"]
    before = rows(runs, runs.letter())
    assert runs("redrive", "-", 10, "", "") == [1, ""]
    assert rows(runs) == before
    assert before[2:] == [["hotel", "undone"], ["", "dying"]]


def test_a_run_that_is_undone_begins_again(runs: Runs) -> None:
    """A redrive forgets what was undone, and that it was."""
    entry = booked(runs)
    assert runs.step(entry, "", kind="dying") == 4
    undo(runs, entry, "hotel", "flight")
    assert runs("signal", "i", "go", "ada", "v") == 2
    die(runs, entry)
    assert reasons(runs) == ["why"]
    assert runs("redrive", "-", 10, "", "") == [1, ""]
    assert rows(runs) == [["note", "step"], ["go", "signal"]]
    again = runs.lease()
    assert runs.step(again, "flight", kind="undoable") == 3


@pytest.mark.parametrize(
    ("step", "left"), [("flight", ""), ("note", ""), ("hotel", "note"), ("mail", "note")]
)
def test_a_run_begins_again_with_a_step(runs: Runs, step: str, left: str) -> None:
    """The undone steps before it are taken again, too."""
    entry = booked(runs)
    assert runs.step(entry, "mail") == 4
    assert runs.step(entry, "", kind="dying") == 5
    undo(runs, entry, "hotel")
    die(runs, entry)
    assert runs("redrive", "-", 10, step, "", "i") == [1, ""]
    kept = {"flight": "undoable"} if step != "flight" else {}
    kept |= {left: "step"} if left else {}
    assert rows(runs) == [[*one] for one in kept.items()]


def test_a_run_that_was_undone_and_went_on(runs: Runs) -> None:
    """It begins with a step behind `job.undo()`, so the undone steps stay."""
    entry = booked(runs)
    assert runs.step(entry, "", kind="undoing") == 4
    undo(runs, entry, "hotel", "flight")
    assert runs.step(entry, "mail") == 5
    die(runs, entry)
    assert reasons(runs) == ["why"]
    assert runs("redrive", "-", 10, "mail", "", "i") == [1, ""]
    assert rows(runs) == [
        ["flight", "undone"], ["note", "step"], ["hotel", "undone"], ["", "undoing"],
    ]  # fmt: skip
    runs.lease()


@pytest.mark.slow
def test_a_full_run_has_room_for_its_undoing(runs: Runs) -> None:
    entry = booked(runs)
    for number in range(997):
        assert runs.step(entry, f"s{number}") > 0
    assert runs.step(entry, "more") == -1
    assert runs.step(entry, "", "c" * 65_000, kind="dying") == 1001
    undo(runs, entry, "hotel", "flight")
    assert runs("complete", "", 1, 1, 0, 0, entry, "i") == [1]
    assert not runs.lua.redis.exists(runs.lua.key("steps"))


def test_a_lease_by_hand(connect: Connect) -> None:
    """`job.undo()` undoes its steps. Its end does not."""
    queue: Any = connect("q")
    undone: list[str] = []
    queue.enqueue(b"x", id="i")
    lease = queue.lease()
    job = lease.job
    for name in ("flight", "hotel"):
        value = job.step(name, str, name, undo=undone.append)
        assert run(queue, value) == name
    run(queue, job.undo())
    assert undone == ["hotel", "flight"]
    assert [one.state for one in queue.find("i").steps] == ["undone", "undone", "undone"]
    run(queue, job.step("bus", str, "bus", undo=undone.append))
    lease.dead_letter("why")
    assert queue.find("i").reason == "why; not undone: bus"
    with pytest.raises(RunLost):
        run(queue, job.step("late", str, "late"))


def run(queue: Any, value: Any) -> Any:
    """Await a step of the colour of *queue*."""
    runner = getattr(queue, "_runner", None)
    return value if runner is None else runner.get_loop().run_until_complete(value)
