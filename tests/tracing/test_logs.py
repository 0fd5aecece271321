"""What is logged: events, their fields and levels; and what is not."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import BatchError, DeadLetter, Job, Queue, Release, Retry, RetryLater
from headrace._telemetry.log import EVENTS
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.processes import Processes
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.tracing.conftest import Spans

Work = Callable[..., Running]
FIELDS = ("queue", "job_id", "attempt", "worker", "trace_id", "span_id")


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "headrace")
    return caplog


def events(caplog: pytest.LogCaptureFixture, *wanted: str) -> list[Any]:
    """The records of these events."""
    return [record for record in list(caplog.records) if getattr(record, "event", "") in wanted]


def test_a_failing_job(work: Work, queue: Queue, spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    worker = work(name="w")

    @worker.handler("q", retry=Retry(attempts=2, wait=0))
    def body(job: Job) -> None:
        raise ValueError("no")

    receipt = queue.enqueue(b"secret")
    with worker:
        until(lambda: queue.counts().dead == 1)
    failed, dead = events(caplog, "job_failed", "job_dead_lettered")
    assert (failed.levelname, dead.levelname) == ("WARNING", "ERROR")
    assert failed.getMessage() == f"job_failed: job {receipt.id} goes round again: ValueError: no"
    assert dead.getMessage() == f"job_dead_lettered: job {receipt.id}: ValueError: no"
    for record, span, attempt in zip((failed, dead), spans.named("process q"), (1, 2), strict=True):
        assert record.exc_info[0] is ValueError
        assert record.worker.startswith("w.")
        assert {name: getattr(record, name) for name in FIELDS if name != "worker"} == {
            "queue": "q",
            "job_id": receipt.id,
            "attempt": attempt,
            "trace_id": f"{span.context.trace_id:032x}",
            "span_id": f"{span.context.span_id:016x}",
        }
    assert not [record for record in caplog.records if "secret" in record.getMessage()]


def test_what_a_handler_asked_for(work: Work, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker = work()
    said = {b"later": RetryLater(0.0), b"back": Release(), b"never": DeadLetter("bad address")}

    @worker.handler("q")
    def body(job: Job) -> None:
        if job.payload in said:
            raise said.pop(job.payload)

    queue.enqueue_many([b"fine", *said])
    with worker:
        until(lambda: queue.counts().completed == 3)
    found = events(caplog, "job_failed", "job_put_back", "job_released", "job_dead_lettered")
    assert {(record.event, record.levelname, record.exc_info) for record in found} == {
        ("job_put_back", "INFO", None),
        ("job_released", "DEBUG", None),
        ("job_dead_lettered", "ERROR", None),
    }
    assert not hasattr(found[0], "trace_id")


def test_a_batch_tells_of_those_that_failed(work: Work, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=3, max_wait=5)
    def body(jobs: list[Job]) -> None:
        raise BatchError({jobs[1].id: KeyError("k")})

    receipts = queue.enqueue_many([b"", b"", b""])
    with worker:
        until(lambda: queue.counts().completed == 2)
    assert [record.job_id for record in events(caplog, "job_failed")] == [receipts[1].id]


def test_a_lost_lease(work: Work, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker, gate, began = work(name="w"), threading.Event(), threading.Event()

    @worker.handler("q")
    def body(job: Job) -> Iterator[threading.Event]:
        began.set()
        yield gate

    queue.enqueue(b"", id="a")
    with worker:
        until(began.is_set)
        assert queue.cancel("a")
        until(lambda: events(caplog, "lease_lost"))
        gate.set()
    (record,) = events(caplog, "lease_lost")
    assert (record.levelname, record.queue, record.job_id, record.attempt) == ("WARNING", "q", "a", 1)


def test_the_life_of_a_worker(work: Work, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker = work(name="w", heartbeat=0.05, timeout=5.0)
    worker.handler("q")(lambda job: None)
    with worker:
        queue.enqueue(b"")
        until(lambda: queue.counts().completed == 1)
        until(queue.workers)
        queue.fail_worker("w")
        until(lambda: events(caplog, "worker_declared_dead"))
    names = [record.event for record in caplog.records]
    assert [name for name in names if name.startswith("worker")] == [
        "worker_started",
        "worker_declared_dead",
        "worker_stopped",
    ]
    assert {record.levelname for record in caplog.records} == {"INFO", "ERROR"}  # nothing of the job that ended well


def test_the_dead_and_what_they_held(
    work: Work, queue: Queue, caplog: pytest.LogCaptureFixture, newest: Server, tmp_path: Path
) -> None:
    processes = Processes("threads", newest.url, tmp_path)
    queue.enqueue(b"hold")
    victim = processes.start("victim", concurrency=1)
    processes.await_notes(1, "began")
    os.kill(victim.pid, signal.SIGKILL)
    worker = work(heartbeat=0.3, timeout=1.0)
    worker.handler("q")(lambda job: None)
    with worker:
        assert queue.drain(20)
    processes.close()
    assert [(r.event, r.levelname, r.queue) for r in events(caplog, "peers_declared_dead", "jobs_reclaimed")] == [
        ("peers_declared_dead", "WARNING", "q"),
        ("jobs_reclaimed", "INFO", "q"),
    ]


def test_a_connection_is_lost_and_restored(newest: Server, caplog: pytest.LogCaptureFixture) -> None:
    with Proxy(newest.path) as proxy, Queue("q", url=proxy.url) as queue:
        queue.enqueue(b"a")
        proxy.cut("replies", 0)
        queue.enqueue(b"b")
        queue.enqueue(b"c")
    found = [(record.event, record.levelname) for record in caplog.records if record.event != "group_created"]
    assert found == [("connection_lost", "WARNING"), ("connection_restored", "INFO")]


def test_it_is_quiet_without_logging(newest: Server) -> None:
    """Not even a dead letter is printed."""
    program = f"""
from headrace import DeadLetter, Queue, Worker
worker = Worker(url={newest.url!r})
@worker.handler("q")
def body(job):
    worker.stop(wait=False)
    raise DeadLetter("no")
with Queue("q", url={newest.url!r}) as queue:
    queue.enqueue(b"")
    worker.run()
    assert queue.counts().dead == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_every_event_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "spans-and-metrics.md").read_text("utf-8")
    rows = {
        line.split("|")[1].strip(" `"): line.split("|")[2].strip() for line in page.splitlines() if line[:3] == "| `"
    }
    assert {name: rows.get(name) for name in EVENTS} == {
        name: logging.getLevelName(level) for name, level in EVENTS.items()
    }
