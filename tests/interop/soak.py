"""The soak. Producers and workers in two languages share a queue, and some fail on purpose. Their
logs are judged.

    python -m tests.interop.soak '{"role": …}'

is an actor, the twin of soak.js. Each appends to a file outside Redis, a line per event:

    up WHO                 it has started
    add WHO ID ADDED       a receipt
    run WHO ID TOKEN       a job was handed out
    end WHO ID VERDICT     what `complete` said

An actor that dies does so before it completes, never between that and writing the verdict.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

from attrs import define, field

from headrace import NewJob, Queue


@define
class Actor:
    """A process of the soak."""

    role: str
    who: str
    seed: int
    socket: str
    log: str
    queue: str
    jobs: int
    mine: int
    lease: float
    heartbeat: float
    timeout: float
    protocol: str = ""
    over: bool = False
    dice: random.Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def write(self, *words: object) -> None:
        with Path(self.log).open("a", encoding="utf-8") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def stop(self, *_: object) -> None:
        self.over = True

    def play(self) -> None:
        """Act until a stop, or until there is no more to do."""
        signal.signal(signal.SIGTERM, self.stop)
        with Queue(self.queue, url=f"unix://{self.socket}", lease=self.lease / 1000) as queue:
            self.write("up", self.who)
            {"produce": self.produce, "rough": self.rough}[self.role](queue)

    def produce(self, queue: Queue) -> None:
        """Enqueue half of the ids, and half of the other half. Some are twice in one call."""
        n = 0
        while n < self.jobs:
            part: list[str] = []
            for _ in range(min(self.jobs - n, self.dice.randint(1, 6))):
                if n % 2 == self.mine or self.dice.random() < 0.5:
                    part.append(f"job-{n}")
                if self.dice.random() < 0.1 and part:
                    part.append(part[0])
                n += 1
            for receipt in queue.enqueue_many(
                [NewJob(f"{self.who} {name}", id=name) for name in part]
            ):
                self.write("add", self.who, receipt.id, int(receipt.added))
            time.sleep(0.015 * self.dice.random())

    def rough(self, queue: Queue) -> None:
        """Work by hand without a heartbeat during the work."""
        ops, run = queue.ops, queue._executor.run
        timeout = self.timeout / 1000
        worker = ""
        tidied = 0.0
        left = self.dice.randint(40, 80)  # after so many jobs it dies
        while not self.over:
            if not worker or not run(ops.beat(worker, timeout)):
                worker = f"{self.who}.{secrets.token_hex(6)}"
                run(ops.beat(worker, timeout, register=True))
            if time.monotonic() - tidied >= self.heartbeat / 1000:
                tidied = time.monotonic()
                run(ops.reclaim(worker, timeout))
            grant = run(ops.lease(worker, 4))
            if grant is None or not grant.claims:
                time.sleep(0.02)
                continue
            for claim in grant.claims:
                self.write("run", self.who, claim.job.id, claim.token)
                chance = self.dice.random()
                time.sleep(0.01 * self.dice.random() if chance < 0.99 else 2.5 * self.lease / 1000)
                left -= 1
                dying = left <= 0 and not self.over
                if dying and self.dice.random() < 0.5:
                    os._exit(3)
                elif dying:
                    os.kill(os.getpid(), signal.SIGKILL)
                if chance < 0.05:
                    run(ops.release([claim]))
                elif chance < 0.1:
                    run(ops.retry([(claim, 0.05 * self.dice.random(), True, "again")]))
                else:
                    for _ in range(2 if chance < 0.2 else 1):
                        (verdict,) = run(ops.complete([claim]))
                        self.write("end", self.who, claim.job.id, int(verdict))
        more = "1"
        while more == "1":
            _, more = run(ops.leave(worker))


def lines(log: Path, kind: str) -> list[list[Any]]:
    """Return the lines of a kind in order. A line that was cut short by its writer's death is left
    out."""
    text = log.read_text("utf-8") if log.exists() else ""
    rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [row[1:] for row in rows if row and row[0] == kind]


def main() -> None:
    """Be the actor that the argument describes."""
    Actor(**json.loads(sys.argv[1])).play()


if __name__ == "__main__":
    main()
