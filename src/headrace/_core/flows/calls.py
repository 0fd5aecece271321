"""The verbs of a flow, as generators of effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define

from headrace._core.effects import Call, Now, Sleep, send, send_all, settle
from headrace._core.steps import children
from headrace._model.flow import FlowState
from headrace._model.job import Claim
from headrace._model.receipt import Receipt
from headrace._model.state import Counts, summed
from headrace._protocol import view_ops
from headrace._protocol.features.flows.ops import STEPS_PER_SCRIPT, Advance, FlowOps
from headrace._protocol.limits import PAGES_IN_A_ROW, POLL_S
from headrace._protocol.op import Op
from headrace._protocol.replies import Verdicts
from headrace.errors import JobFailed

GOING = ("running", "blocked")  # states of runs that have not ended
# states of runs without a result -> the states of their jobs
FAILED = {"failed": "dead", "cancelled": "cancelled"}


def sweep(flow: FlowOps) -> Call[None]:
    """Take the steps for events outside of the flow. Any worker or client may do so."""
    for _ in range(PAGES_IN_A_ROW):
        events = yield from send(flow.events())
        if not events or not any((yield from advanced(flow, events[:STEPS_PER_SCRIPT]))):
            return


def advanced(flow: FlowOps, steps: Sequence[Advance]) -> Call[Verdicts]:
    """Take steps, and cancel the children that the runs of cancelled jobs have started."""
    verdicts = yield from settle(flow.advance(steps))
    yield from children.cancel(next(iter(flow.stages.values())).ops, verdicts.orphans)
    return verdicts


def read(
    flow: FlowOps, names: Sequence[str], begun: Any = None, *, strict: bool = False
) -> Call[list[FlowState | None]]:
    states: list[FlowState | None] = []
    while len(states) < len(names):
        some = names[len(states) : len(states) + STEPS_PER_SCRIPT]
        more, begun = yield from send(flow.read(some, begun, strict=strict))
        states += more
    return states


def found(flow: FlowOps, wanted: dict[str, str]) -> Call[list[FlowState]]:
    # refused before anything is sent
    every = [flow.found(name, value, "") for name, value in wanted.items()]
    yield from sweep(flow)
    matching: list[set[str]] = []
    for op, (name, value) in zip(every, wanted.items(), strict=True):
        cursor, names = yield from send(op)
        while cursor:
            cursor, more = yield from send(flow.found(name, value, cursor))
            names += more
        matching.append(set(names))
    states = yield from read(flow, sorted(set[str].intersection(*matching)))
    return [state for state in states if state is not None and state.state in GOING]


@define(eq=False)
class FlowVerbs:
    flow: FlowOps

    # -- where runs are ----------------------------------------------------------------------------

    def everywhere(self) -> Call[list[FlowOps]]:
        yield from ()
        return [self.flow]

    def where(self, name: str) -> Call[list[FlowOps]]:  # noqa: ARG002 - all are in one place
        """Return the flow in each place where the run of a job may be, the likeliest first."""
        return self.everywhere()

    def of(self, claim: Claim) -> Call[FlowOps]:  # noqa: ARG002 - as above
        yield from ()
        return self.flow

    # -- verbs -------------------------------------------------------------------------------------

    def start(self, name: str, build: Callable[[FlowOps], Op[Receipt]]) -> Call[Receipt]:  # noqa: ARG002 - as above
        return send(build(self.flow))

    def state(self, name: str) -> Call[FlowState | None]:
        self.flow.read([name])  # refused before anything is sent
        return self._state(name, sweeps=True)

    def _state(self, name: str, *, sweeps: bool) -> Call[FlowState | None]:
        for flow in (yield from self.where(name)):
            if sweeps:
                yield from sweep(flow)
            (state,) = yield from read(flow, [name], strict=True)
            if state is not None:
                return state
        return None

    def find(self, wanted: dict[str, str]) -> Call[list[FlowState]]:
        if not wanted:
            raise ValueError("find: give at least one attribute=value")
        runs: list[FlowState] = []
        for flow in (yield from self.everywhere()):
            runs += yield from found(flow, wanted)
        return sorted(runs, key=lambda run: run.id)

    def result(self, name: str, timeout: float) -> Call[Any]:
        self.flow.read([name])  # refused before anything is sent
        start = now = yield from Now()
        swept = float("-inf")
        while True:
            sweeps = now - swept >= POLL_S
            swept = now if sweeps else swept
            state = yield from self._state(name, sweeps=sweeps)
            if state is not None and state.state == "completed":
                return state.results.get(state.stage)
            now = yield from Now()
            if state is not None and state.state in FAILED:
                raise JobFailed(name, FAILED[state.state], state.reason)
            if now - start >= timeout:
                return None
            yield Sleep(min(0.05, timeout))

    def cancel(self, name: str) -> Call[bool]:
        self.flow.cancelling(name)  # refused before anything is sent
        for flow in (yield from self.where(name)):
            yield from sweep(flow)
            (done,) = yield from advanced(flow, [flow.cancelling(name)])
            yield from sweep(flow)
            if done:
                return True
        return False

    def counts(self) -> Call[dict[str, Counts]]:
        flows = yield from self.everywhere()
        counts: dict[str, Counts] = {}
        for name in self.flow.declared():
            counts[name] = summed(
                (yield from send_all([view_ops.counts(flow.stages[name].ops) for flow in flows]))
            )
        return counts

    def drawing(self, live: bool) -> Call[str]:
        return self.flow.drawing((yield from self.counts()) if live else None)
