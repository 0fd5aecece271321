"""A storm of deploys. The code of parked runs changes again and again, and workers are replaced,
killed and suspended meanwhile. A ledger outside Redis judges.

    up VERSION               a worker begins, with this code
    att RUN VERSION          a delivery begins
    ask RUN PART VERSION     the code comes to a part
    end RUN PART NUMBER      the function of a step, or a child, returns this number
    val RUN PART NUMBER      the code has the value of a part
    misfit RUN PART VERSION  a record that does not fit has refused the code
    fin RUN VERSION          the handler returns
    bad RUN WHAT             something that can't be
"""

from __future__ import annotations

import json
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import define, evolve, field, frozen

from headrace import Job, Limit, Queue, Retry
from headrace.codecs import JSONCodec
from headrace.errors import CodecError, ConfigurationError
from headrace.inspect import Inspector
from tests.steps.changes import KINDS, Part, Program, made
from tests.steps.mutants import IN_MODULES, IN_STORMS, MUTANTS
from tests.support import storm
from tests.support.awaiting import until
from tests.support.engines import blocking, coroutine
from tests.support.planted import plant, plant_scripts
from tests.support.storm import Orders, Player, Writer

QUEUE = "orders"
CHILDREN = "orders/pack"
RUNS = 200
DEPLOYS = 30
NAP_S = 4.0  # of a sleep, at most
TENANTS = 5
SIGNALLED = 0.004  # of the runs that wait, in each round
REFUSALS = ("ConfigurationError: ", "CodecError: ")
OTHERS = ("limits", "roll back")  # changes beside those of the program
# which runs a deploy continues, most often all
RULES = ("any", "any", "any", "at_least", "same")
ONCE = Retry(attempts=1)  # one more attempt, and the run is dead


@define
class Box:
    n: int


@frozen
class Code:
    """The code of a deploy, and its settings."""

    version: int
    program: Program
    build: str
    rule: str = "any"
    limit: int = 0  # jobs of a tenant at the same time, or 0 for no limit

    def declared(self, url: str) -> Queue[Any]:
        limits = [Limit(self.limit, key="tenant")] if self.limit else []
        return Queue(QUEUE, url=url, codec=JSONCodec(), limits=limits)

    def write(self, path: Path) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(attrs.asdict(self)), "utf-8")
        fresh.replace(path)

    @classmethod
    def read(cls, path: Path) -> Code:
        given = json.loads(path.read_text("utf-8"))
        parts = tuple(Part(**part) for part in given.pop("program")["parts"])
        return cls(program=Program(parts), **given)


def number(value: Any) -> int:
    """Return the number by which a value is known, whichever type it was read as."""
    return int(value["n"] if isinstance(value, dict) else getattr(value, "n", value))


class Handler(Writer):
    """Takes the parts of a program, and writes them into the ledger."""

    def __init__(self, orders: Orders, code: Code) -> None:
        super().__init__(orders)
        self.code = code
        self.version = str(code.version)

    def noted(self, run: str, name: str) -> int:
        returned = self.dice.randrange(1, 10**9)
        self.write("end", run, name, str(returned))
        return returned

    def function(self, run: str, part: Part) -> Callable[[], Any]:
        def act() -> Any:
            returned = self.noted(run, part.name)
            if "dict" in part.type:
                return {"n": returned}
            return {"int": int, "str": str, "Box": Box}[part.base](returned)

        act.__annotations__ = {"return": part.type}
        return act

    def run(self, job: Job) -> Any:
        """Handle a run, as the body of a handler of either colour."""
        run = job.id
        self.write("att", run, self.version)
        for part in self.code.program.parts:
            self.write("ask", run, part.name, self.version)
            try:
                value = yield from self.take(job, part)
            except (ConfigurationError, CodecError):
                self.write("misfit", run, part.name, self.version)
                raise
            if part.kind in ("step", "child"):
                self.write("val", run, part.name, str(number(value)))
            elif part.kind == "wait" and value != run:
                self.write("bad", run, f"{part.name} has the signal {value}")
        self.write("fin", run, self.version)

    def take(self, job: Job, part: Part) -> Any:
        match part.kind:
            case "sleep":
                yield partial(job.sleep, part.name, NAP_S * self.dice.random())
            case "wait":
                return (yield partial(job.wait_for, part.name))
            case "child":
                return (yield partial(job.run, (CHILDREN, part.name), child=part.name))
            case _:
                return (yield partial(job.step, part.name, self.function(job.id, part)))

    def child(self, job: Job) -> int:
        assert job.parent is not None
        return self.noted(job.parent[1], str(job.payload))


def work(orders: Orders) -> None:
    """Run a worker with the code that is deployed now."""
    patch = pytest.MonkeyPatch()
    scripts = MUTANTS | IN_STORMS
    if orders.mutant in scripts:
        plant_scripts(patch, scripts[orders.mutant])
    elif orders.mutant:
        plant(patch, *IN_MODULES[orders.mutant])
    code = Code.read(orders.ledger.with_name("code"))
    handler, worker = Handler(orders, code), orders.worker(build=code.build)
    adapt = blocking if orders.kind == "threads" else coroutine
    queue = code.declared(orders.url)
    worker.handler(queue, concurrency=8, retry=ONCE, runs=code.rule)(adapt(handler.run))
    worker.handler(CHILDREN, codec=JSONCodec(), retry=ONCE)(adapt(handler.child))
    handler.write("up", handler.version)
    worker.run()


@define(eq=False)
class Fridays(storm.Storm):
    """A storm of deploys over runs that were parked before."""

    NAME = QUEUE
    LEFT = frozenset({"jobs", "wake", "stats", "taken", "workers", "registered", "dead", "control"})
    PATIENCE = 180.0
    TICK = 0.05
    HURTS = 0.05
    work = work

    past: list[Code] = field(factory=list[Code])
    left: list[str] = field(factory=list[str])  # changes to come
    outdated: list[Player] = field(factory=list[Player])
    runs: list[str] = field(factory=list[str])
    found: list[str] = field(factory=list[str])  # complaints of the operator
    withheld: set[str] = field(factory=set[str])  # runs that waited for a build

    def declared(self, url: str) -> Queue[Any]:
        return Queue(QUEUE, url=url, codec=JSONCodec())

    @property
    def written(self) -> str:
        return self.ledger.read_text()

    # -- deploys -----------------------------------------------------------------------------------

    def deploy(self, code: Code) -> None:
        code.write(self.ledger.with_name("code"))
        self.past.append(code)
        self.outdated = self.dice.sample(self.players, len(self.players))

    def up(self) -> bool:
        """Tell whether a worker has the latest code."""
        return f"up {self.past[-1].version}\n" in self.written

    def change(self) -> None:
        now = self.past[-1]
        kind = self.left.pop()
        self.did[kind] += 1
        fresh = evolve(
            now,
            version=now.version + 1,
            build=f"2026.11.{now.version + 1}",
            rule=self.dice.choice(RULES),
        )
        parts = now.program.parts
        if kind == "roll back":
            before = self.past[-2:][0]
            fresh = evolve(fresh, program=before.program, build=before.build)
        elif kind == "limits":
            fresh = evolve(
                fresh, limit=self.dice.choice([one for one in (0, 2, 5) if one != now.limit])
            )
        else:
            at = self.dice.randrange(len(parts))
            changed = now.program.changed(kind, at, self.dice)
            fresh = evolve(fresh, program=Program(changed.parts))
        self.deploy(fresh)

    def roll(self) -> None:
        """Stop or kill a worker of the old code. It is replaced by one of the new code."""
        player = self.outdated.pop()
        player.signal(self.dice.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]))

    def hurt(self) -> None:
        """Kill a worker. A job that a suspended one holds alone would spend its attempt."""
        self.did["SIGKILL"] += 1
        self.dice.choice(self.players).process.kill()

    # -- the operator ------------------------------------------------------------------------------

    def send(self, share: float) -> None:
        """Send signals to runs that wait."""
        for one in self.queue.admin.runs(state="blocked"):
            if one.kind == "wait" and self.dice.random() < share:
                self.did["signalled"] += self.queue.signal(one.id, one.at, one.id) == "woke"

    def redrive(self) -> None:
        for state in self.queue.admin.dead():
            if not (state.reason or "").startswith(REFUSALS):
                self.found.append(f"died: {state.job.id} of {state.reason}")
        self.did["redriven"] += self.queue.admin.redrive()

    def look(self) -> None:
        """Find each run. One that has not ended is in the lists, by name."""
        listed = {one.id: one for one in self.queue.admin.runs()}
        self.withheld |= {one.id for one in listed.values() if one.waits_for}
        for run in self.runs:
            if (state := self.queue.find(run)) is None:
                if f"fin {run} " not in self.written:
                    self.found.append(f"lost: {run}")
            elif state.state in ("blocked", "delayed") and run not in listed:
                again = {one.id: one for one in self.queue.admin.runs()}
                same = self.queue.find(run)
                if run not in again and same is not None and same.state == state.state:
                    self.found.append(f"unnamed: {run} is {state.state}, and not listed")

    # -- the story ---------------------------------------------------------------------------------

    def blow(self, seconds: float, until_heard: tuple[str, ...] = ()) -> None:
        first, second, _, *others = made(self.dice).parts
        program = Program((first, second, Part("approved", "wait"), *others))
        self.deploy(Code(0, program, "2026.11.0"))
        kinds = [*KINDS, *OTHERS]
        self.left = (kinds * DEPLOYS)[:DEPLOYS]
        self.dice.shuffle(self.left)
        super().blow(seconds, until_heard)

    def round(self) -> None:
        if not self.runs:
            self.runs = [f"order-{number}" for number in range(RUNS)]
            for number, run in enumerate(self.runs):
                self.queue.enqueue(1, id=run, headers={"tenant": str(number % TENANTS)})
        counts = self.queue.counts()
        if len(self.past) == 1 and counts.blocked + counts.delayed < RUNS:
            return
        self.send(SIGNALLED)
        if self.outdated:
            self.roll()
        elif self.left and self.up():
            self.look()
            if self.dice.random() < 0.5:
                self.redrive()
            self.change()

    def withhold(self) -> None:
        """Deploy code that continues no run, and wait until the lists say so of each."""
        self.deploy(evolve(self.past[-1], version=99, build="none", rule="same"))

        def named() -> bool:
            self.tend()
            if self.outdated:
                self.roll()
            self.send(1.0)
            runs = [*self.queue.admin.runs()]
            return not self.outdated and all(one.waits_for for one in runs) and self.idle(len(runs))

        until(named, "a name for each run that is held back", self.PATIENCE)
        self.did["held back at last"] = len([*self.queue.admin.runs()])
        until(self.attention, "attention to the builds that are missing", self.PATIENCE)
        self.look()

    def attention(self) -> bool:
        self.tend()
        with Inspector(url=self.server.url, fresh=0.0) as look:
            return any(one.kind == "build" for one in look.overview().attention)

    def idle(self, runs: int) -> bool:
        counts = self.queue.counts()
        return bool(counts.present - counts.dead == runs)

    def last_round(self) -> None:
        """Deploy code without steps, by which each run can end."""
        if self.past[-1].program.parts:
            self.deploy(Code(100, Program(()), "2026.12.1"))
        while self.outdated:
            self.outdated.pop().signal(signal.SIGTERM)
        self.send(1.0)
        self.redrive()

    def complaints(self) -> list[str]:
        return [*self.found, *judged(self.written, {one.version: one.program for one in self.past})]

    def seen(self) -> Counter[str]:
        return Counter(line.partition(" ")[0] for line in self.written.splitlines()) + self.did

    def lacks(self) -> list[str]:
        seen = self.seen()
        wanted = {"SIGKILL": 3, "misfit": 5, "redriven": 5, "signalled": 20}
        few = [
            f"{name}: {seen[name]} of {least}"
            for name, least in wanted.items()
            if seen[name] < least
        ]
        return few + [f"deploys: {one} to come" for one in self.left]

    def verdict(self) -> list[str]:
        """List complaints, by the ledger and by the keys that are left on the server."""
        wrong, counts = self.complaints(), self.queue.counts()
        if counts.lost or (counts.enqueued, counts.completed, counts.present) != (RUNS, RUNS, 0):
            wrong.append(f"lost or twice: {counts}")
        if not self.withheld:
            wrong.append("no run was held back")
        return wrong

    def story(self) -> str:
        seen = self.seen()
        return (
            f"seed {self.seed}: {len(self.runs)} runs, {len(self.past) - 1} deploys, {seen['att']} deliveries, "
            f"{seen['up']} workers, {seen['misfit']} misfits told, {len(self.withheld)} runs held back; {self.faults()}"
        )


@define
class Ledger:
    """The sums of the lines of a ledger."""

    programs: Mapping[int, Program]
    asked: dict[tuple[str, str], set[Part]] = field(
        factory=lambda: defaultdict[tuple[str, str], set[Part]](set)
    )
    ended: set[tuple[str, str, str]] = field(factory=set)
    values: dict[tuple[str, str], set[str]] = field(
        factory=lambda: defaultdict[tuple[str, str], set[str]](set)
    )
    wrong: list[str] = field(factory=list)

    def part(self, version: str, name: str) -> Part:
        return next(one for one in self.programs[int(version)].parts if one.name == name)

    def read(self, word: str, run: str, *rest: str) -> None:
        """Take a line in."""
        match word:
            case "ask":
                self.asked[run, rest[0]].add(self.part(rest[1], rest[0]))
            case "end":
                self.ended.add((run, *rest))  # type: ignore[arg-type]
            case "val":
                self.values[run, rest[0]].add(rest[1])
                if (run, *rest) not in self.ended:
                    self.wrong.append(f"phantom: {run} {rest[0]} has {rest[1]}")
            case "misfit":
                part = self.part(rest[1], rest[0])
                others = self.asked[run, rest[0]] - {part}
                if not any((one.kind, one.base) != (part.kind, part.base) for one in others):
                    self.wrong.append(f"refused: {run} {rest[0]}, which fits")
            case "bad":
                self.wrong.append(f"bad: {run} {rest}")


def judged(text: str, programs: Mapping[int, Program]) -> list[str]:
    """Return complaints about a ledger. *programs* are the deployed ones, by version."""
    ledger = Ledger(programs)
    for line in text.splitlines():
        ledger.read(*line.split(" "))
    return ledger.wrong + [
        f"other values: {run} {part} has {sorted(some)}"
        for (run, part), some in ledger.values.items()
        if len(some) > 1
    ]
