"""The consumer of a flow's stage. Its jobs come with the state of their runs, and move on as they
complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from attrs import define, evolve, field

from headrace._core.effects import HeldJob, Role
from headrace._core.flows.calls import read, sweep
from headrace._core.verdicts import Settlement
from headrace._core.worker.consumer import Consumer
from headrace._model.flow import FlowJob
from headrace._model.job import Claim
from headrace._protocol.features.flows.ops import (
    CHILDREN_AT_MOST,
    LEADS,
    STEPS_PER_SCRIPT,
    Advance,
    FlowOps,
)
from headrace._protocol.limits import BYTES_PER_SCRIPT
from headrace._protocol.op import Op, chunks


@define(eq=False)
class FlowConsumer(Consumer):
    """The consumer of one stage. Handlers get `FlowJob`s with the run's state. A completion is a
    step of the flow."""

    flow: FlowOps = field(kw_only=True)
    sweeper: bool = field(default=False, kw_only=True)  # one consumer of a worker sees to events

    def declares(self) -> dict[str, str]:
        """Say where the jobs of this stage go on. Screens draw the flow by it."""
        return {LEADS: self.flow.leads(self.ops.keys.queue)}

    def prepare(self, claims: Sequence[Claim]) -> Role:
        ours = [claim for claim in claims if self.flow.has(claim.job)]
        self.leasing.asking += len(ours)  # they take up room while we ask about them
        try:
            names = [claim.job.id for claim in ours]
            states = dict(zip(names, (yield from read(self.flow, names)), strict=True))
        finally:
            self.leasing.asking -= len(ours)
        for claim in claims:
            claim.job = FlowJob.of(claim.job, states.get(claim.job.id))

    def may_idle(self) -> bool:
        return super().may_idle() and not self.sweeper

    def piggyback_limit(self) -> int:
        """Return 0. Lease calls are never piggybacked, as only `fetch` reads the states of runs."""
        return 0

    completes_at_once = False

    def completes(self, held: HeldJob, result: Any) -> bool:
        """Take the job's step in its flow. A job without a run is just completed."""
        trace = getattr(held, "trace", None)
        keep = partial(self.encoded, held)
        step = self.flow.step(held, result, None if trace is None else trace.headers, keep)
        if step is None:
            return super().completes(held, result)
        self.jobs.done.append(Settlement("step", held, step=step))
        return True

    def operations(self, some: Sequence[Settlement]) -> Iterator[Op[list[bool]]]:
        if some[0].kind == "step":
            for chunk in chunks(some, _weight, STEPS_PER_SCRIPT, BYTES_PER_SCRIPT):
                # what a script has no room for is sent again
                yield evolve(self.flow.advance([one.step for one in chunk]), items=chunk)
        else:
            self.timers.housekeep_soon = self.timers.housekeep_soon or some[0].kind in (
                "retry",
                "dead",
            )
            yield from super().operations(some)

    def housekeep(self) -> Role:
        """Take the steps for events outside of the flow. Do so at once after a death here,
        otherwise at each sweep."""
        if self.timers.housekeep_soon or self.sweeper:
            self.timers.housekeep_soon = False
            yield from sweep(self.flow)


def _weight(settlement: Settlement) -> int:
    step: Advance = settlement.step
    size = settlement.claim.size + sum(len(arg) for arg in step.args if not isinstance(arg, int))
    return max(size, step.children * BYTES_PER_SCRIPT // CHILDREN_AT_MOST)
