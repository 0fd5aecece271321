"""The time of each script on the server, with deep queues and large payloads, by the server's own
clock.

python bench/scripts.py --server valkey-9.1 --rounds 5 [--fill deep] [--only find]

deep: 100,000 jobs each dead, delayed, leased and parked, 1,000,000 that wait, of 100 bytes, one in
ten with an id; levels: 10,000 of each, and 10,000 more at each of ten levels; 10KB, 100KB: 1,000 of
each; 1MB: 250. What a call took is what `INFO commandstats` says of it, or the server's processor
time, where that is less.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import redis
from script_cases import CASES
from stands import FILLS, Stand

from headrace._protocol.op import Op
from tests.support.servers import Server, binaries


def measured(stand: Stand, case: Callable[[Stand], Op[Any]], rounds: int) -> list[int]:
    """Return the microseconds of each round. They are the time of the call, or its processor time
    if other processes ran.
    """
    times: list[int] = []
    for _ in range(rounds):
        op = case(stand)
        stand.client.script_load(op.script.source)
        stand.client.config_resetstat()
        before = used(stand.client)
        stand.client.execute_command(*op.wire("EVALSHA"))
        spent = used(stand.client) - before
        stats: Any = stand.client.info("commandstats")
        times.append(min(int(stats["cmdstat_evalsha"]["usec"]), spent))
    return times


def used(client: Any) -> int:
    """Return the processor time of the thread that runs scripts, in microseconds."""
    info: Any = client.info("cpu")
    seconds = [
        info.get(f"used_cpu_{kind}_main_thread", info[f"used_cpu_{kind}"])
        for kind in ("user", "sys")
    ]
    return round(1e6 * float(sum(seconds)))


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fill", choices=list(FILLS), action="append")
    parser.add_argument("--only", action="append", help="cases whose names begin so")
    options = parser.parse_args()
    binary = next(b for b in binaries() if b.name == options.server)
    chosen = {
        name: case
        for name, case in CASES.items()
        if not options.only or name.startswith(tuple(options.only))
    }
    for name in options.fill or FILLS:
        with Server(binary) as server, redis.Redis(unix_socket_path=server.path) as client:
            stand = Stand(client, FILLS[name])
            stand.prepare()
            print(f"{options.server}, {name}: ms on the server, least and most of {options.rounds}")
            for case, make in chosen.items():
                times = measured(stand, make, options.rounds)
                print(
                    f"  {case:36} {min(times) / 1000:10.2f} {max(times) / 1000:10.2f}", flush=True
                )
                print(
                    json.dumps({"server": options.server, "fill": name, "case": case, "us": times}),
                    file=sys.stderr,
                )


if __name__ == "__main__":
    main()
