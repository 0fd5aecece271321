"""Spans, and the context that travels with jobs, by OpenTelemetry's conventions for messaging.

- Only OpenTelemetry's API is used. All names are here. `SCHEMA` is their version of the
  conventions.
- The provider is read once for a call, or a poll, never for a job. Tracing is off until one is set.
  A provider that is set later is seen by the next call.
- Attributes that a sampler may read are set when a span starts. All others, and links, are made
  only for a span that records.
- No payload is in any attribute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from opentelemetry import context as contexts, propagate, trace
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
from headrace.errors import DeadLetter, RunSuspended, Verdict

M = TypeVar("M")
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "headrace"
LINKS_AT_MOST = 128  # of one span: the number that an SDK keeps by default
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
OPERATIONS = {  # their types and kinds
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
attach = contexts.attach
detach = contexts.detach
get_current = contexts.get_current
_W3C = TraceContextTextMapPropagator()
_PARENTS = frozenset(("traceparent", "tracestate"))


class ProviderCache(Generic[M]):
    """A cache of the tracers and meters of OpenTelemetry's provider.

    It is `None` until a real (not no-op) provider is set. OpenTelemetry's own getter reads the
    environment each time, 0.8 µs, while no provider is set. So we read the variable in which it
    keeps the provider. The getter is called only if an API keeps it elsewhere.
    """

    __slots__ = ("_ask", "_made", "_make", "_name", "_place", "_provider", "known")

    def __init__(
        self, ask: Callable[[], Any], name: str, variable: str, make: Callable[[Any], M | None]
    ) -> None:
        whole: Any = ask
        self._place: dict[str, Any] = whole.__globals__
        self._name = name
        self._make = make
        self._ask = ask if name not in self._place or variable in os.environ else None
        self._provider: Any = None
        self._made: M | None = None
        self.known: Callable[[], Any] = (
            self if self._ask is not None else partial(self._place.get, name)
        )
        """Returns `None` while there is surely no real provider, without a call into Python."""

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
    """The names of a queue and its server in spans and metrics, and of the client that uses it."""

    __slots__ = ("_attributes", "at", "client", "common", "names", "queue")

    def __init__(self, queue: str, settings: Mapping[str, Any], client: str = "") -> None:
        self.queue = queue
        self.client = client
        self.at: dict[str, Value] = {SYSTEM: "redis"}
        """Attributes of its server, which must not be changed."""
        if settings.get("path"):
            self.at[ADDRESS] = str(settings["path"])
        elif settings.get("host"):
            self.at |= {ADDRESS: str(settings["host"]), PORT: int(settings.get("port") or 6379)}
        self.common: dict[str, Value] = {DESTINATION: queue, **self.at}
        """Attributes of the queue itself, which must not be changed."""
        self._attributes: dict[str, dict[str, Value]] = {}
        self.names = {operation: f"{operation} {queue}" for operation in OPERATIONS}

    def attributes(self, operation: str) -> dict[str, Value]:
        """Return the attributes of all spans and measurements of an operation. Do not change
        them."""
        found = self._attributes.get(operation)
        if found is None:
            kind, _ = OPERATIONS[operation]
            found = self._attributes[operation] = {OPERATION: operation, TYPE: kind, **self.common}
            if kind not in ("create", "send"):
                found[CONSUMERS] = GROUP
        return found

    @property
    def server(self) -> str:
        return ":".join(str(self.at[name]) for name in (ADDRESS, PORT) if name in self.at)


class Propagator:
    __slots__ = ("_textmap", "more", "parents")

    def __init__(self) -> None:
        self._textmap: Any = None
        self.parents = self.more = frozenset[str]()

    def refresh(self) -> None:
        textmap: Any = propagate.get_global_textmap()
        if textmap is not self._textmap:
            fields = frozenset[str](textmap.fields)
            self.parents = fields - {"baggage"}  # they carry the context in which a job was created
            self.more = fields - _PARENTS  # they may carry more
            self._textmap = textmap


propagator = Propagator()
_held: Any = getattr(getattr(contexts, "_RUNTIME_CONTEXT", None), "_current_context", None)
# two calls fewer; it may be one to pass on
ambient: Callable[[], Context] = getattr(_held, "get", get_current)


def injected(context: Context | None = None) -> list[str]:
    """Return flat headers that carry *context*, or the current one. There are none if nothing is to
    be carried.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    flat: list[str] = []
    for name, value in carrier.items():
        flat += (name, value)
    return flat


def handed_on() -> list[str]:
    """Return flat headers that carry the current span to another process, if there is one."""
    # an empty context, as nearly always, is known in a third of the calls
    valid = contexts.get_current() and trace.get_current_span().get_span_context().is_valid
    return injected() if valid else []


@contextmanager
def continued(flat: Sequence[str]) -> Generator[None, None, None]:
    """Make the context of another process, from its flat headers, the current one."""
    carrier = dict(zip(flat[::2], flat[1::2], strict=True))
    token = contexts.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        contexts.detach(token)


def carries_context(headers: Mapping[str, str]) -> bool:
    propagator.refresh()
    return bool(headers) and not propagator.parents.isdisjoint(headers)


def context_in(headers: Mapping[str, str]) -> Context | None:
    if not carries_context(headers):
        return None
    found = propagate.extract(headers, NOWHERE)
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def plain(headers: Mapping[str, str]) -> bool:
    """Tell whether a job's headers carry nothing but the context in which it was created."""
    return not headers or propagator.more.isdisjoint(headers)


def baggage(headers: Mapping[str, str], context: Context) -> Context:
    if plain(headers):
        return context
    return trace.set_span_in_context(
        trace.get_current_span(context), propagate.extract(headers, NOWHERE)
    )


def context_of(span: Span, context: Context | None = None) -> Context:
    return trace.set_span_in_context(span, NOWHERE if context is None else context)


def origin(headers: Mapping[str, str]) -> SpanContext | None:
    found = context_in(headers)
    return None if found is None else trace.get_current_span(found).get_span_context()


def earlier(headers: Mapping[str, str]) -> SpanContext | None:
    written = headers.get(ATTEMPT)
    if written is None:
        return None
    found = trace.get_current_span(
        _W3C.extract({"traceparent": written}, NOWHERE)
    ).get_span_context()
    return found if found.is_valid else None


def traceparent(context: SpanContext) -> str:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context_of(trace.NonRecordingSpan(context)))
    return carrier.get("traceparent", "")


def ids(span: SpanContext | None) -> dict[str, str]:
    found = span or trace.get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {"trace_id": format_trace_id(found.trace_id), "span_id": format_span_id(found.span_id)}


def start(
    tracer: Tracer,
    place: Place,
    operation: str,
    context: Context | None = None,
    *,
    kind: Any = None,
    at: Any = None,
) -> Span:
    """Start a span, without making it the current one.

    Its parent is in *context*, by default the current one. It starts now, or *at* a time in ns.
    """
    span = tracer.start_span(
        place.names[operation],
        context,
        kind or OPERATIONS[operation][1],
        place.attributes(operation),
        start_time=at,
    )
    if place.client and span.is_recording():
        span.set_attribute(CLIENT, place.client)
    return span


def about(span: Span, jobs: Sequence[Job], *, batch: bool) -> None:
    """Describe in a recording span which jobs it is about, and link it to where they were created
    and tried before.
    """
    if batch:
        span.set_attribute(BATCH, len(jobs))
    else:
        span.set_attributes({MESSAGE: jobs[0].id, JOB_ATTEMPT: jobs[0].attempt})
    for job in jobs[:LINKS_AT_MOST]:
        own: dict[str, Value] = {MESSAGE: job.id, JOB_ATTEMPT: job.attempt} if batch else {}
        link(span, origin(job.headers), own)
        link(span, earlier(job.headers), {**own, LINK: "earlier attempt"})


def link(
    span: Span, context: SpanContext | None, attributes: Mapping[str, Value] | None = None
) -> None:
    if context is not None:
        span.add_link(context, attributes or None)


def link_to_delivery(written: str) -> None:
    """Link the current span, of a sleep or wait, to the delivery that it ended, *written* as a
    `traceparent`.
    """
    link(trace.get_current_span(), earlier({ATTEMPT: written}), {LINK: "earlier delivery"})


def error_type(error: BaseException) -> str:
    kind = type(error)
    module = ""
    with suppress(BaseException):  # its metaclass is the user's
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return f"{module}{kind.__qualname__}"
    return "Exception"


def failure(error: BaseException | None) -> BaseException | None:
    """Return *error* if it counts as a failure. Suspended runs and verdicts other than `DeadLetter`
    do not."""
    return (
        None
        if isinstance(error, (Verdict, RunSuspended)) and not isinstance(error, DeadLetter)
        else error
    )


def failed(span: Span, error: BaseException) -> None:
    span.set_attribute(ERROR, error_type(error))
    text = ""
    with suppress(BaseException):  # its __str__ is the user's
        text = str(error)
    span.set_status(Status(StatusCode.ERROR, text))
    with suppress(BaseException):
        span.record_exception(error)
