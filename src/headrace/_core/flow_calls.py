"""Flows in calls of several round trips, and in a worker: what a `Feed` does besides for the jobs of a stage. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, cast

from attrs import define, field

from headrace._calls import Call, Clock, Nap, send
from headrace._effects import Effect, Held, Role, Send
from headrace._feed import Feed
from headrace._flow_ops import CHILDREN, PAGE, FlowOps, Move
from headrace._job import Counts, Grant
from headrace._keys import FLOW
from headrace._op import Op
from headrace._outcome import FlowJob, FlowState

ROUNDS = 100  # pages of events in a row: what is left then, the next call takes


def sweep(flow: FlowOps) -> Call[None]:
    """Move on what happened to jobs outside of their flow: whoever comes first."""
    for _ in range(ROUNDS):
        events = yield from send(flow.events())
        some = events[:PAGE]
        if not some or not any((yield from send(flow.advance(some)))):
            return


def read(flow: FlowOps, names: Sequence[str]) -> Call[list[FlowState | None]]:
    """What is known of jobs, any number."""
    states: list[FlowState | None] = []
    for at in range(0, len(names), PAGE):
        states += yield from send(flow.read(names[at : at + PAGE]))
    return states


def state(flow: FlowOps, name: str) -> Call[FlowState | None]:
    """What is known of one job."""
    op = flow.read([name])  # refused before anything is sent
    yield from sweep(flow)
    return (yield from send(op))[0]


def find(flow: FlowOps, wanted: dict[str, str]) -> Call[list[FlowState]]:
    """The runs that have all of these attributes, the ids in order."""
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


def result(flow: FlowOps, name: str, timeout: float | None) -> Call[bytes | None]:
    """The last stage's result; waits up to *timeout* seconds for the end."""
    op = flow.read([name])
    start = cast(float, (yield Clock()))
    swept = start - 1.0
    while True:
        now = cast(float, (yield Clock()))
        if now - swept >= 1.0:
            swept = now
            yield from sweep(flow)
        (state,) = yield from send(op)
        if state is not None and state.state == "completed":
            return state.results.get(state.stage)
        over = state is not None and state.state in ("failed", "cancelled")
        if over or timeout is None or now - start >= timeout:
            return None
        yield Nap(min(0.05, timeout))


def cancel(flow: FlowOps, name: str) -> Call[bool]:
    """Cancel a job of a flow, and then its children."""
    op = flow.advance([flow.cancelling(name)])
    yield from sweep(flow)
    (done,) = yield from send(op)
    yield from sweep(flow)
    return done


def counts(flow: FlowOps) -> Call[dict[str, Counts]]:
    """The counts of each stage's queue."""
    found: dict[str, Counts] = {}
    for name, stage in flow.declared().items():
        found[name] = yield from send(stage.ops.counts())
    return found


def drawing(flow: FlowOps, live: bool) -> Call[str]:
    """The declaration as Mermaid, with counts if they are wanted."""
    return flow.drawing((yield from counts(flow)) if live else None)


@define(eq=False)
class FlowFeed(Feed):
    """The jobs of one stage. They are handed out with what their runs know, and move on as they complete."""

    flow: FlowOps = field(kw_only=True)
    sweeper: bool = field(default=False, kw_only=True)  # one feed of a worker sees to events
    moves: deque[tuple[Held, Move]] = field(factory=deque[tuple[Held, Move]], kw_only=True)

    def finish(self, unit: Sequence[Held], now: float, error: BaseException | None, result: Any = None) -> None:
        if error is None and result is None:
            result = _NONE  # goes to `end`, where it becomes a move
        super().finish(unit, now, error, result)

    def end(self, held: Held, error: BaseException | None, result: Any = None) -> None:
        result = None if result is _NONE else result
        if error is None:
            try:
                trace = getattr(held, "trace", None)
                move = self.flow.move(held, result, None if trace is None else trace.headers)
            except Exception as wrong:  # a stage that there is not, too many children, a codec: the job's failure
                error = wrong
            else:
                if move is not None:
                    held.ended = True
                    self.moves.append((held, move))
                    self.forget(held)
                    return
        super().end(held, error, result)

    def settlements(self) -> tuple[list[Op[list[bool]]], float | None]:
        ops, soonest = super().settlements()
        some: list[Move] = []
        children = 0
        while self.moves and len(some) < PAGE and children + self.moves[0][1].children <= CHILDREN:
            _, move = self.moves.popleft()
            children += move.children
            some.append(move)
        if some:
            ops.append(self.flow.advance(some))
        self.stirred = self.stirred or any(op.name in ("retry", "dead_letter") for op in ops)
        return ops, soonest

    def unsettled(self) -> bool:
        return bool(self.moves) or super().unsettled()

    def granted(self, grant: Grant | None, asked: int, name: str, woken: bool, news: int) -> Role:
        claims = [claim for claim in grant.claims if FLOW in claim.job.headers] if grant is not None else []
        self.asking += len(claims)  # they take up room while we ask about them
        try:
            states: dict[str, FlowState | None] = {}
            names = [claim.job.id for claim in claims]
            for at in range(0, len(names), PAGE):
                part = names[at : at + PAGE]
                (known,) = cast("list[list[FlowState | None]]", (yield Send([self.flow.read(part)])))
                states |= zip(part, known, strict=True)
        finally:
            self.asking -= len(claims)
        for claim in grant.claims if grant is not None else ():
            claim.job = FlowJob.of(claim.job, states.get(claim.job.id))
        yield from super().granted(grant, asked, name, woken, news)

    def tend(self) -> Role:
        """Move on what happened outside: at once after a death of our own, else every tick."""
        if self.stirred or self.sweeper:
            self.stirred = False
            yield from _sent(sweep(self.flow))


_NONE = object()


def _sent(call: Call[None]) -> Generator[Effect, Any, None]:
    """A call as a part of a role."""
    try:
        effect = next(call)
        while True:
            (reply,) = cast("list[Any]", (yield Send([cast("Op[Any]", effect)])))
            effect = call.send(reply)
    except StopIteration:
        return
