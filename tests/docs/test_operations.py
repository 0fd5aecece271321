"""The steps in the pages for operators are carried out. Copies of a server are restored, and the
unit of systemd is run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import Job, NewJob, Queue, Worker
from tests.support.awaiting import until
from tests.support.program import PATIENCE
from tests.support.servers import Server

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
JOBS = 20
HELD = 3


def headrace(server: Server, *words: str) -> str:
    """Return the output of a command, which must succeed."""
    command = [sys.executable, "-m", "headrace", "--url", server.url, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout + done.stderr


def persistence(server: Server, line: str) -> bool:
    return line.encode() in server.ask("INFO", "persistence")


def snapshot(server: Server, data: Path, copy: Path) -> None:
    server.ask("BGSAVE")
    until(lambda: persistence(server, "rdb_bgsave_in_progress:0"))
    assert persistence(server, "rdb_last_bgsave_status:ok")
    shutil.copy(data / "dump.rdb", copy)


def log(server: Server, data: Path, copy: Path) -> None:
    server.ask("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)
    until(lambda: persistence(server, "aof_rewrite_in_progress:0"))
    for place in data.iterdir():
        if place.is_dir():
            shutil.copytree(place, copy / place.name)
        elif place.name == "appendonly.aof":  # of Redis 6.2
            shutil.copy(place, copy)
    server.ask("CONFIG", "SET", "auto-aof-rewrite-percentage", 100)


def fill(server: Server) -> None:
    """Add jobs. A worker that never beats again holds some of them."""
    with Queue("emails", url=server.url) as queue:
        queue.enqueue_many([NewJob(b"x", id=f"job-{n}") for n in range(JOBS)])
        executor = queue._executor
        ops = queue.ops
        assert executor.run(ops.beat("w.1", 10.0, register=True))
        assert len(executor.run(ops.lease("w.1", HELD)).claims) == HELD


@pytest.mark.slow
@pytest.mark.parametrize("back_up", [snapshot, log])
def test_a_restored_copy_has_each_job_once(
    newest: Server, tmp_path: Path, back_up: Callable[[Server, Path, Path], None]
) -> None:
    """Leased jobs come after the timeout of their worker, in their second attempt."""
    data = tmp_path / "data"
    copy = tmp_path / "copy"
    data.mkdir()
    copy.mkdir()
    with Server(newest.binary, appendonly=True, directory=data) as server:
        fill(server)
        back_up(server, data, copy)
        with Queue("emails", url=server.url) as queue:
            queue.enqueue(b"x", id="lost")
    with Server(newest.binary, appendonly=back_up is log, directory=copy) as restored:
        if back_up is snapshot:
            restored.ask("CONFIG", "SET", "appendonly", "yes")
            until(lambda: persistence(restored, "aof_rewrite_in_progress:0"))
            assert persistence(restored, "aof_last_bgrewrite_status:ok")
    with Server(newest.binary, appendonly=True, directory=copy) as restored:
        assert "broken" not in headrace(restored, "doctor")
        assert "nothing to mend" in headrace(restored, "repair", "emails", "--dry-run")
        headrace(restored, "pause", "emails")
        ran: list[tuple[str, int]] = []
        worker = Worker(url=restored.url, heartbeat=0.2, timeout=0.5)

        @worker.handler("emails")
        def send(job: Job) -> None:
            ran.append((job.id, job.attempt))

        with worker, Queue("emails", url=restored.url) as queue:
            assert (queue.counts().waiting, queue.find("lost")) == (JOBS - HELD, None)
            headrace(restored, "resume", "emails")
            until(lambda: queue.counts().completed == JOBS)
        assert sorted(ran) == sorted((f"job-{n}", 2 if n < HELD else 1) for n in range(JOBS))


def test_a_copy_of_the_directory_is_an_embedded_server(tmp_path: Path) -> None:
    with Queue("emails", url=f"embedded:{tmp_path / 'data'}") as queue:
        queue.enqueue(b"x", id="a")
    until(lambda: not [*(tmp_path / "data").glob("*.pid")])
    shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
    with Queue("emails", url=f"embedded:{tmp_path / 'copy'}") as queue:
        assert queue.lease().job.id == "a"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    page = (HOW_TO / "run-in-production.md").read_text("utf-8")
    (unit,) = re.findall(r"^```ini\n(\[Unit\].*?)^```$", page, re.MULTILINE | re.DOTALL)
    place = tmp_path / "shop.service"
    place.write_text(unit.replace("/srv/shop/venv/bin/headrace", sys.executable), "utf-8")
    command = ["systemd-analyze", "verify", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
