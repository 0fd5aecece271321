"""Idle workers. The tests count their commands, and the time until they begin a new job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from headrace import Job, Queue
from headrace._protocol.limits import BLOCK_S
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server
from tests.workers.test_handlers import calls

Work = Callable[..., Running]
ENGINES = pytest.mark.parametrize("kind", ["threads", "tasks"])

UPKEEP = (b"pulse", b"sweep")


def contents(server: Server) -> dict[bytes, object]:
    """Return all keys but heartbeats and records of calls."""
    found: dict[bytes, object] = {}
    with redis.Redis(unix_socket_path=server.path) as client:
        for key in client.scan_iter():
            if client.type(key) == b"stream":
                info = client.xinfo_stream(key)
                found[key] = [
                    info["length"],
                    info["last-generated-id"],
                    client.xpending(key, "workers"),
                ]
            elif not key.endswith((b":workers", b":registered")) and b":lane:" not in key:
                found[key] = client.dump(key)
            # since when it is looked after, and how far the sweep has come
            if key.endswith(b":stats"):
                found[key] = {
                    name: value for name, value in client.hgetall(key).items() if name not in UPKEEP
                }
    return found


@pytest.mark.slow
@ENGINES
def test_an_idle_worker(work: Work, queue: Queue, newest: Server, record: Recorder) -> None:
    """An idle worker makes a blocked read each five seconds with a call after it, a look each third
    of the timeout, and heartbeats. Six commands a second are allowed. It writes only heartbeats and
    records of calls (H-10).
    """
    # beats and looks come four times as often as usual, the reads do not
    worker = work(heartbeat=0.5, timeout=2.5)

    @worker.handler("q")
    def body(job: Job) -> None:
        with record(job.id):
            pass

    with worker:
        queue.enqueue(b"x")
        record.await_ended(1)
        reads = calls(newest)["xreadgroup"]
        until(lambda: calls(newest)["xreadgroup"] > reads)  # it has settled, and is back to waiting
        looks = calls(newest)["hmget"]
        until(lambda: calls(newest)["hmget"] > looks + 1)
        stored, before = contents(newest), calls(newest)
        until(lambda: calls(newest)["zadd"] >= before["zadd"] + 6)
        ran = calls(newest) - before
        assert contents(newest) == stored
    beats, looks, reads = ran["zadd"], ran["hmget"], ran["xreadgroup"]
    assert looks <= 2 + beats * 0.5 / (2.5 / 3)
    assert reads <= 1 + beats * 0.5 / BLOCK_S
    sent = (
        sum(ran.values())
        - ran["info"]
        - ran["ping"]
        - ran["client|setinfo"]
        - ran["client|setname"]
        - ran["hello"]
    )
    # 5.7 a second, by the usual 2, 10 / 3 and 5 seconds
    assert sent <= 4 * beats + 9 * looks + 5 * (reads + 1)
    assert not ran.keys() & {"xadd", "xclaim", "xdel", "hincrby"}


@ENGINES
def test_what_a_lone_job_costs(work: Work, queue: Queue, newest: Server, record: Recorder) -> None:
    """The worker makes two round trips on few connections. It leases the job after the read that it
    ends, and completes it.
    """
    worker, jobs = work(), 50

    @worker.handler("q")
    def body(job: Job) -> None:
        with record(job.id):
            pass

    with worker, redis.Redis(unix_socket_path=newest.path) as client:
        queue.enqueue(b"x")
        until(lambda: queue.counts().completed == 1)
        time.sleep(0.3)  # it waits again
        engine: Any = worker.worker._running
        before, began = engine._outage.answers, time.monotonic()
        for number in range(2, jobs + 2):
            queue.enqueue(b"x")
            until(lambda number=number: queue.counts().completed == number)
        trips, took = engine._outage.answers - before, time.monotonic() - began
        assert trips <= 2 * jobs + 5 + 5 * took  # and what an idle worker sends
        assert len(client.client_list()) <= 2 + 6  # the first are ours


@ENGINES
def test_idle_workers_begin_at_once(
    server: Server, kind: str, work: Work, record_property: Callable[[str, object], None]
) -> None:
    """A waiting worker is woken when a job is enqueued, released, retried or promoted."""
    # delays of others are seen with each look
    worker = work(url=server.url, heartbeat=0.4, timeout=2.0)
    began: dict[str, float] = {}

    @worker.handler("q")
    def body(job: Job) -> None:
        began[job.id] = time.monotonic()

    took: dict[str, list[float]] = {"enqueued": [], "released": [], "retried": [], "delayed": []}
    with Queue("q", url=server.url) as queue:
        held = queue.enqueue_many([b"x"] * 16)
        leases = queue.lease_many(16)
        with worker:
            until(lambda: any(x.name.startswith(worker.worker.name) for x in queue.admin.workers()))
            for number, lease in enumerate(leases):
                how = list(took)[number % 4]
                job = lease.job.id
                since = time.monotonic()
                if how == "enqueued":
                    lease.complete()
                    job = queue.enqueue(b"y").id
                elif how == "released":
                    lease.release()
                elif how == "retried":
                    lease.retry()
                else:
                    lease.retry(delay=0.1)
                    since += 0.1
                until(lambda job=job: job in began)
                took[how].append(began[job] - since)
            until(lambda: queue.counts().completed == 20)
    assert len(held) == 16
    slowest = {how: round(max(times), 4) for how, times in took.items()}
    record_property("slowest start in seconds", str(slowest))
    assert all(seconds < 5.0 for seconds in slowest.values()), slowest


@ENGINES
def test_delayed_jobs_come_when_they_are_due(work: Work, queue: Queue, record: Recorder) -> None:
    """Jobs come in the order of their times and never early, although the worker slept before
    (H-14, scaled)."""
    worker = work()

    @worker.handler("q", concurrency=1)
    def body(job: Job) -> None:
        with record((job.payload, time.time() - job.enqueued_at)):
            pass

    with worker:
        until(queue.admin.workers)
        receipts = [
            queue.enqueue(payload, delay=delay)
            for payload, delay in [(b"c", 0.9), (b"a", 0.3), (b"b", 0.6)]
        ]
        until(lambda: queue.counts().completed == 3)
    assert len(receipts) == 3
    assert [payload for payload, _ in record.ended] == [b"a", b"b", b"c"]
    assert all(
        after >= delay for (_, after), delay in zip(record.ended, [0.3, 0.6, 0.9], strict=True)
    )


def test_a_job_for_each_of_many_idle_workers(
    newest: Server, queue: Queue, gate: threading.Event
) -> None:
    """Several jobs that come back at once wake several workers. None waits behind a busy worker."""
    record = Recorder()
    workers = [Running("threads", url=newest.url, name=f"w{n}") for n in range(4)]
    for worker in workers:

        @worker.handler("q", concurrency=1)
        def body(job: Job) -> Iterator[threading.Event]:
            with record(job.id):
                yield gate

    queue.enqueue_many([b"x"] * 4)
    leases = queue.lease_many(4)
    for worker in workers:
        worker.start()
    until(lambda: len(queue.admin.workers()) == 5)
    for lease in leases:
        lease.release()
    record.await_started(4)
    gate.set()
    for worker in workers:
        worker.close()
    assert len(set(record.ended)) == 4
