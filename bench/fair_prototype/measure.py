"""What the prototype of the fair pick costs the server, beside the same calls without it.

python bench/fair_prototype/measure.py --jobs 20000
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.servers import Server, binaries

HERE = Path(__file__).parent
KEYS = ["jobs", "shares", "lines", "ready", "held", "settled"]
PLAIN = """
local rows = redis.call('XREADGROUP', 'GROUP', 'workers', ARGV[1], 'COUNT', ARGV[2], 'STREAMS', KEYS[1], '>')
local reply = {}
for i = 1, rows and #rows[1][2] or 0 do reply[2 * i - 1], reply[2 * i] = rows[1][2][i][1], rows[1][2][i][2] end
reply[#reply + 1] = 0
return reply
"""
ENDS = "redis.call('XACK', KEYS[1], 'workers', unpack(ARGV)) return redis.call('XDEL', KEYS[1], unpack(ARGV))"


class Bench:
    """A server, the scripts, and the microseconds that they took."""

    def __init__(self, path: str) -> None:
        self.client: Any = redis.Redis(unix_socket_path=path)
        self.scripts = {
            "plain": self.client.script_load(PLAIN),
            "fair": self.client.script_load((HERE / "lease_fair.lua").read_text()),
            "ends": self.client.script_load(ENDS),
            "settle": self.client.script_load((HERE / "settle_fair.lua").read_text()),
        }

    def fill(self, jobs: int, values: int, *, block: bool) -> None:
        """Add jobs, of the values by turns or in blocks."""
        self.client.flushall()
        self.client.xgroup_create("jobs", "workers", "0", mkstream=True)
        pipe = self.client.pipeline(transaction=False)
        for n in range(jobs):
            value = n * values // jobs if block else n % values
            pipe.xadd("jobs", {"data": b"x" * 100, "tenant": f"tenant-{value}"})
            if n % 1000 == 999:
                pipe.execute()
        pipe.execute()

    def took(self) -> float:
        return float(self.client.info("commandstats")["cmdstat_evalsha"]["usec"])

    def lease(self, name: str, limit: int, look: int) -> tuple[list[Any], float, int]:
        """Lease jobs. Returns them, the microseconds, and 1 if there is more to look at."""
        before = self.took_or_0()
        if name == "plain":
            reply = self.client.evalsha(self.scripts["plain"], 1, "jobs", "w", limit)
        else:
            reply = self.client.evalsha(self.scripts["fair"], 6, *KEYS, "w", limit, look, "tenant")
        return reply[:-1], self.took_or_0() - before, reply[-1]

    def took_or_0(self) -> float:
        stats = self.client.info("commandstats")
        return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))

    def end(self, name: str, entries: list[bytes]) -> float:
        before = self.took_or_0()
        if name == "plain":
            self.client.evalsha(self.scripts["ends"], 1, "jobs", *entries)
        else:
            self.client.evalsha(self.scripts["settle"], 3, "jobs", "held", "settled", *entries)
        return self.took_or_0() - before

    def drain(self, name: str, limit: int, look: int, calls: int) -> dict[str, float]:
        """Lease and settle, *calls* times, or until there is none. Returns the microseconds a job."""
        leases, ends, jobs, order = 0.0, 0.0, 0, Counter[bytes]()
        for _ in range(calls):
            reply, spent, _more = self.lease(name, limit, look)
            if not reply:
                break
            leases += spent
            entries = reply[::2]
            order.update(fields[3] for fields in reply[1::2])
            jobs += len(entries)
            ends += self.end(name, entries)
        return {"lease": leases / jobs, "end": ends / jobs, "jobs": jobs, "values": len(order)}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    given = parser.parse_args()
    with Server(binaries()[0]) as server:
        bench = Bench(server.path)
        print("us of the server a job: lease, end of the lease")
        for values in (1, 100, 10_000):
            for limit in (1, 10, 100):
                calls = 1000 if limit == 1 else 200
                bench.fill(given.jobs, values, block=False)
                plain = bench.drain("plain", limit, limit, calls)
                bench.fill(given.jobs, values, block=False)
                direct = bench.drain("fair", limit, limit, calls)  # no backlog: what is read is handed out
                bench.fill(given.jobs, values, block=False)
                filing, looks = 0.0, 0
                more = 1
                while more:
                    _, spent, more = bench.lease("fair", 1, 1000)
                    filing += spent
                    looks += 1
                memory = bench.client.info("memory")["used_memory"]
                lines = bench.drain("fair", limit, 1, calls)
                print(
                    f"{values:6} values, {limit:3} a call: plain {plain['lease']:6.2f} {plain['end']:5.2f}"
                    f" · direct {direct['lease']:6.2f} {direct['end']:5.2f}"
                    f" · from lines {lines['lease']:6.2f} {lines['end']:5.2f}"
                    f" · into lines {filing / given.jobs:5.2f} ({filing / looks / 1000:.1f} ms a look)"
                    f" · {memory / given.jobs:.0f} bytes a job"
                )


main()
