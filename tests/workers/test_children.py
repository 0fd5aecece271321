"""Handlers that start processes by fork and by spawn, with `multiprocessing` and `subprocess`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace import Queue
from headrace._net.base import children
from tests.support.awaiting import PATIENCE, until
from tests.support.program import PROGRAM, environment
from tests.support.servers import Server

CHILDREN = """
import faulthandler, json, multiprocessing, os, signal, subprocess, sys, time

faulthandler.register(signal.SIGUSR1)
CODE = (
    "import json, signal; print(json.dumps([signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,"
    " signal.getsignal(signal.SIGINT) == signal.default_int_handler, signal.set_wakeup_fd(-1), 0]))"
)

def ours():
    from headrace._net.base import children

    return [os.fstat(one.fileno()).st_ino for one in list(children._sockets) if one.fileno() >= 0]

def copied(inodes):
    found = 0
    for number in range(3, 256):
        try:
            found += os.fstat(number).st_ino in inodes
        except OSError:
            pass
    return found

def look(pipe, inodes):
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    usual = signal.getsignal(signal.SIGINT) == signal.default_int_handler
    pipe.send([default, usual, signal.set_wakeup_fd(-1), copied(inodes)])

def sleep(number=0):
    time.sleep(600)

def double(number):
    return 2 * number

def start_children(method):
    context = multiprocessing.get_context(method)
    seen = {}
    here, there = context.Pipe()
    inodes = ours()
    assert copied(inodes)
    child = context.Process(target=look, args=(there, inodes))
    child.start()
    seen["process"] = here.recv() if here.poll(60) else None
    child.join()
    for name, end in {"terminate": signal.SIGTERM, "interrupt": signal.SIGINT}.items():
        child = context.Process(target=sleep)
        child.start()
        for _ in range(30):  # Python drops a signal that comes while it forks
            if child.exitcode is None:
                os.kill(child.pid, end)
                child.join(2)
        seen[name] = child.exitcode
        child.kill()
    with context.Pool(2) as pool:
        seen["pool"] = pool.map(double, range(5))
    with context.Pool(2) as pool:  # which are at work as it ends them
        pool.map_async(sleep, range(2))
    seen["subprocess"] = json.loads(subprocess.check_output([sys.executable, "-c", CODE]))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.terminate()
    seen["terminated"] = child.wait(60)
    return json.dumps(seen).encode()

"""  # without headrace, which each child that is spawned would import
APP = """
import json, sys, time
from pathlib import Path
from children import start_children
from headrace import AsyncWorker, Worker

def running():
    return next(one._running for one in (threads, tasks, blocking) if one._running)

def handle(job):
    if job.payload == b"next":
        return job.payload
    method, stopping = json.loads(job.payload)
    if stopping:
        Path("held").touch()
        while not running().stopping.is_set():
            time.sleep(0.01)
    return start_children(method)

async def handle_there(job):
    if job.payload == b"next":
        return job.payload
    method, stopping = json.loads(job.payload)
    if stopping:
        Path("held").touch()
        await running().stopping.wait()
    return start_children(method)  # on the thread of the event loop

threads, blocking, tasks = Worker(), AsyncWorker(), AsyncWorker()
threads.handler("q")(handle)
blocking.handler("q")(handle)
tasks.handler("q")(handle_there)
"""
MAIN = """
import sys

if __name__ == "__main__":
    import app
    getattr(app, sys.argv[1]).run()
    print("ended in good order")
"""
NORMAL = [True, True, -1, 0]


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


@contextmanager
def _started(folder: Path, url: str, *command: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a program. If the test fails, its error says where the program and its forks wait. None
    of them is left.
    """
    for name, text in {"children": CHILDREN, "app": APP, "main": MAIN}.items():
        (folder / f"{name}.py").write_text(text)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=environment(url), stdout=pipe, stderr=pipe, start_new_session=True
    ) as program:
        try:
            yield program
        except BaseException as error:
            error.add_note(_stacks(program))
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)


def _stacks(program: subprocess.Popen[bytes]) -> str:
    states: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == program.pid:
                kept = ("Pid", "PPid", "State", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
                lines = (process / "status").read_text("ascii", "replace").splitlines()
                states.append(" ".join(one for one in lines if one.partition(":")[0] in kept))
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGUSR1)
        time.sleep(1)  # for dumps by processes of which any may hang
        os.killpg(program.pid, signal.SIGKILL)
    _, err = program.communicate()
    return "\n".join([*states, err.decode("utf-8", "replace")])


def _seen(queue: Queue, receipt: Any) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(queue.result(receipt.id, PATIENCE) or b"{}")
    interrupted = seen.pop("interrupt")
    assert interrupted in (1, -signal.SIGINT)  # by the exception, or before there is one
    return seen


SEEN = {
    "process": NORMAL, "terminate": -signal.SIGTERM, "pool": [0, 2, 4, 6, 8], "subprocess": NORMAL,
    "terminated": -signal.SIGTERM,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled("kind")
@pytest.mark.parametrize("kind", ["threads", "blocking", "tasks"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("stopping", [False, True], ids=["at work", "in a stop"])
def test_children_of_handlers(
    newest: Server, queue: Queue, tmp_path: Path, kind: str, method: str, stopping: bool
) -> None:
    """The processes have default signals and no connection of headrace. The worker goes on, and
    stops when it should.
    """
    receipt = queue.enqueue(json.dumps([method, stopping]).encode())
    with _started(tmp_path, newest.url, sys.executable, "main.py", kind) as worker:
        if stopping:
            until((tmp_path / "held").exists, "the handler")
            worker.send_signal(signal.SIGTERM)
        assert _seen(queue, receipt) == SEEN
        if not stopping:
            assert queue.result(queue.enqueue(b"next").id, PATIENCE) == b"next"
            worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=PATIENCE)
        assert (worker.returncode, out) == (0, b"ended in good order\n"), err
        assert queue.admin.workers() == []


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "method"), [("threads", "fork"), ("tasks", "fork"), ("tasks", "spawn")]
)
def test_children_under_the_program(
    newest: Server, queue: Queue, tmp_path: Path, kind: str, method: str
) -> None:
    """The same holds with `headrace work`."""
    receipt = queue.enqueue(json.dumps([method, False]).encode())
    with _started(tmp_path, newest.url, *PROGRAM, "work", f"app:{kind}") as program:
        assert _seen(queue, receipt) == SEEN
        program.send_signal(signal.SIGTERM)
        _, err = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0, err
        assert b"another is started" not in err


def test_a_fork_has_no_connection(newest: Server, queue: Queue) -> None:
    """The copied connections lead nowhere. The parent's go on, and the child opens its own."""
    queue.enqueue(b"x", id="first")
    numbers = [children._number(children._open_socket(one)) for one in children._connections]
    numbers = [number for number in numbers if number >= 0]
    assert numbers
    pid = os.fork()
    if not pid:
        status = 1
        try:
            led = [str(Path(f"/proc/self/fd/{number}").readlink()) for number in numbers]
            queue.enqueue(b"x", id="second")
            status = 0 if led == [os.devnull] * len(numbers) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    queue.enqueue(b"x", id="third")
    assert [one.job.id for one in queue.admin.waiting()] == ["first", "second", "third"]


def test_a_socket_that_is_withheld() -> None:
    """The other end sees the close even if a child lives."""
    ours, theirs = socket.socketpair()
    gate, lock = os.pipe()
    children.withhold_socket(theirs)
    pid = os.fork()
    if not pid:
        os.close(lock)
        os.read(gate, 1)
        os._exit(0)
    try:
        theirs.close()
        ours.settimeout(PATIENCE)
        assert ours.recv(1) == b""
    finally:
        os.close(lock)
        os.close(gate)
        ours.close()
        os.waitpid(pid, 0)


def test_a_socket_that_is_being_closed() -> None:
    """Its object has no descriptor any more, but the process still has it. A fork at that moment
    keeps none."""
    ours, theirs = socket.socketpair()
    children.withhold_socket(theirs)
    number = theirs.detach()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if str(Path(f"/proc/self/fd/{number}").readlink()) == os.devnull else 2
        finally:
            os._exit(status)
    os.close(number)
    ours.close()
    assert os.waitpid(pid, 0)[1] == 0


def test_the_number_of_a_closed_socket_may_be_of_another_file(tmp_path: Path) -> None:
    """The child keeps that file."""
    ours, theirs = socket.socketpair()
    children.withhold_socket(theirs)
    number = theirs.detach()
    with (tmp_path / "file").open("wb") as file:
        os.dup2(file.fileno(), number)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if Path(f"/proc/self/fd/{number}").readlink() == tmp_path / "file" else 2
        finally:
            os._exit(status)
    os.close(number)
    ours.close()
    assert os.waitpid(pid, 0)[1] == 0
