"""A worker of the version before terms, beside a queue with limits. No job is lost or runs twice,
and slots are mended.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import Limit, NewJob, Queue, Worker
from tests.support import older
from tests.support.awaiting import until
from tests.support.planted import plant_scripts
from tests.support.servers import Server

JOBS = 12


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the version before terms."""
    return older.source(tmp_path_factory.mktemp("old"))


def ran_by(program: Any) -> list[str]:
    """End the older worker and return the jobs that it ran."""
    lines = older.end(program).split("\n")
    return [line.removeprefix("ran ") for line in lines if line.startswith("ran ")]


@pytest.mark.slow
def test_an_older_worker_beside_lines(old: Path, newest: Server) -> None:
    """The older worker takes no job from a line, however long it waits. It leases others beside the
    limits. Each runs once.
    """
    beside_lines(old, newest)


@pytest.mark.slow
@pytest.mark.sampled
def test_planted_bug(old: Path, newest: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the member of `leases`, it takes the jobs in lines by XAUTOCLAIM."""
    plant_scripts(monkeypatch, [("lease_fair", "redis.call('ZADD', q.leases, 'inf', 'lines')", "")])
    with pytest.raises(AssertionError, match="in lines"):
        beside_lines(old, newest)


def beside_lines(old: Path, server: Server) -> None:
    """Renew leases with lines behind them, beside an older worker that is there for several of its
    leases."""
    queue: Any = Queue("q", url=server.url, lease=0.5, fair="tenant", limits=Limit(1, key="tenant"))
    with queue:
        queue.enqueue_many(
            [NewJob(b"x", id=f"j{n}", headers={"tenant": "ab"[n % 2]}) for n in range(JOBS)]
        )
        leases = queue.lease_many(2)
        program, done, number = older.begin(old, server, "1"), threading.Event(), 0

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


@pytest.mark.slow
def test_slots_of_leases_that_an_older_worker_ended(old: Path, newest: Server) -> None:
    """It takes over expired leases and leaves their slots, which other workers release."""
    queue: Any = Queue("q", url=newest.url, lease=0.5, fair="tenant", limits=Limit(1, key="tenant"))
    with queue:
        queue.enqueue_many(
            [NewJob(b"x", id=f"j{n}", headers={"tenant": "ab"[n % 2]}) for n in range(6)]
        )
        assert len(queue.lease_many(6)) == 2
        assert queue.counts().held == 2
        program = older.begin(old, newest, "1")
        assert program.stdout.readline() == "ready\n"
        assert sorted(program.stdout.readline() for _ in range(2)) == ["ran j0\n", "ran j1\n"]
        ran_by(program)
        worker: Any = Worker(newest.url, heartbeat=0.2, timeout=0.5)
        worker.handler(queue)(lambda job: None)
        with worker:
            until(lambda: queue.counts().completed == 6, 20)
            until(lambda: queue.counts().held == 0)
