"""Metric points of each path with their names, units, attributes and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace import BatchError, DeadLetter, FanOut, Flow, Job, NewJob, Queue, Retry
from headrace._telemetry.metrics import SECONDS, Readings, instruments
from headrace._telemetry.tracing import Place
from headrace._telemetry.worker import WorkerTelemetry
from headrace.codecs import JSONCodec
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
        assert (
            points.value(
                "messaging.client.operation.duration", operation_name=operation, operation_type=kind
            )
            > 0
        )
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


def test_the_shares_of_the_busiest_values(work: Work, queue: Queue, points: Points) -> None:
    """Ten values have their own labels, and all others share one. Each of twelve has a job among
    the first 24."""
    gate: list[int] = []
    worker = work(heartbeat=0.05, timeout=5.0)

    def body(job: Job) -> Any:
        while not gate:
            yield 0.01

    worker.handler("q", concurrency=30, fair="tenant")(body)
    queue.enqueue_many([NewJob(b"x", headers={"tenant": f"{at % 12}"}) for at in range(100)])

    def leased() -> dict[str, int]:
        read = points.read("headrace.share.jobs", job_state="leased")
        return {point.attributes["headrace.share.value"]: point.value for point in read}

    with worker:
        try:
            until(lambda: sum(leased().values()) >= 30)
            assert len(leased()) == 11
            assert leased()["(others)"] > 0
            assert points.read("headrace.share.dwell")
        finally:
            gate.append(1)


def test_a_queue_is_read_once_for_all_workers_of_a_process(work: Work, points: Points) -> None:
    workers = [work() for _ in range(3)]
    for worker in workers:
        worker.handler("q")(lambda job: None)
        worker.handler("other")(lambda job: None)
    consumers = [
        consumer
        for worker in workers
        for consumer in worker.worker._lifecycle([*worker.worker.handlers.values()]).consumers
    ]
    place, readings = Place("q", {"host": "h", "port": 1}), Readings()
    watches = [
        WorkerTelemetry(consumer, {"host": "h", "port": 1}, "poll") for consumer in consumers
    ]
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


def test_each_way_to_the_dead_letters(
    work: Work, newest: Server, points: Points, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is logged and counted once, with kind and reason, wherever it is decided."""
    flow = Flow("shop", url=newest.url)
    stages = {"pick": flow.stage("pick", children=["pack"]), "pack": flow.stage("pack")}
    kind = {"kind": "k"}
    with (
        flow,
        Queue("shop/pick", url=newest.url) as picks,
        Queue("shop/pack", url=newest.url) as packs,
    ):
        with Queue("q", url=newest.url, max_attempts=1, lease=0.05) as queue:
            queue.enqueue_many(
                [NewJob(b"", id=name, headers=kind) for name in ("settled", "retried", "worn out")]
            )
            settled, retried, _ = queue.lease_many(3)
            assert queue.dead_letter(settled, "by hand")
            assert queue.retry(retried, reason="by hand, at last")
            until(lambda: not queue.lease() and queue.counts().dead == 3)
            queue.enqueue(NewJob(b"{", id="a", headers=kind))
            with Queue("q", url=newest.url, codec=JSONCodec()) as decoding:
                assert decoding.lease() is None
        flow.start(b"", id="o", headers=kind)
        assert flow.complete(picks.lease(), FanOut([NewJob(b"", headers=kind)], stage="pack"))
        assert packs.dead_letter(packs.lease(), "a child")  # type: ignore[arg-type]
        assert flow.state("o").state == "failed"  # type: ignore[union-attr]
        worker = work(heartbeat=0.05, timeout=1.0)

        @worker.handler("worker", codec=JSONCodec(), retry=Retry(attempts=2, wait=0))
        def body(job: Job[Any]) -> None:
            raise DeadLetter("a verdict") if job.payload == 1 else ValueError(job.payload)

        def pick(_job: Job) -> Any:
            return FanOut([NewJob(b"", headers=kind)], stage="pack")

        def pack(_job: Job) -> None:
            raise DeadLetter("a worker's child")

        for stage in (pick, pack):
            stages[stage.__name__](worker._adapt(stage))
        worker.worker.flow(flow)
        with Queue("worker", url=newest.url) as queue:
            queue.enqueue_many([NewJob(text, headers=kind) for text in (b"1", b"2", b"{")])
            flow.start(b"", id="p", headers=kind)
            with worker:
                until(lambda: queue.counts().dead == 3 and flow.counts()["pick"].dead == 2)
            letters = [*queue.admin.dead(), *picks.admin.dead(), *packs.admin.dead()]
        with Queue("q", url=newest.url) as queue:
            letters += queue.admin.dead()
    logged = [
        vars(record)
        for record in caplog.records
        if vars(record).get("event") == "job_dead_lettered"
    ]
    assert {one["kind"] for one in logged} == {"k"}
    assert sorted((one["queue"], one["job_id"], one["reason"]) for one in logged) == sorted(
        (letter.job.queue, letter.job.id, letter.reason) for letter in letters
    )
    assert len(letters) == 11
    assert points.value("headrace.jobs.dead_lettered") == len(letters)


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
