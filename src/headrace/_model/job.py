"""The values that cross the public API. What users get is frozen; none knows a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from attrs import Factory, astuple, define, field, frozen

PRIORITY = "headrace-priority"  # the header of a job's level, unless that is 0
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Lost:
    """Says whether a job was lost under its handler: cancelled, deleted, or reclaimed by a peer. Truthy once it is."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def __bool__(self) -> bool:
        return self._job._lost  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - we are a part of it

    def __repr__(self) -> str:
        return f"Lost({bool(self)})"

    def is_set(self) -> bool:
        """`True` once the job is no longer this handler's."""
        return bool(self)

    def set(self) -> None:
        """Called by the worker."""
        object.__setattr__(self._job, "_lost", True)


@define(eq=False)
class _Open:
    """A job that is being made: one is made for every delivery, and filling a frozen one takes three times as long."""

    id: str
    payload: Any
    queue: str
    headers: Mapping[str, str] = NO_HEADERS
    attempt: int = 1
    enqueued_at: float = 0.0
    _lost: bool = field(default=False, init=False, repr=False)


@frozen(eq=False)  # pyright: ignore[reportGeneralTypeIssues] - frozen from here on, on purpose
class Job(_Open):
    """One unit of work, as a handler sees it.

    `payload` is `bytes`, or what the queue's codec made of them. `attempt` is 1 the first time and
    counts deliveries less releases. `enqueued_at` is the server's time of the first enqueue, in
    seconds since the epoch.
    """

    @property
    def priority(self) -> int:
        """Its level: 0 comes first."""
        level = self.headers.get(PRIORITY, "")
        return int(level) if level.isdigit() else 0

    @property
    def lost(self) -> Lost:
        """Truthy once the job is no longer its handler's: cancelled, deleted, or reclaimed by a peer."""
        return Lost(self)

    def __reduce__(self) -> tuple[Any, ...]:  # to another process: its headers may be a proxy, which does not pickle
        return Job, (self.id, self.payload, self.queue, dict(self.headers), self.attempt, self.enqueued_at)

    @classmethod
    def make(
        cls, id: str, payload: Any, queue: str, headers: Mapping[str, str], attempt: int, enqueued_at: float
    ) -> Job:
        """`Job(...)`, for every delivery."""
        job: Any = _Open(id, payload, queue, headers, attempt, enqueued_at)
        job.__class__ = cls
        made: Job = job
        return made


@frozen
class NewJob:
    """A job to enqueue, where more than its payload matters.

    `queue` is for follow-ups (`then=`) only: a queue of the same group. `delay` is seconds, a
    `timedelta`, or an aware `datetime`.
    """

    payload: Any
    id: str | None = None
    headers: Mapping[str, str] | None = None
    delay: float | timedelta | datetime | None = None
    priority: int = 0
    queue: str | None = None


@define
class _OpenReceipt:
    """A receipt that is being made: like `_Open`."""

    id: str
    added: bool


@frozen  # pyright: ignore[reportGeneralTypeIssues] - frozen from here on, on purpose
class Receipt(_OpenReceipt):
    """What became of an enqueue: the job's `id`, and whether it was `added`.

    `added=False`: a job of that id is in the queue already, and was left as it is.
    """


def receipts(ids: Iterable[str]) -> list[Receipt]:
    """`Receipt(id, True)` for each."""
    made: Any = [_OpenReceipt(name, True) for name in ids]
    for receipt in made:
        receipt.__class__ = Receipt
    done: list[Receipt] = made
    return done


class Traceable:
    """What may be traced by something. It is no field: unset as long as nobody traces, it costs nothing."""

    __slots__ = ("trace",)
    trace: Any


@define(eq=False)
class Claim(Traceable):
    """A worker's claim on a job until a deadline: what the scripts need to settle it.

    `entry` is the stream entry that carries the job now, `count` Redis's delivery count of that entry
    (with `worker` it is the fence), `token` grows with every delivery of the job: hand it to your own
    database to refuse stale writers. `duration` is seconds, or `None` for the worker's own;
    `leased_at` the server's time, in seconds.
    """

    job: Job
    worker: str
    entry: str
    count: int
    token: int
    duration: float | None = None
    leased_at: float = 0.0


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
    delayed ones, `reason`, `worker` and `since` (of the death) to dead ones.
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
class Page:
    """One page of a listing; `cursor` is empty when it was the last."""

    items: Sequence[JobState]
    cursor: str

    def __iter__(self) -> Iterator[JobState]:
        return iter(self.items)


@frozen
class Grant:
    """What one lease call brought: the claims, jobs that do not decode, and the next due delay.

    *paused*: nothing is handed out until `next_due`, whatever waits.
    """

    claims: Sequence[Claim]
    undecodable: Sequence[tuple[Claim, str]] = ()
    next_due: float | None = None
    healed: bool = False
    paused: bool = False


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
    """What one reclaim call moved to the front, and where the sweep of expired leases goes on."""

    moved: int
    cursor: str
    declared: int = 0
    more: bool = False
    promoted: int = Factory(int)
    next_due: float | None = None
    next_tick: float | None = None


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


@frozen
class Ticking:
    """Schedules as they are: (name, due, timing, missed) each; times in ms of the server's clock."""

    now: int
    next: float | None
    rows: Sequence[tuple[str, int, str, str]]


@frozen
class Turn:
    """What to send for the ticks that are due, seconds until the next, and what is wrong with which schedule."""

    ops: Sequence[Any]
    wait: float | None
    wrong: Sequence[str] = ()
