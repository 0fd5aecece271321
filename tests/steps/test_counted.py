"""A run that sleeps is delayed, and a run that waits for a signal is blocked. It is counted, found
and listed so."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._protocol.features.runs import ops as step_ops
from tests.steps.conftest import DAY, Runs
from tests.support.colours import Connect
from tests.support.steps import suspend

LEASED, PARKED = 2, 1  # places in the reply of `counts`


def test_suspended_runs_are_counted(runs: Runs) -> None:
    runs.sleeps("s")
    runs.waits("w")
    runs.begin("l")
    assert runs.counts() == {"delayed": 1, "blocked": 1, "leased": 1}
    assert runs("measure")[:6] == [0, 0, 1, 1, 1, 0]
    assert runs("measure")[11] == 0  # none of them is next


def test_entries_that_were_removed_by_hand_are_counted_once(runs: Runs) -> None:
    for kind in ("sleep", "wait"):
        runs.lua.redis.xdel(runs.lua.key("jobs"), runs.suspended(kind, kind))
    numbers = runs("counts")
    assert all(number >= 0 for number in numbers)
    assert sum(numbers[:6]) == 0


def test_suspended_runs_take_no_room(runs: Runs) -> None:
    runs.sleeps("s")
    runs.waits("w")
    add = [1, 0, 0, "", "", "", 2, "data", "x"]
    assert runs("enqueue_if", *add)[3] == 1
    assert runs("enqueue_if", *add)[3] == 5  # refused: one waits


@pytest.mark.parametrize(("kind", "state"), [("sleep", "delayed"), ("wait", "blocked")])
@pytest.mark.parametrize("id", ["i", ""])
def test_a_suspended_run_is_found(runs: Runs, kind: str, state: str, id: str) -> None:
    entry = runs.begin(id)
    name = id or entry
    runs.step(entry, "charge", "cpaid", name)
    assert runs("progress", "w", entry, 1, name, "", "0.5", "half") == 1
    now = runs.suspend(entry, "later", kind, f"+{DAY}", name)[1] - DAY
    _, row, cursor, records, progress, deliveries = runs("find", name, "")
    assert (row[0], row[2], row[5], cursor) == (entry, state, "", "")
    assert now + DAY - 5000 <= row[6] <= now + DAY
    assert [(one[0], one[1], one[5]) for one in records] == [
        ("charge", "step", "cpaid"),
        ("later", kind, None),
    ]
    assert progress.split(" ", 1)[1] == "0.5 half"
    (ran, delivered) = deliveries.split("\x1e")
    assert (ran, delivered.split("\x1f")[0::3]) == ("5", ["1", "w"])


def test_a_run_without_an_end_is_found(runs: Runs) -> None:
    runs.waits("w")
    assert runs("find", "w", "")[1][6] == 0


def test_records_of_another_job_are_not_found(runs: Runs) -> None:
    """A worker without records has completed a job whose id is taken again."""
    entry = runs.begin("i")
    runs("step", "w", entry, 1, 1, "", 0, "i", "1000", 0, "old", "step", 1, 1, 0)
    assert len(runs("find", "i", "")) == 3
    runs("enqueue", "full", "j", f"+{DAY}", 4, "data", "x", "id", "j")
    assert len(runs("find", "j", "")) == 3


def test_a_dead_letter_is_found_with_its_records(runs: Runs) -> None:
    runs.dies("i", "ab")
    answer = runs("find", "i", "")
    assert answer[1][2] == "dead"
    assert [one[0] for one in answer[3]] == ["a", "b"]
    runs.dies("j", "")
    assert len(runs("find", "j", "")) == 3


def listed(runs: Runs, state: str, limit: int = 2) -> list[tuple[str, int]]:
    """Return the jobs of a listing with their due times."""
    rows: list[tuple[str, int]] = []
    cursor, pages = "", 0
    while cursor or not pages:
        cursor, _, page = runs("list", state, cursor, limit)
        assert len(page) <= limit
        assert {row[2] for row in page} <= {state}
        rows += [(row[1][row[1].index("id") + 1], row[6]) for row in page]
        pages += 1
    return rows


def test_suspended_runs_are_listed(runs: Runs) -> None:
    for i in range(5):
        runs.sleeps(f"s{i}", f"@{2_000_000_000_000 + i}")
        runs.waits(f"w{i}", f"@{2_000_000_000_000 + i}" if i else "")
    runs("enqueue", "full", "late", f"+{DAY}", 4, "data", "x", "id", "late")
    assert [name for name, _ in listed(runs, "delayed")] == ["late", *(f"s{i}" for i in range(5))]
    assert [due for _, due in listed(runs, "delayed")][1:] == [
        2_000_000_000_000 + i for i in range(5)
    ]
    assert listed(runs, "blocked") == [
        ("w0", 0),
        *((f"w{i}", 2_000_000_000_000 + i) for i in range(1, 5)),
    ]
    for state in ("waiting", "running"):
        cursor, _, rows = runs("list", state, "", 100)
        assert (cursor, rows) == ("", [])


def test_leased_jobs_are_listed_behind_many_suspended_runs(runs: Runs) -> None:
    for i in range(5):
        runs.suspended(["sleep", "wait"][i % 2], f"s{i}")
    runs.begin("l")
    cursor, _, rows = runs("list", "running", "", 2)
    assert [row[1][3] for row in rows] == ["l"]
    assert runs("list", "running", cursor, 2)[2] == [] if cursor else True


def test_a_suspended_run_has_no_place_in_line(runs: Runs) -> None:
    runs.sleeps("s")
    runs.waits("w")
    runs("enqueue", "full", "a", "", 4, "data", "x", "id", "a")
    assert runs("position", "s", 100, "")[0] == runs("position", "w", 100, "")[0] == -1
    assert runs("position", "a", 100, "") == [0, ""]


def test_the_steps_of_a_job(connect: Connect) -> None:
    queue: Any = connect("q")
    queue.enqueue(b"x", id="i")
    assert queue.find("i").steps == ()
    assert queue.signal("i", "early", {"n": 1}) == "kept"
    ops, claim = queue.ops, queue._run(queue.ops.lease("w", 1, ttl=60.0)).claims[0]
    for name, value in (("a", b"b\xff"), ("b", b'j["it"]'), ("c", None), ("d", b"j{")):
        queue._run(step_ops.record(ops, claim, 0, name, value, ended=True, took=0.5, ttl=0.0))
    queue._run(
        step_ops.record(ops, claim, 0, "e", None, kind="once", ended=False, took=0.0, ttl=0.0)
    )
    queue._run(step_ops.progress(ops, claim, 0.25, "a quarter of it"))
    suspend(queue, claim, "nap", "sleep", f"+{DAY}")
    found = queue.find("i")
    assert (found.state, found.entry, found.worker) == ("delayed", None, None)
    assert [(one.name, one.state, one.result) for one in found.steps] == [
        ("early", "kept", {"n": 1}), ("a", "done", b"\xff"), ("b", "done", ["it"]), ("c", "done", None),
        ("d", "done", None), ("e", "begun", None), ("nap", "sleeping", None),
    ]  # fmt: skip
    assert found.due == found.steps[-1].due
    assert (found.progress.fraction, found.progress.text) == (0.25, "a quarter of it")
    assert [one.job.id for one in queue.admin.delayed()] == ["i"]
    assert [one.steps for one in queue.admin.delayed()] == [()]


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_run_that_waits_is_blocked(connect: Connect, timeout: float | None) -> None:
    queue: Any = connect("q")
    queue.enqueue(b"x", id="i")
    claim = queue._run(queue.ops.lease("w", 1, ttl=60.0)).claims[0]
    moment = "" if timeout is None else f"+{timeout * 1000:.0f}"
    suspend(queue, claim, "go", "wait", moment)
    (listed,) = queue.admin.blocked()
    found = queue.find("i")
    assert found.state == listed.state == "blocked"
    assert found.due == listed.due == found.steps[0].due
    assert (found.due is None) == (timeout is None)
    assert found.steps[0].state == "waiting"
