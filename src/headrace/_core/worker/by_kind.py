"""The consumer of a queue whose handlers share its jobs by the header `kind`."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from headrace._core.effects import Held
from headrace._core.verdicts import unknown_kind
from headrace._core.worker.consumer import Consumer
from headrace._model.settings import HandlerSettings


@define(eq=False)
class KindConsumer(Consumer):
    """The consumer of a queue that several handlers share, by the header `kind`."""

    def of(self, held: Held) -> HandlerSettings:
        """Return the handler for this job's kind."""
        return self.handler.takes(held.job) or self.handler

    def admit(self, fresh: Sequence[Held]) -> Sequence[Held]:
        """Settle jobs of a kind without a handler, and return the others."""
        takes = self.handler.takes
        for held in fresh:
            if not held.ended and takes(held.job) is None:
                self.settle(held, unknown_kind(self.handler, held))
        return [held for held in fresh if not held.ended]
