"""A storm over runs. Workers are killed, suspended and cut off, and the server is killed. A ledger
outside Redis judges.

Each function of a step appends to the ledger as it begins and as it ends, with a nonce, which is
the step's value:

    beg RUN STEP NONCE   the function begins
    end RUN STEP NONCE   it ends
    rec RUN STEP NONCE   the step was recorded
    los RUN STEP NONCE   its end was refused: the lease was lost meanwhile
    oth RUN              a step, sleep or wait was refused before a function ran
    dbt RUN STEP         a step with once=True was in doubt
    red RUN STEP         the operator lets it run again
    die RUN              the handler makes its job a dead letter
    und RUN STEP NONCE   the step is undone, as its run dies
    died RUN             the operator finds its dead letter
    cho RUN NAME         the first of several is over
    fin RUN NONCE...     the handler has all values, and returns
    bad RUN WHAT         something that can't be

A child writes `beg` and `end` like a step of its parent, by its name. Its value is a nonce, too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Self
from uuid import uuid4

import pytest
from attrs import define, field

from headrace import DeadLetter, Job, Queue
from headrace.errors import ChildFailed, InDoubt, RunLost
from tests.children import mutants as children
from tests.steps.mutants import IN_MODULES, MODULES_IN_STORMS, MUTANTS
from tests.support import storm
from tests.support.engines import blocking, coroutine
from tests.support.planted import plant, plant_scripts
from tests.support.storm import Orders, Writer

QUEUE = "runs"
CHILDREN = "runs/c"
# in the order of their records; a child is named after its queue
ORDER = ["s0", "s1", "s2", "c", "c-2", "s3", "own", "first", "s4"]
FINAL = ["s0", "s1", "s2", "c", "c-2", "s3", "s4"]  # whose values a run returns
ONCE = {"s2"}
UNDO = {"s0", "s3"}
DIES = 0.2  # of the runs, by their own decision at their end
CHILD_DIES = 0.05
DEATHS = {"doubt", "child", "over"}  # the first words of the reasons of dead letters
IDS = 24  # each is used again when its job has ended


class Handler(Writer):
    """Takes the steps of a run, with its children, and writes them into the ledger."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        # a step's function blocks, so it is kept off the event loop
        self.beside: tuple[Any, ...] = () if orders.kind == "threads" else (asyncio.to_thread,)

    def function(self, run: str, step: str, box: list[str]) -> Callable[[], str]:
        def act() -> str:
            nonce = uuid4().hex[:12]
            self.write("beg", run, step, nonce)
            time.sleep(0.03 * self.dice.random())
            box.append(nonce)
            self.write("end", run, step, nonce)
            return nonce

        return act

    def changes_its_mind(self) -> bool:
        return self.dice.random() < DIES

    def step(self, job: Job, step: str) -> Any:
        run, box = job.payload.decode(), list[str]()
        act = self.function(run, step, box)
        undo = partial(self.write, "und", run, step) if step in UNDO else None
        try:
            value = yield partial(job.step, step, *self.beside, act, once=step in ONCE, undo=undo)
        except RunLost:
            if box:
                self.write("los", run, step, box[0])
            raise
        except InDoubt:
            self.write("dbt", run, step)
            self.dies(run, f"doubt {step}")
        if box:
            self.write("rec", run, step, box.pop())
        return value

    def dies(self, run: str, why: str) -> NoReturn:
        self.write("die", run)
        raise DeadLetter(why)

    def run(self, job: Job) -> Any:
        """Handle a job, as the body of a handler of either colour."""
        run = job.payload.decode()
        try:
            values = yield from self.parts(job, run)
        except ChildFailed as failure:
            self.dies(run, f"child {failure.id.rpartition('/')[2].partition('~')[0]}")
        except RunLost:
            self.write("oth", run)
            raise
        if (yield partial(job.step, "mind", self.changes_its_mind, undo=lambda _: None)):
            self.dies(run, "over")
        self.write("fin", run, *values)

    def parts(self, job: Job, run: str) -> Any:
        values = [(yield from self.step(job, "s0")), (yield from self.step(job, "s1"))]
        yield partial(job.sleep, "nap", 0.3 * self.dice.random())
        values.append((yield from self.step(job, "s2")))
        calls = [(CHILDREN, f"{run} {name}".encode()) for name in ("c", "c-2")]
        some = yield partial(job.run_all, calls, failed=self.dice.choice(["cancel", "wait"]))
        for name, value in zip(("c", "c-2"), some, strict=True):
            values.append((value or b"none").decode())
            self.write("rec", run, name, values[-1])
        values.append((yield from self.step(job, "s3")))
        if (data := (yield partial(job.wait_for, "go"))) != run:
            self.write("bad", run, f"signal of {data}")
        child = yield partial(job.start, (CHILDREN, f"{run} own".encode()), child="own")
        timer = job.timer(seconds=0.05 * self.dice.random())
        first = yield partial(job.first, done=child, late=timer)
        self.write("cho", run, first.name)
        if first.name == "done":
            self.write("rec", run, "own", (first.value or b"none").decode())
        values.append((yield from self.step(job, "s4")))
        return values

    def child(self, job: Job) -> bytes:
        """Handle a child. Some of them die."""
        run, name = job.payload.decode().split()
        if self.dice.random() < CHILD_DIES:
            raise DeadLetter("so a child ends")
        return self.function(run, name, [])().encode()


def work(orders: Orders) -> None:
    patch = pytest.MonkeyPatch()
    scripts, modules = MUTANTS | children.MUTANTS, IN_MODULES | MODULES_IN_STORMS
    if orders.mutant in scripts:
        plant_scripts(patch, scripts[orders.mutant])
    elif orders.mutant:
        plant(patch, *modules[orders.mutant])
    handler, worker = Handler(orders), orders.worker()
    adapt = blocking if orders.kind == "threads" else coroutine
    for queue, body in ((QUEUE, handler.run), (CHILDREN, handler.child)):
        worker.handler(queue, concurrency=4, max_attempts=5)(adapt(body))
    worker.run()


@define(eq=False)
class Storm(storm.Storm):
    """A storm over runs that take steps, sleep, wait, and have children."""

    NAME = QUEUE
    LEFT = frozenset(
        {
            *{"jobs", "wake", "stats", "taken", "workers", "registered", "dead", "control"},
            "cancels",  # it expires
        }
    )
    PATIENCE = 90.0
    TICK = 0.05
    HURTS = 0.1
    work = work

    children: Queue[Any] = field(init=False)
    runs: dict[str, str] = field(factory=dict)  # by id: the run that has it now
    serial: int = 0
    sent: Counter[str] = field(factory=Counter)  # signals that a run has taken
    found: list[str] = field(factory=list[str])  # complaints of the operator

    def __enter__(self) -> Self:
        super().__enter__()
        children = Queue(CHILDREN, url=self.server.url, max_attempts=5)
        self.children = self._stack.enter_context(children)
        return self

    def declared(self, url: str) -> Queue[Any]:
        return Queue(QUEUE, url=url, max_attempts=5)

    def present(self) -> int:
        of_children = self.children.counts()
        return super().present() + of_children.present - of_children.dead

    # -- the operator ------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Enqueue a job. An id is used again once its run has ended."""
        for number in range(IDS):
            name = f"job-{number}"
            if name in self.runs and f"fin {self.runs[name]} " not in self.written:
                continue
            self.serial += 1
            run = f"r{self.serial}"
            if self.queue.enqueue(run.encode(), id=name).added:
                self.runs[name] = run
            else:  # it has not completed yet, or is dead
                self.serial -= 1

    def send(self, share: float) -> None:
        """Send a signal before, during or after its wait."""
        for name, run in self.runs.items():
            if self.dice.random() < share:
                outcome = self.queue.signal(name, "go", run)
                if outcome in ("woke", "kept"):
                    self.sent[run] += 1
                self.did[outcome] += 1

    def redrive(self) -> None:
        """Redrive a job, from a step in doubt or a child that has failed, which run again."""
        for state in self.queue.admin.dead():
            run, reason = state.job.payload.decode(), state.reason or ""
            word, _, step = reason.partition(";")[0].partition(
                " "
            )  # it may list steps that are not undone
            if word not in DEATHS:
                self.found.append(f"died: {run} of {reason}")
                step = ""
            self.did[f"dead of {word}"] += 1
            with self.ledger.open("a") as file:
                file.write(f"died {run}\n")
                if step:
                    file.write(f"red {run} {step}\n")
            self.did["redriven"] += self.queue.admin.redrive(state.job.id, from_step=step or None)

    def meddle(self) -> None:
        """Cancel a child."""
        child = f"{self.dice.choice([*self.runs])}/{self.dice.choice(['c', 'c-2'])}"
        self.did["child cancelled"] += self.children.cancel(child)

    def open_children(self, id: str) -> list[str]:
        """Return the ids of the children that have not ended, as the records of a run say."""
        state = self.queue.find(id)
        steps = () if state is None else state.steps
        return [str(one.child) for one in steps if one.state == "running"]

    def look(self) -> None:
        """Find the children for which runs wait."""
        for run in self.queue.admin.runs(state="blocked"):
            for child in self.open_children(run.id) if run.kind == "child" else ():
                if self.gone(child) and child in self.open_children(run.id) and self.gone(child):
                    self.found.append(f"forgotten: {run.id} waits for {child}")

    def gone(self, child: str) -> bool:
        state = self.children.find(child)
        return state is None or state.state == "dead"

    @property
    def written(self) -> str:
        return self.ledger.read_text()

    # -- the story ---------------------------------------------------------------------------------

    def round(self) -> None:
        self.enqueue()
        self.send(0.05)
        self.redrive()
        self.meddle()
        if self.dice.random() < 0.1:
            self.look()

    def last_round(self) -> None:
        self.send(1.0)
        self.redrive()

    def complaints(self) -> list[str]:
        return [*self.found, *judged(self.written, self.sent)]

    def seen(self) -> Counter[str]:
        """Count the lines of the ledger by their first word."""
        return Counter(line.partition(" ")[0] for line in self.written.splitlines())

    def lacks(self) -> list[str]:
        seen = self.seen() + self.did
        wanted = {
            "und": 5,
            "dead of over": 3,
            "dead of child": 3,
            "child cancelled": 1,
            "cho": 10,
            "SIGKILL": 3,
            "SIGSTOP": 3,
            "fin": 30,
            "los": 1,
            "oth": 1,
            "woke": 5,
            "kept": 5,
        }
        return [
            f"{name}: {seen[name]} of {least}"
            for name, least in wanted.items()
            if seen[name] < least
        ]

    def verdict(self) -> list[str]:
        """List complaints, by the ledger and by the keys that are left on the server."""
        counts, wrong = self.queue.counts(), self.complaints()
        if counts.lost or counts.completed != counts.enqueued or counts.enqueued != self.serial:
            wrong.append(f"lost or twice: {self.serial} runs, {counts}")
        if (counts := self.children.counts()).lost:
            wrong.append(f"lost: {counts}")
        if self.client.exists(f"headrace:{{{QUEUE}}}:{CHILDREN}:links"):
            wrong.append("left behind: links of children")
        self.sweep()
        return [*wrong, *self.left_behind()]

    def story(self) -> str:
        seen = self.seen()
        return (
            f"seed {self.seed}: {self.serial} runs, {seen['end']} steps ended, {seen['rec']} recorded, "
            f"{seen['oth']} refused to zombies ({seen['los']} with their value), {seen['dbt']} in doubt; "
            f"{self.faults()}"
        )


@define
class Ledger:
    """The sums of the lines of a ledger."""

    began: Counter[tuple[str, str]] = field(factory=Counter)
    redriven: Counter[tuple[str, str]] = field(factory=Counter)
    ended: dict[str, tuple[str, str]] = field(factory=dict)
    lost: set[str] = field(factory=set)
    died: set[str] = field(factory=set)
    chosen: dict[str, set[str]] = field(factory=lambda: defaultdict[str, set[str]](set))
    undone: dict[tuple[str, str], set[str]] = field(
        factory=lambda: defaultdict[tuple[str, str], set[str]](set)
    )
    recorded: dict[tuple[str, str], set[str]] = field(
        factory=lambda: defaultdict[tuple[str, str], set[str]](set)
    )
    finals: dict[str, list[str]] = field(factory=dict)
    wrong: list[str] = field(factory=list)

    def read(self, word: str, run: str, *rest: str) -> None:
        """Take a line in."""
        match word:
            case "beg":
                self.began[run, rest[0]] += 1
            case "end":
                self.ended[rest[1]] = run, rest[0]
            case "rec":
                self.recorded[run, rest[0]].add(rest[1])
            case "los":
                self.lost.add(rest[1])
            case "red":  # that step, and all after it, are forgotten
                self.redriven.update((run, one) for one in ORDER[ORDER.index(rest[0]) :])
            case _:
                self.read_of_run(word, run, *rest)

    def read_of_run(self, word: str, run: str, *rest: str) -> None:
        match word:
            case "die":
                self.died.add(run)
            case "und":
                self.undone[run, rest[0]].add(rest[1])
                if run not in self.died:
                    self.wrong.append(f"undone: {run} {rest[0]}, and it lives")
            case "died":
                self.wrong += [
                    f"not undone: {run} {step} has {one}, and it is dead"
                    for step in UNDO
                    for one in self.recorded[run, step] - self.undone[run, step]
                ]
            case "cho":
                self.chosen[run].add(rest[0])
            case "fin":
                gone = {nonce for step in UNDO for nonce in self.undone[run, step]}
                self.wrong += [f"undone: {run} ended with {one}" for one in gone & {*rest}]
                for step, nonce in zip(FINAL, rest, strict=False):
                    self.recorded[run, step].add(nonce)
                if self.finals.setdefault(run, [*rest]) != [*rest]:
                    self.wrong.append(
                        f"other values: {run} ended with {self.finals[run]}, and {rest}"
                    )
            case "bad":
                self.wrong.append(f"bad: {run} {rest}")


def judged(text: str, sent: Counter[str]) -> list[str]:
    """Return complaints about a ledger. *sent* is the number of signals that each run accepted."""
    ledger = Ledger()
    for line in text.splitlines():
        ledger.read(*line.split(" "))
    wrong = ledger.wrong
    for (run, step), nonces in ledger.recorded.items():
        undone = ledger.undone[run, step]
        wrong += [
            f"undone: {run} {step} has {one}, unrecorded"
            for one in undone - nonces - {*ledger.ended}
        ]
        if len(nonces) > 1 + ledger.redriven[run, step] + len(undone):
            wrong.append(f"twice: {run} has {len(nonces)} records of {step}")
        wrong += [
            f"phantom: {run} {step} has {nonce}"
            for nonce in nonces
            if ledger.ended.get(nonce) != (run, step)
        ]
        wrong += [
            f"zombie: {run} {step} was refused {nonce}, and has it"
            for nonce in nonces & ledger.lost
        ]
    wrong += [
        f"another choice: {run} chose {sorted(names)}"
        for run, names in ledger.chosen.items()
        if len(names) > 1 + ledger.redriven[run, "first"]
    ]
    for (run, step), times in ledger.began.items():
        if step in ONCE and times > 1 + ledger.redriven[run, step]:
            wrong.append(f"once: {run} {step} began {times} times")
    wrong += [
        f"signal: {run} took {n}" for run, n in sent.items() if n > 1 + ledger.redriven[run, "s3"]
    ]
    return wrong
