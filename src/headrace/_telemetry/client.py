"""What the calls of a queue's user leave in traces and metrics. Nothing, and for nothing, if nobody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Self, TypeVar, cast

from attrs import evolve

from headrace import _log as log
from headrace import _tracing as tracing
from headrace._job import NO_HEADERS, Claim, Job, NewJob, Receipt
from headrace._metrics import failing, instruments
from headrace._settings import Context as Carried
from headrace._tracing import Place, tracer

R = TypeVar("R")


def wanted() -> bool:
    """Whether anybody traces or measures, or there is a context to pass on."""
    return tracer() is not None or instruments() is not None or tracing.ambient()


# -- what a queue's user calls -------------------------------------------------------------------------------


class Watched:
    """A call that is traced or measured: `with` it, and tell it what was `done`."""

    __slots__ = ("_batch", "_operation", "_place", "_seen", "_since", "_token", "span")

    def __init__(self, place: Place, operation: str, *, batch: bool = False, kind: Any = None) -> None:
        self._place, self._operation, self._batch = place, operation, batch
        self._seen = instruments()
        self._token: Any = None
        self._since = 0.0
        traced = tracer()
        self.span = None if traced is None else tracing.start(traced, place, operation, kind=kind)

    def _inside(self) -> Any:
        """The context of what the call does."""
        return None if self.span is None else tracing.context_of(self.span, tracing.get_current())

    def __enter__(self) -> Self:
        self._since = time.perf_counter()
        if self.span is not None:
            self._token = tracing.attach(self._inside())
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if self._token is not None:
            tracing.detach(self._token)
        if self._seen is not None:
            self._seen.call(self._place, self._operation, time.perf_counter() - self._since, error)
            if error is not None:
                self._failed(error)
        if self.span is not None:
            if error is not None and self.span.is_recording():
                tracing.failed(self.span, error)
            self.span.end()

    def _failed(self, error: BaseException) -> None:
        """It raised, and is measured."""

    def done(self, answer: R) -> R:
        """What came of it."""
        return answer

    def headers(self) -> Sequence[str]:
        """What carries it to jobs that it creates."""
        return tracing.injected(self._inside())


class Sending(Watched):
    """Jobs on their way into a queue. *context*: what goes with each of them."""

    __slots__ = ("_around", "_links", "_number", "context")

    def __init__(
        self, place: Place, jobs: object = None, *, headers: object = None, batch: bool = False, each: bool = False
    ) -> None:
        given = cast("Mapping[str, str]", headers if isinstance(headers, Mapping) else NO_HEADERS)
        own = tracing.carries(given)  # then it was created elsewhere
        super().__init__(place, "send", batch=batch, kind=tracing.CALL if own or each else None)
        self._number = len(jobs) if isinstance(jobs, Sized) else 1
        self._links = tracing.LINKS
        self._around = tracing.get_current()
        self.context: Carried | None = None
        if own and self.span is not None and self.span.is_recording():
            tracing.link(self.span, tracing.origin(given))
        if each and self.span is not None:
            self.context = self._create
        elif flat := tracing.injected(self._inside()):
            self.context = lambda: flat

    def _create(self) -> Sequence[str]:
        """A span of its own for one job of a batch."""
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
        if self._seen is not None and number:
            self._seen.sent.add(number, failing(self._place.attributes("send"), error))

    def done(self, answer: R) -> R:
        receipts = cast("list[Receipt]", [answer] if isinstance(answer, Receipt) else answer)
        self._count(len(receipts), None)
        if self._batch and self._seen is not None:
            self._seen.batch.record(len(receipts), self._place.attributes("send"))
        if self.span is not None and self.span.is_recording():
            if self._batch:
                self.span.set_attribute(tracing.BATCH, len(receipts))
            else:
                self.span.set_attribute(tracing.MESSAGE, receipts[0].id)
                if not receipts[0].added:
                    self.span.set_attribute(tracing.ADDED, False)
        return answer


class Settling(Watched):
    """Leases that are settled by who holds them."""

    __slots__ = ()

    def __init__(self, place: Place, operation: str, jobs: Sequence[Job], *, batch: bool = False) -> None:
        super().__init__(place, operation, batch=batch)
        if self.span is not None and self.span.is_recording():
            tracing.about(self.span, jobs, batch=batch)

    def follow(self, then: Any, place: Callable[[NewJob], Place]) -> Any:
        """Follow-ups, each with where it was created; what is no list of jobs stays as it is, to be refused."""
        if not isinstance(then, (list, tuple)):
            return then
        jobs: Any = then  # pyright: ignore[reportUnknownVariableType]
        return [self._create(job, place) if isinstance(job, NewJob) else job for job in jobs]

    def _create(self, job: NewJob, place: Callable[[NewJob], Place]) -> NewJob:
        if isinstance(job.headers, Mapping) and tracing.carries(job.headers):
            return job
        traced, context = tracer(), self._inside()
        if traced is not None:
            span = tracing.start(traced, place(job), "create", context)
            span.end()
            context = tracing.context_of(span, context)
        flat = tracing.injected(context)
        return evolve(job, headers=with_context(job.headers, flat)) if flat else job

    def done(self, answer: R) -> R:
        lost = cast("list[bool]", answer).count(False)
        if lost and self._seen is not None:
            self._seen.lost.add(lost, self._place.common)
        if lost and self.span is not None:
            self.span.set_attribute(tracing.LOST, lost)
        return answer


class Receiving:
    """A call for jobs; it is a span only if some came, or if it failed."""

    __slots__ = ("_batch", "_place", "_since")

    def __init__(self, place: Place, *, batch: bool) -> None:
        self._place, self._batch, self._since = place, batch, time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if error is not None:
            received(self._place, [], self._since, batch=self._batch, error=error)

    def done(self, claims: R) -> R:
        """What was handed out."""
        some = cast("list[Claim]", claims)
        poll = received(self._place, some, self._since, batch=self._batch)
        for claim in some if poll is not None else ():
            claim.trace = poll
        return claims


class Traced:
    """What a job is traced by: a poll, and then a run of its handler."""

    __slots__ = ("context", "recording", "span")

    def __init__(self, span: Any, context: Any) -> None:
        self.context, self.recording, self.span = context, span.is_recording(), span.get_span_context()

    def headers(self) -> Sequence[str]:
        """What carries it to jobs that are made of this one."""
        return tracing.injected(self.context)

    def __str__(self) -> str:
        return tracing.told(self.span)


def received(
    place: Place, claims: Sequence[Claim], since: float, *, batch: bool, context: Any = None,
    error: BaseException | None = None,
) -> Traced | None:  # fmt: skip
    """A poll that began at *since* brought jobs: count them, and make a span, which began when it did."""
    if not claims and error is None:
        return None
    seconds = time.perf_counter() - since
    seen, traced = instruments(), tracer()
    if seen is not None:
        attributes = place.attributes("receive")
        seen.call(place, "receive", seconds, error)
        if claims:
            seen.consumed.add(len(claims), attributes)
        if batch and claims:
            seen.batch.record(len(claims), attributes)
        for claim in claims:
            if claim.job.attempt == 1:
                seen.waited.record(max(0.0, claim.leased_at - claim.job.enqueued_at), place.common)
    if traced is None:
        return None
    span = tracing.start(traced, place, "receive", context, at=time.time_ns() - int(seconds * 1e9))
    if span.is_recording():
        if error is not None:
            tracing.failed(span, error)
        else:
            tracing.about(span, [claim.job for claim in claims], batch=batch)
    poll = Traced(span, tracing.context_of(span))
    span.end()
    return poll


def with_context(headers: Any, flat: Sequence[str]) -> Any:
    """*headers* and a context, unless they have one; what is no mapping stays as it is, to be refused."""
    more = dict(zip(flat[::2], flat[1::2], strict=True))
    if headers is None:
        return more
    if not isinstance(headers, Mapping) or not more.keys().isdisjoint(cast("Mapping[str, str]", headers)):
        return cast(Any, headers)
    return {**cast("Mapping[str, str]", headers), **more}


Seen = Watched | Receiving


class Outage:
    """Round trips that fail, and are tried again: said once when that begins, and once when it is over."""

    __slots__ = ("_place", "since")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._place = Place("", settings)
        self.since = 0.0

    def failed(self, error: BaseException) -> None:
        """One more did."""
        if not self.since:
            self.since = time.monotonic()
            log.say("connection_lost", "%r; trying again", error, server=self._place.server)
        if (seen := instruments()) is not None:
            seen.reconnects.add(1, self._place.at)

    def again(self, state: Any) -> None:
        """What tenacity tells of."""
        self.failed(state.outcome.exception())

    def over(self) -> None:
        """One came through."""
        lasted, self.since = time.monotonic() - self.since, 0.0
        log.say("connection_restored", "after %.1f s", lasted, server=self._place.server)
