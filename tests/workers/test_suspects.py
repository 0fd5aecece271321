"""Jobs that end their process beside innocent ones. `headrace work` runs as users start it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from headrace import Counts, NewJob, Queue
from tests.support.awaiting import until
from tests.support.program import PATIENCE, Script, Started, started
from tests.support.servers import Server

APP = """
import asyncio, os, threading, time
from headrace import AsyncWorker, Worker

threads = Worker(heartbeat=0.3, timeout=1.2)
tasks = AsyncWorker(heartbeat=0.3, timeout=1.2)
batches = Worker(heartbeat=0.3, timeout=1.2)
running = set()

def begin(job):
    running.add(job.id)
    with open("log", "a") as log:
        log.write(f"{job.payload.decode()} {job.attempt} {len(running)}\\n")

def work(job):
    begin(job)
    time.sleep(0.1)
    if job.payload == b"poison":
        os._exit(0)
    time.sleep(0.2)
    running.discard(job.id)

async def work_async(job):
    begin(job)
    await asyncio.sleep(0.1)
    if job.payload == b"poison":
        os.abort()
    await asyncio.sleep(0.2)
    running.discard(job.id)

def work_all(jobs):
    for job in jobs:
        begin(job)
    time.sleep(0.1)
    if any(job.payload == b"poison" for job in jobs):
        os._exit(1)
    running.clear()

threads.handler("q", concurrency=30, max_attempts=3, SHARDS)(work)
tasks.handler("q", concurrency=30, max_attempts=3, SHARDS)(work_async)
batches.batch_handler("q", max_size=30, max_wait=0.01, max_attempts=3, SHARDS)(work_all)

threads.handler("second", concurrency=30, max_attempts=3)(work)
tasks.handler("second", concurrency=30, max_attempts=3)(work_async)
batches.batch_handler("second", max_size=30, max_wait=0.01, max_attempts=3)(work_all)

@threads.handler("other")
@tasks.handler("other")
@batches.handler("other")
def other(job):
    time.sleep(0.001)
"""
INNOCENT, DEATHS = 20, 20
DIED = f"no attempts left: its process died {DEATHS} times while it ran"

# A supervisor that starts a worker again and again. Its processes die before a heartbeat was
# missed.
LOOP = """
import asyncio, ctypes, os, signal, sys, time
from headrace import AsyncWorker, Worker

kind, rest, url = sys.argv[1], float(sys.argv[2]), sys.argv[3]

def act(jobs):
    for job in jobs:
        with open("log", "a") as log:
            log.write(f"{os.getpid()} {job.queue} {job.id}\\n")
    poison = any(job.payload == b"poison" for job in jobs)
    return poison, 0.02 if poison else 0.1

def work(job):
    poison, takes = act([job])
    time.sleep(takes)
    if poison:
        os._exit(1)

async def work_async(job):
    poison, takes = act([job])
    await asyncio.sleep(takes)
    if poison:
        os._exit(1)

def work_all(jobs):
    poison, takes = act(jobs)
    time.sleep(takes)
    if poison:
        os._exit(1)

def serve():
    times = dict(url=url, heartbeat=0.2, timeout=0.6)
    worker = AsyncWorker(**times) if kind == "tasks" else Worker(**times)
    for name in ("q", "other"):
        options = dict(lease=1, max_attempts=1)
        if kind == "batches":
            worker.batch_handler(name, max_size=10, max_wait=0.01, **options)(work_all)
        else:
            worker.handler(name, concurrency=10, **options)(work_async if kind == "tasks" else work)
    worker.run()

while True:
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with its supervisor
        serve()
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(rest)
"""


@pytest.fixture
def work(newest: Server, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with ExitStack() as stack:

        def start(worker: str, processes: int = 1, shards: str = "") -> Started:
            (tmp_path / "app.py").write_text(APP.replace("SHARDS", shards))
            command = ["work", f"app:{worker}", "--processes", str(processes)]
            with (tmp_path / "said").open("wb") as said:
                work = started(*command, url=newest.url, cwd=tmp_path, stdout=said, stderr=said)
            return stack.enter_context(work)  # killed at the end; its processes see that, and end

        yield start


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("worker", ["threads", "tasks", "batches"])
@pytest.mark.parametrize("processes", [1, 2])
def test_innocents_beside_poison(
    newest: Server, work: Callable[..., Started], tmp_path: Path, worker: str, processes: int
) -> None:
    """A job that ends its process each time becomes a dead letter. The jobs beside it and the
    worker's other queues go on.
    """
    with Queue("q", url=newest.url) as queue, Queue("other", url=newest.url) as other:
        jobs = [
            NewJob(b"poison" if n == INNOCENT // 2 else b"good", id=f"j{n}")
            for n in range(INNOCENT + 1)
        ]
        queue.enqueue_many(jobs)
        other.enqueue_many([b"x"] * 50)
        process = work(worker, processes)
        until(lambda: queue.counts().completed == INNOCENT, "an end of the innocent", PATIENCE)
        nearly_dead(newest)
        until(lambda: queue.counts().dead == 1, "an end of poison", PATIENCE)
        assert queue.counts() == Counts(enqueued=INNOCENT + 1, completed=INNOCENT, dead=1)
        (letter,) = queue.admin.dead()
        assert letter.job.payload == b"poison"
        assert str(letter.reason) == DIED
        until(lambda: other.counts() == Counts(enqueued=50, completed=50))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert set(runs_of_poison(tmp_path)[2:]) <= {1}


def nearly_dead(server: Server) -> None:
    """Record deaths of the remaining jobs, because twenty restarts of `headrace work` take
    minutes."""
    with redis.Redis(unix_socket_path=server.path) as client:
        for key in client.scan_iter("*:deaths"):
            for entry in client.hkeys(key):
                client.hset(key, entry, DEATHS - 1)


def runs_of_poison(folder: Path) -> list[int]:
    """Return for each run of a poison job the number of jobs that ran in its process, including
    itself."""
    rows = [line.split() for line in (folder / "log").read_text().splitlines()]
    return [int(beside) for payload, _, beside in rows if payload == "poison"]


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("worker", ["threads", "tasks", "batches"])
@pytest.mark.parametrize("shards", [1, 4])
def test_innocents_of_other_queues_and_shards(
    newest: Server, work: Callable[..., Started], worker: str, shards: int, tmp_path: Path
) -> None:
    """A job beside a poison job of another queue or shard, in the same process, does not end as a
    suspect."""
    with (
        Queue("q", url=newest.url, shards=shards) as queue,
        Queue("second", url=newest.url) as second,
    ):
        queue.enqueue_many([NewJob(b"good", id=f"j{n}") for n in range(2 * shards)])
        queue.enqueue(b"poison")
        second.enqueue_many([b"good"] * 5)
        (tmp_path / "log").touch()
        process = work(worker, shards=f"shards={shards}")
        until(lambda: len(runs_of_poison(tmp_path)) >= 4, "two runs of poison alone", PATIENCE)
        # also the innocent: chance chooses the queue whose suspect runs next in each process
        nearly_dead(newest)
        until(
            lambda: second.counts().dead + second.counts().completed == 5,
            "an end of the second queue",
            PATIENCE,
        )
        until(lambda: queue.counts().completed == 2 * shards, "an end of the innocent", PATIENCE)
        until(lambda: queue.counts().dead == 1, "an end of poison", PATIENCE)
        assert second.counts() == Counts(enqueued=5, completed=5)
        assert queue.counts() == Counts(enqueued=2 * shards + 1, completed=2 * shards, dead=1)
        (letter,) = queue.admin.dead()
        assert letter.job.payload == b"poison"
        assert str(letter.reason) == DIED
        second.enqueue(b"good")  # the others go on
        until(lambda: second.counts().completed == 6)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert set(runs_of_poison(tmp_path)[2:]) <= {1}


@pytest.mark.sampled("worker")
@pytest.mark.slow
@pytest.mark.parametrize("worker", ["threads", "tasks", "batches"])
@pytest.mark.parametrize("rest", [0.0, 1.0], ids=["at once", "slowly"])
@pytest.mark.parametrize("poisons", [1, 4])
def test_a_crash_loop(
    newest: Server, tmp_path: Path, worker: str, rest: float, poisons: int
) -> None:
    """Processes die before a heartbeat is missed, so no peer sees it. Each poison job ends, and
    none beside it does."""
    good = {"q": [f"a{n}" for n in range(8)], "other": [f"b{n}" for n in range(8)]}
    with Queue("q", url=newest.url) as queue, Queue("other", url=newest.url) as other:
        for place in queue, other:
            place.enqueue_many([NewJob(b"good", id=name) for name in good[place.name]])
        for number in range(poisons):
            (queue, other)[number % 2].enqueue(NewJob(b"poison", id=f"p{number}"))
        with Script(LOOP, [worker, str(rest), newest.url], cwd=tmp_path):
            until(
                lambda: queue.counts().dead + other.counts().dead >= poisons,
                "an end of poison",
                PATIENCE,
            )
            until(
                lambda: queue.counts().completed + other.counts().completed == 16,
                "an end of the good",
                PATIENCE,
            )
        letters = [*queue.admin.dead(), *other.admin.dead()]
        assert sorted(letter.job.id for letter in letters) == [
            f"p{number}" for number in range(poisons)
        ]
        assert {str(letter.reason) for letter in letters} == {DIED}
