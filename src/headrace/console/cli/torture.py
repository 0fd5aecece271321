"""The command `headrace torture`. It works on a server that is killed meanwhile, and counts the
losses.

Each call is a line of a log outside the server. The verdict is read from the log and from the jobs
that are in the queue at the end.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from os import fsync
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, BinaryIO

import redis
import typer
from attrs import asdict, define, field, frozen
from redis.exceptions import RedisClusterException

from headrace import NewJob, Queue
from headrace.console.cli.console import (
    FAILED,
    connected,
    nodes_of,
    path_of,
    remove_namespace,
    reported,
    say,
    server,
    terminated,
)
from headrace.console.cli.options import Json
from headrace.console.cli.output import print_json, print_out, show
from headrace.errors import ConfigurationError, HeadraceError

FAILURES = (HeadraceError, redis.RedisError, RedisClusterException, OSError)


# -- the log, and the verdict ----------------------------------------------------------------------


@frozen
class Line:
    call: str
    sent: float
    """Seconds since the log was begun."""
    at: float
    """The same, of the answer."""
    ids: Sequence[str]
    answered: bool = True
    """Whether the server has acknowledged it. Otherwise it happened, or did not."""


@define
class Log:
    """A file with a line for each call. A line is the kernel's when `write` returns, and on the
    disk a fifth of a second later, so no death of this process loses one."""

    path: Path
    _file: BinaryIO = field(init=False)
    _begun: float = field(factory=time.monotonic)
    _synced: float = 0.0
    _lock: threading.Lock = field(factory=threading.Lock)

    def __attrs_post_init__(self) -> None:
        self._file = self.path.open("xb")

    def now(self) -> float:
        return time.monotonic() - self._begun

    def write(self, call: str, sent: float, ids: Sequence[str], *, answered: bool = True) -> None:
        line = Line(call, sent, self.now(), ids, answered)
        text = json.dumps(asdict(line)).encode()
        with self._lock:
            self._file.write(text + b"\n")
            self._file.flush()
            if line.at > self._synced + 0.2:
                fsync(self._file.fileno())
                self._synced = line.at

    def close(self) -> None:
        self._file.close()

    def lines(self) -> Iterator[Line]:
        with self.path.open("rb") as file:
            for line in file:
                yield Line(**json.loads(line))


@frozen
class Verdict:
    acknowledged: int
    """Jobs whose enqueue was acknowledged."""
    completed: int
    lost: int
    """Acknowledged jobs that are neither completed nor in the queue, and that no unanswered call
    may have completed."""
    completed_twice: int
    """Jobs with two acknowledged completions."""
    come_back: int
    """Jobs that a call got which was sent after their completion had been acknowledged."""
    outcome_unknown: int
    """Calls without an answer."""
    longest_stall_s: float
    """The longest time without an acknowledged call."""

    @classmethod
    def of(cls, log: Iterable[Line], present: Collection[str]) -> Verdict:
        lines = sorted(log, key=lambda line: line.at)
        acknowledged: set[str] = set()
        perhaps: set[str] = set()
        times: Counter[str] = Counter()
        done: dict[str, float] = {}
        back: set[str] = set()
        for line in lines:
            if line.call == "enqueue" and line.answered:
                acknowledged.update(line.ids)
            elif line.call == "complete" and line.answered:
                times.update(line.ids)
                for job in line.ids:
                    done.setdefault(job, line.at)
            elif line.call == "complete":
                perhaps.update(line.ids)
            elif line.call == "lease":
                back.update(job for job in line.ids if done.get(job, line.sent) < line.sent)
        answers = [0.0, *(line.at for line in lines if line.answered)]
        return cls(
            acknowledged=len(acknowledged),
            completed=len(done),
            lost=len(acknowledged - done.keys() - perhaps - set(present)),
            completed_twice=sum(number > 1 for number in times.values()),
            come_back=len(back),
            outcome_unknown=sum(not line.answered for line in lines),
            longest_stall_s=round(max((b - a for a, b in pairwise(answers)), default=0.0), 2),
        )

    @property
    def kept(self) -> bool:
        return not self.lost and not self.completed_twice


# -- the work --------------------------------------------------------------------------------------


@define
class Torture:
    queue: Queue
    log: Log
    rate: float = 1000.0
    """Jobs a second."""
    jobs: int | None = None
    """Jobs in all."""
    batch: int = 20
    """Jobs a call."""
    ahead: int = 1000
    """Jobs that wait at any time."""
    threads: int = 4
    patience: float = 60.0
    """Seconds for the server to come back at the end, and for the work that is left then."""
    _number: int = 0
    _lock: threading.Lock = field(factory=threading.Lock)
    _stop: threading.Event = field(factory=threading.Event)

    def go(self, seconds: float, every: float, kill: Callable[[], object] | None) -> Verdict:
        """Work for so many seconds, and call *kill* that often. Return the verdict.

        Raises the error of the first call, if that fails, or of the last, if the server does not
        come back.
        """
        sent = self.log.now()
        first = self._add(self._take(self.ahead))
        self.log.write("enqueue", sent, first)
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                self._watch(
                    [pool.submit(self._work) for _ in range(self.threads)],
                    self.log.now() + seconds,
                    every,
                    kill,
                )
            finally:
                self._stop.set()
        return Verdict.of(self.log.lines(), self._rest())

    def _watch(
        self,
        running: Sequence[Future[None]],
        until: float,
        every: float,
        kill: Callable[[], object] | None,
    ) -> None:
        pending = set(running)
        while pending and (left := until - self.log.now()) > 0:
            done, pending = wait(pending, min(every, left), FIRST_EXCEPTION)
            for future in done:
                future.result()
            if kill is not None and pending and self.log.now() < until:
                kill()

    def _take(self, number: int) -> list[str]:
        with self._lock:
            first = self._number
            last = first + number
            self._number = last if self.jobs is None else min(last, self.jobs)
            return [str(one) for one in range(first, self._number)]

    def _work(self) -> None:
        while ids := self._take(self.batch):
            due = (int(ids[0]) - self.ahead) / self.rate
            if self._stop.wait(max(0.0, due - self.log.now())):
                return
            self._call("enqueue", ids, partial(self._add, ids))
            if not self._stop.is_set():
                self._settle(self.batch)

    def _add(self, ids: Sequence[str]) -> list[str]:
        return [one.id for one in self.queue.enqueue_many([NewJob(b"", id=job) for job in ids])]

    def _settle(self, number: int) -> int:
        leases: list[Any] = []

        def lease() -> list[str]:
            leases.extend(self.queue.lease_many(number))
            return [one.job.id for one in leases]

        def complete() -> list[str]:
            answers = self.queue.complete_many(leases)
            return [job for job, won in zip(ids, answers, strict=True) if won]

        self._call("lease", [], lease)
        if leases and random.random() < 0.2:
            back = leases.pop()
            self._call("release", [], lambda: [back.job.id] if back.release() else [])
        ids = [one.job.id for one in leases]
        if ids:
            self._call("complete", ids, complete)
        return len(ids)

    def _call(self, name: str, ids: Sequence[str], call: Callable[[], Sequence[str]]) -> None:
        sent = self.log.now()
        try:
            found = call()
        except ConfigurationError:
            raise
        except FAILURES as error:
            if getattr(error, "outcome", "unknown") == "unknown":
                self.log.write(name, sent, ids, answered=False)
            self._stop.wait(0.05)
        else:
            self.log.write(name, sent, found)

    def _rest(self) -> set[str]:
        until = self.log.now() + self.patience
        counts = self.queue.counts(timeout=self.patience)
        while counts.present > counts.dead and self.log.now() < until:
            if not self._settle(1000):
                time.sleep(0.05)
            counts = self.queue.counts(timeout=self.patience)
        admin = self.queue.admin
        states = (admin.waiting, admin.running, admin.delayed, admin.dead)
        return {one.job.id for state in states for one in state()}


# -- the command -----------------------------------------------------------------------------------


def torture(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="The server.", show_default=False)
    ] = None,
    kill: Annotated[
        str | None,
        typer.Option(help="A command of the shell that kills the server and starts it again."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two kills.")] = 10.0,
    minutes: Annotated[float, typer.Option(min=0.0, help="How long it works.")] = 5.0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="So many jobs at most.", show_default=False)
    ] = None,
    rate: Annotated[float, typer.Option(min=1.0, help="Jobs a second.")] = 1000.0,
    durable: Annotated[
        str | None, typer.Option(help="As for queues: replicas:1, fsync, or both.")
    ] = None,
    log: Annotated[
        str | None, typer.Option(help="A new file that keeps the log of all calls.")
    ] = None,
    in_json: Json = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Although the server has other keys.")
    ] = False,
) -> None:
    """Count what a server loses when it is killed.

    It enqueues, leases and completes jobs, while you kill the server and start it again, or the
    command of --kill does so. Then it waits for the server, does the work that is left, and
    compares the server with its own log. It prints how many jobs were acknowledged, lost, completed
    twice, or handed out again after their completion. It prints the calls without an answer, and
    the longest time without an acknowledged call. It exits with 1 if a job was lost or completed
    twice.

    A server that has other keys is refused without --yes. It works in a namespace of its own, and
    removes it.
    """
    with reported(), terminated(), ExitStack() as stack:
        address = server(url)
        client = stack.enter_context(connected(address))
        if not yes and (others := _keys_of(client)):
            raise ConfigurationError(
                f"the server has {others:,} keys, and you are about to kill it: "
                "name another server, or give --yes"
            )
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-torture-"))
        book = Log(path_of(log) if log else Path(folder, "log"))
        stack.callback(book.close)
        namespace = f"torture-{token_hex(6)}"
        queue = stack.enter_context(
            Queue(
                "jobs",
                url=address,
                namespace=namespace,
                lease=5.0,
                max_attempts=None,
                timeout=10.0,
                durable=durable,
            )
        )
        stack.callback(_clean, queue, client, namespace)
        if kill is None:
            say(f"kill the server and start it again, for {minutes:g} minutes")
        work = Torture(queue, book, rate=rate, jobs=jobs)
        verdict = work.go(60 * minutes, every, partial(_run, kill) if kill else None)
        report(verdict, in_json)
        if not verdict.kept:
            raise typer.Exit(FAILED)


def report(verdict: Verdict, in_json: bool) -> None:
    numbers = asdict(verdict)
    if in_json:
        print_json(numbers)
        return
    rows = [(name.replace("_", " "), number) for name, number in numbers.items()]
    show(("", "number"), rows, ("number",))
    print_out("Nothing was lost or doubled." if verdict.kept else "LOST OR DOUBLED.")


def _keys_of(client: redis.Redis) -> int:
    databases = [one for node, _ in nodes_of(client) for one in node.info("keyspace").values()]
    return sum(int(one["keys"]) for one in databases)


def _run(command: str) -> None:
    done = subprocess.run(  # noqa: S603 - it is the user's
        ["/bin/sh", "-c", command], check=False, stdout=subprocess.DEVNULL
    )
    if done.returncode:
        say(f"the command of --kill ended with status {done.returncode}", "WARNING")


def _clean(queue: Queue, client: redis.Redis, namespace: str) -> None:
    try:
        queue.counts(timeout=10.0)  # it may be away just now
    except FAILURES as error:
        say(f"the keys of {namespace}:* are left, because the server is away: {error}")
    else:
        remove_namespace(client, namespace)
