"""Leases under running handlers. They are renewed while the handlers run, and some are lost."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from headrace import AsyncWorker, Counts, Job, Queue
from headrace._protocol.script import script
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server
from tests.workers.test_handlers import calls

Work = Callable[..., Running]


@pytest.fixture
def client(newest: Server) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=newest.path) as client:
        yield client


@pytest.mark.sampled
def test_a_job_that_runs_longer_than_its_lease(
    work: Work, queue: Queue, newest: Server, record: Recorder
) -> None:
    """It is renewed, and no other worker gets it, though others look for expired leases all the
    time."""
    first, second = (work(heartbeat=0.1, timeout=5.0) for _ in range(2))
    for worker in first, second:

        @worker.handler("q", lease=0.9)
        def body(job: Job) -> Iterator[float]:
            with record(job.attempt):
                yield 3.0

    queue.enqueue(b"x")
    before = calls(newest)
    with first, second:
        until(lambda: queue.counts().completed == 1)
    assert record.ended == [1]
    renewals = (calls(newest) - before)["xclaim"]
    # one for the job; and none before a third of it is over
    assert 1 <= renewals <= 1 + math.ceil(3.0 / 0.3) + 1


def test_short_jobs_are_not_renewed(work: Work, queue: Queue, newest: Server) -> None:
    """A job that takes less than a third of its lease causes no renewal."""
    worker = work(heartbeat=0.1, timeout=5.0)

    @worker.handler("q", lease=60.0, concurrency=5)
    def body(job: Job) -> Iterator[float]:
        yield 0.01

    with redis.Redis(unix_socket_path=newest.path) as client:
        known = client.config_get("slowlog-*")
        client.config_set("slowlog-log-slower-than", 0, "slowlog-max-len", 100_000)
        client.slowlog_reset()
        queue.enqueue_many([b"x"] * 300)
        with worker:
            until(lambda: queue.counts().completed == 300)
        ran = [entry["command"].split()[:2] for entry in client.slowlog_get(100_000)]
        client.config_set(*(word for row in known.items() for word in row))
    assert [b"EVALSHA", script("lease").sha.encode()] in ran
    # Once at most: as it begins to listen for losses, it looks whether it still has what it holds
    # already.
    assert ran.count([b"EVALSHA", script("renew").sha.encode()]) <= 1


@pytest.mark.sampled
def test_jobs_that_wait_for_a_slot_are_renewed_too(
    work: Work, queue: Queue, record: Recorder
) -> None:
    """A batch that gathers for longer than its lease is not reclaimed meanwhile."""
    worker = work(heartbeat=0.1, timeout=5.0)

    @worker.batch_handler("q", max_size=10, max_wait=1.5, lease=0.6)
    def body(jobs: list[Job]) -> None:
        with record([job.attempt for job in jobs]):
            pass

    queue.enqueue_many([b"x"] * 3)
    with worker:
        until(lambda: queue.counts().completed == 3)
    assert record.ended == [[1, 1, 1]]


def lose(how: str, queue: Queue, client: redis.Redis) -> None:
    """Take away the only job under its handler."""
    (state,) = queue.admin.running()
    if how == "cancelled":
        assert queue.cancel(state.job.id)
    elif how == "deleted":
        assert queue.admin.delete() == 1
    else:
        client.xclaim(queue.ops.keys.key("jobs"), "workers", "thief", 0, [str(state.entry)])


@pytest.mark.parametrize("how", ["cancelled", "deleted", "stolen"])
def test_a_job_lost_under_its_handler(
    work: Work, queue: Queue, kind: str, client: redis.Redis, how: str, record: Recorder
) -> None:
    """A coroutine is cancelled, and a thread sees `job.lost`. A later exception changes nothing
    (W-12, W-13)."""
    worker = work(heartbeat=0.1, timeout=5.0)
    cancelled: list[bool] = []

    @worker.handler("q", lease=0.6)
    def body(job: Job) -> Iterator[float]:
        with record(job.id):
            try:
                while kind == "tasks" or not job.lost:
                    yield 0.005
            except asyncio.CancelledError:
                cancelled.append(bool(job.lost))
                raise
            raise OSError("too late to be tried again")

    queue.enqueue(b"x")
    with worker:
        record.await_started(1)
        lose(how, queue, client)
        record.await_ended(1)
    assert cancelled == ([True] if kind == "tasks" else [])
    expected = {
        "cancelled": Counts(enqueued=1, cancelled=1),
        "deleted": Counts(enqueued=1, deleted=1),
        "stolen": Counts(enqueued=1, leased=1),
    }
    assert queue.counts() == expected[how]


def take_away(how: str, queue: Queue, server: redis.Redis) -> None:
    """Put the only running job back, so that its own worker may lease it again."""
    (state,) = queue.admin.running()
    if how == "expired":
        assert queue.admin.expire(state.job.id) == 1
    elif how == "worker failed":
        assert queue.admin.fail_worker(str(state.worker)) == 1
    else:  # as peers do whose look at it comes late: nobody is told
        jobs, entry = queue.ops.keys.key("jobs"), str(state.entry)
        server.xclaim(
            jobs, "workers", "parked", 0, [entry], justid=True, retrycount=state.job.attempt
        )  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["expired", "worker failed", "reclaimed"])
def test_a_job_that_comes_back_to_the_worker_that_ran_it(
    work: Work, queue: Queue, client: redis.Redis, how: str, kind: str, record: Recorder
) -> None:
    """The run that lost its lease is told, although the same worker has the job again. The new run
    is not told."""
    worker = work(heartbeat=0.1, timeout=5.0)
    runs: list[Job] = []
    told: list[int] = []

    @worker.handler("q", lease=60.0, concurrency=4)
    def body(job: Job) -> Iterator[float]:
        first = not runs
        runs.append(job)
        with record(job.attempt):
            try:
                while first and not job.lost:
                    yield 0.005
                told.extend([job.attempt] * bool(job.lost))
                while not told:
                    yield 0.005
            except asyncio.CancelledError:
                told.append(job.attempt)
                raise

    queue.enqueue(b"x")
    with worker:
        record.await_started(1)
        take_away(how, queue, client)
        queue.enqueue(b"y")  # a lease call, in case it waits
        until(lambda: queue.counts().completed == 2)
    assert told == [1]
    assert [bool(job.lost) for job in runs if job.payload == b"x"] == [True, False]


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_handler_that_gives_up_has_not_finished(
    work: Work, queue: Queue, client: redis.Redis, how: str
) -> None:
    """Its later result is ignored. The present holder completes the job."""
    worker = work(heartbeat=0.1, timeout=5.0)
    begun = threading.Event()
    over = threading.Event()

    @worker.handler("q", lease=3.0)
    def body(job: Job) -> Iterator[float]:
        begun.set()
        while not job.lost:
            with suppress(asyncio.CancelledError):  # a coroutine that does not want to hear it
                yield 0.005
        over.set()
        if how == "raises":
            raise OSError

    queue.enqueue(b"x")
    with worker:
        assert begun.wait(PATIENCE)  # a lease that is lost before begins no handler
        lose("stolen", queue, client)
        assert over.wait(PATIENCE)
        queue.enqueue(b"y")  # whose loss it does not hear of
        until(lambda: queue.counts().leased == 2)
        worker.stop(wait=False)
        worker.stop()
    assert queue.counts() == Counts(enqueued=2, leased=1, parked=1)


@pytest.mark.parametrize("fenced", [False, True])
def test_a_completion_before_anybody_told(
    work: Work, queue: Queue, client: redis.Redis, gate: threading.Event, fenced: bool
) -> None:
    """The first completer wins by default. With `fenced=True` only the holder of the lease does."""
    worker = work(heartbeat=0.1, timeout=5.0)

    @worker.handler("q", lease=60.0, fenced=fenced)
    def body(job: Job) -> Iterator[Any]:
        yield gate
        return b"late"

    receipt = queue.enqueue(b"x")
    with worker:
        until(lambda: list(queue.admin.running()))
        lose("stolen", queue, client)
        gate.set()
        until(
            lambda: (
                worker.engine.lifecycle.consumers[0].jobs.lost
                if fenced
                else queue.counts().completed
            )
        )
    if fenced:
        assert queue.counts() == Counts(enqueued=1, leased=1)
        assert not queue.results([receipt.id])
    else:
        assert queue.counts() == Counts(enqueued=1, completed=1)
        assert queue.result(receipt.id) == b"late"


def test_a_batch_that_lost_some_of_its_jobs(
    work: Work, queue: Queue, gate: threading.Event, record: Recorder
) -> None:
    """The handler goes on for the other jobs, and its result counts for them alone."""
    worker = work(heartbeat=0.1, timeout=5.0)
    lost: list[list[bytes]] = []

    @worker.batch_handler("q", max_size=3, max_wait=0.05, lease=0.6)
    def body(jobs: list[Job]) -> Iterator[float]:
        with record(len(jobs)):
            while not any(job.lost for job in jobs):
                yield 0.005
            lost.append([job.payload for job in jobs if job.lost])

    receipts = queue.enqueue_many([b"a", b"b", b"c"])
    with worker:
        record.await_started(1)
        assert queue.cancel(receipts[1].id)
        until(lambda: queue.counts().completed == 2)
    assert lost == [[b"b"]]
    assert queue.counts() == Counts(enqueued=3, completed=2, cancelled=1)


def test_a_lost_coroutine_frees_its_slot(queue: Queue, newest: Server) -> None:
    """Cancelled jobs make room for others."""
    ran: list[bytes] = []

    async def story() -> None:
        worker = AsyncWorker(url=newest.url, heartbeat=0.1, timeout=5.0)

        @worker.handler("q", concurrency=2, lease=0.3)
        async def body(job: Job) -> None:
            if job.payload == b"hang":
                await asyncio.sleep(PATIENCE)
            ran.append(job.payload)

        hung = queue.enqueue_many([b"hang", b"hang"])
        async with worker:
            while queue.counts().leased < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            queue.enqueue_many([b"x"] * 5)
            for receipt in hung:
                assert queue.cancel(receipt.id)
            while queue.counts().completed < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    began = time.monotonic()
    asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert ran == [b"x"] * 5
    assert time.monotonic() - began < PATIENCE
