"""Log events with their fields and levels, and the cases without a line."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.sentinel

from headrace import BatchError, DeadLetter, Job, Queue, Release, Retry, RetryLater, Worker
from headrace._net.base.address import shown, shown_settings
from headrace._telemetry.log import EVENTS, JsonLines
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.facts import each
from tests.support.processes import Processes
from tests.support.program import Script
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
    return [record for record in list(caplog.records) if getattr(record, "event", "") in wanted]


def test_a_failing_job(
    work: Work, queue: Queue, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    worker = work(name="w")

    @worker.handler("q", retry=Retry(attempts=2, wait=0))
    def body(job: Job) -> None:
        raise ValueError("no")

    receipt = queue.enqueue(b"secret")
    with worker:
        until(lambda: queue.counts().dead == 1)
    failed, dead = events(caplog, "job_failed", "job_dead_lettered")
    assert (failed.levelname, dead.levelname) == ("WARNING", "ERROR")
    job = f"job {receipt.id} of queue 'q'"
    assert (
        failed.getMessage()
        == f"job_failed: {job} failed on attempt 1 of 2, and runs again at once: ValueError: no"
    )
    assert (
        dead.getMessage()
        == f"job_dead_lettered: {job} is dead after attempt 2 of 2: ValueError: no"
    )
    assert (failed.error, dead.error) == ("ValueError: no", "ValueError: no")
    for record, span, attempt in zip((failed, dead), spans.named("process q"), (1, 2), strict=True):
        assert record.exc_info[0] is ValueError
        # the user's, for which our own frames are left out
        first = record.exc_info[2].tb_frame.f_code.co_filename
        assert Path(first).is_relative_to(Path(__file__).parents[1]), first
        assert record.worker.startswith("w.")
        assert {name: getattr(record, name) for name in FIELDS if name != "worker"} == {
            "queue": "q",
            "job_id": receipt.id,
            "attempt": attempt,
            "trace_id": f"{span.context.trace_id:032x}",
            "span_id": f"{span.context.span_id:016x}",
        }
    assert not [record for record in caplog.records if "secret" in record.getMessage()]


def test_what_a_handler_asked_for(
    work: Work, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_batch_tells_of_those_that_failed(
    work: Work, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert (record.levelname, record.queue, record.job_id, record.attempt) == (
        "WARNING",
        "q",
        "a",
        1,
    )


def test_the_life_of_a_worker(work: Work, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    worker = work(name="w", heartbeat=0.05, timeout=5.0)
    worker.handler("q")(lambda job: None)
    with worker:
        queue.enqueue(b"")
        until(lambda: queue.counts().completed == 1)
        until(queue.admin.workers)
        queue.admin.fail_worker("w")
        until(lambda: events(caplog, "worker_declared_dead"))
    names = [record.event for record in caplog.records]
    assert [name for name in names if name.startswith("worker")] == [
        "worker_started",
        "worker_declared_dead",
        "worker_stopping",
        "worker_stopped",
    ]
    # the machine's doing
    levels = {record.levelname for record in caplog.records if record.event != "loop_blocked"}
    assert levels == {"INFO", "ERROR"}  # nothing of the job that ended well


@pytest.mark.slow
def test_the_dead_and_what_they_held(
    work: Work, queue: Queue, caplog: pytest.LogCaptureFixture, newest: Server, tmp_path: Path
) -> None:
    queue.enqueue(b"hold")
    with Processes("threads", newest.url, tmp_path) as processes:
        victim = processes.start("victim", concurrency=1)
        processes.await_notes(1, "began")
        victim.kill()
    worker = work(heartbeat=0.3, timeout=1.0)
    worker.handler("q")(lambda job: None)
    with worker:
        assert queue.admin.drain(20)
    assert [
        (r.event, r.levelname, r.queue)
        for r in events(caplog, "peers_declared_dead", "jobs_reclaimed")
    ] == [
        ("peers_declared_dead", "WARNING", "q"),
        ("jobs_reclaimed", "INFO", "q"),
    ]


def test_a_connection_is_lost_and_restored(
    newest: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(newest.path) as proxy, Queue("q", url=proxy.url) as queue:
        queue.enqueue(b"a")
        proxy.cut("replies", 0)
        queue.enqueue(b"b")
        queue.enqueue(b"c")
    found = [
        (record.event, record.levelname)
        for record in caplog.records
        if record.event != "group_created"
    ]
    assert found == [("connection_lost", "WARNING"), ("connection_restored", "INFO")]


@pytest.mark.parametrize(
    ("verdict", "when"),
    [
        (RetryLater(4000.0), "in 4000 s"),
        (RetryLater(timedelta(seconds=90)), "in 90.0 s"),
        (RetryLater(datetime(2100, 1, 1, tzinfo=UTC)), "at 2100-01-01 00:00:00+00:00"),
    ],
)
def test_when_a_job_runs_again(
    newest: Server, queue: Queue, verdict: RetryLater, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url=newest.url)

    @worker.handler("q")
    def body(_job: Job) -> None:
        raise verdict

    queue.enqueue(b"", id="a")
    with worker:
        until(lambda: queue.counts().delayed == 1)
    (record,) = events(caplog, "job_put_back")
    assert (
        f"job a of queue 'q' is put back on attempt 1 of 20, and runs again {when}: "
        in record.getMessage()
    )


def test_what_a_stop_gives_back(work: Work, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """The events have the jobs that had not started, and those that were cut short."""
    worker, gate, began = work(name="w"), threading.Event(), threading.Event()

    @worker.handler("q", concurrency=1)
    def body(job: Job) -> Iterator[threading.Event | float]:
        began.set()
        while not job.lost:
            yield 0.005

    queue.enqueue_many([b""] * 3)
    with worker:
        until(began.is_set)
        worker.stop(wait=False)
        worker.stop(wait=False)
    gate.set()
    (stopping,) = events(caplog, "worker_stopping")
    assert stopping.running == 1
    (stopped,) = events(caplog, "worker_stopped")
    assert stopped.given_back["q"] >= 1
    assert f"given back: {stopped.given_back['q']} of 'q'" in stopped.getMessage()


def test_a_worker_says_what_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(url="redis://me:secret@host:7/1?password=secret")
    worker.handler("q", concurrency=3)(plain)
    worker.batch_handler("events", max_size=50)(plain)
    worker.handler("mail", kind="welcome")(plain)
    worker.handler("mail")(print)
    worker._started()
    (record,) = events(caplog, "worker_started")
    name = f"{__name__}.plain"
    assert record.getMessage() == (
        f"worker_started: {worker.name} serves 'q' with {name}, 3 at once; "
        f"'events' with {name}, batches of up to 50, 1 at once; "
        f"'mail' with {name} (kind welcome), builtins.print (other kinds), 10 at once; on redis://host:7/1"
    )
    assert (record.queues, record.worker) == (["q", "events", "mail"], worker.name)


def plain(_job: object) -> None:
    """Do nothing."""


@each(
    ("url", "words"),
    [
        ("redis://user:secret@host:6380/2?password=secret", "redis://host:6380/2"),
        ("embedded:./data", "embedded:./data"),
        ("unix:///a/b?db=1", "unix:///a/b"),
        ("redis://[bad", "redis://…"),
    ],
)
def test_an_address_has_no_secrets(url: str, words: str) -> None:
    assert shown(url) == words


def test_the_address_of_a_client() -> None:
    assert shown_settings(redis.Redis(host="h", port=7, db=3, password="secret")) == "redis://h:7/3"
    assert shown_settings(redis.Redis(unix_socket_path="/a")) == "unix:///a"
    watch = redis.sentinel.Sentinel([("h", 1)])
    assert shown_settings(watch.master_for("primary")) == "primary (by Sentinel)"


# -- where it goes: programs of their own ----------------------------------------------------------

PROGRAM = """
import asyncio, logging, os, sys
from headrace import AsyncWorker, Job, Queue, Retry, Worker

url = os.environ["HEADRACE_URL"]
queue = Queue("q", url=url)
left = [ValueError("once"), ValueError("twice")]

def body(job: Job) -> None:
    error = left.pop(0)
    if not left:
        stop()
    raise error

async def in_app() -> None:
    worker = AsyncWorker(url=url)
    worker.handler("q", retry=Retry(attempts=2, wait=0))(body)
    async with worker:
        while not queue.counts().dead:
            await asyncio.sleep(0.01)

def stop() -> None:
    global worker
    if isinstance(worker, Worker):
        worker.stop(wait=False)
    elif worker:
        loop.call_soon_threadsafe(lambda: asyncio.ensure_future(worker.stop(wait=False)))

def run(kind, **options):
    global worker, loop
    worker = kind(url=url)
    worker.handler("q", retry=Retry(attempts=2, wait=0), concurrency=1)(body)
    if kind is AsyncWorker:
        async def main():
            global loop
            loop = asyncio.get_running_loop()
            await worker.serve()
        asyncio.run(main())
    else:
        worker.run()

worker = loop = None
queue.enqueue(b"", id="a")
"""


def printed(newest: Server, rest: str) -> str:
    """Return the standard error of a program."""
    with Script(PROGRAM + rest, env={**os.environ, "HEADRACE_URL": newest.url}) as running:
        out, err = running.communicate()
        assert (running.returncode, out) == (0, b""), err
    return err.decode()


STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Worker", "AsyncWorker"])
def test_run_speaks(newest: Server, kind: str) -> None:
    text = printed(newest, f"run({kind})")
    assert re.search(
        rf"(?m)^{STAMP}INFO worker_started: worker-\w+ serves 'q' with __main__.body, 1 at once; on",
        text,
    )
    job = "job a of queue 'q'"
    assert re.search(
        rf"(?m)^{STAMP}WARNING job_failed: {job} failed on attempt 1 of 2, and runs again at once: ",
        text,
    )
    assert re.search(
        rf"(?m)^{STAMP}ERROR job_dead_lettered: {job} is dead after attempt 2 of 2: ValueError: tw",
        text,
    )
    assert re.search(rf"(?m)^{STAMP}INFO worker_stopped: worker-\w+; given back: nothing$", text)
    assert text.count("ValueError: once") == 2  # the line, and its traceback: nothing is said twice


@pytest.mark.slow
def test_inside_a_program_warnings_reach_the_last_resort(newest: Server) -> None:
    """Such a program, like uvicorn, sets up its own loggers and no root logger."""
    text = printed(newest, "asyncio.run(in_app())")
    assert text.startswith("job_failed: job a of queue 'q' failed on attempt 1 of 2")
    assert "\njob_dead_lettered: " in text
    assert "worker_started" not in text


@pytest.mark.slow
def test_a_program_that_has_set_up_logging_is_left_alone(newest: Server) -> None:
    text = printed(
        newest, "logging.basicConfig(format='mine %(message)s', level=logging.ERROR)\nrun(Worker)"
    )
    assert re.findall(r"(?m)^mine (\w+)", text) == ["job_dead_lettered"]
    assert "job_failed" not in text
    quiet = "logging.getLogger('headrace').addHandler(logging.NullHandler())\nrun(Worker)"
    assert printed(newest, quiet) == ""


def test_a_program_that_sets_up_logging_later_takes_over(newest: Server) -> None:
    """The program installs a handler. No line is printed twice."""
    text = printed(
        newest, "old = body\ndef body(job):\n logging.warning('mine')\n old(job)\nrun(Worker)"
    )
    assert re.search(rf"(?m)^{STAMP}INFO worker_started", text)
    assert re.search(r"(?m)^WARNING:headrace:job_failed: ", text)
    assert text.count("ValueError: once") == 2
    assert "INFO:headrace:worker_stopped" not in text


@pytest.mark.slow
def test_an_import_sets_up_nothing() -> None:
    program = "import logging, headrace; print(logging.root.handlers, logging.getLogger('headrace').handlers)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=60
    )
    assert done.stdout == b"[] []\n"


def test_lines_as_json() -> None:
    with pytest.raises(ValueError, match="mailbox") as caught:
        raise ValueError("no\nsuch \udc80 mailbox")
    info = (caught.type, caught.value, caught.tb)
    fields = {
        "event": "job_failed",
        "queue": "q",
        "job_id": "a",
        "attempt": 2,
        "odd": object,
        "exc_info": info,
    }
    record = logging.makeLogRecord(
        {"name": "headrace", "levelname": "WARNING", "msg": "job_failed: %s", "args": (1,)}
    )
    vars(record).update(fields)
    text = JsonLines().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert {name: line[name] for name in ("event", "queue", "job_id", "attempt", "level", "logger", "message")} == {
        "event": "job_failed", "queue": "q", "job_id": "a", "attempt": 2,
        "level": "warning", "logger": "headrace", "message": "1",
    }  # fmt: skip
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert line["error"] == "ValueError: no\nsuch \udc80 mailbox"
    assert line["traceback"].startswith("Traceback")


def test_every_event_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "spans-and-metrics.md").read_text(
        "utf-8"
    )
    rows = {
        line.split("|")[1].strip(" `"): line.split("|")[2].strip()
        for line in page.splitlines()
        if line[:3] == "| `"
    }
    assert {name: rows.get(name) for name in EVENTS} == {
        name: logging.getLevelName(level) for name, level in EVENTS.items()
    }
