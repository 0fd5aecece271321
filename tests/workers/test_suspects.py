"""Jobs that end their process, and innocent ones beside them: `headrace work`, as users start it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace import Counts, NewJob, Queue
from tests.support.awaiting import until
from tests.support.program import PATIENCE, Started, started
from tests.support.servers import Server

APP = """
import asyncio, os, threading, time
from headrace import AsyncWorker, Worker

threads = Worker(heartbeat=0.3, timeout=1.2)
tasks = AsyncWorker(heartbeat=0.3, timeout=1.2)
batches = Worker(heartbeat=0.3, timeout=1.2)
running = set()

def begin(job):
    running.add(job.id)
    with open("log", "a") as log:
        log.write(f"{job.payload.decode()} {job.attempt} {len(running)}\\n")

def work(job):
    begin(job)
    time.sleep(0.1)
    if job.payload == b"poison":
        os._exit(0)
    time.sleep(0.2)
    running.discard(job.id)

async def work_async(job):
    begin(job)
    await asyncio.sleep(0.1)
    if job.payload == b"poison":
        os.abort()
    await asyncio.sleep(0.2)
    running.discard(job.id)

def work_all(jobs):
    for job in jobs:
        begin(job)
    time.sleep(0.1)
    if any(job.payload == b"poison" for job in jobs):
        os._exit(1)
    running.clear()

threads.handler("q", concurrency=30, max_attempts=3, SHARDS)(work)
tasks.handler("q", concurrency=30, max_attempts=3, SHARDS)(work_async)
batches.batch_handler("q", max_size=30, max_wait=0.01, max_attempts=3, SHARDS)(work_all)

threads.handler("second", concurrency=30, max_attempts=3)(work)
tasks.handler("second", concurrency=30, max_attempts=3)(work_async)
batches.batch_handler("second", max_size=30, max_wait=0.01, max_attempts=3)(work_all)

@threads.handler("other")
@tasks.handler("other")
@batches.handler("other")
def other(job):
    time.sleep(0.001)
"""
INNOCENT, ATTEMPTS = 20, 3


@pytest.fixture
def work(newest: Server, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start `headrace work` on an app."""
    with ExitStack() as stack:

        def start(worker: str, processes: int = 1, shards: str = "") -> Started:
            (tmp_path / "app.py").write_text(APP.replace("SHARDS", shards))
            command = ["work", f"app:{worker}", "--processes", str(processes)]
            with (tmp_path / "said").open("wb") as said:
                work = started(*command, url=newest.url, cwd=tmp_path, stdout=said, stderr=said)
            return stack.enter_context(work)  # killed at the end; its processes see that, and end

        yield start


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("worker", ["threads", "tasks", "batches"])
@pytest.mark.parametrize("processes", [1, 2])
def test_innocents_beside_poison(
    newest: Server, work: Callable[..., Started], tmp_path: Path, worker: str, processes: int
) -> None:
    """A job that ends its process again and again dies for that, and none of those that ran beside it; other queues of
    the worker go on.
    """
    with Queue("q", url=newest.url) as queue, Queue("other", url=newest.url) as other:
        jobs = [NewJob(b"poison" if n == INNOCENT // 2 else b"good", id=f"j{n}") for n in range(INNOCENT + 1)]
        queue.enqueue_many(jobs)
        other.enqueue_many([b"x"] * 50)
        process = work(worker, processes)
        until(lambda: queue.counts().dead + queue.counts().completed == INNOCENT + 1, "an end of all", PATIENCE)
        assert queue.counts() == Counts(enqueued=INNOCENT + 1, completed=INNOCENT, dead=1)
        (letter,) = queue.admin.dead()
        assert letter.job.payload == b"poison"
        assert "ended its process 3 times while alone" in str(letter.reason)
        until(lambda: other.counts() == Counts(enqueued=50, completed=50))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    beside = runs_of_poison(tmp_path)
    assert beside[-ATTEMPTS:] == [1] * ATTEMPTS
    assert len(beside) <= ATTEMPTS + 2


def runs_of_poison(folder: Path) -> list[int]:
    """How many jobs ran in its process as a poison job began, itself included; a number for each run."""
    rows = [line.split() for line in (folder / "log").read_text().splitlines()]
    return [int(beside) for payload, _, beside in rows if payload == "poison"]


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("worker", ["threads", "tasks", "batches"])
@pytest.mark.parametrize("shards", [1, 4])
def test_innocents_of_other_queues_and_shards(
    newest: Server, work: Callable[..., Started], worker: str, shards: int, tmp_path: Path
) -> None:
    """No suspect is convicted by a poison job that ran beside it in another queue, or shard, of its process."""
    with Queue("q", url=newest.url, shards=shards) as queue, Queue("second", url=newest.url) as second:
        queue.enqueue_many([NewJob(b"good", id=f"j{n}") for n in range(2 * shards)])
        queue.enqueue(b"poison")
        second.enqueue_many([b"good"] * 5)
        process = work(worker, shards=f"shards={shards}")
        until(lambda: second.counts().dead + second.counts().completed == 5, "an end of the second queue", PATIENCE)
        until(lambda: queue.counts().dead + queue.counts().completed == 2 * shards + 1, "an end of all", PATIENCE)
        assert second.counts() == Counts(enqueued=5, completed=5)
        assert queue.counts() == Counts(enqueued=2 * shards + 1, completed=2 * shards, dead=1)
        (letter,) = queue.admin.dead()
        assert letter.job.payload == b"poison"
        assert "ended its process 3 times while alone" in str(letter.reason)
        second.enqueue(b"good")  # the others go on
        until(lambda: second.counts().completed == 6)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    beside = runs_of_poison(tmp_path)
    assert beside.count(1) >= ATTEMPTS
    assert len(beside) <= ATTEMPTS + 4
