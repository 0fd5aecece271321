"""A slot ends once with its lease in every way. A line that waits for it wakes a reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.fair.conftest import Slots, lp, place
from tests.fair.mutants import SLOTS
from tests.scripts.conftest import TERM
from tests.support.planted import planted

Way = Callable[[Slots, str], Any]
LONG = 10 * TERM


def old(slots: Slots, entry: str) -> None:
    """Make a lease older than any may be."""
    client, key = slots.lua.redis, slots.lua.key("jobs")
    owner = slots.lua.holders()[entry][0]
    client.xclaim(key, "workers", owner, 0, [entry], idle=LONG, justid=True)


def expires(slots: Slots, entry: str) -> Any:
    """Sweep the queue like a worker whose lease has not expired."""
    old(slots, entry)
    slots("beat", "sweeper", LONG, TERM, 1)
    slots.lua.redis.hdel(slots.lua.key("stats"), "sweep")
    return slots("reclaim", "sweeper", 10_000, TERM, 500, 0)


def expires_unlike(slots: Slots, entry: str) -> Any:
    """Another worker has longer leases, so the sweep reads pages of the pending list."""
    slots.lua.redis.hset(slots.lua.key("registered"), "other", f"1700000000000 {2 * TERM}")
    return expires(slots, entry)


def expires_alike(slots: Slots, entry: str) -> Any:
    """All workers have leases of one length and a heartbeat, so XAUTOCLAIM takes the entry."""
    slots("beat", "w", LONG, TERM, 1)
    slots.lua.redis.hset(slots.lua.key("registered"), "w", f"1700000000000 {TERM}")
    return expires(slots, entry)


def expires_beside_lines(slots: Slots, entry: str) -> Any:
    """The sweep reads the list of each worker."""
    slots.lua.redis.zadd(slots.lua.key("lines"), {"03:ada m1700000000000a1": 0})
    return expires(slots, entry)


def outlives_its_duration(slots: Slots, entry: str) -> Any:
    """End a lease that has its own duration."""
    slots.lua.redis.zadd(slots.lua.key("leases"), {entry: 1})
    slots("beat", "sweeper", LONG, TERM, 1)
    return slots("reclaim", "sweeper", 10_000, TERM, 500, 0)


def suspends(slots: Slots, entry: str, kind: str = "sleep") -> Any:
    _, number, _ = slots("wait", "w", entry, 1, "ada0", "", "night", kind, f"+{LONG}", 1, "")
    return slots("suspend", "w", entry, 1, 1, "ada0", "", 0, "+5", number)


def moves_on(slots: Slots, entry: str) -> Any:
    """Complete a job with the script of flows. The job may belong to no flow."""
    parts = [
        "jobs", "wake", "ids", "leases", "released", "delayed", "bodies", "blocked", "dead", "stats", "flows", "events",
        "control", "limited", "asleep", "steps", "held", "slots", "settled", "stopped",
        "cancels", "ends", "ended",
    ]  # fmt: skip
    extra = [*map(slots.lua.key, parts), slots.lua.key("flow:ada0")]
    return slots(
        "flow_advance",
        "w",
        1000,
        1000,
        1,
        "q",
        "",
        "move",
        "ada0",
        "q",
        entry,
        1,
        0,
        "",
        "",
        "",
        0,
        extra=extra,
    )


ONE: dict[str, Way] = {
    "completed": lambda slots, entry: slots("complete", "", 1, 0, 0, 0, entry),
    "completed by its holder": lambda slots, entry: slots(
        "complete", "w", 1, 1, 0, 0, entry, 1, "ada0"
    ),
    "completed with an id": lambda slots, entry: slots("complete", "", 1, 1, 0, 0, entry, "ada0"),
    "moved on by a flow": moves_on,
    "dead": lambda slots, entry: slots("dead_letter", "w", 1000, entry, 1, "why"),
    "retried at once": lambda slots, entry: slots("retry", "w", 0, 1000, entry, 1, "", 1, "why"),
    "retried later": lambda slots, entry: slots(
        "retry", "w", 0, 1000, entry, 1, "+60000", 1, "why"
    ),
    "retried for the last time": lambda slots, entry: slots(
        "retry", "w", 1, 1000, entry, 1, "", 1, "why"
    ),
    "released": lambda slots, entry: slots("release", "w", 0, entry, 1),
    "released with a pause": lambda slots, entry: slots("release", "w", 60_000, entry, 1),
    "cancelled": lambda slots, entry: slots("cancel", "ada0", TERM),
    "ended by an operator": lambda slots, entry: slots("expire", "-", 500, "ada0"),
    "expired": expires_unlike,
    "expired, all alike": expires_alike,
    "expired beside lines": expires_beside_lines,
    "expired by its duration": outlives_its_duration,
    "asleep": suspends,
    "waiting for a signal": lambda slots, entry: suspends(slots, entry, "wait"),
    "removed by hand, then mended": lambda slots, entry: (
        slots.lua.redis.xdel(slots.lua.key("jobs"), entry),
        slots("repair", "jobs", "-", 500, TERM),
    ),
}
"""Ways in which the lease of one job ends, of the job `ada0`."""


def dies(slots: Slots) -> Any:
    """Let the worker die, and others sweep for one timeout."""
    client, stats = slots.lua.redis, slots.lua.key("stats")
    slots("beat", "sweeper", LONG, TERM, 1)
    client.zadd(slots.lua.key("workers"), {"w": 1})
    slots("reclaim", "sweeper", 60_000, TERM, 500, 0)
    since, seen, *_, least, run = client.hget(stats, "pulse").split()
    client.hset(stats, "pulse", f"{int(since) - 70_000} {seen} 1 {seen} {least} {run}")
    return slots("reclaim", "sweeper", 60_000, TERM, 500, 0)


ALL: dict[str, Callable[[Slots], Any]] = {
    "the worker leaves": lambda slots: slots("leave", "w", 500, 0),
    "the worker is declared dead": lambda slots: slots("fail_worker", "w", 500),
    "the worker dies": dies,
    "all leases are ended": lambda slots: slots("expire", "-", 500),
    "all are completed": lambda slots: slots("complete", "", 3, 0, 0, 0, *slots.held()),
    "all of a payload are cancelled": lambda slots: [
        slots("cancel_payload", payload, "jobs", "-", 500, TERM) for payload in ("ada", "bob")
    ],
    "the queue is deleted": lambda slots: slots("delete"),
    "the group is lost, and mended": lambda slots: (
        slots.lua.redis.xgroup_destroy(slots.lua.key("jobs"), "workers"),
        slots("repair", "jobs", "-", 500, TERM),
    ),
    "the group is lost, and made again": lambda slots: (
        slots.lua.redis.xgroup_destroy(slots.lua.key("jobs"), "workers"),
        slots("reclaim", "sweeper", 10_000, TERM, 500, 0),
    ),
    "an older worker completes them, and others sweep": lambda slots: (
        slots.lua.redis.xack(slots.lua.key("jobs"), "workers", *slots.held()),
        slots.lua.redis.xdel(slots.lua.key("jobs"), *slots.held()),
        slots("reclaim", "sweeper", 10_000, TERM, 500, 0),
    ),
}
"""Ways in which the leases of three jobs end."""


@pytest.mark.sampled
@pytest.mark.parametrize("way", ONE)
def test_a_slot_ends_with_its_lease(slots: Slots, way: str) -> None:
    ends_one(slots, way)


def ends_one(slots: Slots, way: str) -> None:
    """Check that the job's slot is free and all others are taken. The next lease call is told
    once."""
    first, *others = slots.leased("ada", "bob", "ada")
    slots.law()
    ONE[way](slots, first)
    assert slots.held() == others
    assert (slots.of("ada"), slots.of("bob")) == (1, 1)
    assert len(slots.settled()) == 1
    if way != "expired beside lines":
        slots.law()


@pytest.mark.sampled
@pytest.mark.parametrize("way", ONE)
def test_a_line_that_waits_for_it_wakes_a_reader(slots: Slots, way: str) -> None:
    wakes(slots, way)


def wakes(slots: Slots, way: str) -> None:
    """Check that it wakes a reader when nothing else would."""
    first, *_ = slots.leased("ada", "bob", "ada")
    slots.stop("ada")
    ONE[way](slots, first)
    assert slots.tokens() >= 1


@pytest.mark.parametrize("way", ALL)
def test_all_slots_end_with_the_leases(slots: Slots, way: str) -> None:
    ends_all(slots, way)


def ends_all(slots: Slots, way: str) -> None:
    slots.leased("ada", "bob", "ada")
    ALL[way](slots)
    assert slots.held() == []
    assert not slots.lua.redis.exists(slots.lua.key("slots"))
    slots.law()


def test_a_job_that_has_the_turn_of_its_key_gives_its_slot_back(slots: Slots) -> None:
    ends_ordered(slots)


def ends_ordered(slots: Slots) -> None:
    """Check that a retried job stays at its entry."""
    (first,) = slots.leased("ada", fields=("headrace-key", "k"))
    assert slots("retry", "w", 0, 1000, first, 1, "+60000", 1, "why") == [1]
    assert slots.held() == []
    assert first in slots.lua.holders()


@pytest.mark.parametrize("way", ["completed", "dead", "retried later", "released", "cancelled"])
def test_a_slot_is_given_back_once(slots: Slots, way: str) -> None:
    """The lease has ended, or another worker has it by now. A second end frees no slot."""
    first, *others = slots.leased("ada", "bob", "ada")
    for _ in range(2):
        ONE[way](slots, first)
    assert slots.held() == others
    assert len(slots.settled()) == 1
    assert slots.of("ada") == 1


def test_a_zombie_gives_no_slot_of_another_back(slots: Slots) -> None:
    """Its settlement is refused, and the slot belongs to the other worker's lease."""
    (first,) = slots.leased("ada")
    slots("expire", "-", 500)
    assert slots.lease(1, "v") == [first]
    settlements: Sequence[tuple[Any, ...]] = [
        ("release", "w", 0, first, 1),
        ("retry", "w", 0, 1000, first, 1, "", 1, ""),
        ("dead_letter", "w", 9, first, 1, ""),
        ("complete", "w", 1, 0, 0, 0, first, 1),
        ("renew", "w", "", 0, first, 1),
    ]
    for settle in settlements:
        assert slots(*settle) == [0]
    assert slots.held() == [first]
    slots.law()


def test_a_plain_queue_has_no_slots(slots: Slots) -> None:
    """Its counts say 0, and none of its scripts leaves any of these keys."""
    slots.lua.leased("a", "b")
    assert slots.lua.counts() == {"leased": 2, "enqueued": 2}
    slots("leave", "w", 500, 0)
    assert not slots.lua.redis.exists(*map(slots.lua.key, ("held", "slots", "settled", "stopped")))


@pytest.mark.parametrize(
    "way", ["cancelled", "cancelled with all of its payload", "purged", "moved", "deleted"]
)
def test_a_job_that_leaves_its_line(slots: Slots, way: str) -> None:
    """The last job or the next lease call that finds it removes the place of a cancelled job."""
    slots.add("ada", "ada", "bob")
    slots.terms["limits"] = [["tenant", 1]]
    assert len(slots.lease(1)) == len(slots.lease(1, "v")) == 1
    waiting = list(slots.lined())
    assert len(slots.lines()) == len(waiting) == 1
    assert slots.lua.counts() == {"waiting": 1, "leased": 2, "enqueued": 3, "held": 2}
    if way == "cancelled":
        assert slots("cancel", "ada1", TERM) == 1
    elif way == "cancelled with all of its payload":
        assert slots("cancel_payload", "ada", "jobs", "-", 100, TERM)[0] == 2
        assert slots("cancel_payload", "ada", "delayed", "0", 100, TERM) == [0, "", "0"]
    elif way == "purged":
        assert slots("purge", "-", 100)[0] == 1
    elif way == "moved":
        assert slots("move", "-", 100, "ada1") == [1, ""]
    else:
        slots("delete")
    assert slots.lined() == {}
    slots("reclaim", "sweeper", 10_000, TERM, 500, 0)
    assert slots.lines() == []
    slots.law()
    for entry in slots.held():
        slots("complete", "", 1, 0, 0, 0, entry)
    assert slots.lease(5) == []
    left = {"held", "slots", "lines", "ready", "stopped", "resting", "shares", "settled"}
    assert not slots.lua.redis.exists(*map(slots.lua.key, left))


def test_a_line_whose_reader_died_wakes_another(slots: Slots) -> None:
    finds_a_line(slots)


def finds_a_line(slots: Slots) -> None:
    """Find a line. Its token was delivered, and the reader never came."""
    slots.add("ada", "ada")
    assert len(slots.lease(1)) == 1
    assert slots.tokens() == 1
    slots.lua.redis.xreadgroup("workers", "idle", {slots.lua.key("wake"): ">"})
    slots("reclaim", "sweeper", 10_000, TERM, 500, 0)
    assert slots.tokens() == 1
    assert len(slots.lua.redis.xreadgroup("workers", "idle", {slots.lua.key("wake"): ">"})) == 1


def test_what_is_lost_is_mended(slots: Slots) -> None:
    """A repair gives leases their slots and jobs their lines, and changes nothing else."""
    slots.add("ada", "ada", "bob", "cyd")
    slots.terms["limits"] = [["tenant", 1]]
    slots.lease(2)
    before = (
        slots.lua.redis.hgetall(slots.lua.key("held")),
        slots.lua.redis.zrange(slots.lua.key("slots"), 0, -1),
    )
    assert sorted(slots.lined().values()) == ["parked:new", "parked:new"]
    for part in ("held", "slots", "lines"):
        slots.lua.redis.delete(slots.lua.key(part))
    assert repaired(slots) == {"stranded": 2, "slots": 2}
    assert repaired(slots) == {}
    slots.law()
    assert sorted(before[0]) == slots.held()
    assert slots.lua.redis.zrange(slots.lua.key("slots"), 0, -1) == before[1]
    assert slots.lined() == {}  # the next look puts them into their lines
    assert len(slots.lease(5)) == 1
    assert list(slots.lined().values()) == ["parked:new"]


def test_what_is_left_is_mended(slots: Slots) -> None:
    """Slots and places without a job are removed."""
    slots.leased("ada")
    slots.take("5-1", "bob")
    slots.lua.redis.zadd(slots.lua.key("slots"), {f"{lp('tenant')}{lp('cyd')} a7a7": 0, "what": 0})
    slots.lua.redis.zadd(slots.lua.key("lines"), {f"03:bob {place('5-2')}": 0, "what": 0})
    slots.lua.redis.hset(slots.lua.key("held"), "what", "ever")
    assert repaired(slots) == {"slots": 4, "leftovers": 2}
    assert repaired(slots) == {}
    slots.law()


def repaired(slots: Slots) -> dict[str, int]:
    """Repair the queue and return the counts of repairs."""
    place, cursor, *found = slots("repair", "jobs", "-", 500, TERM)
    assert (place, cursor) == ("", "0")
    names = "groups dangling stranded undated hollow ids_released ids_taken leftovers workers deleted enqueued slots"
    return {name: number for name, number in zip(names.split(), found, strict=True) if number}


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", SLOTS)
def test_planted_bug(slots: Slots, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edits, way = SLOTS[mutant]
    monkeypatch.setattr("tests.scripts.conftest.script", planted(edits))
    check: Any = finds_a_line if way == "a line" else ends_ordered
    if way in {*ONE, *ALL}:
        check = (wakes if mutant == "nobody is woken" else ends_one) if way in ONE else ends_all
    with pytest.raises(AssertionError):
        check(slots, way) if way in {*ONE, *ALL} else check(slots)
