"""What a queue answers about itself: counts, jobs' states, workers, schedules, repairs."""

from __future__ import annotations

from attrs import astuple, field, frozen

from headrace._model.job import (
    Job,
)


@frozen
class Counts:
    """How many jobs are in each state, and what has become of all others, at one instant.

    Always: `enqueued == completed + cancelled + deleted + dead_trimmed + waiting + parked + leased +
    delayed + blocked + dead`.
    """

    waiting: int = 0
    parked: int = 0
    leased: int = 0
    delayed: int = 0
    blocked: int = 0
    dead: int = 0
    enqueued: int = 0
    completed: int = 0
    cancelled: int = 0
    deleted: int = 0
    dead_trimmed: int = 0

    @property
    def present(self) -> int:
        """Jobs that are in the queue in any state."""
        return self.waiting + self.parked + self.leased + self.delayed + self.blocked + self.dead

    @property
    def lost(self) -> int:
        """What the law of conservation misses: 0, or foreign commands removed entries."""
        gone = self.completed + self.cancelled + self.deleted + self.dead_trimmed
        return self.enqueued - gone - self.present


@frozen
class Repairs:
    """What a repair mended, by kind of damage; true if there was any.

    Pending entries without a job were `dangling` and are dropped; jobs that nobody would have been handed were
    `stranded` and are parked, in front. Delayed jobs without a due time were `undated` and are due now; due times
    without a job were `hollow` and are dropped. Ids that no job has any more were released (`ids_released`), jobs
    whose id was free have taken it (`ids_taken`). `leftovers` are deadlines and releases of leases that are no more,
    `workers` registrations that were kept by half, `groups` consumer groups that were lost or moved. Jobs that were
    taken out by hand now count as `deleted`, those that were put in uncounted as `enqueued`, so that the law of
    conservation holds (`Counts.lost == 0`).
    """

    groups: int = 0
    dangling: int = 0
    stranded: int = 0
    undated: int = 0
    hollow: int = 0
    ids_released: int = 0
    ids_taken: int = 0
    leftovers: int = 0
    workers: int = 0
    deleted: int = 0
    enqueued: int = 0

    @property
    def total(self) -> int:
        """All of them: 0 if nothing was broken."""
        return sum(astuple(self))

    def __bool__(self) -> bool:
        return self.total > 0

    def __add__(self, other: Repairs) -> Repairs:
        return Repairs(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@frozen
class JobState:
    """A job and where it is: `state` is waiting, parked, leased, delayed, blocked or dead.

    `worker` and `since` (server seconds of the delivery or last renewal) belong to leased jobs, `due` to
    delayed ones, `reason`, `worker` and `since` (of the death) to dead ones. What can't be decoded has its bytes for a
    payload, and says why in `reason`.
    """

    job: Job
    state: str
    worker: str | None = None
    since: float | None = None
    due: float | None = None
    reason: str | None = None
    entry: str | None = field(default=None, repr=False)


@frozen
class WorkerState:
    """A registered worker of a queue: alive until `deadline` (server seconds) unless it beats again."""

    name: str
    queue: str
    since: float
    deadline: float
    leased: int
    alive: bool


@frozen
class Schedule:
    """What recurs, and when it is due next (`next_due`, server seconds). Of `every` (seconds) and `cron` one is given.

    `missed` says what becomes of ticks that nobody was there for: `skip`, `once` or `all`.
    """

    name: str
    next_due: float
    every: float | None
    cron: str | None
    timezone: str | None
    missed: str
