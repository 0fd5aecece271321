"""A worker of the version before steps, beside runs: it leases no suspended run, which would begin again.

The old code is a commit of the repository's history; without a history there is nothing to test.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import Counts, Queue, Worker
from headrace.errors import RunSuspended
from tests.support.awaiting import until
from tests.support.servers import Server

BEFORE_STEPS = "8c645ad"
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import headrace
assert headrace.__file__.startswith(sys.argv[2]), headrace.__file__
worker = headrace.Worker(sys.argv[1], heartbeat=0.2, timeout=0.5)

@worker.handler("q", lease=0.5)
def handle(job):
    print("ran", job.id, flush=True)

with worker:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the version before steps."""
    archive = subprocess.run(["git", "archive", BEFORE_STEPS, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no commit {BEFORE_STEPS} here: {archive.stderr.decode()[:200]}")
    where = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(where, filter="data")
    return where / "src"


def test_an_older_worker_leases_no_suspended_run(old: Path, newest: Server) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, newest.url, str(old)],
        env={**os.environ, "PYTHONPATH": str(old)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        with Queue("q", url=newest.url, lease=0.5) as queue:
            for name in ("sleeps", "waits"):
                queue.enqueue(b"x", id=name)
                lease = queue.lease()
                assert lease is not None
                suspend: Any = lease.job.sleep if name == "sleeps" else lease.job.wait_for
                with pytest.raises(RunSuspended):
                    suspend("first", 1)
            assert program.stdout.readline() == "ready\n"
            assert queue.counts() == Counts(delayed=1, blocked=1, enqueued=2)
            end, number = time.monotonic() + 3, 0  # several of its leases, and beyond both moments
            while time.monotonic() < end:
                number += 1
                queue.enqueue(b"x", id=f"plain-{number}")
                assert program.stdout.readline() == f"ran plain-{number}\n"
            until(lambda: queue.counts() == Counts(delayed=1, blocked=1, enqueued=2 + number, completed=number))
    finally:
        program.stdin.close()
        left = program.stdout.read()
        program.stdout.close()
        program.wait()
    assert left == ""
    worker, ran = Worker(newest.url), list[str]()

    @worker.handler("q")
    def handle(job: Any) -> None:
        if job.id == "sleeps":
            job.sleep("first", 1)
        else:
            with pytest.raises(TimeoutError):
                job.wait_for("first", 1)
        ran.append(job.id)

    with worker:
        until(lambda: sorted(ran) == ["sleeps", "waits"])
