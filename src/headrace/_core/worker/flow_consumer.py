"""The consumer of a flow's stage: its jobs come with the state of their runs, and move on as they complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Held, Role, send
from headrace._core.flow_calls import sweep
from headrace._core.worker.consumer import Consumer
from headrace._model.flow import FlowJob, FlowState
from headrace._model.job import Claim
from headrace._protocol.answers import Grant
from headrace._protocol.flow_ops import CHILDREN, PAGE, FlowOps, Step
from headrace._protocol.op import Op


@define(eq=False)
class FlowConsumer(Consumer):
    """The jobs of one stage. They are handed out with what their runs know, and move on as they complete."""

    flow: FlowOps = field(kw_only=True)
    sweeper: bool = field(default=False, kw_only=True)  # one feed of a worker sees to events
    steps: deque[tuple[Held, Step]] = field(factory=deque[tuple[Held, Step]], kw_only=True)

    def finish(self, unit: Sequence[Held], now: float, error: BaseException | None, result: Any = None) -> None:
        if error is None and result is None:
            result = _NONE  # goes to `end`, where it becomes a move
        super().finish(unit, now, error, result)

    def end(self, held: Held, error: BaseException | None, result: Any = None) -> None:
        result = None if result is _NONE else result
        if error is None:
            try:
                trace = getattr(held, "trace", None)
                step = self.flow.step(held, result, None if trace is None else trace.headers)
            except BaseException as wrong:  # a stage that there is not, too many children, a codec: the job's failure
                error = wrong
            else:
                if step is not None:
                    held.ended = True
                    self.steps.append((held, step))
                    self.forget(held)
                    return
        super().end(held, error, result)

    def settlements(self) -> tuple[list[Op[list[bool]]], float | None, list[Claim]]:
        ops, soonest, settled = super().settlements()
        some: list[Step] = []
        children = 0
        while self.steps and len(some) < PAGE and children + self.steps[0][1].children <= CHILDREN:
            held, step = self.steps.popleft()
            settled.append(held)
            children += step.children
            some.append(step)
        if some:
            ops.append(self.flow.advance(some))
        self.stirred = self.stirred or any(op.name in ("retry", "dead_letter") for op in ops)
        return ops, soonest, settled

    def unsettled(self) -> bool:
        return bool(self.steps) or super().unsettled()

    def kept(self) -> list[Claim]:
        return [*super().kept(), *(held for held, _ in list(self.steps))]

    def granted(self, grant: Grant | None, asked: int, name: str, woken: bool, news: int, since: float) -> Role:
        claims = [claim for claim in grant.claims if self.flow.has(claim.job)] if grant is not None else []
        self.asking += len(claims)  # they take up room while we ask about them
        try:
            states: dict[str, FlowState | None] = {}
            names = [claim.job.id for claim in claims]
            while names:
                known = yield from send(self.flow.read(names[:PAGE]))
                states |= zip(names, known, strict=False)
                names = names[len(known) :]
        finally:
            self.asking -= len(claims)
        for claim in grant.claims if grant is not None else ():
            claim.job = FlowJob.of(claim.job, states.get(claim.job.id))
        yield from super().granted(grant, asked, name, woken, news, since)

    def tend(self) -> Role:
        """Move on what happened outside: at once after a death of our own, else every tick."""
        if self.stirred or self.sweeper:
            self.stirred = False
            yield from sweep(self.flow)


_NONE = object()
