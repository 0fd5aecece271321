"""A storm over a queue with terms. It kills, suspends and cuts off workers, and kills the server.

Two judges, neither of which trusts a slot. The ledger, outside Redis, has a line as each handler
begins and ends:

    add JOB TIME          it is enqueued
    beg JOB NONCE TIME    the handler begins
    fin JOB NONCE TIME    it returns

The watch reads the pending list at one instant, and counts the leased jobs of each tenant by the
names of jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from statistics import median
from typing import Any
from uuid import uuid4

import pytest
import redis
from attrs import define, field

from headrace import DeadLetter, Job, Limit, NewJob, Queue, RetryLater
from tests.fair.mutants import MUTANTS
from tests.support import storm
from tests.support.planted import plant_scripts
from tests.support.storm import Orders, Writer

LEASE = 2.0
QUEUE = "fair"
# slots: the flood leaves one for others, unless it is held back by its share
OF_EACH, IN_ALL = 3, 4
TENANTS = ("flood", "ada", "bob", "cyd", "dee")  # the first has a backlog of its own all the time
BACKLOG = 200


def declared(url: str) -> Any:
    """Return the queue as all programs declare it."""
    limits = [Limit(OF_EACH, key="tenant"), Limit(IN_ALL)]
    return Queue(
        QUEUE,
        url=url,
        fair="tenant",
        weights={"ada": 2.0},
        limits=limits,
        lease=LEASE,
        max_attempts=None,
    )


class Handler(Writer):
    """Runs jobs and writes them into the ledger."""

    def write(self, *words: str) -> None:
        super().write(*words, f"{time.monotonic():.3f}")

    def fate(self) -> None:
        """Choose how a handler ends. Some jobs come back in every way before they end."""
        number = self.dice.random()
        if number < 0.04:
            raise RetryLater(0.2 * self.dice.random())
        if number < 0.08:
            raise RetryLater(0)
        if number < 0.1:
            raise DeadLetter("so it fell out")

    def threads(self, job: Job) -> None:
        """Handle a job for a `Worker`."""
        name, nonce = job.payload.decode(), uuid4().hex[:12]
        self.write("beg", name, nonce)
        time.sleep(0.06 * self.dice.random())
        self.fate()
        self.write("fin", name, nonce)

    async def tasks(self, job: Job) -> None:
        """Handle a job for an `AsyncWorker`."""
        name, nonce = job.payload.decode(), uuid4().hex[:12]
        self.write("beg", name, nonce)
        await asyncio.sleep(0.06 * self.dice.random())
        self.fate()
        self.write("fin", name, nonce)


def work(orders: Orders) -> None:
    if orders.mutant:
        plant_scripts(pytest.MonkeyPatch(), MUTANTS[orders.mutant][0])
    handler, worker = Handler(orders), orders.worker()
    of = declared(orders.url)
    worker.handler(of, concurrency=4)(
        handler.threads if orders.kind == "threads" else handler.tasks
    )
    worker.run()


@define(eq=False)
class Storm(storm.Storm):
    """A storm over slots and shares."""

    NAME = QUEUE
    LEFT = frozenset(
        {
            "jobs",
            "wake",
            "stats",
            "workers",
            "registered",
            "dead",
            "control",
            "cancels",
            "terms",
            "busy",
        }
    )
    PATIENCE = 40.0
    TICK = 0.03
    HURTS = 0.05
    work = work

    jobs: Counter[str] = field(factory=Counter)  # of each tenant
    wrong: list[str] = field(factory=list)  # the complaints of the watch
    looks: int = 0

    def declared(self, url: str) -> Queue[Any]:
        queue: Queue[Any] = declared(url)
        return queue

    # -- the operator ------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Enqueue jobs. The flood keeps its backlog, and the other tenants have a job now and
        then."""
        new = [self.named("flood") for _ in range(max(0, BACKLOG - self.queue.counts().waiting))]
        new += [self.named(tenant) for tenant in TENANTS[1:] if self.dice.random() < 0.4]
        self.queue.enqueue_many(new)

    def named(self, tenant: str) -> Any:
        """Return a new job of a tenant. Its name has the tenant and is its payload."""
        self.jobs[tenant] += 1
        name = f"{tenant}-{self.jobs[tenant]}"
        with self.ledger.open("a") as file:
            file.write(f"add {name} {time.monotonic():.3f}\n")
        return NewJob(name.encode(), id=name, headers={"tenant": tenant})

    def meddle(self) -> None:
        """End leases, and cancel a job that may wait, run or be gone."""
        if self.dice.random() < 0.5:
            self.did["expired"] += self.queue.admin.expire()
        else:
            tenant = self.dice.choice(TENANTS)
            self.did["cancelled"] += self.queue.cancel(f"{tenant}-{self.jobs[tenant]}")

    def redrive(self) -> None:
        self.did["redriven"] += self.queue.admin.redrive()

    def watch(self) -> None:
        """Count the leased jobs of each tenant at one instant from the pending list, and all
        slots."""
        key = f"headrace:{{{QUEUE}}}:{QUEUE}:"
        with self.client.pipeline() as pipe:
            pipe.xpending_range(f"{key}jobs", "workers", "-", "+", 10_000)
            pipe.hgetall(f"{key}ids")
            pipe.hkeys(f"{key}held")
            try:
                rows, ids, held = pipe.execute()
            except redis.ResponseError:  # no group yet
                return
        names = {entry: name for name, entry in ids.items()}
        leased = [row["message_id"] for row in rows if is_worker(row["consumer"])]
        of = Counter(names[entry].partition("-")[0] for entry in leased if entry in names)
        self.looks += 1
        self.wrong += [
            f"limit: {number} jobs of {tenant}" for tenant, number in of.items() if number > OF_EACH
        ]
        if len(leased) > IN_ALL:
            self.wrong.append(f"limit: {len(leased)} jobs in all")
        if sorted(leased) != sorted(held):
            self.wrong.append(f"law: {sorted(leased)} are leased, {sorted(held)} held")

    @property
    def written(self) -> list[list[str]]:
        return [line.split(" ") for line in self.ledger.read_text().splitlines()]

    # -- the story ---------------------------------------------------------------------------------

    def round(self) -> None:
        self.enqueue()
        self.watch()
        self.redrive()
        if self.dice.random() < 0.1:
            self.meddle()

    def last_round(self) -> None:
        self.watch()
        self.redrive()

    def complaints(self) -> list[str]:
        return [*self.wrong, *judged(self.written, 1 << 30, 0)]

    def ended(self) -> Counter[str]:
        """Count the jobs of each tenant that ran to their end."""
        return Counter(name.partition("-")[0] for word, name, *_ in self.written if word == "fin")

    def lacks(self) -> list[str]:
        seen = self.ended() + self.did
        wanted = {
            "SIGKILL": 3,
            "SIGSTOP": 3,
            "expired": 1,
            "redriven": 5,
            **dict.fromkeys(TENANTS, 10),
        }
        return [
            f"{name}: {seen[name]} of {least}"
            for name, least in wanted.items()
            if seen[name] < least
        ]

    def verdict(self) -> list[str]:
        """List complaints by the watch, the ledger, and the keys that are left on the server."""
        counts, number = self.queue.counts(), sum(self.jobs.values())
        wrong = [*self.wrong, *judged(self.written, self.did["cancelled"], number)]
        if (
            counts.lost
            or counts.completed + counts.cancelled != counts.enqueued
            or counts.enqueued != number
        ):
            wrong.append(f"lost or twice: {number} jobs, {counts}")
        self.sweep()
        assert self.queue.lease() is None
        return [*wrong, *self.left_behind()]

    def story(self) -> str:
        return (
            f"seed {self.seed}: {dict(self.jobs)} jobs, {dict(self.ended())} ran; {self.looks} looks of the watch; "
            f"{self.faults()}"
        )


def is_worker(owner: str) -> bool:
    return owner not in {"idle", "limited", "behind", "parked"} and not owner.startswith("parked:")


def judged(lines: list[list[str]], cancelled: int, jobs: int) -> list[str]:
    """Return complaints about a ledger. Every job must run to its end unless it was cancelled, and
    the flood must delay no other.

    The flood has 200 jobs in front of each job that comes, so in a queue that is not fair all wait
    for as long.
    """
    ended, began = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    added, since, now = dict[str, float](), dict[str, float](), 0.0
    for word, name, *rest in lines:
        now = max(now, float(rest[-1]))
        if word == "add":
            added[name] = now
            continue
        if word == "beg":
            since.setdefault(name, now)
        (ended if word == "fin" else began)[name].add(rest[0])
    wrong = [f"phantom: {name}" for name, nonces in ended.items() if not nonces <= began[name]]
    if jobs - len(ended) > cancelled:
        wrong.append(f"starved: of {jobs} jobs {len(ended)} ran, and {cancelled} were cancelled")
    waits = defaultdict[str, list[float]](list)
    for name, at in added.items():
        waits[name.partition("-")[0]].append(since.get(name, now) - at)
    typical = {tenant: median(some) for tenant, some in waits.items() if len(some) >= 30}
    for tenant, wait in typical.items():
        if tenant != "flood" and "flood" in typical and wait > typical["flood"] / 2:
            wrong.append(
                f"shares: the flood waits for {typical['flood']:.2f} s, {tenant} for {wait:.2f} s"
            )
    return wrong
