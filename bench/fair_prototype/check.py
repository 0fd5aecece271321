"""Checks of the prototype of the fair pick, in simulated time: shares by weight, a newcomer beside a flood, no remains.

python bench/fair_prototype/check.py
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.servers import Server, binaries

HERE = Path(__file__).parent
KEYS = ["jobs", "shares", "lines", "ready", "held", "settled"]
NOW = "{math.floor(ARGV[#ARGV] / 1000), 1000 * (ARGV[#ARGV] % 1000)}"  # in place of the server's clock


class Queue:
    """The prototype's scripts with the time as their last argument."""

    def __init__(self, client: Any) -> None:
        self.client, self.ids = client, count(1)
        source = (HERE / "lease_fair.lua").read_text().replace("redis.call('TIME')", NOW)
        self._lease = client.register_script(source)
        source = (HERE / "settle_fair.lua").read_text().replace("redis.call('TIME')", NOW)
        self._settle = client.register_script(source.replace("unpack(ARGV)", "unpack(ARGV, 1, #ARGV - 1)"))
        client.flushall()
        client.xgroup_create("jobs", "workers", "0", mkstream=True)

    def enqueue(self, tenant: str) -> None:
        """Add a job."""
        self.client.xadd("jobs", {"data": b"x", "tenant": tenant}, id=f"1700000000000-{next(self.ids)}")

    def lease(self, now: float, limit: int, look: int = 250) -> list[tuple[bytes, str]]:
        """Return (entry, tenant) of each leased job."""
        reply = self._lease(KEYS, ["w", limit, look, "tenant", now])
        return [(entry, fields[3].decode()) for entry, fields in zip(reply[:-1:2], reply[1:-1:2], strict=True)]

    def end(self, entries: list[bytes], now: float) -> None:
        """Complete jobs."""
        self._settle(["jobs", "held", "settled"], [*entries, now])


def shares(queue: Queue, handlers: int, seed: int) -> dict[str, float]:
    """Work off 3,000 jobs of three tenants that always wait, and return their shares of the time."""
    weights, chance = {"ada": 3, "bob": 2, "cyd": 1}, random.Random(seed)
    durations = {"ada": 10.0, "bob": 100.0, "cyd": 1000.0}
    for name, weight in weights.items():
        queue.client.hset("shares", f"w{name}", weight)
        for _ in range(handlers + 1):
            queue.enqueue(name)
    # the weights are deleted with the shares of an empty queue: in the design they are in `terms`
    time, ends, now, free, leases = defaultdict(float), [], 0.0, handlers, 0
    first = True
    while leases < 3000:
        if first:
            queue.client.hset("held", "0-0", "0 0 ada")
            first = False
        for entry, name in queue.lease(now, free):
            ran = chance.uniform(0.2, 1.8) * durations[name]
            time[name] += ran
            heapq.heappush(ends, (now + ran, entry))
            free, leases = free - 1, leases + 1
            queue.enqueue(name)
        now, entry = heapq.heappop(ends)
        queue.end([entry], now)
        free += 1
    return {name: time[name] / sum(time.values()) for name in weights}


def main() -> None:
    """Run the checks, and print what they found."""
    with Server(binaries()[0]) as server:
        client: Any = redis.Redis(unix_socket_path=server.path)
        for handlers in (1, 10):
            found = shares(Queue(client), handlers, 1)
            print(f"{handlers:3} handlers:", {name: round(share, 3) for name, share in found.items()})

        queue = Queue(client)
        for _ in range(5000):
            queue.enqueue("flood")
        while client.xpending("jobs", "workers")["pending"] < 5000:
            queue.lease(0.0, 1, 1000)
        queue.enqueue("quiet")
        print("beside a flood:", Counter(name for _, name in queue.lease(1.0, 2)))

        queue, left = Queue(client), 5000
        for n in range(left):
            queue.enqueue(f"t{n}")
        most = 0
        now = 0.0
        while leased := queue.lease(now, 10, 50):
            now += 10
            queue.end([entry for entry, _ in leased], now)
            most = max(most, client.hlen("shares"))
        print("5,000 values: at most", most, "fields; afterwards", sorted(client.keys()))


main()
