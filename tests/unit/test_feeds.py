"""Feeds of a special kind, decided without Redis, threads or a clock: jobs by kind, and jobs that never end."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from tenacity import retry_never, wait_incrementing

from headrace import Complete, DeadLetter, Job, Release, Retry, RetryLater
from headrace._codec import BytesCodec
from headrace._feeds import Kinds, Persistent
from headrace._job import Grant
from headrace._roles import Held, Pause, Phase, Roles
from headrace._settings import HandlerSettings, QueueSettings, WorkerSettings
from tests.unit.test_roles import Hand, grant, keep, limit, make_feed, make_held, names, sent, settled

WORKER = WorkerSettings(heartbeat=2.0, timeout=10.0)


def special(kind: Any, *, lease: float = 60.0, concurrency: int = 2, **options: Any) -> Any:
    """A feed that is registered, of `Kinds` or `Persistent`."""
    settings = QueueSettings(lease=lease)
    retry, deadline = options.pop("retry", Retry()), options.pop("deadline", None)
    handler = HandlerSettings("q", print, concurrency, retry, deadline, settings, BytesCodec(), **options)
    plain = make_feed(lease=lease)
    feed = kind(plain.ops, handler, "w", plain.default_wait)
    feed.registered = True
    return feed


# -- kinds ---------------------------------------------------------------------------------------------------


def kinds(**retries: Retry) -> Any:
    feed = special(Kinds)
    made = {kind: evolve(feed.handler, retry=retry) for kind, retry in retries.items()}
    feed.handler = evolve(feed.handler, kinds=made)
    return feed


def of_kind(feed: Any, number: int, kind: str, **options: Any) -> Held:
    held = make_held(feed, number)
    held.job = Job(held.entry, b"x", "q", {"kind": kind}, **options)
    return held


def test_each_kind_has_its_own_retry() -> None:
    """Its limit of attempts, too: jobs of different limits are settled by calls of their own."""
    feed = kinds(a=Retry(attempts=3, wait=1), b=Retry(attempts=5, wait=2), c=Retry(attempts=3, wait=3))
    for number, kind in enumerate("abc", 1):
        feed.end(of_kind(feed, number, kind), ValueError("x"))
    ops = settled(feed)
    assert [(op[0], op[2]) for op in ops] == [("retry", "3"), ("retry", "5")]
    assert [op[6::5] for op in ops] == [("+1000", "+3000"), ("+2000",)]


def test_jobs_of_no_handler_get_no_slot() -> None:
    """They are put back at once, without an attempt, for others that may know them."""
    feed = kinds(a=Retry())
    hand = Hand(feed.fetch())
    hand.go()
    effect = hand.go([Grant([of_kind(feed, 1, "a"), of_kind(feed, 2, "b")])])
    assert [unit[0].entry for unit in hand.backlog] == ["1-0"]
    retry, lease = sent(effect)
    assert retry[4:8] == ("2-0", "1", "+10000", "0")
    assert lease[0] == "lease"
    assert list(feed.held) == ["1-0"]
    assert isinstance(hand.go([[True], grant(feed)]), Pause)
    assert feed.again is None  # it leaves it to others to look for it


def test_a_deadline_of_each_kind() -> None:
    feed = kinds(a=Retry(), b=Retry())
    a, b = feed.handler.kinds.values()
    feed.handler = evolve(feed.handler, deadline=4.0, kinds={"a": evolve(a, deadline=4.0), "b": b})
    hand = keep(feed, heartbeat=4.0)
    running = [of_kind(feed, 1, "a"), of_kind(feed, 2, "b")]
    feed.held = {held.entry: held for held in running}
    for held in running:
        held.since = hand.now
        feed.begin([held], hand.now)
    hand.now += 4.0
    hand.go()
    assert hand.aborted == running[:1]
    assert [op[8] for op in settled(feed)] == ["TimeoutError: the handler ran past its deadline of 4 s"]


# -- persistent jobs -----------------------------------------------------------------------------------------


def ended(
    error: BaseException | None, result: Any = None, *, after: float = 1.0, attempt: int = 3, **options: Any
) -> Any:
    """How a persistent job is settled whose handler ended so: (operation, delay, spend)."""
    feed = special(Persistent, **options)
    held = make_held(feed, attempt=attempt)
    feed.held = {held.entry: held}
    feed.begin([held], 100.0)
    feed.finish([held], 100.0 + after, error, result)
    assert not feed.held
    (op,) = settled(feed)
    return (op[0], *op[6:8]) if op[0] == "retry" else op[0]


WAITS = Retry(wait=wait_incrementing(10, 5))


@pytest.mark.parametrize(
    ("error", "result", "options", "expected"),
    [
        (None, None, {}, ("retry", "+20000", "0")),
        (None, b"kept by nobody", {}, ("retry", "+20000", "0")),
        (OSError(), None, {}, ("retry", "+20000", "1")),
        (None, None, {"after": 60.0}, ("retry", "+10000", "-1")),
        (OSError(), None, {"after": 60.0}, ("retry", "+10000", "-1")),
        (OSError(), None, {"after": 59.0}, ("retry", "+20000", "1")),
        (None, None, {"retry": Retry(wait=4, retry=retry_never)}, ("retry", "+4000", "0")),
        (OSError(), None, {"retry": Retry(wait=4, retry=retry_never)}, "dead_letter"),
        (OSError(), None, {"retry": Retry(on={OSError: RetryLater(3)}), "after": 60.0}, ("retry", "+3000", "0")),
        (None, RetryLater(3), {}, ("retry", "+3000", "0")),
        (RetryLater(3, spend=True), None, {"after": 60.0}, ("retry", "+3000", "1")),
        (None, Release(), {}, "release"),
        (Release(), None, {}, "release"),
        (None, Complete(), {}, "complete"),
        (None, Complete(b"r"), {}, "complete"),
        (Complete(), None, {}, "complete"),
        (DeadLetter("no"), None, {}, "dead_letter"),
        (None, DeadLetter("no"), {}, "dead_letter"),
    ],
)
def test_how_a_persistent_job_ends(error: Any, result: Any, options: dict[str, Any], expected: Any) -> None:
    """By what says so only; else it runs again. After a long run the count of failures starts anew."""
    assert ended(error, result, **{"retry": WAITS} | options) == expected


def test_nothing_is_leased_ahead_of_a_slot() -> None:
    """However quickly a handler returns: what waits behind those that never do would wait in vain."""
    feed = special(Persistent, concurrency=2)
    hand = Hand(feed.fetch())
    assert limit(hand.go()) == 2
    hand.go([grant(feed, 1, 2)])
    hand.run(feed, after=0.001)
    hand.run(feed, after=0.001, error=RetryLater(5))
    assert limit(hand.go()) == 2
    assert feed.room() == 0


def test_a_worker_that_stops_gives_them_up() -> None:
    """Handlers are told, and what they held is at the front once they have let go of it, not earlier."""
    feed = special(Persistent, concurrency=4)
    roles = Roles(WORKER, [feed])
    hand = Hand(feed.fetch())
    hand.go()
    hand.go([grant(feed, 1, 2, 3, 4)])
    units = [hand.backlog.pop(0) for _ in range(3)]
    for unit in units:
        feed.begin(unit, hand.now)
    roles.turn(Phase.DRAINING)
    assert sent(hand.go()) == [("release", feed.name, "4-0", "1")]
    assert hand.aborted == [unit[0] for unit in units]
    assert isinstance(hand.go([[True]]), Pause)
    assert len(hand.aborted) == 3  # told once
    for unit, error in zip(units, (None, OSError(), DeadLetter("it is over")), strict=True):
        feed.finish(unit, hand.now, error)
    assert names(hand.go()) == ["release", "dead_letter"]
    assert hand.go([[True, True], [True]]) is None


def test_what_was_lost_is_not_settled() -> None:
    feed = special(Persistent)
    for error in [None, OSError(), Complete(), DeadLetter("no")]:
        held = make_held(feed)
        feed.begin([held], 1.0)
        list(feed.lose([held]))
        feed.finish([held], 2.0, error)
    assert not settled(feed)
    held = make_held(feed)
    feed.begin([held], 1.0)
    feed.phase = Phase.HALTING
    feed.finish([held], 2.0, None)
    assert held.ended
    assert not feed.done


def holding(feed: Any, now: float) -> Held:
    held = make_held(feed, since=now)
    feed.held = {held.entry: held}
    feed.begin([held], now)
    feed.beaten = now
    return held


@pytest.mark.parametrize(("heartbeat", "timeout", "patience"), [(2.0, 10.0, 8.0), (2.0, 4.0, 3.0), (0.5, 5.0, 4.5)])
def test_who_hears_nothing_gives_up_before_others_take_over(heartbeat: float, timeout: float, patience: float) -> None:
    """Nobody declares us dead before `timeout` after our last beat; we know when we sent it."""
    feed = special(Persistent)
    hand = Hand(feed.watch(WorkerSettings(heartbeat, timeout)))
    held = holding(feed, hand.now)
    name = feed.name
    assert hand.go().seconds <= heartbeat / 4
    hand.now += patience - 0.01
    assert isinstance(hand.go(), Pause)
    assert not held.job.lost
    hand.now += 0.02
    assert hand.go().seconds <= heartbeat / 4
    assert hand.aborted == [held]
    assert held.job.lost
    assert not feed.held
    assert feed.name != name  # what it held under the old one is left to its peers
    assert not feed.registered
    hand.now += timeout
    hand.go()
    assert not feed.registered
    feed.phase = Phase.STOPPED
    assert hand.go() is None


def test_a_lease_that_could_not_be_renewed_is_given_up_in_time() -> None:
    feed = special(Persistent, lease=6.0)
    hand = Hand(feed.watch(WORKER))
    held = holding(feed, hand.now)
    assert hand.go().seconds <= 0.5
    hand.now += 4.9
    hand.go()
    assert not held.job.lost
    hand.now += 0.2
    hand.go()
    assert hand.aborted == [held]
    assert feed.registered  # its beats were answered


def test_a_beat_counts_from_when_it_was_sent() -> None:
    """The server may have heard it just then; one that took long is followed by another at once."""
    feed = special(Persistent)
    hand = Hand(Roles(WORKER, [feed]).beat())
    hand.go()
    sent_at = hand.now
    hand.now += 1.0
    assert hand.go([True]) == Pause(2.0)
    assert feed.beaten == sent_at
    hand.now += 2.0
    hand.go()
    hand.now += 3.0
    assert hand.go([True]) == Pause(0.0)
    assert feed.beaten == sent_at + 3.0
