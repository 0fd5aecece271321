"""Whole trees of spans for each way of a job, on threads, on tasks, and on threads beside tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import StatusCode

from headrace import (
    BatchError,
    DeadLetter,
    FanOut,
    Flow,
    Job,
    NewJob,
    Queue,
    Release,
    Retry,
    RetryLater,
)
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server
from tests.tracing.conftest import Spans

Work = Callable[..., Running]


def emptied(queue: Queue) -> None:
    until(lambda: queue.counts().present == queue.counts().dead, "the queue is not drained")


def test_success(work: Work, queue: Queue, spans: Spans) -> None:
    worker = work(name="w")
    inside: list[Any] = []
    worker.handler("q")(lambda job: inside.append(trace.get_current_span().get_span_context()))
    receipt = queue.enqueue(b"secret")
    with worker:
        spans.wait(1, "process q")
    assert spans.tree() == [
        "process q CONSUMER < receive q ~ send q",
        "receive q CLIENT ~ send q",
        "send q PRODUCER",
    ]
    process = spans.one("process q")
    assert inside == [process.context]
    assert process.status.status_code is StatusCode.UNSET
    attributes = dict(process.attributes or {})
    assert str(attributes.pop("messaging.client.id")).startswith("w.")
    assert str(attributes.pop("server.address")).endswith("/s")
    assert attributes == {
        "messaging.system": "redis",
        "messaging.destination.name": "q",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "workers",
        "messaging.message.id": receipt.id,
        "headrace.job.attempt": 1,
    }
    scope = process.instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.schema_url) == ("headrace", "https://opentelemetry.io/schemas/1.44.0")
    assert not [span.name for span in spans.all if "secret" in span.to_json()]


def test_a_retry_links_to_the_attempt_before(work: Work, queue: Queue, spans: Spans) -> None:
    worker = work()

    @worker.handler("q", retry=Retry(wait=0))
    def body(job: Job) -> None:
        if job.attempt < 3:
            raise ValueError("no")

    queue.enqueue(b"")
    with worker:
        spans.wait(3, "process q")
    first, second, third = spans.named("process q")
    for failed in (first, second):
        assert failed.attributes is not None
        assert failed.attributes["error.type"] == "ValueError"
        assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "no")
        assert [event.name for event in failed.events] == ["exception"]
    assert third.status.status_code is StatusCode.UNSET
    for span, earlier, attempt in ((second, first, 2), (third, second, 3)):
        assert span.attributes is not None
        assert span.attributes["headrace.job.attempt"] == attempt
        sent, before = span.links
        assert sent.context.span_id == spans.one("send q").context.span_id
        assert before.context.span_id == earlier.context.span_id
        assert before.attributes == {"headrace.link": "earlier attempt"}


def test_a_delay_a_dead_letter_and_a_redrive_keep_the_context(
    work: Work, queue: Queue, spans: Spans
) -> None:
    worker = work()

    redriven: list[int] = []

    @worker.handler("q", retry=Retry(attempts=2, wait=0.02))
    def body(job: Job) -> None:
        if not redriven:
            raise KeyError("k")

    queue.enqueue(b"", delay=0.01)
    with worker:
        until(lambda: queue.counts().dead == 1)
        redriven.append(1)
        assert queue.admin.redrive() == 1
        spans.wait(3, "process q")
        emptied(queue)
    origins = {span.links[0].context.span_id for span in spans.named("process q")}
    assert origins == {spans.one("send q").context.span_id}
    (before,) = spans.named("process q")[2].links[1:]
    assert before.context.span_id == spans.named("process q")[1].context.span_id  # it died of that


@pytest.mark.parametrize(
    "verdict", [RetryLater(0.0), Release(), DeadLetter("never")], ids=lambda v: type(v).__name__
)
@pytest.mark.parametrize("returned", [False, True])
def test_a_verdict_is_no_error_unless_it_is_death(
    work: Work, queue: Queue, spans: Spans, verdict: Exception, *, returned: bool
) -> None:
    worker = work()
    seen: list[int] = []

    @worker.handler("q")
    def body(job: Job) -> object:
        seen.append(job.attempt)
        if len(seen) > 1:
            return None
        if returned:
            return verdict
        raise verdict

    queue.enqueue(b"")
    with worker:
        spans.wait(1, "process q")
        emptied(queue)
    span = spans.named("process q")[0]
    assert span.attributes is not None
    assert span.attributes["headrace.verdict"] == type(verdict).__name__
    dead = isinstance(verdict, DeadLetter)
    assert span.attributes.get("error.type") == ("headrace.DeadLetter" if dead else None)
    assert span.status.status_code is (StatusCode.ERROR if dead else StatusCode.UNSET)


def test_a_batch_is_one_span_with_a_link_to_each(work: Work, queue: Queue, spans: Spans) -> None:
    worker = work()
    failed: list[str] = []

    @worker.batch_handler("q", max_size=3, max_wait=5)
    def body(jobs: Sequence[Job]) -> None:
        if not failed:
            failed.append(jobs[1].id)
            raise BatchError({jobs[1].id: Release()})

    receipts = [queue.enqueue(b""), *queue.enqueue_many([b"", NewJob(b"", id="b")])]
    with worker:
        spans.wait(1, "process q")
    batch = spans.named("process q")[0]
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in batch.attributes
    first, many = spans.named("send q")
    assert [link.context.span_id for link in batch.links] == [
        s.context.span_id for s in (first, many, many)
    ]
    assert [link.attributes for link in batch.links] == [
        {"messaging.message.id": receipt.id, "headrace.job.attempt": 1} for receipt in receipts
    ]
    assert batch.attributes["error.type"] == "headrace.BatchError"


def test_the_message_as_parent(work: Work, queue: Queue, spans: Spans) -> None:
    worker = work(trace_parent="message")
    worker.handler("q")(lambda job: None)
    queue.enqueue(b"")
    queue.enqueue(b"", headers={"traceparent": "nonsense"})
    with worker:
        spans.wait(2, "process q")
    assert spans.tree() == [
        "process q CONSUMER < receive q",  # from nowhere
        "process q CONSUMER < send q ~ receive q, send q",
        "receive q CLIENT ~ send q",
        "send q CLIENT",
        "send q PRODUCER",
    ]


def test_what_a_handler_does_is_inside_and_baggage_goes_along(
    work: Work, queue: Queue, spans: Spans
) -> None:
    worker = work()
    seen: list[object] = []
    with Queue("next", url=queue._address.target) as following:
        worker.handler("next")(lambda job: seen.append(baggage.get_baggage("tenant")))
        worker.handler("q")(lambda job: following.enqueue(job.payload) and None)
        queue.enqueue(b"", headers={"baggage": "tenant=t1", "x": "y"})
        with worker:
            spans.wait(1, "process next")
    assert seen == ["t1"]
    assert spans.tree() == [
        "process next CONSUMER < receive next ~ send next",
        "process q CONSUMER < receive q ~ send q",
        "receive next CLIENT ~ send next",
        "receive q CLIENT ~ send q",
        "send next PRODUCER < process q",
        "send q PRODUCER",
    ]


def test_children_and_stages_of_a_flow_are_joined(work: Work, newest: Server, spans: Spans) -> None:
    flow = Flow("shop", url=newest.url)
    flow.stage("pick", next="bill", children="pack")
    flow.stage("pack")
    flow.stage("bill")
    worker = work()
    with flow:
        registered = {
            "pick": lambda job: FanOut([b"1", NewJob(b"2", id="n")]),
            "pack": lambda job: None,
            "bill": lambda job: b"done",
        }
        for stage, body in registered.items():
            flow.ops.stages[stage].functions.append(worker._adapt(body))
        worker.worker.flow(flow)
        run = flow.start(b"order").id
        with worker:
            assert flow.result(run, 20.0) == b"done"
            spans.wait(1, "process shop/bill")
    lines = [line for line in spans.tree() if line.startswith(("process", "send"))]
    assert lines == [
        "process shop/bill CONSUMER < receive shop/bill ~ send shop/pick",
        "process shop/pack CONSUMER < receive shop/pack ~ process shop/pick",
        "process shop/pack CONSUMER < receive shop/pack ~ process shop/pick",
        "process shop/pick CONSUMER < receive shop/pick ~ send shop/pick",
        "send shop/pick PRODUCER",
    ]


class Broken(SpanProcessor):
    """Raises wherever it is asked."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if not span.name.startswith("send"):
            raise OSError("start")

    def on_end(self, span: Any) -> None:
        if not span.name.startswith("send"):
            raise OSError("end")


class Mean(Exception):
    """An exception that can't be looked at."""

    def __str__(self) -> str:
        raise GeneratorExit

    __repr__ = __str__


def test_an_exception_that_cannot_be_looked_at_ends_its_span(
    work: Work, queue: Queue, spans: Spans
) -> None:
    worker = work()

    @worker.handler("q", retry=Retry(attempts=1))
    def body(job: Job) -> None:
        raise Mean

    queue.enqueue(
        b"x",
        headers={"traceparent": "00-no-no-no", "headrace-attempt": "\ud7ff", "baggage": "=;,=="},
    )
    with worker:
        (span,) = spans.wait(1, "process q")
        until(lambda: queue.counts().dead)
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert str(span.attributes["error.type"]).endswith("Mean")


def test_what_traces_fails_no_job(
    work: Work, queue: Queue, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    worker = work()
    spans.provider.add_span_processor(Broken())
    ran: list[str] = []
    worker.handler("q")(lambda job: ran.append(job.id))
    receipt = queue.enqueue(b"")
    with worker:
        assert queue.admin.drain(20)
    assert (ran, queue.counts().completed) == ([receipt.id], 1)
    assert "tracing_failed" in {getattr(record, "event", "") for record in caplog.records}


class Counting(Sampler):
    """A sampler that samples nothing and records its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any
    ) -> SamplingResult:
        self.asked.append(name)
        return ALWAYS_OFF.should_sample(parent_context, trace_id, name)

    def get_description(self) -> str:
        return "Counting"


class TestNotSampled:
    @pytest.fixture
    def sampler(self) -> Counting:
        return Counting()

    def test_nothing_is_built(
        self, work: Work, queue: Queue, spans: Spans, sampler: Counting
    ) -> None:
        worker = work()
        inside: list[tuple[bool, bool]] = []

        @worker.handler("q", concurrency=10)
        def body(job: Job) -> None:
            context = trace.get_current_span().get_span_context()
            inside.append((context.is_valid, context.trace_flags.sampled))
            assert job.headers["traceparent"][-1] in "02"  # not sampled: so its consumers know

        queue.enqueue_many([b""] * 5)
        with worker:
            until(lambda: len(inside) == 5)
        assert spans.all == ()
        assert inside == [(True, False)] * 5  # what handlers call is not sampled either
        # a poll's decision is that of all it brought
        assert set(sampler.asked) == {"send q", "receive q"}


class TestSomeSampled:
    @pytest.fixture
    def sampler(self) -> Sampler:
        return TraceIdRatioBased(0.5)

    def test_a_trace_is_whole_or_not_there(self, work: Work, queue: Queue, spans: Spans) -> None:
        worker = work()
        ran: list[str] = []
        worker.handler("q", concurrency=1)(lambda job: ran.append(job.id))
        with worker:
            for number in range(30):
                queue.enqueue(b"")
                until(lambda number=number: len(ran) > number)
        polls = {span.context.span_id for span in spans.named("receive q")}
        assert {span.parent and span.parent.span_id for span in spans.named("process q")} == polls
        assert 0 < len(polls) < 30
