"""One call at a time, many awaited at once, and an idle worker. Each is compared with bare redis-py
in interleaved rounds.

python bench/single.py --server valkey-9.1 --rounds 7
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.latency import WORKERS
from bench.raw import Raw
from headrace import AsyncQueue, Queue
from headrace._protocol.op import pack
from tests.support.servers import Server, binaries

PAYLOAD = b"x" * 100
GOALS = {"enqueue": 1.3, "8 threads": 1.3, "await enqueue": 1.0, "1,000 awaits": 0.43}
THREADS = 8
Handle = Callable[[Any], None]  # called with what a reader has read, as soon as it has
Timed = tuple[float, float]  # calls per second, client us of processor time per call


def timed(calls: int, run: Callable[[], object]) -> Timed:
    """Run, and return the rate."""
    mine, start = time.process_time(), time.perf_counter()
    run()
    took = time.perf_counter() - start
    return calls / took, (time.process_time() - mine) * 1e6 / calls


async def awaited(calls: int, run: Callable[[], Awaitable[object]]) -> Timed:
    """Like `timed`."""
    mine, start = time.process_time(), time.perf_counter()
    await run()
    took = time.perf_counter() - start
    return calls / took, (time.process_time() - mine) * 1e6 / calls


def sync_xadd(server: Server, calls: int) -> Timed:
    """Run a bare loop of redis-py."""
    with redis.Redis(unix_socket_path=server.path) as client:
        client.xadd("bare", {"data": PAYLOAD})
        return timed(calls, lambda: [client.xadd("bare", {"data": PAYLOAD}) for _ in range(calls)])


def sync_enqueue(server: Server, calls: int) -> Timed:
    """Run a loop of `Queue.enqueue`."""
    with Queue("bench", url=server.url) as jobs:
        jobs.enqueue(PAYLOAD)
        return timed(calls, lambda: [jobs.enqueue(PAYLOAD) for _ in range(calls)])


def threaded(calls: int, call: Callable[[], object]) -> Timed:
    """Run loops of a call in several threads at once."""

    def loop() -> None:
        for _ in range(calls // THREADS):
            call()

    def run() -> None:
        threads = [threading.Thread(target=loop) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return timed(calls // THREADS * THREADS, run)


def threads_xadd(server: Server, calls: int) -> Timed:
    """Run threads that share a client of redis-py."""
    with redis.Redis(unix_socket_path=server.path) as client:
        return threaded(calls, lambda: client.xadd("bare", {"data": PAYLOAD}))


def threads_enqueue(server: Server, calls: int) -> Timed:
    """Run threads that share a `Queue`."""
    with Queue("bench", url=server.url) as jobs:
        jobs.enqueue(PAYLOAD)
        return threaded(calls, lambda: jobs.enqueue(PAYLOAD))


def async_xadd(server: Server, calls: int) -> Timed:
    """Run a bare loop of redis-py under asyncio."""

    async def story() -> Timed:
        async with redis.asyncio.Redis(unix_socket_path=server.path) as client:
            await client.xadd("bare", {"data": PAYLOAD})

            async def loop() -> None:
                for _ in range(calls):
                    await client.xadd("bare", {"data": PAYLOAD})

            return await awaited(calls, loop)

    return asyncio.run(story())


def async_enqueue(server: Server, calls: int) -> Timed:
    """Run a loop of `AsyncQueue.enqueue`."""

    async def story() -> Timed:
        async with AsyncQueue("bench", url=server.url) as jobs:
            await jobs.enqueue(PAYLOAD)

            async def loop() -> None:
                for _ in range(calls):
                    await jobs.enqueue(PAYLOAD)

            return await awaited(calls, loop)

    return asyncio.run(story())


def raw_packed(server: Server, calls: int) -> Timed:
    """Run the hand-packed client with 500 in flight."""
    with Raw(server.path) as raw:
        return timed(10 * calls, lambda: raw.enqueue("bare", [PAYLOAD] * (10 * calls)))


def concurrent(server: Server, calls: int) -> Timed:
    """Run 1,000 loops of awaited calls at once."""

    async def story() -> Timed:
        async with AsyncQueue("bench", url=server.url) as jobs:
            await jobs.enqueue(PAYLOAD)
            each = max(1, calls // 200)

            async def one() -> None:
                for _ in range(each):
                    await jobs.enqueue(PAYLOAD)

            return await awaited(1000 * each, lambda: asyncio.gather(*(one() for _ in range(1000))))

    return asyncio.run(story())


RATES: dict[str, tuple[Callable[[Server, int], Timed], Callable[[Server, int], Timed]]] = {
    "enqueue": (sync_xadd, sync_enqueue),
    "8 threads": (threads_xadd, threads_enqueue),
    "await enqueue": (async_xadd, async_enqueue),
    "1,000 awaits": (raw_packed, concurrent),
}


@contextmanager
def in_thread(read: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run a reader in a thread until its end is asked for."""
    over = threading.Event()
    thread = threading.Thread(target=read, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def bare_reader(url: str, handle: Handle) -> Iterator[None]:
    """Run a thread blocked in redis-py's `XREADGROUP`, which promises nothing."""
    with redis.Redis.from_url(url) as client:
        client.xgroup_create("bare", "g", id="0", mkstream=True)

        def read(over: threading.Event) -> None:
            while not over.is_set():
                reply: Any = client.xreadgroup("g", "c", {"bare": ">"}, count=1, block=100)
                if reply:
                    handle(reply)
                    client.xack("bare", "g", reply[0][1][0][0])

        with in_thread(read):
            yield


@contextmanager
def bare_tasks(url: str, handle: Handle) -> Iterator[None]:
    """Run the same under asyncio with a task for each entry."""
    with redis.Redis.from_url(url) as client:
        client.xgroup_create("bare", "g", id="0", mkstream=True)

    async def run(reply: Any) -> None:
        handle(reply)

    async def story(over: threading.Event) -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            while not over.is_set():
                reply: Any = await client.xreadgroup("g", "c", {"bare": ">"}, count=1, block=100)
                if reply:
                    await asyncio.create_task(run(reply))
                    await client.xack("bare", "g", reply[0][1][0][0])

    with in_thread(lambda over: asyncio.run(story(over))):
        yield


@contextmanager
def commands(url: str, handle: Handle) -> Iterator[None]:
    """Run a thread that sends a worker's blocked read and the lease call after it by redis-py, and
    ignores the answer. It is the floor of a worker's cost.
    """
    with Queue("bench", url=url) as jobs, redis.Redis.from_url(url) as client:
        ops, name = jobs.ops, "w.1"
        for op in (ops.beat(name, 600.0, register=True), ops.lease(name, 1)):
            client.execute_command(*op.wire())
        connection: Any = client.connection_pool.get_connection()

        def read(over: threading.Event) -> None:
            call = 0
            while not over.is_set():
                call += 1
                lease = ops.lease(name, 5, woken=2).packed("EVALSHA", "0" * 16, str(call))
                connection.send_packed_command([pack(ops.wait(0.1)) + lease])
                rung, reply = connection.read_response(), connection.read_response()
                if rung and reply[3]:
                    handle(reply)
                    client.xack(ops.keys.key("jobs"), "workers", reply[3][0])
                    client.xdel(ops.keys.key("jobs"), reply[3][0])

        with in_thread(read):
            yield
        client.connection_pool.release(connection)


READERS: dict[str, Callable[[str, Handle], AbstractContextManager[None]]] = {
    "bare": bare_reader,
    "bare tasks": bare_tasks,
    "commands": commands,
    **WORKERS,
}


def idle(server: Server, way: str, jobs: int) -> list[float]:
    """Return the milliseconds from before a call to the blocked reader, for each of *jobs*."""
    starts: queue.SimpleQueue[float] = queue.SimpleQueue()
    took: list[float] = []
    with Queue("bench", url=server.url) as producer, redis.Redis.from_url(server.url) as client:
        client.flushall()
        producer.enqueue(PAYLOAD)
        producer.admin.purge()

        def bare() -> object:
            return client.xadd("bare", {"data": PAYLOAD})

        call: Callable[[], object] = (
            bare if way.startswith("bare") else lambda: producer.enqueue(PAYLOAD)
        )
        with READERS[way](server.url, lambda _: starts.put(time.perf_counter())):
            time.sleep(0.2)
            for _ in range(jobs):
                time.sleep(0.003)
                before = time.perf_counter()
                call()
                took.append((starts.get(timeout=30) - before) * 1e3)
    return took


def percentiles(took: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    cuts = statistics.quantiles(took, n=100)
    return cuts[49], cuts[98]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--idle", type=int, default=100, help="jobs for an idle worker, each round")
    options = parser.parse_args()
    if options.loop == "uvloop":
        asyncio.set_event_loop_policy(importlib.import_module("uvloop").EventLoopPolicy())
    binary = next(b for b in binaries() if b.name == options.server)
    lines: list[dict[str, object]] = []
    with Server(binary) as server:
        rates: dict[str, list[tuple[Timed, Timed]]] = {way: [] for way in RATES}
        waits: dict[str, list[tuple[float, float]]] = {way: [] for way in READERS}
        for number in range(options.rounds + 1):
            for way, (bare, ours) in RATES.items():
                pair = bare(server, options.calls), ours(server, options.calls)
                if number:  # the first warms up
                    rates[way].append(pair)
                redis.Redis(unix_socket_path=server.path).flushall()
            for way in waits if options.idle else ():
                took = percentiles(idle(server, way, options.idle))
                if number:
                    waits[way].append(took)
    print(f"{options.server}: medians of {options.rounds} interleaved rounds")
    print(
        f"{'way':16}{'bare/s':>10}{'ours/s':>10}{'of bare':>18}{'goal':>7}{'bare us':>9}{'ours us':>9}"
    )
    for way, pairs in rates.items():
        ratios = [ours[0] / bare[0] for bare, ours in pairs]
        row = [
            statistics.median(column)
            for column in zip(*((*bare, *ours) for bare, ours in pairs), strict=True)
        ]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(
            f"{way:16}{row[0]:10,.0f}{row[2]:10,.0f}{spread:>18}{GOALS[way]:7.2f}{row[1]:9.1f}{row[3]:9.1f}"
        )
        lines.append(
            {"way": way, "bare": row[0], "ours": row[2], "ratio": statistics.median(ratios)}
        )
    for way, rounds in waits.items() if options.idle else ():
        p50, p99 = (statistics.median(column) for column in zip(*rounds, strict=True))
        of50, of99 = (
            statistics.median(a[i] / b[i] for a, b in zip(rounds, waits["bare"], strict=True))
            for i in (0, 1)
        )
        print(
            f"idle {way:12} p50 {p50:6.3f} ms ({of50:.2f} of bare)   p99 {p99:6.3f} ms ({of99:.2f} of bare)"
        )
        lines.append(
            {"way": f"idle {way}", "p50": p50, "p99": p99, "of bare p50": of50, "of bare p99": of99}
        )
    for line in lines:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
