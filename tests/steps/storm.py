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
    und RUN STEP NONCE   the step is undone, as its run dies
    fin RUN NONCE...     the handler has all values, and returns
    bad RUN WHAT         something that can't be
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from attrs import define, field

from headrace import DeadLetter, Job, Queue
from headrace.errors import InDoubt, RunLost
from tests.steps.mutants import IN_MODULES, MUTANTS
from tests.support import storm
from tests.support.planted import plant, plant_scripts
from tests.support.storm import Orders, Writer

QUEUE = "runs"
STEPS = 5
ONCE = {"s2"}
UNDO = {"s0", "s3"}
DIES = 0.2  # of the runs, by their own decision at their end
IDS = 24  # each is used again when its job has ended


class Handler(Writer):
    """Takes the steps of a run and writes them into the ledger."""

    def function(self, run: str, step: str, box: list[str]) -> Callable[[], str]:
        def act() -> str:
            nonce = uuid4().hex[:12]
            self.write("beg", run, step, nonce)
            time.sleep(0.03 * self.dice.random())
            box.append(nonce)
            self.write("end", run, step, nonce)
            return nonce

        return act

    def takes_back(self, run: str, step: str) -> Callable[[str], None] | None:
        return partial(self.write, "und", run, step) if step in UNDO else None

    def changes_its_mind(self) -> bool:
        return self.dice.random() < DIES

    def recorded(self, run: str, step: str, box: list[str]) -> None:
        if box:
            self.write("rec", run, step, box.pop())

    def refused(self, run: str, step: str, box: list[str]) -> None:
        self.write("los", run, step, box[0]) if box else self.write("oth", run)

    def answered(self, run: str, data: Any) -> None:
        if data != run:
            self.write("bad", run, f"signal of {data}")

    def threads(self, job: Job) -> None:
        """Handle a job for a `Worker`."""
        run, values = job.payload.decode(), []
        for number in range(STEPS):
            step, box = f"s{number}", list[str]()
            try:
                undo = self.takes_back(run, step)
                values.append(
                    job.step(step, self.function(run, step, box), once=step in ONCE, undo=undo)
                )
                self.recorded(run, step, box)
                if number == 1:
                    job.sleep("nap", 0.3 * self.dice.random())
                if number == 3:
                    self.answered(run, job.wait_for("go"))
            except RunLost:
                self.refused(run, step, box)
                raise
            except InDoubt:
                self.write("dbt", run, step)
                raise DeadLetter(f"doubt {step}") from None
        if job.step("mind", self.changes_its_mind, undo=lambda _: None):
            raise DeadLetter("over")
        self.write("fin", run, *values)

    async def tasks(self, job: Job) -> None:
        """Handle a job for an `AsyncWorker`."""
        run, values = job.payload.decode(), []
        for number in range(STEPS):
            step, box = f"s{number}", list[str]()
            try:
                undo = self.takes_back(run, step)
                values.append(
                    await job.step(
                        step,
                        asyncio.to_thread,
                        self.function(run, step, box),
                        once=step in ONCE,
                        undo=undo,
                    )
                )
                self.recorded(run, step, box)
                if number == 1:
                    await job.sleep("nap", 0.3 * self.dice.random())
                if number == 3:
                    self.answered(run, await job.wait_for("go"))
            except RunLost:
                self.refused(run, step, box)
                raise
            except InDoubt:
                self.write("dbt", run, step)
                raise DeadLetter(f"doubt {step}") from None
        if await job.step("mind", self.changes_its_mind, undo=lambda _: None):
            raise DeadLetter("over")
        self.write("fin", run, *values)


def work(orders: Orders) -> None:
    patch = pytest.MonkeyPatch()
    if orders.mutant in MUTANTS:
        plant_scripts(patch, MUTANTS[orders.mutant])
    elif orders.mutant:
        plant(patch, *IN_MODULES[orders.mutant])
    handler, worker = Handler(orders), orders.worker()
    take = handler.threads if orders.kind == "threads" else handler.tasks
    worker.handler(QUEUE, concurrency=4, max_attempts=5)(take)
    worker.run()


@define(eq=False)
class Storm(storm.Storm):
    """A storm over runs that take steps, sleep and wait."""

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

    runs: dict[str, str] = field(factory=dict)  # by id: the run that has it now
    serial: int = 0
    sent: Counter[str] = field(factory=Counter)  # signals that a run has taken

    def declared(self, url: str) -> Queue[Any]:
        return Queue(QUEUE, url=url, max_attempts=5)

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
        """Redrive a job from a step in doubt, which runs again."""
        for state in self.queue.admin.dead():
            run, (word, _, step) = state.job.payload.decode(), (state.reason or "").partition(" ")
            step = step.partition(";")[0]  # it may say what is not undone
            if word == "doubt":
                with self.ledger.open("a") as file:
                    file.write(f"red {run} {step}\n")
                self.did["redriven"] += self.queue.admin.redrive(state.job.id, from_step=step)
            else:
                self.did["redriven"] += self.queue.admin.redrive(state.job.id)

    @property
    def written(self) -> str:
        return self.ledger.read_text()

    # -- the story ---------------------------------------------------------------------------------

    def round(self) -> None:
        self.enqueue()
        self.send(0.05)
        self.redrive()

    def last_round(self) -> None:
        self.send(1.0)
        self.redrive()

    def complaints(self) -> list[str]:
        return judged(self.written, self.sent)

    def seen(self) -> Counter[str]:
        """Count the lines of the ledger by their first word."""
        return Counter(line.partition(" ")[0] for line in self.written.splitlines())

    def lacks(self) -> list[str]:
        seen = self.seen() + self.did
        wanted = {
            "und": 5,
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
        self.sweep()
        return [*wrong, *self.left_behind()]

    def story(self) -> str:
        seen = self.seen()
        return (
            f"seed {self.seed}: {self.serial} runs, {seen['end']} steps ended, {seen['rec']} recorded, "
            f"{seen['los'] + seen['oth']} refused to zombies ({seen['los']} with their value), {seen['dbt']} in doubt; "
            f"{self.faults()}"
        )


@define
class Ledger:
    """The sums of the lines of a ledger."""

    began: Counter[tuple[str, str]] = field(factory=Counter)
    redriven: Counter[tuple[str, str]] = field(factory=Counter)
    ended: dict[str, tuple[str, str]] = field(factory=dict)
    lost: set[str] = field(factory=set)
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
                self.redriven.update(
                    (run, f"s{number}") for number in range(int(rest[0][1:]), STEPS)
                )
            case "und":
                self.undone[run, rest[0]].add(rest[1])
            case "fin":
                gone = {nonce for step in UNDO for nonce in self.undone[run, step]}
                self.wrong += [f"undone: {run} ended with {one}" for one in gone & {*rest}]
                for number, nonce in enumerate(rest):
                    self.recorded[run, f"s{number}"].add(nonce)
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
    for (run, step), times in ledger.began.items():
        if step in ONCE and times > 1 + ledger.redriven[run, step]:
            wrong.append(f"once: {run} {step} began {times} times")
    wrong += [
        f"signal: {run} took {n}" for run, n in sent.items() if n > 1 + ledger.redriven[run, "s3"]
    ]
    return wrong
