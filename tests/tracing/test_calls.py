"""Spans of calls of a queue's user in both colours, and the context that goes along, with an SDK or
without."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.propagators import textmap
from opentelemetry.trace import StatusCode

import headrace
from headrace import NewJob, Queue
from headrace._telemetry import tracing
from headrace._telemetry.metrics import instruments
from headrace._telemetry.tracing import ProviderCache, tracer
from tests.support.colours import Connect
from tests.support.servers import Server
from tests.tracing.conftest import Spans

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def server(newest: Server) -> Server:
    """Spans do not depend on the server."""
    return newest


@pytest.fixture
def queue(connect: Connect) -> Any:
    return connect()


@pytest.fixture
def client(newest: Server) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=newest.path) as client:
        yield client


@pytest.fixture
def ambient() -> Iterator[str]:
    """Set a foreign context and yield its traceparent."""
    token = context.attach(propagate.extract({"traceparent": PARENT, "baggage": "tenant=t1"}))
    yield PARENT
    context.detach(token)


# -- without an SDK --------------------------------------------------------------------------------


def test_nobody_traces(queue: Any) -> None:
    queue.enqueue(b"a")
    queue.enqueue_many([b"b"], trace_each=True)
    first, second = queue.lease_many(2)
    assert (first.job.headers, second.job.headers) == ({}, {})
    assert not hasattr(first.claim, "trace")


def test_two_modules_know_opentelemetry_and_none_its_sdk() -> None:
    package = Path(headrace.__file__).parent
    texts = {
        str(file.relative_to(package)): file.read_text("utf-8") for file in package.rglob("*.py")
    }
    del texts["console/cli/child.py"]  # the program's, which sets the SDK up where it is told to
    found = {
        name
        for name, text in texts.items()
        if re.search(r"^ *(from|import) opentelemetry", text, re.MULTILINE)
    }
    assert found == {"_telemetry/tracing.py", "_telemetry/metrics.py"}
    assert not [name for name, text in texts.items() if "opentelemetry.sdk" in text]


def test_a_provider_is_found_where_the_api_keeps_it() -> None:
    """If it is elsewhere, the API is asked, which is slower but right."""
    assert tracer._ask is None
    assert instruments._ask is None
    made = ProviderCache(trace.get_tracer_provider, "_ELSEWHERE", "NO_VARIABLE", tracing._tracer)
    assert made() is None


def test_a_context_is_passed_on_all_the_same(queue: Any, ambient: str) -> None:
    queue.enqueue(b"a", headers={"x": "y"})
    queue.enqueue_many([b"b", NewJob(b"c", id="c"), NewJob(b"d", headers={"traceparent": "mine"})])
    headers = [lease.job.headers for lease in queue.lease_many(4)]
    carried = {"traceparent": ambient, "baggage": "tenant=t1"}
    assert headers == [{"x": "y", **carried}, carried, carried, {"traceparent": "mine"}]


def test_baggage_alone_is_passed_on(queue: Any) -> None:
    token = context.attach(baggage.set_baggage("tenant", "ü"))
    queue.enqueue(b"a")
    context.detach(token)
    assert queue.lease().job.headers == {"baggage": "tenant=%C3%BC"}


class Other(textmap.TextMapPropagator):
    """A format of one header."""

    def extract(
        self, carrier: Any, context: Any = None, getter: Any = textmap.default_getter
    ) -> Any:
        found = getter.get(carrier, "x-trace")
        return propagate.extract({"traceparent": found[0]}, context) if found else context

    def inject(
        self, carrier: Any, context: Any = None, setter: Any = textmap.default_setter
    ) -> None:
        span = trace.get_current_span(context).get_span_context()
        setter.set(carrier, "x-trace", f"00-{span.trace_id:032x}-{span.span_id:016x}-01")

    @property
    def fields(self) -> set[str]:
        return {"x-trace"}


def test_the_global_propagator_says_how(
    queue: Any, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard = propagate.get_global_textmap()
    other = Other()
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", other)
    monkeypatch.setattr(propagate, "extract", standard.extract)  # what `Other` reads with
    queue.enqueue(b"")
    (headers,) = [lease.job.headers for lease in queue.lease_many(5)]
    assert headers == {
        "x-trace": tracing.traceparent(spans.one("send q").get_span_context())[:-2] + "01"
    }
    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", W3CBaggagePropagator())
    queue.enqueue(b"")
    assert queue.lease().job.headers == {}


# -- enqueue ---------------------------------------------------------------------------------------


def test_one_job(queue: Any, spans: Spans, ambient: str) -> None:
    receipt = queue.enqueue(b"a", id="a")
    queue.enqueue(b"a", id="a")
    first, second = spans.named("send q")
    assert first.kind is trace.SpanKind.PRODUCER
    assert first.parent is not None
    assert f"{first.parent.trace_id:032x}" == TRACE
    assert first.attributes is not None
    assert first.attributes["messaging.message.id"] == receipt.id
    assert first.attributes["messaging.operation.type"] == "send"
    assert "messaging.consumer.group.name" not in first.attributes
    assert "messaging.batch.message_count" not in first.attributes
    assert second.attributes is not None
    assert second.attributes["headrace.job.added"] is False
    assert queue.lease().job.headers == {
        "traceparent": tracing.traceparent(first.context),
        "baggage": "tenant=t1",
    }


def test_a_context_of_the_user_s_is_left_alone(queue: Any, spans: Spans) -> None:
    queue.enqueue(b"a", headers={"traceparent": PARENT})
    span = spans.one("send q")
    assert span.kind is trace.SpanKind.CLIENT
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE]
    assert queue.lease().job.headers == {"traceparent": PARENT}


def test_many(queue: Any, spans: Spans) -> None:
    queue.enqueue_many(iter([b"a", NewJob(b"b", id="b", headers={"x": "y"}), b"c"]))
    span = spans.one("send q")
    assert span.kind is trace.SpanKind.PRODUCER
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 3
    told = {"traceparent": tracing.traceparent(span.context)}
    assert [lease.job.headers for lease in queue.lease_many(3)] == [told, {"x": "y", **told}, told]


def test_many_with_a_span_each(queue: Any, spans: Spans) -> None:
    queue.enqueue_many([b"a", NewJob(b"b")], trace_each=True)
    assert spans.tree() == [
        "create q PRODUCER",
        "create q PRODUCER",
        "send q CLIENT ~ create q, create q",
    ]
    told = [{"traceparent": tracing.traceparent(span.context)} for span in spans.named("create q")]
    assert [lease.job.headers for lease in queue.lease_many(2)] == told


def test_links_are_bounded(queue: Any, spans: Spans) -> None:
    queue.enqueue_many([b""] * 200, trace_each=True)
    assert len(queue.lease_many(200)) == 200
    assert len(spans.one("send q").links) == len(spans.one("receive q").links) == 128


@pytest.mark.parametrize("call", [lambda q: q.enqueue(1), lambda q: q.enqueue_many([b"", 1])])
def test_what_is_refused_is_no_span_but_what_is_called_with_it(
    connect: Connect, spans: Spans, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(TypeError):
        call(connect())
    assert spans.named("create q") == []
    assert all(span.status.status_code is StatusCode.ERROR for span in spans.all)


def test_what_fails(queue: Any, spans: Spans, client: redis.Redis) -> None:
    client.set(queue.ops.keys.key("jobs"), "no stream")
    for call in (lambda: queue.enqueue(b""), queue.lease, lambda: queue.enqueue_many([b""])):
        with pytest.raises(redis.ResponseError):
            call()
    assert [span.name for span in spans.all] == ["send q", "receive q", "send q"]
    for span in spans.all:
        assert span.attributes is not None
        assert span.attributes["error.type"] == "redis.exceptions.ResponseError"
        assert span.status.status_code is StatusCode.ERROR


# -- lease and settle ------------------------------------------------------------------------------


def test_a_poll_is_a_span_only_if_it_got_something(queue: Any, spans: Spans) -> None:
    assert queue.lease() is None
    assert queue.lease_many(5) == []
    assert spans.all == ()
    queue.enqueue(b"a")
    lease = queue.lease()
    span = spans.one("receive q")
    assert span.kind is trace.SpanKind.CLIENT
    assert span.attributes is not None
    assert span.attributes["messaging.message.id"] == lease.job.id
    assert [link.context.span_id for link in span.links] == [spans.one("send q").context.span_id]
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0 < span.end_time - span.start_time < 20e9


def test_a_poll_that_waits_began_when_it_did(newest: Server, spans: Spans) -> None:
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"", delay=0.2)
        assert queue.lease(block=20) is not None
    span = spans.one("receive q")
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time > 0.1e9


def test_waiting_for_a_result_is_no_span(
    queue: Any, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is looked for, and where redis-py is instrumented, too."""
    for colour in ("aio", "sync"):
        monkeypatch.setattr(f"headrace._net.{colour}.waiters.POLL_EVERY_S", 0.02)
    instrumentor = RedisInstrumentor()
    instrumentor.instrument(tracer_provider=spans.provider)
    try:
        receipt = queue.enqueue(b"x")
        spans.clear()
        for wait in (receipt.result, lambda timeout: queue.result(receipt.id, timeout=timeout)):
            with pytest.raises(TimeoutError):
                wait(timeout=0.3)
        assert queue.results([receipt.id], timeout=0.3) == {}
        assert queue.find(receipt.id).state == "waiting"
        assert spans.tree() == []
    finally:
        instrumentor.uninstrument()


@pytest.mark.parametrize(
    ("name", "settle"),
    [
        ("complete", lambda lease: lease.complete()),
        ("release", lambda lease: lease.release()),
        ("retry", lambda lease: lease.retry(60)),
        ("dead_letter", lambda lease: lease.dead_letter("no")),
    ],
)
def test_settlements(queue: Any, spans: Spans, name: str, settle: Callable[[Any], bool]) -> None:
    queue.enqueue(b"a")
    lease = queue.lease()
    assert settle(lease)
    assert not settle(lease)
    settled = f"{name} q CLIENT ~ send q"
    assert spans.tree() == sorted(
        [settled, settled, "receive q CLIENT ~ send q", "send q PRODUCER"]
    )
    first, second = (dict(span.attributes or {}) for span in spans.named(f"{name} q"))
    assert (first["messaging.operation.type"], first["messaging.message.id"]) == (
        "settle",
        lease.job.id,
    )
    assert ("headrace.lease.lost" in first, second["headrace.lease.lost"]) == (False, 1)


def test_many_settlements(queue: Any, spans: Spans) -> None:
    queue.enqueue_many([b"a", b"b"])
    assert queue.complete_many(queue.lease_many(2)) == [True, True]
    assert queue.complete_many([]) == []
    span = spans.one("complete q")
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 2
    assert len(span.links) == 2


def test_follow_ups_are_joined(connect: Connect, spans: Spans) -> None:
    first, second = connect("g/a"), connect("g/b")
    first.enqueue(b"a")
    lease = first.lease()
    mine = NewJob(b"c", headers={"traceparent": PARENT})
    assert lease.complete(then=[NewJob(b"b", queue="g/b", headers={"x": "y"}), mine])
    assert spans.tree() == [
        "complete g/a CLIENT ~ send g/a",
        "create g/b PRODUCER < complete g/a",
        "receive g/a CLIENT ~ send g/a",
        "send g/a PRODUCER",
    ]
    told = tracing.traceparent(spans.one("create g/b").context)
    assert second.lease().job.headers == {"x": "y", "traceparent": told}
    assert first.lease().job.headers == {"traceparent": PARENT}


def test_an_attempt_without_a_worker_is_linked_to_as_well(queue: Any, spans: Spans) -> None:
    queue.enqueue(b"a")
    assert queue.lease().retry()
    assert queue.lease().job.attempt == 2
    first, second = spans.named("receive q")
    assert [link.context.span_id for link in second.links] == [
        spans.one("send q").context.span_id,
        first.context.span_id,
    ]


def test_the_context_survives_everything(connect: Connect, spans: Spans) -> None:
    queue, other = connect("g/a"), connect("g/b")
    queue.enqueue(b"a", delay=0.01)
    origin = {"traceparent": tracing.traceparent(spans.one("send g/a").context)}

    def headers(lease: Any) -> dict[str, str]:
        return {
            name: value
            for name, value in lease.job.headers.items()
            if name not in {"headrace-attempt", "headrace-from"}
        }

    lease = queue.lease(block=20)
    assert (headers(lease), lease.release()) == (origin, True)
    lease = queue.lease()
    assert (headers(lease), lease.retry(0.01)) == (origin, True)
    lease = queue.lease(block=20)
    assert (headers(lease), lease.dead_letter("no")) == (origin, True)
    assert (queue.admin.redrive(), queue.admin.move("g/b")) == (1, 1)
    assert headers(other.lease()) == origin
