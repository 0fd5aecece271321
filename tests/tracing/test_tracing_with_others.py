"""Tracing beside the instrumentation of redis-py, with workers that die, and with contexts that
outlive their worker.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from opentelemetry.instrumentation.redis import RedisInstrumentor

from headrace import Job, Queue, Worker
from tests.support.engines import Running
from tests.support.processes import Processes
from tests.support.servers import Server
from tests.tracing.conftest import Spans

Work = Callable[..., Running]


@pytest.fixture
def instrumented(spans: Spans, queue: Queue) -> Iterator[None]:
    """Instrument redis-py as its users do."""
    instrumentor = RedisInstrumentor()
    instrumentor.instrument(tracer_provider=spans.provider)
    yield
    instrumentor.uninstrument()


@pytest.mark.usefixtures("instrumented")
def test_commands_of_the_user_nest_and_ours_make_no_noise(
    work: Work, queue: Queue, spans: Spans, newest: Server
) -> None:
    client = redis.Redis(unix_socket_path=newest.path)
    worker = work(heartbeat=0.05, timeout=0.5)
    worker.handler("q")(lambda job: client.set("seen", job.id) and None)
    with worker:
        queue.enqueue(b"")
        spans.wait(1, "process q")
        assert queue.admin.drain(20.0)  # while it polls and beats
    lease = queue.lease()
    assert lease is None
    client.close()
    assert spans.tree() == [
        "SET CLIENT < process q",
        "process q CONSUMER < receive q ~ send q",
        "receive q CLIENT ~ send q",
        "send q PRODUCER",
    ]


@pytest.mark.usefixtures("instrumented")
def test_an_operation_in_a_pipeline_of_the_user_is_one_span_of_theirs(
    queue: Queue, spans: Spans, newest: Server
) -> None:
    with redis.Redis(unix_socket_path=newest.path) as client, client.pipeline() as pipe:
        pipe.execute_command(*queue.ops.enqueue([queue.ops.item(b"x")]).wire())
        pipe.execute()
    assert len(spans.all) == 1
    assert spans.all[0].instrumentation_scope is not None
    assert spans.all[0].instrumentation_scope.name == "opentelemetry.instrumentation.redis"


@pytest.fixture
def processes(newest: Server, tmp_path: Path) -> Iterator[Processes]:
    with Processes("threads", newest.url, tmp_path) as processes:
        yield processes


@pytest.mark.slow
def test_a_job_of_a_killed_worker(
    queue: Queue, spans: Spans, processes: Processes, newest: Server
) -> None:
    """The span has the creation of the job and says that it is the second attempt. The place of the
    first is unknown.
    """
    queue.enqueue(b"hold")
    victim = processes.start("victim", concurrency=1)
    processes.await_notes(1, "began")
    os.kill(victim.pid, signal.SIGKILL)
    worker = Worker(url=newest.url, heartbeat=0.3, timeout=1.0)

    @worker.handler("q")
    def body(job: Job) -> None:
        assert job.attempt == 2

    with worker:
        spans.wait(1, "process q")
    assert spans.tree() == [
        "process q CONSUMER < receive q ~ send q",
        "receive q CLIENT ~ send q",
        "send q PRODUCER",
    ]
    attributes = spans.one("process q").attributes
    assert attributes is not None
    assert attributes["headrace.job.attempt"] == 2
