"""The operations of schedules, and their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

from attrs import frozen

from headrace._model import checks
from headrace._model.checks import LEVELS_AT_MOST
from headrace._model.codec import inline
from headrace._model.job import NewJob
from headrace._model.state import JobState, Schedule
from headrace._model.timing import SCHEDULES_AT_MOST, Declared, Timing, decide, missed_policy
from headrace._protocol.keys import job_id
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import text, wait_of
from headrace.errors import describe_error


@frozen
class DueSchedules:
    now: int  # ms of the server's clock, as all times here
    next: float | None
    rows: Sequence[tuple[str, int, str, str]]  # name, due, timing, missed
    cursor: str = ""  # '': these are all schedules
    last: Sequence[str] = ()  # the last run of each, as 'ms id' or ''
    jobs: Sequence[Any] = ()  # the fields of the jobs of one that was asked for by name


@frozen
class SchedulePlan:
    ops: Sequence[Any]
    wait: float | None  # seconds until the next tick
    wrong: Sequence[str] = ()  # a message for each broken schedule


def due_schedules(reply: Any) -> DueSchedules:
    now, following, rows, cursor = reply
    known = [
        (text(name), due, text(timing), text(missed)) for name, due, timing, missed, *_ in rows
    ]
    last = [text(row[4]) if len(row) > 4 else "" for row in rows]
    return DueSchedules(
        now, wait_of(following), known, text(cursor), last, [row[5] for row in rows if len(row) > 5]
    )


def recurring(reply: Any) -> tuple[bool, list[str]]:
    """Decode whether to make the declared schedules, and the names of ended schedules."""
    return reply[0] == 1, [text(name) for name in reply[1:]]


# a schedule that moves to another shard has its next tick so much later; a paused one, twice
_LATER_MS = 10**14


def listed(ticking: DueSchedules) -> list[Schedule]:
    found: list[Schedule] = []
    for (name, due, stored, missed), last in zip(
        ticking.rows, chain(ticking.last, repeat("")), strict=False
    ):
        try:
            t = Timing.parse(stored)
            every, cron, zone = (t.every / 1000, None, None) if t.every else (None, t.cron, t.zone)
        except (ValueError, OverflowError):  # foreign
            every = None
            cron = stored
            zone = None
        later, next_due = divmod(due, _LATER_MS) if 0 <= due < 4 * _LATER_MS else (0, due)
        ran, _, job = last.partition(" ")
        at = int(ran) / 1000 if ran.isdecimal() and len(ran) < 18 else None
        found.append(
            Schedule(name, next_due / 1000, every, cron, zone, missed, later > 1, at, job or None)
        )
    return found


def schedule(
    ops: Ops, name: str, timing: Timing, missed: str, job: NewJob[Any]
) -> Callable[[int], Op[int]]:
    """Make a job recur. Returns a function from the server's ms to the operation, which answers -1
    at the limit."""
    if len(job_id(name).encode()) > 400:
        raise ValueError("name: use at most 400 bytes of UTF-8: the ids of its jobs begin with it")
    fields: list[Arg] = ["data", ops.encoded(job.payload, inline(ops.bound)), *ops.headers(job)]
    checks.check_size("payload and headers", fields)
    head: list[Arg] = [job_id(name), str(timing), missed_policy(missed)]

    def at(now: int) -> Op[int]:
        return ops.op("schedule", [*head, timing.after(now, now), SCHEDULES_AT_MOST, *fields], int)

    return at


def unschedule(ops: Ops, name: str) -> Op[bool]:
    return ops.op("unschedule", [job_id(name)], bool)


def schedules(ops: Ops) -> Op[list[Schedule]]:
    """List the first 500 schedules, or 1 MiB of them."""
    return ops.op("schedules", ["all", ""], lambda reply: listed(due_schedules(reply)))


def schedule_of(ops: Ops, name: str) -> Op[tuple[Schedule, JobState[Any]] | None]:
    jobs = ops.decoder

    def decode(reply: Any) -> tuple[Schedule, JobState[Any]] | None:
        found = due_schedules(reply)
        if not found.jobs:  # none, or foreign bytes
            return None
        return listed(found)[0], jobs.state(["0-0", found.jobs[0], "waiting", 0, 0, "", 0], 0)

    return ops.op("schedules", ["one", job_id(name)], decode)


def pause_schedule(ops: Ops, name: str, pause: bool) -> Op[bool]:
    """Pause or resume a schedule. The answer is false if there is none of that name, or it was in
    that state already.
    """
    return ops.op("pause_schedule", [job_id(name), int(pause)], bool)


def run_schedule(ops: Ops, name: str) -> Op[str]:
    """Enqueue the job of a schedule now. The answer is its id, or '' without such a schedule."""
    return ops.op("run_schedule", [job_id(name)], text, priorities=LEVELS_AT_MOST)


def ticking(ops: Ops, which: str = "due", cursor: str = "") -> Op[DueSchedules]:
    """Fetch a page of the schedules with a due tick, and the time. If *which* is 'none', fetch only
    the time."""
    return ops.op("schedules", [which, cursor], due_schedules)


def declare_schedules(ops: Ops, declared: Declared, worker: str) -> Op[tuple[bool, list[str]]]:
    """Declare the schedules of the code. The answer is whether to make them, and the names of ended
    schedules."""
    names = [one.name for one in declared.schedules]
    return ops.op("recur", [worker, declared.set, *names], recurring)


def plan_ticks(ops: Ops, found: DueSchedules) -> SchedulePlan:
    made: list[Op[int]] = []
    waits = [] if found.next is None else [found.next]
    wrong: list[str] = []
    for name, due, stored, missed in found.rows:
        try:
            ticks, following = decide(Timing.parse(stored), missed, due, found.now)
        # this machine lacks a library or a time zone, or the data is foreign
        except Exception as error:
            wrong.append(f"schedule {name!r} of queue {ops.keys.queue!r}: {describe_error(error)}")
            continue
        waits.append((following - found.now) / 1000)
        made.append(ops.op("tick", [name, stored, due, following, *ticks], int))
    return SchedulePlan(made, min(waits, default=None), wrong)
