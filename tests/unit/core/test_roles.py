"""The decisions of a worker, without Redis, threads or a clock. A `Hand` performs their effects."""

from __future__ import annotations

import weakref
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from attrs import evolve
from tenacity import wait_fixed

from headrace import BatchError, Complete, DeadLetter, Job, Release, Retry, RetryLater
from headrace._core.effects import (
    Abort,
    Block,
    BlockThen,
    Effect,
    For,
    HeldJob,
    LineUp,
    Log,
    Now,
    Phase,
    Receive,
    Resize,
    Role,
    Send,
    Sleep,
    Start,
    TakeBack,
    Wake,
)
from headrace._core.notices import Received
from headrace._core.presence.roles import resize
from headrace._core.verdicts import FREE_RELEASES
from headrace._core.worker import reclaimer
from headrace._core.worker.consumer import CUT_OFF_S, IDLE_S, START_WITHIN_S, Consumer
from headrace._core.worker.control import RETRY_REFUSED_S, listen
from headrace._core.worker.fetch import TAKE_BACK_AFTER_S, fetch, wait
from headrace._core.worker.heartbeat import beat
from headrace._core.worker.lifecycle import Lifecycle, ShutdownDeadline
from headrace._core.worker.renewal import died, lose, renew
from headrace._core.worker.roles import WAKE_IF, all_roles
from headrace._core.worker.scheduler import tick
from headrace._core.worker.slots import ASKS_S, CALLS_A_TURN, WORTH_A_CALL, SharedSlots
from headrace._model.codec import BytesCodec
from headrace._model.settings import HandlerSettings, QueueSettings, WorkerSettings
from headrace._protocol.features.schedules import DueSchedules
from headrace._protocol.keys import Keys
from headrace._protocol.limits import CLAIMS_PER_SCRIPT, JOBS_PER_SCRIPT, LEASED_PER_SCRIPT
from headrace._protocol.op import TooLarge
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Declaration, Entered, Grant, Reclaimed
from headrace.errors import NameTaken
from tests.support.facts import each


def make_consumer(
    *,
    concurrency: int = 2,
    lease: float = 60.0,
    retry: Retry | None = None,
    deadline: float | None = None,
    fair: str | None = None,
    limits: Any = None,
    **batch: Any,
) -> Consumer:
    settings = QueueSettings(lease=lease, fair=fair, limits=limits)
    handler = HandlerSettings(
        "q", print, concurrency, retry or Retry(), deadline, settings, BytesCodec(), **batch
    )
    consumer = Consumer(Ops(Keys.of("q", "headrace"), settings), handler, "w", wait_fixed(7))
    consumer.registration.registered = consumer.registration.declared = True
    if consumer.leasing.fair is not None:
        consumer.leasing.fair.undeclared = False
    return consumer


def make_held(consumer: Consumer, number: int = 1, attempt: int = 1, since: float = 0.0) -> HeldJob:
    entry = f"{number}-0"
    return HeldJob(
        Job(entry, b"x", "q", attempt=attempt), consumer.name, entry, attempt, attempt, since=since
    )


def noted(consumer: Consumer) -> list[tuple[str, str | None, BaseException | None]]:
    """Record the consumer's notes from now on as (event, entry, error)."""
    notes: list[tuple[str, str | None, BaseException | None]] = []
    consumer.note = lambda event, held, _, error: notes.append((event, held and held.entry, error))
    return notes


class Hand:
    """An engine without a server. It performs local effects, and returns each `Send`, `Block` and
    `Sleep` to the test.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self.now = 100.0
        self.runs = True  # whether units have slots, beside those that wait
        self.backlog: list[list[HeldJob]] = []
        self.aborted: list[HeldJob] = []
        self.pokes: list[bool] = []
        self.said: list[str] = []
        self.owners: list[Consumer] = []  # for whom a role of several asked for something

    def go(self, answer: Any = None) -> Any:
        """Return the next effect that the test must answer, or `None` when the role has ended."""
        try:
            effect: Effect = self.role.send(answer)
            while True:
                reply: Any = None
                if isinstance(effect, For):
                    self.owners.append(effect.consumer)
                    effect = effect.effect
                match effect:
                    case Now():
                        reply = self.now
                    case Start(units):
                        self.backlog += units
                    case TakeBack():
                        reply, self.backlog = (self.backlog, self.runs), []
                    case Abort(held):
                        self.aborted += held
                        for one in held:
                            one.job.lost.set()
                    case Wake(everyone):
                        self.pokes.append(everyone)
                    case Log(event, text):
                        self.said.append(f"{event}: {text}")
                    case LineUp():
                        pass
                    case _:
                        return effect
                effect = self.role.send(reply)
        except StopIteration:
            return None

    def thrown(self, error: BaseException) -> Any:
        """Return the next effect after the last one has failed."""
        effect = self.role.throw(error)
        return effect if not isinstance(effect, Now) else self.go(self.now)

    def run(
        self,
        consumer: Consumer,
        after: float = 0.0,
        error: BaseException | None = None,
        result: Any = None,
    ) -> list[Job]:
        """Run the handler on the unit that has waited longest."""
        unit = self.backlog.pop(0)
        jobs = consumer.begin(unit, self.now)
        self.now += after
        if jobs:
            consumer.finished(unit, self.now, error, result)
        return jobs


def sent(effect: Any) -> list[tuple[str, ...]]:
    """Return the operations of a `Send` with their subjects."""
    assert isinstance(effect, Send), effect
    return [(op.name, *map(str, op.args)) for op in effect.ops]


def names(effect: Any) -> list[str]:
    return [op[0] for op in sent(effect)]


def grant(consumer: Consumer, *numbers: int) -> Grant:
    return Grant([make_held(consumer, number) for number in numbers])


def settled(consumer: Consumer) -> list[tuple[str, ...]]:
    """Return the settlements of the jobs whose verdict is known."""
    effect = Hand(fetch(consumer)).go()
    return [op for op in sent(effect) if op[0] != "lease"] if isinstance(effect, Send) else []


@each(
    ("first", "second", "kept"),
    [
        ((1.0, 1), (2.0, 2), 1),
        # somebody destroyed the group, and began anew with the first entry
        ((1.0, 1001), (2.0, 1), 1),
        ((2.0, 2), (1.0, 1), 0),  # the answers came in the other order
        ((1.0, 2), (1.0, 1), 0),
        ((1.0, 1), (1.0, 2), 1),
    ],
)
def test_the_last_delivery_of_a_job_is_held(
    first: tuple[float, int], second: tuple[float, int], kept: int
) -> None:
    """The worker drops earlier deliveries. A job whose last delivery it drops would wait for the
    end of its lease."""
    consumer = make_consumer()
    deliveries = [make_held(consumer) for _ in range(2)]
    for held, (held.leased_at, held.token) in zip(deliveries, (first, second), strict=True):
        held.count = held.token
    hand = Hand(fetch(consumer))
    hand.go()
    consumer.jobs.held["1-0"] = deliveries[0]
    hand.go([Grant([deliveries[1]])])
    assert consumer.jobs.held["1-0"] is deliveries[kept]
    assert [held.ended for held in deliveries] == [kept == 1, kept == 0]


def limit(effect: Any) -> int:
    """Return how many jobs the lease call of a `Send` asks for."""
    return int(next(op for op in sent(effect) if op[0] in {"lease", "lease_fair"})[2])


def test_a_job_whose_result_the_server_refuses_completes_without() -> None:
    """The other settlements of the same call are sent again. The call leases no job."""
    consumer = make_consumer(concurrency=3, retry=Retry(attempts=1, wait=5))
    notes = noted(consumer)
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2, 3)])
    for result in (b"x" * 100, b"y" * 10, None):
        hand.run(consumer, result=result)
    consumer.leasing.woken = True
    assert names(hand.go()) == ["complete", "complete", "lease"]
    asked = consumer.leasing.asking
    error = TooLarge("complete: a value of 100 bytes")
    error.limit = 99
    again = sent(hand.thrown(error))
    assert [op[0] for op in again] == ["complete", "complete", "lease"]
    assert " ".join(again[1][:8]) == "complete  2 0 1 0 1-0 2-0"  # and the result of the second
    assert notes == [("result_dropped", "1-0", error)]
    assert (len(consumer.jobs.under_way), consumer.leasing.asking, consumer.leasing.available) == (
        1,
        asked,
        True,
    )


def test_a_refusal_that_no_result_explains_ends_the_role() -> None:
    consumer = make_consumer()
    hand = Hand(fetch(consumer))
    hand.go()
    with pytest.raises(TooLarge):
        hand.thrown(TooLarge("lease"))


# -- fetch -----------------------------------------------------------------------------------------


def test_what_was_cut_short_by_bytes_goes_on_at_once() -> None:
    consumer = make_consumer(concurrency=10)
    hand = Hand(fetch(consumer))
    assert limit(hand.go()) == 10
    assert limit(hand.go([evolve(grant(consumer, 1, 2), next_due=0.0)])) == 8
    assert isinstance(hand.go([grant(consumer, 3)]), Sleep)


def test_what_a_limit_cut_short_goes_on_with_the_next_token() -> None:
    """The wait counts from the time of the call, with or without a running handler. `wait` reads no
    new job meanwhile.
    """
    consumer = make_consumer(concurrency=10)
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    assert limit(fetching.go()) == 10
    fetching.now += 0.004
    pause = fetching.go([evolve(grant(consumer, 1), paused=True, next_due=0.02)])
    assert pause == Sleep(pytest.approx(0.016))
    blocked = waiting.go()
    assert isinstance(blocked, Block)
    assert blocked.command[0] == "XREAD"
    fetching.run(consumer, after=0.001)
    assert names(fetching.go()) == ["complete"]
    pause = fetching.go([[True]])
    assert pause == Sleep(pytest.approx(0.015))
    fetching.now += 0.016
    assert fetching.go() == Sleep(0.0)
    assert names(fetching.go()) == ["lease"]


def test_settles_and_leases_in_one_round_trip() -> None:
    consumer = make_consumer()
    hand = Hand(fetch(consumer))
    assert limit(hand.go()) == 2
    # both slots are taken: nothing is leased
    assert isinstance(hand.go([grant(consumer, 1, 2)]), Sleep)
    assert [unit[0].entry for unit in hand.backlog] == ["1-0", "2-0"]
    hand.run(consumer, after=1.0)
    effect = hand.go()
    assert names(effect) == ["complete", "lease"]
    assert limit(effect) == 1


def test_nothing_is_leased_before_the_worker_is_registered() -> None:
    consumer = make_consumer()
    consumer.registration.registered = False
    hand = Hand(fetch(consumer))
    assert isinstance(hand.go(), Sleep)
    consumer.registration.registered = consumer.registration.declared = True
    assert names(hand.go()) == ["lease"]


@each(("concurrency", "sent"), [(1, ["complete"]), (2, ["complete", "lease"])])
def test_two_fetchers_of_one_consumer(concurrency: int, sent: list[str]) -> None:
    """Two lease calls may be answered in either order. A consumer with one slot promises order, so
    it makes only one.
    """
    took = START_WITHIN_S / 10
    consumer = make_consumer(concurrency=concurrency)
    consumer.jobs.mean = took
    first, second = Hand(fetch(consumer)), Hand(fetch(consumer))
    room = limit(first.go())
    assert room == 11 * concurrency
    assert isinstance(second.go(), Sleep)  # no room for more, as long as nobody knows what comes
    first.go([grant(consumer, *range(room))])
    first.run(consumer, after=took)
    assert names(first.go()) == ["complete", "lease"]
    first.run(consumer, after=took)
    assert names(second.go()) == sent


def test_an_empty_queue_is_left_to_listen() -> None:
    """A reply with fewer jobs than asked means an empty queue. The next lease call waits for the
    server's message."""
    consumer = make_consumer()
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    assert isinstance(waiting.go(), Sleep)  # while there may be jobs, nobody blocks
    fetching.go()
    assert isinstance(fetching.go([grant(consumer, 1)]), Sleep)
    assert fetching.pokes == [False]
    heard = waiting.go()
    assert isinstance(heard, BlockThen)
    assert "BLOCK" in heard.command
    assert isinstance(waiting.go((False, Grant([]))), BlockThen)  # nothing came
    assert isinstance(fetching.go(), Sleep)
    assert isinstance(waiting.go((True, Grant([]))), Sleep)
    assert sent(fetching.go())[0][-3] == "1"  # woken: the call takes the tokens off the wake stream


def test_what_ends_a_blocked_read_is_leased_behind_it_and_starts_at_once() -> None:
    """The waiting role leases the job itself before it wakes another role. It leaves room for the
    jobs that `fetch` leases.
    """
    consumer = make_consumer(concurrency=10)
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    fetching.go([Grant([])])
    piggybacked = waiting.go()
    assert isinstance(piggybacked, BlockThen)
    assert [(op.args[1], op.args[-3]) for op in (piggybacked.op, piggybacked.again)] == [
        (5, 2),
        (1, 2),
    ]
    assert (consumer.leasing.piggybacked, consumer.room()) == (5, 5)
    assert isinstance(waiting.go((True, grant(consumer, 1, 2))), BlockThen)
    assert [unit[0].entry for unit in waiting.backlog] == ["1-0", "2-0"]
    assert (list(consumer.jobs.held), waiting.pokes) == (["1-0", "2-0"], [])
    # as many as it asked for
    assert isinstance(waiting.go((True, grant(consumer, *range(3, 7)))), Sleep)
    assert (consumer.leasing.piggybacked, consumer.leasing.available, waiting.pokes) == (
        0,
        True,
        [False],
    )
    assert limit(fetching.go()) == 4


def test_what_comes_behind_a_blocked_read_to_a_worker_that_is_stuck() -> None:
    """The jobs are released at once, because no later reply may wake the role that releases
    them."""
    consumer = make_consumer(concurrency=10)
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    fetching.go([Grant([])])
    waiting.go()
    consumer.leasing.saturated = True
    assert isinstance(waiting.go((True, grant(consumer, 1, 2))), Sleep)
    assert (waiting.backlog, waiting.pokes, consumer.jobs.held) == ([], [False], {})
    assert names(fetching.go()) == ["release"]


def test_a_quiet_worker_leases_nothing_behind_a_blocked_read() -> None:
    """A job of the read under way goes back, and no other read begins until a resume."""
    consumer = make_consumer(concurrency=10)
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    fetching.go([Grant([])])
    assert isinstance(waiting.go(), BlockThen)
    consumer.leasing.quiet = True
    assert isinstance(waiting.go((False, Grant([]))), Sleep)
    consumer.leasing.quiet = False
    assert isinstance(waiting.go(), BlockThen)
    consumer.leasing.quiet = True
    assert isinstance(waiting.go((True, grant(consumer, 1, 2))), Sleep)
    assert (waiting.backlog, waiting.pokes) == ([], [False])
    assert names(fetching.go()) == ["release"]


def test_what_comes_behind_a_blocked_read_and_waits_for_something_slow_goes_back() -> None:
    """`fetch` slept because it had nothing to do. It wakes up for jobs that were leased ahead of a
    slot."""
    consumer = make_consumer(concurrency=1)
    consumer.jobs.mean = START_WITHIN_S / 9
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    assert fetching.go([Grant([])]) == Sleep(IDLE_S)
    waiting.go()
    waiting.go((True, grant(consumer, 1, 2)))
    assert waiting.pokes == [False]
    consumer.leasing.available = False  # it was all that there is
    fetching.backlog = waiting.backlog
    consumer.begin(fetching.backlog.pop(0), fetching.now)
    pause = fetching.go()
    assert isinstance(pause, Sleep)
    assert pause.seconds <= TAKE_BACK_AFTER_S
    fetching.now += TAKE_BACK_AFTER_S
    assert fetching.go() == Sleep(0.0)
    assert names(fetching.go()) == ["release"]


def test_a_reply_behind_a_blocked_read_that_is_not_known() -> None:
    """The lease call was undone, or the worker was declared dead, so `fetch` asks again."""
    consumer = make_consumer()
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    fetching.go([Grant([])])
    waiting.go()
    assert isinstance(waiting.go((True, None)), Sleep)
    assert (consumer.leasing.piggybacked, consumer.leasing.available, waiting.pokes) == (
        0,
        True,
        [False],
    )
    assert names(fetching.go()) == ["lease"]


def test_what_was_granted_to_a_read_that_a_stop_has_ended_is_given_back() -> None:
    consumer = make_consumer()
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    fetching.go([Grant([])])
    piggybacked = waiting.go()
    assert piggybacked.undo(None) is piggybacked.undo(Grant([])) is None
    assert piggybacked.undo(grant(consumer, 1, 2)).name == "release"
    consumer.phase = Phase.DRAINING
    assert isinstance(fetching.go(), Sleep)  # something may still come
    assert waiting.go((False, None)) is None
    assert waiting.pokes == [False]
    assert fetching.go() is None


@each(
    ("options", "due", "limit"),
    [
        ({"concurrency": 1}, None, 1),
        ({"concurrency": 1}, 5.0, 0),
        ({"concurrency": 2}, 5.0, 1),
        ({"concurrency": 500}, None, 125),
        ({"concurrency": 2, "batch": True, "max_size": 10}, None, 0),
    ],
)
def test_who_leases_behind_a_blocked_read(
    options: dict[str, Any], due: float | None, limit: int
) -> None:
    """With one slot, only one lease call may wait for a delayed job. Jobs of batches are leased
    elsewhere."""
    consumer = make_consumer(**options)
    consumer.timers.due_at = due
    assert consumer.piggyback_limit() == limit


def test_the_next_delay_is_waited_for_by_the_worker_itself() -> None:
    """A server may end a blocked read 0.1 s late. A job that is far away causes no call before its
    time."""
    consumer = make_consumer()
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    assert fetching.go([Grant([], next_due=1.25)]) == Sleep(1.25)
    heard = waiting.go()
    assert heard.command[heard.command.index("BLOCK") + 1] == 5000
    assert isinstance(waiting.go((False, Grant([]))), BlockThen)
    fetching.now += 1.0
    assert fetching.go() == Sleep(0.25)
    fetching.now += 0.25
    assert fetching.go() == Sleep(0.0)
    assert names(fetching.go()) == ["lease"]


def test_a_look_tells_of_delays_and_schedules_that_others_made() -> None:
    consumer = make_consumer()
    fetching, hand = Hand(fetch(consumer)), reclaiming(consumer)
    fetching.go()
    assert fetching.go([Grant([])]) == Sleep(IDLE_S)
    hand.go()
    hand.go([evolve(NOTHING, next_due=0.5, next_tick=3.0)])
    assert (consumer.timers.due_at, consumer.timers.tick_at) == (hand.now + 0.5, hand.now + 3.0)
    assert hand.pokes == [False]
    assert fetching.go() == Sleep(0.5)
    hand.go()
    hand.go([NOTHING])
    assert (consumer.timers.due_at, consumer.timers.tick_at) == (hand.now + 0.5, None)


def test_a_worker_declares_its_queue_once() -> None:
    consumer = make_consumer()
    consumer.registration.declared = False
    hand = reclaiming(consumer)
    assert names(hand.go()) == ["declare"]
    assert names(hand.go([Declaration(2, {"rate": "(Rate(5),)"})])) == ["reclaim"]
    (said,) = hand.said
    assert said.startswith(
        "declaration_differs: queue 'q': rate is None here, and (Rate(5),) as others declare it"
    )
    assert isinstance(hand.go([NOTHING]), Sleep)
    assert names(hand.go()) == ["reclaim"]


def test_a_worker_declares_its_queue_before_it_leases() -> None:
    """Otherwise its first job might end before the history that it declares."""
    consumer = make_consumer()
    consumer.registration.registered = consumer.registration.declared = False
    beating, fetching = (
        Hand(beat(Lifecycle(WorkerSettings(heartbeat=2.0), [consumer]))),
        Hand(fetch(consumer)),
    )
    beating.go()
    assert isinstance(fetching.go(), Sleep)
    assert names(beating.go([True])) == ["declare"]
    assert isinstance(fetching.go(), Sleep)
    assert beating.go([Declaration(1, {})]) == Sleep(2.0)
    assert names(fetching.go()) == ["lease"]


def test_a_declaration_that_fails_is_repeated() -> None:
    consumer = make_consumer()
    consumer.registration.declared = False
    hand = reclaiming(consumer)
    assert names(hand.go()) == ["declare"]
    with pytest.raises(ConnectionError):
        hand.thrown(ConnectionError())
    assert names(reclaiming(consumer).go()) == ["declare"]


def test_a_reader_woken_for_nothing_asks_for_schedules() -> None:
    consumer = make_consumer()
    fetching, ticker = Hand(fetch(consumer)), Hand(tick(consumer))
    assert ticker.go() == Sleep(IDLE_S)
    fetching.go()
    fetching.go([Grant([])])
    assert ticker.go() == Sleep(IDLE_S)
    consumer.leasing.woken = consumer.leasing.available = True
    fetching.go()
    fetching.go([Grant([])])
    assert names(ticker.go()) == ["schedules"]
    assert ticker.go([DueSchedules(5, 0.25, [])]) == Sleep(0.25)


def test_a_tick_is_put_in_and_the_next_one_awaited() -> None:
    """A schedule that can't be computed here is logged once and left to other workers."""
    consumer = make_consumer()
    consumer.timers.tick_at = 0.0
    hand = Hand(tick(consumer))
    hand.go()
    rows = [("a", 1000, "every 1000", "once"), ("b", 1000, "every no", "once")]
    assert sent(hand.go([DueSchedules(1200, 5.0, rows)])) == [
        ("tick", "a", "every 1000", "1000", "2000", "1000")
    ]
    assert round(hand.go([[True]]).seconds, 6) == 0.8
    assert len(hand.said) == 1
    assert "schedule 'b' of queue 'q'" in hand.said[0]
    consumer.timers.tick_at = 0.0
    hand.go()
    hand.go([DueSchedules(1200, None, rows[1:])])
    assert (consumer.timers.tick_at, len(hand.said)) == (None, 1)
    consumer.phase = Phase.DRAINING
    assert hand.go() is None


def test_jobs_are_leased_ahead_as_far_as_they_will_start_soon() -> None:
    consumer = make_consumer(concurrency=2)
    for took, most in [(None, 2), (10.0, 2), (0.1, 3), (0.01, 2 + 10), (1e-9, LEASED_PER_SCRIPT)]:
        consumer.jobs.mean = took
        assert consumer.room() == most, f"{took}: 2 slots and what starts within {START_WITHIN_S} s"


def test_the_mean_follows_the_handler() -> None:
    consumer = make_consumer(concurrency=1)
    hand = Hand(fetch(consumer))
    effect = hand.go()
    asked = []
    for number in range(0, 60_000, 1000):
        asked.append(limit(effect))
        answers: list[Any] = [grant(consumer, *range(number, number + asked[-1]))]
        hand.go([[True] * asked[-2], *answers] if number else answers)
        while hand.backlog:
            hand.run(consumer, after=0.001 if number < 30_000 else 5.0)
        effect = hand.go()
    assert asked[0] == 1
    assert max(asked) > 40
    assert limit(effect) == 1


def test_what_waits_behind_something_slow_goes_back_to_the_front() -> None:
    """Two hanging handlers hold no other job. Jobs that were leased ahead are released without a
    spent attempt."""
    consumer = make_consumer(concurrency=1)
    consumer.jobs.mean = START_WITHIN_S / 3
    hand = Hand(fetch(consumer))
    hand.go()
    pause = hand.go([grant(consumer, 1, 2, 3, 4)])
    unit = hand.backlog.pop(0)
    consumer.begin(unit, hand.now)
    hand.now += TAKE_BACK_AFTER_S - 0.01
    assert isinstance(hand.go(), Sleep)  # not yet
    assert isinstance(pause, Sleep)
    hand.now += 0.02
    assert hand.go() == Sleep(0.0)
    effect = hand.go()
    assert [op[0] for op in sent(effect)] == ["release"]  # and nothing is leased meanwhile
    assert sent(effect)[0][3::2] == ("2-0", "3-0", "4-0")
    assert isinstance(hand.go([[True, True, True]]), Sleep)
    consumer.finished(unit, hand.now, None)
    consumer.slot_freed()
    assert names(hand.go()) == ["complete", "lease"]


def test_what_goes_back_while_nothing_runs_is_leased_again() -> None:
    """On a busy machine no thread started for a second. No handler's end will wake the role, so it
    leases again itself.
    """
    consumer = make_consumer(concurrency=2)
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2)])
    hand.runs = False
    hand.now += TAKE_BACK_AFTER_S
    assert hand.go() == Sleep(0.0)
    assert names(hand.go()) == ["release", "lease"]


def test_what_comes_behind_a_blocked_read_goes_back_while_nothing_runs() -> None:
    """The role that releases jobs had looked before these jobs came, so it looks again."""
    consumer = make_consumer(concurrency=10)
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    fetching.go([Grant([])])
    waiting.go()
    consumer.leasing.saturated, waiting.runs = True, False
    waiting.go((True, grant(consumer, 1, 2)))
    assert names(fetching.go()) == ["release"]
    assert consumer.waits()  # for what it gives back, among others


def test_a_slot_that_becomes_free_as_others_are_given_back() -> None:
    """The handler ends when its consumer is stuck and not yet told that it runs."""
    consumer = make_consumer(concurrency=1)
    consumer.jobs.mean = START_WITHIN_S / 3
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2)])
    unit = hand.backlog.pop(0)
    consumer.begin(unit, hand.now)
    hand.now += TAKE_BACK_AFTER_S
    effect = hand.role.send(None)
    while not isinstance(effect, TakeBack):
        effect = hand.role.send(hand.now)
    consumer.finished(unit, hand.now, None)
    consumer.slot_freed()
    assert hand.go((hand.backlog, True)) == Sleep(0.0)
    assert names(hand.go()) == ["complete", "release"]
    assert consumer.waits()


def test_settlements_are_grouped_and_bounded() -> None:
    """There is one call for each kind and bounded number of jobs. A new name settles the jobs that
    the old name leased.
    """
    consumer = make_consumer(concurrency=3000)
    old = consumer.name
    claims = [make_held(consumer, number) for number in range(JOBS_PER_SCRIPT + 10)]
    consumer.registration.registered = False
    consumer.rename()
    claims += [make_held(consumer, JOBS_PER_SCRIPT + 10)]
    for claim in claims:
        consumer.ended(claim, None)
    hand = Hand(fetch(consumer))
    assert [(op[0], len(op)) for op in sent(hand.go())] == [("complete", 6 + JOBS_PER_SCRIPT)]
    assert [(op[0], len(op)) for op in sent(hand.go([[True] * JOBS_PER_SCRIPT]))] == [
        ("complete", 6 + 10),
        ("complete", 6 + 1),
    ]
    assert isinstance(hand.go([[True] * 10, [True]]), Sleep)
    assert old != consumer.name
    for error in [ValueError(), DeadLetter("no"), Release(), None]:
        consumer.ended(make_held(consumer, 1), error)
    assert sorted(names(hand.go())) == ["complete", "dead_letter", "release", "retry"]
    assert isinstance(hand.go([[True]] * 4), Sleep)


def test_a_job_retried_at_once_is_leased_without_being_woken() -> None:
    """The server sends no message for a delayed job. The worker that asked for the delay looks
    again when it is due."""
    consumer = make_consumer()
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1)])
    hand.run(consumer, error=RetryLater(0.5))
    assert not consumer.leasing.available
    assert names(hand.go()) == ["retry"]
    pause = hand.go([[True]])
    assert pause.seconds == pytest.approx(0.5)
    hand.now += 0.6
    assert hand.go() == Sleep(0.0)
    assert names(hand.go()) == ["lease"]


def test_a_job_that_is_due_while_other_shards_have_all_slots_waits_in_its_turn() -> None:
    """The next free slot belongs to another consumer, which wakes the consumers that wait for
    one."""
    busy, consumer = (make_consumer(concurrency=1) for _ in range(2))
    shared = busy.shared = consumer.shared = SharedSlots([busy, consumer])
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([Grant([])])
    busy.jobs.held["1-0"] = make_held(busy, 1)
    consumer.expect(hand.now, 0.0)
    assert hand.go() == Sleep(0.0)
    pause = hand.go()
    assert isinstance(pause, Sleep)
    assert pause.seconds <= ASKS_S
    assert shared.next() is None
    busy.jobs.held.clear()
    assert shared.next() is consumer
    assert names(hand.go()) == ["lease"]


def test_a_shard_that_was_left_keeps_no_other_waiting() -> None:
    """A shard that was left never takes its slot. Another consumer gets its turn and its share."""
    busy, gone, consumer = some = [make_consumer(concurrency=1) for _ in range(3)]
    shared = SharedSlots(some)
    busy.shared = gone.shared = consumer.shared = shared
    blocked = Hand(wait(gone))
    gone.leasing.available = False
    assert isinstance(blocked.go(), Block)
    gone.leasing.available = True
    busy.jobs.held["1-0"] = make_held(busy, 1)
    leaving, hand = Hand(fetch(gone)), Hand(fetch(consumer))
    assert isinstance(leaving.go(), Sleep)  # all slots are taken
    assert isinstance(hand.go(), Sleep)
    gone.leasing.shard_gone, gone.leasing.available, gone.phase = True, False, Phase.DRAINING
    assert leaving.go() is None
    assert blocked.go(True) is None
    assert not gone.leasing.available
    busy.jobs.held.clear()
    assert shared.next() is consumer
    assert names(hand.go()) == ["lease"]


def test_shards_with_a_backlog_take_few_round_trips_and_little_memory() -> None:
    """The shards together lease like a plain queue, four calls for 1,000 jobs. The next lease call
    settles the jobs."""
    consumers = [make_consumer(concurrency=1000) for _ in range(12)]
    shared = SharedSlots(consumers)
    hands: dict[int, Hand] = {}
    for one in consumers:
        one.shared = shared
        hands[id(one)] = Hand(fetch(one))
    effects: dict[int, Any] = {number: hand.go() for number, hand in hands.items()}
    jobs = calls = most = 0
    leased = Counter[int]()
    for turn in range(200):  # of an event loop
        for one in consumers:
            hand = hands[id(one)]
            hand.now = shared.now = 100.0 + turn / 500
            effect = effects[id(one)]
            if not isinstance(effect, Send):
                continue
            replies: list[Any] = []
            for op in effect.ops:
                if op.name == "lease":
                    entries = range(jobs, jobs + int(op.args[1]))
                    replies.append(grant(one, *entries))
                    jobs += len(entries)
                    leased[id(one)] += turn >= 20
                else:
                    replies.append([True] * len(op.items))
            calls += turn >= 20
            effects[id(one)] = hand.go(replies)
        if turn == 20:  # the first lease before it is known what there is
            jobs = most = 0
        most = max(most, sum(len(one.jobs.held) + one.leasing.asking for one in consumers))
        for one in consumers:
            hand, ended = hands[id(one)], False
            while hand.backlog:
                hand.run(one)
                ended = True
            for woken in (one, shared.next()) if ended else ():
                if woken is not None and isinstance(effects[id(woken)], Sleep):
                    effects[id(woken)] = hands[id(woken)].go()
    assert jobs > 40_000
    assert calls / jobs <= 5.2 / 1000
    assert most <= 2 * 2 * WORTH_A_CALL
    assert len(leased) == 12
    assert max(leased.values()) <= min(leased.values()) + 2 * CALLS_A_TURN  # all have turns


def test_a_role_that_sleeps_keeps_no_job_that_has_ended() -> None:
    """Most roles of many shards sleep after hundreds of jobs, so a kept job would stay in
    memory."""
    consumer = make_consumer(concurrency=3)
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2)])
    ended = [weakref.ref(held) for held in consumer.jobs.held.values()]
    hand.run(consumer)
    hand.run(consumer)
    assert names(hand.go()) == ["complete"]
    assert isinstance(hand.go([[True, True]]), Sleep)
    assert [one() for one in ended] == [None, None]


def test_what_a_consumer_s_end_of_a_job_wakes() -> None:
    """While jobs are left to lease, the blocked role sleeps on. Without schedules, the role of
    schedules sleeps on."""
    consumer = make_consumer()
    assert set(WAKE_IF) - {"line_up"} <= {
        name for name, *_ in all_roles(Lifecycle(WorkerSettings(), [consumer]))
    }
    assert {name: wakes(consumer) for name, wakes in WAKE_IF.items()} == {
        "wait": False,
        "tick": False,
        "line_up": False,
    }
    consumer.leasing.available, consumer.timers.tick_at = False, 0.0
    assert {name: wakes(consumer) for name, wakes in WAKE_IF.items()} == {
        "wait": True,
        "tick": True,
        "line_up": False,
    }
    consumer.leasing.available, consumer.timers.tick_at, consumer.phase = True, None, Phase.DRAINING
    assert {name: wakes(consumer) for name, wakes in WAKE_IF.items()} == {
        "wait": True,
        "tick": True,
        "line_up": False,
    }


def test_undecodable_jobs_are_buried_with_the_next_call() -> None:
    consumer = make_consumer()
    hand = Hand(fetch(consumer))
    hand.go()
    effect = hand.go([Grant([], [(make_held(consumer), "not JSON")])])
    assert sent(effect) == [("dead_letter", consumer.name, "1000", "1-0", "1", "not JSON")]


def test_settlements_that_came_too_late_are_counted() -> None:
    consumer = make_consumer()
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2)])
    hand.run(consumer)
    hand.run(consumer)
    hand.go()
    hand.go([[True, False], grant(consumer)])
    assert consumer.jobs.lost == 1
    assert not consumer.jobs.held


# -- batches ---------------------------------------------------------------------------------------


def test_a_batch_starts_when_it_is_full_or_old_enough() -> None:
    consumer = make_consumer(concurrency=2, batch=True, max_size=3, max_wait=5.0)
    hand = Hand(fetch(consumer))
    assert limit(hand.go()) == 6
    pause = hand.go([grant(consumer, 1, 2, 3, 4)])
    assert pause == Sleep(5.0)
    assert [job.id for job in hand.run(consumer)] == ["1-0", "2-0", "3-0"]
    hand.now += 4.9
    effect = hand.go()
    assert names(effect) == ["complete"]
    pause = hand.go([[True] * 3])
    assert not hand.backlog
    assert 0 < pause.seconds <= 0.11
    hand.now += 0.2
    hand.go()
    assert [job.id for job in hand.run(consumer)] == ["4-0"]


def test_batches_of_one_value() -> None:
    """A value that fills batches does not delay the batch of another."""
    consumer = make_consumer(
        concurrency=3, batch=True, max_size=2, max_wait=5.0, same=True, fair="tenant"
    )

    def of(numbers: list[int], tenants: str) -> Grant:
        leased = grant(consumer, *numbers)
        for claim, tenant in zip(leased.claims, tenants, strict=True):
            claim.job = evolve(claim.job, headers={"tenant": tenant})
        return leased

    hand = Hand(fetch(consumer))
    hand.go()
    assert hand.go([of([1, 2, 3, 4], "abaa")]) == Sleep(5.0)
    assert [job.id for job in hand.run(consumer)] == ["1-0", "3-0"]
    hand.now += 4.9
    consumer.leasing.available = True
    assert names(hand.go()) == ["complete", "lease_fair"]
    hand.go([[True] * 2, of([5, 6], "aa")])
    assert [job.id for job in hand.run(consumer)] == ["4-0", "5-0"]
    assert not hand.backlog
    hand.now += 0.2
    assert names(hand.go()) == ["complete"]
    hand.go([[True] * 2])
    assert sorted([held.entry for held in unit] for unit in hand.backlog) == [["2-0"], ["6-0"]]


def test_a_verdict_for_each_job_of_a_batch() -> None:
    consumer = make_consumer(batch=True, max_size=4, max_wait=0.0)
    unit = [make_held(consumer, number) for number in range(4)]
    consumer.begin(unit, 1.0)
    consumer.finished(
        unit,
        2.0,
        BatchError({"0-0": DeadLetter("no"), "1-0": ValueError("v"), "2-0": "?", "9-9": OSError()}),
    )  # type: ignore[dict-item]
    ops = {op[0]: op for op in settled(consumer)}
    assert ops["dead_letter"][3:] == ("0-0", "1", "no")
    assert ops["retry"][4:9] == ("1-0", "1", "+7000", "1", "ValueError: v")
    assert ops["retry"][9:13] == ("2-0", "1", "+7000", "1")
    assert "BatchError names '?'" in ops["retry"][13]
    assert ops["complete"][-1] == "3-0"


def test_a_batch_is_run_on_what_is_left_of_it() -> None:
    """A job that was lost while the batch waited for a slot is not handed to the handler."""
    consumer = make_consumer(batch=True, max_size=2, max_wait=0.0)
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2)])
    list(lose(consumer, [consumer.jobs.held["1-0"]]))
    assert [job.id for job in hand.run(consumer)] == ["2-0"]
    assert [op[-1] for op in settled(consumer)] == ["2-0"]


# -- stopping --------------------------------------------------------------------------------------


def test_draining_gives_back_what_has_not_started_and_waits_for_the_rest() -> None:
    consumer = make_consumer()
    roles = Lifecycle(WorkerSettings(), [consumer])
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2)])
    unit = hand.backlog.pop(0)
    consumer.begin(unit, hand.now)
    roles.advance_to(Phase.DRAINING)
    assert sent(hand.go()) == [("release", consumer.name, "0", "2-0", "1")]
    assert isinstance(hand.go([[True]]), Sleep)
    # a thread that was just about to
    assert consumer.begin([make_held(consumer, 3)], hand.now) == []
    assert names(hand.go()) == ["release"]
    assert isinstance(hand.go([[True]]), Sleep)
    consumer.finished(unit, hand.now, None, b"kept")
    assert names(hand.go()) == ["complete"]
    assert hand.go([[True]]) is None


def test_draining_gives_back_a_batch_that_is_still_gathered() -> None:
    consumer = make_consumer(batch=True, max_size=10, max_wait=60.0)
    roles = Lifecycle(WorkerSettings(), [consumer])
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2)])
    roles.advance_to(Phase.DRAINING)
    assert sent(hand.go()) == [("release", consumer.name, "0", "1-0", "1", "2-0", "1")]
    assert hand.go([[True, True]]) is None


def test_halting_waits_for_nobody() -> None:
    """Running jobs are left to `leave`, which releases them. Finished jobs are still settled."""
    consumer = make_consumer()
    roles = Lifecycle(WorkerSettings(), [consumer])
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2)])
    hand.run(consumer)
    unit = hand.backlog.pop(0)
    consumer.begin(unit, hand.now)
    roles.advance_to(Phase.HALTING)
    consumer.finished(unit, hand.now, None)  # told to stop, it returns: that is no completion
    assert names(hand.go()) == ["complete"]
    assert hand.go([[True]]) is None
    assert hand.role.gi_frame is None  # type: ignore[attr-defined]


def test_phases_only_go_up() -> None:
    consumer = make_consumer()
    roles = Lifecycle(WorkerSettings(), [consumer])
    roles.advance_to(Phase.HALTING)
    roles.advance_to(Phase.DRAINING)
    assert roles.phase is consumer.phase is Phase.HALTING


# -- beat ------------------------------------------------------------------------------------------


def test_declared_dead() -> None:
    """The worker stops its handlers, drops the jobs that have not begun, and registers under a new
    name at once."""
    consumer = make_consumer()
    consumer.registration.registered = False
    old = consumer.name
    beating, fetching = (
        Hand(beat(Lifecycle(WorkerSettings(heartbeat=2.0), [consumer]))),
        Hand(fetch(consumer)),
    )
    # the first beat registers, for jobs of all kinds
    assert sent(beating.go())[0][-2:] == ("1", "")
    assert beating.go([True]) == Sleep(2.0)
    fetching.go()
    fetching.go([grant(consumer, 1, 2)])
    running, waiting = consumer.jobs.held.values()
    unit = fetching.backlog.pop(0)
    consumer.begin(unit, fetching.now)
    assert sent(beating.go())[0][-1] == "0"
    assert beating.go([False]) == Sleep(0.0)
    assert consumer.name != old
    assert not consumer.registered
    assert not consumer.jobs.held
    assert beating.aborted == [running]
    assert True in beating.pokes
    assert fetching.run(consumer) == []  # `waiting` does not start
    assert waiting.ended
    assert sent(beating.go())[0][1:] == (consumer.name, "10000", "60000", "1", "")
    assert beating.go([True]) == Sleep(2.0)
    assert consumer.registered
    consumer.finished(unit, fetching.now, None)
    # a handler that was told returns because it gives up, not because it is done
    assert not settled(consumer)


def test_a_name_of_its_own() -> None:
    """The worker watches its name for one and a half heartbeats. If nobody else uses it, the worker
    takes it over."""
    consumer = make_consumer()
    consumer.named, consumer.registration.registered = True, False
    beating, fetching = (
        Hand(beat(Lifecycle(WorkerSettings(heartbeat=2.0), [consumer]))),
        Hand(fetch(consumer)),
    )
    assert sent(beating.go())[0] == ("register", consumer.name, "w", "10000", "60000", "", "0", "")
    assert beating.go([Entered(0, "w.1 5")]) == Sleep(0.5)
    for after in (0.5, 2.9):
        beating.now = 100.0 + after
        assert sent(beating.go())[0][-3:] == ("w.1 5", "0", "")
        assert beating.go([Entered(0, "w.1 5")]) == Sleep(0.5)
    assert isinstance(fetching.go(), Sleep)
    beating.now = 103.0
    assert sent(beating.go())[0][-3:] == ("w.1 5", "1", "")
    assert beating.go([Entered(1, "w.1")]) == Sleep(2.0)
    assert sent(fetching.go())[0][-2] == "w.1"
    fetching.go([Grant([], paused=True)])
    consumer.leasing.available = True
    assert sent(fetching.go())[0][-2] == "w.1"  # nothing was handed out yet
    fetching.go([Grant([])])
    consumer.leasing.available = True
    assert sent(fetching.go())[0][-2] == ""
    assert sent(beating.go())[0][0] == "beat"


def test_a_name_that_is_taken() -> None:
    consumer = make_consumer()
    consumer.named, consumer.registration.registered = True, False
    beating = Hand(beat(Lifecycle(WorkerSettings(), [consumer])))
    beating.go()
    with pytest.raises(
        NameTaken, match=r"name='w': w\.1 lives under this name, on queue 'q'; give each"
    ):
        beating.go([Entered(-1, "w.1")])
    assert not consumer.registered


def test_a_paused_queue_is_asked_no_more_than_an_empty_one() -> None:
    """The reader waits on the wake stream only. It asks again when a token comes, or after the
    usual time."""
    consumer = make_consumer()
    fetching, waiting = Hand(fetch(consumer)), Hand(wait(consumer))
    fetching.go()
    assert isinstance(fetching.go([Grant([], paused=True)]), Sleep)
    heard = waiting.go()
    assert heard.command[0] == "XREAD"
    assert heard.command[-3:] == ("STREAMS", "headrace:{q}:q:wake", "$")
    assert isinstance(waiting.go(False), Sleep)
    fetching.go()
    fetching.go([Grant([])])
    assert waiting.go().command[0] == "XREADGROUP"


def test_what_a_handler_says_of_a_lost_job_does_not_count() -> None:
    consumer = make_consumer()
    for error in [None, ValueError(), Release(), DeadLetter("no")]:
        held = make_held(consumer)
        consumer.begin([held], 1.0)
        list(lose(consumer, [held]))
        consumer.finished([held], 2.0, error)
    assert not settled(consumer)


def test_a_lease_call_that_hears_it_first() -> None:
    """The server refuses to lease to a dead worker. The refusal counts like the answer to a
    heartbeat."""
    consumer = make_consumer()
    old = consumer.name
    hand = Hand(fetch(consumer))
    hand.go()
    assert isinstance(hand.go([None]), Sleep)
    assert consumer.name != old
    assert not consumer.registered


def test_jobs_that_come_under_the_old_name_are_not_run() -> None:
    """The worker was declared dead during the lease call, so its peers have reclaimed these jobs
    already."""
    consumer = make_consumer()
    hand = Hand(fetch(consumer))
    hand.go()
    late = grant(consumer, 1, 2)
    list(died(consumer))
    assert isinstance(hand.go([late]), Sleep)
    assert hand.backlog == []
    assert not consumer.jobs.held
    assert not settled(consumer)


# -- reclaim ---------------------------------------------------------------------------------------


def reclaiming(*consumers: Consumer, heartbeat: float = 2.0, timeout: float = 10.0) -> Hand:
    return Hand(reclaimer.reclaim(Lifecycle(WorkerSettings(heartbeat, timeout), consumers)))


def renewal(*consumers: Consumer) -> Hand:
    return Hand(renew(Lifecycle(WorkerSettings(), consumers)))


NOTHING = Reclaimed(0)


@each(("heartbeat", "timeout"), [(2.0, 10.0), (0.3, 1.0), (0.5, 60.0)])
def test_the_dead_are_found_within_one_heartbeat(heartbeat: float, timeout: float) -> None:
    """In the worst case a worker is killed right after a heartbeat, and its peer looks right before
    the timeout."""
    hand = reclaiming(make_consumer(), heartbeat=heartbeat, timeout=timeout)
    hand.go()
    assert hand.go([NOTHING]).seconds <= 0.75 * heartbeat


@each(
    ("options", "timeout", "rest"),
    [({}, 10.0, 3.3), ({}, 60.0, 5.0), ({"lease": 3.0}, 10.0, 1.5), ({"deadline": 4.0}, 10.0, 3.0)],
)
def test_a_queue_at_rest_is_left_alone(
    options: dict[str, Any], timeout: float, rest: float
) -> None:
    """The worker rests for a third of a timeout. A lease or a deadline that begins meanwhile is
    seen in time."""
    consumer = make_consumer(**options)
    hand = reclaiming(consumer, timeout=timeout)
    hand.go()
    hand.go([evolve(NOTHING, again=0.33 * timeout, rests=True)])
    assert consumer.timers.sweep_at - hand.now == pytest.approx(rest)
    slept = 0.0
    while isinstance(effect := hand.go(), Sleep):
        slept += effect.seconds
        hand.now += effect.seconds
    assert slept <= rest + 0.01
    hand.go([evolve(NOTHING, again=0.33 * timeout)])  # a death is to be found then
    assert consumer.timers.sweep_at <= hand.now
    assert names(hand.go()) == ["reclaim"]
    hand.go([evolve(NOTHING, again=0.33 * timeout, rests=True)])
    consumer.jobs.held = {"1-0": make_held(consumer)}
    assert names(hand.go()) == ["reclaim"]  # with what is held it is looked at as before


def test_leases_are_renewed_after_a_third() -> None:
    consumer = make_consumer(lease=9.0)
    hand = renewal(consumer)
    consumer.jobs.held = {
        "1-0": make_held(consumer, 1, since=hand.now),
        "2-0": make_held(consumer, 2, since=hand.now - 3.0),
    }
    assert names(hand.go()) == ["renew"]
    assert hand.go([[True]]) == Sleep(1.0)
    assert consumer.jobs.held["2-0"].since == hand.now
    for _ in range(2):
        hand.now += 1.0
        assert hand.go() == Sleep(1.0)
    hand.now += 1.0
    assert names(hand.go()) == ["renew"]  # with two thirds of it to spare


def test_a_lease_that_is_not_renewed_is_lost() -> None:
    consumer = make_consumer(lease=9.0)
    hand = renewal(consumer)
    running, waiting = make_held(consumer, 1), make_held(consumer, 2)
    consumer.jobs.held = {"1-0": running, "2-0": waiting}
    consumer.begin([running], 1.0)
    hand.go()
    hand.go([[False, False]])
    assert hand.aborted == [running]
    assert running.job.lost
    assert waiting.ended
    assert not consumer.jobs.held


def test_all_that_is_due_is_renewed_in_bounded_scripts() -> None:
    """A short lease leaves no time for a second look, so the first one renews every lease that is
    due."""
    consumer = make_consumer(lease=9.0)
    hand = renewal(consumer)
    consumer.jobs.held = {
        f"{n}-0": make_held(consumer, n) for n in range(2 * CLAIMS_PER_SCRIPT + 300)
    }
    sizes: list[int] = []
    effect = hand.go()
    while not isinstance(effect, Sleep):
        (op,) = effect.ops
        assert op.name == "renew"
        entries = [arg for arg in op.args if str(arg).endswith("-0")]
        sizes.append(len(entries))
        effect = hand.go([[True] * len(entries)])
    assert sorted(sizes) == [300, CLAIMS_PER_SCRIPT, CLAIMS_PER_SCRIPT]
    assert consumer.renewals(hand.now) == []


@each(("deadline", "bound"), [(None, 9.0), (4.0, 9.0), (30.0, 30.0)])
def test_leases_are_renewed_for_a_bounded_time_while_nothing_turns(
    deadline: float | None, bound: float
) -> None:
    """After a lease, or a longer deadline, the event loop counts as dead and the handlers are told
    that they lost the job.
    """
    consumer = make_consumer(lease=9.0, deadline=deadline)
    worker = Lifecycle(WorkerSettings(), [consumer])
    hand = Hand(renew(worker))
    held, name = make_held(consumer), consumer.name
    consumer.jobs.held = {"1-0": held}
    consumer.begin([held], hand.now)
    worker.stalled_since = hand.now
    hand.now += bound - 0.1
    assert names(hand.go()) == ["renew"]
    hand.go([[True]])
    assert not held.job.lost
    hand.now += 0.1
    assert isinstance(hand.go(), Sleep)
    assert held.job.lost
    assert (consumer.name != name, consumer.registered, consumer.jobs.held) == (True, False, {})
    consumer.finished([held], hand.now, None)
    assert not consumer.unsettled()


def test_what_turned_again_is_not_given_up() -> None:
    consumer = make_consumer(lease=9.0)
    worker = Lifecycle(WorkerSettings(), [consumer], stalled_since=1.0)
    hand = Hand(renew(worker))
    consumer.jobs.held = {"1-0": make_held(consumer, since=hand.now)}
    worker.stalled_since = None
    assert isinstance(hand.go(), Sleep)
    assert consumer.jobs.held


def test_past_the_deadline() -> None:
    consumer = make_consumer(deadline=4.0)
    hand = reclaiming(consumer, heartbeat=4.0)
    held = make_held(consumer, since=hand.now)
    consumer.jobs.held = {"1-0": held}
    consumer.begin([held], hand.now)
    hand.go()
    assert hand.go([NOTHING]).seconds <= 1.0
    hand.now += 4.0
    hand.go()
    assert hand.aborted == [held]
    assert [op[0::8] for op in settled(consumer)] == [
        ("retry", "TimeoutError: the handler ran past its deadline of 4 s")
    ]
    consumer.finished([held], hand.now, None)
    consumer.finished([held], hand.now, None, b"late")
    assert not settled(consumer)  # what the handler still says does not count


def test_a_coroutine_past_its_deadline_is_cut_off_by_its_loop_first() -> None:
    """The loop raises `TimeoutError`, which middleware sees. A role that looked first would cancel
    the coroutine."""

    async def body(_job: Any) -> None: ...

    consumer = make_consumer(deadline=4.0)
    consumer.handler = evolve(consumer.handler, function=body)
    held = make_held(consumer)
    consumer.jobs.held = {"1-0": held}
    consumer.begin([held], 100.0)
    assert consumer.overdue(104.0 + CUT_OFF_S / 2) == []
    assert consumer.overdue(104.0 + CUT_OFF_S) == [held]  # it goes on all the same


def test_a_sweep_goes_on_when_it_is_asked_to() -> None:
    consumer = make_consumer()
    hand = reclaiming(consumer)
    hand.go()
    assert hand.go([Reclaimed(0, 0.025)]) == Sleep(0.025)
    hand.go()
    assert hand.go([Reclaimed(500, more=True)]) == Sleep(0.01)
    hand.go()
    assert hand.go([NOTHING]) == Sleep(1.0)


def test_who_is_not_registered_reclaims_nothing() -> None:
    consumer = make_consumer()
    consumer.registration.registered = False
    hand = reclaiming(consumer)
    assert isinstance(hand.go(), Sleep)


def test_leases_are_kept_while_handlers_finish() -> None:
    consumer = make_consumer(lease=9.0)
    roles = Lifecycle(WorkerSettings(), [consumer])
    hand = Hand(renew(roles))
    held = make_held(consumer)
    consumer.jobs.held = {"1-0": held}
    roles.advance_to(Phase.DRAINING)
    assert "renew" in names(hand.go())
    roles.advance_to(Phase.HALTING)
    assert hand.go([[True]]) is not None
    assert hand.go() is None


# -- what can't be judged --------------------------------------------------------------------------


@each("policy", [Retry(wait=lambda _: "soon"), Retry(stop=lambda _: 1 / 0)])
def test_a_strategy_that_fails_loses_no_job(policy: Retry) -> None:
    consumer = make_consumer(retry=policy)
    consumer.ended(make_held(consumer), ValueError("x"))
    ((name, *args),) = settled(consumer)
    assert (name, args[5]) == ("retry", "+60000")
    assert args[7].startswith("ValueError: x; and what should judge it raised ")


@each("delay", [datetime(2030, 1, 1), "soon", None, float("nan")])  # noqa: DTZ001
def test_a_delay_that_makes_no_sense_is_a_failure(delay: Any) -> None:
    consumer = make_consumer()
    consumer.ended(make_held(consumer), RetryLater(delay))
    ((name, *args),) = settled(consumer)
    assert (name, args[5], args[6]) == ("retry", "+7000", "1")
    assert args[7].startswith("RetryLater: retry ")


class Panic(BaseException):
    """An exception like the panic of an extension in Rust."""


@each("place", ["wait", "stop", "retry", "on", "codec"])
def test_what_is_no_exception_loses_no_job_either(place: str) -> None:
    def panics(_: Any) -> Any:
        raise Panic("here")

    policy = (
        Retry(**{place: {ValueError: panics} if place == "on" else panics})
        if place != "codec"
        else Retry()
    )
    consumer = make_consumer(retry=policy)
    notes = noted(consumer)
    if place == "codec":
        consumer.ops = evolve(
            consumer.ops, codec=type("Panics", (BytesCodec,), {"encode": lambda *_: panics(None)})()
        )
    consumer.ended(make_held(consumer), None if place == "codec" else ValueError("x"), b"result")
    ((name, *args),) = settled(consumer)
    if place == "codec":  # the handler has succeeded
        assert (name, *(str(error) for _, _, error in notes)) == ("complete", "here")
    else:
        assert name == "retry"
        assert "Panic: here" in args[7]


def test_releases_in_a_row_wait_unless_the_worker_stops() -> None:
    """Each pause is a separate call. A worker that stops releases at once."""
    consumer = make_consumer()

    def given_back(row: int) -> None:
        held = make_held(consumer, row)
        held.count = held.token = row
        consumer.ended(held, Release())

    for row in (1, FREE_RELEASES, FREE_RELEASES + 1, FREE_RELEASES + 2, 500):
        given_back(row)
    calls = settled(consumer)
    assert [(call[2], len(call[3:]) // 2) for call in calls] == [
        ("0", 2),
        ("100", 1),
        ("200", 1),
        ("60000", 1),
    ]
    for phase in (Phase.DRAINING, Phase.DRAINING):
        consumer.phase = phase
        given_back(500)
    assert [call[2] for call in settled(consumer)] == ["0"]


def test_what_waits_after_a_release_is_looked_for_when_it_is_due() -> None:
    consumer = make_consumer()
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1)])
    (unit,) = hand.backlog
    unit[0].count = unit[0].token = FREE_RELEASES + 1
    hand.run(consumer, error=Release())
    assert names(hand.go()) == ["release"]
    effect = hand.go([[True]])
    assert isinstance(effect, Sleep)
    assert effect.seconds == pytest.approx(0.1)


@each("way", ["returned", "by a verdict", "by the policy"])
def test_a_job_whose_result_is_no_bytes_completes_without(way: str) -> None:
    consumer = make_consumer(retry=Retry(on={OSError: lambda _: Complete(object())}))
    notes = noted(consumer)
    held = make_held(consumer)
    if way == "by the policy":
        consumer.ended(held, OSError())
    else:
        consumer.begin([held], 1.0)
        consumer.finished(
            [held], 2.0, Complete(object()) if way == "by a verdict" else None, object()
        )
    ((name, *args),) = settled(consumer)
    assert " ".join([name, *args]) == f"complete  1 0 0 0 {held.entry}"
    ((event, entry, error),) = notes
    assert (event, entry, type(error)) == ("result_dropped", held.entry, TypeError)


# -- listen ----------------------------------------------------------------------------------------


CONTROL = "headrace:{q}:q:control"


def said(*texts: str, state: str = "on") -> Received:
    return Received(state, [(CONTROL, text.encode()) for text in texts])


def hearing(*numbers: int) -> tuple[Consumer, Hand]:
    """Return a worker that runs these jobs, and the role that hears messages."""
    consumer = make_consumer(concurrency=5, lease=600.0)
    for number in numbers:
        held = make_held(consumer, number)
        held.started = 1.0
        consumer.jobs.held[held.entry] = held
    return consumer, Hand(listen(Lifecycle(WorkerSettings(), [consumer])))


def test_what_is_said_to_be_gone_is_renewed_and_lost() -> None:
    """The worker renews the jobs that the message names, and the reply decides. A job that it still
    holds goes on."""
    consumer, hand = hearing(1, 2, 3)
    effect = hand.go()
    assert isinstance(effect, Receive)
    assert list(effect.channels) == [CONTROL]
    assert isinstance(hand.go(said("7-0 8-0")), Receive)  # not of ours
    effect = hand.go(said("2-0 3-0 9-0"))
    assert sent(effect) == [("renew", consumer.name, "", "0", "2-0", "1", "3-0", "1")]
    assert isinstance(hand.go([[False, True]]), Receive)
    assert [held.entry for held in hand.aborted] == ["2-0"]
    assert sorted(consumer.jobs.held) == ["1-0", "3-0"]


@each("heard", [said("*"), said(state="anew"), said("5-0", "*")])
def test_everything_is_asked_about(heard: Received) -> None:
    """All jobs are asked about after a deletion, and after a while without a subscription."""
    consumer, hand = hearing(1, 2)
    hand.go()
    assert sent(hand.go(heard)) == [("renew", consumer.name, "", "0", "1-0", "1", "2-0", "1")]
    assert isinstance(hand.go([[False, False]]), Receive)
    assert len(hand.aborted) == 2
    assert consumer.jobs.held == {}


def test_many_are_asked_about_in_parts() -> None:
    consumer, hand = hearing(*range(1, CLAIMS_PER_SCRIPT + 3))
    hand.go()
    first = hand.go(said("*"))
    assert len(sent(first)[0]) == 4 + 2 * CLAIMS_PER_SCRIPT
    second = hand.go([[True] * CLAIMS_PER_SCRIPT])
    assert len(sent(second)[0]) == 4 + 2 * 2
    assert isinstance(hand.go([[True] * 2]), Receive)
    assert len(consumer.jobs.held) == CLAIMS_PER_SCRIPT + 2


def test_who_can_not_hear_tries_again() -> None:
    """The first attempt comes soon, and later ones come less often. After a refusal the pause is
    the longest."""
    _, hand = hearing()
    hand.go()
    pauses = []
    for _ in range(9):
        pause = hand.go(Received("cut"))
        pauses.append(pause.seconds)
        assert isinstance(hand.go(), Receive)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.05, 2.0)
    assert hand.go(Received("refused")) == Sleep(RETRY_REFUSED_S)
    assert isinstance(hand.go(), Receive)
    assert isinstance(hand.go(said(state="anew")), Receive)
    assert hand.go(Received("cut")) == Sleep(0.05)  # it was sound in between


def test_what_is_said_of_jobs_on_their_way() -> None:
    """A cancellation may arrive before the reply to the lease call. The cancelled job does not
    start."""
    consumer = make_consumer(concurrency=2, lease=600.0)
    roles = Lifecycle(WorkerSettings(), [consumer])
    fetching, ear = Hand(fetch(consumer)), Hand(listen(roles))
    ear.go()
    assert names(fetching.go()) == ["lease"]
    ear.go(said("1-0"))  # nothing is held yet
    effect = fetching.go([grant(consumer, 1, 2)])
    assert sent(effect) == [("renew", consumer.name, "", "0", "1-0", "1", "2-0", "1")]
    assert fetching.backlog == []
    fetching.go([[False, True]])
    assert [[job.id for job in consumer.begin(unit, 1.0)] for unit in fetching.backlog] == [
        [],
        ["2-0"],
    ]


def test_nothing_is_asked_about_when_nothing_was_said() -> None:
    consumer = make_consumer(concurrency=2)
    hand = Hand(fetch(consumer))
    hand.go()
    assert isinstance(hand.go([grant(consumer, 1, 2)]), Sleep)
    assert len(hand.backlog) == 2


def test_the_ear_is_closed_when_the_worker_halts() -> None:
    """The subscription stays open until the last handler ends, because handlers may still be
    cancelled."""
    consumer, _ = hearing(1)
    roles = Lifecycle(WorkerSettings(), [consumer])
    hand = Hand(listen(roles))
    hand.go()
    roles.advance_to(Phase.DRAINING)
    assert isinstance(hand.go(said()), Receive)
    roles.advance_to(Phase.HALTING)
    assert hand.go(said()) is None


# -- a stop whose server is away -------------------------------------------------------------------


def test_what_was_leased_is_kept_until_the_server_has_answered() -> None:
    """A job is kept while it runs, after it has ended, and while its settlement is under way."""
    consumer = make_consumer(concurrency=3)
    roles = Lifecycle(WorkerSettings(), [consumer])
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2, 3)])
    hand.run(consumer, after=1.0)
    hand.run(consumer, after=1.0, error=ValueError())
    consumer.begin(hand.backlog.pop(), hand.now)
    everything = [("q", f"{number}-0") for number in (1, 2, 3)]
    assert sorted(roles.kept()) == everything
    assert names(hand.go()) == ["complete", "retry", "lease"]
    assert sorted(roles.kept()) == everything
    hand.go([[True], [True], grant(consumer)])
    assert roles.kept() == [("q", "3-0")]
    leaving = Hand(roles.leave())
    assert names(leaving.go()) == ["leave"]
    assert names(leaving.go([(1, "1")])) == ["leave"]
    assert leaving.go([(1, "")]) is None
    assert roles.kept() == []


def test_a_farewell_lasts_while_handlers_run_or_answers_come() -> None:
    consumer = make_consumer(deadline=10.0)
    roles = Lifecycle(WorkerSettings(), [consumer], Phase.DRAINING)
    held = make_held(consumer)
    consumer.jobs.held[held.entry] = held
    deadline = ShutdownDeadline(roles, 1.0, 100.0, 5)
    held.started = 100.0
    # a handler runs, up to its deadline
    assert not any(deadline.over(100.0 + tick / 2, 5) for tick in range(20))
    assert [deadline.over(110.0 + tick / 2, 5) for tick in range(3)] == [False, True, True]
    assert not deadline.over(111.5, 6)  # an answer
    assert not deadline.over(112.0, 6)
    assert not deadline.over(200.0, 6)  # this process stood still
    assert [deadline.over(200.5, 6), deadline.over(201.0, 6)] == [False, True]
    roles.phase = Phase.HALTING
    held.started = 201.0
    assert deadline.over(201.5, 6)  # told to give up, it is not waited for


# -- tracebacks ------------------------------------------------------------------------------------


def raises(error: Exception) -> None:
    raise error


@each("keeps", [True, False])
def test_tracebacks_are_kept_where_they_are_asked_for(keeps: bool) -> None:
    consumer = make_consumer(retry=Retry(on={OSError: DeadLetter}))
    consumer.ops = evolve(consumer.ops, settings=evolve(consumer.ops.settings, tracebacks=keeps))
    made = [make_held(consumer, number) for number in (1, 2, 3, 4)]
    for held, error in zip(
        made, (ValueError("no"), OSError("never"), RetryLater(5), Release()), strict=True
    ):
        with pytest.raises(type(error)):
            raises(error)
        consumer.ended(held, error)
    found = {settlement.claim.entry: settlement for settlement in consumer.jobs.done}
    assert [found[held.entry].kind for held in made] == ["retry", "dead", "retry", "release"]
    ends = (
        ["ValueError: no\n", "OSError: never\n", "RetryLater: retry in 5 s\n"]
        if keeps
        else ["", "", ""]
    )
    for held, end in zip(made, ends, strict=False):
        settlement = found[held.entry]
        assert settlement.traceback.endswith(end)
        assert bool(settlement.traceback) == keeps
        assert settlement.size == len(settlement.reason) + len(settlement.traceback)
    assert found[made[3].entry].traceback == ""
    assert ("\\xffTraceback" in "".join(map("".join, settled(consumer)))) == keeps


def test_what_is_written_with_jobs_counts_as_bytes() -> None:
    """A script reads and writes about 1 MiB, so 120 jobs with reasons of 10,000 characters need two
    calls."""
    consumer = make_consumer()
    for number in range(120):
        consumer.settle(make_held(consumer, number), judged(consumer, number))
    assert [op[0] for op in settled(consumer)] == ["retry", "retry"]


def judged(consumer: Consumer, number: int) -> Any:
    return consumer.judge(make_held(consumer, number), ValueError("x" * 20_000))


def test_isolated_handlers_run_at_most_as_many_as_there_are_children() -> None:
    consumer = make_consumer(concurrency=2, children=list)
    found: list[list[int]] = []
    for wanted in (5, 1):
        consumer.leasing.wanted = wanted
        found.append([one.number for one in resize(consumer) if isinstance(one, Resize)])
    assert found == [[], [1]]
