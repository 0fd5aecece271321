"""Isolated handlers beside other features, and on servers and workers in trouble."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from headrace import AsyncWorker, Limit, NewJob, Queue, Retry, Worker, workers
from headrace.inspect import ChildFacts, WorkerState
from headrace.isolation import Isolation
from tests.isolation import app
from tests.isolation.test_isolated import NEVER, ONE, Work, alive, queue, work
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server

__all__ = ["queue", "work"]
TWO = Isolation(processes=2, grace_s=0.2)


@pytest.mark.slow
def test_steps_of_a_sharded_queue(work: Work, newest: Server) -> None:
    with Queue("q", url=newest.url, shards=4) as queue, work.handling(app.first_of_three, queue):
        receipts = queue.enqueue_many([NewJob(b"", id=f"j{n}", key=f"k{n}") for n in range(16)])
        results = [queue.result(one.id, timeout=PATIENCE) for one in receipts]
    words = [(result or b"").split() for result in results]
    assert {first for first, _ in words} == {b"None"}
    assert len({shard for _, shard in words}) > 1


@pytest.mark.slow
def test_jobs_of_a_key_run_in_their_order(
    work: Work, newest: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "noted"
    monkeypatch.setenv("NOTED", str(noted))
    jobs = [NewJob(b"%d" % number, key=f"k{number % 2}") for number in range(20)]
    with Queue("q", url=newest.url, ordered=True) as queue:
        queue.enqueue_many(jobs)
        with work.handling(app.appends, queue, isolate=TWO):
            until(lambda: queue.counts().completed == 20)
    lines = [line.split() for line in noted.read_text("ascii").splitlines()]
    for key in ("k0", "k1"):
        numbers = [int(number) for its, number, _ in lines if its == key]
        assert numbers == sorted(numbers)


@pytest.mark.slow
def test_a_limit_holds_over_children(
    work: Work, newest: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTED", str(tmp_path))
    jobs = [NewJob(b"", headers={"tenant": f"t{number % 3}"}) for number in range(30)]
    terms = {"fair": "tenant", "limits": [Limit(1, key="tenant")]}
    with Queue("q", url=newest.url, **terms) as queue:  # type: ignore[arg-type]
        queue.enqueue_many(jobs)
        with work.handling(app.overlaps, queue, isolate=Isolation(processes=4), retry=NEVER):
            until(lambda: queue.counts().completed + queue.counts().dead == 30)
        assert queue.counts().dead == 0


@pytest.mark.slow
def test_a_limit_holds_over_batches_in_children(
    work: Work, newest: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTED", str(tmp_path))
    jobs = [NewJob(b"", headers={"tenant": f"t{number % 3}"}) for number in range(90)]
    terms = {"fair": "tenant", "limits": [Limit(5, key="tenant")]}
    running = work.running()
    with Queue("q", url=newest.url, **terms) as queue:  # type: ignore[arg-type]
        running.worker.batch_handler(
            queue, max_size=3, max_wait=0.05, same=True, concurrency=4, isolate=TWO, retry=NEVER
        )(app.five_at_most)
        queue.enqueue_many(jobs)
        with running:
            until(lambda: queue.counts().completed + queue.counts().dead == 90)
        assert [one.reason for one in queue.admin.dead()] == []
    assert {one.name for one in tmp_path.iterdir()} == {"t0", "t1", "t2"}


@pytest.mark.slow
def test_a_deadline_holds_while_the_server_is_frozen(
    work: Work, newest: Server, queue: Queue, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    with work.handling(app.steps_for_ever, deadline=1.5, retry=NEVER):
        queue.enqueue(str(path).encode(), id="run")
        until(lambda: path.exists() and path.read_text("ascii"))
        pid = int(path.read_text("ascii"))
        newest.suspend()
        try:
            until(lambda: not alive(pid), "the end of the child")
        finally:
            newest.wake()
        until(lambda: queue.counts().dead == 1)
    assert next(iter(queue.admin.dead())).reason == "Killed: deadline of 1.5 s"


@pytest.mark.slow
def test_children_start_by_spawn(work: Work, queue: Queue) -> None:
    with work.handling(app.pid, isolate=Isolation(processes=1, start="spawn")):
        assert queue.enqueue(b"").result(timeout=PATIENCE) != b"%d" % os.getpid()


@pytest.mark.slow
def test_a_second_stop_gives_the_job_back_and_ends_its_child(
    newest: Server, queue: Queue, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    worker = Worker(newest.url)
    worker.handler("q", isolate=ONE)(app.waits)
    worker.start()
    queue.enqueue(str(path).encode(), id="long")
    until(lambda: path.exists() and path.read_text("ascii"))
    worker.stop(wait=False)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 5
    assert not alive(int(path.read_text("ascii")))
    state = queue.find("long")
    assert state is not None
    assert state.state == "parked"  # in front of all that is new


@pytest.mark.slow
def test_the_loop_goes_on_while_children_start_and_end(newest: Server) -> None:
    turns = 0

    async def counts() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.005)
            turns += 1

    async def main() -> tuple[int, int]:
        worker = AsyncWorker(newest.url)
        worker.handler("q", isolate=Isolation(processes=1, start="spawn"))(app.pid)
        beside = asyncio.create_task(counts())
        async with worker:
            started = turns
        beside.cancel()
        return started, turns

    started, ended = asyncio.run(main())
    assert started >= 5
    assert ended > started


@pytest.mark.slow
def test_isolation_on_any_server(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "noted"
    with (
        Queue("q", url=server.url) as queue,
        Work("threads", server.url).handling(app.steps, isolate=Isolation(recycle_jobs=2)),
    ):
        receipt = queue.enqueue(str(path).encode(), id="run")
        until(lambda: (state := queue.find("run")) is not None and len(state.steps) == 3)
        queue.signal("run", "go", b"!")
        assert receipt.result(timeout=PATIENCE) == b"12b'!'"
    assert path.read_text("ascii") == "1\n2\n"


SETTINGS = """
from pathlib import Path
SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.contenttypes"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).parent / "db"}}
"""
HANDLERS = """
from django.contrib.contenttypes.models import ContentType  # it takes apps that are ready
from django.db import connection


def handle(job):
    with connection.cursor() as cursor:
        cursor.execute("select 41 + 1")
        return f"{cursor.fetchone()[0]} {ContentType.__name__}".encode()
"""
PROGRAM = """
import os
import django
from headrace import Worker
from headrace.isolation import Isolation

if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "its_settings"
    django.setup()
    from its_handlers import handle

    worker = Worker({url!r})
    worker.handler("q", isolate=Isolation(processes=1, start={start!r}))(handle)
    worker.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_a_child_of_a_django_project_has_its_apps_and_database(
    newest: Server, queue: Queue, tmp_path: Path, start: str
) -> None:
    (tmp_path / "its_settings.py").write_text(SETTINGS, "utf-8")
    (tmp_path / "its_handlers.py").write_text(HANDLERS, "utf-8")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(url=newest.url, start=start), "utf-8")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    receipt = queue.enqueue(b"")
    with subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}
    ) as program:
        try:
            assert receipt.result(timeout=PATIENCE) == b"42 ContentType"
        finally:
            program.terminate()


@pytest.mark.slow
def test_a_retry_runs_in_a_child_that_a_death_has_not_harmed(work: Work, queue: Queue) -> None:
    """A policy sees `Killed`, and each attempt has a child of its own."""
    with work.handling(app.misbehave, isolate=TWO, retry=Retry(attempts=3, wait=0)):
        queue.enqueue(b"exits")
        until(lambda: queue.counts().dead == 1)
        assert queue.enqueue(b"behaves").result(timeout=PATIENCE) == b"done"


@pytest.mark.slow
def test_a_worker_reports_its_children(
    work: Work, newest: Server, queue: Queue, tmp_path: Path
) -> None:
    """Their jobs, memory and age are in `headrace workers` and on the worker's page."""
    path = tmp_path / "pid"
    with work.handling(app.waits, isolate=TWO) as worker:
        queue.enqueue(str(path).encode(), id="long")
        until(lambda: path.exists() and path.read_text("ascii"))
        try:
            until(lambda: bool(reported(newest)))
            queue.admin.quiet_worker(worker.name)  # a request brings the next report forward
            until(lambda: any(one.job for one in reported(newest)))
            children = reported(newest)
            page = worker_page(newest, registered(newest).name)
            table = subprocess.run(
                [sys.executable, "-m", "headrace", "workers", "--url", newest.url],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        finally:
            queue.cancel("long")
    pid = int(path.read_text("ascii"))
    assert {one.job for one in children if one.pid == pid} == {"long"}
    assert all(one.memory > 1 << 20 and one.jobs == 0 for one in children)
    assert all(0 < time.time() - one.since < PATIENCE for one in children)
    assert f'<th scope="row">{pid}</th>' in page
    assert f"{len(children)}: 1 busy, 0 jobs" in table


def registered(server: Server) -> WorkerState:
    with server.client() as client:
        (found,) = workers(client)
    return found


def reported(server: Server) -> tuple[ChildFacts, ...]:
    facts = registered(server).facts
    return () if facts is None else facts.children


def worker_page(server: Server, name: str) -> str:
    from tests.web.conftest import Site  # it imports web frameworks, which no other test here needs

    with asyncio.Runner() as runner, closing(Site(runner, server.url)) as site:
        return site.get("worker", queue="q", name=name).text
