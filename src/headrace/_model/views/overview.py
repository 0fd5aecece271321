"""All queues of a namespace, as they are shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from attrs import field, frozen

from headrace._model.state import Counts, WorkerState, summed
from headrace._model.views.queues import QueueView

NOTHING_BROKEN: Mapping[str, str] = {}


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
            sum(one.get(name, 0.0) for one in rates) if rates else None
            for name in ("enqueued", "completed")
        )
        lag = max((queue.lag for queue in queues), default=0.0)
        workers = len({name for queue in queues for name in queue.alive_names})
        waiting = counts.waiting + counts.parked
        return cls(
            waiting,
            counts.leased,
            counts.delayed,
            counts.blocked,
            counts.dead,
            counts.completed,
            enqueued,
            completed,
            lag,
            workers,
        )


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
    build, terms or server. `queue` is '' for the server. With `bad`, work fails or stands still.
    Otherwise the fact may be intended, or end by itself.
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
    """The latest looks, the oldest first. Each has the time, and how many jobs each queue had got
    and completed."""

    @property
    def totals(self) -> Totals:
        """The sums over all queues."""
        return Totals.of(self.queues)

    def throughput(self, names: Collection[str]) -> tuple[tuple[float, float, float], ...]:
        """Return the jobs a second that came to these queues, and were completed, between the
        latest looks.

        Each row has the time of the look at its end. A queue counts where both looks have it.
        """
        rows: list[tuple[float, float, float]] = []
        for (start, before), (end, after) in pairwise(self.looks):
            both = [
                (before[name], after[name]) for name in names if name in before and name in after
            ]
            came, done = (sum(max(0, b[i] - a[i]) for a, b in both) / (end - start) for i in (0, 1))
            rows.append((end, came, done))
        return tuple(rows)

    @property
    def workers(self) -> tuple[WorkerState, ...]:
        """The workers of all queues, by name and queue."""
        return tuple(
            sorted((w for q in self.queues for w in q.workers), key=lambda w: (w.name, w.queue))
        )
