"""A storm over a queue with terms: workers killed, suspended and cut off, the server killed.

Two judges, neither of which trusts a slot. The ledger, outside Redis, has a line as each handler begins and ends:

    add JOB TIME          it is enqueued
    beg JOB NONCE TIME    the handler begins
    fin JOB NONCE TIME    it returns

The watch reads the pending list at one instant, and counts the leased jobs of each tenant by the names of jobs.
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
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, Self
from uuid import uuid4

import pytest
import redis
from attrs import define, field, frozen

from headrace import AsyncWorker, DeadLetter, Job, Limit, NewJob, Queue, RetryLater, Worker
from tests.chaos.proxy import Proxy
from tests.fair.mutants import MUTANTS
from tests.support.planted import plant_scripts
from tests.support.processes import CONTEXT
from tests.support.servers import EXACT, Binary, Server

HEARTBEAT, TIMEOUT, LEASE = 0.3, 1.2, 2.0
QUEUE = "fair"
OF_EACH, IN_ALL = 3, 4  # slots: the flood leaves one for others, unless it is held back by its share
TENANTS = ("flood", "ada", "bob", "cyd", "dee")  # the first has a backlog of its own all the time
BACKLOG = 200
PATIENCE = 40.0
TICK = 0.03
LEFT = {"jobs", "wake", "stats", "workers", "registered", "dead", "control", "terms", "busy"}


def declared(url: str) -> Any:
    """The queue as all programs declare it."""
    limits = [Limit(OF_EACH, key="tenant"), Limit(IN_ALL)]
    return Queue(QUEUE, url=url, fair="tenant", weights={"ada": 2.0}, limits=limits, lease=LEASE, max_attempts=None)


@frozen
class Orders:
    """The orders of a worker process."""

    kind: str
    url: str
    ledger: Path
    seed: int
    mutant: str = ""


class Handler:
    """Runs jobs, and says so in the ledger."""

    def __init__(self, orders: Orders) -> None:
        self.dice = random.Random(orders.seed)
        self.file = os.open(orders.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: str) -> None:
        os.write(self.file, f"{' '.join(words)} {time.monotonic():.3f}\n".encode())

    def fate(self) -> None:
        """Some jobs come back before they end: by every way in which a handler can end."""
        number = self.dice.random()
        if number < 0.04:
            raise RetryLater(0.2 * self.dice.random())
        if number < 0.08:
            raise RetryLater(0)
        if number < 0.1:
            raise DeadLetter("so it fell out")

    def threads(self, job: Job) -> None:
        """The handler of a `Worker`."""
        name, nonce = job.payload.decode(), uuid4().hex[:12]
        self.write("beg", name, nonce)
        time.sleep(0.06 * self.dice.random())
        self.fate()
        self.write("fin", name, nonce)

    async def tasks(self, job: Job) -> None:
        """The handler of an `AsyncWorker`."""
        name, nonce = job.payload.decode(), uuid4().hex[:12]
        self.write("beg", name, nonce)
        await asyncio.sleep(0.06 * self.dice.random())
        self.fate()
        self.write("fin", name, nonce)


def work(orders: Orders) -> None:
    """Be a worker process."""
    if orders.mutant:
        plant_scripts(pytest.MonkeyPatch(), MUTANTS[orders.mutant][0])
    handler = Handler(orders)
    options: Any = {"url": orders.url, "heartbeat": HEARTBEAT, "timeout": TIMEOUT}
    threads = orders.kind == "threads"
    worker: Any = Worker(**options) if threads else AsyncWorker(**options)
    of = declared(orders.url)
    worker.handler(of, concurrency=4)(handler.threads if threads else handler.tasks)
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
    jobs: Counter[str] = field(factory=Counter)  # of each tenant
    wrong: list[str] = field(factory=list)  # what the watch found
    looks: int = 0
    dice: random.Random = field(init=False)
    server: Server = field(init=False)
    proxy: Proxy = field(init=False)
    queue: Any = field(init=False)
    client: Any = field(init=False)
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
            self.queue = stack.enter_context(declared(self.server.url))
            self.client = stack.enter_context(redis.Redis(unix_socket_path=self.server.path, decode_responses=True))
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
        """The flood keeps its backlog; others have a job now and then."""
        new = [self.named("flood") for _ in range(max(0, BACKLOG - self.queue.counts().waiting))]
        new += [self.named(tenant) for tenant in TENANTS[1:] if self.dice.random() < 0.4]
        self.queue.enqueue_many(new)

    def named(self, tenant: str) -> Any:
        """A new job of a tenant; its name says whose it is, and is its payload."""
        self.jobs[tenant] += 1
        name = f"{tenant}-{self.jobs[tenant]}"
        with self.ledger.open("a") as file:
            file.write(f"add {name} {time.monotonic():.3f}\n")
        return NewJob(name.encode(), id=name, headers={"tenant": tenant})

    def meddle(self) -> None:
        """Ends leases, and cancels a job that may wait, run, or be gone."""
        if self.dice.random() < 0.5:
            self.did["expired"] += self.queue.admin.expire()
        else:
            tenant = self.dice.choice(TENANTS)
            self.did["cancelled"] += self.queue.cancel(f"{tenant}-{self.jobs[tenant]}")

    def redrive(self) -> None:
        """The dead run again."""
        self.did["redriven"] += self.queue.admin.redrive()

    def watch(self) -> None:
        """Count the leased jobs of each tenant at one instant, by the pending list alone; and all slots."""
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
        self.wrong += [f"limit: {number} jobs of {tenant}" for tenant, number in of.items() if number > OF_EACH]
        if len(leased) > IN_ALL:
            self.wrong.append(f"limit: {len(leased)} jobs in all")
        if sorted(leased) != sorted(held):
            self.wrong.append(f"law: {sorted(leased)} are leased, {sorted(held)} held")

    @property
    def written(self) -> list[list[str]]:
        """The lines of the ledger."""
        return [line.split(" ") for line in self.ledger.read_text().splitlines()]

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
            self.watch()
            self.redrive()
            self.tend()
            if self.dice.random() < 0.05:
                self.hurt()
            if self.dice.random() < 0.1:
                self.meddle()
            if ahead and now >= ahead[0]:
                ahead.pop(0)
                self.restart()

    def heard(self, complaint: tuple[str, ...]) -> list[str]:
        """Return the complaints of these kinds by now."""
        wrong = [*self.wrong, *judged(self.written, 1 << 30, 0)]
        return [one for one in wrong if one.startswith(complaint)]

    def lacks(self) -> list[str]:
        """List the events that a storm must have, and this one lacks so far."""
        ended = Counter(name.partition("-")[0] for word, name, *_ in self.written if word == "fin")
        wanted = {"SIGKILL": 3, "SIGSTOP": 3, "expired": 1, "redriven": 5, **dict.fromkeys(TENANTS, 10)}
        seen = ended + self.did
        return [f"{name}: {seen[name]} of {least}" for name, least in wanted.items() if seen[name] < least]

    def calm(self) -> None:
        """No more faults: every job comes to its end, and all workers leave."""
        self.proxy.calm()
        for player in self.players:
            player.wakes = 0.0
            player.signal(signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE
        while self.queue.counts().present:
            assert time.monotonic() < deadline, f"{self.queue.counts()}, {self.story()}"
            self.tend()
            self.watch()
            self.redrive()
            time.sleep(TICK)
        for player in self.players:
            player.signal(signal.SIGTERM)
        for player in self.players:
            player.process.join(PATIENCE)

    def verdict(self) -> list[str]:
        """List complaints, by the watch, by the ledger, and by the keys that are left on the server."""
        return [*self.wrong, *judged(self.written, self.did["cancelled"], sum(self.jobs.values())), *self.leftovers()]

    def leftovers(self) -> list[str]:
        counts = self.queue.counts()
        wrong = []
        number = sum(self.jobs.values())
        if counts.lost or counts.completed + counts.cancelled != counts.enqueued or counts.enqueued != number:
            wrong.append(f"lost or twice: {number} jobs, {counts}")
        for _ in range(60):
            self.queue._run(self.queue.ops.reclaim("judge", 60.0))
        assert self.queue.lease() is None
        names = (name.partition(f":{QUEUE}:")[2] for name in self.client.scan_iter(count=1000))
        left = {name.partition(":")[0] for name in names} - LEFT - {"lane", "result"}
        return [*wrong, *(f"left behind: {name}" for name in sorted(left))]

    def story(self) -> str:
        """Tell the events of the storm."""
        ended = Counter(name.partition("-")[0] for word, name, *_ in self.written if word == "fin")
        return (
            f"seed {self.seed}: {dict(self.jobs)} jobs, {dict(ended)} ran; {self.looks} looks of the watch; "
            f"{dict(self.did)}, {self.proxy.swallowed} replies swallowed, {self.proxy.delivered} requests late"
        )


def is_worker(owner: str) -> bool:
    """Tell whether a consumer leases jobs."""
    return owner not in {"bell", "limited", "behind", "parked"} and not owner.startswith("parked:")


def judged(lines: list[list[str]], cancelled: int, jobs: int) -> list[str]:
    """List complaints about a ledger: every job ran to its end, unless it was cancelled; and the flood delays no other.

    The flood has 200 jobs in front of each job that comes, so in a queue that is not fair all wait for as long.
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
            wrong.append(f"shares: the flood waits for {typical['flood']:.2f} s, {tenant} for {wait:.2f} s")
    return wrong
