"""A job that leaves for good takes its records along. A job that dies keeps them."""

from __future__ import annotations

import pytest

from tests.scripts.conftest import TERM
from tests.steps.conftest import DAY, Runs

KINDS = pytest.mark.parametrize("kind", ["sleep", "wait"])


@KINDS
@pytest.mark.parametrize("id", ["i", ""])
def test_a_suspended_run_is_cancelled(runs: Runs, kind: str, id: str) -> None:
    entry = runs.suspended(kind, id)
    assert runs("cancel", id or entry, TERM) == 1
    assert runs.counts() == {}
    assert runs.left() == []
    assert runs("cancel", id or entry, TERM) == 0


@pytest.mark.parametrize("state", ["leased", "parked", "delayed", "waiting"])
def test_a_run_in_any_state_is_cancelled(runs: Runs, state: str) -> None:
    if state == "waiting":
        runs.dies("i", "a")
        assert runs("redrive", "-", 10, "", "")[0] == 1
    else:
        entry = runs.begin("i")
        runs.step(entry, "a")
        if state == "parked":
            assert runs("release", "w", 0, entry, 1) == [1]
        if state == "delayed":
            assert runs("retry", "w", 3, 1000, entry, 1, f"+{DAY}", "1", "why") == [1]
    assert runs.counts() == {state: 1}
    assert runs.names() == ["a"]
    assert runs("cancel", "i", TERM) == 1
    assert not runs.lua.redis.exists(runs.lua.key("steps"))


@KINDS
def test_jobs_of_a_payload_are_cancelled(runs: Runs, kind: str) -> None:
    runs.suspended(kind)
    entry = runs.begin("d")
    runs.step(entry, "a", id="d")
    assert runs("retry", "w", 3, 1000, entry, 1, f"+{DAY}", "1", "why") == [1]
    assert runs("cancel_payload", "x", "jobs", "-", 100, TERM)[0] == 1
    assert runs("cancel_payload", "x", "delayed", "0", 100, TERM)[0] == 1
    assert runs.counts() == {}
    assert runs.left() == []


def test_a_second_job_of_an_id_takes_no_records_along(runs: Runs) -> None:
    """A foreign producer added the second job."""
    runs.sleeps("i")
    runs.lua.redis.xadd(runs.lua.key("jobs"), {"data": "y", "id": "i"})
    assert runs("cancel_payload", "y", "jobs", "-", 100, TERM)[0] == 1
    assert runs.names() == ["charge", "nap"]


def test_a_purge_removes_runs_that_sleep(runs: Runs) -> None:
    runs.sleeps("s")
    runs.waits("w")
    runs.sleeps("")
    entry = runs.begin("d")
    runs.step(entry, "a", id="d")
    assert runs("retry", "w", 3, 1000, entry, 1, f"+{DAY}", "1", "why") == [1]
    cursor, gone = "-", 0
    while cursor:
        some, cursor = runs("purge", cursor, 1)
        gone += some
    assert gone == 3
    assert runs.counts() == {"blocked": 1}
    assert runs.names("w") == ["charge", "go"]
    assert {name.partition("\t")[0] for name in runs.lua.redis.hkeys(runs.lua.key("steps"))} == {
        "w"
    }
    assert runs.lua.redis.zcard(runs.lua.key("asleep")) == 1


def test_a_deleted_queue_keeps_nothing(runs: Runs) -> None:
    runs.sleeps("s")
    runs.waits("w")
    assert runs("delete") == [2, 0]
    assert runs.counts() == {}
    assert runs.left() == []


def test_dead_letters_keep_their_records_until_they_are_purged(runs: Runs) -> None:
    runs.dies("i", "ab")
    runs.dies("j", "c")
    one, two = runs.letter("i"), runs.letter("j")
    assert (runs.names(one), runs.names(two)) == (["a", "b"], ["c"])
    assert runs("purge_dead", "-", 100, "i")[0] == 1
    assert (runs.names(one), runs.names(two)) == ([], ["c"])
    assert runs("purge_dead", "-", 100)[0] == 1
    assert runs.left() == []


def test_an_older_letter_takes_no_records_along(runs: Runs) -> None:
    """The job of the id has died twice. Each letter has its own records."""
    runs.dies("i", "ab")
    runs.dies("i", "a")
    assert runs("purge_dead", "-", 1)[0] == 1
    assert runs.names(runs.letter()) == ["a"]


def test_a_new_job_of_its_id_leaves_a_letter_its_records(runs: Runs) -> None:
    runs.dies("i", "ab")
    letter = runs.letter()
    entry = runs.begin("i")
    runs.step(entry, "c")
    assert runs("complete", "", 1, 1, 0, 0, entry, "i") == [1]
    assert runs.names(letter) == ["a", "b"]
    assert runs("redrive", "-", 100, "", "")[0] == 1
    assert (runs.names(), runs.names(letter)) == (["a", "b"], [])


def test_a_letter_that_is_not_kept_has_no_records(runs: Runs) -> None:
    entry = runs.begin("i")
    runs.step(entry, "a")
    assert runs("dead_letter", "w", 0, entry, 1, "why") == [1]
    assert runs.counts() == {}
    assert not runs.lua.redis.exists(runs.lua.key("steps"))


@KINDS
def test_a_shard_that_has_left_is_wiped(runs: Runs, kind: str) -> None:
    entry = runs.suspended(kind)
    runs("seal", 2)
    assert runs("drained")[:2] == [-1, 1]
    assert runs("wipe") == 0
    runs.lua.redis.xdel(runs.lua.key("jobs"), entry)
    runs.lua.redis.delete(runs.lua.key("workers"))
    assert runs("wipe") == 1
    assert runs.left() == []


def test_a_letter_has_no_records_of_an_earlier_job(runs: Runs) -> None:
    """A worker without records completed the earlier job."""
    entry = runs.begin("i")
    assert runs("step", "w", entry, 1, 1, "", 0, "i", "1000", 0, "old", "step", 1, 1, 0) == 1
    assert runs("dead_letter", "w", 1000, entry, 1, "why") == [1]
    assert len(runs("find", "i", "")) == 3
