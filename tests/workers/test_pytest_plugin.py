"""The pytest plugin and its fixtures, in a run of pytest as by a user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-handlers.md"
TESTS = """
import asyncio, sys, threading
import pytest
from headrace import AsyncWorker, DeadLetter, Queue, Retry, Worker

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture(params=["threads", "tasks"])
def worker(request):
    worker = (Worker if request.param == "threads" else AsyncWorker)(NOWHERE, heartbeat=0.2, timeout=1)

    @worker.handler("q", retry=Retry(wait=0.01))
    def one(job):
        if job.payload == b"bad":
            raise KeyError("bad")
        if job.payload == b"dead":
            raise DeadLetter("as it should")
        if job.payload == b"exit":
            sys.exit(3)
        if job.payload == b"interrupt":
            raise KeyboardInterrupt
        if job.payload == b"later" and job.attempt == 1:
            raise RuntimeError

    @worker.handler("kinds", kind="a")
    def a(job):
        raise LookupError("a")

    @worker.handler("kinds", kind="b")
    def b(job): ...

    return worker


@pytest.fixture
def queue(headrace_url):
    with Queue("q", url=headrace_url) as queue:
        yield queue


def test_until_it_is_empty(queue, worker, headrace_run):
    queue.enqueue_many([b"x", b"dead"])
    headrace_run(worker)
    counts = queue.counts()
    assert (counts.completed, counts.dead, counts.present) == (1, 1, 1)
    headrace_run(worker)  # again, and with nothing to do


def test_the_first_exception(queue, worker, headrace_run):
    queue.enqueue(b"bad")
    with pytest.raises(KeyError, match="bad"):
        headrace_run(worker)
    assert queue.admin.workers() == []


@pytest.mark.parametrize(("payload", "error"), [(b"exit", SystemExit), (b"interrupt", KeyboardInterrupt)])
def test_what_would_end_the_program(queue, worker, headrace_run, payload, error):
    queue.enqueue(payload)
    with pytest.raises(error):
        headrace_run(worker)
    assert queue.admin.workers() == []


def test_the_exception_of_a_kind(headrace_url, worker, headrace_run):
    with Queue("kinds", url=headrace_url) as queue:
        queue.enqueue(b"x", headers={"kind": "b"})
        headrace_run(worker)
        queue.enqueue(b"x", headers={"kind": "a"})
        with pytest.raises(LookupError, match="a"):
            headrace_run(worker)


def test_what_is_delayed(queue, worker, headrace_run, headrace_travel):
    queue.enqueue(b"x", delay=3600)
    headrace_run(worker, until_empty=False)
    with pytest.raises(TimeoutError, match="still 1 jobs"):
        headrace_run(worker, timeout=0.2)
    headrace_travel(3599.9)
    headrace_run(worker)
    assert queue.counts().completed == 1


def test_what_recurs(queue, worker, headrace_run, headrace_travel):
    queue.admin.schedule("hourly", b"x", every=3600)
    headrace_travel(3600)
    headrace_run(worker)
    assert queue.counts().completed == 1


def test_on_a_loop(queue, worker, headrace_run):
    async def story():
        queue.enqueue(b"x")
        headrace_run(worker)
    asyncio.run(story())
    assert queue.counts().completed == 1
"""


def pytest_of_a_user(folder: Path, *texts: str) -> str:
    for number, text in enumerate(texts):
        (folder / f"test_{number}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    arguments = ["-p", "headrace_pytest", "-p", "no:cacheprovider", "-q", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *arguments]
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # those of this environment
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_fixtures(tmp_path: Path) -> None:
    assert re.search(r"^16 passed in", said := pytest_of_a_user(tmp_path, TESTS), re.MULTILINE), (
        said
    )


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    """The page's examples are tests and pass."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    said = pytest_of_a_user(tmp_path, *blocks)
    assert re.search(r"^6 passed in", said, re.MULTILINE), said


def test_it_imports_headrace_only_when_it_is_used(tmp_path: Path) -> None:
    text = "import sys\ndef test_it():\n    assert 'headrace_pytest' in sys.modules and 'headrace' not in sys.modules\n"
    assert re.search(r"^1 passed in", said := pytest_of_a_user(tmp_path, text), re.MULTILINE), said
