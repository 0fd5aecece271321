"""The consumers of two special handlers, which are for jobs of several kinds, and for jobs that
never end.

The role `watch` gives up jobs of the second kind in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, evolve

from headrace._core.effects import HeldJob, Now, Phase, Role, Sleep, send
from headrace._core.verdicts import returned_verdict, unknown_kind
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.renewal import died, lose
from headrace._model.job import Claim
from headrace._model.policy import Retry
from headrace._model.settings import KIND, HandlerSettings, WorkerSettings
from headrace._protocol import view_ops
from headrace.errors import Complete, DeadLetter, Release, Verdict


@define(eq=False)
class KindConsumer(Consumer):
    # kinds that live workers had handlers for, when a job was about to be given up
    known: frozenset[str] = frozenset()

    def of(self, held: HeldJob) -> HandlerSettings:
        return self.handler.takes(held.job) or self.handler

    def prepare(self, claims: Sequence[Claim]) -> Role:
        """Ask which kinds the live workers know, if a job would be a dead letter because no handler
        takes its kind."""
        handler = self.handler
        strange = [claim for claim in claims if handler.takes(claim.job) is None]
        if not any(unknown_kind(handler, claim).kind == "dead" for claim in strange):
            return
        self.leasing.asking += len(claims)  # these jobs take up slots while we ask
        try:
            self.known = yield from send(view_ops.known_kinds(self.ops))
        finally:
            self.leasing.asking -= len(claims)

    def admit(self, fresh: Sequence[HeldJob]) -> Sequence[HeldJob]:
        takes = self.handler.takes
        for held in fresh:
            if not held.ended and takes(held.job) is None:
                elsewhere = not self.known.isdisjoint(("", held.job.headers.get(KIND)))
                self.settle(held, unknown_kind(self.handler, held, elsewhere=elsewhere))
        return [held for held in fresh if not held.ended]


@define(eq=False)
class PersistentConsumer(Consumer):
    """The consumer of jobs that never end. One worker at a time holds the resource of such a job,
    say a connection."""

    def finished(
        self, unit: Sequence[HeldJob], now: float, error: BaseException | None, result: Any = None
    ) -> None:
        """Settle a job whose handler has ended. The job runs again, unless a verdict says that it
        is finished."""
        held = unit[0]
        told = error if error is not None else returned_verdict(result)
        if self.phase is Phase.DRAINING and not issubclass(type(told), (Complete, DeadLetter)):
            told = Release()
        if held.ended or self.phase >= Phase.HALTING or issubclass(type(told), Verdict):
            super().finished(unit, now, Release() if told is None else told)
        else:
            # A job that was held for as long as a lease was healthy: earlier failures do not count
            # any more.
            anew = now - held.started >= self.ops.settings.lease
            if told is not None:
                verdict = self.judge(held, told, anew=anew)
            else:
                again = Retry(
                    attempts=None, wait=self.handler.retry.wait
                )  # a return is no failure for the policy to judge
                verdict = evolve(
                    self.judge(held, RuntimeError("it returned"), retry=again, anew=anew), spend=0
                )
            if anew and (verdict.spend or told is None):
                verdict = evolve(verdict, spend=-1)
            self.settle(held, verdict, told)
        self.jobs.mean = None  # without a mean nothing is leased ahead of a slot
        if self.shared is not None:
            self.shared.mean = None

    def endless(self) -> list[HeldJob]:
        return [
            held for held in list(self.jobs.held.values()) if held.started and not held.job.lost
        ]


def watch(consumer: Consumer, settings: WorkerSettings) -> Role:
    """Give jobs up before peers may take them, while the server cannot be asked."""
    patience = max(settings.timeout - settings.heartbeat, 1.5 * settings.heartbeat)
    lease = consumer.ops.settings.lease
    while consumer.phase < Phase.HALTING:
        now = yield from Now()
        if consumer.registered and now - consumer.registration.beaten >= patience:
            yield from died(consumer)
        held = list(consumer.jobs.held.values())
        late = [one for one in held if one.started and now - one.since >= lease * 5 / 6]
        if late:
            yield from lose(consumer, late)
        yield Sleep(min(settings.heartbeat / 4, lease / 12))
