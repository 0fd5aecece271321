"""Programs at work in a storm on a cluster. Each is a loop that reports its calls and runs to the
judge."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import redis
from attrs import define, field

from headrace import FanOut, Flow, NewJob, Queue
from headrace.errors import NotDurable
from tests.cluster.judge import Judge
from tests.support.engines import Running

GROUP, SHARDS = "s", 3
"""The group of the queues that have shards, and how many at first."""
SPREAD, CHAIN, ORDERED = f"{GROUP}/spread", f"{GROUP}/chain", f"{GROUP}/ordered"
KEYS = 8  # of jobs in order
STEPS = 2  # of a chain, before its end in SPREAD
BATCH = 8  # jobs that a producer adds at once
CHILDREN = [b"%d" % number for number in range(3)]
AHEAD = 3_000  # jobs that have not run, from which on producers are slower
# seconds, of workers: none is to count as dead
HEARTBEAT: dict[str, float] = {"heartbeat": 2.0, "timeout": 20.0}


@define(eq=False)
class Cast:
    """The programs, as threads of this process. *pause* is the seconds between two calls of a
    producer. *durable* is the queues' option. A call that is less durable counts as not
    acknowledged.
    """

    url: str
    plain: Sequence[str]
    judge: Judge
    pause: float
    durable: str | None
    slowest: float = 0.0  # seconds of the longest call of a producer
    over: threading.Event = field(factory=threading.Event)
    flows: list[Flow] = field(factory=list[Flow])
    # by flow, the runs that came to their end
    joined: dict[str, set[str]] = field(factory=dict[str, set[str]])
    begun: dict[str, set[str]] = field(factory=dict[str, set[str]])
    _workers: list[Running] = field(factory=list[Running])
    _threads: list[threading.Thread] = field(factory=list[threading.Thread])

    def __attrs_post_init__(self) -> None:
        self.flows = [self._flow(self.plain[0], 1), self._flow(GROUP, SHARDS)]
        self._workers = [self._worker("threads"), self._worker("tasks")]
        # both workers are to serve both engines' share of plain queues; one has the flows
        for flow in self.flows:
            self._workers[0].worker.flow(flow)
        acts: list[tuple[Callable[[Any], None], Any]] = [
            (self._produce, name) for name in self.plain
        ]
        acts += [(self._lease, self.plain[0]), (self._spread, SPREAD), (self._begin_chains, CHAIN)]
        acts += [(self._walk, CHAIN), (self._in_order, ORDERED), (self._lease_in_order, ORDERED)]
        acts += [(self._start, flow) for flow in self.flows]
        self._threads = [threading.Thread(target=self.act, args=act) for act in acts]

    def queue(self, name: str, **options: Any) -> Queue[bytes]:
        """Make a queue, with shards if its name is in the sharded group."""
        if name.startswith(f"{GROUP}/"):
            options |= {"shards": SHARDS, "ordered": name == ORDERED}
        return Queue(name, url=self.url, **options)

    @property
    def queues(self) -> list[str]:
        """The names of the queues whose jobs the judge knows by name."""
        return [*self.plain, SPREAD, CHAIN, ORDERED]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()
        for thread in self._threads:
            thread.start()

    def calm(self) -> None:
        """Let all producers end. Their jobs go on."""
        self.over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def close(self) -> None:
        self.over.set()
        for worker in self._workers:
            self.act(lambda worker: worker.close(), worker)
        for flow in self.flows:
            flow.close()

    def act(self, actor: Callable[[Any], None], whose: Any) -> None:
        """Run a program that must not fail."""
        try:
            actor(whose)
        except BaseException as error:
            self.judge.complain("failed", f"{getattr(actor, '__name__', actor)} {whose}: {error!r}")

    # -- workers -----------------------------------------------------------------------------------

    def _worker(self, kind: str) -> Running:
        worker = Running(kind, url=self.url, durable=self.durable, **HEARTBEAT)
        for name in self.plain:
            worker.handler(name, concurrency=16)(self._ran)
        worker.handler(SPREAD, shards=SHARDS, concurrency=16)(self._ran)
        worker.handler(ORDERED, shards=SHARDS, ordered=True, concurrency=4)(self._ran_in_order)
        return worker

    def _ran(self, job: Any) -> None:
        self.judge.ran(job.queue, job.payload.decode())

    def _ran_in_order(self, job: Any) -> Iterator[float]:
        name = job.payload.decode()
        number = int(name.partition(" ")[2])
        self.judge.begins(job.queue, job.key, number)
        yield 0.001  # another that runs beside it is seen
        self.judge.ends(job.queue, job.key, number)
        self.judge.ran(job.queue, name)

    def _flow(self, name: str, shards: int) -> Flow:
        flow = Flow(name, url=self.url, shards=shards, durable=self.durable)
        self.joined[name], self.begun[name] = set(), set()

        def join(job: Any) -> None:
            # A lease whose master dies may read the run on the next one, as it was before. It is
            # lost there, too.
            if sorted(job.children.values()) != CHILDREN:
                raise LookupError(f"children of {job.id}: {job.children}")
            self.joined[name].add(job.id)

        flow.stage("split", next="join", children="work")(
            lambda _job: FanOut(CHILDREN, stage="work")
        )
        flow.stage("work")(lambda job: job.payload)
        flow.stage("join")(join)
        return flow

    # -- producers ---------------------------------------------------------------------------------

    def _wait(self) -> None:
        self.over.wait(3 * self.pause if self.judge.behind > AHEAD else self.pause)

    def _add(self, queue: Queue[bytes], jobs: Sequence[NewJob[bytes]]) -> None:
        names = [job.payload.decode() for job in jobs]
        self.judge.asks(queue.name, names)
        began = time.monotonic()
        try:
            receipts = queue.enqueue_many(jobs, durable=self.durable)
        except NotDurable:
            self.judge.doubts(queue.name, names)
            return
        except redis.RedisError as error:  # of a call of several parts some may be in
            found = getattr(error, "receipts", ())
            self.judge.takes(
                queue.name, [name for name, receipt in zip(names, found, strict=False) if receipt]
            )
            raise
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.judge.takes(queue.name, names)
        if not all(receipt.added for receipt in receipts):
            self.judge.complain(
                "twice", f"{queue.name}: ids are taken by this very call: {receipts}"
            )

    def _produce(self, name: str) -> None:
        with self.queue(name) as queue:
            number = 0
            while not self.over.is_set():
                names = [f"{number}.{at}" for at in range(BATCH)]
                self._add(
                    queue,
                    [
                        NewJob(one.encode(), id=one, delay=None if at else 0.2)
                        for at, one in enumerate(names)
                    ],
                )
                number += 1
                self._wait()

    def _spread(self, name: str) -> None:
        """Enqueue jobs with ids, with keys, and without either."""
        with self.queue(name) as queue:
            number = 0
            while not self.over.is_set():
                jobs: list[NewJob[bytes]] = []
                for at in range(BATCH):
                    payload = f"{number}.{at}"
                    named: dict[str, Any] = ({"id": payload}, {"key": f"k{number + at}"}, {})[
                        at % 3
                    ]
                    jobs.append(NewJob(payload.encode(), delay=None if at else 0.2, **named))
                self._add(queue, jobs)
                number += 1
                self._wait()

    def _in_order(self, name: str) -> None:
        with self.queue(name) as queue:
            number = 0
            while not self.over.is_set():
                keys = [f"k{number % KEYS}", f"k{(number + 1) % KEYS}"]
                self._add(
                    queue,
                    [
                        NewJob(f"{key} {self._next(key)}".encode(), key=key)
                        for key in keys
                        for _ in range(3)
                    ],
                )
                number += 2
                self._wait()

    _numbers: dict[str, int] = field(factory=dict[str, int])

    def _next(self, key: str) -> int:
        self._numbers[key] = self._numbers.get(key, -1) + 1
        return self._numbers[key]

    def _start(self, flow: Flow) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            with suppress(NotDurable):
                assert flow.start(b"order", id=f"run-{number}").added
                self.begun[flow.name].add(f"run-{number}")
            self.over.wait(2 * self.pause)

    # -- plain leases ------------------------------------------------------------------------------

    def _lease(self, name: str) -> None:
        with self.queue(name, durable=self.durable) as queue:
            while not self.over.is_set():
                for lease in queue.lease_many(5):
                    self._complete(lease)
                self.over.wait(self.pause)

    def _complete(self, lease: Any, then: Sequence[NewJob[bytes]] = ()) -> None:
        job = lease.job
        for one in then:
            self.judge.asks(str(one.queue), [one.payload.decode()])
        try:
            if not lease.complete(then=then):
                return
        except NotDurable:
            for one in then:
                self.judge.doubts(str(one.queue), [one.payload.decode()])
        else:
            for one in then:
                self.judge.takes(str(one.queue), [one.payload.decode()])
        self.judge.won(job.queue, job.payload.decode())

    def _lease_in_order(self, name: str) -> None:
        with self.queue(name, durable=self.durable) as queue:
            while not self.over.is_set():
                for lease in queue.lease_many(3):
                    number = int(lease.job.payload.decode().partition(" ")[2])
                    self.judge.begins(name, lease.job.key, number)
                    self.judge.ends(name, lease.job.key, number)
                    self._complete(lease)
                self.over.wait(self.pause)

    def _begin_chains(self, name: str) -> None:
        with self.queue(name) as queue:
            number = 0
            while not self.over.is_set():
                names = [f"{number}.{at} 0" for at in range(3)]
                self._add(queue, [NewJob(one.encode(), key=one) for one in names])
                number += 1
                self._wait()

    def _walk(self, name: str) -> None:
        """Enqueue chains of jobs with different keys, so that each follows in any shard. The last
        job is in another queue.
        """
        with self.queue(name, durable=self.durable) as queue:
            while True:
                leases = queue.lease_many(5, block=0.2 if self.over.is_set() else 0.0)
                for lease in leases:
                    chain, _, step = lease.job.payload.decode().partition(" ")
                    following = f"{chain} {int(step) + 1}"
                    goal = CHAIN if int(step) + 1 < STEPS else SPREAD
                    self._complete(lease, [NewJob(following.encode(), key=following, queue=goal)])
                if self.over.is_set() and not leases and not queue.counts().present:
                    return
                self.over.wait(self.pause)
