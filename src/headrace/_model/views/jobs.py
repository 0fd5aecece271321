"""Jobs as they are shown, with their kinds, workers and schedules."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from headrace._model.job import shortened
from headrace._model.state import Attempt, Children, Schedule, WorkerState
from headrace._model.steps import Progress, Step
from headrace._model.views.texts import Payload

ENDED = ("completed", "cancelled", "deleted")  # states of jobs that have left their queue


@frozen
class Moment:
    """A line of a job's timeline, with an event at `at` (`None` if the time is unknown)."""

    at: float | None
    what: str = field(repr=shortened)


@frozen
class JobView:
    """A job as it may be shown. An ended job is shown as far as its result or a `history` is
    kept.

    `until`, `token` and `holder` describe its lease, if it has one. `timeline` lists the events
    that its data records. `steps` and `progress` are the records of its handler. The `result` of a
    step is a `Payload`. `attempts` have ended. `kind` is its header of that name. `shard` is the
    number of its shard, if one job was asked for.
    """

    id: str
    queue: str
    state: str
    attempt: int
    priority: int
    enqueued_at: float | None
    payload: Payload
    headers: Mapping[str, str] = field(repr=shortened)
    holder: str | None = None
    since: float | None = None
    due: float | None = None
    reason: str | None = field(default=None, repr=shortened)
    traceback: str | None = field(default=None, repr=False)
    token: int | None = None
    until: float | None = None
    position: int | None = None
    result: Payload | None = None
    timeline: tuple[Moment, ...] = ()
    steps: tuple[Step, ...] = ()
    progress: Progress | None = None
    attempts: tuple[Attempt, ...] = ()
    kind: str | None = None
    wait: float | None = None
    """Seconds from its first enqueue to its first attempt, delays included. It is `None` if it is
    not known. For a running job in its first attempt it is an upper bound, as the renewal of its
    lease counts as its delivery.
    """
    duration: float | None = None
    """Seconds that its last attempt took. For a run they are the seconds of all its deliveries,
    without suspensions. For a running job they count since its delivery, or the last renewal of its
    lease. It is `None` if it is not known.
    """
    finished: float | None = None
    """The server's time of its end or its death, in seconds. `None` if it has not ended, or that is
    not known."""
    shard: int | None = None
    deliveries: int = 0
    """The number of times that it was handed out. It is 0 if that is not known."""
    suspended: bool = False
    """Whether it is a run that sleeps, or waits for a signal."""
    children: Children | None = None
    """The children for which an ended job of a flow waited."""
    overcome: bool = False
    """Whether its `reason` tells of an attempt before its last delivery, which was suspended."""

    @property
    def is_run(self) -> bool:
        """Whether its handler has taken steps, as far as that is known."""
        return bool(self.steps) or self.suspended or any(one.suspended for one in self.attempts)

    @property
    def counted(self) -> str:
        """The word for one of its `attempts`. A run has deliveries."""
        return "delivery" if self.is_run else "attempt"

    @property
    def told(self) -> str | None:
        """Its `reason`, if that tells of its state now."""
        return None if self.overcome else self.reason

    @property
    def ended(self) -> bool:
        """Whether it was completed, cancelled or deleted and has left the queue. A history may
        have kept its payload.
        """
        return self.state in ENDED


@frozen
class JobsPage:
    """A page of the jobs of a queue in one state. `cursor` is where to go on, and is empty at
    the end. `looked` is the number of jobs that were read for it.
    """

    now: float
    queue: str
    state: str
    jobs: tuple[JobView, ...]
    cursor: str
    looked: int = 0


@frozen
class KindView:
    """The jobs of one kind, or of none (`None`), that ended of late. `number` counts them, and
    `dead` the dead ones among them.

    `run` is the 50th and the 95th percentile, in seconds, of how long their last attempts took.
    `wait` is the same of how long they waited for their first. Each is `None` if it is not known of
    any.
    """

    kind: str | None
    number: int
    dead: int
    run: tuple[float, float] | None
    wait: tuple[float, float] | None

    @property
    def failing(self) -> float:
        """The part that died, from 0 to 1."""
        return self.dead / self.number


@frozen
class KindsPage:
    """The kinds of the jobs that ended last in a queue with a `history`, the most frequent
    first.

    `seen` is the number of completed or dead jobs that were looked at. The first of them ended at
    `since`. `kept` is whether the queue keeps a history.
    """

    now: float
    queue: str
    kept: bool
    kinds: tuple[KindView, ...] = ()
    seen: int = 0
    since: float | None = None


@frozen
class WorkerView:
    """A worker of a queue, and some of the jobs that it has leased, oldest first."""

    worker: WorkerState
    jobs: tuple[JobView, ...]


@frozen
class ScheduleView:
    """A schedule of a `queue` as it may be shown, with the `payload` and the `headers` of its
    jobs."""

    queue: str
    schedule: Schedule
    payload: Payload
    headers: Mapping[str, str] = field(repr=shortened)
