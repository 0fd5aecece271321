"""One worker for many queues. Connections, idle commands, jobs a second and idle latency are
compared with one queue.

python bench/many.py --server valkey-9.1 --queues 1,100,1000,5000 --rounds 3
python bench/many.py --queues 5000 --rest 300 --jobs 0 --lone 0   # at rest over minutes
python bench/many.py --queues 1000 --rounds 9 --produce   # `enqueue` by turns, beside one queue
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.compare import processor
from headrace import AsyncWorker, Job, Queue
from headrace._protocol.keys import Keys
from tests.support.servers import Server, binaries

SPAN_S = 10.0  # seconds of rest after which connections and commands are looked at
LONE = b"@"  # begins the payload of a job that is timed


def names(queues: int) -> list[str]:
    """Return the queues, all of one group."""
    return [f"many/q{number}" for number in range(queues)]


async def serve(url: str, queues: int) -> None:
    """Work until the input ends. Answer each line with the counts since the last."""
    worker = AsyncWorker(url=url)
    ran = 0
    waits: list[float] = []

    async def handle(job: Job) -> None:
        nonlocal ran
        ran += 1
        if job.payload.startswith(LONE):
            waits.append((time.perf_counter() - float(job.payload[1:])) * 1e3)

    for name in names(queues):
        worker.handler(name)(handle)
    loop = asyncio.get_running_loop()
    async with worker:
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(
                json.dumps({"ran": ran, "waits": waits, "processor": time.process_time()}),
                flush=True,
            )


class Serving:
    """A worker in its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self) -> dict[str, Any]:
        """Return the counts of the process."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def until(self, ran: int, seconds: float = 120.0) -> bool:
        """Wait until so many jobs have run."""
        end = time.monotonic() + seconds
        while self.ask()["ran"] < ran:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


@contextmanager
def serving(url: str, queues: int) -> Iterator[Serving]:
    """Run a worker for so many queues."""
    command = [sys.executable, __file__, "--serve", url, "--queues", str(queues)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Serving(process)
        assert process.stdin
        process.stdin.close()


def commands(client: Any) -> int:
    """Count the calls of all commands so far, including the calls that scripts make."""
    return sum(
        row["calls"] for name, row in client.info("commandstats").items() if name != "cmdstat_info"
    )


def spent(client: Any, worker: Serving) -> tuple[float, float]:
    """Return the seconds of processor time of the server and of the worker."""
    return processor(client), worker.ask()["processor"]


def idle(client: Any, worker: Serving, seconds: float) -> dict[str, float]:
    """Watch a worker that has nothing to do."""
    connections: list[int] = []
    rates: list[float] = []
    first, began = commands(client), time.monotonic()
    called, since = first, began
    server_before, worker_before = spent(client, worker)
    while (left := began + seconds - since) > 0:
        time.sleep(min(SPAN_S, left))
        connections.append(client.info("clients")["connected_clients"] - 1)
        now, counted = time.monotonic(), commands(client)
        rates.append((counted - called) / (now - since))
        called, since = counted, now
    server_after, worker_after = spent(client, worker)
    passed = since - began
    return {
        "idle s": passed, "connections": statistics.median(connections), "connections, most": max(connections),
        "commands/s": (called - first) / passed, "commands/s, least": min(rates), "commands/s, most": max(rates),
        "server %": 100 * (server_after - server_before) / passed,
        "worker %": 100 * (worker_after - worker_before) / passed,
    }  # fmt: skip


def measure(
    server: Server, queues: int, jobs: int, lone: int, every: float, settle: float, rest: float
) -> dict[str, float]:
    """Measure a worker for so many queues. It is idle, gets lone jobs if there are any, and gets
    many jobs."""
    streams = [Keys.of(name).key("jobs") for name in names(queues)]
    with redis.Redis(unix_socket_path=server.path) as client, serving(server.url, queues) as worker:
        client.flushall()
        began = time.perf_counter()
        for stream in streams:
            client.xadd(stream, {"data": b"x"})
        if not worker.until(queues):
            return {"started": worker.ask()["ran"]}
        first = time.perf_counter() - began
        time.sleep(settle)
        told = {"first jobs s": first} | idle(client, worker, rest)
        if lone:
            told |= one_at_a_time(client, worker, streams, lone, every, told)
        if jobs:
            told |= all_at_once(client, worker, streams, max(1, jobs // queues), queues + lone)
        return told


def one_at_a_time(
    client: Any,
    worker: Serving,
    streams: list[str],
    lone: int,
    every: float,
    at_rest: dict[str, float],
) -> dict[str, float]:
    """Measure jobs that come alone, each in another queue."""
    used, since = spent(client, worker), time.monotonic()
    for number in range(lone):
        client.xadd(
            streams[number * 7 % len(streams)], {"data": LONE + str(time.perf_counter()).encode()}
        )
        time.sleep(every)
    worker.until(len(streams) + lone)
    waits = worker.ask()["waits"]
    passed = time.monotonic() - since
    took = [after - before for before, after in zip(used, spent(client, worker), strict=True)]
    server_s, worker_s = (
        spent_s - passed * at_rest[name] / 100
        for spent_s, name in zip(took, ("server %", "worker %"), strict=True)
    )
    return {
        "p50 ms": statistics.median(waits), "p99 ms": statistics.quantiles(waits, n=100)[98],
        "server us/lone": 1e6 * server_s / lone, "worker us/lone": 1e6 * worker_s / lone,
    }  # fmt: skip


def all_at_once(
    client: Any, worker: Serving, streams: list[str], each: int, ran: int
) -> dict[str, float]:
    """Measure many jobs of all queues by turns, after so many have run."""
    turns = [stream for _ in range(each // 50) for stream in streams for _ in range(50)]
    turns += [stream for stream in streams for _ in range(each % 50)]
    server_before, worker_before = spent(client, worker)
    began = time.perf_counter()
    for at in range(0, len(turns), 1000):
        pipe = client.pipeline(transaction=False)
        for stream in turns[at : at + 1000]:
            pipe.xadd(stream, {"data": b"x" * 100})
        pipe.execute()
    worker.until(ran + len(turns))
    took = time.perf_counter() - began
    server_after, worker_after = spent(client, worker)
    return {
        "jobs/s": len(turns) / took, "after load": client.info("clients")["connected_clients"] - 1,
        "server us/job": 1e6 * (server_after - server_before) / len(turns),
        "worker us/job": 1e6 * (worker_after - worker_before) / len(turns),
    }  # fmt: skip


def produce(server: Server, queues: int) -> dict[str, float]:
    """Measure `enqueue` by turns to so many queues of one client. The first job includes making and
    closing the queue, and the second does not. As many jobs to one queue are measured too.
    """
    told: dict[str, float] = {}

    def timed(name: str, act: Callable[[], object]) -> None:
        server_s, client_s, began = processor(client), time.process_time(), time.perf_counter()
        act()
        told[f"{name}/s"] = queues / (time.perf_counter() - began)
        told[f"{name} client us"] = (time.process_time() - client_s) / queues * 1e6
        told[f"{name} server us"] = (processor(client) - server_s) / queues * 1e6

    with redis.Redis(unix_socket_path=server.path) as client, Queue("one", client=client) as one:
        one.enqueue(b"x" * 100)
        made: list[Queue[bytes]] = []
        timed("one", lambda: [one.enqueue(b"x" * 100) for _ in range(queues)])
        timed("made", lambda: made.extend(Queue(name, client=client) for name in names(queues)))
        timed("first", lambda: [queue.enqueue(b"x" * 100) for queue in made])
        timed("second", lambda: [queue.enqueue(b"x" * 100) for queue in made])
        told["connections"] = client.info("clients")["connected_clients"] - 1
        timed("closed", lambda: [queue.close() for queue in made])
        taken = [1 / told[f"{name}/s"] for name in ("made", "first", "second", "closed")]
        told["both jobs of each/s"] = 2 / sum(taken)
    return told


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--queues", default="1,100,1000")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument(
        "--lone", type=int, default=200, help="jobs one at a time, or 0, as with --jobs"
    )
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two of them")
    parser.add_argument(
        "--settle", type=float, default=20.0, help="seconds before the worker counts as idle"
    )
    parser.add_argument(
        "--rest", type=float, default=10.0, help="seconds for which the idle worker is watched"
    )
    parser.add_argument(
        "--produce", action="store_true", help="measure what adds jobs, not what works on them"
    )
    parser.add_argument("--serve", metavar="URL", help="be the worker")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, int(options.queues)))
        return
    binary = next(b for b in binaries() if b.name == options.server)
    rows: dict[int, list[dict[str, float]]] = {
        int(number): [] for number in options.queues.split(",")
    }
    for _ in range(options.rounds):
        for queues, rounds in rows.items():
            with Server(binary) as server:
                rest = (options.lone, options.every, options.settle, options.rest)
                told = (
                    produce(server, queues)
                    if options.produce
                    else measure(server, queues, options.jobs, *rest)
                )
                rounds.append(told)
                print(queues, json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    for queues, rounds in rows.items():
        names_of = max(rounds, key=len)
        medians = {
            name: statistics.median(row[name] for row in rounds if name in row) for name in names_of
        }
        print(
            json.dumps(
                {"queues": queues} | {name: round(value, 2) for name, value in medians.items()}
            )
        )


if __name__ == "__main__":
    main()
