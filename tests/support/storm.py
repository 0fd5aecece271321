"""A storm over one queue: workers are killed, suspended and cut off, and the server is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import redis
from attrs import define, field, frozen

from headrace import AsyncWorker, Queue, Worker
from tests.chaos.proxy import Proxy
from tests.support.processes import CONTEXT
from tests.support.servers import EXACT, Binary, Server

HEARTBEAT, TIMEOUT = 0.3, 1.2


@frozen
class Orders:
    kind: str
    url: str
    ledger: Path
    seed: int
    mutant: str = ""

    def worker(self, **more: Any) -> Any:
        """Make a worker of threads or of tasks."""
        make: Any = Worker if self.kind == "threads" else AsyncWorker
        return make(url=self.url, heartbeat=HEARTBEAT, timeout=TIMEOUT, **more)


class Writer:
    """The handlers of a worker process, which write a line into the ledger for each event."""

    def __init__(self, orders: Orders) -> None:
        self.dice = random.Random(orders.seed)
        self.file = os.open(orders.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: str) -> None:
        os.write(self.file, (" ".join(words) + "\n").encode())


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
class Storm(ABC):
    """One run of a storm. It is a context manager that ends every process that it has started."""

    NAME: ClassVar[str]  # of the queue
    LEFT: ClassVar[frozenset[str]]  # parts of the queue that may be there when all is over
    PATIENCE: ClassVar[float]  # seconds
    TICK: ClassVar[float]  # seconds between two rounds of the operator
    HURTS: ClassVar[float]  # the chance that a worker is hurt in a round
    work: ClassVar[Callable[[Orders], None]]  # runs a worker process

    binary: Binary
    folder: Path
    seed: int
    mutant: str = ""
    did: Counter[str] = field(factory=Counter)
    players: list[Player] = field(factory=list)
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
            self.queue = stack.enter_context(self.declared(self.server.url))
            self.client = stack.enter_context(
                redis.Redis(unix_socket_path=self.server.path, decode_responses=True)
            )
            stack.callback(self.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- processes ---------------------------------------------------------------------------------

    def start(self, kind: str) -> None:
        orders = Orders(
            kind, self.proxy.url, self.ledger, self.dice.randrange(1 << 30), self.mutant
        )
        process = CONTEXT.Process(target=type(self).work, args=(orders,), daemon=True)
        process.start()
        self.players.append(Player(kind, process))

    def end(self) -> None:
        for player in self.players:
            player.process.kill()
        for player in self.players:
            player.process.join(self.PATIENCE)

    def hurt(self) -> None:
        """Kill a worker, or suspend it for longer than it may be silent."""
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
        """Continue the suspended workers that have slept long enough, and replace the dead."""
        for player in [*self.players]:
            if player.wakes and player.wakes <= time.monotonic():
                player.signal(signal.SIGCONT)
                player.wakes = 0.0
            if not player.process.is_alive():
                player.process.join()
                self.players.remove(player)
                self.start(player.kind)

    def restart(self) -> None:
        """Kill the server, and start it again with all acknowledged writes."""
        self.did["restarted"] += 1
        self.server.kill()
        time.sleep(TIMEOUT * self.dice.random())
        self.server.start()
        self.client.connection_pool.disconnect()

    # -- the story ---------------------------------------------------------------------------------

    def present(self) -> int:
        """Count the jobs that have not ended."""
        return self.queue.counts().present

    @abstractmethod
    def declared(self, url: str) -> Queue[Any]:
        """Return the queue, as all programs declare it."""

    @abstractmethod
    def round(self) -> None:
        """Be the operator for a moment, while there are faults."""

    @abstractmethod
    def last_round(self) -> None:
        """Be the operator for a moment, until all jobs have ended."""

    @abstractmethod
    def complaints(self) -> list[str]:
        """List the complaints that can be made by now."""

    @abstractmethod
    def lacks(self) -> list[str]:
        """List the events that a storm must have and this one lacks so far."""

    @abstractmethod
    def story(self) -> str:
        """Tell the events of the storm."""

    def blow(self, seconds: float, until_heard: tuple[str, ...] = ()) -> None:
        """Cause faults for so long and until enough has happened, or until the judge makes such a
        complaint."""
        for kind in ("threads", "tasks", "threads", "tasks"):
            self.start(kind)
        self.proxy.swallow, self.proxy.cut, self.proxy.late = 0.02, 0.01, 0.01
        begin = time.monotonic()
        ahead = [begin + seconds / 3, begin + seconds * 2 / 3]
        while True:
            now = time.monotonic()
            enough = (
                self.heard(until_heard)
                if until_heard
                else now >= begin + seconds and not self.lacks()
            )
            if enough or now >= begin + seconds + self.PATIENCE:
                break
            time.sleep(self.TICK)
            self.round()
            self.tend()
            if self.dice.random() < self.HURTS:
                self.hurt()
            if ahead and now >= ahead[0]:
                ahead.pop(0)
                self.restart()

    def heard(self, complaint: tuple[str, ...]) -> list[str]:
        """Return the complaints of these kinds by now."""
        return [one for one in self.complaints() if one.startswith(complaint)]

    def calm(self) -> None:
        """Wait, without faults, until every job has ended and all workers have left."""
        self.proxy.calm()
        for player in self.players:
            player.wakes = 0.0
            player.signal(signal.SIGCONT)
        deadline = time.monotonic() + self.PATIENCE
        while self.present():
            assert time.monotonic() < deadline, f"{self.queue.counts()}, {self.story()}"
            self.tend()
            self.last_round()
            time.sleep(self.TICK)
        for player in self.players:
            player.signal(signal.SIGTERM)
        for player in self.players:
            player.process.join(self.PATIENCE)

    def sweep(self) -> None:
        """Reclaim all that dead workers have left."""
        for _ in range(60):
            self.queue._run(self.queue.ops.reclaim("judge", 60.0))

    def left_behind(self) -> list[str]:
        """Complain of the keys of the queue that should be gone. Facts of workers that died, and
        tallies, are kept for a day."""
        names = (name.partition(f":{self.NAME}:")[2] for name in self.client.scan_iter(count=1000))
        known = self.LEFT | {"", "lane", "result", "facts", "tallies"}
        left = {name.partition(":")[0] for name in names} - known
        return [f"left behind: {name}" for name in sorted(left)]

    def faults(self) -> str:
        """Tell how often the proxy acted."""
        return f"{dict(self.did)}, {self.proxy.swallowed} replies swallowed, {self.proxy.delivered} requests late"
