"""The processes that chaos befalls: producers, loops over a plain queue, and workers of both engines.

Each writes what it learns to a file outside Redis, a line per event, before it goes on:

    try WHO PAYLOAD            about to enqueue
    ack WHO PAYLOAD ID ADDED   the receipt
    off WHO ID VERDICT         what cancel() said
    job WHO PAYLOAD ID TOKEN   handed out to a loop
    run WHO PAYLOAD ID ATTEMPT handed to a handler, which does not know its token: the attempt is at most that
    ask WHO ID TOKEN           about to do what only the present holder may
    did WHO ID TOKEN VERDICT   the answer
    end WHO ID TOKEN VERDICT   what complete() said
    bad WHO ERROR              it ended by an error that is none of the transport
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from redis import exceptions

from headrace import (
    AsyncWorker,
    Job,
    Lease,
    NewJob,
    Queue,
    Release,
    Retry,
    RetryLater,
    Worker,
    WorkerLost,
)
from tests.chaos import mutants

HEARTBEAT, TIMEOUT, LEASE = 0.3, 1.2, 1.0
QUEUE = "chaos"
PACE = 0.02  # seconds between two calls of a producer, or two jobs of a loop; half of it on average
DAWDLE = 0.01  # of so many jobs, a loop takes longer than its lease
BACKLOG = 300  # waiting jobs at which producers pause, so that a slow machine has no more to do than a fast one
GAVE_UP = 75  # the exit code of a process that saw no end of the faults
LIFE = 300  # seconds after which a process ends whatever happens


@frozen
class Orders:
    """What a process is to do."""

    role: str
    who: str
    url: str
    log: Path
    seed: int
    mutant: str | None


@define
class Actor:
    """One process's state."""

    orders: Orders
    dice: random.Random
    file: int
    over: bool = False
    produced: int = 0
    name: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.name = self.orders.who

    def write(self, *lines: str) -> None:
        """Append lines; one that is cut short by our death lacks its dot, and spoils no other."""
        os.write(self.file, "".join(f"\n{line} ." for line in lines).encode())

    # -- producing ---------------------------------------------------------------------------------

    def produce(self) -> None:
        """Enqueue, alone and in batches, with ids or without, now or later, some twice."""
        with_ids = self.orders.role == "producer with ids"
        with Queue(QUEUE, url=self.orders.url) as queue:
            while not self.over:
                time.sleep(PACE * self.dice.random())
                while not self.over and queue.counts().waiting > BACKLOG:
                    time.sleep(5 * PACE)
                jobs = [self.new(with_ids) for _ in range(self.dice.choice([1, 1, 2, 10, 20]))]
                if with_ids and self.dice.random() < 0.1:
                    jobs.append(jobs[0])
                self.write(*(f"try {self.name} {job.payload}" for job in jobs))
                if len(jobs) == 1:
                    job = jobs[0]
                    receipts = [queue.enqueue(job.payload, id=job.id, delay=job.delay, headers=job.headers)]
                elif with_ids:
                    receipts = queue.enqueue_many(jobs)
                else:
                    receipts = queue.enqueue_many([job.payload.encode() for job in jobs])
                self.write(
                    *(
                        f"ack {self.name} {job.payload} {receipt.id} {int(receipt.added)}"
                        for job, receipt in zip(jobs, receipts, strict=True)
                    )
                )
                if with_ids and self.dice.random() < 0.4:  # of those that wait, run and are done
                    name = f"{self.name}-{self.dice.randint(max(1, self.produced - 300), self.produced)}"
                    self.write(f"off {self.name} {name} {int(queue.cancel(name))}")

    def new(self, with_ids: bool) -> NewJob:
        self.produced += 1
        payload = f"{self.name}-{self.produced}"
        delay = 0.3 * self.dice.random() if self.dice.random() < 0.1 else None
        headers = {"h": "x"} if self.dice.random() < 0.2 else None
        return NewJob(payload, payload if with_ids else None, headers, delay)

    # -- a loop over a plain queue -------------------------------------------------------------------

    def loop(self) -> None:
        """Lease and settle in every way there is."""
        with Queue(QUEUE, url=self.orders.url, lease=LEASE, dead_limit=10**6) as queue:
            while not self.over:
                try:
                    term = self.dice.choice([None, None, LEASE])
                    leases = queue.lease_many(self.dice.randint(1, 20), block=0.3, duration=term)
                except WorkerLost:
                    continue
                self.write(*(f"job {self.name} {x.job.payload.decode()} {x.job.id} {x.token}" for x in leases))
                done: list[Lease] = []
                for lease in leases:
                    time.sleep(PACE * self.dice.random())
                    if self.dice.random() < DAWDLE:
                        time.sleep(LEASE * (1 + self.dice.random() / 2))
                    if not self.settled(queue, lease):
                        done.append(lease)
                if len(done) > 1 and self.dice.random() < 0.5:
                    verdicts = queue.complete_many(done)
                else:
                    verdicts = [lease.complete() for lease in done]
                self.write(
                    *(
                        f"end {self.name} {lease.job.id} {lease.token} {int(won)}"
                        for lease, won in zip(done, verdicts, strict=True)
                    )
                )

    def settled(self, queue: Queue, lease: Lease) -> bool:
        """Maybe renew it, maybe settle it otherwise than by completing it."""
        chance = self.dice.random()
        if chance < 0.25:
            self.fenced(lease, lease.renew)
        elif chance < 0.37:
            self.fenced(lease, lease.release)
        elif chance < 0.49:
            self.fenced(lease, lease.retry, self.dice.choice([0.0, 0.1]), "again")
        elif chance < 0.5:
            self.fenced(lease, lease.dead_letter, "enough")
        return 0.25 <= chance < 0.5

    def fenced(self, lease: Lease, call: Any, *args: Any) -> None:
        what = f"{self.name} {lease.job.id} {lease.token}"
        self.write(f"ask {what}")
        self.write(f"did {what} {int(call(*args))}")

    # -- workers -------------------------------------------------------------------------------------

    def saw(self, jobs: Sequence[Job]) -> None:
        self.write(*(f"run {self.name} {job.payload.decode()} {job.id} {job.attempt}" for job in jobs))

    def judged(self) -> None:
        """Now and then a handler fails."""
        chance = self.dice.random()
        if chance < 0.05:
            raise Release
        if chance < 0.1:
            raise RetryLater(0.1)
        if chance < 0.12:
            raise RuntimeError("by chance")

    def handle(self, job: Job) -> None:
        self.saw([job])
        time.sleep(4 * PACE * self.dice.random())
        self.judged()

    async def handle_in_task(self, job: Job) -> None:
        self.saw([job])
        await asyncio.sleep(4 * PACE * self.dice.random())
        self.judged()

    async def handle_many(self, jobs: Sequence[Job]) -> None:
        self.saw(jobs)
        await asyncio.sleep(10 * PACE * self.dice.random())
        self.judged()

    def work(self) -> None:
        """A worker with threads or an event loop, jobs one by one or in batches."""
        options: Any = {"lease": LEASE, "retry": Retry(wait=0.05), "dead_limit": 10**6}
        kind: Any = Worker if self.orders.role == "threads" else AsyncWorker
        worker = kind(url=self.orders.url, heartbeat=HEARTBEAT, timeout=TIMEOUT)
        if self.orders.role == "batches":
            worker.batch_handler(QUEUE, max_size=20, **options)(self.handle_many)
        elif self.orders.role == "tasks":
            worker.handler(QUEUE, concurrency=8, **options)(self.handle_in_task)
        else:
            worker.handler(QUEUE, concurrency=4, **options)(self.handle)
        if not self.over:
            worker.run()


ROLES = {
    "producer": Actor.produce,
    "producer with ids": Actor.produce,
    "loop": Actor.loop,
    "threads": Actor.work,
    "tasks": Actor.work,
    "batches": Actor.work,
}


def outlive_nobody() -> None:
    """End with the tests, whatever ends them."""
    signal.alarm(LIFE)
    tests = multiprocessing.parent_process()
    assert tests is not None

    def watch() -> None:
        tests.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":
        # A suspended process watches nothing. The kernel kills it when the fork server ends; which does so with the
        # tests only if we, its children, don't hold the other end of the pipe that tells it.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        with suppress(AttributeError, OSError):
            os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]


def run(orders: Orders) -> None:
    """The whole life of a process; SIGTERM ends it in good order."""
    outlive_nobody()
    mutants.install(orders.mutant)
    file = os.open(orders.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    actor = Actor(orders, random.Random(orders.seed), file)

    def stop(_number: int, _frame: object) -> None:
        actor.over = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ROLES[orders.role](actor)
    except (exceptions.ConnectionError, exceptions.TimeoutError, OSError):
        sys.exit(GAVE_UP)  # faults for longer than it tries; nothing may be lost by that
    except BaseException as error:
        actor.write(f"bad {actor.name} {error!r:.300}".replace("\n", " "))
        raise
