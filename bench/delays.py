"""The time from a job's due time to the start of its handler, on an idle worker that had blocked
before.

Another client delays the job while the worker blocks, one job at a time. When it is due is what the
server says; the server runs on this machine, so that its clock also tells when the handler starts.
`by hand` is a loop around `Queue.lease(block=)`. `schedule` is a recurring job, every 0.3 s.

python bench/delays.py --server valkey-9.1 --jobs 200
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.engines import by_hand, tasks, threads
from headrace import Job, Queue
from tests.support.servers import Server, binaries


class Starts(queue.SimpleQueue[tuple[str, float]]):
    """The start times of jobs."""

    def note(self, job: Job) -> None:
        self.put((job.id, time.time()))


def enqueue(jobs: Queue, delay: float) -> str:
    """Enqueue a delayed job."""
    return jobs.enqueue(b"x", delay=delay).id


def reschedule(jobs: Queue, delay: float) -> str:
    """Reschedule a delayed job to now."""
    name = jobs.enqueue(b"x", delay=3600).id
    assert jobs.reschedule(name, delay)
    return name


WORKERS = {"threads": threads, "tasks": tasks, "by hand": by_hand}
WAYS: dict[str, Callable[[Queue, float], str]] = {"enqueue": enqueue, "reschedule": reschedule}


def delayed(server: Server, worker: str, way: str, jobs: int) -> list[float]:
    """Return the milliseconds from due time to start for each job."""
    chance, starts, took = random.Random(1), Starts(), []
    with Queue("bench", url=server.url) as producer, WORKERS[worker](server.url, starts.note):
        time.sleep(1.0)
        for _ in range(jobs):
            time.sleep(chance.uniform(0.005, 0.05))  # the worker blocks again
            name = WAYS[way](producer, chance.uniform(0.02, 1.2))
            state = producer.find(name)
            assert state is not None
            assert state.due is not None
            started, at = starts.get(timeout=30)
            assert started == name
            took.append((at - state.due) * 1e3)
    return took


def recurring(server: Server, worker: str, jobs: int) -> list[float]:
    """Measure the ticks of a schedule in the same way. The due time is in the id."""
    starts, took = Starts(), []
    with Queue("bench", url=server.url) as producer, WORKERS[worker](server.url, starts.note):
        time.sleep(1.0)
        producer.admin.schedule("tick", b"x", every=0.3)
        for _ in range(jobs):
            name, at = starts.get(timeout=30)
            took.append(at * 1e3 - int(name.partition("@")[2]))
        producer.admin.unschedule("tick")
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--jobs", type=int, default=200)
    options = parser.parse_args()
    binary = next(b for b in binaries() if b.name == options.server)
    print(f"{options.server}: {options.jobs} jobs each, ms from due to the start of the handler")
    print(f"{'worker':10}{'after':12}{'min':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}")
    lines: list[dict[str, object]] = []
    with Server(binary) as server:
        for worker in WORKERS:
            for way in (*WAYS, "schedule"):
                with redis.Redis(unix_socket_path=server.path) as client:
                    client.flushall()
                if way == "schedule":
                    took = recurring(server, worker, options.jobs)
                else:
                    took = delayed(server, worker, way, options.jobs)
                cuts = statistics.quantiles(took, n=100, method="inclusive")
                row = {
                    "min": min(took),
                    "p50": cuts[49],
                    "p90": cuts[89],
                    "p99": cuts[98],
                    "max": max(took),
                }
                print(
                    f"{worker:10}{way:12}" + "".join(f"{value:8.2f}" for value in row.values()),
                    flush=True,
                )
                rounded = {key: round(value, 3) for key, value in row.items()}
                lines.append({"worker": worker, "after": way, "server": options.server, **rounded})
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
