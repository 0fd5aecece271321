"""Queues as they are shown, with their trends and SQL outboxes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from attrs import evolve, field, frozen

from headrace._model.state import Counts, Schedule, WorkerState, summed
from headrace._model.terms import LimitView, Share, Tenants, fair_by

NO_RATES: Mapping[str, float] = {}
NOTHING_BROKEN: Mapping[str, str] = {}
RELAY_DEAD_AFTER_S = 60.0  # seconds: four reports of a relay are missing


@frozen
class ShardView:
    """A shard of a queue. It has its `number`, its `counts` of one instant, the age in seconds
    of the oldest job that is next (`lag`), and whether it is `paused`.
    """

    number: int
    counts: Counts
    lag: float
    paused: bool


@frozen
class OutboxView:
    """The waiting rows in a queue's SQL outbox, as the `relay` of this name reported `age`
    seconds ago. `rows` counts 10,000 of them at most, `oldest` is the seconds since the oldest
    was written, and `refused` is the number of refused ones. `why` has the position and the
    reason of the first refused row.
    """

    relay: str
    rows: int
    oldest: float
    refused: int
    ended: bool
    """Whether the relay has ended in good order since."""
    age: float = 0.0
    why: str = ""

    @property
    def dead(self) -> bool:
        """Whether the relay has neither reported for a minute nor ended properly."""
        return not self.ended and self.age > RELAY_DEAD_AFTER_S

    @property
    def text(self) -> str:
        """Its words for screens."""
        rows = f"{self.rows:,} rows" + (f", the oldest for {self.oldest:.0f} s" if self.rows else "")
        why = f" ({self.why})" if self.why else ""
        refused = f", {self.refused:,} refused{why}" if self.refused else ""
        running = "is dead, it reported" if self.dead else "reported"
        relay = "ended" if self.ended else running
        return f"{rows}{refused}; the relay {self.relay} {relay} {self.age:.0f} s ago"


def program_name(registration: str) -> str:
    """Return the name of the program behind a worker's registration, which has a random part at its end."""
    return registration.rpartition(".")[0] or registration


@frozen
class QueueView:
    """A queue in an overview. It has its `counts` of one instant, and the age in seconds of the
    oldest job that is next (`lag`). `rates` are the jobs a second that were `enqueued` and
    `completed` in the last minute, from the looks of this reader, and are empty at first. For a
    sharded queue (`shards`) the counts are sums, of an instant for each shard.
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
    outbox: OutboxView | None = None
    """Its SQL outbox, if a relay has told of one."""
    trends: bool = False
    """Whether it keeps trends."""
    looks: tuple[float, ...] = ()
    """The times of the looks of `trail`, in seconds of the server's clock."""
    terms: str = ""
    """The structure of its terms, in words; empty for none."""

    @property
    def balanced(self) -> bool:
        """Whether the laws hold. Every enqueued job is present or has left properly. In a queue
        with `fair` or `limits`, each taken slot belongs to a leased job.
        """
        return not self.imbalance

    @property
    def imbalance(self) -> str:
        """The law that is broken, such as `2 missing`, `2 too many` or `3 slots of 2 leased
        jobs`. It is empty while both hold.
        """
        c = self.counts
        if c.lost:
            return f"{abs(c.lost)} {'missing' if c.lost > 0 else 'too many'}"
        return "" if c.held in (0, c.leased) else f"{c.held} slots of {c.leased} leased jobs"

    @property
    def law(self) -> str:
        """The law of conservation with this queue's numbers, all of one instant."""
        c = self.counts
        gone = f"{c.completed} completed + {c.cancelled} cancelled + {c.deleted} deleted + {c.dead_trimmed} trimmed"
        text = f"{c.enqueued} enqueued {'≠' if c.lost else '='} {gone} + {c.present - c.handing} present"
        return text if self.balanced else f"{text}: {self.imbalance}"

    @property
    def alive(self) -> int:
        """Workers that are alive."""
        return len(self.alive_names)

    @property
    def alive_names(self) -> frozenset[str]:
        """The names of workers that are alive, without the random part of each registration in a queue or shard."""
        return frozenset(program_name(one.name) for one in self.workers if one.alive)


@frozen
class Totals:
    """Sums over queues. They are the jobs in each state, the jobs a second that came and were
    done (`None` if not yet known), the longest `lag`, and the number of live workers.
    """

    waiting: int
    running: int
    delayed: int
    blocked: int
    dead: int
    completed: int
    enqueued_rate: float | None
    completed_rate: float | None
    lag: float
    workers: int

    @property
    def later(self) -> int:
        """The number of jobs whose turn comes later, which are delayed and blocked ones."""
        return self.delayed + self.blocked

    @classmethod
    def of(cls, queues: Sequence[QueueView]) -> Totals:
        """Sum these queues. A worker of several queues counts once."""
        counts = summed([Counts(), *(queue.counts for queue in queues)])
        rates = [queue.rates for queue in queues if queue.rates]
        enqueued, completed = (
            sum(one.get(name, 0.0) for one in rates) if rates else None for name in ("enqueued", "completed")
        )
        lag = max((queue.lag for queue in queues), default=0.0)
        workers = len({name for queue in queues for name in queue.alive_names})
        waiting = counts.waiting + counts.parked
        return cls(
            waiting, counts.leased, counts.delayed, counts.blocked, counts.dead, counts.completed, enqueued, completed,
            lag, workers,
        )  # fmt: skip


@frozen
class ServerFacts:
    """The server, or the fullest primary of a cluster, by its INFO. It has the name and version,
    the address without secrets, the bytes that are used and allowed (`maxmemory`, 0 for no
    limit), and how many commands were refused for lack of memory (`refused`).
    """

    name: str
    version: str
    address: str
    memory: int = 0
    maxmemory: int = 0
    refused: int = 0

    @property
    def full(self) -> float:
        """The used part of `maxmemory`, 0 without a limit."""
        return self.memory / self.maxmemory if self.maxmemory else 0.0

    @property
    def text(self) -> str:
        """Its name, version and address."""
        return f"{self.name} {self.version} at {self.address}"


@frozen
class Attention:
    """A fact that needs attention.

    `kind` is dead, oldest, paused, no worker, unbalanced, unreadable, unknown kind, rate, outbox,
    terms or server. `queue` is '' for the server. With `bad`, work fails or stands still. Otherwise
    the fact may be intended, or end by itself.
    """

    kind: str
    queue: str
    text: str
    bad: bool = False


@frozen
class Overview:
    """All queues of a namespace by name, at the time `now`. `broken` has the reasons why others
    can't be read.

    It is `whole` once all keys of the server have been scanned. That takes several steps, so that
    no step holds up a large server. `attention` lists the facts that need attention, the worst
    first. `server` is `None` if INFO is refused.
    """

    now: float
    queues: tuple[QueueView, ...]
    whole: bool
    broken: Mapping[str, str] = NOTHING_BROKEN
    attention: tuple[Attention, ...] = ()
    server: ServerFacts | None = None
    looks: tuple[tuple[float, Mapping[str, tuple[int, int]]], ...] = field(default=(), repr=False)
    """The latest looks, the oldest first: the time, and how many jobs each queue had got and completed."""

    @property
    def totals(self) -> Totals:
        """The sums over all queues."""
        return Totals.of(self.queues)

    def throughput(self, names: Collection[str]) -> tuple[tuple[float, float, float], ...]:
        """Return the jobs a second that came to these queues, and were completed, between the latest looks.

        Each row has the time of the look at its end. A queue counts where both looks have it.
        """
        rows: list[tuple[float, float, float]] = []
        for (start, before), (end, after) in pairwise(self.looks):
            both = [(before[name], after[name]) for name in names if name in before and name in after]
            came, done = (sum(max(0, b[i] - a[i]) for a, b in both) / (end - start) for i in (0, 1))
            rows.append((end, came, done))
        return tuple(rows)

    @property
    def workers(self) -> tuple[WorkerState, ...]:
        """The workers of all queues, by name and queue."""
        return tuple(sorted((w for q in self.queues for w in q.workers), key=lambda w: (w.name, w.queue)))


@frozen
class QueuePage:
    """One queue, with its declared options (`declared`), the number of the `declaration`, its schedules, and the shares
    of its busiest values, if it is fair, and the slots of its limits by a header.
    """

    now: float
    queue: QueueView
    declared: Mapping[str, str]
    declaration: int
    schedules: tuple[Schedule, ...]
    shares: tuple[Share, ...] = ()
    slots: tuple[LimitView, ...] = ()

    @property
    def fair(self) -> tuple[str, ...]:
        """The headers by which the queue is fair."""
        return fair_by(self.declared)

    @property
    def tenants(self) -> Tenants | None:
        """The values between which the queue is fair, and its limits, or `None` for a queue
        without either.
        """
        if "terms" not in self.declared:
            return None
        return Tenants.of(self.queue.name, self.declared, self.shares, self.queue.counts.leased, self.slots)


Every = Literal["minute", "hour"]
EVERY_S = {"minute": 60, "hour": 3600}  # seconds between two records
KEPT = {"minute": 2880, "hour": 2160}  # records that a queue keeps: two days, and 90


@frozen
class TrendPoint:
    """A record of a queue's counts.

    `waiting` (parked jobs too), `leased`, `later` (delayed or blocked) and `dead` are counts at the
    moment `at`. `lag` is how many seconds the oldest of the next jobs had waited then. `enqueued`,
    `completed` and `removed` (cancelled, deleted, trimmed) count the jobs of the `seconds` since
    the record before. That is longer ago than a minute, or an hour, if no worker has swept the
    queue meanwhile. For a sharded queue all values are sums, but `lag` is the longest. Each shard
    keeps its own records. The first record of a new shard leaves out its earlier work.
    """

    at: float
    seconds: float
    enqueued: int
    completed: int
    removed: int
    waiting: int
    leased: int
    later: int
    dead: int
    lag: float


@frozen
class Trends:
    """Earlier counts of a queue, oldest first. `kept` is whether the queue is declared with
    `trends=True`.
    """

    now: float
    queue: str
    every: Every
    kept: bool
    points: tuple[TrendPoint, ...]


def sum_trends(shards: Sequence[Trends]) -> Trends:
    """Sum the trends of a queue's shards, minute by minute, or hour by hour.

    A shard without a record, as it was not swept then, counts with the jobs of its last record.
    """
    length = EVERY_S[shards[0].every]
    sums: dict[int, TrendPoint] = {}
    times = sorted({int(one.at) // length for shard in shards for one in shard.points})
    for shard in shards:
        own = {int(one.at) // length: one for one in shard.points}
        last: TrendPoint | None = None
        for time in times:
            if time in own:
                last = own[time]
            elif last is not None:
                last = evolve(last, at=0.0, seconds=0.0, enqueued=0, completed=0, removed=0, lag=0.0)
            if last is not None:
                sums[time] = _both(sums[time], last) if time in sums else last
    return evolve(
        shards[0],
        now=max(shard.now for shard in shards),
        kept=any(shard.kept for shard in shards),
        points=tuple(sums[time] for time in times),
    )


def _both(a: TrendPoint, b: TrendPoint) -> TrendPoint:
    return TrendPoint(
        max(a.at, b.at),
        max(a.seconds, b.seconds),
        a.enqueued + b.enqueued,
        a.completed + b.completed,
        a.removed + b.removed,
        a.waiting + b.waiting,
        a.leased + b.leased,
        a.later + b.later,
        a.dead + b.dead,
        max(a.lag, b.lag),
    )
