"""Isolated handlers beside children of runs, undo, builds, quiet and reloads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import Queue, Retry, Worker
from headrace.isolation import Isolation
from tests.isolation import app
from tests.isolation.test_beside import reported
from tests.isolation.test_isolated import NEVER, ONE, Work, alive, queue, work
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server

__all__ = ["queue", "work"]
TWO = Isolation(processes=2, grace_s=0.2)


@pytest.mark.slow
def test_a_run_waits_for_children_that_are_isolated_too(work: Work, newest: Server) -> None:
    """One of them dies with its process at first, and another one always."""
    running = work.running()
    family = app.family_async if work.kind == "tasks" else app.family
    running.worker.handler("q/order", isolate=ONE)(family)
    twice = Retry(attempts=2, wait=0)
    running.worker.handler("q/pack", isolate=TWO, retry=twice)(app.packs)
    with Queue("q/order", url=newest.url) as orders, running:
        told = orders.enqueue(b"", id="run").result(timeout=PATIENCE) or b""
    assert told.startswith(b"packed a; packed dies once; done; packed c; ")
    assert b"Killed: exit status 3" in told


@pytest.mark.slow
def test_a_run_whose_child_is_killed_is_undone(work: Work, queue: Queue, tmp_path: Path) -> None:
    """Its last attempt passes its deadline. Another child replays it, and undoes its steps."""
    path = tmp_path / "noted"
    books = app.books_and_hangs_async if work.kind == "tasks" else app.books_and_hangs
    with work.handling(books, retry=NEVER, deadline=1.0):
        queue.enqueue(str(path).encode(), id="run")
        until(lambda: queue.counts().dead == 1)
    assert path.read_text("ascii") == "1\n2\n-2\n-1\n"
    (dead,) = queue.admin.dead()
    assert dead.reason == "Killed: deadline of 1 s"


@pytest.mark.slow
def test_a_child_knows_the_build_of_its_run(newest: Server, queue: Queue) -> None:
    worker = Worker(newest.url, build="7")
    worker.handler("q", isolate=ONE, runs="same")(app.built)
    with worker:
        assert queue.enqueue(b"").result(timeout=PATIENCE) == b"7"


@pytest.mark.slow
def test_a_quiet_worker_keeps_its_children(
    work: Work, newest: Server, queue: Queue, tmp_path: Path
) -> None:
    path = tmp_path / "go"
    with work.handling(app.naps) as worker:
        first = queue.enqueue(str(path).encode())
        until(path.with_suffix(".began").exists)
        (registered,) = queue.admin.workers()
        until(lambda: bool(reported(newest)), "its first report")
        assert queue.admin.quiet_worker(registered.name)
        consumers: Any = worker._running.lifecycle.consumers
        until(lambda: consumers[0].leasing.quiet, "it obeys")
        second = queue.enqueue(str(path).encode())
        path.touch()
        pid = first.result(timeout=PATIENCE)
        assert queue.counts().waiting == 1
        assert queue.admin.resume_worker(registered.name)
        assert second.result(timeout=PATIENCE) == pid
        assert worker.name in registered.name
    until(lambda: not alive(int(pid or 0)))


CODE = """
import os
from headrace import Worker

worker = Worker()


@worker.handler("q")
def handle(job):
    return b"{answer} %d" % os.getpid()
"""


@pytest.mark.slow
def test_new_code_runs_in_new_children(newest: Server, queue: Queue, tmp_path: Path) -> None:
    """`headrace work --isolate --reload` leaves no child of the old code behind."""
    module = tmp_path / "reloaded_app.py"
    module.write_text(CODE.format(answer="old"), "utf-8")
    command = [sys.executable, "-m", "headrace", "work", "reloaded_app:worker", "--isolate"]
    with subprocess.Popen(
        [*command, "--reload", "--url", newest.url],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
    ) as program:
        try:
            said, pid = (queue.enqueue(b"").result(timeout=PATIENCE) or b"").split()
            assert said == b"old"
            module.write_text(CODE.format(answer="young"), "utf-8")
            until(lambda: not alive(int(pid)), "the end of the old child")
            said, pid = (queue.enqueue(b"").result(timeout=PATIENCE) or b"").split()
            assert said == b"young"
        finally:
            program.terminate()
    until(lambda: not alive(int(pid)), "the end of the young child")


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_second_signal_ends_all_processes(
    newest: Server, queue: Queue, tmp_path: Path, loop: str
) -> None:
    """The job of an event loop's worker is given back, and its child has gone."""
    pytest.importorskip(loop)
    path = tmp_path / "pid"
    script = tmp_path / "program.py"
    script.write_text(LOOPING.format(url=newest.url), "utf-8")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HEADRACE_LOOP": loop}
    with subprocess.Popen([sys.executable, str(script)], env=environ) as program:
        try:
            queue.enqueue(str(path).encode(), id="long")
            until(lambda: path.exists() and path.read_text("ascii"))
            pid = int(path.read_text("ascii"))
            program.terminate()
            time.sleep(0.3)  # the first signal only stops the leasing, which nothing shows
            assert alive(pid)
            program.terminate()
            program.wait(PATIENCE)
        finally:
            program.kill()
    until(lambda: not alive(pid))
    state = queue.find("long")
    assert state is not None
    assert state.state == "parked"


LOOPING = """
from headrace import AsyncWorker
from headrace.isolation import Isolation
from tests.isolation import app

worker = AsyncWorker({url!r})
worker.handler("q", isolate=Isolation(processes=1, grace_s=0.2))(app.waits)
if __name__ == "__main__":
    worker.run()
"""
