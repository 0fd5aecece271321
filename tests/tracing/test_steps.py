"""Spans, metrics and log events of a job whose handler takes steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Job, NewJob, Queue
from headrace._telemetry.tracing import traceparent
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server
from tests.tracing.conftest import Points, Spans

Work = Callable[..., Running]


def handled(running: Running) -> None:
    """Register a handler that takes a step, sleeps, and waits for the signal `approved`."""

    def body(job: Job) -> None:
        job.step("charge", lambda: 7)
        job.sleep("cool", 0.01)
        job.wait_for("approved")

    async def coroutine(job: Job) -> None:
        await job.step("charge", lambda: 7)
        await job.sleep("cool", 0.01)
        await job.wait_for("approved")

    running.worker.handler("q")(coroutine if running.kind == "tasks" else body)


def run_to_its_end(running: Running, queue: Queue) -> None:
    with running:
        until(lambda: queue.counts().blocked == 1)
        time.sleep(0.002)  # a wait that ends in its first millisecond is not told from none
        assert queue.signal("a", "approved") == "woke"
        assert queue.admin.drain(20)


def test_the_spans_of_a_run(work: Work, queue: Queue, spans: Spans) -> None:
    """Each step is a child of its delivery. A sleep or wait that is over links to the delivery that
    it ended."""
    handled(worker := work())
    queue.enqueue(b"", id="a")
    run_to_its_end(worker, queue)
    (first, second, third) = (span.context.span_id for span in spans.wait(3, "process q"))
    parents = {
        span.name: [s.parent.span_id for s in spans.named(span.name)]
        for span in spans.all
        if span.parent
    }
    assert parents["step charge"] == [first, second, third]
    assert parents["sleep cool"] == [first, second, third]
    assert parents["wait approved"] == [second, third]
    replayed = [
        (span.attributes or {}).get("headrace.step.replayed") for span in spans.named("step charge")
    ]
    assert replayed == [None, True, True]
    verdicts = [
        (span.attributes or {}).get("headrace.verdict") for span in spans.named("process q")
    ]
    assert verdicts == ["RunSuspended", "RunSuspended", None]
    links = {
        span.name: [link.context.span_id for link in span.links]
        for span in spans.all
        if span.links and span.name.startswith(("sleep", "wait"))
    }
    assert links == {"sleep cool": [first], "wait approved": [second]}
    assert {span.status.status_code.name for span in spans.all} == {"UNSET"}


def test_a_child_links_to_the_run_that_started_it(work: Work, queue: Queue, spans: Spans) -> None:
    def body(job: Job) -> None:
        job.run(("q/pack", b""))

    async def coroutine(job: Job) -> None:
        await job.run(("q/pack", b""))

    running = work()
    running.worker.handler("q")(coroutine if running.kind == "tasks" else body)
    running.worker.handler("q/pack")(lambda _: None)
    with running:
        queue.enqueue(b"")
        assert queue.admin.drain(20)
    first, _ = spans.wait(2, "child pack")
    (child,) = spans.wait(1, "process q/pack")
    assert [link.context.span_id for link in child.links] == [first.context.span_id]


def test_a_lease_by_hand_passes_its_context_on(newest: Server, queue: Queue, spans: Spans) -> None:
    queue.enqueue(b"")
    lease = queue.lease()
    own = {"traceparent": "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    lease.job.start(("q/pack", b""))
    lease.job.start(NewJob(b"", queue="q/pack", headers=own))
    made, given = spans.named("child pack")[0], own["traceparent"]
    with Queue("q/pack", url=newest.url) as packs:
        parents = [one.job.headers["traceparent"] for one in packs.admin.waiting()]
    assert parents == [traceparent(made.context), given]


def test_metrics(work: Work, queue: Queue, points: Points) -> None:
    handled(worker := work(heartbeat=0.05, timeout=5.0))
    queue.enqueue(b"", id="a")
    with worker:
        until(lambda: points.value("headrace.queue.longest_wait") > 0.3)
        assert queue.signal("a", "approved") == "woke"
        assert queue.admin.drain(20)
        until(
            lambda: (
                points.read("headrace.queue.longest_wait")
                and points.value("headrace.queue.longest_wait") == 0
            )
        )
    assert points.value("headrace.steps.recorded") == 1
    assert points.value("headrace.runs.suspended") == 2
    (point,) = points.read("headrace.runs.suspended")
    assert set(point.attributes) == {
        "messaging.system",
        "messaging.destination.name",
        "server.address",
    }


def test_log_events(work: Work, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """A run may go on in another thread before the first delivery has reported its suspension."""
    caplog.set_level(logging.DEBUG, "headrace")
    handled(worker := work())
    queue.enqueue(b"", id="a")
    assert queue.signal("a", "another") == "kept"
    run_to_its_end(worker, queue)
    records: list[Any] = [record for record in caplog.records if getattr(record, "step", "")]
    events = [(record.event, record.step, record.job_id) for record in records]
    assert events[:2] == [("signal_kept", "another", "a"), ("step_done", "charge", "a")]
    assert sorted(events[2:]) == [
        ("run_resumed", "approved", "a"),
        ("run_resumed", "cool", "a"),
        ("run_suspended", "approved", "a"),
        ("run_suspended", "cool", "a"),
    ]


def test_a_lease_counts_and_logs_as_well(
    queue: Queue, points: Points, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "headrace")
    queue.enqueue(b"")
    lease = queue.lease()
    assert lease.job.step("charge", lambda: 7) == 7
    assert lease.complete()
    assert points.value("headrace.steps.recorded") == 1
    assert [record.getMessage() for record in caplog.records if getattr(record, "step", "")] == [
        f"step_done: job {lease.job.id} of queue 'q': step 'charge' is recorded"
    ]
