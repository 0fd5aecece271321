"""Processes that are told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from headrace import Counts, Queue
from tests.support.awaiting import PATIENCE, until
from tests.support.processes import Processes
from tests.support.servers import Server
from tests.workers.test_stop import consumers, payloads

ENDS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])


@ENDS
def test_an_idle_worker_ends_at_once(
    processes: Processes, queue: Queue, newest: Server, number: int
) -> None:
    """No key of the worker is left (B-2)."""
    process = processes.start("w", concurrency=2, heartbeat=2.0, timeout=10.0)
    until(queue.admin.workers)
    os.kill(process.pid, number)
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert processes.notes("stopped")
    assert queue.admin.workers() == []
    assert consumers(newest, queue) == set()


@ENDS
def test_a_busy_worker_finishes(
    processes: Processes, queue: Queue, newest: Server, number: int
) -> None:
    """Running jobs finish and no other begins (B-2, G-15)."""
    process = processes.start("w", concurrency=2, heartbeat=2.0, timeout=10.0)
    queue.enqueue_many([b"hold a", b"hold b", b"c"])
    processes.await_notes(2, "began")
    os.kill(process.pid, number)
    processes.await_notes(1, "stopping")
    queue.enqueue(b"d")
    processes.open_gate()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert {note.payload for note in processes.notes("began")} == {"hold a", "hold b"}
    assert len(processes.notes("done")) == 2
    assert queue.admin.workers() == []
    assert consumers(newest, queue) == set()
    assert queue.counts() == Counts(waiting=2, enqueued=4, completed=2)


@ENDS
def test_a_second_signal_releases_everything(
    processes: Processes, queue: Queue, newest: Server, number: int
) -> None:
    """The jobs are at the front in order, with no attempt spent (B-2, W-19)."""
    process = processes.start("w", concurrency=3, heartbeat=2.0, timeout=10.0)
    queue.enqueue_many([b"hold a", b"hold b", b"hold c", b"d"])
    processes.await_notes(3, "began")
    os.kill(process.pid, number)
    processes.await_notes(1, "stopping")  # two signals that come at once may be one
    began = time.monotonic()
    os.kill(process.pid, number)
    until(lambda: queue.counts().parked == 3)
    assert time.monotonic() - began < 2.0  # 0.1 s on a machine that has nothing else to do
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert queue.admin.workers() == []
    assert consumers(newest, queue) == set()
    assert payloads(queue, 4) == [(b"hold a", 1), (b"hold b", 1), (b"hold c", 1), (b"d", 1)]
    assert not processes.notes("done")


EARLY = """
import os, signal, sys
from headrace import AsyncWorker, Worker
worker = {"threads": Worker, "tasks": AsyncWorker}[sys.argv[1]](url=sys.argv[2])
worker.handler("q")(print)
worker.on_start(lambda: os.kill(os.getpid(), signal.SIGTERM))
worker.run()
print("ended in good order")
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["threads", "tasks"])
def test_a_signal_before_the_start(newest: Server, queue: Queue, engine: str) -> None:
    """The worker starts and stops."""
    done = subprocess.run(
        [sys.executable, "-c", EARLY, engine, newest.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ended in good order\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert queue.admin.workers() == []


OWN = """
import asyncio, os, signal, sys
from headrace import AsyncWorker, Worker

def own(*_): print("own handler", flush=True)

def worker(kind):
    made = kind(url=sys.argv[2])
    made.handler("q")(print)
    made.on_start(lambda: os.kill(os.getpid(), signal.SIGTERM))
    return made

async def serve(of_loop):
    loop = asyncio.get_running_loop()
    if of_loop:
        loop.add_signal_handler(signal.SIGTERM, own)
    await worker(AsyncWorker).serve()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.1)

how = sys.argv[1]
if how == "loop":
    asyncio.run(serve(True))
else:
    signal.signal(signal.SIGTERM, own)
    if how == "serve":
        asyncio.run(serve(False))
    else:
        worker(Worker if how == "threads" else AsyncWorker).run()
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["threads", "run", "serve", "loop"])
def test_the_handlers_of_the_program_are_restored(newest: Server, how: str) -> None:
    """They are the handlers of `signal.signal` and of the event loop."""
    done = subprocess.run(
        [sys.executable, "-c", OWN, how, newest.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "own handler\n"), done.stderr
