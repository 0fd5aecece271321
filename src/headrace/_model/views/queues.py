"""Queues as they are shown."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from headrace._model.state import Counts, Schedule, WorkerState
from headrace._model.terms import LimitView, Share, Tenants, fair_by
from headrace._model.views.outbox import OutboxView
from headrace._model.views.texts import one_line

NO_RATES: Mapping[str, float] = {}


@frozen
class ShardView:
    """A shard of a queue. It has its `number`, its `counts` of one instant, the age in seconds
    of the oldest job that is next (`lag`), and whether it is `paused`.
    """

    number: int
    counts: Counts
    lag: float
    paused: bool


def program_name(registration: str) -> str:
    """Return the name of the program behind a worker's registration, which has a random part at its
    end."""
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
    """Jobs a second that were enqueued and completed between the latest looks, the oldest first,
    for a small chart."""
    shards: tuple[ShardView, ...] = ()
    outbox: OutboxView | None = None
    """Its SQL outbox, if a relay has told of one."""
    trends: bool = False
    """Whether it keeps trends."""
    looks: tuple[float, ...] = ()
    """The times of the looks of `trail`, in seconds of the server's clock."""
    terms: str = ""
    """The structure of its terms, in words. It is empty without terms."""

    @property
    def balanced(self) -> bool:
        """Whether the laws hold. Every enqueued job is present or has left properly. In a queue
        with `fair` or `limits`, each taken slot belongs to a leased job.
        """
        return not self.imbalance

    @property
    def missing_builds(self) -> str:
        """The builds that runs wait for, and that no living worker has, in words. '' for none."""
        told = [one.facts.missing for one in self.workers if one.alive and one.facts is not None]
        names = dict.fromkeys(one_line(builds, 100) for builds in told if builds)
        return (
            f"runs wait for build {', '.join(names)}, which no living worker has" if names else ""
        )

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
        """The names of workers that are alive, without the random part of each registration in a
        queue or shard."""
        return frozenset(program_name(one.name) for one in self.workers if one.alive)


@frozen
class QueuePage:
    """One queue, with its declared options (`declared`), the number of the `declaration`, its
    schedules, and the shares of its busiest values, if it is fair, and the slots of its limits by a
    header.
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
        return Tenants.of(
            self.queue.name, self.declared, self.shares, self.queue.counts.leased, self.slots
        )
