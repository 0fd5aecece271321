"""The speed of workers under a rate limit. They come near to it and never above it, by the server's
own times.

For each engine, number of workers and burst, jobs wait all the time and slots are free; a way's
figure is the grants after the first burst, in percent of what the limit allows for that time. `by
hand` is a loop around `Queue.lease`.

python bench/rates.py --server valkey-9.1 --limit 50 --seconds 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.engines import by_hand, tasks, threads
from headrace import NewJob, Queue, Rate
from tests.support.servers import Server, binaries

WAITING = 3000
WAYS = {"by hand": by_hand, "threads": threads, "tasks": tasks}


def measure(
    url: str, way: str, workers: int, slots: int, rate: Rate, seconds: float
) -> dict[str, float]:
    """Return the grants of so many seconds by the server's clock."""
    with redis.Redis.from_url(url) as client, Queue("bench", url=url) as queue:
        client.flushall()
        queue.enqueue_many(NewJob(b"x", headers={"key": "a"}) for _ in range(WAITING))
        client.config_resetstat()
        with ExitStack() as stack:
            options = {"rate": rate} if way == "by hand" else {"rate": rate, "concurrency": slots}
            for _ in range(workers):
                stack.enter_context(WAYS[way](url, lambda _job: None, **options))
            while queue.counts().completed < rate.tokens:
                time.sleep(0.001)
            begin, before = time.monotonic(), queue.counts().completed
            time.sleep(seconds)
            done, took = queue.counts().completed - before, time.monotonic() - begin
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    return {
        "percent": 100 * done / took * rate.per / rate.limit,
        "scripts_per_job": calls / max(1, before + done),
    }


def main() -> None:
    """Measure every way, print a table and JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=binaries()[0].name)
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    (binary,) = (binary for binary in binaries() if binary.name == options.server)
    rows = []
    with Server(binary) as server:
        ways = [
            ("by hand", 1, 1),
            ("threads", 1, 10),
            ("threads", 4, 10),
            ("tasks", 1, 1),
            ("tasks", 1, 100),
            ("tasks", 4, 10),
        ]
        print(
            f"{'way':8} {'workers':>7} {'slots':>5} {'key':>4} {'burst':>5} {'percent':>8} {'scripts per job':>16}"
        )
        for (way, workers, slots), key, burst in itertools.product(
            ways, [None, "key"], [1, 10, None]
        ):
            rate = Rate(options.limit, key=key, burst=burst)
            found = measure(server.url, way, workers, slots, rate, options.seconds)
            rows.append(
                {
                    "way": way,
                    "workers": workers,
                    "slots": slots,
                    "key": key,
                    "burst": rate.tokens,
                    **found,
                }
            )
            print(
                f"{way:8} {workers:7} {slots:5} {key or '-':>4} {rate.tokens:5} {found['percent']:8.1f}",
                end=" ",
            )
            print(f"{found['scripts_per_job']:16.1f}")
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
