"""Jobs that never end. Each has one holder at a time, before and after the holder dies, freezes or
is cut off."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from headrace import Complete, Counts, DeadLetter, Job, Queue, Retry
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Recorder, Running
from tests.support.processes import Processes
from tests.support.proxy import Proxy
from tests.support.servers import Server

Work = Callable[..., Running]


# -- in this process -------------------------------------------------------------------------------


def holder(
    work: Work,
    name: str,
    record: Recorder,
    concurrency: int = 1,
    timeout: float = 1.2,
    **options: Any,
) -> Running:
    worker = work(name=name, heartbeat=0.3, timeout=timeout)

    @worker.handler("q", persistent=True, concurrency=concurrency, **options)
    def body(job: Job) -> Iterator[float]:
        with record((name, job.payload, job.attempt)):
            while not job.lost:
                yield 0.005

    return worker


def test_it_goes_to_another_worker_when_one_stops(
    work: Work, queue: Queue, record: Recorder
) -> None:
    """The job moves at once without a spent attempt, and only after the first worker has let go of
    it."""
    first, second = (holder(work, name, record, timeout=PATIENCE) for name in ("first", "second"))
    queue.enqueue(b"c")
    first.start()
    record.await_started(1)
    second.start()
    until(lambda: len(queue.admin.workers()) == 2)
    first.stop()
    record.await_started(2)
    assert record.started == [("first", b"c", 1), ("second", b"c", 1)]
    assert record.ended == [("first", b"c", 1)]
    second.stop()
    assert record.most == 1
    assert queue.counts() == Counts(parked=1, enqueued=1)
    assert queue.admin.workers() == []


def test_more_jobs_than_slots_are_shared_out(work: Work, queue: Queue, record: Recorder) -> None:
    """No job is leased ahead. Other workers get the jobs that have no slot here."""
    first, second = holder(work, "first", record, 2), holder(work, "second", record, 2)
    queue.enqueue_many([b"%d" % n for n in range(4)])
    with first:
        record.await_started(2)
        until(lambda: queue.counts() == Counts(leased=2, waiting=2, enqueued=4))
        with second:
            record.await_started(4)
            assert [name for name, *_ in record.started] == ["first", "first", "second", "second"]
            assert {payload for _, payload, _ in record.started} == {b"0", b"1", b"2", b"3"}
    assert queue.counts() == Counts(parked=4, enqueued=4)


def test_a_holder_is_told_that_its_job_was_cancelled(
    work: Work, queue: Queue, record: Recorder
) -> None:
    with holder(work, "first", record, lease=0.9):
        receipt = queue.enqueue(b"c")
        record.await_started(1)
        assert queue.cancel(receipt.id)
        record.await_ended(1)
        assert queue.counts() == Counts(enqueued=1, cancelled=1)


def test_it_runs_again_until_it_says_that_it_is_over(work: Work, queue: Queue) -> None:
    """A return spends no attempt, and a failure does. No number of returns is too many."""
    worker = work()
    attempts: dict[bytes, list[int]] = {b"done": [], b"dead": []}

    @worker.handler("q", persistent=True, retry=Retry(wait=0))
    def body(job: Job) -> Any:
        seen = attempts[job.payload]
        seen.append(job.attempt)
        if len(seen) == 12:
            return Complete(b"r") if job.payload == b"done" else DeadLetter("over")
        if len(seen) <= 5:
            raise OSError("no route")
        return b"not over yet"

    receipts = queue.enqueue_many(list(attempts))
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=2, completed=1, dead=1))
    assert attempts == dict.fromkeys(attempts, [1, 2, 3, 4, 5] + [6] * 7)
    assert queue.result(receipts[0].id) == b"r"
    assert [letter.reason for letter in queue.admin.dead()] == ["over"]


def test_a_long_run_forgives_the_failures_before_it(work: Work, queue: Queue) -> None:
    """A run of a lease's length resets the wait. A connection that was up all day does not wait as
    after its tenth failure.
    """
    worker = work()
    attempts: list[int] = []

    @worker.handler("q", persistent=True, lease=0.6, retry=Retry(wait=0))
    def body(job: Job) -> Iterator[float]:
        attempts.append(job.attempt)
        if len(attempts) == 4:
            yield 0.7
        if len(attempts) < 6:
            raise OSError("no route")
        while not job.lost:
            yield 0.005

    queue.enqueue(b"c")
    with worker:
        until(lambda: len(attempts) == 6)
    assert attempts == [1, 2, 3, 4, 1, 2]


def test_deaths_and_expired_leases_end_it_no_more_than_failures(
    work: Work, queue: Queue, record: Recorder
) -> None:
    """The exemption also holds where jobs are handed out."""
    queue.enqueue(b"c")
    for attempt in range(1, 21):
        lease = None
        while lease is None:
            queue._leaser.tidy_at = 0.0  # look for expired leases at once
            lease = queue.lease(duration=0.001)
        assert lease.job.attempt == attempt
    with holder(work, "first", record):
        record.await_started(1)
    assert record.started == [("first", b"c", 21)]
    assert queue.counts() == Counts(parked=1, enqueued=1)


# -- processes: who held what, from when to when ---------------------------------------------------


@pytest.fixture(params=["threads", "tasks"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock(newest: Server) -> Iterator[Callable[[], float]]:
    """Return the server's time in seconds."""
    with redis.Redis(unix_socket_path=newest.path) as client:

        def now() -> float:
            seconds, micros = client.time()
            return float(seconds + micros / 1e6)

        yield now


def hold(processes: Processes, name: str, *, concurrency: int = 1, **options: Any) -> Any:
    """Start a process with persistent jobs."""
    return processes.start(
        name, concurrency=concurrency, **{"timeout": 1.2, "persistent": True, **options}
    )


def await_seasoned(queue: Queue, clock: Callable[[], float], number: int, timeout: float) -> None:
    """Wait until so many workers are old enough to declare others dead."""

    def seasoned() -> bool:
        now = clock()
        return (
            sum(state.alive and now - state.since > timeout for state in queue.admin.workers())
            >= number
        )

    until(seasoned)


@pytest.mark.slow
def test_the_holder_is_killed(
    processes: Processes,
    queue: Queue,
    clock: Callable[[], float],
    record_property: Callable[[str, object], None],
) -> None:
    """There is exactly one holder before and after, with a gap of the timeout and a tick (W-21)."""
    queue.enqueue(b"keep")
    first = hold(processes, "first")
    processes.await_notes(1, "began")
    hold(processes, "second")
    hold(processes, "third")
    await_seasoned(queue, clock, 3, 1.2)
    assert len(processes.notes("began")) == 1
    killed = clock()
    os.kill(first.pid, signal.SIGKILL)
    before, after = processes.await_notes(2, "began")
    until(lambda: len(queue.admin.workers()) == 2)
    record_property("seconds without a holder", round(after.at - killed, 3))
    assert before.pid == first.pid != after.pid
    assert killed < after.at < killed + 6.0  # 0.9 to 1.4 on a machine that has nothing else to do
    assert (before.attempt, after.attempt) == (1, 2)
    await_seasoned(queue, clock, 2, 3.0)  # whoever would open a second one had the time for it
    assert len(processes.notes("began")) == 2
    assert processes.notes("lost") == []
    assert queue.counts() == Counts(leased=1, enqueued=1)


@pytest.mark.slow
def test_the_holder_is_frozen(
    processes: Processes,
    queue: Queue,
    clock: Callable[[], float],
    record_property: Callable[[str, object], None],
) -> None:
    """A frozen holder can't let go. When it wakes, it is told at once and does not take the job
    back."""
    queue.enqueue(b"keep")
    first = hold(processes, "first")
    processes.await_notes(1, "began")
    hold(processes, "second")
    await_seasoned(queue, clock, 2, 1.2)
    (name,) = [state.name for state in queue.admin.workers() if state.name.startswith("first.")]
    os.kill(first.pid, signal.SIGSTOP)
    _, after = processes.await_notes(2, "began")
    assert after.pid != first.pid
    assert processes.notes("lost") == []
    woken = clock()
    os.kill(first.pid, signal.SIGCONT)
    (closed,) = processes.await_notes(1, "lost")
    record_property("seconds until a holder that wakes has let go", round(closed.at - woken, 3))
    assert closed.pid == first.pid
    assert closed.at - woken < 3.0  # 0.1 on a machine that has nothing else to do
    until(lambda: len({state.name.partition(".")[0] for state in queue.admin.workers()}) == 2)
    await_seasoned(queue, clock, 2, 1.2)
    assert name not in {state.name for state in queue.admin.workers()}
    assert len(processes.notes("began")) == 2
    assert len(processes.notes("lost")) == 1


@pytest.mark.slow
def test_the_holder_is_cut_off(
    processes: Processes,
    newest: Server,
    queue: Queue,
    clock: Callable[[], float],
    record_property: Callable[[str, object], None],
) -> None:
    """The holder can't be told. It lets go before another worker takes over."""
    queue.enqueue(b"keep")
    timing = {"heartbeat": 1.2, "timeout": 4.0}
    with Proxy(newest.path) as proxy:
        first = hold(processes, "first", url=proxy.url, **timing)
        processes.await_notes(1, "began")
        hold(processes, "second", **timing)
        await_seasoned(queue, clock, 2, 4.0)
        proxy.refuse()
        _, after = processes.await_notes(2, "began")
        (closed,) = processes.await_notes(1, "lost")
        record_property("seconds between the holders", round(after.at - closed.at, 3))
        assert closed.pid == first.pid != after.pid
        assert closed.at <= after.at
        proxy.admit()
        until(
            lambda: (
                len(
                    {state.name.partition(".")[0] for state in queue.admin.workers() if state.alive}
                )
                == 2
            )
        )
        assert len(processes.notes("began")) == 2
    assert queue.counts() == Counts(leased=1, enqueued=1)


@pytest.mark.slow
def test_a_holder_that_stops_has_let_go_before_the_next(
    processes: Processes, queue: Queue, clock: Callable[[], float]
) -> None:
    """After SIGTERM there is hardly a gap and no overlap, for any number of jobs."""
    queue.enqueue_many([b"keep%d" % n for n in range(5)])
    first = hold(processes, "first", concurrency=5)
    processes.await_notes(5, "began")
    hold(processes, "second", concurrency=5)
    until(lambda: len(queue.admin.workers()) == 2)
    stopped = clock()
    os.kill(first.pid, signal.SIGTERM)
    processes.await_notes(10, "began")
    closed = {note.payload: note.at for note in processes.await_notes(5, "lost", pid=first.pid)}
    for note in processes.notes("began"):
        if note.pid != first.pid:
            assert stopped <= closed[note.payload] <= note.at
            assert note.attempt == 1
    assert len(processes.notes("began")) == 10
    assert len(processes.notes("lost")) == 5
