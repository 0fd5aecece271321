"""Jobs that end their process, and innocent ones beside them: `headrace work`, as users start it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Counts, NewJob, Queue
from tests.support.awaiting import until
from tests.support.program import PATIENCE, PROGRAM, environment
from tests.support.servers import Server

APP = """
import asyncio, os, threading, time
from headrace import AsyncWorker, Worker

threads = Worker(heartbeat=0.3, timeout=2.0)
tasks = AsyncWorker(heartbeat=0.3, timeout=2.0)
batches = Worker(heartbeat=0.3, timeout=2.0)
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

@threads.handler("other")
@tasks.handler("other")
@batches.handler("other")
def other(job):
    time.sleep(0.001)
"""
INNOCENT, ATTEMPTS = 20, 3


@pytest.fixture
def work(newest: Server, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `headrace work` on an app."""
    made: list[subprocess.Popen[bytes]] = []

    def start(worker: str, processes: int = 1, shards: str = "") -> subprocess.Popen[bytes]:
        (tmp_path / "app.py").write_text(APP.replace("SHARDS", shards))
        with (tmp_path / "said").open("wb") as said:
            command = [*PROGRAM, "work", f"app:{worker}", "--processes", str(processes)]
            made.append(subprocess.Popen(command, cwd=tmp_path, env=environment(newest.url), stdout=said, stderr=said))
        return made[-1]

    yield start
    for one in made:
        with one:
            one.kill()  # its processes see that, and end


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["threads", "tasks", "batches"])
@pytest.mark.parametrize("processes", [1, 2])
def test_innocents_beside_poison(
    newest: Server, work: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, worker: str, processes: int
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
    rows = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    poison = [int(beside) for payload, _, beside in rows if payload == "poison"]
    assert poison[-ATTEMPTS:] == [1] * ATTEMPTS
    assert len(poison) <= ATTEMPTS + 2
