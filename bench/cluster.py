"""Sharded queues on clusters. The bench measures server and client time a job, and the share of the
busiest master.

python bench/cluster.py --masters 1,3 --shards 1,12 --jobs 60000 --rounds 3

The rates are those of one client process that does everything; where masters and clients share
processors, they say nothing about what more masters give. The time of the servers a job, all
masters together, and that of the client do. "start us" is the part of the client's that is none of
the jobs': what a worker takes that starts, has one, and ends. With twelve processors or more, or
`--fleet CLIENTS`, so many processes at once also enqueue and drain the jobs, in two more ways, of
which the rates count.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import AsyncQueue, AsyncWorker, Job, Queue
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.servers import binaries

WAYS = ("enqueue_many", "per job", "batch", "at rest")
DRAINS = ("per job", "batch")
FLEET = ("fleet enqueues", "fleet drains")
FLEET_FROM = 12  # processors from which on masters and clients have theirs
FLEET_S = 300.0  # seconds that a fleet may take
REST_S = 10.0  # seconds of an idle worker that are measured
# seconds until it is at rest: until then it looks after the queue like one of those that work
SETTLE_S = 30.0
# of 1 x 1; of all; of a core
SERVER_AT_MOST, CLIENT_AT_MOST, BUSIEST_AT_MOST, REST_AT_MOST = 1.3, 1.2, 0.40, 0.03
FLEET_AT_LEAST = 2.5  # of 1 x 1


class Bench:
    """One cluster, a queue of so many shards, and one client process."""

    def __init__(self, cluster: Cluster, shards: int, jobs: int, clients: int) -> None:
        self.cluster, self.shards, self.jobs, self.clients = cluster, shards, jobs, clients
        self.nodes = [redis.Redis(port=node.port) for node in cluster.masters]
        self.payloads = [b"%0100d" % n for n in range(jobs)]

    def measure(self, way: str) -> dict[str, float]:
        self.empty()
        if way in FLEET:
            return self.fleet(way)
        if way == "at rest":
            return asyncio.run(self.rest())
        run: Callable[[], float] = {
            "enqueue_many": self.enqueue_many,
            "per job": lambda: self.drained(way, self.jobs),
            "batch": lambda: self.drained(way, self.jobs),
        }[way]
        start = self.start(way) if way in DRAINS else None
        gc.collect()  # each begins alike: full collections come by what there was at the last
        before, mine = self.busy(), time.process_time()
        seconds = run()
        mine = time.process_time() - mine
        used = [after - was for after, was in zip(self.busy(), before, strict=True)]
        found = {
            "jobs/s": self.jobs / seconds,
            "server us": 1e6 * sum(used) / self.jobs,
            "client us": 1e6 * mine / self.jobs,
            "busiest": max(used) / sum(used),
        }
        return found if start is None else found | {"start us": 1e6 * start / self.jobs}

    def start(self, way: str) -> float:
        """Let a worker do one job, then fill the queue. Return the seconds of processor time of
        that job in this process.
        """
        self.fill(1)
        mine = time.process_time()
        self.drained(way, 1)
        mine = time.process_time() - mine
        self.empty()
        self.fill(self.jobs)
        return mine

    def empty(self) -> None:
        for node in self.nodes:
            node.flushall()

    def busy(self) -> list[float]:
        """Return the seconds of processor time of each master."""
        infos = [node.info("cpu") for node in self.nodes]
        return [float(info["used_cpu_user"]) + float(info["used_cpu_sys"]) for info in infos]

    def queue(self) -> Queue:
        return Queue("bench", url=self.cluster.url, shards=self.shards)

    def fill(self, jobs: int) -> None:
        with self.queue() as queue:
            queue.enqueue_many(self.payloads[:jobs])

    def enqueue_many(self) -> float:
        with self.queue() as queue:
            queue.counts()
            since = time.perf_counter()
            queue.enqueue_many(self.payloads)
            return time.perf_counter() - since

    def drained(self, way: str, jobs: int) -> float:
        return asyncio.run(self.drain(jobs, batch=way == "batch"))

    async def drain(self, jobs: int, *, batch: bool) -> float:
        worker, left, over = AsyncWorker(url=self.cluster.url), jobs, asyncio.Event()

        def ended(number: int) -> None:
            nonlocal left
            left -= number
            if left <= 0:
                over.set()

        if batch:

            @worker.batch_handler("bench", shards=self.shards, max_wait=0.01)
            async def some(taken: Sequence[Job]) -> None:
                ended(len(taken))

        else:

            @worker.handler("bench", shards=self.shards, concurrency=1000)
            async def one(_job: Job) -> None:
                ended(1)

        since = time.perf_counter()
        async with worker:
            await over.wait()
            return time.perf_counter() - since

    def fleet(self, way: str) -> dict[str, float]:
        """Let several processes enqueue or drain at once."""
        if way == "fleet drains":
            self.fill(self.jobs)
        each = self.jobs // self.clients
        command = [
            sys.executable,
            __file__,
            "--member",
            way,
            "--jobs",
            str(each),
            "--shards",
            str(self.shards),
        ]
        before = self.busy()
        members = [
            subprocess.Popen(
                [*command, "--url", self.cluster.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in range(self.clients)
        ]
        try:
            for member in members:
                assert member.stdout
                assert member.stdout.readline()  # it is ready
            for member in members:
                assert member.stdin
                member.stdin.write(b"go\n")
                member.stdin.flush()
            told = [json.loads(member.communicate(timeout=FLEET_S)[0]) for member in members]
        finally:
            for member in members:
                member.kill()
                member.wait()
        used = [after - was for after, was in zip(self.busy(), before, strict=True)]
        seconds = max(last for _, last, _ in told) - min(
            first for first, _, number in told if number
        )
        done = sum(number for _, _, number in told)
        return {
            "jobs/s": done / seconds,
            "server us": 1e6 * sum(used) / done,
            "busiest": max(used) / sum(used),
        }

    async def rest(self) -> dict[str, float]:
        """Watch an idle worker, first while it looks after its new queues, then at rest."""
        worker = AsyncWorker(url=self.cluster.url)

        @worker.handler("bench", shards=self.shards)
        async def one(_job: Job) -> None: ...

        with self.queue() as queue:
            async with worker:
                await asyncio.to_thread(until, lambda: len(queue.admin.workers()) == self.shards)
                first = await self.idle()
                await asyncio.sleep(SETTLE_S)
                client, servers = await self.idle()
                return {
                    "client cores": client,
                    "server cores": servers,
                    "client cores at first": first[0],
                }

    async def idle(self) -> tuple[float, float]:
        """Return the processor time that this process and the servers take in a second."""
        before, mine, since = self.busy(), time.process_time(), time.perf_counter()
        await asyncio.sleep(REST_S)
        mine, took = time.process_time() - mine, time.perf_counter() - since
        return mine / took, (sum(self.busy()) - sum(before)) / took


def member(way: str, url: str, shards: int, jobs: int) -> None:
    """Enqueue so many jobs, or drain the queue with others. Return when it began and ended, and the
    number of jobs."""
    first, last, done = 0.0, 0.0, 0

    async def drain() -> None:
        worker = AsyncWorker(url=url)

        @worker.batch_handler("bench", shards=shards, max_wait=0.01)
        async def some(taken: Sequence[Job]) -> None:
            nonlocal first, last, done
            last = time.perf_counter()
            first, done = first or last, done + len(taken)

        async with worker, AsyncQueue("bench", url=url, shards=shards) as queue:
            while (counts := await queue.counts()).waiting or counts.leased:  # noqa: ASYNC110 - of all clients
                await asyncio.sleep(0.1)

    payloads = [b"%0100d" % n for n in range(jobs)]
    with Queue("bench", url=url, shards=shards) as queue:
        queue.counts()
        print("ready", flush=True)
        sys.stdin.readline()
        if way == "fleet enqueues":
            first = time.perf_counter()
            queue.enqueue_many(payloads)
            last, done = time.perf_counter(), jobs
        else:
            asyncio.run(drain())
    print(json.dumps([first, last, done]))


def main() -> int:
    """Measure, print a table, and compare with the bars where 1 x 1 and 3 x 12 were measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--masters", default="1,3")
    parser.add_argument("--shards", default="1,12")
    parser.add_argument("--ways", default="enqueue_many,per job,batch")
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--fleet", type=int, default=cores // 2 if cores >= FLEET_FROM else 0, metavar="CLIENTS"
    )
    parser.add_argument("--member", choices=FLEET, help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.member:
        member(given.member, given.url, int(given.shards), given.jobs)
        return 0
    ways = [*given.ways.split(","), *(FLEET if given.fleet else ())]
    found: dict[str, dict[str, float]] = {}
    for masters in map(int, given.masters.split(",")):
        with Cluster(binaries()[0], masters=masters) as cluster:
            for shards in map(int, given.shards.split(",")):
                bench = Bench(cluster, shards, given.jobs, given.fleet)
                for way in ways:
                    rounds = [
                        bench.measure(way) for _ in range(1 if way == "at rest" else given.rounds)
                    ]
                    row = {
                        name: statistics.median(one[name] for one in rounds) for name in rounds[0]
                    }
                    found[f"{masters} x {shards} {way}"] = row
                    if not given.json:
                        words = "  ".join(f"{name} {value:,.2f}" for name, value in row.items())
                        print(f"{masters} x {shards:<3} {way:<13} {words}", flush=True)
    if given.json:
        print(json.dumps(found, indent=2))
    return bars(found, ways)


def bars(found: dict[str, dict[str, float]], ways: Sequence[str]) -> int:
    """Print which bars 3 x 12 keeps beside 1 x 1. The exit status is 1 if it fails one."""
    missed = 0
    for way in ways:
        one, many = found.get(f"1 x 1 {way}"), found.get(f"3 x 12 {way}")
        if one is None or many is None or way == "at rest":
            continue
        if way in FLEET:
            ratio = many["jobs/s"] / one["jobs/s"]
            judged = (os.cpu_count() or 1) >= FLEET_FROM
            missed += judged and ratio < FLEET_AT_LEAST
            print(
                f"{way}: {ratio:.2f} of 1 x 1, bar {FLEET_AT_LEAST}{'' if judged else ' with more processors'}",
                file=sys.stderr,
            )
            continue
        for name, bar in (("server us", SERVER_AT_MOST), ("client us", CLIENT_AT_MOST)):
            ratio = many[name] / one[name]
            missed += ratio > bar
            print(
                f"{way}: {name} {ratio:.2f} of 1 x 1, bar {bar}{'' if ratio <= bar else ': MISSED'}",
                file=sys.stderr,
            )
        missed += many["busiest"] > BUSIEST_AT_MOST
        print(
            f"{way}: busiest master {many['busiest']:.2f}, bar {BUSIEST_AT_MOST}", file=sys.stderr
        )
    for name, row in found.items():
        if name.endswith("at rest"):
            missed += row["client cores"] > REST_AT_MOST
            print(
                f"{name}: {row['client cores']:.3f} of a core, bar {REST_AT_MOST}", file=sys.stderr
            )
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
