"""Consumers of special kinds, without Redis, threads or a clock. They lease jobs by kind, or run
jobs that never end.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from tenacity import retry_never, wait_incrementing

from headrace import Complete, DeadLetter, Job, Release, Retry, RetryLater
from headrace._core.effects import HeldJob, Phase, Sleep
from headrace._core.worker.fetch import fetch
from headrace._core.worker.heartbeat import beat
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.renewal import lose
from headrace._core.worker.variants import KindConsumer, PersistentConsumer, watch
from headrace._model.codec import BytesCodec
from headrace._model.settings import HandlerSettings, QueueSettings, WorkerSettings
from headrace._protocol.replies import Grant
from tests.support.facts import each
from tests.unit.core.test_roles import (
    Hand,
    grant,
    limit,
    make_consumer,
    make_held,
    names,
    reclaiming,
    sent,
    settled,
)

WORKER = WorkerSettings(heartbeat=2.0, timeout=10.0)


def special(kind: Any, *, lease: float = 60.0, concurrency: int = 2, **options: Any) -> Any:
    """Return a registered consumer of the kind `KindConsumer` or `PersistentConsumer`."""
    settings = QueueSettings(lease=lease)
    retry, deadline = options.pop("retry", Retry()), options.pop("deadline", None)
    handler = HandlerSettings(
        "q", print, concurrency, retry, deadline, settings, BytesCodec(), **options
    )
    plain = make_consumer(lease=lease)
    consumer = kind(plain.ops, handler, "w", plain.default_wait)
    consumer.registration.registered = consumer.registration.declared = True
    return consumer


# -- kinds -----------------------------------------------------------------------------------------


def kinds(**retries: Retry) -> Any:
    consumer = special(KindConsumer)
    made = {kind: evolve(consumer.handler, retry=retry) for kind, retry in retries.items()}
    consumer.handler = evolve(consumer.handler, kinds=made)
    return consumer


def of_kind(consumer: Any, number: int, kind: str, **options: Any) -> HeldJob:
    held = make_held(consumer, number)
    held.job = Job(held.entry, b"x", "q", {"kind": kind}, **options)
    return held


def test_each_kind_has_its_own_retry() -> None:
    """Each kind also has its own limit of attempts. Jobs with different limits are settled by
    separate calls."""
    consumer = kinds(
        a=Retry(attempts=3, wait=1), b=Retry(attempts=5, wait=2), c=Retry(attempts=3, wait=3)
    )
    for number, kind in enumerate("abc", 1):
        consumer.ended(of_kind(consumer, number, kind), ValueError("x"))
    ops = settled(consumer)
    assert [(op[0], op[2]) for op in ops] == [("retry", "3"), ("retry", "5")]
    assert [op[6::5] for op in ops] == [("+1000", "+3000"), ("+2000",)]


def test_jobs_of_no_handler_get_no_slot() -> None:
    """They are released at once without a spent attempt, for workers that know them."""
    consumer = kinds(a=Retry())
    hand = Hand(fetch(consumer))
    hand.go()
    effect = hand.go([Grant([of_kind(consumer, 1, "a"), of_kind(consumer, 2, "b")])])
    assert [unit[0].entry for unit in hand.backlog] == ["1-0"]
    retry, lease = sent(effect)
    assert retry[4:8] == ("2-0", "1", "+10000", "0")
    assert lease[0] == "lease"
    assert list(consumer.jobs.held) == ["1-0"]
    assert isinstance(hand.go([[True], grant(consumer)]), Sleep)
    assert consumer.timers.due_at is None  # it leaves it to others to look for it


def test_a_deadline_of_each_kind() -> None:
    consumer = kinds(a=Retry(), b=Retry())
    a, b = consumer.handler.kinds.values()
    consumer.handler = evolve(
        consumer.handler, deadline=4.0, kinds={"a": evolve(a, deadline=4.0), "b": b}
    )
    hand = reclaiming(consumer, heartbeat=4.0)
    running = [of_kind(consumer, 1, "a"), of_kind(consumer, 2, "b")]
    consumer.jobs.held = {held.entry: held for held in running}
    for held in running:
        held.since = hand.now
        consumer.begin([held], hand.now)
    hand.now += 4.0
    hand.go()
    assert hand.aborted == running[:1]
    assert [op[8] for op in settled(consumer)] == [
        "TimeoutError: the handler ran past its deadline of 4 s"
    ]


# -- persistent jobs -------------------------------------------------------------------------------


def ended(
    error: BaseException | None,
    result: Any = None,
    *,
    after: float = 1.0,
    attempt: int = 3,
    **options: Any,
) -> Any:
    """Return how a persistent job is settled after its handler ended so. The tuple is (operation,
    delay, spend)."""
    consumer = special(PersistentConsumer, **options)
    held = make_held(consumer, attempt=attempt)
    consumer.jobs.held = {held.entry: held}
    consumer.begin([held], 100.0)
    consumer.finished([held], 100.0 + after, error, result)
    assert not consumer.jobs.held
    (op,) = settled(consumer)
    return (op[0], *op[6:8]) if op[0] == "retry" else op[0]


WAITS = Retry(wait=wait_incrementing(10, 5))


@each(
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
        (
            OSError(),
            None,
            {"retry": Retry(on={OSError: RetryLater(3)}), "after": 60.0},
            ("retry", "+3000", "0"),
        ),
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
def test_how_a_persistent_job_ends(
    error: Any, result: Any, options: dict[str, Any], expected: Any
) -> None:
    """A persistent job ends only by an explicit verdict. Otherwise it runs again. A long run resets
    the count of failures.
    """
    assert ended(error, result, **{"retry": WAITS} | options) == expected


def test_nothing_is_leased_ahead_of_a_slot() -> None:
    """A persistent job that waits behind another would wait for ever, even if the first handlers
    returned quickly."""
    consumer = special(PersistentConsumer, concurrency=2)
    hand = Hand(fetch(consumer))
    assert limit(hand.go()) == 2
    hand.go([grant(consumer, 1, 2)])
    hand.run(consumer, after=0.001)
    hand.run(consumer, after=0.001, error=RetryLater(5))
    assert limit(hand.go()) == 2
    assert consumer.room() == 0


def test_a_worker_that_stops_gives_them_up() -> None:
    """Handlers are told to stop. Each job goes to the front when its handler has returned, and not
    earlier."""
    consumer = special(PersistentConsumer, concurrency=4)
    roles = Lifecycle(WORKER, [consumer])
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, 1, 2, 3, 4)])
    units = [hand.backlog.pop(0) for _ in range(3)]
    for unit in units:
        consumer.begin(unit, hand.now)
    roles.advance_to(Phase.DRAINING)
    assert sent(hand.go()) == [("release", consumer.name, "0", "4-0", "1")]
    assert hand.aborted == [unit[0] for unit in units]
    assert isinstance(hand.go([[True]]), Sleep)
    assert len(hand.aborted) == 3  # told once
    for unit, error in zip(units, (None, OSError(), DeadLetter("it is over")), strict=True):
        consumer.finished(unit, hand.now, error)
    assert names(hand.go()) == ["release", "dead_letter"]
    assert hand.go([[True, True], [True]]) is None


def test_what_was_lost_is_not_settled() -> None:
    consumer = special(PersistentConsumer)
    for error in [None, OSError(), Complete(), DeadLetter("no")]:
        held = make_held(consumer)
        consumer.begin([held], 1.0)
        list(lose(consumer, [held]))
        consumer.finished([held], 2.0, error)
    assert not settled(consumer)
    held = make_held(consumer)
    consumer.begin([held], 1.0)
    consumer.phase = Phase.HALTING
    consumer.finished([held], 2.0, None)
    assert held.ended
    assert not consumer.jobs.done


def holding(consumer: Any, now: float) -> HeldJob:
    held = make_held(consumer, since=now)
    consumer.jobs.held = {held.entry: held}
    consumer.begin([held], now)
    consumer.registration.beaten = now
    return held


@each(("heartbeat", "timeout", "patience"), [(2.0, 10.0, 8.0), (2.0, 4.0, 3.0), (0.5, 5.0, 4.5)])
def test_who_hears_nothing_gives_up_before_others_take_over(
    heartbeat: float, timeout: float, patience: float
) -> None:
    """A worker that gets no answer stops its jobs before `timeout` has passed since its last
    heartbeat was sent."""
    consumer = special(PersistentConsumer)
    hand = Hand(watch(consumer, WorkerSettings(heartbeat, timeout)))
    held = holding(consumer, hand.now)
    name = consumer.name
    assert hand.go().seconds <= heartbeat / 4
    hand.now += patience - 0.01
    assert isinstance(hand.go(), Sleep)
    assert not held.job.lost
    hand.now += 0.02
    assert hand.go().seconds <= heartbeat / 4
    assert hand.aborted == [held]
    assert held.job.lost
    assert not consumer.jobs.held
    assert consumer.name != name  # what it held under the old one is left to its peers
    assert not consumer.registered
    hand.now += timeout
    hand.go()
    assert not consumer.registered
    consumer.phase = Phase.STOPPED
    assert hand.go() is None


def test_a_lease_that_could_not_be_renewed_is_given_up_in_time() -> None:
    consumer = special(PersistentConsumer, lease=6.0)
    hand = Hand(watch(consumer, WORKER))
    held = holding(consumer, hand.now)
    assert hand.go().seconds <= 0.5
    hand.now += 4.9
    hand.go()
    assert not held.job.lost
    hand.now += 0.2
    hand.go()
    assert hand.aborted == [held]
    assert consumer.registered  # its beats were answered


def test_a_beat_counts_from_when_it_was_sent() -> None:
    """The server may have received the heartbeat when it was sent. A slow heartbeat is followed by
    another at once."""
    consumer = special(PersistentConsumer)
    hand = Hand(beat(Lifecycle(WORKER, [consumer])))
    hand.go()
    sent_at = hand.now
    hand.now += 1.0
    assert hand.go([True]) == Sleep(2.0)
    assert consumer.registration.beaten == sent_at
    hand.now += 2.0
    hand.go()
    hand.now += 3.0
    assert hand.go([True]) == Sleep(0.0)
    assert consumer.registration.beaten == sent_at + 3.0


def test_a_stop_sends_no_beat_behind_another() -> None:
    """A stop wakes all roles. The next heartbeat still waits for its interval."""
    consumers = [special(PersistentConsumer) for _ in range(2)]
    worker = Lifecycle(WORKER, consumers)
    hand = Hand(beat(worker))
    hand.go()
    assert hand.go([True, True]) == Sleep(2.0)
    worker.advance_to(Phase.DRAINING)
    hand.now += 0.9
    consumers[1].registration.registered = False
    anew = [(op[0], op[1]) for op in sent(hand.go())]  # which was declared dead meanwhile
    assert anew == [("beat", consumers[1].name)]
    assert hand.go([True]) == Sleep(1.0)
    hand.now += 0.9
    assert [op[1] for op in sent(hand.go())] == [consumers[0].name]
    worker.advance_to(Phase.HALTING)
    assert hand.go([True]) == Sleep(1.0)
    assert hand.go() == Sleep(1.0)
    worker.advance_to(Phase.STOPPED)
    assert hand.go() is None
