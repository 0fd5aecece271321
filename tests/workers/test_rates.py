"""Workers under rate limits."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace import Counts, Job, NewJob, Queue, Rate
from tests.awaiting import until
from tests.servers import Server
from tests.workers.engines import Running
from tests.workers.test_handlers import calls

Work = Callable[..., Running]
ENGINES = pytest.mark.parametrize("kind", ["threads", "tasks"])


@ENGINES
@pytest.mark.parametrize("key", [None, "group"])
def test_workers_keep_to_the_limit(work: Work, queue: Queue, key: str | None) -> None:
    """Two workers, one limit: ten jobs take the time of nine tokens at least, and none is lost or run twice."""
    queue.enqueue_many(NewJob(b"x", headers={"group": "a"}) for _ in range(10))
    ran: list[str] = []
    workers = [work(), work()]
    for worker in workers:

        @worker.handler("q", rate=Rate(50, burst=1, key=key))
        def body(job: Job) -> None:
            assert job.attempt == 1
            ran.append(job.id)

    start = time.monotonic()
    with workers[0], workers[1]:
        until(lambda: queue.counts() == Counts(enqueued=10, completed=10))
        took = time.monotonic() - start
    assert len(set(ran)) == len(ran) == 10
    assert took >= 9 / 50 - 0.01


@ENGINES
def test_a_worker_that_must_wait_does_not_spin(work: Work, queue: Queue, newest: Server) -> None:
    worker = work()
    queue.enqueue_many([b"x"] * 5)

    @worker.handler("q", rate=Rate(1, per=600))
    def body(job: Job) -> None:
        pass

    with worker:
        until(lambda: queue.counts().completed == 1)
        reads = calls(newest)["xread"]
        until(lambda: calls(newest)["xread"] > reads + 1)  # it waits for the wake stream only
        before = calls(newest)
        until(lambda: calls(newest)["xread"] > before["xread"] + 1)
        ran = calls(newest) - before
    assert ran["evalsha"] <= 15
    assert queue.counts() == Counts(waiting=4, enqueued=5, completed=1)
