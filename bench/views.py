"""The time of a page at a million waiting jobs, and the cost of many viewers of many queues for the
server.

python bench/views.py --server valkey-9.1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import NewJob, Queue
from headrace.web import app
from tests.support.servers import Server, binaries

PAGES = {
    "overview": "", "queue": "queue?name=deep", "a page far behind": "queue?name=deep&cursor=new:0%20({middle}",
    "job": "job?queue=deep&id=i{jobs}", "find": "find?id=i{jobs}", "dead by reason": "dead?name=deep",
    "workers": "workers", "trends": "trends?name=deep&span=2d",
}  # fmt: skip
LOOKS = 7  # of each page: the best is told, as others are at work on this machine
EVERY_S = 2.0  # seconds after which a page asks anew
OTHERS = 199  # queues beside the deep one
VIEWERS = 20
SECONDS = 10.0  # for which they look


def fill(server: Server, jobs: int) -> str:
    """Fill a queue with *jobs*. The last has the id `i<jobs>`. Return the entry in the middle."""
    with Queue("deep", url=server.url, trends=True, dead_limit=2000) as queue:
        queue.enqueue_many([b"x"] * 2000)
        for number, lease in enumerate(queue.lease_many(2000)):
            lease.dead_letter(f"cause {'abc'[number % 3]}")
        middle = ""
        for start in range(0, jobs, 10_000):
            receipts = queue.enqueue_many([b"x" * 100] * min(10_000, jobs - start))
            middle = middle or (receipts[-1].id if start >= jobs // 2 else "")
        queue.enqueue(NewJob(b"last", id=f"i{jobs}"))
    for number in range(OTHERS):
        with Queue(f"other-{number}", url=server.url) as other:
            other.enqueue_many([b"x"] * 10)
    return middle


async def looked(
    client: httpx.AsyncClient, server: Server, pages: Any, path: str
) -> tuple[float, float]:
    """Return the best ms of a page, read anew each time, and the ms of processor of both sides."""
    best = 1e9
    with redis.Redis(unix_socket_path=server.path) as admin:
        before = spent(admin) + time.process_time()
        for _ in range(LOOKS):
            pages._inspector.forget()
            began = time.perf_counter()
            answer = await client.get(path)
            best = min(best, 1000 * (time.perf_counter() - began))
            assert answer.status_code == 200, answer.text
        used = spent(admin) + time.process_time() - before
    return best, 1000 * used / LOOKS


async def viewed(client: httpx.AsyncClient, server: Server) -> float:
    """Return the part of a core of the server that the viewers of the overview take."""

    async def viewer(number: int) -> None:
        await asyncio.sleep(EVERY_S * number / VIEWERS)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            await client.get("")
            await asyncio.sleep(EVERY_S)

    with redis.Redis(unix_socket_path=server.path) as admin:
        before, began = spent(admin), time.monotonic()
        await asyncio.gather(*map(viewer, range(VIEWERS)))
        return (spent(admin) - before) / (time.monotonic() - began)


def spent(admin: redis.Redis) -> float:
    """Return the seconds of processor that the server has had."""
    found: Any = admin.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


async def measured(server: Server, jobs: int) -> dict[str, float]:
    middle, pages = fill(server, jobs), app(server.url)
    transport: Any = httpx.ASGITransport(pages)
    found: dict[str, float] = {}
    async with httpx.AsyncClient(transport=transport, base_url="http://pages.test/") as client:
        for name, path in PAGES.items():
            best, used = await looked(client, server, pages, path.format(middle=middle, jobs=jobs))
            found |= {name: round(best, 1), f"{name}, processor": round(used, 1)}
        found["server, % of a core"] = round(100 * await viewed(client, server), 2)
    await pages.close()
    return found


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default=binaries()[0].name)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    (binary,) = [one for one in binaries() if one.name == options.server]
    with Server(binary) as server:
        found = asyncio.run(measured(server, options.jobs))
    for name, value in found.items():
        print(f"{name:<28}{value:>8}{'' if '%' in name else ' ms'}")
    print(json.dumps({"server": binary.name, "jobs": options.jobs, "queues": OTHERS + 1, **found}))


if __name__ == "__main__":
    main()
