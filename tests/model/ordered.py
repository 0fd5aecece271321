"""A random walk over an ordered queue beside a model of it. Each key is a list of which only the
first may be leased.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import redis
from attrs import define, field

from headrace import NewJob, Queue, Replace
from headrace._model.job import Claim
from tests.support.servers import Server

CLIENTS = ("ann", "bob")
KEYS = ("a", "b", "c", "d", None, None)
FOREVER_S = 3600.0
UNKNOWN = -100  # attempts; less than 0 after a few more
ATTEMPTS = 3


@define(eq=False)
class Job:
    """One job of the model. Its claims are all that were ever granted, the last one at the end."""

    id: str
    key: str | None
    state: str = "waiting"
    claims: list[Claim] = field(factory=list[Claim])
    spent: int = 0  # attempts; UNKNOWN: a claim tells
    tried: list[str] = field(factory=list[str])  # the reasons of its attempts


@define(eq=False)
class Walk:
    """A number of random steps, each judged at once."""

    server: Server
    seed: int
    # that are in the queue, in the order of their places
    jobs: list[Job] = field(factory=list[Job])
    dead: list[Job] = field(factory=list[Job])
    log: list[str] = field(factory=list[str])
    number: int = 0
    random: Any = field(init=False)
    queue: Any = field(init=False)
    ops: Any = field(init=False)
    redis: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def run(self, steps: int) -> None:
        """Walk. Raise `AssertionError` with the log of steps."""
        # without one, attempts are not kept, and some calls take a shorter way
        history = 1000 * (self.seed % 2)
        self.queue = Queue(
            "q", url=self.server.url, ordered=True, max_attempts=ATTEMPTS, history=history
        )
        self.ops = self.queue.ops
        try:
            with self.queue, redis.Redis(unix_socket_path=self.server.path) as self.redis:
                names = [name.removeprefix("do_") for name in dir(self) if name.startswith("do_")]
                often = {"enqueue": 6, "lease": 6, "complete": 6, "expire": 4, "retry": 3}
                weights = [often.get(name, 1) for name in names]
                for name in self.random.choices(names, weights, k=steps):
                    self.log.append(name)
                    getattr(self, f"do_{name}")()
                    self.agrees()
                self.drains()
        except AssertionError as error:
            raise AssertionError(
                f"seed {self.seed}, after {', '.join(self.log[-20:])}: {error}"
            ) from error

    def first(self, job: Job) -> bool:
        """Tell whether no other job of its key comes before it."""
        return job.key is None or next(one for one in self.jobs if one.key == job.key) is job

    def suspects(self) -> set[str]:
        """Return the jobs that wait to be handed out alone."""
        jobs = f"{self.ops.keys.prefix}jobs"
        apart: set[str] = set()
        for row in self.redis.xpending_range(jobs, "workers", "-", "+", 1000, "parked:s"):
            ((entry, fields),) = self.redis.xrange(jobs, row["message_id"], row["message_id"])
            apart.add(fields.get(b"id", entry).decode())
        return apart

    def some(self, *states: str) -> Job | None:
        """Return a job in one of these states."""
        there = [job for job in self.jobs if job.state in states]
        return self.random.choice(there) if there else None

    def agrees(self) -> None:
        """Check the counts. If every allowed job was leased, no other could have been."""
        counts = self.queue.counts()
        leased = sum(job.state == "leased" for job in self.jobs)
        found = counts.waiting + counts.parked + counts.delayed  # any call may promote what is due
        assert (found, counts.leased) == (len(self.jobs) - leased, leased), counts
        assert (counts.dead, counts.lost) == (len(self.dead), 0)
        self.remembers(self.jobs)
        self.remembers(self.dead)

    def remembers(self, jobs: list[Job]) -> None:
        """Check that one of these jobs has all its attempts."""
        for job in self.random.sample(jobs, min(1, len(jobs))):
            self.remembered(job)

    def remembered(self, job: Job) -> None:
        """Check that its state has the reasons of all its attempts."""
        if self.ops.settings.history:
            found = [one.reason for one in self.queue.find(job.id).attempts if one.reason]
            assert found == job.tried, f"the attempts of {job} are {found}"

    def why(self) -> str:
        """Return a reason that no other attempt has."""
        self.number += 1
        return f"why {self.number}"

    # -- steps -------------------------------------------------------------------------------------

    def do_enqueue(self) -> None:
        made = []
        # of 14 in a millisecond, some have two digits
        for _ in range(self.random.choice((1, 2, 3, 4, 5, 6, 14))):
            self.number += 1
            job = Job(f"j{self.number}", self.random.choice(KEYS))
            self.jobs.append(job)
            made.append(NewJob(b"x", id=job.id, key=job.key))
        self.queue.enqueue_many(made)

    def do_lease(self, limit: int = 0) -> None:
        who, most = self.random.choice(CLIENTS), limit or self.random.choice((1, 2, 5, 100))
        while (grant := self.lease(who, most)).more:
            pass
        if len(grant.claims) < most and not grant.paused:
            apart = self.suspects()
            left = [
                job.id for job in self.jobs if job.state in ("waiting", "due") and self.first(job)
            ]
            left = [name for name in left if name not in apart]
            assert not left, f"{left} could be leased"

    def lease(self, who: str, most: int) -> Any:
        grant = self.queue._run(self.ops.lease(who, most, ttl=FOREVER_S))
        assert grant is not None
        self.bury()
        for claim in grant.claims:
            self.granted(claim)
        return grant

    def bury(self) -> None:
        """Mark jobs without attempts left as dead."""
        buried = {one.job.id for one in self.queue.admin.dead()} - {job.id for job in self.dead}
        for job in [job for job in self.jobs if job.id in buried]:
            assert job.state in ("waiting", "due"), f"{job.id} is buried, and was {job.state}"
            assert job.spent < 0 or job.spent >= ATTEMPTS, f"{job.id} is buried after {job.spent}"
            assert self.first(job), f"{job.id} is buried, and not the first of its key"
            self.go(job)
            self.dead.append(job)

    def granted(self, claim: Claim) -> None:
        """Check that the job was waiting and is the first of its key."""
        job = next((job for job in self.jobs if job.id == claim.job.id), None)
        assert job is not None, f"{claim.job.id} is not in the queue"
        assert job.state in ("waiting", "due"), f"{job.id} is {job.state}"
        assert self.first(job), f"{job.id} is not the first of its key"
        attempt = claim.job.attempt
        assert job.spent < 0 or attempt == job.spent + 1, (
            f"{claim} is not the next attempt of {job}"
        )
        # The group has lost the deliveries, but not the releases: then the first attempt may come
        # several times.
        job.spent = UNKNOWN if job.spent < 0 and attempt == 1 else attempt
        assert not job.claims or claim.token > job.claims[-1].token
        job.state = "leased"
        job.claims.append(claim)

    def go(self, job: Job) -> None:
        self.jobs.remove(job)

    def settle(self) -> tuple[Job, Claim, bool] | None:
        """Return a claim of a leased job, perhaps an old one, and whether it holds."""
        claimed = [job for job in self.jobs if job.claims]
        if not claimed:
            return None
        job = self.random.choice(claimed)
        claim = self.random.choice([job.claims[-1], job.claims[-1], self.random.choice(job.claims)])
        return job, claim, job.state == "leased" and claim is job.claims[-1]

    def do_complete(self) -> None:
        """Complete several jobs at once. The first completer wins."""
        some = {
            id(found[0]): found
            for found in (self.settle() for _ in range(self.random.randint(1, 4)))
            if found
        }
        if not some:
            return
        fenced = self.random.random() < 0.3
        pairs = [
            found
            for found in some.values()
            if found[1].worker == next(iter(some.values()))[1].worker
        ]
        won = self.queue._run(self.ops.complete([claim for _, claim, _ in pairs], fenced=fenced))
        assert won == [holds or not fenced for _, _, holds in pairs]
        for (job, _, _), gone in zip(pairs, won, strict=True):
            if gone:
                self.go(job)
                self.remembered(job)

    def do_release(self) -> None:
        found = self.settle()
        if found:
            job, claim, holds = found
            pause = self.random.choice((0.0, 0.0, FOREVER_S))
            assert self.queue._run(self.ops.release([claim], pause=pause)) == [holds]
            if holds:
                job.state, job.spent = "delayed" if pause else "waiting", job.spent - 1

    def do_retry(self) -> None:
        """Retry a job, which keeps its place. After its last attempt it is dead."""
        found = self.settle()
        if found:
            job, claim, holds = found
            delay, spend, reason = (
                self.random.choice((None, FOREVER_S)),
                self.random.choice((1, 1, 0)),
                self.why(),
            )
            # of its holders
            forgiven = int(self.redis.hget(self.ops.keys.key("deaths"), claim.entry) or 0)
            assert self.queue._run(self.ops.retry([(claim, delay, spend, reason)])) == [holds]
            job.tried += [reason] if holds and spend else []
            if holds and spend and job.spent - forgiven >= ATTEMPTS:
                self.go(job)
                self.dead.append(job)
            elif holds:
                job.state, job.spent = (
                    "delayed" if delay else "waiting",
                    job.spent - (not spend) - forgiven,
                )
                # one without a key has another entry now
                job.claims = job.claims if job.key else []

    def do_dead_letter(self) -> None:
        found = self.settle()
        if found:
            (job, claim, holds), reason = found, self.why()
            assert self.queue._run(self.ops.dead_letter([(claim, reason)])) == [holds]
            if holds:
                job.tried.append(reason)
                self.go(job)
                self.dead.append(job)

    def do_come_due(self) -> None:
        """Make all delayed jobs due. Ordered ones stay in place, and others move."""
        for key in map(self.ops.keys.key, ("limited", "delayed")):
            for entry in self.redis.zrange(key, 0, -1):
                self.redis.zadd(key, {entry: 1})
        for job in self.jobs:
            job.state = "due" if job.state == "delayed" else job.state

    def do_cancel(self) -> None:
        job = self.some("waiting", "leased", "delayed", "due")
        if job:
            assert self.queue.cancel(job.id)
            self.go(job)
            self.remembered(job)

    def do_expire(self) -> None:
        job = self.some("leased")
        if job:
            assert self.queue.admin.expire(job.id) == 1
            job.state = "waiting"

    def do_fail_worker(self) -> None:
        who = self.random.choice(CLIENTS)
        held = [job for job in self.jobs if job.state == "leased" and job.claims[-1].worker == who]
        assert self.queue.admin.fail_worker(who) == len(held)
        for job in held:
            job.state = "waiting"

    def do_leave(self) -> None:
        who = self.random.choice(CLIENTS)
        held = [job for job in self.jobs if job.state == "leased" and job.claims[-1].worker == who]
        assert self.queue._run(self.ops.leave(who))[0] == len(held)
        for job in held:
            job.state, job.spent = "waiting", job.spent - 1

    def do_reschedule(self) -> None:
        """Reschedule a delayed job to the end of its key. A due one may have come back already."""
        job = self.some("delayed", "due")
        done = job and self.queue.admin.reschedule(job.id, None)
        assert done or not job or job.state == "due"
        if job and done:
            self.go(job)
            self.jobs.append(job)
            job.state = "waiting"
            job.claims = []

    def do_replace(self) -> None:
        """Replace a job that never began. It goes to the end of its key with another payload."""
        job = next(
            (job for job in self.jobs if job.state == "waiting" and not (job.claims or job.spent)),
            None,
        )
        if job and self.queue.find(job.id).state in ("waiting", "parked"):  # type: ignore[union-attr]
            outcome = self.queue.enqueue(b"y", id=job.id, key=job.key, if_exists=Replace()).outcome
            assert outcome == "replaced"
            self.go(job)
            self.jobs.append(job)

    def do_redrive(self) -> None:
        """Redrive jobs to the ends of their keys without their attempts."""
        assert self.queue.admin.redrive() == len(self.dead)
        for job in self.dead:
            job.state, job.spent, job.claims = "waiting", 0, []
            self.jobs.append(job)
        self.dead = []

    def do_reclaim(self) -> None:
        self.queue._run(self.ops.reclaim("ann", 10.0))

    def do_ring(self) -> None:
        """Answer a blocked read whose reader is gone."""
        with suppress(redis.ResponseError):  # there may be no group yet
            self.redis.execute_command(*self.ops.wait(0.001))

    def do_repair(self) -> None:
        found = self.queue.admin.repair()
        assert (found.leftovers, found.stranded, found.dangling) == (0, 0, 0)

    def do_lose_the_group(self) -> None:
        """Lose the pending list, as in a failover or by a foreign command. All leased jobs are in
        front again."""
        if self.random.random() < 0.2 and not self.some("delayed", "due"):
            self.do_reclaim()  # as in any queue that has workers
            with suppress(redis.ResponseError):  # there may be no stream yet
                self.redis.xgroup_destroy(self.ops.keys.key("jobs"), "workers")
            for job in self.jobs:
                job.state, job.spent, job.claims = "waiting", UNKNOWN, []
            if self.random.random() < 0.5:  # then a sweep comes before most entries are read again
                self.lease("ann", 1)
                self.do_reclaim()
            self.do_lease(1)

    def do_purge(self) -> None:
        if self.random.random() < 0.2:
            waits = [job for job in self.jobs if job.state != "leased"]
            assert self.queue.admin.purge() == len(waits)
            for job in waits:
                self.go(job)

    def drains(self) -> None:
        """Check that all jobs come in the end, each key in order, and that no turn is left."""
        self.do_come_due()
        for _ in range(10 * len(self.jobs) + 10):
            self.do_lease(100)
            leased = [job for job in self.jobs if job.state == "leased"]
            if not leased:
                break
            assert all(
                self.queue._run(self.ops.complete([job.claims[-1] for job in leased], fenced=False))
            )
            for job in leased:
                self.go(job)
        assert not self.jobs, f"{[job.id for job in self.jobs]} do not come"
        assert not self.redis.exists(self.ops.keys.key("turns"), self.ops.keys.key("behind"))
