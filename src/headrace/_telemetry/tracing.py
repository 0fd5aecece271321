"""Spans, and the context that travels with jobs, by OpenTelemetry's conventions for messaging; through its API alone.

- Names are here and nowhere else; `SCHEMA` says which version of the conventions they are of.
- Whether anybody traces is asked once for a call, or a poll, never for a job. Nobody does until a provider is set;
  one that is set later is seen by the next call.
- What a sampler may look at is there when a span starts. All else, links too, is made for a span that records.
- No payload is in any attribute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.trace import (
    NoOpTracer,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace._model.job import Job
from headrace._model.settings import ATTEMPT
from headrace._protocol.keys import GROUP
from headrace.errors import DeadLetter
from headrace.errors import Verdict as Said

M = TypeVar("M")
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "headrace"
LINKS = 128  # of one span: what an SDK keeps of them, unless told otherwise
SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
CONSUMERS = "messaging.consumer.group.name"
CLIENT = "messaging.client.id"
MESSAGE = "messaging.message.id"
BATCH = "messaging.batch.message_count"
ADDRESS = "server.address"
PORT = "server.port"
ERROR = "error.type"
JOB_ATTEMPT = "headrace.job.attempt"
ADDED = "headrace.job.added"
LOST = "headrace.lease.lost"
VERDICT = "headrace.verdict"
LINK = "headrace.link"
KINDS = {  # operations: their type and kind
    "create": ("create", SpanKind.PRODUCER),
    "send": ("send", SpanKind.PRODUCER),
    "receive": ("receive", SpanKind.CLIENT),
    "process": ("process", SpanKind.CONSUMER),
    "complete": ("settle", SpanKind.CLIENT),
    "release": ("settle", SpanKind.CLIENT),
    "retry": ("settle", SpanKind.CLIENT),
    "dead_letter": ("settle", SpanKind.CLIENT),
}
Value = str | int
NOWHERE = Context()
CALL = SpanKind.CLIENT
attach, detach, get_current = contexts.attach, contexts.detach, contexts.get_current
_W3C = TraceContextTextMapPropagator()
_PARENTS = frozenset(("traceparent", "tracestate"))


class ProviderCache(Generic[M]):
    """What is made of the global provider of a kind, once there is one that does something.

    The public function that asks for it reads the environment each time, 0.8 µs, for as long as nobody has set
    one: so we look where it is kept. An API that keeps it elsewhere is asked.
    """

    __slots__ = ("_ask", "_made", "_make", "_name", "_place", "_provider")

    def __init__(self, ask: Callable[[], Any], name: str, variable: str, make: Callable[[Any], M | None]) -> None:
        whole: Any = ask
        self._place: dict[str, Any] = whole.__globals__
        self._name, self._make = name, make
        self._ask = ask if name not in self._place or variable in os.environ else None
        self._provider: Any = None
        self._made: M | None = None

    def __call__(self) -> M | None:
        provider = self._place.get(self._name) if self._ask is None else self._ask()
        if provider is not self._provider:
            self._made = None if provider is None else self._make(provider)
            self._provider = provider
        return self._made


def _tracer(provider: Any) -> Tracer | None:
    if isinstance(provider, (ProxyTracerProvider, NoOpTracerProvider)):
        return None
    made: Tracer = provider.get_tracer(SCOPE, version("headrace"), SCHEMA)
    return None if isinstance(made, NoOpTracer) else made


tracer: ProviderCache[Tracer] = ProviderCache(
    trace.get_tracer_provider, "_TRACER_PROVIDER", OTEL_PYTHON_TRACER_PROVIDER, _tracer
)


class Place:
    """A queue as spans and metrics name it, from where somebody uses it."""

    __slots__ = ("_attributes", "at", "client", "common", "names", "queue")

    def __init__(self, queue: str, settings: Mapping[str, Any], client: str = "") -> None:
        self.queue, self.client = queue, client
        self.at: dict[str, Value] = {SYSTEM: "redis"}
        """What is true of its server; not to be changed."""
        if settings.get("path"):
            self.at[ADDRESS] = str(settings["path"])
        elif settings.get("host"):
            self.at |= {ADDRESS: str(settings["host"]), PORT: int(settings.get("port") or 6379)}
        self.common: dict[str, Value] = {DESTINATION: queue, **self.at}
        """What is true of the queue itself; not to be changed."""
        self._attributes: dict[str, dict[str, Value]] = {}
        self.names = {operation: f"{operation} {queue}" for operation in KINDS}

    def attributes(self, operation: str) -> dict[str, Value]:
        """What all spans and measurements of an operation have; not to be changed."""
        found = self._attributes.get(operation)
        if found is None:
            kind, _ = KINDS[operation]
            found = self._attributes[operation] = {OPERATION: operation, TYPE: kind, **self.common}
            if kind not in ("create", "send"):
                found[CONSUMERS] = GROUP
        return found

    @property
    def server(self) -> str:
        """Which server it is on."""
        return ":".join(str(self.at[name]) for name in (ADDRESS, PORT) if name in self.at)


class _Propagator:
    """The global propagator, and the names of its fields."""

    __slots__ = ("_textmap", "more", "parents")

    def __init__(self) -> None:
        self._textmap: Any = None
        self.parents = self.more = frozenset[str]()

    def look(self) -> None:
        """See whether somebody has set another."""
        textmap: Any = propagate.get_global_textmap()
        if textmap is not self._textmap:
            fields = frozenset[str](textmap.fields)
            self.parents = fields - {"baggage"}  # where a job was created
            self.more = fields - _PARENTS  # what else there may be
            self._textmap = textmap


_propagator = _Propagator()


def ambient() -> bool:
    """Whether there may be a context to pass on although nobody traces."""
    return bool(get_current())


def injected(context: Context | None = None) -> list[str]:
    """Flat headers that carry *context*, or the current one; none if there is nothing to carry."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    flat: list[str] = []
    for name, value in carrier.items():
        flat += (name, value)
    return flat


def carries(headers: Mapping[str, str]) -> bool:
    """Whether a job's headers say where it was created."""
    _propagator.look()
    return bool(headers) and not _propagator.parents.isdisjoint(headers)


def sent(headers: Mapping[str, str]) -> Context | None:
    """The context in a job's headers, if it says where the job was created."""
    if not carries(headers):
        return None
    found = propagate.extract(headers, NOWHERE)
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def plain(headers: Mapping[str, str]) -> bool:
    """Whether a job's headers carry nothing besides where it was created."""
    return not headers or _propagator.more.isdisjoint(headers)


def look() -> None:
    """See whether somebody has set another propagator."""
    _propagator.look()


def baggage(headers: Mapping[str, str], context: Context) -> Context:
    """*context*, with all that a job's headers carry besides where it was created."""
    if plain(headers):
        return context
    return trace.set_span_in_context(trace.get_current_span(context), propagate.extract(headers, NOWHERE))


def context_of(span: Span, context: Context | None = None) -> Context:
    """*context*, or else none, with *span* in it."""
    return trace.set_span_in_context(span, NOWHERE if context is None else context)


def origin(headers: Mapping[str, str]) -> SpanContext | None:
    """Where a job was created."""
    found = sent(headers)
    return None if found is None else trace.get_current_span(found).get_span_context()


def earlier(headers: Mapping[str, str]) -> SpanContext | None:
    """Where a job was tried before."""
    told = headers.get(ATTEMPT)
    if told is None:
        return None
    found = trace.get_current_span(_W3C.extract({"traceparent": told}, NOWHERE)).get_span_context()
    return found if found.is_valid else None


def told(context: SpanContext) -> str:
    """What `earlier` reads."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context_of(trace.NonRecordingSpan(context)))
    return carrier.get("traceparent", "")


def current() -> SpanContext | None:
    """The span that goes on now."""
    if not get_current():
        return None
    found = trace.get_current_span().get_span_context()
    return found if found.is_valid else None


def ids(span: SpanContext | None) -> dict[str, str]:
    """How logs name *span*, or else the one that goes on now."""
    found = span or current()
    if found is None:
        return {}
    return {"trace_id": format_trace_id(found.trace_id), "span_id": format_span_id(found.span_id)}


def start(
    tracer: Tracer,
    place: Place,
    operation: str,
    context: Context | None = None,
    *,
    kind: SpanKind | None = None,
    at: int | None = None,
) -> Span:
    """A span, which is not made the current one. *context* instead of the current; *at* in ns since the epoch."""
    span = tracer.start_span(
        place.names[operation], context, kind or KINDS[operation][1], place.attributes(operation), start_time=at
    )
    if place.client and span.is_recording():
        span.set_attribute(CLIENT, place.client)
    return span


def about(span: Span, jobs: Sequence[Job], *, batch: bool) -> None:
    """Say of a recording span which jobs it is about, and link it to where they come from."""
    if batch:
        span.set_attribute(BATCH, len(jobs))
    else:
        span.set_attributes({MESSAGE: jobs[0].id, JOB_ATTEMPT: jobs[0].attempt})
    for job in jobs[:LINKS]:
        own: dict[str, Value] = {MESSAGE: job.id, JOB_ATTEMPT: job.attempt} if batch else {}
        link(span, origin(job.headers), own)
        link(span, earlier(job.headers), {**own, LINK: "earlier attempt"})


def link(span: Span, context: SpanContext | None, attributes: Mapping[str, Value] | None = None) -> None:
    """Link a span to another, if there is one."""
    if context is not None:
        span.add_link(context, attributes or None)


def error_type(error: BaseException) -> str:
    """The name of its class."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def failure(error: BaseException | None) -> BaseException | None:
    """*error* if it is one: what only says how a job ends is none, unless it ends dead."""
    return None if isinstance(error, Said) and not isinstance(error, DeadLetter) else error


def failed(span: Span, error: BaseException, *, record: bool = True) -> None:
    """Say so of a span."""
    span.set_attribute(ERROR, error_type(error))
    span.set_status(Status(StatusCode.ERROR, _words(error)))
    if record:
        span.record_exception(error)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # its __str__ is the user's
        return ""
