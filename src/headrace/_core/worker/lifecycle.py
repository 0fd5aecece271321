"""The life of a whole worker. It has its phases, the jobs it still holds, and how long its stop
waits for the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from headrace._core.effects import Phase, Role, send
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.suspects import Suspects
from headrace._model.settings import WorkerSettings

ALONE_AT_MOST = 8  # queues that each have their own blocked read, with a lease call behind it


@define(eq=False)
class Lifecycle:
    settings: WorkerSettings
    consumers: Sequence[Consumer]
    phase: Phase = Phase.RUNNING
    # since when the thread of the handlers has not answered the engine
    stalled_since: float | None = None
    suspects: Suspects = field(factory=Suspects)

    def __attrs_post_init__(self) -> None:
        self._introduce()

    def _introduce(self) -> None:
        self.suspects.members = self.consumers
        for consumer in self.consumers:
            consumer.suspects = self.suspects

    def advance_to(self, phase: Phase) -> None:
        self.phase = max(self.phase, phase)
        for consumer in self.consumers:
            consumer.phase = self.phase

    def join(self, consumers: Sequence[Consumer]) -> None:
        self.consumers = [*self.consumers, *consumers]
        self._introduce()
        for consumer in consumers:
            consumer.phase = max(consumer.phase, self.phase)
            shards = () if consumer.shared is None else consumer.shared.members
            consumer.leasing.quiet = any(one.leasing.quiet for one in shards)

    def running(self, now: float) -> bool:
        return self.phase < Phase.HALTING and any(
            consumer.running(now) for consumer in self.consumers
        )

    def stalled(self, now: float) -> float:
        since = self.stalled_since
        return 0.0 if since is None else now - since

    def kept(self) -> list[tuple[str, str]]:
        claims = {
            claim.entry: claim
            for consumer in self.consumers
            if consumer.registered
            for claim in consumer.kept()
        }
        return [(claim.job.queue, claim.job.id) for claim in claims.values()]

    def leave(self, members: Sequence[Consumer] | None = None) -> Role:
        """Unregister all consumers, or *members*. This gives back all jobs that they still hold."""
        for consumer in (
            one for one in (self.consumers if members is None else members) if one.registered
        ):
            more = "1"
            while more == "1":
                number, more = yield from send(consumer.ops.leave(consumer.name))
                consumer.jobs.given_back += int(number)
            consumer.registration.registered = False


def many(worker: Lifecycle) -> bool:
    """Tell whether a worker has so many queues that their calls share round trips, and their reads
    a connection."""
    return len(worker.consumers) > ALONE_AT_MOST


@define(eq=False)
class ShutdownDeadline:
    """The time that a stop waits for the server. It lasts while handlers run or answers arrive,
    plus *patience* seconds.
    """

    worker: Lifecycle
    patience: float  # seconds
    now: float
    answers: int
    silent_since: float = field(init=False)
    _ran_at: float = field(init=False)  # when a handler ran last

    def __attrs_post_init__(self) -> None:
        self.silent_since = self._ran_at = self.now

    def idle(self, now: float) -> float:
        return now - self._ran_at

    def over(self, now: float, answers: int) -> bool:
        """Tell whether to give up. Call it several times a second. A longer gap means that this
        process was suspended, and the time begins again.
        """
        if self.worker.running(now):
            self.silent_since = self._ran_at = now
        elif answers != self.answers or now - self.now > 1.0:
            self.silent_since = now
        self.now = now
        self.answers = answers
        return now - self.silent_since >= self.patience
