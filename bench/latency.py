"""The time from an enqueue or a release to the start of an idle worker's handler, with medians and
tails.

python bench/latency.py --server valkey-9.1 --jobs 1000
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.engines import tasks, threads
from headrace import Queue
from tests.support.servers import Server, binaries


def enqueue(jobs: Queue) -> Callable[[], bool]:
    """Enqueue a job."""
    return lambda: jobs.enqueue(b"x").added


def release(jobs: Queue) -> Callable[[], bool]:
    """Release a leased job."""
    jobs.enqueue(b"x")
    lease = jobs.lease()
    assert lease is not None
    return lease.release


WORKERS = {"threads": threads, "tasks": tasks}
WAYS = {"enqueue": enqueue, "release": release}
ROUND = 100  # jobs for one start of a worker


def measure(server: Server, worker: str, way: str, jobs: int) -> list[float]:
    """Return the milliseconds from before the call to the start of the handler, for each job."""
    with redis.Redis(unix_socket_path=server.path) as client:
        client.flushall()
    starts: queue.SimpleQueue[float] = queue.SimpleQueue()
    took: list[float] = []
    with Queue("bench", url=server.url) as producer:
        while len(took) < jobs:
            acts = [WAYS[way](producer) for _ in range(ROUND)]  # before there is a worker
            with WORKERS[worker](server.url, lambda _job: starts.put(time.perf_counter())):
                time.sleep(0.3)
                for act in acts:
                    time.sleep(0.003)  # the worker blocks again
                    before = time.perf_counter()
                    assert act()
                    took.append((starts.get(timeout=30) - before) * 1e3)
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--jobs", type=int, default=1000)
    options = parser.parse_args()
    binary = next(b for b in binaries() if b.name == options.server)
    print(f"{options.server}: {options.jobs} jobs, ms from the call to the start of the handler")
    print(f"{'worker':10}{'after':10}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}")
    lines: list[dict[str, object]] = []
    with Server(binary) as server:
        for worker in WORKERS:
            for way in WAYS:
                took = measure(server, worker, way, options.jobs)
                cuts = statistics.quantiles(took, n=100)
                row = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(took)}
                print(f"{worker:10}{way:10}" + "".join(f"{value:8.2f}" for value in row.values()))
                rounded = {key: round(value, 3) for key, value in row.items()}
                lines.append({"worker": worker, "after": way, "server": options.server, **rounded})
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
