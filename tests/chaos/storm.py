"""The storm. Processes are killed, suspended and cut off. The server is killed, replaced, filled,
frozen and flushed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

import redis
from attrs import define, field

from headrace import Counts, Queue
from tests.chaos.actors import (
    CALM,
    GAVE_UP,
    LEVELS,
    METERED,
    QUEUE,
    RATE,
    TIMEOUT,
    Orders,
    redrive,
    run,
)
from tests.chaos.clock import Clock
from tests.chaos.flow_load import FLOW, STAGES
from tests.chaos.judge import PREFIX, PREFIXES, Judge
from tests.chaos.mutants import CAST, DAWDLE, MUTANTS
from tests.chaos.proxy import Proxy
from tests.chaos.server_faults import FAULTS, LASTS, QUICK, End, jumped, promoted
from tests.support.awaiting import until
from tests.support.processes import CONTEXT
from tests.support.servers import EXACT, Binary, Server

TICK = 0.1
# that are written before the next is hurt: on a machine however slow there is work to be hurt in
LINES = 50
PATIENCE = 90.0  # seconds until everything is quiet; on an idle machine it takes three


@define(eq=False)
class Player:
    """A process of the storm."""

    role: str
    process: BaseProcess
    wakes: float | None = None
    """When it is continued, if it is suspended."""
    told: set[int] = field(factory=set[int])
    """Signals."""

    def signal(self, number: int) -> None:
        self.told.add(number)
        if self.process.is_alive():
            assert self.process.pid is not None
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


@define(eq=False)
class Storm:
    """One run on one server. It is a context manager that ends every process that it has
    started."""

    binary: Binary
    folder: Path
    seed: int
    mutant: str | None = None
    clock: Clock | None = None
    """The server's, if it is to jump."""
    did: Counter[str] = field(factory=Counter)
    players: list[Player] = field(factory=list)
    started: int = 0
    written: int = 0
    """Lines, when somebody was hurt last."""
    dice: random.Random = field(init=False)
    server: Server = field(init=False)
    path: str = field(init=False)
    proxy: Proxy = field(init=False)
    client: redis.Redis = field(init=False)
    queue: Queue = field(init=False)
    metered: Queue = field(init=False)
    url: str = field(init=False)
    """Where the server is, whichever it is now."""
    ends: list[tuple[float, End]] = field(factory=list)
    """Of the faults that last: when, and how."""
    stages: dict[str, Queue] = field(factory=dict[str, Queue])
    judge: Judge = field(init=False)
    _stack: ExitStack = field(factory=ExitStack)

    def __enter__(self) -> Self:
        self.dice = random.Random(self.seed)
        log = self.folder / "log"
        log.touch()
        with ExitStack() as stack:
            self._stack = stack
            environment = None if self.clock is None else self.clock.environment()
            server = Server(
                self.binary,
                appendonly=True,
                tcp=True,
                extra=[*EXACT, *QUICK],
                environment=environment,
            )
            here = Path(tempfile.mkdtemp(prefix="hs-"))  # short: a socket's path has 100 bytes
            stack.callback(shutil.rmtree, here, ignore_errors=True)
            self.path, self.url = str(here / "s"), f"unix://{here / 's'}?db=0"
            self.lead(self.serve(server))
            self.proxy = stack.enter_context(Proxy(self.path, self.seed))
            self.client = stack.enter_context(redis.Redis(unix_socket_path=self.path))
            self.queue = stack.enter_context(Queue(QUEUE, url=self.url, **LEVELS))
            self.metered = stack.enter_context(Queue(METERED, url=self.url, rate=RATE))
            for stage in STAGES:
                self.stages[stage] = stack.enter_context(Queue(f"{FLOW}/{stage}", url=self.url))
            self.judge = Judge(log, self.client, metered=self.clock is None)
            stack.callback(self.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def serve(self, server: Server) -> Server:
        """Start another server, which ends with the storm."""
        return self._stack.enter_context(server)

    def lead(self, server: Server) -> None:
        """Make this the server under the name that all processes use."""
        self.server = server
        fresh = Path(self.path + "+")
        fresh.symlink_to(server.path)
        fresh.replace(self.path)

    # -- processes ---------------------------------------------------------------------------------

    def start(self, role: str) -> None:
        self.started += 1
        who = f"{role.partition(' ')[0]}{self.started}"
        seed, dawdle = (
            self.dice.randrange(1 << 30),
            MUTANTS[self.mutant].dawdle if self.mutant else DAWDLE,
        )
        orders = Orders(role, who, self.proxy.url, self.judge.log, seed, self.mutant, dawdle)
        process = CONTEXT.Process(target=run, args=(orders,), name=who, daemon=True)
        process.start()
        self.players.append(Player(role, process))

    def end(self) -> None:
        for player in self.players:
            player.process.kill()
        for player in self.players:
            player.process.join(PATIENCE)
            player.process.close()
        self.players.clear()

    def reap(self, *, replace: bool) -> None:
        """Look after the processes that have ended."""
        for player in [p for p in self.players if not p.process.is_alive()]:
            code = player.process.exitcode
            player.process.close()
            self.players.remove(player)
            if (
                code not in (0, GAVE_UP, -signal.SIGALRM)
                and signal.SIGKILL not in player.told
                and -(code or 0) not in player.told
            ):
                self.judge.complain("error", f"{player.role} ended with {code}")
            if replace:
                self.start(player.role)

    # -- faults ------------------------------------------------------------------------------------

    def hurt(self) -> None:
        player = self.dice.choice(self.players)
        chance = self.dice.random()
        if player.wakes is not None:
            return
        if chance < 0.5:
            self.did["SIGSTOP"] += 1
            player.signal(signal.SIGSTOP)
            player.wakes = time.monotonic() + TIMEOUT * (1 + 1.5 * self.dice.random())
        else:
            sign = signal.SIGKILL if chance < 0.85 else signal.SIGTERM
            self.did[sign.name] += 1
            player.signal(sign)

    def wake(self, *, everybody: bool = False) -> None:
        for player in self.players:
            if player.wakes is not None and (everybody or player.wakes <= time.monotonic()):
                player.signal(signal.SIGCONT)
                player.wakes = None

    def restart(self) -> None:
        """Kill the server and start it from its append-only file, which may have been rewritten
        just now."""
        if self.dice.random() < 0.5:
            self.did["rewritten"] += 1
            self.client.bgrewriteaof()
        time.sleep(0.3 * self.dice.random())
        self.server.kill()
        time.sleep(TIMEOUT * self.dice.random())
        self.server.start()
        self.client.connection_pool.disconnect()
        self.did["restarted"] += 1

    def sicken(self) -> None:
        """Hurt the server."""
        if self.clock is not None and self.dice.random() < 0.5:
            self.did["jumped"] += 1
            jumped(self)
            return
        least = min(self.did[name] for name in FAULTS)
        name = self.dice.choice([name for name in FAULTS if self.did[name] == least])
        self.did[name] += 1
        end = FAULTS[name](self)
        if end is not None:
            self.ends.append((time.monotonic() + LASTS * self.dice.random(), end))

    def recover(self, *, at_once: bool = False) -> None:
        """End the faults that have lasted long enough, or all."""
        for end in [end for end in self.ends if at_once or end[0] <= time.monotonic()]:
            self.ends.remove(end)
            end[1]()

    def fall(self, number: int) -> None:
        """Kill the server and start it again, or let another take its place."""
        self.recover(at_once=True)
        if number % 3 == 2 and self.clock is None:
            promoted(self)
            self.client.connection_pool.disconnect()
            self.did["promoted"] += 1
        else:
            self.restart()

    def outage(self, seconds: float) -> None:
        """Take the server away for so long."""
        self.server.kill()
        time.sleep(seconds)
        self.server.start()
        self.client.connection_pool.disconnect()
        self.did["away"] += 1

    # -- the story ---------------------------------------------------------------------------------

    def blow(self, seconds: float, *, falls: int = 3, until_heard: str = "") -> list[str]:
        """Make faults for so long, or until the judge makes this kind of complaint. Return the
        events that are still missing.

        On a slow machine longer, until enough has happened.
        """
        for role in MUTANTS[self.mutant].cast if self.mutant else CAST:
            self.start(role)
            # the first jobs are there before anybody has ever leased
            if role == "producer with ids":
                until(lambda: self.queue.counts().waiting)
        self.proxy.swallow, self.proxy.cut, self.proxy.late = 0.02, 0.01, 0.01
        begin = time.monotonic()
        ahead = [begin + seconds * (number + 1) / (falls + 1) for number in range(falls)]
        enough = {until_heard, "error"} if until_heard else set[str]()
        end = begin + seconds
        counts = self.judge.sample(self.queue)
        while not enough & self.judge.complaints.keys():
            now = time.monotonic()
            if now >= end and (until_heard or not self.lacks(counts) or now >= end + PATIENCE):
                break
            time.sleep(TICK)
            counts = self.judge.sample(self.queue)
            self.wake()
            self.reap(replace=True)
            # later on it lasts for what work is lacking, which needs peace
            rough = now < end or bool(self.spared())
            written = self.judge.seen.total()
            if rough and self.dice.random() < 0.3 and written >= self.written + LINES:
                self.written = written
                self.hurt()
            self.recover()
            if rough and falls and self.dice.random() < 0.3:
                self.sicken()
            if ahead and time.monotonic() >= ahead[0]:
                ahead.pop(0)
                self.fall(falls - len(ahead))
        lacking = self.lacks(counts)  # before the calm: dead letters are redriven in that
        self.recover(at_once=True)
        return lacking

    def spared(self) -> list[str]:
        """Return the faults that a storm needs and that have not happened yet."""
        changes = {"promoted": 1} if self.clock is None else {"jumped": 2, "back": 1}
        wanted = {"SIGKILL": 2, "SIGSTOP": 2, "restarted": 2, **dict.fromkeys(FAULTS, 1), **changes}
        return _short(self.did, wanted)

    def lacks(self, counts: Counts) -> list[str]:
        """Return the events that a storm with work needs and that have not happened yet."""
        happened = Counter(
            swallowed=self.proxy.swallowed,
            delivered=self.proxy.delivered,
            completed=counts.completed,
            cancelled=counts.cancelled,
            dead=counts.dead,
        )
        wanted = {"swallowed": 11, "delivered": 11, "completed": 101, "cancelled": 1, "dead": 1}
        lines = {
            "try",
            "ack",
            "off",
            "due",
            "job",
            "run",
            "ask",
            "did",
            "end",
            "got",
            "bag",
            "dup",
            "not",
            "met",
        }
        ends = {"completed", "failed", "cancelled"}
        return [
            *self.spared(),
            *_short(happened, wanted),
            *(f"a line {kind!r}" for kind in lines - self.judge.seen.keys()),
            *(f"a run that is {end}" for end in ends - self.judge.runs.states.keys()),
        ]

    def calm(self) -> None:
        """End faults and producers, let all jobs end and all processes leave, and judge."""
        (self.folder / CALM).touch()
        if self.clock is not None:
            self.clock.jump(300)  # what was delayed before it went back is due now
        self.proxy.calm()
        self.wake(everybody=True)
        self.leave("producer")
        self.leave("runs")
        self.leave("operator")
        self.queue.admin.resume()
        for late in self.queue.admin.delayed():
            if "-k" in late.job.id:
                self.queue.admin.reschedule(late.job.id, 0.0)
        self.settled(self.done, "jobs")
        self.leave("loop")
        self.leave("hand")
        self.settled(self.done, "jobs of loops that were leaving")
        # A queue that is not a worker counts as alive for its lease and ten seconds more. As if
        # they were over:
        for prefix in PREFIXES:
            for name in self.client.zrange(prefix + "workers", 0, -1):
                if name.startswith(b"queue-"):
                    self.client.zadd(prefix + "workers", {name: 1}, xx=True)
        self.settled(self.alone, "the dead")
        self.leave("")
        self.judge.finish(self.queue, self.metered)

    def done(self) -> bool:
        """Tell whether only dead letters are left, and none of them is to run again."""
        plain = self.judge.sample(self.queue).present == self.client.xlen(PREFIX + "dead")
        held = [
            counts.present - counts.dead
            for counts in (queue.counts() for queue in self.stages.values())
        ]
        going = self.judge.runs.states.get("running", 0)
        metered = self.metered.counts().present
        return not redrive(self.stages) and plain and not any(held) and not going and not metered

    def alone(self) -> bool:
        """Tell whether the registered workers are the live ones."""
        serving = sum(player.role.startswith("flow") for player in self.players)
        metering = sum(player.role == "metered" for player in self.players)
        expected = [len(self.players) - metering, *[serving] * len(STAGES), metering]
        return [self.client.zcard(prefix + "workers") for prefix in PREFIXES] == expected

    @property
    def registered(self) -> int:
        """The number of workers that have registered, without queues that lease."""
        return sum(not worker.name.startswith("queue-") for worker in self.queue.admin.workers())

    def leave(self, role: str) -> None:
        """Let all processes of this role end properly."""
        reminded = 0.0

        def gone() -> bool:
            nonlocal reminded
            staying = [player for player in self.players if player.role.startswith(role)]
            # again, because the first may come before it listens to signals
            if time.monotonic() >= reminded:
                reminded = time.monotonic() + 5
                for player in staying:
                    player.signal(signal.SIGTERM)
            return not staying

        self.settled(gone, f"{role or 'everybody'} to leave", replace=False)

    def settled(self, condition: Callable[[], bool], what: str, *, replace: bool = True) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.reap(replace=replace)
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.story()}"
            time.sleep(TICK)

    def story(self) -> str:
        """Return the events and the complaints as text."""
        return (
            f"seed {self.seed}: {dict(self.did)}, {dict(self.judge.seen)}, {self.queue.counts()}, "
            f"runs {self.judge.runs.states}\n{self.judge.report()}"
        )


def _short(happened: Counter[str], wanted: dict[str, int]) -> list[str]:
    """Return the events that happened less often than wanted."""
    return [
        f"{name}: {happened[name]} of {least}"
        for name, least in wanted.items()
        if happened[name] < least
    ]
