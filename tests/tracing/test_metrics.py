"""Metric points of each path: names, units, attributes, numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace import BatchError, DeadLetter, Job, Queue, Retry
from headrace._telemetry.metrics import SECONDS, Readings, instruments
from headrace._telemetry.tracing import Place
from headrace._telemetry.worker import WorkerTelemetry
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.tracing.conftest import Points

Work = Callable[..., Running]
CONVENTIONS = {
    "messaging.client.sent.messages": "{message}",
    "messaging.client.consumed.messages": "{message}",
    "messaging.client.operation.duration": "s",
    "messaging.process.duration": "s",
}


def test_a_worker(work: Work, queue: Queue, points: Points) -> None:
    worker = work()

    @worker.handler("q", retry=Retry(attempts=2, wait=0))
    def body(job: Job) -> None:
        if job.payload == b"bad":
            raise ValueError

    queue.enqueue(b"good")
    queue.enqueue_many([b"bad", b"good", b"good"])
    with worker:
        assert queue.admin.drain(20)
    assert CONVENTIONS.items() <= points.names().items()
    assert points.value("messaging.client.sent.messages") == 4
    assert points.value("messaging.client.consumed.messages") == 5
    assert points.value("messaging.process.duration") == 5
    assert points.value("messaging.process.duration", error_type="ValueError") == 2
    assert points.value("headrace.job.wait") == 4  # first deliveries
    assert points.value("headrace.jobs.retried") == points.value("headrace.jobs.dead_lettered") == 1
    attempts = points.read("headrace.job.attempts")
    assert (sum(point.count for point in attempts), sum(point.sum for point in attempts)) == (4, 5)
    (sent,) = points.read("messaging.client.operation.duration", operation_name="send")
    assert (sent.count, sent.explicit_bounds) == (2, SECONDS)
    assert points.value("headrace.batch.size", operation_name="send") == 1
    for operation, kind in (("receive", "receive"), ("complete", "settle"), ("retry", "settle")):
        assert points.value("messaging.client.operation.duration", operation_name=operation, operation_type=kind) > 0
    (point,) = points.read("messaging.client.consumed.messages")
    assert set(point.attributes) == {
        "messaging.system", "messaging.destination.name", "messaging.operation.name", "messaging.operation.type",
        "messaging.consumer.group.name", "server.address",
    }  # fmt: skip


def test_what_is_in_a_queue(work: Work, queue: Queue, points: Points) -> None:
    gate: list[int] = []
    worker, other = work(heartbeat=0.05, timeout=5.0), work(heartbeat=0.05, timeout=5.0)

    def body(job: Job) -> Any:
        while not gate:
            yield 0.01

    for one in (worker, other):
        one.handler("q", concurrency=1)(body)
    queue.enqueue_many([b"", b"", b"", b"", b""])
    queue.enqueue(b"", delay=600)

    def states() -> dict[str, int]:
        read = points.read("headrace.queue.jobs")
        assert len({point.attributes["server.address"] for point in read}) <= 1
        return {point.attributes["headrace.job.state"]: point.value for point in read}

    with worker, other:
        expected = {"waiting": 3, "parked": 0, "leased": 2, "delayed": 1, "blocked": 0, "dead": 0}
        until(lambda: states() == expected, str(expected))
        until(lambda: points.value("headrace.queue.oldest") > 0.3)
        gate.append(1)
        until(lambda: states().get("leased") == 0 and points.value("headrace.queue.oldest") == 0)


def test_a_queue_is_read_once_for_all_workers_of_a_process(work: Work, points: Points) -> None:
    workers = [work() for _ in range(3)]
    for worker in workers:
        worker.handler("q")(lambda job: None)
        worker.handler("other")(lambda job: None)
    consumers = [consumer for worker in workers for consumer in worker.worker._lifecycle().consumers]
    place, readings = Place("q", {"host": "h", "port": 1}), Readings()
    watches = [WorkerTelemetry(consumer, {"host": "h", "port": 1}, "poll") for consumer in consumers]
    assert len({telemetry._key for telemetry in watches}) == 2
    assert [readings.due(telemetry._key, place, 1000.0) for telemetry in watches] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert readings.due(
        WorkerTelemetry(consumers[0], {"host": "h", "port": 2}, "poll")._key, place, 1000.0
    )  # another server's


def test_results_that_were_dropped(work: Work, queue: Queue, points: Points) -> None:
    worker = work()

    @worker.handler("q")
    def body(job: Job) -> Any:
        return b"kept" if job.payload else {"no": "bytes"}

    queue.enqueue_many([b"", b"x", b""])
    with worker:
        assert queue.admin.drain(20)
    assert points.value("headrace.results.dropped") == 2


def test_a_batch(work: Work, queue: Queue, points: Points) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=3, max_wait=5)
    def body(jobs: Sequence[Job]) -> None:
        raise BatchError({jobs[0].id: DeadLetter("no")})

    queue.enqueue_many([b"", b"", b""])
    with worker:
        until(lambda: queue.counts().dead == 1)
    (sizes,) = points.read("headrace.batch.size", operation_name="process")
    assert (sizes.count, sizes.sum) == (1, 3)
    assert points.value("headrace.jobs.dead_lettered") == 1


def test_reclaimed_and_lost(work: Work, queue: Queue, points: Points) -> None:
    queue.enqueue(b"a")
    lease = queue.lease(duration=0.05)
    assert lease is not None
    worker = work(heartbeat=0.05, timeout=1.0)
    worker.handler("q")(lambda job: None)
    with worker:
        until(lambda: points.value("headrace.jobs.reclaimed") == 1)
        assert queue.admin.drain(20)
    assert not lease.release()
    assert points.value("headrace.leases.lost") == 1


def test_reconnects(points: Points, newest: Server) -> None:
    with Proxy(newest.path) as proxy, Queue("q", url=proxy.url) as queue:
        queue.enqueue(b"a")
        proxy.cut("replies", 0)
        queue.enqueue(b"b")
    assert points.value("headrace.reconnects") >= 1


def test_nobody_measures(queue: Queue) -> None:
    assert instruments() is None
    queue.enqueue(b"a")
