"""A worker of the version before terms, beside a queue with limits: nothing is lost or runs twice, slots are mended.

The old code is a commit of the repository's history; without a history there is nothing to test.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import Limit, NewJob, Queue, Worker
from tests.support.awaiting import until
from tests.support.planted import plant_scripts
from tests.support.servers import Server

BEFORE_TERMS = "8c645ad"
ROOT = Path(__file__).parents[2]
JOBS = 12
PROGRAM = """
import sys, time
import headrace
assert headrace.__file__.startswith(sys.argv[2]), headrace.__file__
worker = headrace.Worker(sys.argv[1], heartbeat=0.2, timeout=0.5)

@worker.handler("q", lease=0.5, concurrency=1)
def handle(job):
    print("ran", job.id, flush=True)

with worker:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the version before terms."""
    archive = subprocess.run(["git", "archive", BEFORE_TERMS, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no commit {BEFORE_TERMS} here: {archive.stderr.decode()[:200]}")
    where = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(where, filter="data")
    return where / "src"


def begin(old: Path, server: Server) -> Any:
    """Start the older worker."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, str(old)],
        env={**os.environ, "PYTHONPATH": str(old)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ran_by(program: Any) -> list[str]:
    """End the older worker; the jobs that it ran."""
    program.stdin.close()
    lines = program.stdout.read().split("\n")
    program.stdout.close()
    program.wait()
    return [line.removeprefix("ran ") for line in lines if line.startswith("ran ")]


def test_an_older_worker_beside_lines(old: Path, newest: Server) -> None:
    """It takes no job of a line, however long that waits; it takes others beside the limits. Each job runs once."""
    beside_lines(old, newest)


@pytest.mark.sampled
def test_planted_bug(old: Path, newest: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the member of `leases`, it takes the jobs in lines by XAUTOCLAIM."""
    plant_scripts(monkeypatch, [("lease_fair", "redis.call('ZADD', q.leases, 'inf', 'lines')", "")])
    with pytest.raises(AssertionError, match="in lines"):
        beside_lines(old, newest)


def beside_lines(old: Path, server: Server) -> None:
    """Leases that are renewed, lines behind them, and an older worker that is there for several of its leases."""
    queue: Any = Queue("q", url=server.url, lease=0.5, fair="tenant", limits=Limit(1, key="tenant"))
    with queue:
        queue.enqueue_many([NewJob(b"x", id=f"j{n}", headers={"tenant": "ab"[n % 2]}) for n in range(JOBS)])
        leases = queue.lease_many(2)
        program, done, number = begin(old, server), threading.Event(), 0

        def renew() -> None:
            while not done.wait(0.1):
                for lease in leases:
                    lease.renew()

        renewing = threading.Thread(target=renew)
        renewing.start()
        try:
            assert program.stdout.readline() == "ready\n"
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                number += 1
                queue.enqueue(b"x", id=f"plain-{number}")
                assert program.stdout.readline() == f"ran plain-{number}\n", "in lines"
            assert (queue.counts().held, queue.counts().lost) == (2, 0)
        finally:
            theirs = ran_by(program)
            done.set()
            renewing.join()
        assert number > 10
        assert theirs == []
        for lease in leases:
            assert lease.complete()
        ran, worker = list[str](), Worker(server.url, heartbeat=0.2, timeout=0.5)
        worker.handler(queue, concurrency=4)(lambda job: ran.append(job.id))
        with worker:
            until(lambda: queue.counts().present == 0, 30)
        assert sorted(ran) == sorted(f"j{n}" for n in range(2, JOBS))
        assert (queue.counts().held, queue.counts().lost) == (0, 0)


def test_slots_of_leases_that_an_older_worker_ended(old: Path, newest: Server) -> None:
    """It takes over expired leases, and leaves their slots, which the upkeep of others gives back."""
    queue: Any = Queue("q", url=newest.url, lease=0.5, fair="tenant", limits=Limit(1, key="tenant"))
    with queue:
        queue.enqueue_many([NewJob(b"x", id=f"j{n}", headers={"tenant": "ab"[n % 2]}) for n in range(6)])
        assert len(queue.lease_many(6)) == 2
        assert queue.counts().held == 2
        program = begin(old, newest)
        assert program.stdout.readline() == "ready\n"
        assert sorted(program.stdout.readline() for _ in range(2)) == ["ran j0\n", "ran j1\n"]
        ran_by(program)
        worker: Any = Worker(newest.url, heartbeat=0.2, timeout=0.5)
        worker.handler(queue)(lambda job: None)
        with worker:
            until(lambda: queue.counts().completed == 6, 20)
            until(lambda: queue.counts().held == 0)
