"""What scripts answer, as values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import Factory, frozen

from headrace._model.job import (
    Claim,
)
from headrace._model.state import JobState


@frozen
class Page:
    """One page of a listing; `cursor` is empty when it was the last."""

    items: Sequence[JobState]
    cursor: str

    def __iter__(self) -> Iterator[JobState]:
        return iter(self.items)


@frozen
class Grant:
    """What one lease call brought: the claims, jobs that do not decode, and the next due delay.

    *paused*: nothing more is handed out until `next_due`, whatever waits.
    """

    claims: Sequence[Claim]
    undecodable: Sequence[tuple[Claim, str]] = ()
    next_due: float | None = None
    healed: bool = False
    paused: bool = False
    now: float | None = None  # by the server's clock

    @property
    def more(self) -> bool:
        """Whether to ask again at once: one call hands out about 1 MiB, and passes so many that must wait."""
        return self.next_due == 0


@frozen
class Entered:
    """How it went with a worker that wants in under a name of its own.

    `verdict` 1: it is registered, and *who* was here before it (or nobody, ''); 0: *who* may live, as the server
    describes them; -1: *who* does live.
    """

    verdict: int
    who: str


@frozen
class Reclaimed:
    """What one reclaim call moved to the front, and in how many seconds to come again, if that is soon."""

    moved: int
    again: float | None = None
    declared: int = 0
    more: bool = False
    promoted: int = Factory(int)
    next_due: float | None = None
    next_tick: float | None = None


@frozen
class DueSchedules:
    """Schedules as they are: (name, due, timing, missed) each; times in ms of the server's clock."""

    now: int
    next: float | None
    rows: Sequence[tuple[str, int, str, str]]


@frozen
class SchedulePlan:
    """What to send for the ticks that are due, seconds until the next, and what is wrong with which schedule."""

    ops: Sequence[Any]
    wait: float | None
    wrong: Sequence[str] = ()
