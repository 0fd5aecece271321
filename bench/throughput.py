"""Throughput beside a hand-packed client that promises nothing. Ratios are medians of interleaved
rounds.

python bench/throughput.py --server valkey-9.1 --rounds 5 --jobs 100000
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.raw import Raw
from headrace import AsyncWorker, Job, Queue, Worker
from tests.support.servers import Server, binaries

GOALS = {"enqueue_many": 0.65, "async batch": 0.50, "async per job": 0.35, "threads": 0.10}
BASES = {"enqueue_many": "raw enqueue"}
BESIDE = {"async per job": ("raw tasks", 0.95)}  # a second baseline, and its goal


class Bench:
    """One server, one client process, and the ways to move jobs through it."""

    def __init__(self, server: Server, jobs: int, size: int) -> None:
        self.server, self.jobs = server, jobs
        self.client = redis.Redis(unix_socket_path=server.path)
        self.payloads = [b"%0*d" % (size, n) for n in range(jobs)]

    def measure(self, way: str) -> dict[str, float]:
        """Run one way on an empty server."""
        prepare, run = {
            "raw enqueue": (lambda: None, self.raw_enqueue),
            "enqueue_many": (lambda: None, self.enqueue_many),
            "raw drain": (self.raw_fill, self.raw_drain),
            "raw tasks": (self.raw_fill, self.raw_tasks),
            "async batch": (self.fill, self.async_batch),
            "async per job": (self.fill, self.async_per_job),
            "threads": (self.fill, self.threads),
        }[way]
        self.client.flushall()
        prepare()
        gc.collect()
        self.client.config_resetstat()
        before = self.client.info("cpu")
        mine = time.process_time()
        seconds = run()
        mine = time.process_time() - mine
        after = self.client.info("cpu")
        calls = self.client.info("commandstats").values()
        busy = sum(float(after[k]) - float(before[k]) for k in ("used_cpu_user", "used_cpu_sys"))
        return {
            "jobs_per_second": self.jobs / seconds,
            "server_us": busy * 1e6 / self.jobs,
            "client_us": mine * 1e6 / self.jobs,
            "commands": (sum(c["calls"] for c in calls) - 2) / self.jobs,
        }

    def raw_fill(self) -> None:
        self.client.xgroup_create("raw", "g", id="0", mkstream=True)
        with Raw(self.server.path) as raw:
            raw.enqueue("raw", self.payloads)

    def fill(self) -> None:
        with Queue("bench", url=self.server.url) as queue:
            queue.enqueue_many(self.payloads)

    def timed(self, run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def raw_enqueue(self) -> float:
        with Raw(self.server.path) as raw:
            return self.timed(lambda: raw.enqueue("raw", self.payloads))

    def enqueue_many(self) -> float:
        with Queue("bench", url=self.server.url) as queue:
            return self.timed(lambda: queue.enqueue_many(self.payloads))

    def raw_drain(self) -> float:
        with Raw(self.server.path) as raw:
            seconds = self.timed(lambda: raw.drain("raw", "g"))
        assert self.client.xlen("raw") == 0
        return seconds

    def raw_tasks(self) -> float:
        """Run the raw drain with a task for each job, as any worker with coroutines has."""
        count = 0

        async def handle(_payload: bytes) -> None:
            nonlocal count
            count += 1

        with Raw(self.server.path) as raw:
            seconds = self.timed(lambda: asyncio.run(raw.drain_by_tasks("raw", "g", handle)))
        assert self.client.xlen("raw") == 0
        assert count == self.jobs
        return seconds

    def completed(self) -> bool:
        return int(self.client.hget("headrace:{bench}:bench:stats", "completed") or 0) == self.jobs

    async def _until_done(self, worker: AsyncWorker, done: asyncio.Event) -> float:
        start = time.perf_counter()
        async with worker:
            await asyncio.wait_for(done.wait(), 300)
            while not self.completed():  # noqa: ASYNC110 - the server knows it, no event of ours does
                await asyncio.sleep(0.001)
            return time.perf_counter() - start

    def async_batch(self) -> float:
        async def story() -> float:
            worker, done, count = AsyncWorker(url=self.server.url), asyncio.Event(), 0

            @worker.batch_handler("bench", max_size=500, concurrency=2)
            async def handle(jobs: Sequence[Job]) -> None:
                nonlocal count
                count += len(jobs)
                if count == self.jobs:
                    done.set()

            return await self._until_done(worker, done)

        return asyncio.run(story())

    def async_per_job(self) -> float:
        async def story() -> float:
            worker, done, count = AsyncWorker(url=self.server.url), asyncio.Event(), 0

            @worker.handler("bench", concurrency=500)
            async def handle(job: Job) -> None:
                nonlocal count
                count += 1
                if count == self.jobs:
                    done.set()

            return await self._until_done(worker, done)

        return asyncio.run(story())

    def threads(self) -> float:
        worker, done, count = Worker(url=self.server.url), threading.Event(), 0
        lock = threading.Lock()

        @worker.handler("bench", concurrency=10)
        def handle(job: Job) -> None:
            nonlocal count
            with lock:
                count += 1
            if count == self.jobs:
                done.set()

        start = time.perf_counter()
        with worker:
            assert done.wait(300)
            while not self.completed():
                time.sleep(0.001)
            return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--ways", default="", help="only these, with commas")
    options = parser.parse_args()
    ways = ["raw enqueue", "enqueue_many", "raw drain", "raw tasks", *list(GOALS)[1:]]
    if options.ways:
        ways = [w for w in ways if w in options.ways.split(",") or w.startswith("raw")]
    binary = next(b for b in binaries() if b.name == options.server)
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with Server(binary) as server:
        bench = Bench(server, options.jobs, options.size)
        bench.measure("raw enqueue")  # everything is warm
        for number in range(options.rounds):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                runs[way].append(bench.measure(way))
        bench.client.close()
    print(
        f"{options.server}: {options.jobs} jobs of {options.size} bytes, medians of {options.rounds} rounds"
    )
    print(
        f"{'way':16}{'jobs/s':>10}{'of raw':>16}{'goal':>7}{'server us':>11}{'client us':>11}{'commands':>10}"
    )
    lines: list[dict[str, object]] = []
    for way in ways:
        base = BASES.get(way, "raw drain") if way in GOALS else way
        ratios = [
            a["jobs_per_second"] / b["jobs_per_second"]
            for a, b in zip(runs[way], runs[base], strict=True)
        ]
        row = {key: statistics.median(run[key] for run in runs[way]) for key in runs[way][0]}
        row |= {"ratio": statistics.median(ratios), "worst": min(ratios), "best": max(ratios)}
        spread = f"{row['ratio']:.0%} ({row['worst']:.0%}-{row['best']:.0%})"
        goal = f"{GOALS[way]:.0%}" if way in GOALS else ""
        print(
            f"{way:16}{row['jobs_per_second']:10,.0f}{spread if goal else '':>16}{goal:>7}"
            f"{row['server_us']:11.2f}{row['client_us']:11.2f}{row['commands']:10.3f}"
        )
        if way in BESIDE:
            name, least = BESIDE[way]
            beside = [
                a["jobs_per_second"] / b["jobs_per_second"]
                for a, b in zip(runs[way], runs[name], strict=True)
            ]
            row["of " + name] = statistics.median(beside)
            spread = f"{statistics.median(beside):.0%} ({min(beside):.0%}-{max(beside):.0%})"
            print(f"{'  of ' + name:26}{spread:>16}{least:>7.0%}")
        numbers = {key: round(value, 4) for key, value in row.items()}
        lines.append({"way": way, "server": options.server, "jobs": options.jobs, **numbers})
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
