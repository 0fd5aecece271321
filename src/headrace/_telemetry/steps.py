"""The spans of steps, which are children of their delivery's span."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

from headrace._model.job import Claim
from headrace._telemetry import tracing
from headrace._telemetry.log import log_event
from headrace._telemetry.metrics import instruments
from headrace._telemetry.tracing import Place, tracer

R = TypeVar("R")
STEP = "headrace.step"
REPLAYED = "headrace.step.replayed"
STEP_WORDS = {
    "step_done": "job %s of queue %r: step %r is recorded",
    "step_undone": "job %s of queue %r: step %r is undone",
    "run_suspended": "job %s of queue %r is suspended in %r",
    "run_resumed": "job %s of queue %r goes on: %r is over",
    "signal_kept": "job %s of queue %r does not wait for the signal %r yet: it is kept",
    "build_missing": "job %s of queue %r waits for a worker of build %r, and none is alive",
    "steps_unused": "job %s of queue %r is complete, and did not ask for its recorded step %r: its code has changed",
}


def record_step(place: Place, claim: Claim, event: str, step: str, earlier: str = "") -> None:
    if earlier:
        tracing.link_to_delivery(earlier)
    meters = instruments()
    if meters is not None and event in ("step_done", "run_suspended"):
        (meters.steps if event == "step_done" else meters.suspended).add(1, place.common)
    log_event(event, STEP_WORDS[event], claim.job.id, claim.job.queue, step, claim=claim, step=step)


# takes kind and name, begin and end in ns, whether a record answered, and the failure, if any
Elsewhere = Callable[[str, str, int, int, bool, BaseException | None], None]
elsewhere: list[Elsewhere] = []  # one, in the child of an isolated handler


def record_span(
    kind: str, name: str, began: int, ended: int, *, replayed: bool, error: BaseException | None
) -> None:
    # of a step that was taken in another process
    made = tracer()
    if made is None:
        return
    span = made.start_span(f"{kind} {name}", attributes={STEP: name}, start_time=began)
    if replayed:
        span.set_attribute(REPLAYED, True)
    if error is not None:
        tracing.failed(span, error)
    span.end(ended)


class StepSpan:
    def __init__(self, kind: str, name: str) -> None:
        made = tracer()
        self._about = kind, name
        self._replayed = False
        self._began = 0 if made is not None or not elsewhere else time.time_ns()
        self._span: Any = (
            None if made is None else made.start_span(f"{kind} {name}", attributes={STEP: name})
        )
        self._token: Any = None

    def __enter__(self) -> Self:
        if self._span is not None:
            self._token = tracing.attach(tracing.context_of(self._span))
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        wrong = tracing.failure(error) if self._began or self._span is not None else None
        for record in elsewhere if self._began else ():
            record(*self._about, self._began, time.time_ns(), self._replayed, wrong)
        if self._span is None:
            return
        tracing.detach(self._token)
        if wrong is not None:
            tracing.failed(self._span, wrong)
        self._span.end()

    def replayed(self, value: R) -> R:
        self._replayed = True
        if self._span is not None:
            self._span.set_attribute(REPLAYED, True)
        return value
