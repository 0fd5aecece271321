"""The first paint of the pages in a browser, the cost of an update of each, and their weight, with
200 queues.

python bench/pages.py --server valkey-9.1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import redis
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import NewJob, Queue
from headrace.web import app
from tests.support.program import started
from tests.support.servers import Server, binaries

PAGES = {
    "overview": "", "queue": "queue?name=q-0", "dead of a queue": "queue?name=q-0&state=dead",
    "job": "job?queue=q-0&id=a",
    "dead letters": "dead", "workers": "workers", "schedules": "schedules", "flows": "flows", "tenants": "tenants",
}  # fmt: skip
LOOKS = 5  # of each page: the median is told
EVERY_S = 2.05  # seconds between two updates
FIRST_MS = 300  # for the first paint, at most
UPDATE_MS = 20  # of processor for an update, at most, on either side
WEIGHT_BYTES = 45_000  # of styles and scripts, at most


def fill(server: Server, queues: int) -> None:
    """Make *queues* with waiting, running, delayed and dead jobs."""
    for number in range(queues):
        fair: dict[str, Any] = {"fair": "tenant"} if number % 50 == 0 else {}
        with Queue(f"q-{number}", url=server.url, history=100, trends=True, **fair) as queue:
            queue.enqueue_many(
                [
                    NewJob(b"x", headers={"kind": f"k{n % 3}", "tenant": f"t{n % 5}"})
                    for n in range(30)
                ]
            )
            for lease in queue.lease_many(5):
                lease.dead_letter(f"cause {number % 7}")
            for lease in queue.lease_many(5):
                lease.complete()
            queue.lease_many(2)
            queue.enqueue_many([NewJob(b"late", delay=3600)] * 3)
            queue.enqueue(b"a", id="a")


def spent(admin: redis.Redis) -> float:
    """Return the seconds of processor time of the server so far."""
    found: Any = admin.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"])


async def updates(server: Server) -> dict[str, tuple[float, float]]:
    """Return the ms of processor of server and program for an update of each page while it is
    open."""
    pages: Any = app(server.url)
    found: dict[str, tuple[float, float]] = {}
    transport: Any = httpx.ASGITransport(pages)
    with redis.Redis(unix_socket_path=server.path) as admin:
        async with httpx.AsyncClient(transport=transport, base_url="http://pages.test/") as client:
            for name, path in PAGES.items():
                assert (await client.get(path)).status_code == 200, path
                looks: list[tuple[float, float]] = []
                for _ in range(LOOKS):
                    await asyncio.sleep(EVERY_S)
                    before = spent(admin), time.process_time()
                    await client.get(path)
                    after = spent(admin), time.process_time()
                    looks.append((1000 * (after[0] - before[0]), 1000 * (after[1] - before[1])))
                found[name] = (
                    statistics.mean(one[0] for one in looks),
                    statistics.median(one[1] for one in looks),
                )
    await pages.close()
    return found


PAINTED = """() => new Promise(done => new PerformanceObserver(list => {
    for (const one of list.getEntriesByName("first-contentful-paint")) done(one.startTime);
}).observe({type: "paint", buffered: true}))"""
FILES = "[...document.querySelectorAll('script[src], link[rel=stylesheet]')].map(one => one.src || one.href)"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def paints(server: Server) -> tuple[dict[str, float], int]:
    """Return the ms until each page is painted in Chromium, and the bytes of styles and scripts."""
    weight: dict[str, int] = {}
    found: dict[str, float] = {}
    with started("web", "--port", "0", url=server.url) as program, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        assert program.stdout is not None
        page.goto(program.stdout.readline().decode().strip())
        root = page.url
        for name, path in PAGES.items():
            times: list[float] = []
            for _ in range(LOOKS):
                page.goto(root + path)
                times.append(page.evaluate(PAINTED))
            found[name] = statistics.median(times)
            for url in page.evaluate(FILES):
                weight[url] = len(page.request.get(url).body())
        browser.close()
    return found, sum(weight.values())


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default=binaries()[0].name)
    parser.add_argument("--queues", type=int, default=200)
    options = parser.parse_args()
    (binary,) = [one for one in binaries() if one.name == options.server]
    with Server(binary, tcp=True) as server:
        fill(server, options.queues)
        costs = asyncio.run(updates(server))
        painted, weight = paints(server)
    print(f"{'page':<18}{'first paint':>14}{'server':>10}{'program':>10}")
    for name, (there, here) in costs.items():
        over = painted[name] > FIRST_MS or there > UPDATE_MS
        print(
            f"{name:<18}{painted[name]:>11.0f} ms{there:>7.1f} ms{here:>7.1f} ms{'  over its bar' if over else ''}"
        )
    print(f"styles and scripts: {weight:,} bytes of {WEIGHT_BYTES:,}")
    print(
        json.dumps(
            {
                "server": binary.name,
                "queues": options.queues,
                "paint": painted,
                "update": costs,
                "bytes": weight,
            }
        )
    )


if __name__ == "__main__":
    main()
