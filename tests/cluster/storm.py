"""A storm on a cluster: producers, workers, plain leases, flows and schedules, while it changes under them.

What was acknowledged is noted beside Redis, and so is every run; `Storm.complaints` says what does not agree:

    failed     a call or a worker has raised
    lost       a job was acknowledged, and never done
    twice      a job was completed twice, or was added twice
    phantom    a job was done that nobody enqueued
    law        a queue's counts do not add up
    stuck      something is left at the end
    asleep     a queue's jobs no longer ended between two faults
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Self

import redis

from headrace import FanOut, Flow, NewJob, Queue
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.engines import Running

Job = tuple[str, str]
"""A queue, and an id."""
BATCH = 10  # jobs that a producer adds at once
PAUSE_S = 0.03  # between two calls of a producer
AHEAD = 2_000  # jobs that a queue holds, before its producer waits
CHILDREN = 3


class Storm:
    """One storm, decided by its seed; a context manager, whose end is the calm."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._dice = cluster, random.Random(seed)
        self.groups = cluster.groups(2)
        self.faults: Counter[str] = Counter()
        self.complaints: dict[str, list[str]] = defaultdict(list)
        self._lock, self._over = threading.Lock(), threading.Event()
        self._sent: set[Job] = set()  # what was asked for
        self.acknowledged: set[Job] = set()
        self.runs: Counter[Job] = Counter()
        self._won: Counter[Job] = Counter()  # by plain leases
        self.slowest = 0.0  # seconds of the longest call of a producer
        self._workers = [Running(kind, url=cluster.url) for kind in ("threads", "tasks")]
        self._flows = [Flow(name, url=cluster.url) for name in self.groups[::2]]
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._joined: Counter[Job] = Counter()
        for worker in self._workers:
            self._hire(worker)
        acts = [(self._produce, name) for name in self.groups] + [(self._lease, name) for name in self.groups[::2]]
        self._actors = [threading.Thread(target=self._act, args=act) for act in acts]
        self._actors += [threading.Thread(target=self._act, args=(self._start, flow)) for flow in self._flows]

    # -- who acts ----------------------------------------------------------------------------------

    def complain(self, what: str, text: str) -> None:
        """Note what is wrong; the first few of a kind will do."""
        with self._lock:
            if len(self.complaints[what]) < 5:
                self.complaints[what].append(text)

    def _hire(self, worker: Running) -> None:
        for name in self.groups:
            worker.handler(name, concurrency=16)(self._ran)
        if worker.kind == "threads":
            for flow in self._flows:
                flow.stage("split", next="join", children="work")(self._split)
                flow.stage("work")(lambda job: job.payload)
                flow.stage("join")(self._join)
                worker.worker.flow(flow)

    def _ran(self, job: Any) -> None:
        with self._lock:
            self.runs[job.queue, job.id] += 1
            self._ended[job.queue] += 1

    def _split(self, _job: Any) -> Any:
        return FanOut([b"%d" % number for number in range(CHILDREN)], stage="work")

    def _join(self, job: Any) -> None:
        with self._lock:
            self._joined[job.queue, job.id] += 1
        if sorted(job.children.values()) != [b"%d" % number for number in range(CHILDREN)]:
            self.complain("lost", f"children of {job.id}: {job.children}")

    def _act(self, actor: Callable[[Any], None], whose: Any) -> None:
        try:
            actor(whose)
        except BaseException as error:
            self.complain("failed", f"{actor.__name__} {whose}: {error!r}")

    def _produce(self, name: str) -> None:
        with Queue(name, url=self._cluster.url) as queue:
            number = 0
            while not self._over.is_set():
                jobs = [NewJob(b"x", id=f"{number}.{i}", delay=0.2 if i == 0 else None) for i in range(BATCH)]
                number += 1
                with self._lock:
                    self._sent |= {(name, str(job.id)) for job in jobs}
                    behind = len(self.acknowledged) - len(self.runs) - len(self._won)
                began = time.monotonic()
                try:
                    receipts = queue.enqueue_many(jobs)
                except redis.RedisError as error:  # of a call of several parts some may be in
                    self.acknowledged |= {(name, receipt.id) for receipt in getattr(error, "receipts", ())}
                    raise
                with self._lock:
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self.acknowledged |= {(name, str(receipt.id)) for receipt in receipts}
                if not all(receipt.added for receipt in receipts):
                    self.complain("twice", f"{name}: ids are taken by this very call: {receipts}")
                self._over.wait(0.1 if behind > AHEAD * len(self.groups) else PAUSE_S)

    def _lease(self, name: str) -> None:
        with Queue(name, url=self._cluster.url) as queue:
            while not self._over.is_set():
                for lease in queue.lease_many(5, block=0.2):
                    if lease.complete():
                        with self._lock:
                            self._won[name, lease.job.id] += 1
                            self._ended[name] += 1
                self._over.wait(0.02)

    def _start(self, flow: Flow) -> None:
        number = 0
        while not self._over.is_set():
            assert flow.start(b"order", id=f"run-{number}").added
            number += 1
            with self._lock:
                self._begun[flow.name] += 1
            self._over.wait(0.05)

    # -- what happens ------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill a master: its replica takes over, and is followed by it when it is back."""
        master, replica = self._cluster.synced(name)
        master.kill()
        until(lambda: self._cluster.owner(name) is replica, "another master")
        master.start()
        self._cluster.settled()

    def freeze(self, name: str) -> None:
        """Freeze a master for longer than others wait for it; it wakes when it is none any more."""
        master, replica = self._cluster.synced(name)
        master.suspend()
        until(lambda: self._cluster.owner(name) is replica, "another master")
        master.wake()
        self._cluster.settled()
        master.ask("CLIENT", "UNPAUSE")

    def stall(self, name: str) -> None:
        """Freeze a master for a moment."""
        master = self._cluster.owner(name)
        master.suspend()
        time.sleep(0.4)
        master.wake()

    def failover(self, name: str) -> None:
        """Have a replica take over, by hand."""
        replica = self._cluster.replica_of(self._cluster.owner(name))
        replica.ask("CLUSTER", "FAILOVER")
        until(lambda: self._cluster.owner(name) is replica, "another master")
        self._cluster.settled()

    def move(self, name: str) -> None:
        """Move a slot at once."""
        self._cluster.move(name, self._cluster.other(name))

    def migrate(self, name: str) -> None:
        """Move a slot key by key."""
        self._cluster.migrate(name, self._cluster.other(name))

    def cut(self, name: str) -> None:
        """Cut all connections to a master, which has just run what came while it was frozen: replies are lost."""
        master = self._cluster.owner(name)
        kill = ("CLIENT", "KILL", "SKIPME", "yes", "TYPE")
        with redis.Redis(unix_socket_path=master.path, single_connection_client=True) as client:
            client.ping()  # connected by now: it is read in one go with the others
            cutting = threading.Thread(target=client.execute_command, args=(*kill, "normal"))
            master.suspend()
            time.sleep(0.2)
            cutting.start()
            time.sleep(0.1)
            master.wake()
            cutting.join()
        master.ask(*kill, "pubsub")

    def blow(self, seconds: float) -> None:
        """Let happen one thing after another, each kind at least once."""
        kinds = [self.kill, self.freeze, self.stall, self.failover, self.migrate, self.cut]
        kinds += [self.move] if self._cluster.moves_slots_at_once else []
        end, left = time.monotonic() + seconds, self._dice.sample(kinds, len(kinds))
        while left or time.monotonic() < end:
            left = left or self._dice.sample(kinds, len(kinds))
            fault, name = left.pop(), self._dice.choice(self.groups)
            fault(name)
            self.faults[fault.__name__] += 1
            self._goes_on()

    def _goes_on(self) -> None:
        """Wait until jobs of every queue have ended since."""
        before = Counter(self._ended)
        try:
            until(lambda: all(self._ended[name] > before[name] for name in self.groups), "work on all queues")
        except AssertionError:
            self.complain("asleep", f"after {dict(self.faults)}: {before} → {self._ended}")

    # -- what must be true ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        for actor in self._actors:
            actor.start()
        return self

    def __exit__(self, kind: object, error: object, tb: object) -> None:
        self._over.set()
        for actor in self._actors:
            actor.join()
        try:
            if error is None:
                self._judge()
        finally:
            for worker in self._workers:
                self._act(lambda worker: worker.close(), worker)
            for flow in self._flows:
                flow.close()

    def _judge(self) -> None:
        for name in self.groups:
            ours = {job for job in self.acknowledged if job[0] == name}
            with Queue(name, url=self._cluster.url) as queue:
                self._rest(queue)
                counts = queue.counts()
            done = {job for job in (*self.runs, *self._won) if job[0] == name}
            if missing := ours - done:
                self.complain("lost", f"{len(missing)} of {name}: {sorted(missing)[:3]}")
            if strange := done - self._sent:
                self.complain("phantom", f"{len(strange)} of {name}: {sorted(strange)[:3]}")
            if (counts.enqueued, counts.completed) != (len(ours), len(ours)):
                self.complain("twice", f"{name}: of {len(ours)} jobs there are {counts}")
        if again := [job for job, times in self._won.items() if times > 1]:
            self.complain("twice", f"won by two plain leases: {again[:3]}")
        for flow in self._flows:
            runs = self._begun[flow.name]
            for stage, each in (("split", 1), ("work", CHILDREN), ("join", 1)):
                with Queue(f"{flow.name}/{stage}", url=self._cluster.url) as queue:
                    self._rest(queue)
                    if (completed := queue.counts().completed) != runs * each:
                        self.complain("lost" if completed < runs * each else "twice", f"{queue.name}: {queue.counts()}")
            if sum(1 for queue, _ in self._joined if queue.startswith(f"{flow.name}/")) != runs:
                self.complain("lost", f"{flow.name}: not all of {runs} runs were joined")

    def _rest(self, queue: Queue) -> None:
        """Wait until a queue is empty."""
        try:
            until(lambda: not queue.counts().present, "an empty queue")
        except AssertionError:
            self.complain("stuck", f"{queue.name}: {queue.counts()}")
        if queue.counts().lost:
            self.complain("law", f"{queue.name}: {queue.counts()}")

    def story(self) -> str:
        """Tell what there was, and what is wrong."""
        again = sum(self.runs.values()) + len(self._won) - len({*self.runs, *self._won})
        return (
            f"{len(self.acknowledged):,} acknowledged; {sum(self.runs.values()):,} runs by workers, {again} "
            f"of them again; {len(self._won):,} by plain leases; {sum(self._joined.values()):,} joins; "
            f"longest enqueue {self.slowest:.1f} s; faults {dict(self.faults)}; complaints {dict(self.complaints)}"
        )
