"""The facts that a worker reports, and operators' requests to be quiet, resume and stop."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

import headrace
from headrace import HeadraceError, Job, Queue
from headrace.inspect import WorkerState
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Recorder, Running
from tests.support.processes import Processes

Work = Callable[..., Running]


def registered(queue: Queue) -> WorkerState:
    """Return the worker of a queue once it has reported."""
    until(lambda: [one for one in queue.admin.workers() if one.facts], "the worker has reported")
    (one,) = queue.admin.workers()
    assert one.facts is not None
    return one


def test_facts(work: Work, queue: Queue) -> None:
    worker = work()

    @worker.handler("q", concurrency=3)
    def handle(job: Job) -> None: ...

    with worker:
        facts = registered(queue).facts
        assert (facts.version, facts.python) == (headrace.__version__, platform.python_version())
        assert (facts.pid, facts.slots) == (os.getpid(), 3)
        assert facts.memory > 2**20
        assert facts.host


@pytest.mark.sampled
def test_a_quiet_worker_finishes_its_job_and_leases_no_other(
    work: Work, queue: Queue, record: Recorder, gate: threading.Event
) -> None:
    worker = work()

    @worker.handler("q", concurrency=1)
    def handle(job: Job) -> Iterator[threading.Event]:
        with record(job.id):
            yield gate

    with worker:
        name = registered(queue).name
        queue.enqueue(b"x", id="first")
        record.await_started(1)
        assert queue.admin.quiet_worker(name)
        assert [one.asked for one in queue.admin.workers()] == ["quiet"]
        until(lambda: worker.engine.lifecycle.consumers[0].leasing.quiet, "it obeys")
        queue.enqueue(b"x", id="second")
        gate.set()
        until(lambda: queue.counts().completed == 1, "the running job has ended")
        queue.enqueue(b"x", id="third")
        other = queue.lease(block=5.0)
        assert other is not None
        assert other.job.id == "second"
        assert record.started == ["first"]
        assert queue.admin.resume_worker(name)
        record.await_ended(2)
        assert record.ended == ["first", "third"]


@pytest.mark.slow
def test_stop(processes: Processes, queue: Queue) -> None:
    """The worker's program stops as after a signal. Its job finishes first, and the program ends
    well."""
    program = processes.start("w", concurrency=1)
    queue.enqueue(b"hold")
    processes.await_notes(1, "began")
    assert queue.admin.stop_worker(registered(queue).name)
    processes.await_notes(1, "stopping")
    queue.enqueue(b"late")
    processes.open_gate()
    program.join(PATIENCE)
    assert program.exitcode == 0
    assert (queue.counts().completed, queue.counts().waiting) == (1, 1)
    assert len(processes.notes("stopped")) == 1


def test_an_idle_worker_that_is_quiet_leases_nothing(
    work: Work, queue: Queue, record: Recorder
) -> None:
    """The read under way leases no further job, and a job that it does lease goes back."""
    worker = work()

    @worker.handler("q", concurrency=2)
    def handle(job: Job) -> None:
        with record(job.id):
            pass

    with worker:
        name = registered(queue).name
        leasing = worker.engine.lifecycle.consumers[0].leasing
        until(lambda: leasing.piggybacked, "it blocks")
        assert queue.admin.quiet_worker(name)
        until(lambda: leasing.quiet, "it obeys")
        assert leasing.piggybacked
        queue.enqueue(b"x", id="first")
        until(lambda: not leasing.piggybacked, "its read has ended")
        until(lambda: queue.counts().parked == 1, "the job is back")
        queue.enqueue(b"x", id="second")
        leases = [queue.lease(block=5.0) for _ in range(2)]
        assert [(lease.job.id, lease.job.attempt) for lease in leases] == [
            ("first", 1),
            ("second", 1),
        ]
        assert not leasing.piggybacked
        queue.enqueue(b"x", id="third")
        assert queue.admin.resume_worker(name)
        record.await_ended(1)
    assert record.ended == ["third"]


@pytest.mark.slow
def test_a_quiet_worker_stays_quiet(
    work: Work, queue: Queue, client: redis.Redis, record: Recorder
) -> None:
    """The worker stays quiet until a resume, even under a new name after a freeze, and if its
    request is lost while it is idle.
    """
    worker = work()

    @worker.handler("q")
    def handle(job: Job) -> None:
        with record(job.id):
            pass

    def quiet_under(name: str) -> list[str]:
        return [
            one.name
            for one in queue.admin.workers()
            if one.facts and one.asked == "quiet" and one.name != name
        ]

    with worker:
        name = registered(queue).name
        assert queue.admin.quiet_worker(name)
        until(lambda: worker.engine.lifecycle.consumers[0].leasing.quiet, "it obeys")
        queue.admin.fail_worker(name)
        queue.enqueue(b"x", id="first")
        until(lambda: quiet_under(name), "it is back, and quiet")
        client.delete(queue.ops.keys.key("facts"))
        until(lambda: quiet_under(name), "the request is noted again")
        assert queue.counts().waiting + queue.counts().parked == 1
        assert not record.started
        assert queue.admin.resume_worker(quiet_under(name)[0])
        record.await_ended(1)
        until(
            lambda: [one.asked for one in queue.admin.workers()] == [""],
            "nothing is asked any more",
        )
    assert record.ended == ["first"]


def test_a_quiet_worker_stops_without_resuming(
    work: Work, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """It leases no job on its way, and logs nothing about it."""
    caplog.set_level(logging.INFO, "headrace")

    def said(event: str) -> bool:
        return event in [getattr(one, "event", "") for one in list(caplog.records)]

    worker = work()

    @worker.handler("q", concurrency=1)
    def handle(job: Job) -> None: ...

    with worker:
        name = registered(queue).name
        assert queue.admin.quiet_worker(name)
        until(lambda: said("worker_quiet"), "it obeys")
        queue.enqueue(b"x", id="late")
        assert queue.admin.stop_worker(name)
        until(lambda: said("worker_stopping"), "it stops")
    assert said("worker_asked_to_stop")
    assert said("worker_stopped")
    assert not said("worker_resumed")
    counts = queue.counts()
    assert (counts.waiting + counts.parked, counts.completed) == (1, 0)


def test_an_unknown_worker(queue: Queue) -> None:
    assert not queue.admin.quiet_worker("nobody")
    with pytest.raises(ValueError, match="worker name"):
        queue.admin.stop_worker("a b")


def test_a_worker_that_has_reported_nothing(queue: Queue) -> None:
    """A worker of an older version can't be asked, and the error says so."""
    queue.enqueue(b"x")
    lease = queue.lease()
    with pytest.raises(HeadraceError, match="older version"):
        queue.admin.quiet_worker(lease.worker)
