"""Children and parents are killed at random, under load. No job is lost, none ends twice, and no
process is left.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from headrace import NewJob, Queue
from tests.isolation.test_isolated import alive
from tests.support.awaiting import until
from tests.support.servers import Server

KILLS = int(os.environ.get("ISOLATION_KILLS", "150"))
JOBS = 200  # added whenever fewer wait
PROGRAM = """
from headrace import Retry, Worker
from headrace.isolation import Isolation
from tests.isolation import app

worker = Worker({url!r}, heartbeat=0.3, timeout=1.0)
limits = Isolation(processes=2, recycle_jobs=40, grace_s=0.2)
worker.handler("q", isolate=limits, retry=Retry(attempts=None, wait=0), max_attempts=None)(app.notes)
if __name__ == "__main__":
    worker.run()
"""


def started(script: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(sys.path)
    return subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
@pytest.mark.timeout(240 + KILLS)
def test_random_kills_lose_nothing(newest: Server, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(url=newest.url), "utf-8")
    luck = random.Random(7)
    workers = [started(script) for _ in range(2)]
    every: set[int] = set()
    ids = count()
    try:
        with Queue("q", url=newest.url) as queue:
            killed = 0
            while killed < KILLS:
                if queue.counts().waiting < JOBS:
                    payload = str(notes).encode()
                    queue.enqueue_many([NewJob(payload, id=f"j{next(ids)}") for _ in range(JOBS)])
                lines = notes.read_text("ascii").splitlines()
                pids = [int(line.split()[1]) for line in lines[-8:] if line.endswith(";")]
                every.update(pids)
                if killed % 25 == 24:
                    at = luck.randrange(2)
                    workers[at].send_signal(signal.SIGKILL)
                    workers[at].wait()
                    workers[at] = started(script)
                    killed += 1
                elif pids:
                    with suppress(ProcessLookupError):
                        os.kill(luck.choice(pids), signal.SIGKILL)
                        killed += 1
                time.sleep(luck.random() * 0.05)
            made = next(ids)
            until(lambda: queue.counts().completed == made, "all jobs", patience=90)
            counts = queue.counts()
            assert (counts.dead, counts.leased, counts.waiting, counts.lost) == (0, 0, 0, 0)
    finally:
        for one in workers:
            one.terminate()
        for one in workers:
            one.wait()
    ran = [line.split() for line in notes.read_text("ascii").splitlines() if line.endswith(";")]
    assert len({line[0] for line in ran}) == made
    every.update(int(line[1]) for line in ran)
    until(lambda: not any(alive(pid) for pid in every), "the end of all children")
