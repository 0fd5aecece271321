"""Child processes of isolated handlers are counted, and their spans are parts of their jobs'."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Queue, Retry, Worker
from headrace.isolation import Isolation
from tests.isolation import app
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server
from tests.tracing.conftest import Points, Spans


@pytest.mark.slow
def test_deaths_and_replacements_are_counted(newest: Server, queue: Queue, points: Points) -> None:
    worker = Worker(newest.url)
    limits = Isolation(processes=1, recycle_jobs=3)
    worker.handler("q", isolate=limits, deadline=0.5, retry=Retry(attempts=1))(app.misbehave)
    with worker:
        queue.enqueue_many([b"exits", b"loops_in_c", *[b"closes"] * 8])
        until(lambda: queue.counts().completed == 8 and queue.counts().dead == 2)
        until(lambda: points.value("headrace.children.recycled") >= 1)
    killed = {
        point.attributes["headrace.reason"]: point.value
        for point in points.read("headrace.children.killed")
    }
    assert killed == {"died": 1, "deadline": 1}
    assert points.value("headrace.children.start") >= 3


def test_the_trace_goes_on_in_a_child(newest: Server, queue: Queue, spans: Spans) -> None:
    worker = Worker(newest.url)
    worker.handler("q", isolate=Isolation(processes=1))(app.logs)
    with worker:
        trace = queue.enqueue(b"").result(timeout=PATIENCE)
    (run,) = spans.named("process q")
    assert trace == format(run.context.trace_id, "032x").encode()


@pytest.mark.slow
def test_a_child_of_a_run_links_to_the_run_in_a_child(
    newest: Server, queue: Queue, spans: Spans
) -> None:
    worker = Worker(newest.url)
    worker.handler("q", isolate=Isolation(processes=1))(app.runs)
    worker.handler("q/pack")(lambda _: None)
    with worker:
        queue.enqueue(b"")
        assert queue.admin.drain(20)
    first, _ = spans.named("process q")
    (child,) = spans.named("process q/pack")
    assert [link.context.span_id for link in child.links] == [first.context.span_id]


@pytest.mark.slow
def test_steps_of_a_child_have_spans(
    newest: Server, queue: Queue, spans: Spans, tmp_path: Path
) -> None:
    """They are made here, with the child's times, and a replay says so."""
    worker = Worker(newest.url)
    worker.handler("q", isolate=Isolation(processes=1), retry=Retry(attempts=2, wait=0))(app.tells)
    with worker:
        queue.enqueue(str(tmp_path / "noted").encode())
        until(lambda: queue.counts().dead == 1)
    runs = {span.context.span_id for span in spans.named("process q")}
    steps = spans.named("step note")
    first, *rest = [(span.attributes or {}).get("headrace.step.replayed") for span in steps]
    assert first is None
    assert set(rest) == {True}
    assert {span.parent.span_id for span in steps if span.parent is not None} <= runs
    waits = spans.named("wait later")
    assert [event.name for event in waits[-1].events] == ["exception"]
