"""Blocked reads that many queues share, decided without Redis, threads or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from redis import ResponseError
from tenacity import wait_fixed

from headrace import Retry
from headrace._core.effects import BlockAmong, Phase, Receive, Role, Sleep
from headrace._core.notices import Received
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.control import ACTIVE, listen
from headrace._core.worker.fetch import fetch
from headrace._core.worker.heartbeat import beat
from headrace._core.worker.idle import AGAIN_S, ALL_IDLE, LEAST_S, MOST_S, SLACK_S, duration
from headrace._core.worker.lifecycle import ALONE_AT_MOST, Lifecycle
from headrace._core.worker.reclaimer import SWEEPS_AT_ONCE, reclaim
from headrace._core.worker.roles import all_roles
from headrace._core.worker.shared_read import (
    ORPHANS_EVERY_S,
    READ_AT_MOST,
    READ_WELL,
    READS_AT_REST,
    SHORT_S,
    SharedRead,
    groups,
    wait_for_all,
    wait_for_resumed,
    wait_new,
)
from headrace._model.codec import BytesCodec
from headrace._model.settings import HandlerSettings, QueueSettings, WorkerSettings
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops, woken_keys
from headrace._protocol.replies import Grant, Reclaimed
from tests.support.facts import each
from tests.unit.core.test_roles import Hand, grant, make_held, names, sent


def make_consumers(number: int) -> list[Consumer]:
    made: list[Consumer] = []
    for at in range(number):
        settings = QueueSettings()
        handler = HandlerSettings(f"q{at}", print, 2, Retry(), None, settings, BytesCodec())
        consumer = Consumer(Ops(Keys.of(f"g/q{at}"), settings), handler, "w", wait_fixed(7))
        consumer.registration.registered = consumer.registration.declared = True
        consumer.leasing.available = False
        made.append(consumer)
    return made


def queues(effect: Any) -> list[str]:
    """Return the queues that a blocked read waits for."""
    assert isinstance(effect, BlockAmong)
    return sorted({key.split(":")[2].removeprefix("g/") for key in effect.keys})


def jobs(consumer: Consumer) -> str:
    return consumer.ops.keys.key("jobs")


@each(
    ("number", "reads"),
    [
        (READ_WELL, 1),
        (READ_WELL + 1, 2),
        (READS_AT_REST * READ_WELL, READS_AT_REST),
        (READS_AT_REST * READ_AT_MOST, READS_AT_REST),
        (READS_AT_REST * READ_AT_MOST + 1, READS_AT_REST + 1),
    ],
)
def test_more_queues_than_are_well_in_one_read_have_a_few_until_these_are_full(
    number: int, reads: int
) -> None:
    consumers: Any = list(range(number))
    parts = list(SharedRead(consumers).chunks())
    assert [one for part in parts for one in part] == consumers
    assert (len(parts), max(map(len, parts))) == (reads, -(-number // reads))


def test_few_queues_have_a_read_each_and_many_share_some() -> None:
    few, many = make_consumers(ALONE_AT_MOST), make_consumers(READS_AT_REST * READ_WELL)
    assert list(groups(few)) == few
    (shared,) = groups(many)
    assert isinstance(shared, SharedRead)
    parts = list(shared.chunks())
    assert [len(part) for part in parts] == [READ_WELL] * READS_AT_REST
    assert [consumer for part in parts for consumer in part] == many
    assert [name for name, *_ in all_roles(Lifecycle(WorkerSettings(), many), 2)].count(
        "wait"
    ) == 1 + 2 * READS_AT_REST
    assert [name for name, *_ in all_roles(Lifecycle(WorkerSettings(), few), 2)].count(
        "fetch"
    ) == 2 * ALONE_AT_MOST
    roles = [name for name, *_ in all_roles(Lifecycle(WorkerSettings(), many[:READ_WELL]), 2)]
    assert (roles.count("wait"), roles.count("fetch")) == (3, READ_WELL)


def test_what_is_of_several_places_shares_no_read() -> None:
    """Consumers on several primaries of a cluster have separate reads."""
    consumers = make_consumers(30)
    found = list(
        groups(consumers, lambda one: consumers.index(one) % 2 if consumers.index(one) < 20 else 2)
    )
    assert [
        [jobs(one) for one in some.consumers] for some in found if isinstance(some, SharedRead)
    ] == [
        [jobs(one) for one in consumers[0:20:2]],
        [jobs(one) for one in consumers[1:20:2]],
        [jobs(one) for one in consumers[20:]],
    ]


def test_one_read_waits_for_all_that_have_room_and_nothing_to_lease() -> None:
    consumers = make_consumers(4)
    consumers[1].leasing.available, consumers[2].leasing.asking = True, 2
    hand = Hand(wait_for_all(SharedRead(consumers), consumers))
    effect = hand.go()
    assert queues(effect) == ["q0", "q3"]
    assert effect.command[:5] == ("XREADGROUP", "GROUP", "workers", "idle", "COUNT")
    assert names(hand.go([jobs(consumers[3])])) == ["lease"]
    assert consumers[3].leasing.piggybacked
    assert isinstance(hand.go([grant(consumers[3], 1)]), Sleep)
    assert queues(hand.go()) == ["q0", "q3"]
    consumers[0].leasing.available = consumers[3].leasing.available = True
    hand.go([])
    assert hand.go() == Sleep(SHORT_S)
    consumers[0].phase = Phase.DRAINING
    assert hand.go() is None


@each(("number", "most"), [(1000, 0.006), (100, 0.0006)])
def test_reads_that_end_at_once_do_not_take_all_the_time(number: int, most: float) -> None:
    consumers = make_consumers(number)
    shared = SharedRead(consumers)
    hand = Hand(wait_for_all(shared, next(shared.chunks())))
    pauses: list[float] = []
    for _ in range(6):
        assert isinstance(hand.go(), BlockAmong)
        hand.go([jobs(consumers[0])])
        pauses.append(hand.go([Grant([])]).seconds)
    assert pauses[0] < pauses[1] <= pauses[4] == pauses[5] == pytest.approx(most)
    hand.go()
    hand.now += 1.0
    assert hand.go([]).seconds == pytest.approx(pauses[0])  # it was quiet
    hand.go()
    hand.go([jobs(consumers[0])])
    hand.now += 1.0  # the lease call took longer than a pause
    assert isinstance(hand.go([Grant([])]), BlockAmong)


def test_what_has_ended_a_read_is_leased_in_one_round_trip() -> None:
    """The jobs of all queues that a read has found come by one round trip, and start before the
    next read.
    """
    consumers = make_consumers(4)
    hand = Hand(wait_for_all(SharedRead(consumers), consumers))
    hand.go()
    effect = hand.go([jobs(consumers[1]), jobs(consumers[3])])
    assert [op.keys[0] for op in effect.ops] == [jobs(consumers[1]), jobs(consumers[3])]
    assert (consumers[1].leasing.piggybacked, consumers[1].may_idle()) == (2, False)
    first, second = grant(consumers[1], 1), grant(consumers[3], 2)
    assert isinstance(hand.go([first, second]), Sleep)
    assert hand.backlog == [[first.claims[0]], [second.claims[0]]]
    assert hand.owners == [consumers[1], consumers[3]]
    assert not any(one.leasing.piggybacked or one.leasing.available for one in consumers)
    assert queues(hand.go()) == ["q0", "q1", "q2", "q3"]


def test_what_needs_more_than_a_lease_call_is_left_to_fetch() -> None:
    """A queue that rests has a beat first. A full batch, or a call that is under way, is of
    `fetch`, too.
    """
    consumers = make_consumers(4)
    hand = Hand(wait_for_all(SharedRead(consumers), consumers))
    hand.go()
    consumers[0].idle.on = True
    consumers[1].handler = evolve(consumers[1].handler, batch=True)
    consumers[2].leasing.asking = 1
    assert isinstance(hand.go([jobs(one) for one in consumers[:3]]), Sleep)
    for consumer in consumers[:3]:
        leasing = consumer.leasing
        assert (leasing.available, leasing.woken, leasing.piggybacked) == (True, True, 0)
    assert hand.pokes == [False] * 3
    assert queues(hand.go()) == ["q3"]


def test_a_job_that_a_read_finds_beside_a_lease_call_is_leased_by_the_next() -> None:
    """The call may have run before the job came. Its answer does not say that the queue is empty
    now."""
    (consumer,) = make_consumers(1)
    consumer.leasing.available = True
    fetching = Hand(fetch(consumer))
    assert names(fetching.go()) == ["lease"]
    consumer.leasing.woken = True
    assert names(fetching.go([grant(consumer, 1)])) == ["lease"]
    assert isinstance(fetching.go([Grant([])]), Sleep)


def test_an_answer_that_never_comes_leaves_no_lease_call_under_way() -> None:
    consumers = make_consumers(2)
    hand = Hand(wait_for_all(SharedRead(consumers), consumers))
    hand.go()
    hand.go([jobs(consumers[0]), jobs(consumers[1])])
    with pytest.raises(OSError, match="gone"):
        hand.thrown(OSError("gone"))
    assert not any(one.leasing.piggybacked for one in consumers)


def test_one_that_comes_to_wait_meanwhile_has_a_short_read() -> None:
    consumers = make_consumers(3)
    consumers[2].leasing.available = True
    shared = SharedRead(consumers)
    everything, fresh = Hand(wait_for_all(shared, consumers)), Hand(wait_new(shared))
    assert queues(everything.go()) == ["q0", "q1"]
    assert isinstance(fresh.go(), Sleep)
    assert not shared.take_in(consumers[2])  # it has something to lease still
    consumers[2].leasing.available = False
    assert shared.take_in(consumers[2])
    assert not shared.take_in(consumers[0])  # it is in the long read
    effect = fresh.go()
    assert queues(effect) == ["q2"]
    assert effect.command[effect.command.index("BLOCK") + 1] == SHORT_S * 1000
    assert queues(fresh.go([])) == ["q2"]
    everything.go([])
    assert queues(everything.go()) == ["q0", "q1", "q2"]
    assert isinstance(fresh.go([]), Sleep)


def test_what_comes_to_wait_beside_several_long_reads_shares_a_short_one() -> None:
    """Each of the long reads covers its part for as long as it lasts."""
    consumers = make_consumers(4)
    shared = SharedRead(consumers)
    first, second = (Hand(wait_for_all(shared, part)) for part in (consumers[:2], consumers[2:]))
    fresh = Hand(wait_new(shared))
    assert (queues(first.go()), queues(second.go())) == (["q0", "q1"], ["q2", "q3"])
    consumers[1].leasing.available = True
    first.go([])
    assert queues(first.go()) == ["q0"]
    consumers[1].leasing.available = False
    assert [one for one in consumers if shared.take_in(one)] == [consumers[1]]
    assert queues(fresh.go()) == ["q1"]
    first.go([])
    assert queues(first.go()) == ["q0", "q1"]
    assert isinstance(fresh.go([]), Sleep)


def test_the_short_read_takes_no_more_than_a_long_one() -> None:
    consumers = make_consumers(READ_AT_MOST + 3)
    shared = SharedRead(consumers)
    for consumer in consumers:
        shared.take_in(consumer)
    assert [len(shared.fresh()), len(shared.fresh()), len(shared.fresh())] == [READ_AT_MOST, 3, 0]


def test_paused_queues_are_waited_for_apart_and_looked_at_all_the_same() -> None:
    consumers = make_consumers(3)
    consumers[1].leasing.paused = True
    shared = SharedRead(consumers)
    assert queues(Hand(wait_for_all(shared, consumers)).go()) == ["q0", "q2"]
    hand = Hand(wait_for_resumed(shared, consumers))
    effect = hand.go()
    assert effect.command[0] == "XREAD"
    assert queues(effect) == ["q1"]
    hand.go([])
    assert consumers[1].leasing.available


@each(
    ("reply", "found"),
    [
        (None, []),
        ([[b"a", [[b"1-0", [b"data", b"x"]]]], [b"?", []]], ["a"]),
        ([[b"a", []], [b"b", [[b"1-0", None]]]], ["b"]),
        ({b"a": [], b"b": [[b"1-0", None]]}, ["b"]),
        ({b"b": [[[b"1-0", [b"data", b"x"]]]]}, ["b"]),
        (
            ResponseError(
                "NOGROUP No such key 'b' or consumer group 'workers' in XREADGROUP with GROUP option"
            ),
            ["b"],
        ),
        (ResponseError("UNBLOCKED the stream key no longer exists"), ["a", "b"]),
    ],
)
def test_what_a_blocked_read_has_found(reply: Any, found: Sequence[str]) -> None:
    assert woken_keys(reply, ["a", "b"]) == found


def resting(number: int = 1) -> tuple[Lifecycle, list[Consumer]]:
    """Return a worker of so many queues that have no work, and its consumers. It hears the messages
    of other workers.
    """
    consumers = make_consumers(ALONE_AT_MOST + number)
    for consumer in consumers[number:]:
        consumer.registration.registered = False
    for consumer in consumers[:number]:
        consumer.idle.subscribed = True
    return Lifecycle(WorkerSettings(), consumers), consumers[:number]


def calm(worker: Lifecycle, consumer: Consumer) -> tuple[Hand, Hand]:
    """Let the consumer rest. Return its roles that reclaim and lease."""
    keeping, fetching = Hand(reclaim(worker)), Hand(fetch(consumer))
    assert isinstance(fetching.go(), Sleep)
    assert names(keeping.go()) == ["reclaim"]
    keeping.go([Reclaimed(0, 2.5, rests=True)])
    assert keeping.pokes == [False]
    (asked,) = sent(fetching.go())
    assert asked[:2] == ("rest", consumer.name)
    assert int(asked[2]) > 1000 * SLACK_S
    assert isinstance(fetching.go([ALL_IDLE]), Sleep)
    assert consumer.idle.on
    assert consumer.idle.all_idle
    return keeping, fetching


def test_where_nothing_happens_a_worker_rests_and_beats_before_it_leases_again() -> None:
    worker, (consumer,) = resting()
    keeping, fetching = calm(worker, consumer)
    beating = Hand(beat(worker, [consumer]))
    assert isinstance(beating.go(), Sleep)  # no beat
    keeping.now += LEAST_S / 2 - 1
    assert isinstance(keeping.go(), Sleep)  # and no look
    consumer.leasing.available = True
    assert names(fetching.go()) == ["beat", "lease"]
    assert not consumer.idle.on
    assert names(beating.go()) == ["beat"]
    assert isinstance(fetching.go([True, Grant([])]), Sleep)
    assert names(keeping.go()) == ["reclaim"]
    consumer.leasing.available = True
    assert names(fetching.go()) == ["lease"]


def test_a_rest_is_renewed_in_time() -> None:
    worker, (consumer,) = resting()
    keeping, fetching = calm(worker, consumer)
    keeping.now = fetching.now = consumer.timers.sweep_at
    assert isinstance(keeping.go(), Sleep)
    assert names(fetching.go()) == ["rest"]
    assert isinstance(fetching.go([0]), Sleep)  # something is to be done
    assert not consumer.idle.on
    assert names(keeping.go()) == ["reclaim"]


def test_a_queue_does_not_rest_beside_a_lease_call_of_a_shared_read() -> None:
    worker, (consumer,) = resting()
    keeping, fetching = Hand(reclaim(worker)), Hand(fetch(consumer))
    fetching.go()
    keeping.go()
    keeping.go([Reclaimed(0, 2.5, rests=True)])
    consumer.leasing.piggybacked = 1
    assert isinstance(fetching.go(), Sleep)
    assert not consumer.idle.on


def test_where_others_do_not_rest_one_looks_after_the_queue_as_ever() -> None:
    worker, (consumer,) = resting()
    keeping, fetching = Hand(reclaim(worker)), Hand(fetch(consumer))
    fetching.go()
    keeping.go()
    keeping.go([Reclaimed(0, 2.5, rests=True)])
    fetching.go()
    fetching.go([1])
    assert consumer.idle.on
    keeping.now += 2.5
    assert names(keeping.go()) == ["reclaim"]
    keeping.go([Reclaimed(0)])
    keeping.now += AGAIN_S
    keeping.go()
    keeping.go([Reclaimed(0)])
    assert names(fetching.go()) == ["rest"]  # or its registration would end unseen
    fetching.go([-1])
    assert not consumer.registered
    assert not consumer.idle.on


def test_what_others_tell_ends_the_calm_at_once() -> None:
    """The worker then looks for dead workers. A message that precedes the answer to the call for
    rest counts too."""
    worker, (consumer,) = resting()
    calm(worker, consumer)
    hearing = Hand(listen(worker, [consumer]))
    hearing.go()
    hearing.go(Received("anew"))
    assert not consumer.idle.all_idle
    assert not consumer.registration.declared  # a message of a deletion may have been missed
    consumer.idle.all_idle = consumer.registration.declared = True
    channel = consumer.ops.keys.key("control")
    assert names(hearing.go(Received("on", [(channel, ACTIVE), (channel, ACTIVE)]))) == ["reclaim"]
    assert isinstance(hearing.go([Reclaimed(0, 2.5, rests=True)]), Receive)
    assert consumer.idle.on
    consumer.idle.asked = 60.0
    fetching = Hand(fetch(consumer))
    fetching.go()
    assert isinstance(hearing.go(Received("on", [(channel, ACTIVE)])), Receive)
    fetching.go([ALL_IDLE])
    assert not consumer.idle.all_idle
    assert consumer.timers.sweep_at == 0.0
    assert isinstance(hearing.go(Received("cut")), Sleep)
    assert not consumer.may_idle()


def test_none_rests_while_a_beat_is_under_way_that_would_undo_it() -> None:
    """The call to rest is repeated at the next look, which follows soon."""
    worker, (consumer,) = resting()
    beating, keeping, fetching = (
        Hand(beat(worker, [consumer])),
        Hand(reclaim(worker)),
        Hand(fetch(consumer)),
    )
    fetching.go()
    keeping.go()
    assert names(beating.go()) == ["beat"]
    keeping.go([Reclaimed(0, 2.5, rests=True)])
    assert isinstance(fetching.go(), Sleep)
    assert not consumer.idle.on
    beating.go([True])
    assert names(keeping.go()) == ["reclaim"]
    keeping.go([Reclaimed(0, 2.5, rests=True)])
    assert names(fetching.go()) == ["rest"]
    assert isinstance(beating.go(), Sleep)  # it may rest by now


@each("what", ["held", "asking", "done", "named", "paused", "persistent", "unheard"])
def test_which_do_not_rest(what: str) -> None:
    _, (consumer,) = resting()
    assert consumer.may_idle()
    if what == "held":
        consumer.jobs.held["1-0"] = make_held(consumer)
    elif what == "asking":
        consumer.leasing.asking = 1
    elif what == "done":
        consumer.jobs.completed.append(make_held(consumer))
    elif what == "unheard":
        consumer.idle.subscribed = False
    elif what == "persistent":
        consumer.handler = evolve(consumer.handler, persistent=True)
    elif what == "paused":
        consumer.leasing.paused = True
    else:
        consumer.named = True
    consumer.idle.asked = 60.0
    assert not consumer.may_idle()


def test_what_other_readers_have_left_is_looked_for_where_all_rest() -> None:
    """The look happens now and then, in place of the usual ones."""
    consumers = make_consumers(3)
    for consumer in consumers[:2]:
        consumer.idle.all_idle = True
    hand = Hand(wait_for_all(SharedRead(consumers), consumers))
    effect = hand.go()
    assert queues(effect) == ["q0", "q1"]
    assert "BLOCK" not in effect.command
    assert effect.command[-4:] == ("0",) * 4
    assert queues(hand.go([jobs(consumers[1])])) == ["q0", "q2"]
    assert (consumers[1].leasing.available, consumers[1].leasing.woken) == (True, True)
    hand.go([])
    assert "BLOCK" in hand.go().command
    hand.go([])
    hand.now += ORPHANS_EVERY_S
    assert "BLOCK" not in hand.go().command


def test_so_many_queues_take_few_calls_a_second() -> None:
    assert [duration(queues) for queues in (10, 1000, 5000)] == [LEAST_S, 250.0, MOST_S]


def swept(role: Hand, answer: Reclaimed) -> list[int]:
    """Return the sweeps of one round by the number in each round trip."""
    sizes: list[int] = []
    effect = role.go()
    while not isinstance(effect, Sleep):
        sizes.append(len(effect.ops))
        effect = role.go([answer] * len(effect.ops))
    return sizes


def test_many_queues_are_swept_in_few_round_trips_and_those_at_rest_less_often() -> None:
    consumers = make_consumers(2 * SWEEPS_AT_ONCE + 20)
    role: Role = reclaim(Lifecycle(WorkerSettings(), consumers))
    hand = Hand(role)
    assert swept(hand, Reclaimed(0, 2.5, rests=True)) == [50, 50, 20]
    hand.now += 1.0
    consumers[0].jobs.held = {"1-0": Any}  # type: ignore[dict-item]
    consumers[1].timers.sweep_at = 0.0
    assert swept(hand, Reclaimed(0)) == [2]
    hand.now += 1.5
    assert sum(swept(hand, Reclaimed(0, 2.5, rests=True))) == len(consumers)
