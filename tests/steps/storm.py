"""A storm over runs: workers killed, suspended and cut off, the server killed; judged by a ledger outside Redis.

Each function of a step appends to the ledger as it begins and as it ends, with a nonce, which is the step's value:

    beg RUN STEP NONCE   the function begins
    end RUN STEP NONCE   it ends
    rec RUN STEP NONCE   the step was recorded
    los RUN STEP NONCE   its end was refused: the lease was lost meanwhile
    oth RUN              a step, sleep or wait was refused before a function ran
    dbt RUN STEP         a step with once=True was in doubt
    red RUN STEP         the operator lets it run again
    fin RUN NONCE...     the handler has all values, and returns
    bad RUN WHAT         something that can't be
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pytest
import redis
from attrs import define, field, frozen

from headrace import AsyncWorker, DeadLetter, Job, Queue, Worker
from headrace.errors import InDoubt, RunLost
from tests.chaos.proxy import Proxy
from tests.steps.mutants import IN_MODULES, MUTANTS
from tests.support.planted import plant, plant_scripts
from tests.support.processes import CONTEXT
from tests.support.servers import EXACT, Binary, Server

HEARTBEAT, TIMEOUT = 0.3, 1.2
QUEUE = "runs"
STEPS = 5
ONCE = {"s2"}
IDS = 24  # each is used again when its job has ended
PATIENCE = 90.0
TICK = 0.05
LEFT = {"jobs", "wake", "stats", "taken", "workers", "registered", "dead", "control"}


@frozen
class Orders:
    """The orders of a worker process."""

    kind: str
    url: str
    ledger: Path
    seed: int
    mutant: str = ""


class Handler:
    """Takes the steps of a run, and says so in the ledger."""

    def __init__(self, orders: Orders) -> None:
        self.dice = random.Random(orders.seed)
        self.file = os.open(orders.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: str) -> None:
        os.write(self.file, (" ".join(words) + "\n").encode())

    def function(self, run: str, step: str, box: list[str]) -> Callable[[], str]:
        def act() -> str:
            nonce = uuid4().hex[:12]
            self.write("beg", run, step, nonce)
            time.sleep(0.03 * self.dice.random())
            box.append(nonce)
            self.write("end", run, step, nonce)
            return nonce

        return act

    def recorded(self, run: str, step: str, box: list[str]) -> None:
        if box:
            self.write("rec", run, step, box.pop())

    def refused(self, run: str, step: str, box: list[str]) -> None:
        self.write("los", run, step, box[0]) if box else self.write("oth", run)

    def answered(self, run: str, data: Any) -> None:
        if data != run:
            self.write("bad", run, f"signal of {data}")

    def threads(self, job: Job) -> None:
        """The handler of a `Worker`."""
        run, values = job.payload.decode(), []
        for number in range(STEPS):
            step, box = f"s{number}", list[str]()
            try:
                values.append(job.step(step, self.function(run, step, box), once=step in ONCE))
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
        self.write("fin", run, *values)

    async def tasks(self, job: Job) -> None:
        """The handler of an `AsyncWorker`."""
        run, values = job.payload.decode(), []
        for number in range(STEPS):
            step, box = f"s{number}", list[str]()
            try:
                values.append(await job.step(step, asyncio.to_thread, self.function(run, step, box), once=step in ONCE))
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
        self.write("fin", run, *values)


def work(orders: Orders) -> None:
    """Be a worker process."""
    patch = pytest.MonkeyPatch()
    if orders.mutant in MUTANTS:
        plant_scripts(patch, MUTANTS[orders.mutant])
    elif orders.mutant:
        plant(patch, *IN_MODULES[orders.mutant])
    handler = Handler(orders)
    options: Any = {"url": orders.url, "heartbeat": HEARTBEAT, "timeout": TIMEOUT}
    threads = orders.kind == "threads"
    worker: Any = Worker(**options) if threads else AsyncWorker(**options)
    worker.handler(QUEUE, concurrency=4, max_attempts=5)(handler.threads if threads else handler.tasks)
    worker.run()


@define(eq=False)
class Player:
    """A worker process of the storm."""

    kind: str
    process: Any
    wakes: float = 0.0  # when it is continued, if it is suspended

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)


@define(eq=False)
class Storm:
    """One run of it. A context manager, which ends every process that it has started."""

    binary: Binary
    folder: Path
    seed: int
    mutant: str = ""
    did: Counter[str] = field(factory=Counter)
    players: list[Player] = field(factory=list)
    runs: dict[str, str] = field(factory=dict)  # by id: the run that has it now
    serial: int = 0
    sent: Counter[str] = field(factory=Counter)  # signals that a run has taken
    dice: random.Random = field(init=False)
    server: Server = field(init=False)
    proxy: Proxy = field(init=False)
    queue: Queue = field(init=False)
    client: redis.Redis = field(init=False)
    _stack: ExitStack = field(factory=ExitStack)

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def __enter__(self) -> Self:
        self.dice = random.Random(self.seed)
        self.ledger.touch()
        with ExitStack() as stack:
            self.server = stack.enter_context(Server(self.binary, appendonly=True, extra=EXACT))
            here = Path(tempfile.mkdtemp(prefix="hs-"))  # short: a socket's path has 100 bytes
            stack.callback(shutil.rmtree, here, ignore_errors=True)
            (here / "s").symlink_to(self.server.path)
            self.proxy = stack.enter_context(Proxy(str(here / "s"), self.seed))
            self.queue = stack.enter_context(Queue(QUEUE, url=self.server.url, max_attempts=5))
            self.client = stack.enter_context(redis.Redis(unix_socket_path=self.server.path))
            stack.callback(self.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- processes -------------------------------------------------------------------------------------

    def start(self, kind: str) -> None:
        orders = Orders(kind, self.proxy.url, self.ledger, self.dice.randrange(1 << 30), self.mutant)
        process = CONTEXT.Process(target=work, args=(orders,), daemon=True)
        process.start()
        self.players.append(Player(kind, process))

    def end(self) -> None:
        for player in self.players:
            player.process.kill()
        for player in self.players:
            player.process.join(PATIENCE)

    def hurt(self) -> None:
        """A worker is killed, or suspended for longer than it may be silent."""
        awake = [player for player in self.players if not player.wakes]
        if not awake:
            return
        player = self.dice.choice(awake)
        if self.dice.random() < 0.5:
            self.did["SIGSTOP"] += 1
            player.signal(signal.SIGSTOP)
            player.wakes = time.monotonic() + TIMEOUT * (1.2 + self.dice.random())
        else:
            self.did["SIGKILL"] += 1
            player.process.kill()

    def tend(self) -> None:
        """Continue those whose time has come, and replace the dead."""
        for player in [*self.players]:
            if player.wakes and player.wakes <= time.monotonic():
                player.signal(signal.SIGCONT)
                player.wakes = 0.0
            if not player.process.is_alive():
                player.process.join()
                self.players.remove(player)
                self.start(player.kind)

    def restart(self) -> None:
        """The server dies, and comes back with all that it had acknowledged."""
        self.did["restarted"] += 1
        self.server.kill()
        time.sleep(TIMEOUT * self.dice.random())
        self.server.start()
        self.client.connection_pool.disconnect()

    # -- the operator ------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """An id is used again once its run has ended."""
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
        """Signals come before their wait, in it, or again."""
        for name, run in self.runs.items():
            if self.dice.random() < share:
                outcome = self.queue.signal(name, "go", run)
                if outcome in ("woke", "kept"):
                    self.sent[run] += 1
                self.did[outcome] += 1

    def redrive(self) -> None:
        """A step in doubt runs again, since the operator says so."""
        for state in self.queue.admin.dead():
            run, (word, _, step) = state.job.payload.decode(), (state.reason or "").partition(" ")
            if word == "doubt":
                with self.ledger.open("a") as file:
                    file.write(f"red {run} {step}\n")
                self.did["redriven"] += self.queue.admin.redrive(state.job.id, from_step=step)
            else:
                self.did["redriven"] += self.queue.admin.redrive(state.job.id)

    @property
    def written(self) -> str:
        return self.ledger.read_text()

    # -- the story -----------------------------------------------------------------------------------------

    def blow(self, seconds: float, until_heard: tuple[str, ...] = ()) -> None:
        """Faults for so long, and until enough has happened; or until the judge makes such a complaint."""
        for kind in ("threads", "tasks", "threads", "tasks"):
            self.start(kind)
        self.proxy.swallow, self.proxy.cut, self.proxy.late = 0.02, 0.01, 0.01
        begin = time.monotonic()
        ahead = [begin + seconds / 3, begin + seconds * 2 / 3]
        while True:
            now = time.monotonic()
            enough = self.heard(until_heard) if until_heard else now >= begin + seconds and not self.lacks()
            if enough or now >= begin + seconds + PATIENCE:
                break
            time.sleep(TICK)
            self.enqueue()
            self.send(0.05)
            self.redrive()
            self.tend()
            if self.dice.random() < 0.1:
                self.hurt()
            if ahead and now >= ahead[0]:
                ahead.pop(0)
                self.restart()

    def heard(self, complaint: tuple[str, ...]) -> list[str]:
        """Return the complaints of these kinds that the judge makes by now."""
        return [one for one in judged(self.written, self.sent) if one.startswith(complaint)]

    def lacks(self) -> list[str]:
        """List the events that a storm must have, and this one lacks so far."""
        seen = Counter(line.partition(" ")[0] for line in self.written.splitlines()) + self.did
        wanted = {"SIGKILL": 3, "SIGSTOP": 3, "fin": 30, "los": 1, "oth": 1, "woke": 5, "kept": 5}
        return [f"{name}: {seen[name]} of {least}" for name, least in wanted.items() if seen[name] < least]

    def calm(self) -> None:
        """No more faults: every run comes to its end, and all workers leave."""
        self.proxy.calm()
        for player in self.players:
            player.wakes = 0.0
            player.signal(signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE
        while self.queue.counts().present:
            assert time.monotonic() < deadline, f"{self.queue.counts()}, {self.story()}"
            self.tend()
            self.send(1.0)
            self.redrive()
            time.sleep(TICK)
        for player in self.players:
            player.signal(signal.SIGTERM)
        for player in self.players:
            player.process.join(PATIENCE)

    def verdict(self) -> list[str]:
        """List complaints, by the ledger and by the keys that are left on the server."""
        return [*judged(self.written, self.sent), *self.leftovers()]

    def leftovers(self) -> list[str]:
        counts = self.queue.counts()
        wrong = []
        if counts.lost or counts.completed != counts.enqueued or counts.enqueued != self.serial:
            wrong.append(f"lost or twice: {self.serial} runs, {counts}")
        with self.queue as queue:
            for _ in range(60):
                queue._run(queue.ops.reclaim("judge", 60.0))
        names = (name.decode().partition(f":{QUEUE}:")[2] for name in self.client.scan_iter(count=1000))
        left = {name.partition(":")[0] for name in names} - LEFT - {"lane", "result"}
        return [*wrong, *(f"left behind: {name}" for name in sorted(left))]

    def story(self) -> str:
        """Tell the events of the storm."""
        seen = Counter(line.partition(" ")[0] for line in self.written.splitlines())
        return (
            f"seed {self.seed}: {self.serial} runs, {seen['end']} steps ended, {seen['rec']} recorded, "
            f"{seen['los'] + seen['oth']} refused to zombies ({seen['los']} with their value), {seen['dbt']} in doubt; "
            f"{dict(self.did)}, {self.proxy.swallowed} replies swallowed, {self.proxy.delivered} requests late"
        )


@define
class Ledger:
    """The sums of the lines of a ledger."""

    began: Counter[tuple[str, str]] = field(factory=Counter)
    redriven: Counter[tuple[str, str]] = field(factory=Counter)
    ended: dict[str, tuple[str, str]] = field(factory=dict)
    lost: set[str] = field(factory=set)
    recorded: dict[tuple[str, str], set[str]] = field(factory=lambda: defaultdict[tuple[str, str], set[str]](set))
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
                self.redriven.update((run, f"s{number}") for number in range(int(rest[0][1:]), STEPS))
            case "fin":
                for number, nonce in enumerate(rest):
                    self.recorded[run, f"s{number}"].add(nonce)
                if self.finals.setdefault(run, [*rest]) != [*rest]:
                    self.wrong.append(f"other values: {run} ended with {self.finals[run]}, and {rest}")
            case "bad":
                self.wrong.append(f"bad: {run} {rest}")


def judged(text: str, sent: Counter[str]) -> list[str]:
    """List complaints about a ledger. *sent*: how many signals each run took."""
    ledger = Ledger()
    for line in text.splitlines():
        ledger.read(*line.split(" "))
    wrong = ledger.wrong
    for (run, step), nonces in ledger.recorded.items():
        if len(nonces) > 1 + ledger.redriven[run, step]:
            wrong.append(f"twice: {run} has {len(nonces)} records of {step}")
        wrong += [f"phantom: {run} {step} has {nonce}" for nonce in nonces if ledger.ended.get(nonce) != (run, step)]
        wrong += [f"zombie: {run} {step} was refused {nonce}, and has it" for nonce in nonces & ledger.lost]
    for (run, step), times in ledger.began.items():
        if step in ONCE and times > 1 + ledger.redriven[run, step]:
            wrong.append(f"once: {run} {step} began {times} times")
    wrong += [f"signal: {run} took {n}" for run, n in sent.items() if n > 1 + ledger.redriven[run, "s3"]]
    return wrong
