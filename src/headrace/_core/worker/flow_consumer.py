"""The consumer of a flow's stage: its jobs come with the state of their runs, and move on as they complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Held, Role, send
from headrace._core.flow_calls import sweep
from headrace._core.verdicts import Settlement
from headrace._core.worker.consumer import Consumer
from headrace._model.flow import FlowJob, FlowState
from headrace._model.job import Claim
from headrace._protocol.flow_ops import CHILDREN_AT_MOST, STEPS_PER_SCRIPT, FlowOps
from headrace._protocol.op import Op, parts


@define(eq=False)
class FlowConsumer(Consumer):
    """The consumer of one stage. Handlers get `FlowJob`s with the state of their runs; a completion is a step of the
    flow.
    """

    flow: FlowOps = field(kw_only=True)
    sweeper: bool = field(default=False, kw_only=True)  # one consumer of a worker sees to events

    def prepare(self, claims: Sequence[Claim]) -> Role:
        """Read the states of the jobs' runs."""
        ours = [claim for claim in claims if self.flow.has(claim.job)]
        self.asking += len(ours)  # they take up room while we ask about them
        try:
            states: dict[str, FlowState | None] = {}
            names = [claim.job.id for claim in ours]
            while names:
                known = yield from send(self.flow.read(names[:STEPS_PER_SCRIPT]))
                states |= zip(names, known, strict=False)
                names = names[len(known) :]
        finally:
            self.asking -= len(ours)
        for claim in claims:
            claim.job = FlowJob.of(claim.job, states.get(claim.job.id))

    def completes(self, held: Held, result: Any) -> bool:
        """Take the job's step in its flow; a job of no run is just completed."""
        trace = getattr(held, "trace", None)
        step = self.flow.step(held, result, None if trace is None else trace.headers)
        if step is None:
            return super().completes(held, result)
        self.done.append(Settlement("step", held, step=step))
        return True

    def operations(self, some: Sequence[Settlement]) -> Iterator[Op[list[bool]]]:
        """Make operations of settlements that are alike; after a failure, `tend` is called soon, as it may lead to
        more.
        """
        if some[0].kind == "step":
            steps = [one.step for one in some]
            for part in parts(steps, lambda step: step.children, STEPS_PER_SCRIPT, CHILDREN_AT_MOST):
                yield self.flow.advance(part)
        else:
            self.tend_soon = self.tend_soon or some[0].kind in ("retry", "dead")
            yield from super().operations(some)

    def tend(self) -> Role:
        """Take the steps for events outside of the flow: at once after a death here, otherwise at each look."""
        if self.tend_soon or self.sweeper:
            self.tend_soon = False
            yield from sweep(self.flow)
