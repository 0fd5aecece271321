"""A worker of the version before steps, beside runs. It leases no suspended run, because that would
begin again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace import Counts, Queue, Worker
from headrace.errors import RunSuspended
from tests.support import older
from tests.support.awaiting import until
from tests.support.servers import Server


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the version before steps."""
    return older.source(tmp_path_factory.mktemp("old"))


@pytest.mark.slow
def test_an_older_worker_leases_no_suspended_run(old: Path, newest: Server) -> None:
    program = older.begin(old, newest)
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
            until(
                lambda: (
                    queue.counts()
                    == Counts(delayed=1, blocked=1, enqueued=2 + number, completed=number)
                )
            )
    finally:
        left = older.end(program)
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
