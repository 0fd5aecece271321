"""The costs of kinds of jobs on the server, by turns. Jobs are added, leased and completed. Bare
commands are the floor.

python bench/kinds.py --server valkey-9.1 --rounds 60 [--before CHECKOUT] [--kinds plain,id]
[--batch 250]

Microseconds a job, by the times of the scripts in `commandstats`, or by the server's processor time
where that is less. The bare commands are those that write and remove what a job of the kind
consists of, with as many jobs each as there may be: no script checks, counts or records anything.
With --before the scripts of another checkout take turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from scripts import used

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import NewJob
from headrace._model.settings import QueueSettings
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.script import names, script
from tests.support.servers import Server, binaries

PAYLOAD = b"x" * 100
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KINDS: dict[str, Callable[[int], Any]] = {
    "plain": lambda _: PAYLOAD,
    "traceparent": lambda _: NewJob(PAYLOAD, headers={"traceparent": PARENT}),
    "id": lambda i: NewJob(PAYLOAD, id=f"job-{i}"),
    "level": lambda _: NewJob(PAYLOAD, priority=1),
    "delay": lambda _: NewJob(PAYLOAD, delay=0.001),
}
PARTS = 4  # of a round that count; one more comes before them
Times = tuple[float, float, float]


def metered(client: Any, call: Callable[[], Any]) -> tuple[Any, float]:
    """Make a call and return the microseconds that it took the server."""
    client.config_resetstat()
    before = used(client)
    reply = call()
    spent = used(client) - before
    rows: Any = client.info("commandstats")
    scripts = rows.get("cmdstat_evalsha")
    told = (
        scripts["usec"]
        if scripts
        else sum(row["usec"] for name, row in rows.items() if name != "cmdstat_info")
    )
    return reply, min(told, spent) if spent > 0 else told


class Scripts:
    """A queue of one kind of jobs, with the scripts of a checkout."""

    def __init__(self, client: Any, kind: str, sources: Mapping[str, str]) -> None:
        self._client, self._kind, self._sources, self._calls = client, kind, sources, 0
        self._ops = Ops(
            Keys.of("kinds", "headrace"), QueueSettings(priorities=2 if kind == "level" else 1)
        )
        self._run(self._ops.beat("w", 600.0, register=True))

    def _run(self, op: Op[Any]) -> tuple[Any, float]:
        self._calls += 1
        wire = list(op.wire("EVALSHA", "lane", str(self._calls)))
        wire[1] = self._client.script_load(self._sources[op.script.name])
        reply, took = metered(self._client, lambda: self._client.execute_command(*wire))
        return op.decode(reply), took

    def part(self, batch: int) -> Times:
        """Take a batch of jobs from end to end."""
        make = KINDS[self._kind]
        _, added = self._run(self._ops.enqueue([self._ops.item(make(i)) for i in range(batch)]))
        time.sleep(0.003 if self._kind == "delay" else 0)  # until all are due
        left, leased, completed = batch, 0.0, 0.0
        while left:
            grant, took = self._run(self._ops.lease("w", batch, ttl=600.0))
            leased += took
            if grant.claims:
                won, took = self._run(self._ops.complete(grant.claims))
                completed += took
                left -= sum(won)
        return added, leased, completed


class Bare:
    """The bare commands of a job of a kind."""

    def __init__(self, client: Any, kind: str) -> None:
        self._client, self._kind = client, kind
        client.xgroup_create("jobs", "g", id="0", mkstream=True)

    def _add(self, pipe: Any, stream: str, fields: Mapping[str, Any], number: int) -> None:
        for _ in range(number):
            pipe.xadd(stream, fields)

    def _sent(self, pipe: Any) -> tuple[Any, float]:
        return metered(self._client, pipe.execute)

    def part(self, batch: int) -> Times:
        """Like `Scripts.part`."""
        client, kind = self._client, self._kind
        ids = [f"job-{i}" for i in range(batch)]
        marks = dict.fromkeys(ids, "1795434525000-0")
        whole: dict[str, Any] = {"data": PAYLOAD}
        if kind == "traceparent":
            whole["traceparent"] = PARENT
        elif kind != "plain":
            whole |= {"id": "job-100"}
        pipe = client.pipeline(transaction=False)
        if kind == "delay":
            pipe.hset("bodies", mapping=dict.fromkeys(ids, PAYLOAD))
            pipe.zadd("delayed", dict.fromkeys(ids, 1.0))
        elif kind == "level":
            self._add(pipe, "level", {"data": PAYLOAD, "headrace-priority": 1}, batch)
        else:
            self._add(pipe, "jobs", whole, batch)
        if kind in ("id", "delay"):
            pipe.hset("ids", mapping=marks)
        _, added = self._sent(pipe)
        if kind == "level":
            pipe.xrange("level", count=batch)
            pipe.xtrim("level", maxlen=0, approximate=False)
        elif kind == "delay":
            pipe.zrange("delayed", 0, 1, byscore=True, offset=0, num=batch)
            pipe.hmget("bodies", ids)
            pipe.zrem("delayed", *ids)
            pipe.hdel("bodies", *ids)
        if kind in ("level", "delay"):
            self._add(pipe, "jobs", whole | {"enq": "1795434525000"}, batch)
            pipe.hset("ids", mapping=marks)
        pipe.xreadgroup("g", "w", {"jobs": ">"}, count=batch)
        replies, leased = self._sent(pipe)
        entries = [entry for entry, _ in replies[-1][0][1]]
        pipe.xack("jobs", "g", *entries)
        pipe.xdel("jobs", *entries)
        if kind not in ("plain", "traceparent"):
            pipe.hdel("ids", *ids)
        _, completed = self._sent(pipe)
        return added, leased, completed


TOLD = "import json; from headrace._protocol.script import *; print(json.dumps({n: script(n).source for n in names()}))"


def sources_of(checkout: Path) -> dict[str, str]:
    """Return the scripts of another checkout."""
    paths = {"PYTHONPATH": str(checkout / "src")}
    run = subprocess.run([sys.executable, "-c", TOLD], env=paths, capture_output=True, check=True)
    found: dict[str, str] = json.loads(run.stdout)
    return found


def tenth(values: Sequence[float]) -> float:
    """Return the tenth percentile, because other processes only add time."""
    return sorted(values)[len(values) // 10]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--batch", type=int, default=250, help="jobs a call")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--before", type=Path, help="a checkout whose scripts take turns with ours")
    options = parser.parse_args()
    binary = next(b for b in binaries() if b.name == options.server)
    kinds, checkouts = (
        options.kinds.split(","),
        {"scripts": {name: script(name).source for name in names()}},
    )
    if options.before:
        checkouts = {"before": sources_of(options.before), **checkouts}
    took: dict[tuple[str, str], list[Times]] = {}
    with Server(binary) as server, redis.Redis(unix_socket_path=server.path) as client:
        for number in range(options.rounds):
            for way in sorted([*checkouts, "bare"], reverse=number % 2 == 0):
                for kind in kinds:
                    client.flushdb()
                    made = (
                        Bare(client, kind)
                        if way == "bare"
                        else Scripts(client, kind, checkouts[way])
                    )
                    made.part(options.batch)
                    parts = [made.part(options.batch) for _ in range(PARTS)]
                    sums = [
                        sum(column) / PARTS / options.batch for column in zip(*parts, strict=True)
                    ]
                    took.setdefault((way, kind), []).append((sums[0], sums[1], sums[2]))
    print(
        f"{options.server}: us a job, {options.batch} a call; the tenth percentile of {options.rounds} rounds"
    )
    for way in [*checkouts, "bare"]:
        for kind in kinds:
            of = {
                name: tenth([sum(times) for times in took[way, name]]) for name in {kind, kinds[0]}
            }
            row = " + ".join(
                f"{tenth(column):5.2f}" for column in zip(*took[way, kind], strict=True)
            )
            print(
                f"{way:8} {kind:12} {row} = {of[kind]:5.2f}   {of[kind] / of[kinds[0]]:4.1f} of {kinds[0]}"
            )


if __name__ == "__main__":
    main()
