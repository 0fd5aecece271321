"""The consumer of a queue whose handlers share its jobs by the header `kind`."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from headrace._core.effects import HeldJob, Role, send
from headrace._core.verdicts import unknown_kind
from headrace._core.worker.consumer import Consumer
from headrace._model.job import Claim, Job
from headrace._model.settings import KIND, HandlerSettings


@define(eq=False)
class KindConsumer(Consumer):
    """The consumer of a queue that several handlers share, by the header `kind`."""

    known: frozenset[str] = frozenset()  # kinds that live workers had handlers for, when a job was about to be given up

    def of(self, held: HeldJob) -> HandlerSettings:
        """Return the handler for this job's kind."""
        return self.handler.takes(held.job) or self.handler

    def prepare(self, claims: Sequence[Claim]) -> Role:
        """Ask which kinds the live workers know, if a job would be buried because no handler takes its kind."""
        handler = self.handler
        strange = [claim for claim in claims if handler.takes(claim.job) is None]
        if not any(unknown_kind(handler, claim).kind == "dead" for claim in strange):
            return
        self.leasing.asking += len(claims)  # these jobs take up slots while we ask
        try:
            self.known = yield from send(self.ops.known_kinds())
        finally:
            self.leasing.asking -= len(claims)

    def _elsewhere(self, job: Job) -> bool:
        return "" in self.known or job.headers.get(KIND) in self.known

    def admit(self, fresh: Sequence[HeldJob]) -> Sequence[HeldJob]:
        """Settle jobs of a kind without a handler, and return the others."""
        takes = self.handler.takes
        for held in fresh:
            if not held.ended and takes(held.job) is None:
                self.settle(held, unknown_kind(self.handler, held, elsewhere=self._elsewhere(held.job)))
        return [held for held in fresh if not held.ended]
