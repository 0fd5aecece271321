"""The processes of the chaos. They are producers, loops over a plain queue, and workers of both
engines.

Each writes what it learns to a file outside Redis, a line per event, before it goes on:

    try WHO PAYLOAD            about to enqueue
    ack WHO PAYLOAD ID ADDED   the receipt
    can WHO ID                 about to cancel
    off WHO ID VERDICT         what cancel() said
    mov WHO ID                 about to reschedule
    due WHO ID VERDICT         what reschedule() said
    job WHO PAYLOAD ID TOKEN   handed out to a loop
    run WHO PAYLOAD ID ATTEMPT handed to a handler, which does not know its token
    ask WHO ID TOKEN           about to do what only the present holder may
    did WHO ID TOKEN VERDICT   the answer
    end WHO ID TOKEN VERDICT   what complete() said
    beg WHO RUN                about to start a run of the flow
    got WHO RUN ADDED          the receipt
    bag WHO RUN RESULT         what the last stage of a run says of its children
    not WHO PAYLOAD            a follow-up that did not come, for its call did not complete the job
    dup WHO ID ADDED           the receipt of a job with the id of one that was put back
    met WHO ID TOKEN           a job of the schedule was handed out
    bad WHO ERROR              it ended by an error that is none of the transport

The ID of a job of a stage is STAGE|ID, that of its fan-out fan|ID, and that of a run as such
run|ID.
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
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from redis import exceptions

from headrace import (
    AsyncFlow,
    AsyncWorker,
    DeadLetter,
    FanOut,
    Flow,
    FlowJob,
    FlowState,
    Job,
    Lease,
    NewJob,
    Queue,
    Rate,
    Release,
    Retry,
    RetryLater,
    Worker,
)
from headrace.errors import LeasesLeft
from tests.chaos import flow_load as load, mutants

HEARTBEAT, TIMEOUT, LEASE = 0.3, 1.2, 1.0
QUEUE = "chaos"
LEVELS: Any = {"priorities": 3, "ageing": 0.5, "max_attempts": None}
METERED = "metered"
RATE = Rate(60, burst=6)
EVERY = 1.0  # seconds between two jobs of the schedule: several look after it meanwhile
ASIDE = 60.0  # seconds for which a job is put back that is enqueued again meanwhile
CALM = "calm"  # a file beside the log: nothing more is to be produced
PACE = 0.02  # seconds between two calls of a producer, or two jobs of a loop; half of it on average
RUNS = 40  # jobs in the stages of the flow at which nobody starts more of them
# waiting jobs at which producers pause, so that a slow machine has no more to do than a fast one
BACKLOG = 300
GAVE_UP = 75  # the exit code of a process that saw no end of the faults
LIFE = 300  # seconds after which a process ends whatever happens


@frozen
class Orders:
    """The orders of a process."""

    role: str
    who: str
    url: str
    log: Path
    seed: int
    mutant: str | None
    dawdle: float = mutants.DAWDLE


@define
class Actor:
    """The state of a process."""

    orders: Orders
    dice: random.Random
    file: int
    over: bool = False
    produced: int = 0
    late: deque[str] = field(factory=lambda: deque[str](maxlen=10))  # ids of jobs that were delayed
    name: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.name = self.orders.who

    def write(self, *lines: str) -> None:
        """Append lines. A line that is cut short by a kill lacks its dot and spoils no other."""
        os.write(self.file, "".join(f"\n{line} ." for line in lines).encode())

    # -- producing ---------------------------------------------------------------------------------

    def produce(self) -> None:
        """Enqueue jobs alone and in batches, with and without ids, now or later, and some twice.
        Cancel and reschedule some.
        """
        with_ids = self.orders.role == "producer with ids"
        with Queue(QUEUE, url=self.orders.url, **LEVELS) as queue:
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
                    receipts = [queue.enqueue(job)]
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
                if with_ids:
                    self.meddle(queue)

    def meddle(self, queue: Queue) -> None:
        """Cancel a waiting, running, delayed or ended job, and reschedule a delayed one."""
        if self.dice.random() < 0.4:
            name = f"{self.name}-{self.dice.randint(max(1, self.produced - 300), self.produced)}"
            if self.late and self.dice.random() < 0.3:
                name = self.dice.choice(self.late)
            self.verdict("can", "off", name, queue.cancel, name)
        if self.late and self.dice.random() < 0.3:
            name = self.dice.choice(self.late)
            self.verdict(
                "mov",
                "due",
                name,
                queue.admin.reschedule,
                name,
                self.dice.choice([None, 0.0, 0.1, 1.0]),
            )

    def verdict(
        self, ask: str, answer: str, name: str, call: Callable[..., bool], *args: Any
    ) -> None:
        """Make a call and record its outcome."""
        self.write(f"{ask} {self.name} {name}")
        self.write(f"{answer} {self.name} {name} {int(call(*args))}")

    def new(self, with_ids: bool) -> NewJob:
        """Return a job with all its options."""
        self.produced += 1
        payload = f"{self.name}-{self.produced}"
        chance = self.dice.random()
        delay = (
            0.3 * self.dice.random()
            if chance < 0.1
            else 3 * self.dice.random()
            if chance < 0.15
            else None
        )
        if delay is not None:
            self.late.append(payload)
        headers = {"h": "x"} if self.dice.random() < 0.2 else None
        level = self.dice.choice([0, 0, 1, 2])
        return NewJob(payload, payload if with_ids else None, headers, delay, level)

    # -- a loop over a plain queue -----------------------------------------------------------------

    def loop(self) -> None:
        """Lease and settle in every way there is."""
        with Queue(QUEUE, url=self.orders.url, lease=LEASE, dead_limit=10**6, **LEVELS) as queue:
            while not self.over:
                term = self.dice.choice([None, None, LEASE])
                leases = queue.lease_many(self.dice.randint(1, 20), block=0.3, duration=term)
                self.write(
                    *(
                        f"job {self.name} {x.job.payload.decode()} {x.job.id} {x.token}"
                        for x in leases
                    )
                )
                done: list[Lease] = []
                self.enqueued(queue, f"{self.name}-k{self.dice.randrange(1 << 30)}")
                for lease in leases:
                    time.sleep(PACE * self.dice.random())
                    if self.dice.random() < self.orders.dawdle:
                        time.sleep(LEASE * (1 + self.dice.random() / 2))
                    if "-k" in lease.job.id and lease.job.attempt == 1:
                        self.doubled(queue, lease)
                    elif not self.settled(lease):
                        done.append(lease)
                if done and self.dice.random() < 0.3:
                    self.followed(done.pop())
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

    def enqueued(self, queue: Queue, name: str) -> None:
        """Enqueue a job whose payload is its id."""
        self.write(f"try {self.name} {name}")
        receipt = queue.enqueue(name, id=name)
        self.write(f"ack {self.name} {name} {receipt.id} {int(receipt.added)}")

    def followed(self, lease: Lease) -> None:
        """Complete a job twice. Each call has a follow-up, of which at most one may come."""
        for _ in range(2):
            name = f"{self.name}-t{self.dice.randrange(1 << 30)}"
            self.write(f"try {self.name} {name}")
            won = lease.complete(then=[NewJob(name, name)])
            self.write(f"end {self.name} {lease.job.id} {lease.token} {int(won)}")
            self.write(f"ack {self.name} {name} {name} 1" if won else f"not {self.name} {name}")

    def doubled(self, queue: Queue, lease: Lease) -> None:
        """Put a job back and enqueue another of the same id, which exists already."""
        what = f"{self.name} {lease.job.id} {lease.token}"
        self.write(f"ask {what}")
        done = lease.retry(ASIDE, "aside")
        self.write(f"did {what} {int(done)}")
        if done:
            receipt = queue.enqueue(lease.job.payload, id=lease.job.id)
            self.write(f"dup {self.name} {lease.job.id} {int(receipt.added)}")
            queue.admin.reschedule(lease.job.id, 0.0)

    def settled(self, lease: Lease) -> bool:
        """Renew a lease, settle it in another way than by completing, or neither."""
        chance = self.dice.random()
        if chance < 0.25:
            self.fenced(lease, lease.renew)
        elif chance < 0.37:
            self.fenced(lease, lease.release)
        elif chance < 0.49:
            self.fenced(lease, lease.retry, self.dice.choice([0.0, 0.1]), "again")
        elif chance < 0.52 and lease.job.queue == QUEUE:
            self.fenced(lease, lease.dead_letter, "enough")
        else:
            return False
        return chance >= 0.25

    def fenced(self, lease: Lease, call: Any, *args: Any) -> None:
        what = f"{self.name} {load.named(lease.job)} {lease.token}"
        self.write(f"ask {what}")
        self.write(f"did {what} {int(call(*args))}")

    # -- a queue with a rate and a schedule --------------------------------------------------------

    def meter(self) -> None:
        """Produce a few more jobs than the rate admits, and lease them."""
        with Queue(
            METERED, url=self.orders.url, lease=LEASE, rate=RATE, max_attempts=None
        ) as queue:
            calm = self.orders.log.parent / CALM
            # As one that was killed has left it: to set it anew each time would put off its jobs
            # again and again.
            ticking = (
                None
                if self.dice.random() < 0.2
                else any(found.name == "tick" for found in queue.admin.schedules())
            )
            while not self.over:
                wanted = not calm.exists()
                if wanted is not ticking:
                    queue.admin.schedule(
                        "tick", b"tick", every=EVERY
                    ) if wanted else queue.admin.unschedule("tick")
                    ticking = wanted
                if wanted:
                    for _ in range(20 if queue.counts().waiting < 20 else 0):
                        self.produced += 1
                        self.enqueued(queue, f"{self.name}-m{self.produced}")
                leases = queue.lease_many(self.dice.randint(1, 20), block=0.2)
                for lease in leases:
                    told = (
                        "met {0}"
                        if lease.job.payload == b"tick"
                        else f"job {{0}} {lease.job.payload.decode()}"
                    )
                    self.write(f"{told.format(self.name)} {lease.job.id} {lease.token}")
                for lease in leases:
                    if self.dice.random() < 0.2 and lease.job.payload != b"tick":
                        self.fenced(lease, lease.release)
                    else:
                        self.write(
                            f"end {self.name} {lease.job.id} {lease.token} {int(lease.complete())}"
                        )

    # -- somebody who looks after it all -----------------------------------------------------------

    def operate(self) -> None:
        """End leases, fail workers, pause and resume, repair, and look."""
        with Queue(QUEUE, url=self.orders.url, **LEVELS) as queue:
            while not self.over:
                time.sleep(0.5 * self.dice.random())
                match self.dice.randrange(6):
                    case 0:
                        queue.admin.expire(
                            *(
                                []
                                if self.dice.random() < 0.3
                                else [s.job.id for s in queue.admin.running()][:3]
                            )
                        )
                    case 1:
                        living = queue.admin.workers()
                        if living:
                            queue.admin.fail_worker(self.dice.choice(living).name)
                    case 2:
                        queue.admin.pause()
                        time.sleep(0.3 * self.dice.random())
                        queue.admin.resume()
                    case 3:
                        queue.admin.repair()
                    case 4:
                        shown = queue.admin.peek()
                        if shown is not None:
                            queue.admin.position(shown.id)
                    case _:
                        sum(1 for _ in queue.admin.waiting())

    # -- runs of the flow --------------------------------------------------------------------------

    def begin(self) -> None:
        """Start runs, cancel some of them and some children, and redrive those that are only
        sick."""
        with ExitStack() as stack:
            flow = stack.enter_context(Flow(load.FLOW, url=self.orders.url, lookup=["who"]))
            load.declared(flow, LEASE)
            queues = {
                name: stack.enter_context(Queue(f"{load.FLOW}/{name}", url=self.orders.url))
                for name in load.STAGES
            }
            while not self.over:
                time.sleep(6 * PACE * self.dice.random())
                while (
                    not self.over and sum(c.present - c.dead for c in flow.counts().values()) > RUNS
                ):
                    time.sleep(5 * PACE)
                    redrive(queues)
                self.produced += 1
                name = load.Plan.drawn(self.dice).name(self.name, self.produced)
                self.late.append(name)
                delay = 0.5 * self.dice.random() if self.dice.random() < 0.1 else None
                self.write(f"beg {self.name} {name}")
                receipt = flow.start(name, id=name, delay=delay, attributes={"who": self.name})
                self.write(f"got {self.name} {name} {int(receipt.added)}")
                self.disturb(flow, queues)

    def disturb(self, flow: Flow, queues: dict[str, Queue]) -> None:
        """Cancel a run, or cancel a child in either way, or read the run."""
        name, chance = self.late[-self.dice.randint(1, min(4, len(self.late)))], self.dice.random()
        child = f"{name}/1/{self.dice.randint(0, 4)}"
        if chance < 0.15:
            self.verdict("can", "off", f"run|{name}", flow.cancel, name)
        elif chance < 0.19:
            self.verdict("can", "off", f"run|{child}", flow.cancel, child)
        elif chance < 0.25:
            stage = self.dice.choice(["pack", "weigh"])
            self.verdict("can", "off", f"{stage}|{child}", queues[stage].cancel, child)
        elif chance < 0.29:
            state = flow.state(name)
            assert state is None or state.id == name
        elif chance < 0.33:
            assert all(state.attributes == {"who": self.name} for state in flow.find(who=self.name))
        elif chance < 0.4:
            redrive(queues)

    def hand(self) -> None:
        """Lease from the stages without a worker, and settle in every way, some jobs twice."""
        with ExitStack() as stack:
            flow = stack.enter_context(
                Flow(load.FLOW, url=self.orders.url, lookup=["who"], dead_limit=10**6)
            )
            load.declared(flow, LEASE)
            options: Any = {
                "url": self.orders.url,
                "lease": LEASE,
                "dead_limit": 10**6,
                "max_attempts": None,
            }
            queues = [
                stack.enter_context(Queue(f"{load.FLOW}/{name}", **options)) for name in load.STAGES
            ]
            while not self.over:
                leases = self.dice.choice(queues).lease_many(self.dice.randint(1, 4), block=0.05)
                self.write(
                    *(
                        f"job {self.name} {x.job.payload.decode()} {load.named(x.job)} {x.token}"
                        for x in leases
                    )
                )
                for lease in leases:
                    time.sleep(PACE * self.dice.random())
                    if self.dice.random() < 2 * self.orders.dawdle:
                        time.sleep(LEASE * (1 + self.dice.random() / 2))
                    if not self.settled(lease):
                        self.move(flow, lease)

    def move(self, flow: Flow, lease: Lease) -> None:
        stage, state = lease.job.queue.partition("/")[2], flow.state(lease.job.id)
        try:
            if state is None:
                return  # it is over, and its lease ends by itself
            outcome = self.stepped(stage, lease.job, state)
        except DeadLetter as death:
            self.fenced(lease, lease.dead_letter, str(death))
            return
        name = f"fan|{lease.job.id}" if isinstance(outcome, FanOut) else load.named(lease.job)
        what = f"end {self.name} {name} {lease.token}"
        if stage == "weigh" and self.dice.random() < 0.2:
            self.write(f"{what} {int(lease.complete())}")
        else:
            self.write(f"{what} {int(flow.complete(lease, outcome))}")
        if self.dice.random() < 0.3:
            self.write(f"{what} {int(flow.complete(lease, outcome))}")

    def stepped(self, stage: str, job: Job, known: FlowJob | FlowState) -> Any:
        """Return the outcome of a stage's job."""
        outcome = load.step(stage, job, known.children, known.failed, self.orders.log.parent)
        if stage == "bill":
            self.write(f"bag {self.name} {job.id} {outcome.decode().replace(' ', '')}")
        return outcome

    # -- workers -----------------------------------------------------------------------------------

    def saw(self, jobs: Sequence[Job]) -> None:
        self.write(
            *(
                f"run {self.name} {job.payload.decode()} {load.named(job)} {job.attempt}"
                for job in jobs
            )
        )

    def judged(self) -> None:
        """Let a handler fail now and then."""
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

    def serve(self, stage: str) -> Callable[[FlowJob], Any]:
        """Handle a job of a stage."""

        def handle(job: FlowJob) -> Any:
            self.handle(job)
            return self.stepped(stage, job, job)

        return handle

    def serve_in_task(self, stage: str) -> Callable[[FlowJob], Any]:
        async def handle(job: FlowJob) -> Any:
            await self.handle_in_task(job)
            return self.stepped(stage, job, job)

        return handle

    async def handle_many(self, jobs: Sequence[Job]) -> None:
        self.saw(jobs)
        await asyncio.sleep(10 * PACE * self.dice.random())
        self.judged()

    def work(self) -> None:
        """Run a worker with threads or an event loop, with single jobs or batches. Some serve the
        flow too."""
        options: Any = {"lease": LEASE, "retry": Retry(wait=0.05), "dead_limit": 10**6}
        threads = self.orders.role.endswith("threads")
        kind: Any = Worker if threads else AsyncWorker
        worker = kind(url=self.orders.url, heartbeat=HEARTBEAT, timeout=TIMEOUT)
        if self.orders.role == "batches":
            worker.batch_handler(QUEUE, max_size=20, **options, **LEVELS)(self.handle_many)
        elif threads:
            worker.handler(QUEUE, concurrency=4, **options, **LEVELS)(self.handle)
        else:
            worker.handler(QUEUE, concurrency=8, **options, **LEVELS)(self.handle_in_task)
        if self.orders.role.startswith("flow"):
            flow: Any = Flow if threads else AsyncFlow
            made = flow(load.FLOW, url=self.orders.url, lookup=["who"], dead_limit=10**6)
            for stage, register in load.declared(made, LEASE).items():
                register(self.serve(stage) if threads else self.serve_in_task(stage))
            worker.flow(made)
        if not self.over:
            worker.run()


def redrive(queues: dict[str, Queue]) -> int:
    """Redrive the jobs that were meant to die once, and return their number."""
    number = 0
    for queue in queues.values():
        names = [
            letter.job.id
            for letter in queue.admin.dead()
            if load.Plan.of(letter.job.id).kind == "sick"
        ]
        number += queue.admin.redrive(*names) if names else 0
    return number


ROLES = {
    "producer": Actor.produce,
    "producer with ids": Actor.produce,
    "loop": Actor.loop,
    "threads": Actor.work,
    "tasks": Actor.work,
    "batches": Actor.work,
    "runs": Actor.begin,
    "hand": Actor.hand,
    "metered": Actor.meter,
    "operator": Actor.operate,
    "flow threads": Actor.work,
    "flow tasks": Actor.work,
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
        # A suspended process watches nothing. The kernel kills it when the fork server ends; which
        # does so with the tests only if we, its children, don't hold the other end of the pipe that
        # tells it.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        with suppress(AttributeError, OSError):
            os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]


def run(orders: Orders) -> None:
    """Run a process for its whole life. SIGTERM ends it properly."""
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
    except (exceptions.ConnectionError, exceptions.TimeoutError, OSError, LeasesLeft):
        # faults for longer than it tries, or than a stop waits; nothing may be lost by that
        sys.exit(GAVE_UP)
    except BaseException as error:
        actor.write(f"bad {actor.name} {error!r:.300}".replace("\n", " "))
        raise
