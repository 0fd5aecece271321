"""The ends of children, script by script. Each reaches the record of the parent once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.steps.conftest import DAY, Runs


def start(runs: Runs, entry: str, name: str = "pack", id: str = "i", delay: str = "") -> Any:
    """Start a child in the queue of the parent itself."""
    fields = ["data", "x", "id", f"{id}/{name}"]
    return runs("child", "w", entry, runs.count(entry), id, "", name, 1, delay, 0, *fields)


def park(runs: Runs, entry: str, *numbers: int, every: int = 0, id: str = "i") -> Any:
    count = runs.count(entry)
    return runs("suspend", "w", entry, count, count, id, "", 0, every, "+5", *numbers)


def records(runs: Runs, id: str = "i") -> dict[str, tuple[Any, ...]]:
    """Return the value and the outcome of each child."""
    return {row[0]: (row[5], row[12]) for row in runs("steps", id, "") if row[1] == "child"}


def parent_of(runs: Runs, *names: str, every: int = 0, delay: str = "") -> str:
    """Make a run that waits for these children, and return its entry."""
    entry = runs.begin()
    numbers = [start(runs, entry, name, delay=delay)[1] for name in names]
    assert park(runs, entry, *numbers, every=every)[0] == 1
    return entry


def lease_child(runs: Runs) -> str:
    taken = runs.lua.lease(limit=1)
    rows = [*(row[0] for row in taken[2]), *taken[3][:1]]
    assert len(rows) == 1
    return str(rows[0])


def completed(runs: Runs) -> None:
    entry = lease_child(runs)
    result = [1, DAY, "done"]
    key = runs.lua.key("result:i/pack")
    assert runs("complete", "", 1, 1, 1, 0, entry, "i/pack", *result, extra=[key]) == [1]


def buried(runs: Runs) -> None:
    entry = lease_child(runs)
    assert runs("dead_letter", "w", 1000, entry, runs.count(entry), "no shelf") == [1]


def spent(runs: Runs) -> None:
    entry = lease_child(runs)
    assert runs("retry", "w", 1, 1000, entry, runs.count(entry), "", "1", "unlucky") == [2]


def died_with_its_worker(runs: Runs) -> None:
    entry = lease_child(runs)
    assert runs("expire", "-", 10, "i/pack")[0] == 1
    runs.lua.lease(worker="v", limit=1, most=1)
    assert runs.counts()["dead"] == 1
    assert entry


def cancelled(runs: Runs) -> None:
    assert runs("cancel", "i/pack", DAY) == 1


def cancelled_while_leased(runs: Runs) -> None:
    lease_child(runs)
    cancelled(runs)


def purged(runs: Runs) -> None:
    assert runs("purge", "-", 100)[0] == 1


ENDS: list[tuple[Callable[[Runs], None], Any, str]] = [
    (completed, "done", "completed"),
    (buried, "no shelf", "dead"),
    (spent, "unlucky", "dead"),
    (died_with_its_worker, "no attempts left: its workers died, or let its leases expire", "dead"),
    (cancelled, None, "cancelled"),
    (cancelled_while_leased, None, "cancelled"),
    (purged, None, "deleted"),
]


@pytest.mark.parametrize(("end", "value", "outcome"), ENDS, ids=[one[0].__name__ for one in ENDS])
def test_each_end_reaches_the_record_and_wakes(
    runs: Runs, end: Callable[[Runs], None], value: Any, outcome: str
) -> None:
    entry = parent_of(runs, "pack")
    end(runs)
    assert records(runs) == {"pack": (value, outcome)}
    assert not runs.lua.redis.exists(runs.lua.key("links"))
    assert runs.lease() == entry


def test_a_delayed_child_that_is_purged(runs: Runs) -> None:
    entry = parent_of(runs, "pack", delay=f"+{DAY}")
    assert runs("purge", "-", 100)[0] == 1
    assert records(runs) == {"pack": (None, "deleted")}
    assert runs.lease() == entry


def test_a_parent_wakes_with_the_last_of_every_child(runs: Runs) -> None:
    entry = parent_of(runs, "a", "b", "c", every=1)
    for name in "ab":
        assert runs("cancel", "none", DAY) == 0
        child = lease_child(runs)
        assert runs("complete", "", 1, 1, 0, 0, child, f"i/{name}") == [1]
        assert runs.counts()["blocked"] == 1
    child = lease_child(runs)
    assert runs("complete", "", 1, 1, 0, 0, child, "i/c") == [1]
    assert runs.lease() == entry


def test_a_failure_wakes_before_the_others_end(runs: Runs) -> None:
    entry = parent_of(runs, "a", "b", every=1)
    assert runs("cancel", "i/a", DAY) == 1
    assert entry in {row[0] for row in runs.lua.lease(limit=2)[2]}


def test_an_end_before_the_suspension_is_not_missed(runs: Runs) -> None:
    for every in (0, 1):
        entry = runs.begin(f"e{every}")
        one = start(runs, entry, id=f"e{every}")[1]
        assert runs("cancel", f"e{every}/pack", DAY) == 1
        due = park(runs, entry, one, every=every, id=f"e{every}")[1]
        assert due != -1
        assert runs.lease() == entry
        assert runs("complete", "", 1, 1, 0, 0, entry, f"e{every}") == [1]


def test_a_repeated_start_is_one_child(runs: Runs) -> None:
    entry = runs.begin()
    args = ["w", entry, 1, "i", "", "pack", 1, "", 0, "data", "x", "id", "i/pack"]
    first = runs("child", *args, call=7)
    assert runs("child", *args, call=7) == first == [1, 1, "i/pack"]
    assert runs.counts() == {"leased": 1, "waiting": 1}


def test_a_child_whose_id_is_taken_gets_another(runs: Runs) -> None:
    entry = runs.begin()
    runs("enqueue", "full", "i/pack", "", 4, "data", "x", "id", "i/pack")
    answer = start(runs, entry)
    assert answer[:2] == [1, 1]
    assert answer[2].startswith("i/pack~")


def test_a_child_of_a_lost_lease_is_not_started(runs: Runs) -> None:
    entry = runs.begin()
    assert runs("expire", "-", 10)[0] == 1
    args = ["w", entry, 1, "i", "", "pack", 1, "", 0, "data", "x", "id", "i/pack"]
    assert runs("child", *args) == [0]
    assert "waiting" not in runs.counts()


def test_a_dead_parent_learns_of_its_child_when_it_is_redriven(runs: Runs) -> None:
    """The child ends while its parent is a dead letter, or after the redrive."""
    for number, early in enumerate((True, False)):
        own = f"r{number}"
        entry = runs.begin(own)
        start(runs, entry, id=own)
        assert runs("dead_letter", "w", 1000, entry, runs.count(entry), "why") == [1]
        if early:
            assert runs("cancel", f"{own}/pack", DAY) == 1
        assert runs("redrive", "-", 10, "", "", own)[0] == 1
        if not early:
            assert runs("cancel", f"{own}/pack", DAY) == 1
        assert records(runs, own) == {"pack": (None, "cancelled")}
        assert runs("cancel", own, DAY) == 1


def test_a_parent_that_begins_again_from_a_step_keeps_its_earlier_children(runs: Runs) -> None:
    entry = runs.begin()
    assert runs.step(entry, "charge") == 1
    start(runs, entry, "early")
    runs.pass_ms()
    runs.step(entry, "late")
    assert runs("dead_letter", "w", 1000, entry, runs.count(entry), "why") == [1]
    assert runs("redrive", "-", 10, "late", "", "i")[0] == 1
    assert runs("cancel", "i/early", DAY) == 1
    assert records(runs) == {"early": (None, "cancelled")}


def test_a_cancelled_parent_names_its_open_children(runs: Runs) -> None:
    parent_of(runs, "a", "b")
    assert runs("cancel", "i/a", DAY) == 1
    assert runs("cancel", "i", DAY) == [1, runs.lua.key(""), "i/b"]


def test_a_child_that_an_older_worker_completed_is_found_by_a_sweep(runs: Runs) -> None:
    """Its result is kept, or nothing says how it ended."""
    parent_of(runs, "a", "b")
    for name in "ab":
        child = lease_child(runs)
        runs.lua.redis.xack(runs.lua.key("jobs"), "workers", child)
        runs.lua.redis.xdel(runs.lua.key("jobs"), child)
        runs.lua.redis.hdel(runs.lua.key("ids"), f"i/{name}")
    runs.lua.redis.set(runs.lua.key("result:i/a"), "kept")
    runs("reclaim", "w", 10_000, 60_000, 100, 0)
    assert records(runs) == {
        "a": ("kept", "completed"),
        "b": ("it left its queue, and nothing says how", "unknown"),
    }


def test_a_child_is_not_moved(runs: Runs) -> None:
    """Its parent would wait for it in vain. Other jobs go."""
    parent_of(runs, "pack")
    runs.lua.add("x")
    cursor, moved = "-", 0
    while cursor:
        some, cursor = runs("move", cursor, 100)
        moved += some
    assert moved == 1
    assert runs("move", "1", 100, "i/pack") == [0, ""]
    assert runs("cancel", "i/pack", DAY) == 1
    assert records(runs) == {"pack": (None, "cancelled")}


def test_a_deleted_queue_reports_all_its_children(runs: Runs) -> None:
    """The parent is in this queue, too, and goes with it. A call reports 250 children at most."""
    entry = runs.begin()
    for number in range(300):
        start(runs, entry, f"c{number}")
    assert runs("delete") == [0, 1]
    assert runs("delete")[1] == 0
    assert runs.lua.redis.hlen(runs.lua.key("links")) == 0
