"""Schedules as scripts reply them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from attrs import frozen

from headrace._model.state import Schedule
from headrace._model.timing import Timing
from headrace._protocol.replies import text, wait_of


@frozen
class DueSchedules:
    """Schedules with a tick that is due: (name, due, timing, missed) each; times in ms of the server's clock.

    `cursor` is empty if these are all schedules. `last` has the last run of each, as 'ms id' or ''; `jobs` the fields
    of the jobs of one that was asked for by name.
    """

    now: int
    next: float | None
    rows: Sequence[tuple[str, int, str, str]]
    cursor: str = ""
    last: Sequence[str] = ()
    jobs: Sequence[Any] = ()


@frozen
class SchedulePlan:
    """The operations for due ticks, the seconds until the next tick, and a message for each broken schedule."""

    ops: Sequence[Any]
    wait: float | None
    wrong: Sequence[str] = ()


def ticking(reply: Any) -> DueSchedules:
    """Decode schedules for the worker that serves them."""
    now, following, rows, cursor = reply
    known = [(text(name), due, text(timing), text(missed)) for name, due, timing, missed, *_ in rows]
    last = [text(row[4]) if len(row) > 4 else "" for row in rows]
    return DueSchedules(now, wait_of(following), known, text(cursor), last, [row[5] for row in rows if len(row) > 5])


def recurring(reply: Any) -> tuple[bool, list[str]]:
    """Decode whether to make the declared schedules, and the names of ended schedules."""
    return reply[0] == 1, [text(name) for name in reply[1:]]


_LATER_MS = 10**14  # a schedule that moves to another shard has its next tick so much later; a paused one, twice


def listed(ticking: DueSchedules) -> list[Schedule]:
    """Decode schedules for the user."""
    found: list[Schedule] = []
    for (name, due, stored, missed), last in zip(ticking.rows, chain(ticking.last, repeat("")), strict=False):
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
        found.append(Schedule(name, next_due / 1000, every, cron, zone, missed, later > 1, at, job or None))
    return found
