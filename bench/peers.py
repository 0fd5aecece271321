"""The programs that `compare.py` runs in each peer's own environment. They are its producer and a
worker.

python bench/peers.py rq enqueue unix:///tmp/redis.sock 1000

A job's payload is 100 characters, or `BENCH_BYTES`: its number, and when it was sent. A peer's
handler notes both. Its jobs are of one queue, or of `BENCH_QUEUES` by turns, where a worker of it
serves several. `rest` is as many workers as are asked for, each a process, without jobs. With
`BENCH_SECONDS` a producer sends for so long, `BENCH_RATE` jobs a second: see `Pace`. With
`BENCH_BOARD` handlers note into this file: see `Board`. Each peer is set up as its documentation
advises for speed: see `SETTINGS`, which the comparison shows.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import mmap
import os
import random
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

SETTLE_S = 0.5  # seconds after the last job, in which one may come twice
STUCK_S = 30.0  # seconds without a job, after which the others are lost
GAP_S = 0.1  # seconds between two lone jobs
WARM_UP = 5  # lone jobs that do not count
AT_ONCE = 500  # jobs of one call for many
AHEAD = 2000  # jobs that a producer without a rate is ahead of the worker at most
FULL = 1_000_000  # jobs that it sends at most
BYTES = int(os.environ.get("BENCH_BYTES", "100"))
QUEUES = int(os.environ.get("BENCH_QUEUES", "1"))
NAMES = [f"bench{number}" for number in range(QUEUES)] if QUEUES > 1 else ["bench"]

Loop = Callable[[int, bool], None]  # sends so many jobs, one by one or in bulk
AsyncLoop = Callable[[int, bool], Awaitable[None]]

SETTINGS = {
    "redis-py": "`XADD`, and `XREADGROUP COUNT 100` with `XACK` and `XDEL`, by hand; promises nothing",
    "headrace": "`AsyncWorker`, a coroutine a job, concurrency 100",
    "headrace-threads": "`Worker`, concurrency 8",
    "rq": "`SimpleWorker` (no fork a job), `result_ttl=0`",
    "dramatiq": "`Worker`, 8 threads",
    "taskiq-redis": "`RedisStreamBroker`, 100 tasks",
    "saq": "concurrency 100, `ttl=-1`",
    "arq": "`max_jobs=100`, `keep_result=0`, `poll_delay=0.05` (0.5 by default)",
    "bullmq": "concurrency 100, `removeOnComplete`",
    "tarsk-redis": "one child of its supervisor, 100 slots; *worker* is both; by TCP, as it takes no socket",
    "redis-work-queue": "`lease`, `complete`, by hand",
    "fastq-redis": "an extension in C: a push is `MULTI`, two commands and `EXEC`; 1 thread, as several lost jobs and"
    " ended with `double free`; by TCP, as it takes no socket",
    "ardiq": "concurrency 100, no result; of a Python since 3.12, as it takes no older",
    "celery": "pool of 8 threads, no result, prefetch of 64 a thread, no gossip, mingle or heartbeat",
}


def payload(number: int) -> str:
    """Make a job's payload, when it is time for the job."""
    moment = PACE.wait(number)
    if PACE.moments:
        PACE.late.append((time.time() - moment) * 1e3)
    return f"{number}:{moment:.6f}:".ljust(BYTES, "x")


class Over(Exception):
    """Raised when a producer without a rate has had its seconds."""


class Board:
    """A file that a bench, its producer and its worker have mapped. It has the number of jobs that
    ran, then their waits.

    So a job costs its handler one number, and the bench need not ask the worker.
    """

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._cells = memoryview(self._map).cast("d")
        self._twice = len(self._cells) - 1  # the last cell

    def note(self, number: int, wait: float) -> None:
        """Record that a job begins after so many ms."""
        if self._cells[number + 1]:
            self._cells[self._twice] += 1
            return
        self._cells[number + 1] = wait or 1e-9
        self._cells[0] += 1

    @property
    def ran(self) -> int:
        """Return how many jobs ran."""
        return int(self._cells[0])

    @property
    def doubled(self) -> int:
        """Return how many jobs ran twice."""
        return int(self._cells[self._twice])

    def waits(self, first: int, end: int) -> list[float]:
        """Return the ms that some of the jobs waited."""
        return [wait for wait in self._cells[first + 1 : end + 1] if wait]

    def clear(self) -> None:
        """Forget all jobs."""
        self._map[:] = bytes(len(self._map))


BOARD = Board(os.environ["BENCH_BOARD"]) if "BENCH_BOARD" in os.environ else None


class Pace:
    """The times at which this process sends its jobs. Each comes after the last, after a pause, or
    at its own moment.

    Moments are given before the first job is sent, and a job's wait is counted from its moment. So
    a call that takes long makes the jobs behind it late, and this shows.
    """

    def __init__(self) -> None:
        self.gap = 0.0  # seconds before each job
        self.seconds = 0.0  # in which to send
        self.moments = array("d")
        # of these seconds and moments: the first job is made then, after the preparations
        self.start = 0.0
        self.sent = 0
        self.late: list[float] = []  # ms by which jobs were sent behind their moments

    def load(self, seconds: float, rate: float) -> int:
        """Send so many jobs a second at random moments that are the same in each run. With 0 send
        as fast as the worker runs.

        Return the number of jobs, at most.
        """
        self.seconds, at, arrivals = seconds, 0.0, random.Random(7)
        if not rate:
            return FULL
        while (at := at + arrivals.expovariate(rate)) < seconds:
            self.moments.append(at)
        return len(self.moments)

    def wait(self, number: int) -> float:
        """Wait until it is time for a job, and return its planned time."""
        now = time.time()
        self.start = self.start or now
        if self.moments:
            moment = self.start + self.moments[number]
            if moment > now:
                time.sleep(moment - now)
            return moment
        if self.gap:
            time.sleep(self.gap)
        elif self.seconds and number >= self.sent:
            self.turn(number)
        return time.time()

    def turn(self, number: int) -> None:
        """Wait until the worker has done most of the sent jobs. Raises `Over`."""
        assert BOARD
        end = self.start + self.seconds
        while number - BOARD.ran > AHEAD and time.time() < end:
            time.sleep(0.0005)
        if time.time() > end:
            raise Over
        self.sent = number + 1

    def batches(self, jobs: int, most: int = AT_ONCE) -> Iterator[range]:
        """Yield the number of jobs of each call, which is all jobs whose moment has come, or so
        many."""
        first = 0
        while first < jobs:
            self.wait(first)
            end = min(jobs, first + most)
            if self.moments:
                passed = time.time() - self.start
                end = next(
                    (number for number in range(first + 1, end) if self.moments[number] > passed),
                    end,
                )
            self.sent = end
            yield range(first, end)
            first = end


PACE = Pace()


class Seen:
    """The jobs that a worker has run."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.waits: list[float] = []
        self.first = self.last = time.perf_counter()
        self.before = time.process_time()

    def run(self, text: str | bytes) -> None:
        """Record a job, as the first line of each handler."""
        now = time.time()
        number, sent, _ = (text[:60].decode() if isinstance(text, bytes) else text[:60]).split(
            ":", 2
        )
        if BOARD:
            BOARD.note(int(number), (now - float(sent)) * 1e3)
            return
        self.counts[int(number)] = self.counts.get(int(number), 0) + 1
        self.waits.append((now - float(sent)) * 1e3)
        if len(self.waits) == 1:
            self.first, self.before = time.perf_counter(), time.process_time()
        self.last = time.perf_counter()

    def await_all(self, jobs: int) -> None:
        """Print how *jobs* ran once they all did, and end the process, whatever state its worker is
        in."""
        while len(self.counts) < jobs and time.perf_counter() - self.last < STUCK_S:
            time.sleep(0.002)
        timed, took = len(self.waits), self.last - self.first  # the start of a worker is not timed
        spent = time.process_time() - self.before
        time.sleep(SETTLE_S)
        told = self.tell(jobs) | {"timed": timed, "seconds": took, "processor": spent}
        print(json.dumps(told), flush=True)
        os._exit(0)

    def tell(self, jobs: int) -> dict[str, float]:
        """Print how *jobs* have run so far while the worker goes on. More jobs wait, and some may
        have the same number.
        """
        counts, waits = list(self.counts.values()), self.waits[WARM_UP:]  # each at once
        cuts = statistics.quantiles(waits, n=100) if len(waits) > 1 else [0.0] * 99
        return {
            "lost": max(0, jobs - len(counts)), "doubled": sum(count - 1 for count in counts), "ran": len(self.waits),
            "p50": cuts[49], "p99": cuts[98],
        }  # fmt: skip

    def watch(self, jobs: int) -> None:
        """Wait for all jobs on its own thread."""
        self.last = time.perf_counter()
        threading.Thread(target=self.await_all, args=(jobs,), daemon=True).start()


SEEN = Seen()


def handle(text: str) -> None:
    """Handle a job, for the peers that name functions."""
    SEEN.run(text)


# -- the peers: each has a producer, and a worker that runs until the process ends -----------------


def redis_py(url: str) -> tuple[Loop, Callable[[], None]]:
    """Run a bare loop, which is the limit of redis-py one by one."""
    client: Any = import_module("redis").Redis.from_url(url)
    names = [f"bare{number}" for number in range(QUEUES)] if QUEUES > 1 else ["bare"]

    def send(jobs: int, bulk: bool) -> None:
        for some in PACE.batches(jobs) if bulk else ():
            pipe = client.pipeline(transaction=False)
            for number in some:
                pipe.xadd(names[number % QUEUES], {"data": payload(number)})
            pipe.execute()
        for number in range(0 if bulk else jobs):
            client.xadd(names[number % QUEUES], {"data": payload(number)})

    def work() -> None:
        for name in names:
            with suppress(import_module("redis").ResponseError):
                client.xgroup_create(name, "g", id="0", mkstream=True)
        while True:
            for name, entries in (
                client.xreadgroup("g", "c", dict.fromkeys(names, ">"), count=100, block=1000) or []
            ):
                for entry, fields in entries:
                    SEEN.run(fields[b"data"])
                    client.pipeline(transaction=False).xack(name, "g", entry).xdel(
                        name, entry
                    ).execute()

    return send, work


async def send_to_many(url: str, names: list[str], jobs: int) -> None:
    """Send to queues of this project together."""
    ours: Any = import_module("headrace")
    async with (
        import_module("redis.asyncio").Redis.from_url(url) as client,
        AsyncExitStack() as stack,
    ):
        queues = [
            await stack.enter_async_context(ours.AsyncQueue(name, client=client)) for name in names
        ]
        for some in PACE.batches(jobs):
            await asyncio.gather(
                *(queues[number % QUEUES].enqueue(payload(number)) for number in some)
            )


def headrace(url: str, threads: bool = False) -> tuple[Loop, Callable[[], None]]:
    """Run headrace."""
    ours: Any = import_module("headrace")
    names = [f"bench/{name}" for name in NAMES] if QUEUES > 1 else NAMES  # of one group

    def send(jobs: int, bulk: bool) -> None:
        if bulk and QUEUES > 1:
            asyncio.run(send_to_many(url, names, jobs))
            return
        with ExitStack() as stack:
            where = (
                {"client": import_module("redis").Redis.from_url(url)}
                if QUEUES > 1
                else {"url": url}
            )
            queues = [stack.enter_context(ours.Queue(name, **where)) for name in names]
            for some in PACE.batches(jobs, AT_ONCE if PACE.seconds else 100_000) if bulk else ():
                if len(some) == 1:
                    queues[0].enqueue(payload(some[0]))
                else:
                    queues[0].enqueue_many([payload(number) for number in some])
            for number in range(0 if bulk else jobs):
                queues[number % QUEUES].enqueue(payload(number))

    def work() -> None:
        if threads:
            worker = ours.Worker(url=url)
            for name in names:
                worker.handler(name, concurrency=8)(lambda job: SEEN.run(job.payload))
        else:
            worker = ours.AsyncWorker(url=url)

            async def run(job: Any) -> None:
                SEEN.run(job.payload)

            for name in names:
                worker.handler(name, concurrency=100)(run)
        if "BENCH_COLLECTOR" in os.environ:
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000)
        worker.run()

    return send, work


def headrace_threads(url: str) -> tuple[Loop, Callable[[], None]]:
    """Run headrace with threads."""
    return headrace(url, threads=True)


def rq(url: str) -> tuple[Loop, Callable[[], None]]:
    its: Any = import_module("rq")
    client: Any = import_module("redis").Redis.from_url(url)

    def made() -> list[Any]:
        return [its.Queue(name, connection=client) for name in NAMES]

    def send(jobs: int, bulk: bool) -> None:
        function, queues = "peers.handle", made()
        for some in PACE.batches(jobs) if bulk else ():
            queues[0].enqueue_many(
                [its.Queue.prepare_data(function, (payload(n),), result_ttl=0) for n in some]
            )
        for number in range(0 if bulk else jobs):
            queues[number % QUEUES].enqueue(function, payload(number), result_ttl=0)

    def work() -> None:
        its.SimpleWorker(made(), connection=client).work(logging_level="WARNING")

    return send, work


def dramatiq(url: str) -> tuple[Loop, Callable[[], None]]:
    its: Any = import_module("dramatiq")
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=url)
    its.set_broker(broker)
    actor = its.actor(handle, queue_name="bench")

    def declare() -> None:
        for name in NAMES:
            broker.declare_queue(name)

    def send(jobs: int, bulk: bool) -> None:
        declare()
        for number in range(jobs):
            broker.enqueue(actor.message(payload(number)).copy(queue_name=NAMES[number % QUEUES]))

    def work() -> None:
        declare()
        its.Worker(broker, worker_threads=8).start()
        threading.Event().wait()

    return send, work


def taskiq_redis(url: str) -> tuple[Loop, Callable[[], None]]:
    """Run taskiq with Redis Streams."""

    def broker() -> Any:
        more = dict.fromkeys(NAMES[1:], ">")
        return import_module("taskiq_redis").RedisStreamBroker(
            url, queue_name=NAMES[0], additional_streams=more
        )

    async def run(text: str) -> None:
        SEEN.run(text)

    async def sending(jobs: int) -> None:
        its = broker()
        task = its.register_task(run, task_name="run")
        await its.startup()
        kickers = (
            [task.kicker().with_labels(queue_name=name) for name in NAMES] if QUEUES > 1 else [task]
        )
        for number in range(jobs):
            await kickers[number % QUEUES].kiq(payload(number))
        await its.shutdown()

    async def working() -> None:
        its = broker()
        its.register_task(run, task_name="run")
        its.is_worker_process = True
        await import_module("taskiq.api").run_receiver_task(
            its, max_async_tasks=100, run_startup=True
        )

    return lambda jobs, _bulk: asyncio.run(sending(jobs)), lambda: asyncio.run(working())


def saq(url: str) -> tuple[Loop, Callable[[], None]]:
    its: Any = import_module("saq")

    def made() -> Any:
        client = import_module("redis.asyncio").from_url(url)  # its own takes no URL of a socket
        return import_module("saq.queue.redis").RedisQueue(client, name="bench")

    async def run(_context: Any, *, text: str) -> None:
        SEEN.run(text)

    async def sending(jobs: int) -> None:
        queue = made()
        await queue.connect()
        for number in range(jobs):
            await queue.enqueue("run", text=payload(number), ttl=-1)
        await queue.disconnect()

    async def working() -> None:
        queue = made()
        await its.Worker(queue, functions=[("run", run)], concurrency=100).start()

    return lambda jobs, _bulk: asyncio.run(sending(jobs)), lambda: asyncio.run(working())


def arq(url: str) -> tuple[Loop, Callable[[], None]]:
    connections: Any = import_module("arq.connections")
    settings = connections.RedisSettings.from_dsn(url)

    async def run(_context: Any, text: str) -> None:
        SEEN.run(text)

    async def sending(jobs: int) -> None:
        pool = await connections.create_pool(settings)
        for number in range(jobs):
            await pool.enqueue_job("run", payload(number))
        await pool.aclose()

    async def working() -> None:
        function = import_module("arq.worker").func(run, name="run")
        worker = import_module("arq.worker").Worker(
            functions=[function], redis_settings=settings, max_jobs=100, keep_result=0, poll_delay=0.05,
            handle_signals=False,
        )  # fmt: skip
        await worker.main()

    return lambda jobs, _bulk: asyncio.run(sending(jobs)), lambda: asyncio.run(working())


def bullmq(url: str) -> tuple[Loop, Callable[[], None]]:
    """Run BullMQ for Python."""
    its: Any = import_module("bullmq")
    options = {"removeOnComplete": True}

    async def sending(jobs: int, bulk: bool) -> None:
        queue = its.Queue("bench", {"connection": url})
        for some in PACE.batches(jobs) if bulk else ():
            await queue.addBulk(
                [{"name": "run", "data": {"text": payload(n)}, "opts": options} for n in some]
            )
        for number in range(0 if bulk else jobs):
            await queue.add("run", {"text": payload(number)}, options)
        await queue.close()

    async def run(job: Any, _token: str) -> None:
        SEEN.run(job.data["text"])

    async def working() -> None:
        _worker = its.Worker("bench", run, {"connection": url, "concurrency": 100})
        await asyncio.Event().wait()

    return lambda jobs, bulk: asyncio.run(sending(jobs, bulk)), lambda: asyncio.run(working())


def redis_work_queue(url: str) -> tuple[Loop, Callable[[], None]]:
    """Run redis-work-queue, whose completion is exactly once too."""
    its: Any = import_module("redis_work_queue")
    client: Any = import_module("redis").Redis.from_url(url)
    queue = its.WorkQueue(its.KeyPrefix("bench"))

    def send(jobs: int, bulk: bool) -> None:
        for some in PACE.batches(jobs) if bulk else ():
            pipe = client.pipeline()
            for number in some:
                queue.add_item_to_pipeline(pipe, its.Item(payload(number)))
            pipe.execute()
        for number in range(0 if bulk else jobs):
            queue.add_item(client, its.Item(payload(number)))

    def work() -> None:
        while True:
            item = queue.lease(client, 60, timeout=5)
            if item is not None:
                SEEN.run(item.data())
                queue.complete(client, item)

    return send, work


def tarsk_redis(url: str) -> tuple[Loop, Callable[[], None]]:
    """Run tarsk. Its handlers run in a child that imports this module by `TARSK`."""
    os.environ["TARSK_BROKER"] = url

    def send(jobs: int, bulk: bool) -> None:
        app = tarsk_app()
        tasks = [app.task(queue=name, name=f"run-{name}")(handle) for name in NAMES]
        for number in range(jobs):
            tasks[number % QUEUES].send(payload(number))

    def work() -> None:
        its: Any = import_module("tarsk._supervisor")
        with NamedTemporaryFile("r") as told:
            os.environ |= {"TARSK_JOBS": sys.argv[4], "TARSK_TOLD": told.name}
            if sys.argv[4] != "0":
                threading.Thread(target=pass_on, args=(told,), daemon=True).start()
            its.Supervisor("peers:TARSK", children=1, slots=100).work(url, NAMES)

    def pass_on(told: Any) -> None:
        """Print the child's output, and end."""
        while not (line := told.readline()):
            time.sleep(0.01)
        figures = json.loads(line)
        print(
            json.dumps(figures | {"processor": figures["processor"] + time.process_time()}),
            flush=True,
        )
        os._exit(0)

    return send, work


def tarsk_app() -> Any:
    """Make tarsk's application."""
    return import_module("tarsk").App(broker=os.environ["TARSK_BROKER"])


if "TARSK_JOBS" in os.environ:  # in tarsk's child
    sys.stdout = Path(os.environ["TARSK_TOLD"]).open("w", encoding="utf-8")  # noqa: SIM115 - until it ends
    TARSK = tarsk_app()
    for name in NAMES:
        TARSK.task(queue=name, name=f"run-{name}")(handle)
    if os.environ["TARSK_JOBS"] != "0":
        SEEN.watch(int(os.environ["TARSK_JOBS"]))


def fastq_redis(url: str) -> tuple[Loop, Callable[[], None]]:
    """Run fastq, an extension in C."""
    its: Any = import_module("fastq")
    its.set_log_level(3)
    host, port = url.removeprefix("redis://").split("/")[0].split(":")

    def queue() -> Any:
        return its.Queue("bench", host, int(port))

    def send(jobs: int, bulk: bool) -> None:
        to = queue()
        for number in range(jobs):
            to.push(payload(number))

    def handle(job: dict[str, Any]) -> int:
        SEEN.run(job["payload"])
        return 0

    def work() -> None:
        its.Worker(queue(), handle, threads=1).start()

    return send, work


def ardiq(url: str) -> tuple[Loop, Callable[[], None]]:
    """Run ArdiQ, whose loop is Rust."""
    its: Any = import_module("ardiq")

    async def run(text: str) -> None:
        SEEN.run(text)

    def made() -> tuple[Any, Any]:
        app = its.Ardiq(url, "bench", concurrency=100, result_ttl_ms=0)
        return app, app.task(name="run")(run)

    async def sending(jobs: int, bulk: bool) -> None:
        app, task = made()
        for some in PACE.batches(jobs) if bulk else ():
            await app.enqueue_many([task.prepare(payload(number)) for number in some])
        for number in range(0 if bulk else jobs):
            await task.enqueue(payload(number))

    async def working() -> None:
        await made()[0].run()

    return lambda jobs, bulk: asyncio.run(sending(jobs, bulk)), lambda: asyncio.run(working())


def celery(url: str) -> tuple[Loop, Callable[[], None]]:
    app: Any = import_module("celery").Celery(
        "bench", broker=url.replace("unix://", "redis+socket://")
    )
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        broker_connection_retry_on_startup=True,
        worker_redirect_stdouts=False,
    )
    task = app.task(handle, name="run")

    def send(jobs: int, bulk: bool) -> None:
        for number in range(jobs):
            task.apply_async((payload(number),), queue=NAMES[number % QUEUES])

    def work() -> None:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "CRITICAL"]
        app.worker_main(
            ["--quiet", "worker", "-P", "threads", "-c", "8", "-Q", ",".join(NAMES), *quiet]
        )

    return send, work


PEERS: dict[str, Callable[[str], tuple[Loop, Callable[[], None]]]] = {
    "redis-py": redis_py,
    "headrace": headrace,
    "headrace-threads": headrace_threads,
    "rq": rq,
    "dramatiq": dramatiq,
    "taskiq-redis": taskiq_redis,
    "saq": saq,
    "arq": arq,
    "bullmq": bullmq,
    "tarsk-redis": tarsk_redis,
    "redis-work-queue": redis_work_queue,
    "fastq-redis": fastq_redis,
    "ardiq": ardiq,
    "celery": celery,
}


def rest(peer: str, url: str, workers: int) -> None:
    """Run so many workers and end when all have ended. Each is forked from this process, which has
    imported the common code.
    """
    PEERS[peer](url)  # connects to nothing
    for _ in range(workers):
        if os.fork() == 0:
            try:
                PEERS[peer](url)[1]()
            finally:
                os._exit(1)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def main() -> None:
    """Send or work, and print the outcome."""
    peer, verb, url, jobs = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    logging.disable(logging.ERROR)
    if verb == "rest":
        sys.argv[4] = "0"  # jobs: tarsk's child looks
        rest(peer, url, jobs)
        return
    send, work = PEERS[peer](url)
    if verb == "work":
        if BOARD:
            sys.argv[4] = "0"  # the bench looks
        elif peer != "tarsk-redis":
            SEEN.watch(jobs)
        work()
    else:
        PACE.gap = GAP_S if verb == "lone" else 0.0
        if seconds := float(os.environ.get("BENCH_SECONDS", "0")):
            jobs = PACE.load(seconds, float(os.environ["BENCH_RATE"]))
            gc.freeze()  # the bench's own pauses do not count
        began, processor = time.perf_counter(), time.process_time()
        with suppress(Over):
            send(jobs, verb == "bulk")
        took = time.perf_counter() - began
        told = {"seconds": took, "processor": time.process_time() - processor}
        late = statistics.quantiles(PACE.late, n=100)[98] if len(PACE.late) > 1 else 0.0
        print(json.dumps(told | {"sent": len(PACE.moments) or PACE.sent, "late": late}))


if __name__ == "__main__":
    sys.modules["peers"] = sys.modules["__main__"]  # functions are named `peers.handle`
    main()
