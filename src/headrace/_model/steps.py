"""Values of runs. They are the steps, sleeps and waits that a job's handler has recorded."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from attrs import Factory, field, frozen

from headrace._model.checks import LAST_MOMENT_S
from headrace._model.job import shortened

NAME_CHARACTERS = 200  # of a step's name, and of the text of a progress
STEP_BYTES = 64 << 10  # of a value that is recorded
RUN_RECORDS, RUN_BYTES = 1000, 1 << 20  # of all records of a run
CHILDREN_DEEP = 10  # children below each other
ONE_STATE = {  # of kinds of records
    "signal": "kept",
    "omitted": "not kept",
    "undoable": "undoable",
    "undone": "undone",
    "dying": "dying",
}


@frozen
class Step:
    """A step of a run, or a sleep or wait. `queue.find(id).steps` lists them in the order of the
    records.

    `state` is `done` (a step has ended), `begun` (a step with `once=True` has not ended, and is not
    run again), `undoable` (a step with `undo=` has ended), `undone`, `sleeping`, `slept`,
    `waiting`, `signalled` (its signal came), `timed out`, or `kept` (a signal that no wait has
    taken yet). A step without a name stands for the undoing of the run. It is `undoing`, `undone`
    by `job.undo()`, or `dying`, and then its result is why. A child is `running`, `done`, `dead`,
    `cancelled`, `deleted` or `unknown`, and has its `queue` and its id, `child`. `began` and
    `ended` are the server's times, in seconds. `ended` is `None` before the end. `due` is when a
    sleep or wait ends at the latest, or `None` for never. `attempt` is the job's attempt that
    recorded it. `result` is the recorded value, if it can be read without the code that wrote it.
    `sent` is when the signal came, in the server's seconds, and `by` names its sender. `omitted` is
    the number of bytes of a value for which a history has no room. A step that is `not kept` stands
    for some of them.
    """

    name: str
    state: str
    began: float
    ended: float | None
    attempt: int
    due: float | None = None
    result: Any = field(default=None, repr=shortened)
    sent: float | None = None
    by: str | None = None
    omitted: int = 0
    queue: str | None = None
    child: str | None = None


@frozen
class Child:
    """A child that `job.start` has started. It has its `name` in this run, its `id`, and the name
    of its `queue`.
    """

    name: str
    id: str
    queue: str
    job: Any = field(default=None, repr=False, eq=False)


@frozen
class Signal:
    """The source of `job.first` that is over when a signal has come."""

    name: str


@frozen
class Timer:
    """The source of `job.first` that is over when its time has come."""

    until: timedelta | datetime
    name: str = ""  # of its record, which `first` gives it


class First(NamedTuple):
    """The source of `job.first` that was over first, with its `name` and its `value`."""

    name: str
    value: Any


@frozen
class Progress:
    """The progress of a job. It has a `fraction` from 0 to 1, a `text` of its handler, and the
    server's time of the record.
    """

    fraction: float
    text: str
    at: float


@frozen
class Record:
    """A record of a run as the server keeps it. Times are ms of the server's clock, where
    `ended` is 0 before the end and `due` is 0 for never. `traced` is the `traceparent` of the
    delivery that a sleep or wait has ended, or ''. `by` and `sent` belong to a signal. `omitted`
    is the number of bytes of a value that a history has left out, or a run the result of a child.
    """

    number: int
    name: str
    kind: str
    began: int
    ended: int
    attempt: int
    value: bytes | None
    due: int
    traced: str = ""
    by: str = ""
    sent: int = 0
    omitted: int = 0
    outcome: str = ""  # of a child that has ended
    home: str = ""  # the prefix of the keys of its queue
    child: str = ""  # its id
    depth: int = 0  # of a child in another slot: the runs above it
    queue: str = field(
        default=Factory(lambda self: self.home.partition("}:")[2].rstrip(":"), takes_self=True)
    )

    def over(self, now: float) -> bool:
        """Tell whether a sleep or wait has ended, or timed out, at *now*, in seconds."""
        return bool(self.ended) or 0 < self.due <= now * 1000

    def state(self, now: float) -> str:
        if self.kind in ONE_STATE:
            return ONE_STATE[self.kind]
        if self.kind == "child":
            return ("done" if self.outcome == "completed" else self.outcome) or "running"
        if self.kind == "sleep":
            return "slept" if self.over(now) else "sleeping"
        if self.kind == "wait":
            unsignalled = "timed out" if self.over(now) else "waiting"
            return "signalled" if self.ended else unsignalled
        if self.kind == "undoing":
            return "undone" if self.ended else "undoing"
        return "done" if self.ended else "begun"

    def step(self, now: float, result: Any) -> Step:
        ended = self.ended or (self.due if self.kind in ("sleep", "wait") and self.over(now) else 0)
        due = self.due / 1000 if self.due else None
        return Step(
            self.name,
            self.state(now),
            self.began / 1000,
            ended / 1000 if ended else None,
            self.attempt,
            due,
            result,
            self.sent / 1000 if self.sent else None,
            self.by or None,
            self.omitted,
            self.queue or None,
            self.child or None,
        )


def step_name(value: object, what: str = "name", of: str = "a step") -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not 1 <= len(value) <= NAME_CHARACTERS:
        raise ValueError(f"{what} of {len(value)} characters: give {of} 1 to {NAME_CHARACTERS}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} {value!r} is not valid Unicode") from None
    return value


def moment(what: str, value: object, now: float) -> str:
    """Return when a sleep or wait ends, in the form of scripts. It is '' for never, '+ms' from
    now, or '@ms' for a moment. *now* is the server's clock, in seconds.

    Raises `TypeError` or `ValueError` for a duration that is negative or no number, a naive
    `datetime`, or an end after the year 9999.
    """
    if value is None:
        return ""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                f"{what}={value!r} has no time zone: give an aware datetime, such as datetime.now(UTC)"
            )
        return f"@{max(0, math.ceil(value.timestamp() * 1000))}"
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(
            f"{what} must be seconds, a timedelta or an aware datetime, not {type(value).__name__}"
        )
    if not 0 <= seconds <= LAST_MOMENT_S - now:
        raise ValueError(
            f"{what}={value!r:.100}: give 0 or more seconds, so that it ends before the year 10000"
        )
    return f"+{math.ceil(seconds * 1000)}"


def fraction_of(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"fraction must be a number from 0 to 1, not {type(value).__name__}")
    if not 0 <= value <= 1:
        raise ValueError(f"fraction={value!r:.100}: give a number from 0 to 1")
    return float(value)
