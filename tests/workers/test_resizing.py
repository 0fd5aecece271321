"""An operator changes how many handlers the workers of a queue run at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import NewJob, Queue
from headrace._core.presence import roles
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]


@pytest.fixture(autouse=True)
def _told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "REPORT_EVERY_S", 0.3)


def obeys(worker: Running, number: int) -> None:
    consumers = worker.engine.lifecycle.consumers
    until(lambda: {one.concurrency for one in consumers} == {number}, f"{number} at once")


def test_more_and_fewer_at_once(work: Work, queue: Queue, record: Recorder) -> None:
    """More jobs begin beside the running ones. With fewer, the running ones end, and the others
    follow in the new number.
    """
    gates = {f"j{number}": threading.Event() for number in range(9)}
    worker = work()

    @worker.handler("q", concurrency=1)
    def handle(job: Any) -> Iterator[threading.Event]:
        with record(job.id):
            yield gates[job.id]

    queue.enqueue_many([NewJob(b"x", id=name) for name in gates])
    with worker:
        record.await_started(1)
        queue.admin.set_concurrency(4)
        record.await_started(4)
        obeys(worker, 4)
        until(lambda: queue.admin.workers()[0].facts.slots == 4, "it has reported that")
        assert queue.admin.workers()[0].facts.own == 1
        queue.admin.set_concurrency(2)
        obeys(worker, 2)
        gates["j0"].set()
        gates["j1"].set()
        record.await_ended(2)
        record.most = 0
        for number in range(2, 9):
            gates[f"j{number}"].set()
            record.await_ended(number + 1)
            record.await_started(min(9, number + 3))
        assert record.most == 2
        queue.admin.set_concurrency(None)
        obeys(worker, 1)
    names = list(gates)
    assert record.started[0] == names[0]
    assert sorted(record.started[1:4]) == names[1:4]  # three threads of one lease began together
    assert record.started[4:] == names[4:]
    counts = queue.counts()
    assert (counts.completed, counts.present, counts.lost) == (9, 0, 0)


def test_a_new_worker_obeys(work: Work, queue: Queue, record: Recorder) -> None:
    """The number is the queue's. It holds for a worker that starts later."""
    queue.admin.set_concurrency(3)
    gate = threading.Event()
    worker = work()

    @worker.handler("q", concurrency=1)
    def handle(job: Any) -> Iterator[threading.Event]:
        with record(job.id):
            yield gate

    queue.enqueue_many([b"x"] * 5)
    with worker:
        record.await_started(3)
        gate.set()
        record.await_ended(5)
    assert record.most == 3


@pytest.mark.sampled
def test_shards_share_the_new_number(kind: str, newest: Server) -> None:
    """All shards of a queue have the number, also one that is new."""
    runs, seen = Recorder(), Counter[str]()
    worker = Running(kind, url=newest.url)
    with Queue("s", url=newest.url, shards=2) as queue:

        @worker.handler(queue, concurrency=1)
        def handle(job: Any) -> Iterator[float]:
            with runs(job):
                yield 0.005
            seen[job.key] += 1

        with worker:
            queue.admin.set_concurrency(5)
            obeys(worker, 5)
            queue.admin.reshard(3)
            until(lambda: len(worker.engine.lifecycle.consumers) > 2, "it serves the new shards")
            queue.enqueue_many([NewJob(b"x", key=f"k{number}") for number in range(200)])
            assert queue.admin.drain(60)
            obeys(worker, 5)
            queue.admin.set_concurrency(None)
            obeys(worker, 1)
        assert runs.most == 5
        assert seen == {f"k{number}": 1 for number in range(200)}


@pytest.mark.sampled
def test_batches_keep_their_size(work: Work, queue: Queue, record: Recorder) -> None:
    gate = threading.Event()
    worker = work()

    @worker.batch_handler("q", max_size=2)
    def handle(jobs: Any) -> Iterator[threading.Event]:
        with record(len(jobs)):
            yield gate

    with worker:
        queue.admin.set_concurrency(3)
        obeys(worker, 3)
        queue.enqueue_many([b"x"] * 6)
        record.await_started(3)
        until(lambda: queue.admin.workers()[0].facts.slots == 6, "it has reported that")
        assert queue.admin.workers()[0].facts.own == 2
        gate.set()
        record.await_ended(3)


@pytest.mark.parametrize("number", [0, -1, 10_001, True, 2.5, "3"])
def test_a_number_that_is_none(queue: Queue, number: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="concurrency"):
        queue.admin.set_concurrency(number)
