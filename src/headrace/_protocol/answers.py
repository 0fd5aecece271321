"""Replies of scripts as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import Factory, frozen

from headrace._model.job import Claim
from headrace._model.state import JobState


@frozen
class Page:
    """One page of a listing; `cursor` is empty when it was the last."""

    items: Sequence[JobState[Any]]
    cursor: str

    def __iter__(self) -> Iterator[JobState[Any]]:
        return iter(self.items)


@frozen
class Ended:
    """The end of a job: `state` is one of `ENDS`, with the data of the history; `there` if the job has not ended;
    `gone` or `gone, or dead` if nothing else is known; `again` if the caller must ask again.
    """

    state: str
    with_result: bool = False
    reason: str | None = None


@frozen
class Died:
    """A job that became a dead letter. *kind*: its header `kind`, or ''."""

    id: str
    attempts: int
    reason: str
    kind: str = ""


class Verdicts(list[bool]):
    """One bool per job to settle. *buried*: new dead letters, each with its queue, by their positions in this list, or
    by -1, -2, … if other jobs died because of the settlement.
    """

    buried: Mapping[int, tuple[str, Died]] = MappingProxyType({})


@frozen
class Grant:
    """The answer to a lease call: the claims, jobs that do not decode, and when the next delayed job is due.

    *healed*: the consumer group was missing and was created. *paused*: the queue is paused, or a rate limit admits
    nothing before `next_due`. *alone*: the worker gets no more jobs until it holds no job of the queue, or until
    `next_due`. *alone_for*: seconds for which the process should run no jobs of other queues beside the suspect that it
    got. *now*: the server's clock, in seconds. *levels*: the queue's number of levels, if the worker knows fewer.
    *died*: jobs without attempts left.
    """

    claims: Sequence[Claim]
    undecodable: Sequence[tuple[Claim, str]] = ()
    next_due: float | None = None
    healed: bool = False
    paused: bool = False
    now: float | None = None  # by the server's clock
    levels: int | None = None
    alone: bool = False
    alone_for: float | None = None
    died: Sequence[Died] = ()

    @property
    def more(self) -> bool:
        """Whether to lease again at once: one call hands out about 1 MiB, and looks at a bounded number of jobs."""
        return self.next_due == 0


@frozen
class Declaration:
    """The answer to a declaration: the number of the valid declaration, and the differing options of other programs."""

    version: int
    others: Mapping[str, str]


@frozen
class Entered:
    """The answer to a worker that registers under a name that its user chose.

    `verdict` 1: the worker is registered, and is the heir of *other*, its predecessor, or ''. 0: *other*, as the server
    describes it, may be alive. -1: *other* is alive.
    """

    verdict: int
    other: str


@frozen
class Reclaimed:
    """The answer to a reclaim call: the moved jobs, and the seconds until the next call is useful, if soon."""

    moved: int
    again: float | None = None
    declared: int = 0
    more: bool = False
    promoted: int = Factory(int)
    next_due: float | None = None
    next_tick: float | None = None
    rests: bool = False  # no job is leased, delayed, scheduled or held back


@frozen
class DueSchedules:
    """Schedules with a tick that is due: (name, due, timing, missed) each; times in ms of the server's clock.

    `cursor` is empty if these are all schedules.
    """

    now: int
    next: float | None
    rows: Sequence[tuple[str, int, str, str]]
    cursor: str = ""


@frozen
class SchedulePlan:
    """The operations for due ticks, the seconds until the next tick, and a message for each broken schedule."""

    ops: Sequence[Any]
    wait: float | None
    wrong: Sequence[str] = ()
