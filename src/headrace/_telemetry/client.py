"""Spans and metrics of client calls. They cost nothing while no provider is set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, Self, TypeVar, cast

import redis
from attrs import evolve

from headrace import _forks
from headrace._model.checks import Context as Carried
from headrace._model.job import NO_HEADERS, Claim, Job, NewJob, is_new
from headrace._model.receipt import BaseReceipt
from headrace._protocol.replies import Died
from headrace._telemetry import tracing
from headrace._telemetry.log import log_event
from headrace._telemetry.metrics import failing, instruments
from headrace._telemetry.tracing import Place, ambient, tracer
from headrace.errors import describe_error

R = TypeVar("R")
REPEAT_AFTER_S = 10.0  # seconds after which an outage is logged again; the pause doubles each time


def wanted() -> bool:
    """Tell whether calls are traced or measured, or have a context to pass on."""
    if tracer.known() is None and instruments.known() is None:
        return bool(ambient())
    return tracer() is not None or instruments() is not None or bool(ambient())


class CallSpan:
    """A call that is traced or measured. It is a context manager. Give the answer of the call to
    `done`.
    """

    __slots__ = ("_batch", "_meters", "_operation", "_place", "_since", "_token", "span")

    def __init__(
        self, place: Place, operation: str, *, batch: bool = False, kind: Any = None
    ) -> None:
        self._place = place
        self._operation = operation
        self._batch = batch
        self._meters = instruments()
        self._token: Any = None
        self._since = 0.0
        traced = tracer()
        self.span = None if traced is None else tracing.start(traced, place, operation, kind=kind)

    def _inside(self) -> Any:
        return None if self.span is None else tracing.context_of(self.span, tracing.get_current())

    def __enter__(self) -> Self:
        self._since = time.perf_counter()
        if self.span is not None:
            self._token = tracing.attach(self._inside())
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if self._token is not None:
            tracing.detach(self._token)
        if self._meters is not None:
            self._meters.call(
                self._place, self._operation, time.perf_counter() - self._since, error
            )
            if error is not None:
                self._failed(error)
        if self.span is not None:
            if error is not None and self.span.is_recording():
                tracing.failed(self.span, error)
            self.span.end()

    def _failed(self, error: BaseException) -> None:
        """Count a failure of the call, which raised, and is measured."""

    def done(self, answer: R) -> R:
        return answer

    def headers(self) -> Sequence[str]:
        return tracing.injected(self._inside())


class SendSpan(CallSpan):
    """The span of an enqueue. *context* makes the trace headers of each job."""

    __slots__ = ("_around", "_links", "_number", "context")

    def __init__(
        self,
        place: Place,
        jobs: object = None,
        *,
        headers: object = None,
        batch: bool = False,
        each: bool = False,
    ) -> None:
        given = cast("Mapping[str, str]", headers if isinstance(headers, Mapping) else NO_HEADERS)
        own = tracing.carries_context(given)  # then it was created elsewhere
        super().__init__(place, "send", batch=batch, kind=tracing.CALL if own or each else None)
        self._number = len(jobs) if isinstance(jobs, Sized) else 1
        self._links = tracing.LINKS_AT_MOST
        self._around = tracing.get_current()
        self.context: Carried | None = None
        if own and self.span is not None and self.span.is_recording():
            tracing.link(self.span, tracing.origin(given))
        if each and self.span is not None:
            self.context = self._create
        elif flat := tracing.injected(self._inside()):
            self.context = lambda: flat

    def _create(self) -> Sequence[str]:
        traced = tracer()
        if traced is None or self.span is None:
            return ()
        created = tracing.start(traced, self._place, "create", self._around)
        created.end()
        if self._links > 0 and self.span.is_recording():
            self._links -= 1
            tracing.link(self.span, created.get_span_context())
        return tracing.injected(tracing.context_of(created, self._around))

    def _failed(self, error: BaseException) -> None:
        sent = len(cast("Sized", getattr(error, "receipts", ())))
        self._count(sent, None)
        self._count(max(1, self._number - sent), error)

    def _count(self, number: int, error: BaseException | None) -> None:
        if self._meters is not None and number:
            self._meters.sent.add(number, failing(self._place.attributes("send"), error))

    def done(self, answer: R) -> R:
        given: Any = answer
        receipts = cast("list[BaseReceipt]", [given] if isinstance(given, BaseReceipt) else given)
        self._count(len(receipts), None)
        if self._batch and self._meters is not None:
            self._meters.batch.record(len(receipts), self._place.attributes("send"))
        if self.span is not None and self.span.is_recording():
            if self._batch:
                self.span.set_attribute(tracing.BATCH, len(receipts))
            else:
                self.span.set_attribute(tracing.MESSAGE, receipts[0].id)
                if not receipts[0].added:
                    self.span.set_attribute(tracing.ADDED, False)
        return answer


class SettleSpan(CallSpan):
    """The span of settling leases by hand, without a worker."""

    __slots__ = ()

    def __init__(
        self, place: Place, operation: str, jobs: Sequence[Job], *, batch: bool = False
    ) -> None:
        super().__init__(place, operation, batch=batch)
        if self.span is not None and self.span.is_recording():
            tracing.about(self.span, jobs, batch=batch)

    def follow(self, then: Any, place: Callable[[NewJob[Any]], Place]) -> Any:
        """Add to each follow-up the context in which it is created.

        Another value than a list of jobs is returned as it is, to be refused later.
        """
        if not isinstance(then, (list, tuple)):
            return then
        jobs: Any = then  # pyright: ignore[reportUnknownVariableType]
        return [self._create(job, place) if is_new(job) else job for job in jobs]

    def _create(self, job: NewJob[Any], place: Callable[[NewJob[Any]], Place]) -> NewJob[Any]:
        if isinstance(job.headers, Mapping) and tracing.carries_context(job.headers):
            return job
        traced = tracer()
        context = self._inside()
        if traced is not None:
            span = tracing.start(traced, place(job), "create", context)
            span.end()
            context = tracing.context_of(span, context)
        flat = tracing.injected(context)
        return evolve(job, headers=with_context(job.headers, flat)) if flat else job

    def done(self, answer: R) -> R:
        lost = cast("list[bool]", answer).count(False)
        if lost and self._meters is not None:
            self._meters.lost.add(lost, self._place.common)
        if lost and self.span is not None:
            self.span.set_attribute(tracing.LOST, lost)
        return answer


class ReceiveSpan:
    """A call for jobs. It becomes a span only if it brought jobs, or failed."""

    __slots__ = ("_batch", "_place", "_since")

    def __init__(self, place: Place, *, batch: bool) -> None:
        self._place = place
        self._batch = batch
        self._since = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if error is not None:
            received(self._place, [], self._since, batch=self._batch, error=error)

    def done(self, claims: R) -> R:
        received(self._place, cast("list[Claim]", claims), self._since, batch=self._batch)
        return claims


class Traced:
    """The current span of a job. It begins as the span of the poll, and becomes the span of the
    handler's run.
    """

    __slots__ = ("context", "recording", "span")

    def __init__(self, span: Any, context: Any) -> None:
        self.context = context
        self.recording = span.is_recording()
        self.span = span.get_span_context()

    def headers(self) -> Sequence[str]:
        return tracing.injected(self.context)

    def __str__(self) -> str:
        return tracing.traceparent(self.span)


def received(
    place: Place,
    claims: Sequence[Claim],
    since: float,
    *,
    batch: bool,
    context: Any = None,
    error: BaseException | None = None,
) -> None:
    """Count the jobs of a poll that began at *since*. Make the span of the poll, and give it to the
    jobs.
    """
    if not claims and error is None:
        return
    seconds = time.perf_counter() - since
    meters = instruments()
    traced = tracer()
    if meters is not None:
        attributes = place.attributes("receive")
        meters.call(place, "receive", seconds, error)
        if claims:
            meters.consumed.add(len(claims), attributes)
        if batch and claims:
            meters.batch.record(len(claims), attributes)
        for claim in claims:
            if claim.job.attempt == 1:
                meters.waited.jobs.record(
                    max(0.0, claim.leased_at - claim.job.enqueued_at), place.common
                )
    if traced is None:
        return
    span = tracing.start(traced, place, "receive", context, at=time.time_ns() - int(seconds * 1e9))
    if span.is_recording():
        if error is not None:
            tracing.failed(span, error)
        else:
            tracing.about(span, [claim.job for claim in claims], batch=batch)
    poll = Traced(span, tracing.context_of(span))
    span.end()
    for claim in claims:
        claim.trace = poll


def dead_lettered(settings: Mapping[str, Any], died: Iterable[tuple[str, Died]]) -> None:
    """Count and log jobs, each with its queue, that have become dead letters outside of a handler's
    run.
    """
    meters = instruments()
    words = "job %s of queue %r is dead after attempt %d: %s"
    for queue, job in died:
        place = Place(queue, settings)
        if meters is not None:
            meters.died.add(1, place.common)
            meters.attempts.record(job.attempts, place.common)
        about: dict[str, Any] = {
            "job_id": job.id,
            "attempt": job.attempts,
            "reason": job.reason,
            "kind": job.kind,
        }
        log_event(
            "job_dead_lettered",
            words,
            job.id,
            queue,
            job.attempts,
            job.reason,
            queue=queue,
            **about,
        )


def with_context(headers: Any, flat: Sequence[str]) -> Any:
    """Add a context to *headers*, unless they have one. Another value than a mapping is returned as
    it is.
    """
    more = dict(zip(flat[::2], flat[1::2], strict=True))
    if headers is None:
        return more
    if not isinstance(headers, Mapping) or not more.keys().isdisjoint(
        cast("Mapping[str, str]", headers)
    ):
        return cast(Any, headers)
    return {**cast("Mapping[str, str]", headers), **more}


Span = CallSpan | ReceiveSpan


class Outage:
    """An outage of a server. All executors of the server share this object.

    An outage is logged when it begins, again at growing intervals, and when it is over.
    """

    __slots__ = (
        "_drops",
        "_lock",
        "_next",
        "_place",
        "_trying",
        "answers",
        "found",
        "opened",
        "since",
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._place = Place("", settings)
        self._lock = _forks.lock()
        # by queue: when to log again, and the number since then
        self._drops: dict[str, tuple[float, int]] = {}
        self._trying = 0  # round trips that failed, and are not yet answered
        self._next = 0.0  # when to log it again
        self.since = 0.0
        self.answers = 0  # round trips that succeeded
        self.opened = False  # a server has accepted a connection
        self.found = False  # a server is at this address, even if it refuses, or hangs

    def begins(self) -> None:
        with self._lock:
            self._trying += 1

    def failed(self, error: BaseException, *, reported: bool) -> None:
        """Record a failed attempt. *reported* says that the server itself sent the error.

        If a server accepts, but does not answer, it hangs.
        """
        hangs = self.opened and isinstance(error, TimeoutError | redis.TimeoutError)
        self.found = self.found or reported or hangs
        now = time.monotonic()
        with self._lock:
            first = not self.since
            again = bool(self.since) and now >= self._next
            if first:
                self.since = now
                self._next = now + REPEAT_AFTER_S
            elif again:
                self._next = now + min(now - self.since, 900.0)  # between two of these messages
            lasts = now - self.since
        if first or again:
            since = f"for {lasts:.0f} s now: " if again else ""
            log_event(
                "connection_lost",
                "%s%s; trying again",
                since,
                describe_error(error),
                server=self._place.server,
            )
        if (meters := instruments()) is not None:
            meters.reconnects.add(1, self._place.at)

    def dropped(self, queue: str, number: int) -> None:
        """Count results that a full server did not keep, and log their number, once a minute for
        each queue.
        """
        if (meters := instruments()) is not None:
            meters.dropped.add(number, {tracing.DESTINATION: queue, **self._place.at})
        now = time.monotonic()
        with self._lock:
            next_log, before = self._drops.get(queue, (now, 0))
            is_due = now >= next_log
            self._drops[queue] = (now + 60.0, 0) if is_due else (next_log, before + number)
        if is_due:
            words = "%d jobs of queue %r are complete without their results: the server is out of memory (maxmemory)"
            log_event(
                "result_dropped", words, before + number, queue, queue=queue, number=before + number
            )

    def ends(self) -> None:
        """Stop counting a round trip that succeeded, or is given up."""
        with self._lock:
            self._trying -= 1

    def over(self) -> None:
        """End the outage after a success, unless other round trips are still being tried."""
        with self._lock:
            if self._trying or not self.since:
                return
            lasted = time.monotonic() - self.since
            self.since = 0.0
        log_event("connection_restored", "after %.1f s", lasted, server=self._place.server)
