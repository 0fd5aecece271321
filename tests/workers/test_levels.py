"""Workers that know fewer priority levels than a producer uses. They go on with the known
levels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from headrace import Counts, Job, Queue
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about levels."""
    return [
        entry.getMessage()
        for entry in caplog.records
        if entry.getMessage().startswith("levels_unknown")
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("known", [1, 2])
def test_a_job_of_an_unknown_level_stops_nothing(
    work: Work,
    queue: Queue,
    newest: Server,
    record: Recorder,
    caplog: pytest.LogCaptureFixture,
    known: int,
) -> None:
    """The queue and the worker's other queues go on. The job waits for a worker that knows its
    level."""
    caplog.set_level(logging.ERROR, "headrace")
    few = work()
    for name in "q", "other":

        @few.handler(name, concurrency=2, max_attempts=2, priorities=known)
        def handle(job: Job) -> Iterator[float]:
            with record(job.payload):
                yield 0.0
            if job.payload == b"again" and job.attempt == 1:
                raise ValueError("once more")

    with (
        few,
        Queue("other", url=newest.url) as other,
        Queue("q", url=newest.url, priorities=4) as more,
    ):
        queue.enqueue(b"before")
        record.await_ended(1)
        more.enqueue(b"far", priority=3)
        until(lambda: told(caplog))
        more.enqueue(b"again", id="again")
        more.enqueue(b"later", id="later", delay=0.1)
        queue.enqueue(b"near")
        other.enqueue(b"elsewhere")
        record.await_ended(6)
        assert sorted(record.ended) == [
            b"again",
            b"again",
            b"before",
            b"elsewhere",
            b"later",
            b"near",
        ]
        until(lambda: more.counts() == Counts(waiting=1, enqueued=5, completed=4))
        assert not few.engine.finished
        assert len(told(caplog)) == 1
        assert f"queue 'q' has 4 priority levels, and this worker knows {known}" in told(caplog)[0]
        full = work()

        @full.handler("q", priorities=4)
        def take(job: Job) -> Iterator[float]:
            with record(job.payload):
                yield 0.0

        with full:
            record.await_ended(7)
        assert record.ended[-1] == b"far"


def test_a_job_of_an_unknown_level_that_died_with_its_worker_waits(
    work: Work, queue: Queue, newest: Server, record: Recorder
) -> None:
    """A worker that knows fewer levels puts it back in front of its own level."""
    few = work()

    @few.handler("q")
    def handle(job: Job) -> Iterator[float]:
        with record(job.payload):
            yield 0.0

    with Queue("q", url=newest.url, priorities=3) as more:
        more.enqueue(b"far", priority=2)
        more.enqueue(b"farther", priority=2)
        lease = more.lease()
        assert lease is not None
        with few:
            more.admin.expire(lease.job.id)
            queue.enqueue(b"near")
            record.await_ended(1)
            until(lambda: more.counts().parked == 1)
        assert record.ended == [b"near"]
        assert [one.job.payload for one in more.lease_many(2)] == [b"far", b"farther"]


def test_a_schedule_of_an_unknown_level_ticks(
    work: Work, queue: Queue, newest: Server, record: Recorder
) -> None:
    """Its jobs get the last level that the enqueuing worker knows."""
    few = work()

    @few.handler("q")
    def handle(job: Job) -> Iterator[float]:
        with record(job.payload):
            yield 0.0

    with few, Queue("q", url=newest.url, priorities=4) as more:
        more.enqueue(b"far", priority=3)
        more.admin.schedule("s", b"tick", every=0.2, priority=3)
        record.await_ended(2)
        assert more.admin.unschedule("s")
        assert set(record.ended) == {b"tick"}
        assert not few.engine.finished
