"""What a worker does, decided without Redis, threads or a clock: a `Hand` performs the effects."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from attrs import evolve
from tenacity import wait_fixed

from headrace import BatchError, DeadLetter, Job, NameTaken, Release, Retry, RetryLater
from headrace._codec import BytesCodec
from headrace._job import Entered, Grant, Reclaimed, Ticking
from headrace._keys import Keys
from headrace._ops import BATCH, Ops
from headrace._roles import (
    LATE,
    SOON,
    TAKE,
    Abort,
    Effect,
    Feed,
    Held,
    Listen,
    Now,
    Pause,
    Phase,
    Poke,
    Recall,
    Role,
    Roles,
    Say,
    Send,
    Start,
)
from headrace._settings import HandlerSettings, QueueSettings, WorkerSettings
from headrace._ticks import tick


def make_feed(
    *,
    concurrency: int = 2,
    lease: float = 60.0,
    retry: Retry | None = None,
    deadline: float | None = None,
    **batch: Any,
) -> Feed:
    settings = QueueSettings(lease=lease)
    handler = HandlerSettings("q", print, concurrency, retry or Retry(), deadline, settings, BytesCodec(), **batch)
    feed = Feed(Ops(Keys.of("q", "headrace"), settings), handler, "w", wait_fixed(7))
    feed.registered = True
    return feed


def make_held(feed: Feed, number: int = 1, attempt: int = 1, since: float = 0.0) -> Held:
    entry = f"{number}-0"
    return Held(Job(entry, b"x", "q", attempt=attempt), feed.name, entry, attempt, attempt, since=since)


class Hand:
    """An engine without a server: it performs what needs none, and hands out `Send`, `Listen` and `Pause`."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.now = 100.0
        self.backlog: list[list[Held]] = []
        self.aborted: list[Held] = []
        self.pokes: list[bool] = []
        self.said: list[str] = []

    def go(self, answer: Any = None) -> Any:
        """The next effect that somebody else must answer; `None` when the role has ended."""
        try:
            effect: Effect = self.role.send(answer)
            while True:
                reply: Any = None
                match effect:
                    case Now():
                        reply = self.now
                    case Start(units):
                        self.backlog += units
                    case Recall():
                        reply, self.backlog = self.backlog, []
                    case Abort(held):
                        self.aborted += held
                        for one in held:
                            one.job.lost.set()
                    case Poke(everyone):
                        self.pokes.append(everyone)
                    case Say(text):
                        self.said.append(text)
                    case _:
                        return effect
                effect = self.role.send(reply)
        except StopIteration:
            return None

    def run(self, feed: Feed, after: float = 0.0, error: BaseException | None = None, result: Any = None) -> list[Job]:
        """Run the handler on the unit that has waited longest."""
        unit = self.backlog.pop(0)
        jobs = feed.begin(unit, self.now)
        self.now += after
        if jobs:
            feed.finish(unit, self.now, error, result)
        return jobs


def sent(effect: Any) -> list[tuple[str, ...]]:
    """The operations of a `Send`: name and what it is about."""
    assert isinstance(effect, Send), effect
    return [(op.name, *map(str, op.args)) for op in effect.ops]


def names(effect: Any) -> list[str]:
    return [op[0] for op in sent(effect)]


def grant(feed: Feed, *numbers: int) -> Grant:
    return Grant([make_held(feed, number) for number in numbers])


def settled(feed: Feed) -> list[tuple[str, ...]]:
    """How the jobs end whose verdict is known."""
    effect = Hand(feed.fetch()).go()
    return [op for op in sent(effect) if op[0] != "lease"] if isinstance(effect, Send) else []


def limit(effect: Any) -> int:
    """How many jobs the lease call of a `Send` asks for."""
    return int(next(op for op in sent(effect) if op[0] == "lease")[2])


# -- fetch -----------------------------------------------------------------------------------------------


def test_settles_and_leases_in_one_round_trip() -> None:
    feed = make_feed()
    hand = Hand(feed.fetch())
    assert limit(hand.go()) == 2
    assert isinstance(hand.go([grant(feed, 1, 2)]), Pause)  # both slots are taken: nothing is leased
    assert [unit[0].entry for unit in hand.backlog] == ["1-0", "2-0"]
    hand.run(feed, after=1.0)
    effect = hand.go()
    assert names(effect) == ["complete", "lease"]
    assert limit(effect) == 1


def test_nothing_is_leased_before_the_worker_is_registered() -> None:
    feed = make_feed()
    feed.registered = False
    hand = Hand(feed.fetch())
    assert isinstance(hand.go(), Pause)
    feed.registered = True
    assert names(hand.go()) == ["lease"]


@pytest.mark.parametrize(("concurrency", "sent"), [(1, ["complete"]), (2, ["complete", "lease"])])
def test_two_fetchers_of_one_feed(concurrency: int, sent: list[str]) -> None:
    """Two lease calls may be answered in either order: with one slot, which promises order, there is but one."""
    took = SOON / 10
    feed = make_feed(concurrency=concurrency)
    feed.mean = took
    first, second = Hand(feed.fetch()), Hand(feed.fetch())
    room = limit(first.go())
    assert room == 11 * concurrency
    assert isinstance(second.go(), Pause)  # no room for more, as long as nobody knows what comes
    first.go([grant(feed, *range(room))])
    first.run(feed, after=took)
    assert names(first.go()) == ["complete", "lease"]
    first.run(feed, after=took)
    assert names(second.go()) == sent


def test_an_empty_queue_is_left_to_listen() -> None:
    """Fewer than asked for: no lease call again before the server says that there is something."""
    feed = make_feed()
    fetch, listen = Hand(feed.fetch()), Hand(feed.listen())
    assert isinstance(listen.go(), Pause)  # while there may be jobs, nobody blocks
    fetch.go()
    assert isinstance(fetch.go([grant(feed, 1)]), Pause)
    assert fetch.pokes == [False]
    heard = listen.go()
    assert isinstance(heard, Listen)
    assert "BLOCK" in heard.command
    assert isinstance(listen.go(False), Listen)  # nothing came
    assert isinstance(fetch.go(), Pause)
    assert isinstance(listen.go(True), Pause)
    assert sent(fetch.go())[0][-2] == "1"  # woken: the call takes the tokens off the wake stream


def test_the_next_delay_is_waited_for_by_the_worker_itself() -> None:
    """A server may end a blocked read 0.1 s late; and what is far away costs no call before its time."""
    feed = make_feed()
    fetch, listen = Hand(feed.fetch()), Hand(feed.listen())
    fetch.go()
    assert fetch.go([Grant([], next_due=1.25)]) == Pause(1.0)
    heard = listen.go()
    assert heard.command[heard.command.index("BLOCK") + 1] == 1000
    assert isinstance(listen.go(False), Listen)
    fetch.now += 1.0
    assert fetch.go() == Pause(0.25)
    fetch.now += 0.25
    assert fetch.go() == Pause(0.0)
    assert names(fetch.go()) == ["lease"]


def test_a_look_tells_of_delays_and_schedules_that_others_made() -> None:
    feed = make_feed()
    fetch, hand = Hand(feed.fetch()), keep(feed)
    fetch.go()
    assert fetch.go([Grant([])]) == Pause(1.0)
    hand.go()
    hand.go([evolve(NOTHING, next_due=0.5, next_tick=3.0)])
    assert (feed.again, feed.tick) == (hand.now + 0.5, hand.now + 3.0)
    assert hand.pokes == [False]
    assert fetch.go() == Pause(0.5)
    hand.go()
    hand.go([NOTHING])
    assert (feed.again, feed.tick) == (hand.now + 0.5, None)


def test_a_reader_woken_for_nothing_asks_for_schedules() -> None:
    feed = make_feed()
    fetch, ticker = Hand(feed.fetch()), Hand(tick(feed))
    assert ticker.go() == Pause(1.0)
    fetch.go()
    fetch.go([Grant([])])
    assert ticker.go() == Pause(1.0)
    feed.woken = feed.available = True
    fetch.go()
    fetch.go([Grant([])])
    assert names(ticker.go()) == ["schedules"]
    assert ticker.go([Ticking(5, 0.25, [])]) == Pause(0.25)


def test_a_tick_is_put_in_and_the_next_one_awaited() -> None:
    """What can't be computed here is said once, and left to others."""
    feed = make_feed()
    feed.tick = 0.0
    hand = Hand(tick(feed))
    hand.go()
    rows = [("a", 1000, "every 1000", "once"), ("b", 1000, "every no", "once")]
    assert sent(hand.go([Ticking(1200, 5.0, rows)])) == [("tick", "a", "every 1000", "1000", "2000", "1000")]
    assert round(hand.go([[True]]).seconds, 6) == 0.8
    assert len(hand.said) == 1
    assert "schedule 'b' of queue 'q'" in hand.said[0]
    feed.tick = 0.0
    hand.go()
    hand.go([Ticking(1200, None, rows[1:])])
    assert (feed.tick, len(hand.said)) == (None, 1)
    feed.phase = Phase.DRAINING
    assert hand.go() is None


def test_jobs_are_leased_ahead_as_far_as_they_will_start_soon() -> None:
    feed = make_feed(concurrency=2)
    for took, most in [(None, 2), (10.0, 2), (0.1, 3), (0.01, 2 + 10), (1e-9, TAKE)]:
        feed.mean = took
        assert feed.room() == most, f"{took}: 2 slots and what starts within {SOON} s"


def test_the_mean_follows_the_handler() -> None:
    feed = make_feed(concurrency=1)
    hand = Hand(feed.fetch())
    effect = hand.go()
    asked = []
    for number in range(0, 60_000, 1000):
        asked.append(limit(effect))
        answers: list[Any] = [grant(feed, *range(number, number + asked[-1]))]
        hand.go([[True] * asked[-2], *answers] if number else answers)
        while hand.backlog:
            hand.run(feed, after=0.001 if number < 30_000 else 5.0)
        effect = hand.go()
    assert asked[0] == 1
    assert max(asked) > 40
    assert limit(effect) == 1


def test_what_waits_behind_something_slow_goes_back_to_the_front() -> None:
    """Two handlers that hang keep nothing from other workers: what was leased ahead is released, unspent."""
    feed = make_feed(concurrency=1)
    feed.mean = SOON / 3
    hand = Hand(feed.fetch())
    hand.go()
    pause = hand.go([grant(feed, 1, 2, 3, 4)])
    unit = hand.backlog.pop(0)
    feed.begin(unit, hand.now)
    hand.now += LATE - 0.01
    assert isinstance(hand.go(), Pause)  # not yet
    assert isinstance(pause, Pause)
    hand.now += 0.02
    assert hand.go() == Pause(0.0)
    effect = hand.go()
    assert [op[0] for op in sent(effect)] == ["release"]  # and nothing is leased meanwhile
    assert sent(effect)[0][2::2] == ("2-0", "3-0", "4-0")
    assert isinstance(hand.go([[True, True, True]]), Pause)
    feed.finish(unit, hand.now, None)
    assert names(hand.go()) == ["complete", "lease"]


def test_settlements_are_grouped_and_bounded() -> None:
    """One call for each kind, at most a script's worth at a time; a new name settles what the old one leased."""
    feed = make_feed(concurrency=3000)
    old = feed.name
    claims = [make_held(feed, number) for number in range(BATCH + 10)]
    feed.registered = False
    feed.rename()
    claims += [make_held(feed, BATCH + 10)]
    for claim in claims:
        feed.end(claim, None)
    hand = Hand(feed.fetch())
    assert [(op[0], len(op)) for op in sent(hand.go())] == [("complete", 6 + BATCH)]
    assert [(op[0], len(op)) for op in sent(hand.go([[True] * BATCH]))] == [("complete", 6 + 10), ("complete", 6 + 1)]
    assert isinstance(hand.go([[True] * 10, [True]]), Pause)
    assert old != feed.name
    for error in [ValueError(), DeadLetter("no"), Release(), None]:
        feed.end(make_held(feed, 1), error)
    assert sorted(names(hand.go())) == ["complete", "dead_letter", "release", "retry"]
    assert isinstance(hand.go([[True]] * 4), Pause)


def test_a_job_retried_at_once_is_leased_without_being_woken() -> None:
    """The server wakes nobody for a delay: who asked for one looks again when it is due."""
    feed = make_feed()
    hand = Hand(feed.fetch())
    hand.go()
    hand.go([grant(feed, 1)])
    hand.run(feed, error=RetryLater(0.5))
    assert not feed.available
    assert names(hand.go()) == ["retry"]
    pause = hand.go([[True]])
    assert pause.seconds == pytest.approx(0.5)
    hand.now += 0.6
    assert hand.go() == Pause(0.0)
    assert names(hand.go()) == ["lease"]


def test_undecodable_jobs_are_buried_with_the_next_call() -> None:
    feed = make_feed()
    hand = Hand(feed.fetch())
    hand.go()
    effect = hand.go([Grant([], [(make_held(feed), "not JSON")])])
    assert sent(effect) == [("dead_letter", feed.name, "1000", "1-0", "1", "not JSON")]


def test_settlements_that_came_too_late_are_counted() -> None:
    feed = make_feed()
    hand = Hand(feed.fetch())
    hand.go()
    hand.go([grant(feed, 1, 2)])
    hand.run(feed)
    hand.run(feed)
    hand.go()
    hand.go([[True, False], grant(feed)])
    assert feed.lost == 1
    assert not feed.held


# -- batches -----------------------------------------------------------------------------------------------


def test_a_batch_starts_when_it_is_full_or_old_enough() -> None:
    feed = make_feed(concurrency=2, batch=True, max_size=3, max_wait=5.0)
    hand = Hand(feed.fetch())
    assert limit(hand.go()) == 6
    pause = hand.go([grant(feed, 1, 2, 3, 4)])
    assert pause == Pause(5.0)
    assert [job.id for job in hand.run(feed)] == ["1-0", "2-0", "3-0"]
    hand.now += 4.9
    effect = hand.go()
    assert names(effect) == ["complete"]
    pause = hand.go([[True] * 3])
    assert not hand.backlog
    assert 0 < pause.seconds <= 0.11
    hand.now += 0.2
    hand.go()
    assert [job.id for job in hand.run(feed)] == ["4-0"]


def test_a_verdict_for_each_job_of_a_batch() -> None:
    feed = make_feed(batch=True, max_size=4, max_wait=0.0)
    unit = [make_held(feed, number) for number in range(4)]
    feed.begin(unit, 1.0)
    feed.finish(unit, 2.0, BatchError({"0-0": DeadLetter("no"), "1-0": ValueError("v"), "2-0": "?", "9-9": OSError()}))  # type: ignore[dict-item]
    ops = {op[0]: op for op in settled(feed)}
    assert ops["dead_letter"][3:] == ("0-0", "1", "no")
    assert ops["retry"][4:9] == ("1-0", "1", "+7000", "1", "ValueError: v")
    assert ops["retry"][9:13] == ("2-0", "1", "+7000", "1")
    assert "BatchError names '?'" in ops["retry"][13]
    assert ops["complete"][-1] == "3-0"


def test_a_batch_is_run_on_what_is_left_of_it() -> None:
    """A job that was lost while the batch waited for a slot is not handed to the handler."""
    feed = make_feed(batch=True, max_size=2, max_wait=0.0)
    hand = Hand(feed.fetch())
    hand.go()
    hand.go([grant(feed, 1, 2)])
    list(feed.lose([feed.held["1-0"]]))
    assert [job.id for job in hand.run(feed)] == ["2-0"]
    assert [op[-1] for op in settled(feed)] == ["2-0"]


# -- stopping -----------------------------------------------------------------------------------------------


def test_draining_gives_back_what_has_not_started_and_waits_for_the_rest() -> None:
    feed = make_feed()
    roles = Roles(WorkerSettings(), [feed])
    hand = Hand(feed.fetch())
    hand.go()
    hand.go([grant(feed, 1, 2)])
    unit = hand.backlog.pop(0)
    feed.begin(unit, hand.now)
    roles.turn(Phase.DRAINING)
    assert sent(hand.go()) == [("release", feed.name, "2-0", "1")]
    assert isinstance(hand.go([[True]]), Pause)
    assert feed.begin([make_held(feed, 3)], hand.now) == []  # a thread that was just about to
    assert names(hand.go()) == ["release"]
    assert isinstance(hand.go([[True]]), Pause)
    feed.finish(unit, hand.now, None, b"kept")
    assert names(hand.go()) == ["complete"]
    assert hand.go([[True]]) is None


def test_draining_gives_back_a_batch_that_is_still_gathered() -> None:
    feed = make_feed(batch=True, max_size=10, max_wait=60.0)
    roles = Roles(WorkerSettings(), [feed])
    hand = Hand(feed.fetch())
    hand.go()
    hand.go([grant(feed, 1, 2)])
    roles.turn(Phase.DRAINING)
    assert sent(hand.go()) == [("release", feed.name, "1-0", "1", "2-0", "1")]
    assert hand.go([[True, True]]) is None


def test_halting_waits_for_nobody() -> None:
    """What runs is left to `leave`, which releases it; what was done is still settled."""
    feed = make_feed()
    roles = Roles(WorkerSettings(), [feed])
    hand = Hand(feed.fetch())
    hand.go()
    hand.go([grant(feed, 1, 2)])
    hand.run(feed)
    unit = hand.backlog.pop(0)
    feed.begin(unit, hand.now)
    roles.turn(Phase.HALTING)
    feed.finish(unit, hand.now, None)  # told to stop, it returns: that is no completion
    assert names(hand.go()) == ["complete"]
    assert hand.go([[True]]) is None
    assert hand.role.gi_frame is None  # type: ignore[attr-defined]


def test_phases_only_go_up() -> None:
    feed = make_feed()
    roles = Roles(WorkerSettings(), [feed])
    roles.turn(Phase.HALTING)
    roles.turn(Phase.DRAINING)
    assert roles.phase is feed.phase is Phase.HALTING


# -- beat -----------------------------------------------------------------------------------------------------


def test_declared_dead() -> None:
    """It stops what it runs, forgets what it has not begun, and is back under a new name at once."""
    feed = make_feed()
    feed.registered = False
    old = feed.name
    beat, fetch = Hand(Roles(WorkerSettings(heartbeat=2.0), [feed]).beat()), Hand(feed.fetch())
    assert sent(beat.go())[0][-1] == "1"  # the first beat registers
    assert beat.go([True]) == Pause(2.0)
    fetch.go()
    fetch.go([grant(feed, 1, 2)])
    running, waiting = feed.held.values()
    unit = fetch.backlog.pop(0)
    feed.begin(unit, fetch.now)
    assert sent(beat.go())[0][-1] == "0"
    assert beat.go([False]) == Pause(0.0)
    assert feed.name != old
    assert not feed.registered
    assert not feed.held
    assert beat.aborted == [running]
    assert True in beat.pokes
    assert fetch.run(feed) == []  # `waiting` does not start
    assert waiting.ended
    assert sent(beat.go())[0][1:] == (feed.name, "10000", "60000", "1")
    assert beat.go([True]) == Pause(2.0)
    assert feed.registered
    feed.finish(unit, fetch.now, None)
    assert not settled(feed)  # a handler that was told returns because it gives up, not because it is done


def test_a_name_of_its_own() -> None:
    """It looks for one and a half heartbeats whether somebody lives under it; then it is in, and an heir."""
    feed = make_feed()
    feed.named, feed.registered = True, False
    beat, fetch = Hand(Roles(WorkerSettings(heartbeat=2.0), [feed]).beat()), Hand(feed.fetch())
    assert sent(beat.go())[0] == ("register", feed.name, "w", "10000", "60000", "", "0")
    assert beat.go([Entered(0, "w.1 5")]) == Pause(0.5)
    for after in (0.5, 2.9):
        beat.now = 100.0 + after
        assert sent(beat.go())[0][-2:] == ("w.1 5", "0")
        assert beat.go([Entered(0, "w.1 5")]) == Pause(0.5)
    assert isinstance(fetch.go(), Pause)
    beat.now = 103.0
    assert sent(beat.go())[0][-2:] == ("w.1 5", "1")
    assert beat.go([Entered(1, "w.1")]) == Pause(2.0)
    assert sent(fetch.go())[0][-1] == "w.1"
    fetch.go([Grant([], paused=True)])
    feed.available = True
    assert sent(fetch.go())[0][-1] == "w.1"  # nothing was handed out yet
    fetch.go([Grant([])])
    feed.available = True
    assert sent(fetch.go())[0][-1] == ""
    assert sent(beat.go())[0][0] == "beat"


def test_a_name_that_is_taken() -> None:
    feed = make_feed()
    feed.named, feed.registered = True, False
    beat = Hand(Roles(WorkerSettings(), [feed]).beat())
    beat.go()
    with pytest.raises(NameTaken, match=r"name='w': w\.1 lives under this name, on queue 'q'; give each"):
        beat.go([Entered(-1, "w.1")])
    assert not feed.registered


def test_a_paused_queue_is_asked_no_more_than_an_empty_one() -> None:
    """The reader waits on the wake stream only, and asks again when it rings, or after as long as ever."""
    feed = make_feed()
    fetch, listen = Hand(feed.fetch()), Hand(feed.listen())
    fetch.go()
    assert isinstance(fetch.go([Grant([], paused=True)]), Pause)
    heard = listen.go()
    assert heard.command[0] == "XREAD"
    assert heard.command[-3:] == ("STREAMS", "headrace:{q}:q:wake", "$")
    assert isinstance(listen.go(False), Pause)
    fetch.go()
    fetch.go([Grant([])])
    assert listen.go().command[0] == "XREADGROUP"


def test_what_a_handler_says_of_a_lost_job_does_not_count() -> None:
    feed = make_feed()
    for error in [None, ValueError(), Release(), DeadLetter("no")]:
        held = make_held(feed)
        feed.begin([held], 1.0)
        list(feed.lose([held]))
        feed.finish([held], 2.0, error)
    assert not settled(feed)


def test_a_lease_call_that_hears_it_first() -> None:
    """The server refuses to hand out to the dead: that says it as well as a beat does."""
    feed = make_feed()
    old = feed.name
    hand = Hand(feed.fetch())
    hand.go()
    assert isinstance(hand.go([None]), Pause)
    assert feed.name != old
    assert not feed.registered


def test_jobs_that_come_under_the_old_name_are_not_run() -> None:
    """Declared dead while the lease call was under way: our peers have put these back already."""
    feed = make_feed()
    hand = Hand(feed.fetch())
    hand.go()
    late = grant(feed, 1, 2)
    list(feed.died())
    assert isinstance(hand.go([late]), Pause)
    assert hand.backlog == []
    assert not feed.held
    assert not settled(feed)


# -- keep -----------------------------------------------------------------------------------------------------


def keep(*feeds: Feed, heartbeat: float = 2.0, timeout: float = 10.0) -> Hand:
    return Hand(Roles(WorkerSettings(heartbeat, timeout), feeds).keep())


NOTHING = Reclaimed(0, "-")


@pytest.mark.parametrize(("heartbeat", "timeout"), [(2.0, 10.0), (0.3, 1.0), (0.5, 60.0)])
def test_the_dead_are_found_within_one_heartbeat(heartbeat: float, timeout: float) -> None:
    """Worst case: killed right after a beat, found by a look that comes right before its time is over."""
    hand = keep(make_feed(), heartbeat=heartbeat, timeout=timeout)
    hand.go()
    assert hand.go([NOTHING]).seconds <= 0.75 * heartbeat


def test_leases_are_renewed_after_a_third() -> None:
    feed = make_feed(lease=9.0)
    hand = keep(feed)
    feed.held = {"1-0": make_held(feed, 1, since=hand.now), "2-0": make_held(feed, 2, since=hand.now - 3.0)}
    assert [op[0] for op in sent(hand.go())] == ["renew", "reclaim"]
    assert hand.go([[True], NOTHING]) == Pause(1.5)
    assert feed.held["2-0"].since == hand.now
    hand.now += 1.5
    assert names(hand.go()) == ["reclaim"]
    hand.go([NOTHING])
    hand.now += 1.5
    assert names(hand.go()) == ["renew", "reclaim"]  # with two thirds of it to spare


def test_a_lease_that_is_not_renewed_is_lost() -> None:
    feed = make_feed(lease=9.0)
    hand = keep(feed)
    running, waiting = make_held(feed, 1), make_held(feed, 2)
    feed.held = {"1-0": running, "2-0": waiting}
    feed.begin([running], 1.0)
    hand.go()
    hand.go([[False, False], NOTHING])
    assert hand.aborted == [running]
    assert running.job.lost
    assert waiting.ended
    assert not feed.held


def test_renewals_are_bounded() -> None:
    feed = make_feed(lease=9.0)
    feed.held = {f"{n}-0": make_held(feed, n) for n in range(BATCH + 500)}
    assert len(feed.renewals(100.0)) == BATCH


def test_past_the_deadline() -> None:
    feed = make_feed(deadline=4.0)
    hand = keep(feed, heartbeat=4.0)
    held = make_held(feed, since=hand.now)
    feed.held = {"1-0": held}
    feed.begin([held], hand.now)
    hand.go()
    assert hand.go([NOTHING]).seconds <= 1.0
    hand.now += 4.0
    hand.go()
    assert hand.aborted == [held]
    assert [op[0::8] for op in settled(feed)] == [("retry", "TimeoutError: the handler ran past its deadline of 4 s")]
    feed.finish([held], hand.now, None)
    feed.finish([held], hand.now, None, b"late")
    assert not settled(feed)  # what the handler still says does not count


def test_a_sweep_goes_on_where_it_stopped() -> None:
    feed = make_feed()
    hand = keep(feed)
    assert sent(hand.go())[0][4] == "-"
    assert hand.go([Reclaimed(0, "(5-0")]) == Pause(0.25)
    assert sent(hand.go())[0][4] == "(5-0"
    assert hand.go([Reclaimed(500, "-", more=True)]) == Pause(0.01)


def test_who_is_not_registered_reclaims_nothing() -> None:
    feed = make_feed()
    feed.registered = False
    hand = keep(feed)
    assert isinstance(hand.go(), Pause)


def test_leases_are_kept_while_handlers_finish() -> None:
    feed = make_feed(lease=9.0)
    roles = Roles(WorkerSettings(), [feed])
    hand = Hand(roles.keep())
    held = make_held(feed)
    feed.held = {"1-0": held}
    roles.turn(Phase.DRAINING)
    assert "renew" in names(hand.go())
    roles.turn(Phase.HALTING)
    assert hand.go([[True], NOTHING]) is not None
    assert hand.go() is None


# -- what can't be judged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Retry(wait=lambda _: "soon"), Retry(stop=lambda _: 1 / 0)])
def test_a_strategy_that_fails_loses_no_job(policy: Retry) -> None:
    feed = make_feed(retry=policy)
    feed.end(make_held(feed), ValueError("x"))
    ((name, *args),) = settled(feed)
    assert (name, args[5]) == ("retry", "+60000")
    assert args[7].startswith("ValueError: x; and what should judge it raised ")


@pytest.mark.parametrize("delay", [datetime(2030, 1, 1), "soon", None])  # noqa: DTZ001
def test_a_delay_that_makes_no_sense_loses_no_job(delay: Any) -> None:
    feed = make_feed()
    feed.end(make_held(feed), RetryLater(delay))
    ((name, *args),) = settled(feed)
    assert (name, args[5]) == ("retry", "+60000")


def test_a_result_that_is_no_bytes_is_the_jobs_failure() -> None:
    feed = make_feed()
    feed.end(make_held(feed), None, object())
    ((name, *args),) = settled(feed)
    assert name == "retry"
    assert args[7].startswith("TypeError")
