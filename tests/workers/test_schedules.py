"""Workers and future jobs. They serve schedules together, and see delays that other clients
make."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from headrace import Job, Queue
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import EXACT, Server, binaries

Work = Callable[..., Running]


def tick(name: str) -> int:
    """Return the time in the id of a job, in ms."""
    return int(name.rpartition("@")[2])


@pytest.mark.sampled
def test_several_workers_one_job_a_tick(work: Work, queue: Queue, record: Recorder) -> None:
    """Three workers see every tick, and only one of them enqueues its job. None comes early."""
    early: list[str] = []
    workers = [work() for _ in range(3)]
    for worker in workers:

        @worker.handler("q")
        def body(job: Job) -> None:
            if job.enqueued_at * 1000 < tick(job.id):  # both of the server's clock
                early.append(job.id)
            with record(job.id):
                pass

        worker.start()
    assert queue.admin.schedule("s", b"x", every=0.2, missed="all")
    assert queue.admin.schedule("c", b"x", cron="* * * * * *", missed="all")
    until(lambda: len([name for name in record.ended if name[0] == "c"]) >= 2)
    record.await_ended(12)
    assert queue.admin.unschedule("s")
    assert queue.admin.unschedule("c")
    until(lambda: queue.counts().present == 0)
    for worker in workers:
        worker.close()
    assert early == []
    for name, apart in (("s", 200), ("c", 1000)):
        ticks = [tick(ended) for ended in record.ended if ended[0] == name]
        assert {later - earlier for earlier, later in pairwise(sorted(ticks))} == {apart}
    counts = queue.counts()
    assert (counts.completed, counts.lost) == (len(record.ended), 0)


@pytest.mark.sampled
def test_workers_that_were_away(work: Work, queue: Queue, newest: Server) -> None:
    """No worker runs for a while. With `all` the next one makes every tick once."""
    ran: list[int] = []

    def works() -> Running:
        worker = work()

        @worker.handler("q")
        def body(job: Job) -> None:
            ran.append(tick(job.id))

        return worker

    queue.admin.schedule("s", b"x", every=0.1, missed="all")
    with works():
        until(lambda: len(ran) >= 2)
    before = max(ran)
    with redis.Redis(unix_socket_path=newest.path) as client:
        until(lambda: client.time()[0] * 1000 > before + 1000)
    with works():
        until(lambda: len(ran) >= 14)
        queue.admin.unschedule("s")
        until(lambda: queue.counts().present == 0)
    assert len(set(ran)) == len(ran)
    assert {later - earlier for earlier, later in pairwise(sorted(ran))} == {100}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_the_server_restarts(kind: str, tmp_path: Path, record: Recorder) -> None:
    """The server keeps the schedule with its rhythm. Each tick comes once."""
    with Server(binaries()[0], appendonly=True, extra=EXACT) as server:
        worker = Running(kind, url=server.url)

        @worker.handler("q")
        def body(job: Job) -> None:
            with record(tick(job.id)):
                pass

        with Queue("q", url=server.url) as queue, worker:
            queue.admin.schedule("s", b"x", every=0.25, missed="all")
            record.await_ended(2)
            server.kill()
            server.start()
            record.await_ended(len(record.ended) + 4)
            queue.admin.unschedule("s")
            until(lambda: queue.counts().present == 0)
            assert {later - earlier for earlier, later in pairwise(sorted(set(record.ended)))} == {
                250
            }
            assert queue.counts().enqueued == len(set(record.ended))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_worker_that_lacks_the_library(
    work: Work,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record: Recorder,
) -> None:
    """The worker logs it once and serves the other schedules. A worker that has the library may
    enqueue those jobs."""
    queue.admin.schedule("c", b"x", cron="* * * * * *")
    monkeypatch.setitem(sys.modules, "cronsim", None)
    worker = work(heartbeat=0.2, timeout=1.0)

    @worker.handler("q")
    def body(job: Job) -> None:
        with record(job.id[0]):
            pass

    def said() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]

    with worker:
        until(said)
        queue.admin.schedule("e", b"x", every=0.1)
        record.await_ended(5)
        assert len(said()) == 1
        assert "schedule_failed: schedule 'c' of queue 'q'" in said()[0]
        assert "[cron]'" in said()[0]
        assert set(record.ended) == {"e"}
        monkeypatch.undo()
        until(lambda: "c" in record.ended)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_delays_that_others_make_while_a_worker_waits(
    work: Work, queue: Queue, newest: Server
) -> None:
    """The worker learns of them long before its next look for dead workers in 7 s (G-9, H-14)."""
    late: dict[str, float] = {}
    worker = work(heartbeat=10.0, timeout=60.0)
    clock = redis.Redis(unix_socket_path=newest.path)
    queue.enqueue_many([b"x"] * 3)
    held = iter(queue.lease_many(3, duration=600.0))

    def now() -> float:
        seconds, micros = clock.time()
        return float(seconds + micros / 1e6)

    def retry(delay: float) -> str:
        lease = next(held)
        assert lease.retry(delay)
        return lease.job.id

    def reschedule(delay: float) -> str:
        name = queue.enqueue(b"x", delay=3600).id
        assert queue.admin.reschedule(name, delay)
        return name

    @worker.handler("q")
    def body(job: Job) -> Iterator[float]:
        yield 0.0
        late[job.id] = now()

    with worker:
        until(lambda: len(queue.admin.workers()) == 2)
        for delay in (0.1, 0.3, 0.05):
            for way in (retry, reschedule, lambda delay: queue.enqueue(b"x", delay=delay).id):
                until(lambda: clock.info("clients")["blocked_clients"] > 0)
                name = way(delay)
                state = queue.find(name)
                due = state.due if state is not None and state.due is not None else now()
                until(lambda name=name: name in late)
                late[name] -= due
        assert queue.admin.schedule("s", b"x", every=0.2)
        until(lambda: any(name.startswith("s@") for name in late))
        queue.admin.unschedule("s")
    clock.close()
    waits = sorted(seconds for name, seconds in late.items() if "@" not in name)
    assert len(waits) == 9
    assert waits[4] < 2.0  # a few ms, as a rule
