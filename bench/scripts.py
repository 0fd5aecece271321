"""How long each script takes on the server, with a deep queue and with large payloads, by the server's own clock.

python bench/scripts.py --server valkey-9.1 --rounds 5 [--fill deep] [--only find]

deep: 100,000 jobs each dead, delayed, leased and parked, 1,000,000 that wait, of 100 bytes, one in ten with an id;
10KB and 100KB: 1,000 of each; 1MB: 250. A case is a line of `CASES`: a name, and a function from a `Stand` to the
operation to measure, made anew for each round. What it took is what `INFO commandstats` says of that call.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import redis
from attrs import define, field, frozen

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import NewJob
from headrace._model.job import Claim
from headrace._model.settings import QueueSettings
from headrace._protocol.keys import Keys
from headrace._protocol.limits import BYTES_PER_SCRIPT, JOBS_PER_SCRIPT
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from tests.support.servers import Server, binaries

R = TypeVar("R")
DAY = 86400.0
WORKER = "bench.w"


@frozen
class Fill:
    """How much there is of each state."""

    size: int
    """Bytes of a payload."""
    each: int
    """Jobs dead, delayed, leased and parked."""
    waiting: int


FILLS = {
    "deep": Fill(100, 100_000, 1_000_000),
    "10KB": Fill(10_000, 1_000, 1_000),
    "100KB": Fill(100_000, 1_000, 1_000),
    "1MB": Fill(1_000_000, 250, 250),
}


@define
class Stand:
    """A queue that was filled, and what cases ask of it."""

    client: redis.Redis
    fill: Fill
    ops: Ops = field(factory=lambda: Ops(Keys.of("bench/q"), QueueSettings(dead_limit=10**9, max_attempts=None)))
    leased: list[Claim] = field(factory=list[Claim])
    ids: dict[str, list[str]] = field(
        factory=lambda: {"dead": [], "delayed": [], "leased": [], "parked": [], "waiting": []}
    )
    """Some of each state, in their order."""

    def run(self, op: Op[R]) -> R:
        """Send an operation."""
        return op.decode(self.client.execute_command(*op.wire()))

    def payload(self) -> bytes:
        """One of the fill's size."""
        return b"%0*d" % (self.fill.size, 7)

    def claims(self, number: int) -> list[Claim]:
        """Take so many of the jobs that are leased."""
        some, self.leased = self.leased[:number], self.leased[number:]
        return some

    def prepare(self) -> None:
        """Fill the queue."""
        self.client.flushall()
        self.dead()
        self.delay()
        self.leased = self.lease(self.fill.each, "leased")
        self.park()
        self.enqueue(self.fill.waiting, "waiting")

    def enqueue(self, number: int, state: str) -> None:
        payload = self.payload()
        for at in range(0, number, 10 * JOBS_PER_SCRIPT):
            some = range(at, min(at + 10 * JOBS_PER_SCRIPT, number))
            jobs = [NewJob(payload, id=f"{state}-{n}") if n % 10 == 0 else payload for n in some]
            for op in self.ops.batches(jobs):
                for receipt in self.run(op):
                    self.ids[state].append(receipt.id)

    def lease(self, number: int, state: str) -> list[Claim]:
        self.enqueue(number, state)
        claims: list[Claim] = []
        while len(claims) < number:
            grant = self.run(self.ops.lease(WORKER, min(number - len(claims), self.batch), ttl=DAY, duration=DAY))
            assert grant is not None
            assert grant.claims
            claims += grant.claims
        return claims

    @property
    def batch(self) -> int:
        """Jobs of a call that fit."""
        return max(1, min(JOBS_PER_SCRIPT, BYTES_PER_SCRIPT // self.fill.size))

    def dead(self) -> None:
        claims = self.lease(self.fill.each, "dead")
        for some in chunks(claims, self.batch):
            self.run(self.ops.dead_letter([(claim, "no good") for claim in some]))

    def park(self) -> None:
        claims = self.lease(self.fill.each, "parked")
        for some in chunks(claims, self.batch):
            self.run(self.ops.release(some))

    def delay(self) -> None:
        jobs = (NewJob(self.payload(), delay=DAY, id=f"delayed-{n}") for n in range(self.fill.each))
        for some in chunks(list(jobs), self.batch):
            for op in self.ops.batches(some):
                self.ids["delayed"] += [receipt.id for receipt in self.run(op)]


def chunks(items: Sequence[R], size: int) -> Iterator[Sequence[R]]:
    """*items*, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


CASES: Mapping[str, Callable[[Stand], Op[Any]]] = {
    "counts": lambda s: s.ops.counts(),
    "measure": lambda s: s.ops.measure(),
    "workers": lambda s: s.ops.workers(),
    "find, absent": lambda s: s.ops.find("absent"),
    "find, dead": lambda s: s.ops.find(s.ids["dead"][0]),
    "find, waiting": lambda s: s.ops.find(s.ids["waiting"][-1]),
    "find, delayed": lambda s: s.ops.find(s.ids["delayed"][-1]),
    "peek": lambda s: s.ops.listing("waiting", "", 1),
    "list waiting": lambda s: s.ops.listing("waiting", ""),
    "list waiting, new": lambda s: s.ops.listing("waiting", "new:0 -"),
    "list running": lambda s: s.ops.listing("running", ""),
    "list delayed": lambda s: s.ops.listing("delayed", ""),
    "list dead": lambda s: s.ops.listing("dead", ""),
    "position, last": lambda s: s.ops.position(s.ids["waiting"][-1]),
    "position, 999th": lambda s: s.ops.position(s.ids["parked"][min(999, len(s.ids["parked"]) - 1)]),
    "cancel_payload": lambda s: s.ops.cancel_payload(b"absent", "jobs", "-"),
    "cancel_payload, delayed": lambda s: s.ops.cancel_payload(b"absent", "delayed", "0"),
    "repair": lambda s: s.ops.repair(),
    "repair, ids": lambda s: s.ops.repair("ids", "0"),
    "repair, bodies": lambda s: s.ops.repair("bodies", "0"),
    "complete 100": lambda s: s.ops.complete(s.claims(min(100, s.batch))),
}


def measured(stand: Stand, case: Callable[[Stand], Op[Any]], rounds: int) -> list[int]:
    """Microseconds of each round."""
    times: list[int] = []
    for _ in range(rounds):
        op = case(stand)
        stand.client.config_resetstat()
        stand.client.execute_command(*op.wire())
        stats: Any = stand.client.info("commandstats")
        times.append(int(stats["cmdstat_eval"]["usec"]))
    return times


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fill", choices=list(FILLS), action="append")
    parser.add_argument("--only", action="append", help="cases whose names begin so")
    options = parser.parse_args()
    binary = next(b for b in binaries() if b.name == options.server)
    chosen = {name: case for name, case in CASES.items() if not options.only or name.startswith(tuple(options.only))}
    for name in options.fill or FILLS:
        with Server(binary) as server, redis.Redis(unix_socket_path=server.path) as client:
            stand = Stand(client, FILLS[name])
            stand.prepare()
            print(f"{options.server}, {name}: ms on the server, least and most of {options.rounds}")
            for case, make in chosen.items():
                times = measured(stand, make, options.rounds)
                print(f"  {case:28} {min(times) / 1000:10.2f} {max(times) / 1000:10.2f}", flush=True)
                print(json.dumps({"server": options.server, "fill": name, "case": case, "us": times}), file=sys.stderr)


if __name__ == "__main__":
    main()
