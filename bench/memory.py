"""The memory of a worker and of the server does not grow with the number of jobs that have passed.

python bench/memory.py --server valkey-9.1 --handler batch --jobs 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import redis
from attrs import frozen

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import AsyncWorker, BatchError, Job, NewJob, Queue, Retry, Worker
from tests.support.servers import Server, binaries

HANDLERS = ("batch", "job", "threads")
QUARTERS = 4
CHUNK = 1000  # jobs of one enqueue_many
BACKLOG = 5000  # jobs in the queue at most
PATIENCE = 120.0  # seconds without one job completed
MIB = 1 << 20
# a worker's, after its first quarter: what its allocator may do; a job kept would be 600 bytes
GROWTH = 3 * MIB
SERVER = MIB  # the server's, either way
PREFIX = "headrace:{memory}:memory:"


def fails(job: Job) -> bool:
    """Let one job in a hundred fail the first time."""
    return job.payload.endswith(b"00") and job.attempt == 1


def once(job: Job) -> None:
    """Handle a job."""
    if fails(job):
        raise ValueError("the first time")


async def once_in_task(job: Job) -> None:
    """Handle a job in a coroutine."""
    once(job)


async def once_each(jobs: Sequence[Job]) -> None:
    """Handle a batch."""
    failures = {job.id: ValueError("the first time") for job in jobs if fails(job)}
    if failures:
        raise BatchError(failures)


def work(url: str, handler: str, orders: Connection) -> None:
    """Run a worker in its own process until the other end of *orders* is closed."""
    options: Any = {"retry": Retry(wait=0.01)}
    if handler == "threads":
        threads = Worker(url=url)
        threads.handler("memory", concurrency=10, **options)(once)
        with threads:
            wait(orders)
        return

    async def story() -> None:
        worker = AsyncWorker(url=url)
        if handler == "batch":
            worker.batch_handler("memory", max_size=500, concurrency=2, **options)(once_each)
        else:
            worker.handler("memory", concurrency=500, **options)(once_in_task)
        async with worker:
            await asyncio.to_thread(wait, orders)

    asyncio.run(story())


def wait(orders: Connection) -> None:
    """Wait until the other end is closed or its process is gone."""
    orders.send("started")
    try:
        orders.recv()
    except EOFError:
        return


def rss(pid: int) -> int:
    """Return the bytes of a process in memory."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) * 1024


@contextmanager
def working(url: str, handler: str) -> Iterator[int]:
    """Start a worker's process and return its id."""
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=work, args=(url, handler, theirs))
    process.start()
    theirs.close()
    try:
        assert mine.poll(PATIENCE), "the worker does not start"
        mine.recv()
        assert process.pid is not None
        yield process.pid
        mine.close()
        process.join(PATIENCE)
        assert process.exitcode == 0, f"the worker ended with {process.exitcode}"
    finally:
        if process.is_alive():
            process.kill()
        process.join(PATIENCE)
        process.close()


@frozen
class Report:
    """The measured values."""

    rss: Sequence[int]
    """The worker's, at the start and after each quarter of the jobs."""
    before: int
    """The server's memory with an idle worker, when every script has run once."""
    after: int
    """And after the last."""
    left: Mapping[str, int]
    """What is there when the worker has gone, besides the streams, their group and the counters."""
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Return complaints about memory that grew and keys that are left."""
        found = [f"{count} {what} left" for what, count in self.left.items() if count]
        growth = max(self.rss[2:]) - self.rss[1]
        if growth > GROWTH:
            found.append(f"the worker has grown by {growth / MIB:.1f} MiB")
        if abs(self.after - self.before) > SERVER:
            found.append(f"the server has grown by {(self.after - self.before) / MIB:.1f} MiB")
        return found


def payloads(start: int, stop: int) -> list[bytes | NewJob]:
    """Return payloads of 100 bytes. One in ten has an id."""
    plain = [b"%0100d" % n for n in range(start, stop)]
    return [NewJob(p, id=f"job-{n}") if n % 10 == 5 else p for n, p in enumerate(plain, start)]


def drained(queue: Queue, limit: int) -> None:
    """Wait until at most *limit* jobs are in the queue."""
    completed, since = -1, time.monotonic()
    while (counts := queue.counts()).present > limit:
        if counts.completed > completed:
            completed, since = counts.completed, time.monotonic()
        assert time.monotonic() - since < PATIENCE, f"nothing is completed: {counts}"
        time.sleep(0.002)


def measure(server: Server, handler: str, jobs: int) -> Report:
    """Send so many jobs through one worker on an empty server."""
    with (
        redis.Redis(unix_socket_path=server.path) as client,
        Queue("memory", url=server.url) as queue,
    ):
        with working(server.url, handler) as pid:
            sizes = [rss(pid)]
            queue.enqueue_many(payloads(jobs, jobs + CHUNK))
            drained(queue, 0)
            before, start = used(client), time.monotonic()
            for quarter in range(QUARTERS):
                first, last = jobs * quarter // QUARTERS, jobs * (quarter + 1) // QUARTERS
                for at in range(first, last, CHUNK):
                    queue.enqueue_many(payloads(at, min(at + CHUNK, last)))
                    drained(queue, BACKLOG)
                drained(queue, 0)
                sizes.append(rss(pid))
            seconds, after = time.monotonic() - start, used(client)
        counts = queue.counts()
        assert (counts.enqueued, counts.completed, counts.lost) == (
            jobs + CHUNK,
            jobs + CHUNK,
            0,
        ), counts
        return Report(sizes, before, after, leftovers(client), seconds)


def used(client: redis.Redis) -> int:
    """Return the bytes of the server's memory."""
    info: Any = client.info("memory")
    return int(info["used_memory"])


def leftovers(client: redis.Redis) -> dict[str, int]:
    """Return the keys that an empty queue should not have."""
    parts = {key.decode().removeprefix(PREFIX): key for key in client.scan_iter(count=1000)}
    lanes = [key for part, key in parts.items() if part.startswith("lane:")]
    tallies = [key for part, key in parts.items() if part == "tallies"]
    consumers = {row["name"] for row in client.xinfo_consumers(PREFIX + "jobs", "workers")}
    pending: Any = client.xpending(PREFIX + "jobs", "workers")
    return {
        "entries": int(client.xlen(PREFIX + "jobs")),
        "pending": pending["pending"],
        "wake tokens above 16": max(0, int(client.xlen(PREFIX + "wake")) - 16),
        "consumers": len(consumers - {b"parked", b"idle"}),
        "records that do not expire": sum(client.pttl(key) < 0 for key in [*lanes, *tallies]),
        "records above 50": max(0, len(lanes) - 50),
        "other keys": len(parts.keys() - {"jobs", "wake", "stats", "tallies"}) - len(lanes),
    }


def main() -> None:
    """Measure, print, and fail if something grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--handler", choices=HANDLERS, default="batch")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    binary = next(b for b in binaries() if b.name == options.server)
    with Server(binary) as server:
        report = measure(server, options.handler, options.jobs)
    print(
        f"{options.server}: {options.jobs:,} jobs of 100 bytes, handler {options.handler}, {report.seconds:.0f} s"
    )
    for quarter, size in enumerate(report.rss):
        print(f"worker after {quarter * 100 // QUARTERS:3} %{size / MIB:10.1f} MiB")
    print(f"server before       {report.before / MIB:10.2f} MiB")
    print(f"server after        {report.after / MIB:10.2f} MiB")
    print("left: " + ", ".join(f"{count} {what}" for what, count in report.left.items()))
    numbers = {
        "rss": list(report.rss),
        "before": report.before,
        "after": report.after,
        "seconds": report.seconds,
    }
    print(
        json.dumps(
            {"server": options.server, "handler": options.handler, "jobs": options.jobs, **numbers}
        )
    )
    if report.problems:
        sys.exit("; ".join(report.problems))


if __name__ == "__main__":
    main()
