"""Values that `headrace.inspect` shows. Times are seconds of the server's clock; texts are bounded, and printable."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from headrace._model.flow import FlowState
from headrace._model.job import shortened
from headrace._model.shown import Payload
from headrace._model.state import Counts, Schedule, WorkerState

NO_RATES: Mapping[str, float] = {}
NOTHING_BROKEN: Mapping[str, str] = {}
ENDED = ("completed", "cancelled", "deleted")  # states of jobs that have left their queue


@frozen
class ShardView:
    """A shard of a queue: its `number`, its `counts` of one instant, the age in seconds of its oldest job that is next
    (`lag`), and whether it is `paused`.
    """

    number: int
    counts: Counts
    lag: float
    paused: bool


@frozen
class QueueView:
    """A queue in an overview: `counts` of one instant, the age in seconds of the oldest job that is next (`lag`), and
    the jobs a second that were `enqueued` and `completed` in the last minute, as far as this reader has looked
    (`rates`, empty at first). Of a sharded queue (`shards`) the counts are sums, of an instant for each shard.
    """

    name: str
    counts: Counts
    lag: float
    paused: bool
    levels: int
    workers: tuple[WorkerState, ...]
    rates: Mapping[str, float] = NO_RATES
    trail: tuple[tuple[float, float], ...] = ()
    """Jobs a second that were enqueued and completed between the latest looks, the oldest first: for a small chart."""
    shards: tuple[ShardView, ...] = ()

    @property
    def balanced(self) -> bool:
        """Whether the law of conservation holds: every job that was enqueued is present, or has left as it should."""
        return self.counts.lost == 0

    @property
    def law(self) -> str:
        """The law of conservation with this queue's numbers, all of one instant."""
        c = self.counts
        gone = f"{c.completed} completed + {c.cancelled} cancelled + {c.deleted} deleted + {c.dead_trimmed} trimmed"
        text = f"{c.enqueued} enqueued {'=' if self.balanced else '≠'} {gone} + {c.present - c.handing} present"
        return text if self.balanced else f"{text}: {abs(c.lost)} {'missing' if c.lost > 0 else 'too many'}"

    @property
    def alive(self) -> int:
        """Workers that are alive; in a sharded queue each is registered once a shard, by names that begin alike."""
        names = {
            one.name.rpartition(".")[0] or one.name if self.shards else one.name for one in self.workers if one.alive
        }
        return len(names)


@frozen
class Overview:
    """All queues of a namespace at the time `now`, by name; `broken` says why others can't be read.

    `whole` once all keys of the server have been looked at: that is done in steps, so that a large one is not held up.
    """

    now: float
    queues: tuple[QueueView, ...]
    whole: bool
    broken: Mapping[str, str] = NOTHING_BROKEN

    @property
    def workers(self) -> tuple[WorkerState, ...]:
        """The workers of all queues, by name and queue."""
        return tuple(sorted((w for q in self.queues for w in q.workers), key=lambda w: (w.name, w.queue)))


@frozen
class QueuePage:
    """A queue by itself: besides, how it is `declared` (`declaration` is the number of that), and its schedules."""

    now: float
    queue: QueueView
    declared: Mapping[str, str]
    declaration: int
    schedules: tuple[Schedule, ...]


@frozen
class Moment:
    """A line of a job's timeline: an event at `at` (`None`: the time is not known)."""

    at: float | None
    what: str = field(repr=shortened)


@frozen
class JobView:
    """A job as it may be shown. An ended job is shown as far as its result or a `history` is kept.

    `until`, `token` and `holder` describe its lease, if it has one; `timeline` lists the events that its data records.
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

    @property
    def ended(self) -> bool:
        """Whether it has left the queue: completed, cancelled or deleted. Its payload is gone."""
        return self.state in ENDED


@frozen
class JobsPage:
    """A page of the jobs of a queue in one state; `cursor` is where to go on, empty at the end."""

    now: float
    queue: str
    state: str
    jobs: tuple[JobView, ...]
    cursor: str


@frozen
class DeadGroup:
    """Dead letters that share a `reason`, numbers aside (`key` names it): how many, since when, some of their ids."""

    key: str
    reason: str
    number: int
    first: float
    last: float
    ids: tuple[str, ...]


@frozen
class DeadPage:
    """The dead letters of a queue by reason, the most frequent first. `seen` of `all` were looked at, the oldest."""

    now: float
    queue: str
    groups: tuple[DeadGroup, ...]
    seen: int
    all: int


@frozen
class WorkerView:
    """A worker of a queue, and some of the jobs that it has leased, oldest first."""

    worker: WorkerState
    jobs: tuple[JobView, ...]


@frozen
class RunsPage:
    """Some runs of a flow, in no order; `cursor` is where to go on, empty at the end."""

    now: float
    flow: str
    stages: tuple[str, ...]
    runs: tuple[FlowState, ...]
    cursor: str
