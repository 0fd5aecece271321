"""The functions that run in child processes, which import this module."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen
from opentelemetry import trace

from headrace import BatchError, Complete, DeadLetter, Job, Release, RetryLater, Tasks
from headrace.errors import ChildFailed

NEVER = "redis://localhost:1"  # children have no connection, so any URL will do
tasks = Tasks("tasks", url=NEVER)
log = logging.getLogger("tests.app")


class OddError(Exception):
    """An exception that can't be made from its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


def pid(job: Job[Any]) -> bytes:
    return b"%d" % os.getpid()


async def pid_async(job: Job[Any]) -> bytes:
    await asyncio.sleep(0)
    return b"%d" % os.getpid()


def echo(job: Job[Any]) -> Any:
    return {
        "payload": job.payload,
        "id": job.id,
        "kind": job.headers.get("kind"),
        "at": job.attempt,
    }


def nothing(number: int) -> None: ...


class Bound:
    def double(self, job: Job[Any]) -> None: ...


BOUND = Bound()


def noted(number: int, path: str) -> int:
    with Path(path).open("a", encoding="ascii") as file:
        file.write(f"{number}\n")
    return number


# -- how a handler may misbehave -------------------------------------------------------------------


def behaves() -> None: ...


def loops_in_c() -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")


def eats() -> None:
    b"x" * (2 << 30)


def aborts() -> None:
    os.abort()


def exits() -> None:
    os._exit(0)


def freezes() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def crashes() -> None:
    ctypes.string_at(0)


def closes() -> None:
    os.closerange(0, 10)


def leaves_a_child() -> None:
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os._exit(3)


def prints() -> None:
    os.write(1, b"x" * 1_000_000)


def ignores() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


class _Raises:
    def __del__(self) -> None:
        raise ValueError("in __del__")


def raises_as_it_goes() -> None:
    _Raises()


def misbehave(job: Job[Any]) -> bytes:
    globals()[job.payload.decode()]()
    return b"done"


# -- how a handler may end -------------------------------------------------------------------------


def ends(job: Job[Any]) -> Any:
    match job.payload.decode():
        case "value":
            raise ValueError("bad", 3)
        case "odd":
            raise OddError(code=7)
        case "local":
            raise type("Local", (KeyError,), {})("of a class that no module has")
        case "group":
            raise ExceptionGroup("both", [ValueError("a"), OSError(2, "b")])
        case "exit":
            sys.exit(3)
        case "later":
            raise RetryLater(300, "not yet", spend=0)
        case "dead":
            return DeadLetter("no use")
        case "release":
            raise Release
        case "complete":
            raise Complete(b"by a verdict")
        case "object":
            return object()
    return None


def batch(jobs: list[Job[Any]]) -> None:
    bad = {
        job.id: RetryLater(300) if job.payload == b"later" else ValueError(f"no {job.payload!r}")
        for job in jobs
        if job.payload != b"good"
    }
    if bad:
        raise BatchError(bad)


# -- steps -----------------------------------------------------------------------------------------


def steps(job: Job[Any]) -> bytes:
    path = job.payload.decode()
    first = job.step("first", noted, 1, path)
    job.progress(0.5, "half")
    job.sleep("nap", 0.2)
    answer = job.wait_for("go")
    second = job.step("second", noted, 2, path, once=True)
    return f"{first}{second}{answer}".encode()


async def steps_async(job: Job[Any]) -> bytes:
    path = job.payload.decode()

    async def slow() -> int:
        await asyncio.sleep(0.1)
        return noted(1, path)

    first, answer = await asyncio.gather(job.step("first", slow), job.wait_for("go"))
    second = await job.step("second", noted, 2, path, once=True)
    return f"{first}{second}{answer}".encode()


def books(job: Job[Any]) -> None:
    path = job.payload.decode()
    job.step("flight", noted, 1, path, undo=partial(takes_back, path))
    job.step("hotel", noted, 2, path, undo=partial(takes_back, path))
    if job.id == "changes its mind":
        job.undo()
        return
    raise ValueError("no money")


async def books_async(job: Job[Any]) -> None:
    path = job.payload.decode()

    async def undo(number: int) -> None:
        await asyncio.sleep(0)
        takes_back(path, number)

    await job.step("flight", noted, 1, path, undo=undo)
    await job.step("hotel", noted, 2, path, undo=undo)
    if job.id == "changes its mind":
        await job.undo()
        return
    raise ValueError("no money")


def takes_back(path: str, number: int) -> None:
    noted(-number, path)
    if Path(path).read_text("ascii").count("-2") == 1:
        os._exit(0)  # before its undo is recorded


async def forgets(job: Job[Any]) -> None:
    job.step("first", nothing, 1)


async def fails_beside_a_wait(job: Job[Any]) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.05)
        raise ValueError("beside a wait")

    await asyncio.gather(job.step("first", slow), job.wait_for("never"))


def tells(job: Job[Any]) -> bytes:
    job.progress(0.25, "a quarter")
    job.step("note", noted, 1, job.payload.decode())
    if job.attempt == 1:
        raise RetryLater(0, spend=True)
    job.wait_for("later", timeout=0.1)
    return b"unreachable"


def runs(job: Job[Any]) -> None:
    job.run(("q/pack", b""))


def runs_children(job: Job[Any]) -> bytes:
    """Run one in the slot of its parent, and one in another. Undo a step behind them."""
    near, far = job.run_all([("q/near", b"n"), ("far", b"f")])
    job.step("note", nothing, 1, undo=nothing)
    first = job.first(late=job.timer(seconds=0.1))
    job.undo()
    return b" ".join([near, far, first.name.encode()])


def leaves_a_thread(job: Job[Any]) -> bytes:
    """The thread takes a step when the job has ended, and another job runs."""

    def late() -> None:
        time.sleep(0.2)
        try:
            job.step("late", nothing, 1)
        except BaseException as error:
            LATE.append(type(error).__name__)

    if job.payload == b"leave":
        job.step("first", nothing, 1)
        threading.Thread(target=late, daemon=True).start()
        return b""
    while not LATE:
        time.sleep(0.01)
    return LATE[0].encode()


LATE: list[str] = []


def names_of_verdicts(job: Job[Any]) -> bytes:
    if job.payload == b"odd":
        raise Complete(RetryLater())
    return b"%d" % os.getpid()


def logs(job: Job[Any]) -> bytes:
    log.warning("in a child: %s", job.id)
    return format(trace.get_current_span().get_span_context().trace_id, "032x").encode()


def waits(job: Job[Any]) -> bytes:
    Path(job.payload.decode()).write_text(str(os.getpid()), "ascii")
    time.sleep(600)
    return b""


def loops_for_ever(job: Job[Any]) -> None:
    Path(job.payload.decode()).write_text(str(os.getpid()), "ascii")
    loops_in_c()


def notes(job: Job[Any]) -> None:
    time.sleep(0.002)
    line = f"{job.id} {os.getpid()} ;\n".encode()
    file = os.open(job.payload.decode(), os.O_WRONLY | os.O_APPEND)
    os.write(file, line)
    os.close(file)


def grows(job: Job[Any]) -> bytes:
    KEPT.append(b"x" * (80 << 20))
    return b"%d" % os.getpid()


KEPT: list[bytes] = []


@tasks.task()
def add(first: int, second: int) -> int:
    return first + second


@tasks.task()
def done_early(number: int) -> int:
    raise Complete(number)


@tasks.task()
def shout(text: str) -> str:
    return f"{tasks.job.attempt} {text.upper()}"


def first_of_three(job: Job[Any]) -> bytes:
    """A step, a sleep and a step, in any queue."""
    first = job.step("first", behaves)
    job.sleep("nap", 0.05)
    job.step("second", behaves)
    return f"{first} {job.shard}".encode()


def appends(job: Job[Any]) -> None:
    begin = f"{job.key} {job.payload.decode()} in\n"
    time.sleep(0.01)
    with Path(os.environ["NOTED"]).open("a", encoding="ascii") as file:
        file.write(begin)


def overlaps(job: Job[Any]) -> None:
    """Fail if another job of the tenant runs at the same time."""
    place = Path(os.environ["NOTED"]) / job.headers["tenant"]
    with place.open("x"):
        time.sleep(0.01)
    place.unlink()


def five_at_most(jobs: list[Job[Any]]) -> None:
    """Fail if more than five jobs of the tenant run at the same time, or jobs of two tenants."""
    (tenant,) = {job.headers["tenant"] for job in jobs}
    folder = Path(os.environ["NOTED"]) / tenant
    folder.mkdir(exist_ok=True)
    places = [folder / job.id for job in jobs]
    for place in places:
        place.touch()
    time.sleep(0.01)
    running = len([*folder.iterdir()])
    for place in places:
        place.unlink()
    if running > 5:
        raise ValueError(f"{running} jobs of {tenant}")


def steps_for_ever(job: Job[Any]) -> None:
    for number in range(10_000):
        job.step(f"step-{number}", behaves)
        Path(job.payload.decode()).write_text(str(os.getpid()), "ascii")
        time.sleep(0.01)


@frozen
class Point:
    x: int


def moved(job: Job[Point]) -> list[int]:
    return [job.payload.x, 7]


# -- beside other features -------------------------------------------------------------------------


def family(job: Job[Any]) -> bytes:
    """Wait for children side by side, and for the first of two sources."""
    packed = job.run_all([("q/pack", b"a"), ("q/pack", b"dies once")], at_most=1)
    try:
        job.run(("q/pack", b"dies"))
    except ChildFailed as error:
        failed = str(error)
    child = job.start(("q/pack", b"c"))
    first = job.first(late=job.timer(seconds=600), done=child)
    return b"; ".join([*packed, first.name.encode(), first.value, failed.encode()])


async def family_async(job: Job[Any]) -> bytes:
    packed = await job.run_all([("q/pack", b"a"), ("q/pack", b"dies once")], at_most=1)
    try:
        await job.run(("q/pack", b"dies"))
    except ChildFailed as error:
        failed = str(error)
    child = await job.start(("q/pack", b"c"))
    first = await job.first(late=job.timer(seconds=600), done=child)
    return b"; ".join([*packed, first.name.encode(), first.value, failed.encode()])


def packs(job: Job[Any]) -> bytes:
    if job.payload == b"dies" or (job.payload == b"dies once" and job.attempt == 1):
        os._exit(3)
    return b"packed " + job.payload


def books_and_hangs(job: Job[Any]) -> None:
    path = job.payload.decode()
    job.step("flight", noted, 1, path, undo=partial(noted_back, path))
    job.step("hotel", noted, 2, path, undo=partial(noted_back, path))
    job.step("car", loops_in_c)


async def books_and_hangs_async(job: Job[Any]) -> None:
    path = job.payload.decode()

    async def undo(number: int) -> None:
        await asyncio.sleep(0)
        noted_back(path, number)

    async def hangs() -> None:
        loops_in_c()

    await job.step("flight", noted, 1, path, undo=undo)
    await job.step("hotel", noted, 2, path, undo=undo)
    await job.step("car", hangs)


def noted_back(path: str, number: int) -> None:
    noted(-number, path)


def built(job: Job[Any]) -> bytes:
    job.step("first", behaves)
    return job.build.encode()


def naps(job: Job[Any]) -> bytes:
    """Wait until the payload's path is there, and tell in which process."""
    path = Path(job.payload.decode())
    path.with_suffix(".began").touch()
    while not path.exists():
        time.sleep(0.01)
    return b"%d" % os.getpid()
