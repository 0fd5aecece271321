"""The program `headrace work` as users start it. The tests end its processes and change its
surroundings."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from headrace import Counts, Queue
from headrace.console.cli.work import CONNECTIONS_AT_MOST, Health
from tests.support.awaiting import until
from tests.support.facts import each
from tests.support.program import PATIENCE, PROGRAM, environment
from tests.support.servers import Server

APP = """
import os, signal, time
from pathlib import Path
from headrace import AsyncWorker, Worker

threads = Worker(heartbeat=20.0, timeout=100.0)
tasks = AsyncWorker(heartbeat=20.0, timeout=100.0)

def once(name):
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

@threads.handler("q", concurrency=1)
@tasks.handler("q", concurrency=1)
def handle(job):
    word = job.payload.decode()
    if word == "hold":
        Path(f"held-{os.getpid()}").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    if word == "exit" and once("exited"):
        os._exit(0)
    if word == "stop" and once("stopped"):
        next(one._running for one in (threads, tasks) if one._running).stop()
    return str(os.getpid()).encode()
"""
WORKERS = pytest.mark.parametrize("worker", ["threads", "tasks"])


class Work:
    """The running program. *said* is everything that it has written."""

    def __init__(
        self,
        folder: Path,
        url: str,
        arguments: Sequence[str],
        app: str = APP,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        (folder / "app.py").write_text(app)
        self._log = folder / "work.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*program, "work", *arguments], cwd=folder, env=environment(url), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._log.read_text()

    def pids(self) -> list[int]:
        """Return the ids of all processes that ever worked."""
        return [int(pid) for pid in re.findall(r"process (\d+) works", self.said)]

    def await_pids(self, number: int) -> list[int]:
        """Wait until so many processes have begun."""
        until(lambda: len(self.pids()) >= number, f"{number} processes", PATIENCE)
        return self.pids()

    def stop(self) -> int:
        """Tell the program to stop and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


Working = Callable[..., Work]


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


@pytest.fixture
def working(newest: Server, tmp_path: Path) -> Iterator[Working]:
    """Return a function that starts `headrace work`. Every started program is killed at the end."""
    made: list[Work] = []

    def start(*arguments: str, **how: Any) -> Work:
        made.append(Work(tmp_path, newest.url, arguments, **how))
        return made[-1]

    yield start
    for one in made:
        with one.process:
            one.process.kill()  # its processes see that, and end


@pytest.mark.slow
@pytest.mark.sampled("worker")
@WORKERS
@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_end_with_status_0_is_a_death(
    working: Working, queue: Queue, worker: str, processes: str
) -> None:
    """Another process is started, and has the job long before its worker's timeout of 100 s."""
    receipts = queue.enqueue_many([b"exit", b"x"])
    work = working(f"app:{worker}", "--processes", processes)
    last = [int(queue.result(receipt.id, 50.0) or 0) for receipt in receipts]
    first, *others = work.await_pids(int(processes) + 1)
    assert re.search(r"process \d+ ended with status 0; another is started", work.said)
    assert set(last) <= {first, *others}
    assert work.stop() == 0
    assert queue.counts() == Counts(enqueued=2, completed=2)


@pytest.mark.slow
@pytest.mark.sampled("worker")
@WORKERS
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_signal_to_one_process(
    working: Working, queue: Queue, tmp_path: Path, worker: str, processes: int, number: int
) -> None:
    """The process finishes its jobs, and another takes its place."""
    work = working(f"app:{worker}", "--processes", str(processes))
    work.await_pids(processes)
    held = queue.enqueue(b"hold")
    until(lambda: list(tmp_path.glob("held-*")), "a job under way", PATIENCE)
    (path,) = tmp_path.glob("held-*")
    os.kill(int(path.name.removeprefix("held-")), number)
    (tmp_path / "go").touch()
    assert queue.result(held.id, PATIENCE) == path.name.removeprefix("held-").encode()
    work.await_pids(processes + 1)
    assert re.search(
        r"has stopped on a signal that was sent to it alone; another is started", work.said
    )
    assert queue.result(queue.enqueue(b"x").id, PATIENCE)
    assert work.stop() == 0
    assert queue.counts() == Counts(enqueued=2, completed=2)


@pytest.mark.slow
@WORKERS
def test_a_program_that_stops_its_worker(working: Working, queue: Queue, worker: str) -> None:
    """The program stopped its worker itself, so no process is started again and the status is 0."""
    queue.enqueue(b"stop")
    work = working(f"app:{worker}")
    assert work.process.wait(PATIENCE) == 0
    assert len(work.pids()) == 1
    assert "has stopped by itself" in work.said


@pytest.mark.slow
def test_an_end_while_it_is_told_to_stop(working: Working, queue: Queue, tmp_path: Path) -> None:
    """A handler ends its process during a stop. The death is logged, and its job is back at
    once."""
    app = APP.replace('if word == "exit"', 'if word == "hold"')
    work = working("app:threads", app=app)
    queue.enqueue(b"hold")
    until(lambda: list(tmp_path.glob("held-*")), "a job under way", PATIENCE)
    work.await_pids(1)
    work.process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in work.said, patience=PATIENCE)
    (tmp_path / "go").touch()
    assert work.process.wait(PATIENCE) == 1
    assert re.search(r"process \d+ ended with status 0", work.said)
    assert queue.counts().leased == 0


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("sys.exit(3)", r"module 'app' ends the program as it is imported: SystemExit\(3\)"),
        *((f"os._exit({status})", rf"process \d+ ended with status {status}") for status in (0, 1, 3)),
    ],
)  # fmt: skip
def test_a_module_that_ends_the_program(working: Working, end: str, words: str) -> None:
    """The program prints one line about it."""
    work = working("app:threads", "--processes", "2", app=f"import os, sys\n{end}\n")
    assert work.process.wait(PATIENCE) in {1, 2}
    assert re.fullmatch(rf"headrace: [^\n]*{words}[^\n]*\n", work.said), work.said


MANY_FILES = """
import os, resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most if most == resource.RLIM_INFINITY else min(most, 4096), most))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
from headrace.console.cli import main
main()
"""


@pytest.mark.slow
def test_more_descriptors_than_select_takes(working: Working, queue: Queue) -> None:
    work = working("app:threads", program=[sys.executable, "-c", MANY_FILES])
    receipt = queue.enqueue(b"x")
    assert queue.result(receipt.id, PATIENCE)
    work.await_pids(1)
    assert work.stop() == 0, work.said


def _ask(port: int, path: str) -> tuple[int, str]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_silent_connections_keep_no_probe_waiting() -> None:
    """One thread serves any number of silent connections, with a bound on descriptors."""
    with closing(Health(0, lambda: "not yet")) as health, ExitStack() as stack:
        threads = threading.active_count()
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", health.port), PATIENCE))
            for _ in range(3 * CONNECTIONS_AT_MOST)
        ]
        silent[-1].sendall(b"GET /live")  # and half a request
        assert _ask(health.port, "/live") == (200, "ok\n")
        assert _ask(health.port, "/ready") == (503, "not yet\n")
        assert _ask(health.port, "/other")[0] == 404
        assert threading.active_count() <= threads + 1
        assert len(health._connections) <= CONNECTIONS_AT_MOST
        assert silent[0].recv(1) == b""  # the oldest gave way


def test_liveness_does_not_wait_for_readiness() -> None:
    """Readiness may wait for a server that hangs. Callers that ask meanwhile share one answer."""
    gate, asked = threading.Event(), []

    def reason() -> str:
        asked.append(1)
        assert gate.wait(PATIENCE)
        return ""

    answers: list[tuple[int, str]] = []
    with closing(Health(0, reason)) as health:
        probes = [
            threading.Thread(
                target=lambda: answers.append(_ask(health.port, "/ready")), daemon=True
            )
            for _ in range(5)
        ]
        for probe in probes:
            probe.start()
        until(lambda: len(health._connections) == 5 and asked, "five probes")
        assert _ask(health.port, "/live") == (200, "ok\n")
        gate.set()
        for probe in probes:
            probe.join(PATIENCE)
    assert answers == [(200, "ok\n")] * 5


@each("sent", [b"\r\n\r\n", b"POST /live HTTP/1.1\r\n\r\n", b"x" * 20_000, b"GET"])
def test_what_is_no_request(sent: bytes) -> None:
    with closing(Health(0, lambda: "")) as health:
        with (
            socket.create_connection(("127.0.0.1", health.port), PATIENCE) as one,
            suppress(ConnectionError),
        ):
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)
            assert not one.recv(100).startswith(b"HTTP/1.1 200")
        assert _ask(health.port, "/live") == (200, "ok\n")
