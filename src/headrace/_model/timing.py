"""Times at which recurring jobs are due. This is pure arithmetic. The present is an argument
that comes from the server.

Moments are whole milliseconds since the epoch. A tick is a moment at which a job is due. An
interval counts from its first tick, so that it never drifts. A cron expression is read as Debian's
cron does (by cronsim), in a time zone. Where clocks go forward, jobs of the hour that is left out
run right after it. Where they go back, they run once. An expression whose minute or hour begins
with `*` goes by real time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from attrs import define, field, frozen

from headrace._model.checks import seconds, text
from headrace._model.job import NewJob
from headrace._model.shards import ShardRow
from headrace.errors import requiring

MISSED = ("skip", "once", "all")
MISSED_GRACE_MS = 60_000  # ms after which a tick that no worker has served counts as missed
CATCH_UP_AT_MOST = 1000  # ticks enqueued at a time; of more, the latest
SCHEDULES_AT_MOST = 1000  # schedules of one queue


@frozen
class Timing:
    every: int = 0  # ms between two ticks; 0: by *cron* in *zone*
    cron: str = ""
    zone: str = "UTC"

    @classmethod
    def of(cls, every: object, cron: object, timezone: object) -> Timing:
        if (every is None) == (cron is None):
            raise ValueError("give every= or cron=, one of the two")
        if cron is None:
            if timezone is not None:
                raise ValueError("timezone: it is for cron=; an interval is the same everywhere")
            return cls(round(seconds("every", every, least=0.1) * 1000))
        if isinstance(timezone, ZoneInfo):
            timezone = timezone.key
        if timezone is not None and not isinstance(timezone, str):
            raise TypeError(
                f"timezone must be a name such as 'Europe/Berlin', not {type(timezone).__name__}"
            )
        timing = cls(
            0, " ".join(text("cron", cron).split()), "UTC" if timezone is None else timezone
        )
        timing.after(0, 0)
        return timing

    @classmethod
    def parse(cls, text: str) -> Timing:
        # as `__str__` makes it
        kind, _, rest = text.partition(" ")
        if kind == "every":
            if int(rest) < 1:
                raise ValueError(f"no interval: {text}")
            return cls(every=int(rest))
        zone, _, cron = rest.partition(" ")
        return cls(cron=cron, zone=zone)

    def __str__(self) -> str:
        return f"every {self.every}" if self.every else f"cron {self.zone} {self.cron}"

    def after(self, moment: int, anchor: int) -> int:
        """Return the first tick after *moment*, where *anchor* is any tick."""
        if self.every:
            return anchor + ((moment - anchor) // self.every + 1) * self.every
        return next(self._cron(moment))

    def passed(self, due: int, now: int, most: int = 1) -> list[int]:
        """Return the latest *most* ticks from the tick *due* up to *now*."""
        if self.every:
            count = (now - due) // self.every + 1
            return [due + n * self.every for n in range(max(0, count - most), count)]
        span = 60_000
        while True:  # from near *now*: there may be a year of them
            start = max(due - 1, now - span)
            ticks: list[int] = []
            for tick in self._cron(start):
                if tick > now:
                    break
                ticks.append(tick)
            if start < due or len(ticks) >= most:
                # a time zone that was changed meanwhile may not have it any more
                return ticks[-most:] or [due]
            span *= 4

    def _cron(self, moment: int) -> Iterator[int]:
        with requiring("cron", "cron"):
            from cronsim import CronSim, CronSimError
        start = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=moment)
        try:
            ticks = CronSim(self.cron, start.astimezone(_zone(self.zone)))
        except CronSimError as error:
            raise ValueError(
                f"cron {self.cron!r}: {error}; give minute, hour, day of month, month and day of week"
            ) from None
        for tick in ticks:
            found = round(tick.timestamp() * 1000)
            # in an hour that comes twice, cronsim finds ticks of the first again
            if found > moment:
                yield found
        raise ValueError(f"cron {self.cron!r}: no such day in 50 years")


def _zone(name: str) -> Any:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, no name at all, or a folder
        raise ValueError(
            f"timezone {name!r}: give an IANA name such as 'Europe/Berlin' "
            "(a system without time zone data has it from: pip install tzdata)"
        ) from None


def missed_policy(value: object) -> str:
    if text("missed", value) not in MISSED:
        raise ValueError(f"missed={value!r}: give 'skip', 'once' or 'all'")
    return str(value)


def decide(timing: Timing, missed: str, due: int, now: int) -> tuple[list[int], int]:
    """Return the ticks whose jobs are to be enqueued at *now*, and the tick after *now*. *due* is
    the oldest tick without jobs.
    """
    ticks = timing.passed(due, now, CATCH_UP_AT_MOST if missed == "all" else 1)
    following = timing.after(now, due)
    if missed == "skip" and now - ticks[-1] > MISSED_GRACE_MS:
        ticks = []
    return ticks, following


PREFIX = "tasks/"  # prefix of the names of schedules that tasks declare


@frozen
class Recurring:
    """A schedule that code declares. Its fields are the arguments of `schedule`."""

    name: str
    timing: Timing
    missed: str
    job: NewJob[Any]


@define(eq=False)
class Declared:
    """The schedules that a worker's code declares for one queue, and name and time of the last
    declaration."""

    schedules: Sequence[Recurring]
    declared_as: str = ""
    declare_again_at: float = 0.0
    # differs for each set of schedules that another version could declare
    set: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        each = sorted(
            f"{one.name}\n{one.timing}\n{one.missed}\n{one.job.priority}" for one in self.schedules
        )
        self.set = hashlib.sha256("\n\n".join(each).encode()).hexdigest()[:16] if each else ""

    def within(self, shard: ShardRow) -> Declared:
        """Return the schedules whose names belong to a shard. They are declared only in that
        shard."""
        return Declared([one for one in self.schedules if shard.covers(one.name)])
