"""The costs of durable steps. A step and a child are measured on the server, a step in the client,
a record in bytes, and jobs without steps.

python bench/steps.py --server valkey-9.1 --rounds 40 [--before CHECKOUT] [--batch 250]

Microseconds a call on the server, by the times of the scripts in `commandstats`, or by the server's
processor time where that is less; the tenth percentile of the rounds. Bytes a record, by `MEMORY
USAGE`, beside its value, with its share of the run's own field. Of the client: processor time of
`job.step` in a program that does nothing else. With --before jobs without steps are enqueued,
leased and completed by turns, by this checkout and by another one, each by its own operations and
scripts in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis
from attrs import evolve
from kinds import Scripts, metered, tenth

from headrace import AsyncQueue, NewJob, Queue
from headrace._model.settings import QueueSettings
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.script import names, script
from tests.support.servers import Server, binaries

VALUE = b"b" + b"x" * 99
PLAIN = ("plain", "id")
PARTS = 4  # of a round that count; one more comes before them
RUNS, RECORDS = 25, 10  # jobs of a round, and steps of each
CHILDREN = 4  # of each job


class Runs:
    """Leased jobs, and the calls of their handlers."""

    def __init__(self, client: Any) -> None:
        from headrace._protocol.features.runs import ops as step_ops

        self.ops, self.client, self.made = (
            Ops(Keys.of("steps", "headrace"), QueueSettings()),
            client,
            step_ops,
        )
        client.flushdb()
        self.send(self.ops.beat("w", 600.0, register=True))
        self.send(
            self.ops.enqueue([self.ops.item(NewJob(b"x", id=f"job-{n}")) for n in range(RUNS)])
        )
        self.claims = self.send(self.ops.lease("w", RUNS, ttl=600.0)).claims

    def send(self, op: Op[Any]) -> Any:
        """Run one script."""
        return op.decode(self.client.execute_command(*op.wire("EVAL")))

    def times(self, ops: list[Op[Any]]) -> float:
        """Return the microseconds that each of these calls takes the server, as recorded calls of a
        lane."""
        pipe = self.client.pipeline(transaction=False)
        self.client.script_load(ops[0].script.source)
        for number, op in enumerate(ops):
            pipe.execute_command(*op.wire("EVALSHA", "lane", str(number)))
        _, took = metered(self.client, pipe.execute)
        return took / len(ops)

    def round(self) -> dict[str, float]:
        """Take the steps of all jobs and suspend them. Return the times of each script, and the
        bytes of a record."""
        key, made, ops = self.ops.keys.key("steps"), self.made, self.ops
        took: dict[str, float] = {}
        took["for comparison: renew, of one lease"] = self.times(
            [ops.renew([claim]) for claim in self.claims]
        )
        steps = [
            made.record(ops, claim, 0, f"step-{n}", VALUE, ended=True, took=0.01, ttl=600.0)
            for n in range(RECORDS)
            for claim in self.claims
        ]
        took["step, of a job with a heartbeat"] = self.times(
            [
                made.record(ops, claim, 0, f"beat-{n}", VALUE, ended=True, took=0.01, ttl=0.0)
                for n in range(RECORDS)
                for claim in self.claims
            ]
        )
        self.client.delete(key)
        took["step, of a lease by hand"] = self.times(steps)
        used = self.client.execute_command("MEMORY", "USAGE", key, "SAMPLES", 0)
        took["bytes of a record beside its value"] = used / len(steps) - len(VALUE)
        took[f"steps, {RECORDS} records"] = self.times(
            [made.read(ops, claim) for claim in self.claims]
        )
        took["wait"] = self.times(
            [made.wait(ops, claim, "wait", "wait", "") for claim in self.claims]
        )
        took["suspend"] = self.times(
            [made.suspend(ops, claim, [RECORDS + 1]) for claim in self.claims]
        )
        took["signal"] = self.times(
            [made.signal(ops, claim.job.id, "wait", "ada", VALUE) for claim in self.claims]
        )
        claims = self.send(ops.lease("w", RUNS, ttl=600.0)).claims
        took["complete, with records"] = self.times([ops.complete([claim]) for claim in claims])
        assert not self.client.exists(key)
        return took

    def children(self) -> dict[str, float]:
        """Start children of all jobs, of each as many as it waits for, and complete them. Return
        the times of each script, and of the same number of jobs with ids."""
        made, ops = self.made, self.ops
        there = evolve(ops, keys=Keys.of("steps/c", "headrace"))
        self.send(there.beat("w", 600.0, register=True))
        took: dict[str, float] = {}
        starts = [
            made.child(
                ops, claim, f"c-{n}", NewJob(VALUE, queue="steps/c", id=f"{claim.job.id}/{n}")
            )
            for n in range(CHILDREN)
            for claim in self.claims
        ]
        took["child, of the start"] = self.times(starts)
        numbers = range(1, 1 + CHILDREN)
        suspended = [made.suspend(ops, claim, numbers, every=True) for claim in self.claims]
        took["suspend, for its children"] = self.times(suspended)
        took["child, of the end"] = self.completed(there)
        woken = self.send(ops.lease("w", RUNS, ttl=600.0)).claims
        assert len(woken) == RUNS
        known = self.send(made.read(ops, woken[0]))
        assert [one.outcome for one in known] == ["completed"] * CHILDREN
        jobs = [NewJob(VALUE, id=f"plain-{n}") for n in range(len(starts))]
        took["for comparison: enqueue, with an id"] = self.times(
            [there.enqueue([there.item(job)]) for job in jobs]
        )
        took["for comparison: complete, with a result"] = self.completed(there)
        return took

    def afar(self) -> dict[str, float]:
        """Do the same with children in another slot, and record their ends one by one."""
        made, ops = self.made, self.ops
        there = evolve(ops, keys=Keys.of("afar", "headrace"))
        self.send(there.beat("w", 600.0, register=True))
        took: dict[str, float] = {}
        job = NewJob(VALUE, queue="afar")
        names = [(claim, f"c-{n}") for n in range(CHILDREN) for claim in self.claims]
        asked = [
            made.child_away(ops, claim, name, there.keys, f"{claim.job.id}/{name}")
            for claim, name in names
        ]
        took["child_away"] = self.times(asked)
        records = {}
        for claim in self.claims:
            known = self.send(made.read(ops, claim))
            records |= {(claim.entry, one.name): one for one in known}
        starts = [made.adopt(ops, claim, records[claim.entry, name], job) for claim, name in names]
        took["adopt"] = self.times(starts)
        took["child, of the end in another slot"] = self.completed(there)
        home = there.keys.prefix
        found = self.send(made.reports(ops, home, []))
        ends = [
            made.Reports(found.open, found.words[at : at + 2])
            for at in range(0, len(found.words), 2)
        ]
        assert len(ends) == len(names)
        took["learn, of one end"] = self.times([made.learn(ops, home, end) for end in ends])
        looks = [made.reports(ops, home, []) for _ in range(10)]
        took["reports, of one of many ends"] = self.times(looks) / len(ends)
        return took

    def completed(self, ops: Ops) -> float:
        """Lease all jobs of a queue and complete each with a result, by a call of its own."""
        claims = self.send(ops.lease("w", RUNS * CHILDREN, ttl=600.0)).claims
        assert len(claims) == RUNS * CHILDREN
        return self.times([ops.complete([one], results={one.entry: VALUE}) for one in claims])


def over(rows: Mapping[str, float]) -> float:
    """Return the microseconds of a child over an enqueue with an id, its completion, and a
    signal."""
    child = rows["child, of the start"] + rows["child, of the end"]
    plain = rows["for comparison: enqueue, with an id"]
    return child - plain - rows["for comparison: complete, with a result"] - rows["signal"]


def value() -> bytes:
    """Return the value of a step."""
    return VALUE


def client_of(server: Server, number: int) -> tuple[float, float]:
    """Return the processor time in microseconds of a `job.step` in threads and in asyncio."""
    with Queue("client", url=server.url) as queue:
        queue.enqueue_many([b"x", b"x"])
        one = queue.lease()
        assert one is not None
        begin = time.process_time()
        for step in range(number):
            one.job.step(f"step-{step}", value)
        threads = time.process_time() - begin

    async def awaited() -> float:
        async with AsyncQueue("client", url=server.url) as queue:
            lease = await queue.lease()
            assert lease is not None
            begin = time.process_time()
            for step in range(number):
                await lease.job.step(f"step-{step}", value)  # type: ignore[misc]
            return time.process_time() - begin

    return 1e6 * threads / number, 1e6 * asyncio.run(awaited()) / number


def turns(path: str) -> None:
    """Run jobs without steps from end to end whenever a line asks for it, as the other side of
    `Turns`."""
    sources = {name: script(name).source for name in names()}
    with redis.Redis(unix_socket_path=path) as client:
        for line in sys.stdin:
            kind, batch = line.split()
            client.flushdb()
            made = Scripts(client, kind, sources)
            made.part(int(batch))
            parts = [made.part(int(batch)) for _ in range(PARTS)]
            print(
                json.dumps(
                    [sum(column) / PARTS / int(batch) for column in zip(*parts, strict=True)]
                ),
                flush=True,
            )


class Turns:
    """A process with the library of a checkout."""

    def __init__(self, checkout: Path, server: Server) -> None:
        paths = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
        command = [sys.executable, __file__, "--turns", str(server.path)]
        self._process = subprocess.Popen(
            command, env=paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def part(self, kind: str, batch: int) -> list[float]:
        """Return the microseconds a job to enqueue, lease and complete a batch of a kind."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {batch}\n")
        took: list[float] = json.loads(self._process.stdout.readline())
        return took

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(stack: ExitStack, server: Server, before: Path, rounds: int, batch: int) -> None:
    """Print the costs of jobs without steps, before and now."""
    checkouts = {"before": before, "now": Path(__file__).parent.parent}
    sides = {name: Turns(checkout, server) for name, checkout in checkouts.items()}
    for side in sides.values():
        stack.callback(side.close)
    took: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(rounds):
        for name in sorted(sides, reverse=number % 2 == 0):
            for kind in PLAIN:
                took.setdefault((name, kind), []).append(sides[name].part(kind, batch))
    print(f"without steps: us a job, {batch} a call: enqueue + lease + complete")
    for kind in PLAIN:
        columns = {
            name: [tenth(column) for column in zip(*took[name, kind], strict=True)]
            for name in sides
        }
        for name, row in columns.items():
            print(
                f"  {kind:6} {name:7} {' + '.join(f'{one:5.2f}' for one in row)} = {sum(row):5.2f}"
            )
        changes = [
            100 * (now / was - 1)
            for was, now in zip(columns["before"], columns["now"], strict=True)
        ]
        whole = 100 * (sum(columns["now"]) / sum(columns["before"]) - 1)
        print(
            f"  {kind:6} change  {' , '.join(f'{change:+.1f} %' for change in changes)} ; in all {whole:+.1f} %"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch", type=int, default=250, help="jobs a call, of jobs without steps")
    parser.add_argument(
        "--before", type=Path, help="a checkout whose library takes turns with ours"
    )
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns:
        turns(options.turns)
        return
    binary = next(b for b in binaries() if b.name == options.server)
    with ExitStack() as stack:
        server = stack.enter_context(Server(binary))
        client = stack.enter_context(redis.Redis(unix_socket_path=server.path))
        rounds = [
            Runs(client).round() | Runs(client).children() | Runs(client).afar()
            for _ in range(options.rounds)
        ]
        print(f"{options.server}: us a call; the tenth percentile of {options.rounds} rounds")
        rows = {name: tenth([one[name] for one in rounds]) for name in rounds[0]}
        rows["a child, over an enqueue and a signal"] = over(rows)
        for name, us in rows.items():
            print(f"  {name:42} {us:7.2f}")
        client.flushdb()
        threads, tasks = (
            tenth(column)
            for column in zip(*(client_of(server, 400) for _ in range(10)), strict=True)
        )
        print(f"  us of the client: threads {threads:.1f}, asyncio {tasks:.1f}")
        if options.before:
            compare(stack, server, options.before, options.rounds, options.batch)


if __name__ == "__main__":
    main()
