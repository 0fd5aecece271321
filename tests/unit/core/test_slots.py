"""Slots that consumers of several shards share. Each gets its fair part and its turn. An
unreachable shard keeps none.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from attrs import define, field

from headrace._core.worker.slots import (
    ASK_EACH_S,
    ASKS_S,
    CALLS_A_TURN,
    ROUND_S,
    STILL_S,
    TURNS_AT_ONCE,
    WORTH_A_CALL,
    SharedSlots,
)
from headrace._core.worker.state import ActiveJobs, Leasing
from tests.support.facts import each


@define
class Options:
    """The attributes of a handler that slots read."""

    batch: bool = False
    max_size: int = 1


@define(eq=False)
class One:
    """The attributes of a consumer that slots read."""

    handler: Options = field(factory=Options)
    a_second: int = 0
    leasing: Leasing = field(factory=Leasing)
    jobs: ActiveJobs = field(factory=ActiveJobs)
    left: int = 1000
    leases: bool = True

    def may_lease(self) -> bool:
        """Tell whether it may send lease calls."""
        return self.leases

    def ahead(self) -> int:
        """Return how many jobs may be leased before slots are free."""
        return min(1000, self.starts_within(0.05))

    def starts_within(self, seconds: float) -> int:
        return int(self.a_second * seconds)

    def free(self) -> int:
        return self.left


@pytest.fixture
def members() -> list[Any]:
    return [One(), One(), One()]


def test_free_slots_are_divided(members: list[Any]) -> None:
    slots = SharedSlots(members)
    assert slots.share(members[0], 900) == 300
    members[2].leasing.available = False
    assert slots.share(members[0], 900) == 450
    assert slots.share(members[0], 150) == 75  # rather than many small calls
    members[2].leasing.available = True
    assert slots.share(members[0], 240) == 120
    assert slots.share(members[0], 1) == 1


def test_few_are_not_worth_a_call_while_all_slots_have_work(members: list[Any]) -> None:
    """A call leases at least as many jobs as fit ahead of the slots. While more are awaited, no
    slot is idle."""
    for one in members:
        one.a_second = 300
    slots = SharedSlots(members)
    assert slots.share(members[0], 6) == 0
    assert slots.share(members[1], 13) == 0  # seven are kept for the first
    assert slots.share(members[0], 13) == 10  # as they start soon
    assert slots.share(members[1], 13) == 10
    assert slots.next() is None


def test_a_call_leases_as_many_as_are_worth_it_where_they_start_soon(members: list[Any]) -> None:
    """Turns are short where jobs are quick. Each shard gets one within a tenth of a second."""
    for one in members:
        one.a_second = 100_000
    slots = SharedSlots(members)
    assert slots.share(members[0], 300) == WORTH_A_CALL  # else it would be half of them
    assert slots.share(members[0], 249) == 0
    many: list[Any] = [One(a_second=6_000) for _ in range(100)]
    # half of what there is, rather than all that start soon
    assert SharedSlots(many).share(many[0], 31) == 15
    assert SharedSlots(many).share(many[0], 5) == 0
    assert SharedSlots(many).share(many[0], 6) == 6


def test_the_next_is_woken_for_slots(members: list[Any]) -> None:
    for one in members:
        one.a_second = 100_000
    slots = SharedSlots(members)
    assert slots.share(members[1], 10) == 0
    members[1].left = 249
    assert slots.next() is None
    members[1].left = 250
    assert slots.next() is members[1]


def test_batches_are_full(members: list[Any]) -> None:
    """A shard leases a full batch. Half a batch is the least, because every slot then has work."""
    for one in members:
        one.handler = Options(batch=True, max_size=1000)
    slots = SharedSlots(members)
    assert slots.share(members[0], 2000) == 1000
    assert slots.share(members[1], 700) == 700
    assert slots.share(members[2], 499) == 0
    assert slots.share(members[0], 999) == 0
    assert slots.share(members[2], 600) == 600


def test_a_batch_that_has_begun_is_filled_first(members: list[Any]) -> None:
    """Slots are reserved for the started batch, which goes before the consumers that wait."""
    a, b, c = members
    for one in members:
        one.handler = Options(batch=True, max_size=1000)
    slots = SharedSlots(members, now=100.0)
    a.leasing.asking, a.leasing.asked_at = 400, 100.0
    assert slots.share(b, 600) == 0
    a.leasing.asking, a.jobs.gathered = 0, [None] * 400
    assert slots.share(a, 600) == 600
    assert slots.share(b, 1600) == 1000  # in its turn
    assert slots.share(c, 1099) == 0
    a.leasing.available = False  # there are no more for it
    assert slots.share(c, 600) == 600


def test_no_slots_are_kept_for_a_batch_from_a_node_out_of_reach(members: list[Any]) -> None:
    a, b, _ = members
    for one in members:
        one.handler = Options(batch=True, max_size=1000)
    slots = SharedSlots(members, now=100.0)
    a.leasing.asking, a.leasing.asked_at, a.jobs.gathered = 600, 100.0 - ASKS_S, [None] * 400
    assert slots.share(b, 500) == 500


def test_they_take_turns(members: list[Any]) -> None:
    """A consumer that got none is the next, and one slot is kept for each in front of it."""
    slots = SharedSlots(members)
    a, b, c = members
    assert [slots.share(one, 0) for one in (b, c)] == [0, 0]
    assert slots.next() is b
    assert slots.share(a, 2) == 0
    assert slots.share(c, 1) == 0
    assert slots.share(b, 1) == 1
    assert slots.next() is c
    assert slots.share(c, 1) == 1
    assert slots.next() is a
    slots.leave(a)
    assert slots.next() is None


def test_none_is_kept_for_a_node_out_of_reach(members: list[Any]) -> None:
    slots = SharedSlots(members, now=100.0)
    a, b, _ = members
    slots.share(b, 0)
    b.leasing.sending, b.leasing.asking, b.leasing.asked_at = 1, 5, 100.0 - ASKS_S / 2
    a.jobs.held["1-0"] = None
    assert slots.used() == 6
    b.leasing.asked_at = 100.0 - ASKS_S
    assert slots.used() == 1
    assert slots.next() is None
    assert slots.share(a, 1) == 1


def test_an_end_frees_those_that_were_saturated(members: list[Any]) -> None:
    slots = SharedSlots(members)
    members[1].leasing.saturated = slots.saturated = True
    slots.moved()
    assert not members[1].leasing.saturated
    assert not slots.saturated


@pytest.fixture
def crowd() -> list[Any]:
    """Return shards of quick jobs, each with a backlog."""
    return [
        One(a_second=1_000_000, leasing=Leasing(backlog=True, asked_at=100.0)) for _ in range(6)
    ]


def test_few_shards_with_a_backlog_lease_at_a_time(crowd: list[Any]) -> None:
    """Memory does not grow with the number of shards. A turn lasts as long as its calls."""
    slots = SharedSlots(crowd, now=100.0)
    assert [slots.share(one, 2000) for one in crowd] == [333] * TURNS_AT_ONCE + [0] * (
        6 - TURNS_AT_ONCE
    )
    assert slots.next() is None
    a, b, c, *_ = crowd
    for one in (a, b):
        one.leasing.asking = 250
    for _ in range(CALLS_A_TURN - 1):
        assert slots.share(a, 2000) > 0
    assert slots.next() is None  # the last call of its turn is not answered
    a.leasing.asking = 0
    assert slots.next() is c
    assert slots.share(a, 2000) == 0
    assert slots.share(c, 2000) > 0


def test_a_turn_ends_with_the_backlog(crowd: list[Any]) -> None:
    slots = SharedSlots(crowd, now=100.0)
    a, b, c, *_ = crowd
    assert [slots.share(one, 2000) > 0 for one in (a, b, c)] == [True, True, False]
    b.leasing.available = False
    assert slots.next() is c
    slots.leave(a)
    assert slots.share(c, 2000) > 0
    assert slots.share(crowd[3], 2000) > 0
    assert slots.share(crowd[4], 2000) == 0


def test_a_turn_is_another_s_where_its_node_or_its_jobs_take_long(crowd: list[Any]) -> None:
    slots = SharedSlots(crowd, now=100.0)
    a, b, c, *_ = crowd
    assert [slots.share(one, 2000) > 0 for one in (a, b, c)] == [True, True, False]
    a.leasing.asking = b.leasing.asking = 250
    assert slots.recheck_after(a, 100.0 + STILL_S / 2) == STILL_S
    assert slots.recheck_after(c, 100.0 + STILL_S / 2) == ROUND_S
    b.jobs.slot_moved_at = 100.0 + STILL_S / 2
    slots.now = 100.0 + 1.25 * STILL_S
    assert slots.next() is c
    assert slots.share(c, 1750) > 0
    assert slots.share(crowd[3], 1500) == 0
    b.jobs.slot_moved_at = 0.0
    assert slots.share(crowd[3], 1500) > 0


def test_what_waits_for_a_turn_holds_up_no_shard_without_a_backlog(crowd: list[Any]) -> None:
    slots = SharedSlots(crowd, now=100.0)
    assert [slots.share(one, 2000) > 0 for one in crowd] == [True, True, False, False, False, False]
    crowd[5].leasing.backlog = False
    assert slots.share(crowd[5], WORTH_A_CALL) == WORTH_A_CALL
    assert slots.share(crowd[5], WORTH_A_CALL - 1) == 0  # but for a slot it waits, too


def test_turns_are_short_where_jobs_take_long(crowd: list[Any]) -> None:
    for one in crowd:
        one.a_second = 10_000
    slots = SharedSlots(crowd, now=100.0)
    assert slots.share(crowd[0], 2000) > 0
    assert slots.share(crowd[1], 2000) > 0
    assert slots.next() is None
    assert slots.share(crowd[2], 2000) > 0  # both turns are over: they had one call


@each("number", [2, 6, 64])
def test_those_found_empty_are_asked_again_within_a_round_while_no_slot_is_free(
    number: int,
) -> None:
    """In this simulation one shard has a backlog whose jobs take all slots. One of them ends every
    10 ms."""
    members: list[Any] = [One(leasing=Leasing(available=False), left=1) for _ in range(number)]
    hog, given = members[0], 0
    hog.leasing.available = hog.leasing.backlog = True
    slots, asked = SharedSlots(members), {id(one): list[float]() for one in members}
    for turn in range(1_000):
        slots.now = turn / 100
        while True:
            one = slots.next() or hog
            assert slots.share(one, 1) == 1
            one.leasing.asked_at = slots.now
            asked[id(one)].append(slots.now)
            if one is hog:
                break
            one.leasing.available = False  # nothing is there
        given += 1
        assert slots.share(hog, 0) == 0
    longest = max(ROUND_S, number * ASK_EACH_S) + 0.03
    for times in (asked[id(one)] for one in members[1:]):
        assert max(after - before for before, after in pairwise([0.0, *times, 10.0])) <= longest
        assert len(times) <= 10 / longest * 1.3
    assert given == 1_000


def test_what_may_not_lease_or_is_under_way_is_not_asked(members: list[Any]) -> None:
    a, b, c = members
    b.leasing.available = c.leasing.available = b.leases = False
    c.leasing.sending = 1
    slots = SharedSlots(members, now=100.0)
    assert slots.share(a, 1) == 1
    assert slots.next() is None
    c.leasing.sending = 0
    assert slots.share(a, 0) == 0
    slots.leave(a)
    assert slots.next() is c
