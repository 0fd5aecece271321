"""`headrace work --isolate` isolates the handlers of a worker that says nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Queue
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server

WORKER = """
import os
from headrace import Job, Tasks, Worker

worker = Worker()
parent = os.environ.setdefault("PARENT", str(os.getpid()))


@worker.handler("q", deadline=1)
def handle(job: Job) -> bytes:
    while job.payload == b"for ever":
        pass
    return f"{parent} {os.getpid()} {os.getpgrp()}".encode()


@worker.handler("q", kind="other")
def other(job: Job) -> bytes:
    return b"other"
"""


@pytest.mark.slow
def test_work_isolates_all_handlers(newest: Server, tmp_path: Path) -> None:
    (tmp_path / "isolated_app.py").write_text(WORKER, "utf-8")
    command = [sys.executable, "-m", "headrace", "work", "isolated_app:worker", "--isolate"]
    with (
        Queue("q", url=newest.url) as queue,
        subprocess.Popen(
            [*command, "--recycle-jobs", "10", "--url", newest.url],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as work,
    ):
        try:
            queue.enqueue(b"for ever", id="late")
            receipts = queue.enqueue_many([b""] * 30)
            found = {queue.result(one.id, timeout=PATIENCE) for one in receipts}
            parent, child, group = zip(*((one or b"").split() for one in found), strict=True)
            assert len(set(parent)) == 1
            assert child == group  # each child leads a group of its own
            assert len(set(child)) > 2
            said = queue.enqueue(b"", headers={"kind": "other"})
            assert said.result(timeout=PATIENCE) == b"other"
            late = "Killed: deadline of 1 s"
            until(lambda: (state := queue.find("late")) is not None and state.reason == late)
        finally:
            work.terminate()


@pytest.mark.slow
def test_recycling_without_isolation_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "work", "app:worker", "--recycle-jobs", "9"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "--isolate" in done.stderr
