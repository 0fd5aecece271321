"""What a worker leaves in traces, metrics and logs: its polls, the runs of its handlers, what becomes of jobs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from headrace import _log as log
from headrace import _metrics as metrics
from headrace import _tracing as tracing
from headrace._effects import Held
from headrace._feed import Feed
from headrace._job import Counts, Grant, Job, Reclaimed
from headrace._judge import Verdict, spoken
from headrace._metrics import failing, instruments
from headrace._observe import Traced, received
from headrace._op import Op
from headrace._tracing import Place, tracer
from headrace.errors import Verdict as Said

P = ParamSpec("P")
R = TypeVar("R")
PARENTS = ("poll", "message")  # whose child the span of a run is
INTERVAL = 15.0  # seconds between two looks at what is in a queue
SETTLES = frozenset(("complete", "release", "retry", "dead_letter"))


def _harmless(function: Callable[P, R]) -> Callable[P, R | None]:
    """What a propagator, a processor of spans or a log handler raises ends no worker, and fails no job."""

    @wraps(function)
    def guarded(*args: P.args, **options: P.kwargs) -> R | None:
        try:
            return function(*args, **options)
        except Exception as error:
            log.say("tracing_failed", "%r", error, error=error)
            return None

    return guarded


class Watch:
    """What is seen of one feed of a worker. *parent*: whose child the span of a run is, a poll's or a message's."""

    __slots__ = ("_feed", "_key", "batch", "message", "on", "place", "quick", "seen", "tracer")

    def __init__(self, feed: Feed, settings: Mapping[str, Any], parent: str) -> None:
        self._feed = feed
        self.batch = feed.handler.batch
        self.message = parent == "message" and not self.batch
        self.place = Place(feed.ops.keys.queue, settings, feed.name)
        self._key = f"{self.place.server} {feed.ops.keys.prefix}"
        self.on = self.quick = False
        self.tracer, self.seen = tracer(), instruments()
        feed.note, feed.gauge = self.note, self

    def look(self) -> None:
        """See whether anybody looks now."""
        self.tracer, self.seen = tracer(), instruments()
        self.on = self.tracer is not None or self.seen is not None
        self.quick = self.seen is None and not self.message and not self.batch
        if self.on:
            tracing.look()
        self.place.client = self._feed.name

    # -- round trips

    @_harmless
    def answered(self, op: Op[Any], reply: Any, since: float) -> None:
        """One of the operations of a round trip that began at *since*."""
        if isinstance(reply, Grant):
            self.look()
            self._granted(reply, since)
        elif isinstance(reply, Reclaimed):
            self._reclaimed(reply)
        elif self.seen is not None and op.name in SETTLES:
            self.seen.call(self.place, op.name, time.perf_counter() - since)
            late = reply.count(False)
            if late:
                self.seen.lost.add(late, self.place.common)

    def _granted(self, grant: Grant, since: float) -> None:
        if grant.healed:
            log.say("group_created", "queue %r had no consumer group", self.place.queue, queue=self.place.queue)
        if self.on and grant.claims:
            poll = received(self.place, grant.claims, since, batch=True, context=tracing.NOWHERE)
            if poll is not None:
                for claim in grant.claims:
                    claim.trace = poll

    def _reclaimed(self, swept: Reclaimed) -> None:
        queue = self.place.queue
        if swept.declared:
            words = "%d of queue %r had no heartbeat any more"
            log.say("peers_declared_dead", words, swept.declared, queue, queue=queue)
        if swept.moved:
            log.say("jobs_reclaimed", "%d of queue %r are back at the front", swept.moved, queue, queue=queue)
            if self.seen is not None:
                self.seen.reclaimed.add(swept.moved, self.place.common)

    # -- runs

    def _unsampled(self, unit: Sequence[Held], argument: Any) -> Any:
        """The context of a job of which nothing is kept: that of its poll, whose sampler has spoken for all it brought.

        The way of nearly every job where few are sampled.
        """
        if not self.quick:
            return None
        poll = getattr(unit[0], "trace", None)
        return None if poll is None or poll.recording or not tracing.plain(argument.headers) else poll.context

    def passes(self, unit: Sequence[Held], argument: Any) -> bool:
        """Whether nothing is kept of a run in this task: then it needs no more than the context, which it has now."""
        context = self._unsampled(unit, argument)
        if context is not None:
            tracing.attach(context)
        return context is not None

    @_harmless
    def _begin(self, unit: Sequence[Held], argument: Any) -> _Run:
        return _Run(self, unit, argument)

    def call(self, function: Callable[[Any], R], unit: Sequence[Held], argument: Any) -> R:
        """Run a handler, seen."""
        if (context := self._unsampled(unit, argument)) is not None:
            token = tracing.attach(context)
            try:
                return function(argument)
            finally:
                tracing.detach(token)
        run = self._begin(unit, argument)
        if run is None:
            return function(argument)
        token = tracing.attach(run.context)
        try:
            result = function(argument)
        except BaseException as error:
            run.end(error)
            raise
        else:
            run.end(None, result)
            return result
        finally:
            tracing.detach(token)

    async def call_async(self, function: Callable[[Any], Awaitable[R]], unit: Sequence[Held], argument: Any) -> R:
        """Like `call`, unless it `passes`. What it attaches is the task's own, and ends with it."""
        run = self._begin(unit, argument)
        if run is None:
            return await function(argument)
        tracing.attach(run.context)
        try:
            result = await function(argument)
        except BaseException as error:
            run.end(error)
            raise
        run.end(None, result)
        return result

    # -- what becomes of jobs

    @_harmless
    def note(self, event: str, held: Held | None, verdict: Verdict | None, error: BaseException | None) -> None:
        """What the feed tells of."""
        trace = getattr(held, "trace", None)
        span = None if trace is None else trace.span
        if verdict is not None and held is not None:
            self._judged(held, verdict, error, span)
        elif held is not None:
            if self.seen is not None:
                self.seen.lost.add(1, self.place.common)
            log.say(event, "job %s runs elsewhere, or is gone", held.job.id, claim=held, span=span)
        else:
            words = "our peers declared us dead, or we could not say otherwise; back as %s"
            log.say(event, words, self._feed.name, queue=self.place.queue, worker=self._feed.name)

    def _judged(self, held: Held, verdict: Verdict, error: BaseException | None, span: Any) -> None:
        limit = verdict.attempts if verdict.attempts is not None else self._feed.ops.settings.max_attempts
        spent = verdict.spend == 1 and limit is not None and held.job.attempt >= limit
        seen, common = self.seen, self.place.common
        cause = None if error is None or isinstance(error, Said) else error
        if verdict.kind == "dead" or (verdict.kind == "retry" and spent):
            if seen is not None:
                seen.died.add(1, common)
                seen.attempts.record(held.job.attempt, common)
            log.say("job_dead_lettered", "job %s: %s", held.job.id, verdict.reason, claim=held, span=span, error=cause)
        elif verdict.kind == "retry":
            if seen is not None:
                seen.retried.add(1, common)
            event = "job_failed" if verdict.spend and cause is not None else "job_put_back"
            words = "job %s goes round again: %s"
            log.say(event, words, held.job.id, verdict.reason, claim=held, span=span, error=cause)
        elif verdict.kind == "release":
            log.say("job_released", "job %s is back at the front", held.job.id, claim=held, span=span)

    # -- what is in the queue

    @_harmless
    def due(self) -> bool:
        """Whether it is time to read it: once for all workers of this process."""
        return instruments() is not None and metrics.readings.due(self._key, self.place, INTERVAL)

    @_harmless
    def read(self, counts: Counts, oldest: float) -> None:
        """What was read."""
        metrics.readings.read(self._key, counts, oldest)


class _Run:
    """One run of a handler."""

    __slots__ = ("_jobs", "_since", "_span", "_watch", "context")

    def __init__(self, watch: Watch, unit: Sequence[Held], argument: Any) -> None:
        self._watch, self._since = watch, time.perf_counter()
        self._span: Any = None
        jobs: Sequence[Job] = argument if watch.batch else (argument,)
        self._jobs = jobs
        self.context = tracing.NOWHERE
        if watch.tracer is None:
            return
        poll = cast("Traced | None", getattr(unit[0], "trace", None))
        sent = tracing.sent(jobs[0].headers) if watch.message else None
        if sent is None and poll is not None and not poll.recording:
            self.context = poll.context  # as in `_unsampled`
        else:
            self._start(watch.tracer, poll, unit, sent)
        if not watch.batch:
            self.context = tracing.baggage(jobs[0].headers, self.context)

    def _start(self, tracer: Any, poll: Traced | None, unit: Sequence[Held], sent: Any) -> None:
        parent = sent or (tracing.NOWHERE if poll is None else poll.context)
        place = self._watch.place
        span = self._span = tracing.start(tracer, place, "process", parent)
        if span.is_recording():
            tracing.about(span, self._jobs, batch=self._watch.batch)
            if sent is not None and poll is not None:
                tracing.link(span, poll.span)
        self.context = tracing.context_of(span)
        trace = Traced(span, self.context)
        for held in unit:
            held.trace = trace

    @_harmless
    def end(self, error: BaseException | None, result: Any = None) -> None:
        """It returned, or raised."""
        said = error if error is not None or result is None else spoken(result)
        wrong = tracing.failure(said)
        seen, span, place = self._watch.seen, self._span, self._watch.place
        if seen is not None:
            seen.process.record(time.perf_counter() - self._since, failing(place.attributes("process"), wrong))
            if self._watch.batch:
                seen.batch.record(len(self._jobs), place.attributes("process"))
            for job in self._jobs if said is None else ():
                seen.attempts.record(job.attempt, place.common)
        if span is not None:
            if wrong is not None and span.is_recording():
                tracing.failed(span, wrong)
            if isinstance(said, Said):
                span.set_attribute(tracing.VERDICT, type(said).__name__)
            span.end()
