"""Spans, metrics and logs of a worker, for its polls, the runs of its handlers, and the ends of its
jobs.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar, cast
from weakref import WeakValueDictionary

from headrace import _forks
from headrace._core.effects import HeldJob
from headrace._core.verdicts import FREE_RELEASES, Settlement, returned_verdict
from headrace._core.worker.consumer import Consumer
from headrace._model.job import Job
from headrace._model.settings import KIND
from headrace._model.state import Counts
from headrace._model.terms import Share
from headrace._protocol.op import Op
from headrace._protocol.replies import Grant, Reclaimed
from headrace._telemetry import metrics, tracing
from headrace._telemetry.client import Traced, dead_lettered, received
from headrace._telemetry.log import log_event
from headrace._telemetry.metrics import failing, instruments
from headrace._telemetry.steps import record_step
from headrace._telemetry.tracing import Place, tracer
from headrace.errors import RetryLater, RunSuspended, Verdict, describe_error

P = ParamSpec("P")
R = TypeVar("R")
PARENTS = ("poll", "message")  # choices for the parent of a run's span
GAUGE_EVERY_S = 15.0  # seconds between two reads of a queue's counts
SETTLES = frozenset(("complete", "release", "retry", "dead_letter"))
# counts on while the machine sleeps
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _harmless(function: Callable[P, R]) -> Callable[P, R | None]:
    """Log errors of a propagator, span processor or log handler. They must not end a worker, or
    fail a job.
    """

    @wraps(function)
    def guarded(*args: P.args, **options: P.kwargs) -> R | None:
        try:
            return function(*args, **options)
        except BaseException as error:
            log_event("tracing_failed", "%s", describe_error(error), error=error)
            return None

    return guarded


class WorkerTelemetry:
    """Telemetry of one consumer of a worker. *parent* says whether a run's parent span is its poll
    or its message.
    """

    def __init__(self, consumer: Consumer, settings: Mapping[str, Any], parent: str) -> None:
        self._consumer = consumer
        self._settings = settings
        self.batch = consumer.handler.batch
        self.message = parent == "message" and not self.batch
        self.place = Place(consumer.ops.keys.queue, settings, consumer.name)
        self._key = f"{self.place.server} {consumer.ops.keys.prefix}"
        self._clock = clock_of(self._key)
        self.on = self.quick = False
        self.tracer = tracer()
        self.meters = instruments()
        consumer.note = self.note
        consumer.gauge = self

    def refresh(self) -> None:
        self.tracer = tracer()
        self.meters = instruments()
        self.on = self.tracer is not None or self.meters is not None
        self.quick = self.meters is None and not self.message and not self.batch
        if self.on:
            tracing.propagator.refresh()
        self.place.client = self._consumer.name

    # -- round trips

    @_harmless
    def answered(self, op: Op[Any], reply: Any, since: float) -> None:
        if isinstance(reply, Grant):
            self.refresh()
            self._granted(reply, since)
        elif isinstance(reply, Reclaimed):
            self._reclaimed(reply)
        elif self.meters is not None and op.name in SETTLES:
            self.meters.call(self.place, op.name, time.perf_counter() - since)
            late = reply.count(False)
            if late:
                self.meters.lost.add(late, self.place.common)

    def _granted(self, grant: Grant, since: float) -> None:
        queue = self.place.queue
        if grant.healed:
            log_event("group_created", "queue %r had no consumer group", queue, queue=queue)
        dead_lettered(self._settings, [(queue, died) for died in grant.died])
        jump = (
            0.0 if grant.now is None else self._clock.jump(grant.now, time.perf_counter() - since)
        )
        if jump:
            words = "of the server of queue %r: %s by %.1f s"
            way = "forward" if jump > 0 else "back"
            log_event("server_clock_jumped", words, queue, way, abs(jump), queue=queue)
        if self.on and grant.claims:
            received(self.place, grant.claims, since, batch=True, context=tracing.NOWHERE)

    def _reclaimed(self, swept: Reclaimed) -> None:
        queue = self.place.queue
        if swept.declared:
            words = "%d of queue %r had no heartbeat any more"
            log_event("peers_declared_dead", words, swept.declared, queue, queue=queue)
        if swept.moved:
            log_event(
                "jobs_reclaimed",
                "%d of queue %r are back at the front",
                swept.moved,
                queue,
                queue=queue,
            )
            if self.meters is not None:
                self.meters.reclaimed.add(swept.moved, self.place.common)

    # -- runs

    def _unsampled(self, unit: Sequence[HeldJob], argument: Any) -> Any:
        """Return the context of a run that is not recorded, because the sampler has already dropped
        its poll.

        Nearly every job takes this way where few are sampled.
        """
        if not self.quick:
            return None
        poll = getattr(unit[0], "trace", None)
        return (
            None
            if poll is None or poll.recording or not tracing.plain(argument.headers)
            else poll.context
        )

    def passes(self, unit: Sequence[HeldJob], argument: Any) -> bool:
        """Tell whether a run in this task is not recorded.

        If so, attach the context of the run, as it needs no more.
        """
        context = self._unsampled(unit, argument)
        if context is not None:
            tracing.attach(context)
        return context is not None

    @_harmless
    def _begin(self, unit: Sequence[HeldJob], argument: Any) -> _Run:
        return _Run(self, unit, argument)

    def call(self, function: Callable[[Any], R], unit: Sequence[HeldJob], argument: Any) -> R:
        if (context := self._unsampled(unit, argument)) is not None:
            token = tracing.attach(context)
            try:
                return function(argument)
            finally:
                tracing.detach(token)
        run = self._begin(unit, argument)
        if run is None:
            return function(argument)
        with run:
            return run.done(function(argument))

    async def call_async(
        self, function: Callable[[Any], Awaitable[R]], unit: Sequence[HeldJob], argument: Any
    ) -> R:
        run = self._begin(unit, argument)
        if run is None:
            return await function(argument)
        with run:
            return run.done(await function(argument))

    # -- what becomes of jobs

    @_harmless
    def note(
        self,
        event: str,
        held: HeldJob | None,
        verdict: Settlement | None,
        error: BaseException | None,
    ) -> None:
        trace = getattr(held, "trace", None)
        span = None if trace is None else trace.span
        if verdict is not None and held is not None:
            self._judged(held, verdict, error, span)
        elif event == "result_dropped" and held is not None:
            if self.meters is not None:
                self.meters.dropped.add(1, self.place.common)
            words = "job %s is complete without its result, which can't be kept: %s"
            log_event(
                event, words, held.job.id, describe_error(error), claim=held, span=span, error=error
            )
        elif held is not None:
            if self.meters is not None:
                self.meters.lost.add(1, self.place.common)
            log_event(
                event, "job %s runs elsewhere, or is gone", held.job.id, claim=held, span=span
            )
        else:
            words = "our peers declared us dead, or we could not say otherwise; back as %s"
            log_event(
                event,
                words,
                self._consumer.name,
                queue=self.place.queue,
                worker=self._consumer.name,
            )

    @_harmless
    def stepped(self, held: HeldJob, event: str, step: str, earlier: str = "") -> None:
        record_step(self.place, held, event, step, earlier)

    def _judged(
        self, held: HeldJob, verdict: Settlement, error: BaseException | None, span: Any
    ) -> None:
        meters = self.meters
        common = self.place.common
        attempt = (
            f"{held.job.attempt} of {verdict.attempts}"
            if verdict.attempts
            else str(held.job.attempt)
        )
        cause = None if error is None or isinstance(error, Verdict) else error
        if verdict.row == FREE_RELEASES + 1 or (verdict.row and verdict.row.bit_count() == 1):
            words = "job %s was given back %d times without an attempt: it waits now before it is handed out again"
            log_event(
                "releases_slowed",
                words,
                held.job.id,
                verdict.row,
                claim=held,
                span=span,
                error=cause,
            )
        job = held.job
        reason = verdict.reason
        about: dict[str, Any] = {"claim": held, "span": span, "error": cause, "reason": reason}
        if verdict.kind == "dead":
            if meters is not None:
                meters.died.add(1, common)
                meters.attempts.record(job.attempt, common)
            words = "job %s of queue %r is dead after attempt %s: %s"
            kind = job.headers.get(KIND, "")
            log_event(
                "job_dead_lettered", words, job.id, job.queue, attempt, reason, kind=kind, **about
            )
        elif verdict.kind == "retry":
            if meters is not None:
                meters.retried.add(1, common)
            # its delay or its reason is wrong
            wrong = isinstance(error, RetryLater) and not error.spend
            failed = verdict.spend and (cause is not None or wrong)
            event, did = (
                ("job_failed", "failed on") if failed else ("job_put_back", "is put back on")
            )
            words = "job %s of queue %r %s attempt %s, and runs again %s: %s"
            again = _when(verdict.delay)
            log_event(
                event, words, job.id, job.queue, did, attempt, again, reason, again=again, **about
            )
        elif verdict.kind == "release":
            log_event(
                "job_released", "job %s is back at the front", held.job.id, claim=held, span=span
            )

    # -- what is in the queue

    @_harmless
    def due(self) -> bool:
        """Tell whether it is time to read the queue's counts, once for all workers of this
        process."""
        return instruments() is not None and metrics.readings.due(
            self._key, self.place, GAUGE_EVERY_S
        )

    @_harmless
    def read(
        self, counts: Counts, oldest: float, longest_wait: float, shares: Sequence[Share] = ()
    ) -> None:
        metrics.readings.read(self._key, metrics.Reading(counts, oldest, longest_wait, shares))


def _when(delay: float | timedelta | datetime) -> str:
    if isinstance(delay, datetime):
        return f"at {delay.isoformat(sep=' ', timespec='seconds')}"
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    digits = 1 if seconds < 100 else 0
    return f"in {seconds:.{digits}f} s" if seconds >= 0.05 else "at once"


class _Run:
    """One run of a handler. It is a context manager. Give the result of the handler to `done`."""

    __slots__ = ("_context", "_jobs", "_result", "_since", "_span", "_telemetry", "_token")

    def __init__(self, telemetry: WorkerTelemetry, unit: Sequence[HeldJob], argument: Any) -> None:
        self._telemetry = telemetry
        self._since = time.perf_counter()
        self._span: Any = None
        self._result: Any = None
        self._token: Any = None
        jobs: Sequence[Job] = argument if telemetry.batch else (argument,)
        self._jobs = jobs
        self._context = tracing.NOWHERE
        if telemetry.tracer is None:
            return
        poll = cast("Traced | None", getattr(unit[0], "trace", None))
        sent = tracing.context_in(jobs[0].headers) if telemetry.message else None
        if sent is None and poll is not None and not poll.recording:
            self._context = poll.context  # as in `_unsampled`
        else:
            self._start(telemetry.tracer, poll, unit, sent)
        if not telemetry.batch:
            self._context = tracing.baggage(jobs[0].headers, self._context)

    def _start(self, tracer: Any, poll: Traced | None, unit: Sequence[HeldJob], sent: Any) -> None:
        parent = sent or (tracing.NOWHERE if poll is None else poll.context)
        place = self._telemetry.place
        span = self._span = tracing.start(tracer, place, "process", parent)
        if span.is_recording():
            tracing.about(span, self._jobs, batch=self._telemetry.batch)
            if sent is not None and poll is not None:
                tracing.link(span, poll.span)
        self._context = tracing.context_of(span)
        trace = Traced(span, self._context)
        for held in unit:
            held.trace = trace

    def __enter__(self) -> Self:
        self._token = tracing.attach(self._context)
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        self._end(error)
        tracing.detach(self._token)

    def done(self, result: R) -> R:
        self._result = result
        return result

    @_harmless
    def _end(self, error: BaseException | None) -> None:
        verdict = (
            error if error is not None or self._result is None else returned_verdict(self._result)
        )
        wrong = tracing.failure(verdict)
        meters = self._telemetry.meters
        span = self._span
        place = self._telemetry.place
        if meters is not None:
            meters.process.record(
                time.perf_counter() - self._since, failing(place.attributes("process"), wrong)
            )
            if self._telemetry.batch:
                meters.batch.record(len(self._jobs), place.attributes("process"))
            for job in self._jobs if verdict is None else ():
                meters.attempts.record(job.attempt, place.common)
        if span is not None:
            if wrong is not None and span.is_recording():
                tracing.failed(span, wrong)
            if isinstance(verdict, (Verdict, RunSuspended)):
                span.set_attribute(tracing.VERDICT, type(verdict).__name__)
            span.end()


class ServerClock:
    """The offset of a server's clock to ours. It has two bounds, as a reply takes time."""

    def __init__(self) -> None:
        self._lock = _forks.lock()
        self._bounds: tuple[float, float, float] | None = None

    def jump(self, now: float, took: float, ours: float | None = None) -> float:
        """Return the seconds by which the server's clock has jumped since the last reply. It is 0.0
        if it has not.

        *now* is the server's time in a reply that took *took* seconds, and arrived at *ours* by our
        clock, which is now by default.
        """
        received = time.clock_gettime(_CLOCK) if ours is None else ours
        least = now - received
        most = now - received + took
        with self._lock:
            before = self._bounds
            if before is not None and received - took < before[2]:
                return 0.0  # both replies were on their way: their order is unknown
            self._bounds = (least, most, received)
        if before is None:
            return 0.0
        # scripts tolerate a second, and two clocks may drift apart by a thousandth
        forgiven = 1.0 + 0.001 * abs(received - before[2])
        if least - before[1] > forgiven:
            return least - before[1]
        if before[0] - most > forgiven:
            return most - before[0]
        return 0.0


_clocks: WeakValueDictionary[str, ServerClock] = WeakValueDictionary()
_lock = _forks.lock()


def clock_of(place: str) -> ServerClock:
    """Return the clock of a queue's server. All workers of this process share it, so that a jump is
    logged once.
    """
    with _lock:
        return _clocks.setdefault(place, ServerClock())
