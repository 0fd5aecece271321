"""Calls of a flow that take several round trips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define

from headrace._core.effects import Now, Sleep, Step, send, settle
from headrace._model.flow import FlowState
from headrace._model.state import Counts
from headrace._protocol.flow_ops import STEPS_PER_SCRIPT, FlowOps
from headrace._protocol.limits import PAGES_IN_A_ROW


def sweep(flow: FlowOps) -> Step[None]:
    """Take the steps for events outside of the flow; any worker or client may do so."""
    for _ in range(PAGES_IN_A_ROW):
        events = yield from send(flow.events())
        some = events[:STEPS_PER_SCRIPT]
        if not some or not any((yield from settle(flow.advance(some)))):
            return


def read(
    flow: FlowOps, names: Sequence[str], begun: Any = None, *, strict: bool = False
) -> Step[list[FlowState | None]]:
    """Fetch the states of any number of jobs, of which the first may be *begun*."""
    states: list[FlowState | None] = []
    while len(states) < len(names):
        some = names[len(states) : len(states) + STEPS_PER_SCRIPT]
        more, begun = yield from send(flow.read(some, begun, strict=strict))
        states += more
    return states


def state(flow: FlowOps, name: str) -> Step[FlowState | None]:
    """Fetch the state of one job."""
    flow.read([name])  # refused before anything is sent
    yield from sweep(flow)
    return (yield from read(flow, [name], strict=True))[0]


def find(flow: FlowOps, wanted: dict[str, str]) -> Step[list[FlowState]]:
    """Find the runs that have not ended and have all of these attributes, in the order of their ids."""
    if not wanted:
        raise ValueError("find: give at least one attribute=value")
    every = [flow.found(name, value, "") for name, value in wanted.items()]  # refused before anything is sent
    yield from sweep(flow)
    found: set[str] | None = None
    for op, (name, value) in zip(every, wanted.items(), strict=True):
        cursor, names = yield from send(op)
        ids = set(names)
        while cursor:
            cursor, names = yield from send(flow.found(name, value, cursor))
            ids |= set(names)
        found = ids if found is None else found & ids
    states = yield from read(flow, sorted(found or ()))
    return [state for state in states if state is not None and state.state in ("running", "blocked")]


def result(flow: FlowOps, name: str, timeout: float) -> Step[bytes | None]:
    """Fetch the last stage's result; wait up to *timeout* seconds for the end."""
    flow.read([name])  # refused before anything is sent
    swept = float("-inf")

    def look() -> Step[FlowState | None]:
        nonlocal swept
        now = yield from Now()
        if now - swept >= 1.0:
            swept = now
            yield from sweep(flow)
        return (yield from read(flow, [name], strict=True))[0]

    return (yield from awaited(look, timeout))


def awaited(look: Callable[[], Step[FlowState | None]], timeout: float) -> Step[bytes | None]:
    """Fetch the last stage's result from the state that *look* reads; wait up to *timeout* seconds for the end."""
    start = yield from Now()
    while True:
        state = yield from look()
        if state is not None and state.state == "completed":
            return state.results.get(state.stage)
        over = state is not None and state.state in ("failed", "cancelled")
        if over or (yield from Now()) - start >= timeout:
            return None
        yield Sleep(min(0.05, timeout))


def cancel(flow: FlowOps, name: str) -> Step[bool]:
    """Cancel a job of a flow, and then its children."""
    op = flow.advance([flow.cancelling(name)])
    yield from sweep(flow)
    (done,) = yield from settle(op)
    yield from sweep(flow)
    return done


def counts(flow: FlowOps) -> Step[dict[str, Counts]]:
    """Count the jobs of each stage's queue."""
    found: dict[str, Counts] = {}
    for name, stage in flow.declared().items():
        found[name] = yield from send(stage.ops.counts())
    return found


def drawing(flow: FlowOps, live: bool) -> Step[str]:
    """Draw the stages as Mermaid, with their counts if *live*."""
    return flow.drawing((yield from counts(flow)) if live else None)


@define(eq=False)
class PlainFlow:
    """The verbs of a flow in one slot; `FlowShards` has the same, for one whose queues have shards."""

    flow: FlowOps

    def state(self, name: str) -> Step[FlowState | None]:
        """Fetch the state of one job."""
        return state(self.flow, name)

    def find(self, wanted: dict[str, str]) -> Step[list[FlowState]]:
        """Find the runs that have not ended and have all of these attributes."""
        return find(self.flow, wanted)

    def result(self, name: str, timeout: float) -> Step[bytes | None]:
        """Fetch the last stage's result; wait up to *timeout* seconds for the end."""
        return result(self.flow, name, timeout)

    def cancel(self, name: str) -> Step[bool]:
        """Cancel a job of a flow, and then its children."""
        return cancel(self.flow, name)

    def counts(self) -> Step[dict[str, Counts]]:
        """Count the jobs of each stage's queue."""
        return counts(self.flow)

    def drawing(self, live: bool) -> Step[str]:
        """Draw the stages as Mermaid, with their counts if *live*."""
        return drawing(self.flow, live)
