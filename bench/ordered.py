"""The cost of order. Times a job with keys are measured for ordered queues and others, and lease
calls past a hot key.

python bench/ordered.py --jobs 30000 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import AsyncWorker, Job, NewJob, Queue
from tests.support.servers import Server, binaries


def busy(client: redis.Redis) -> float:
    """Return the seconds of processor time of the server."""
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def drain(url: str, jobs: int, *, ordered: bool, concurrency: int) -> None:
    """Drain so many jobs."""
    worker, left, over = AsyncWorker(url=url), jobs, asyncio.Event()

    @worker.handler("bench", ordered=ordered, concurrency=concurrency)
    async def one(_job: Job) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            over.set()

    async with worker:
        await over.wait()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hot", type=int, default=100_000)
    given = parser.parse_args()
    with Server(binaries()[0]) as server:
        client = redis.Redis(unix_socket_path=server.path)
        for keys in (given.jobs, 1000, 50):
            for ordered in (False, True):
                found = []
                for _ in range(given.rounds):
                    client.flushall()
                    with Queue("bench", url=server.url) as queue:
                        queue.enqueue_many(
                            [NewJob(b"x" * 100, key=f"k{n % keys}") for n in range(given.jobs)]
                        )
                    before, mine, since = busy(client), time.process_time(), time.perf_counter()
                    asyncio.run(drain(server.url, given.jobs, ordered=ordered, concurrency=1000))
                    took = time.perf_counter() - since
                    found.append(
                        (busy(client) - before, time.process_time() - mine, given.jobs / took)
                    )
                server_s, client_s, rate = (
                    statistics.median(row) for row in zip(*found, strict=True)
                )
                each = f"server {1e6 * server_s / given.jobs:5.1f} us  client {1e6 * client_s / given.jobs:5.1f} us"
                print(
                    f"{keys:>6} keys  {'ordered' if ordered else 'plain  '}  {each}  {rate:8,.0f} jobs/s",
                    flush=True,
                )
        client.flushall()
        with Queue("bench", url=server.url, ordered=True) as queue:
            hot = [NewJob(b"x" * 100, key="hot") for _ in range(given.hot)]
            queue.enqueue_many([*hot, NewJob(b"x", key="other")])
            for limit in (1, 250):
                calls, longest = [], 0
                bytes_before = client.info("memory")["used_memory"]
                for _ in range(150):
                    before = client.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"]
                    queue._run(queue.ops.lease("w", limit, ttl=60.0))
                    calls.append(client.info("commandstats")["cmdstat_evalsha"]["usec"] - before)
                longest = max(calls[1:])
                passed = client.zcard(queue.ops.keys.key("behind"))
                more = (client.info("memory")["used_memory"] - bytes_before) / (150 * 250)
                text = f"median {statistics.median(calls):,.0f} us, longest {longest:,.0f} us"
                print(
                    f"past a hot key, calls for {limit}: {text}; {passed:,} passed, {more:.0f} bytes each"
                )


if __name__ == "__main__":
    main()
