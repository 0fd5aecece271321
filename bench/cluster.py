"""Sharded queues on clusters: server and client time a job, and the share of the busiest master.

python bench/cluster.py --masters 1,3 --shards 1,12 --jobs 60000 --rounds 3

The rates are those of one client process that does everything; where masters and clients share processors, they say
nothing about what more masters give. The time of the servers a job, all masters together, and that of the client do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import AsyncWorker, Job, Queue
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.servers import binaries

WAYS = ("enqueue_many", "per job", "batch", "at rest")
REST_S = 10.0  # seconds of an idle worker that are measured
SERVER_AT_MOST, CLIENT_AT_MOST, BUSIEST_AT_MOST, REST_AT_MOST = 1.3, 1.2, 0.40, 0.03  # of 1 x 1; of all; of a core


class Bench:
    """One cluster, a queue of so many shards, and one client process."""

    def __init__(self, cluster: Cluster, shards: int, jobs: int) -> None:
        self.cluster, self.shards, self.jobs = cluster, shards, jobs
        self.nodes = [redis.Redis(port=node.port) for node in cluster.masters]
        self.payloads = [b"%0100d" % n for n in range(jobs)]

    def measure(self, way: str) -> dict[str, float]:
        """Run one way on empty servers."""
        for node in self.nodes:
            node.flushall()
        run: Callable[[], float] = {
            "enqueue_many": self.enqueue_many,
            "per job": lambda: asyncio.run(self.drain(batch=False)),
            "batch": lambda: asyncio.run(self.drain(batch=True)),
            "at rest": lambda: asyncio.run(self.rest()),
        }[way]
        if way in ("per job", "batch"):
            self.fill()
        before, mine = self.busy(), time.process_time()
        seconds = run()
        mine = time.process_time() - mine
        used = [after - was for after, was in zip(self.busy(), before, strict=True)]
        if way == "at rest":
            return {"client cores": mine / seconds, "server cores": sum(used) / seconds}
        return {
            "jobs/s": self.jobs / seconds,
            "server us": 1e6 * sum(used) / self.jobs,
            "client us": 1e6 * mine / self.jobs,
            "busiest": max(used) / sum(used),
        }

    def busy(self) -> list[float]:
        """Seconds of processor time of each master."""
        infos = [node.info("cpu") for node in self.nodes]
        return [float(info["used_cpu_user"]) + float(info["used_cpu_sys"]) for info in infos]

    def queue(self) -> Queue:
        return Queue("bench", url=self.cluster.url, shards=self.shards)

    def fill(self) -> None:
        with self.queue() as queue:
            queue.enqueue_many(self.payloads)

    def enqueue_many(self) -> float:
        with self.queue() as queue:
            queue.counts()
            since = time.perf_counter()
            queue.enqueue_many(self.payloads)
            return time.perf_counter() - since

    async def drain(self, *, batch: bool) -> float:
        worker, left, over = AsyncWorker(url=self.cluster.url), self.jobs, asyncio.Event()

        def ended(number: int) -> None:
            nonlocal left
            left -= number
            if left <= 0:
                over.set()

        if batch:

            @worker.batch_handler("bench", shards=self.shards, max_wait=0.01)
            async def some(jobs: Sequence[Job]) -> None:
                ended(len(jobs))

        else:

            @worker.handler("bench", shards=self.shards, concurrency=1000)
            async def one(_job: Job) -> None:
                ended(1)

        since = time.perf_counter()
        async with worker:
            await over.wait()
            return time.perf_counter() - since

    async def rest(self) -> float:
        worker = AsyncWorker(url=self.cluster.url)

        @worker.handler("bench", shards=self.shards)
        async def one(_job: Job) -> None: ...

        with self.queue() as queue:
            async with worker:
                await asyncio.to_thread(until, lambda: len(queue.workers()) == self.shards)
                since = time.perf_counter()
                await asyncio.sleep(REST_S)
                return time.perf_counter() - since


def main() -> int:
    """Measure, print a table, and compare with the bars where 1 x 1 and 3 x 12 were measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masters", default="1,3")
    parser.add_argument("--shards", default="1,12")
    parser.add_argument("--ways", default="enqueue_many,per job,batch")
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    ways = given.ways.split(",")
    found: dict[str, dict[str, float]] = {}
    for masters in map(int, given.masters.split(",")):
        with Cluster(binaries()[0], masters=masters) as cluster:
            for shards in map(int, given.shards.split(",")):
                bench = Bench(cluster, shards, given.jobs)
                for way in ways:
                    rounds = [bench.measure(way) for _ in range(1 if way == "at rest" else given.rounds)]
                    row = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
                    found[f"{masters} x {shards} {way}"] = row
                    if not given.json:
                        words = "  ".join(f"{name} {value:,.2f}" for name, value in row.items())
                        print(f"{masters} x {shards:<3} {way:<13} {words}", flush=True)
    if given.json:
        print(json.dumps(found, indent=2))
    return bars(found, ways)


def bars(found: dict[str, dict[str, float]], ways: Sequence[str]) -> int:
    """Say which bars 3 x 12 keeps beside 1 x 1; the exit status is 1 if it keeps not all."""
    missed = 0
    for way in ways:
        one, many = found.get(f"1 x 1 {way}"), found.get(f"3 x 12 {way}")
        if one is None or many is None or way == "at rest":
            continue
        for name, bar in (("server us", SERVER_AT_MOST), ("client us", CLIENT_AT_MOST)):
            ratio = many[name] / one[name]
            missed += ratio > bar
            print(f"{way}: {name} {ratio:.2f} of 1 x 1, bar {bar}{'' if ratio <= bar else ': MISSED'}", file=sys.stderr)
        missed += many["busiest"] > BUSIEST_AT_MOST
        print(f"{way}: busiest master {many['busiest']:.2f}, bar {BUSIEST_AT_MOST}", file=sys.stderr)
    for name, row in found.items():
        if name.endswith("at rest"):
            missed += row["client cores"] > REST_AT_MOST
            print(f"{name}: {row['client cores']:.3f} of a core, bar {REST_AT_MOST}", file=sys.stderr)
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
