"""One worker for many queues. The tests check the cost, and that each queue is served as if
alone."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from headrace import Job, Queue
from headrace._core.effects import HeldJob
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.idle import ALL_IDLE, LEAST_S
from headrace._net.aio.trips import AsyncTrips
from headrace._net.base.pool import SPARE_S
from headrace._net.sync.trips import Trips
from headrace._protocol.features import presence as presence_ops
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server
from tests.workers.test_handlers import calls

Work = Callable[..., Running]
ENGINES = pytest.mark.parametrize("kind", ["threads", "tasks"])
QUEUES = 40
NAMES = [f"many/q{number}" for number in range(QUEUES)]


@pytest.fixture
def queues(newest: Server) -> Iterator[list[Queue]]:
    """The queues of one group."""
    with ExitStack() as stack:
        yield [stack.enter_context(Queue(name, url=newest.url)) for name in NAMES]


def serve(worker: Running, record: Recorder, **options: Any) -> None:
    """Let a worker record the running jobs of all queues."""

    def body(job: Job) -> None:
        with record((job.queue, job.payload)):
            pass

    for name in NAMES:
        worker.handler(name, concurrency=1, **options)(body)


def rests(worker: Running) -> bool:
    """Tell whether the worker and all others rest in all its queues."""
    consumers: list[Consumer] = worker.engine.lifecycle.consumers
    return all(consumer.idle.on and consumer.idle.all_idle for consumer in consumers)


@pytest.mark.slow
@ENGINES
def test_what_many_idle_queues_cost(
    work: Work, queues: list[Queue], newest: Server, record: Recorder
) -> None:
    """The queues share two blocked reads, and each has a call in half a minute. There are five
    connections, and two more under load.
    """
    worker, pools = work(heartbeat=0.4, timeout=2.0), list[Any]()
    serve(worker, record)
    with redis.Redis(unix_socket_path=newest.path) as client:
        ours = len(client.client_list())
        with worker:
            for queue in queues:
                queue.enqueue_many([b"x"] * 5)
            record.await_ended(5 * QUEUES)
            until(lambda: all(queue.counts().completed == 5 for queue in queues))
            connections = len(client.client_list()) - ours - 1  # which the queues share
            for executor in worker.engine.executors.values():
                if executor.connections.keep == SPARE_S:
                    executor.connections.keep = 0.2
                    pools.append(executor.connections)
            until(lambda: rests(worker))

            def closed() -> bool:
                for pool in pools if worker.kind == "threads" else ():
                    # which the next call would ask for, a quarter of a minute later
                    for spare in pool._spare():
                        pool.drop(spare)
                return len(client.client_list()) - ours - 1 <= 5  # beats, Pub/Sub, reads, a call

            until(closed)
            before = calls(newest)
            until(lambda: calls(newest)["xreadgroup"] > before["xreadgroup"] + 3)  # one a second
            ran = calls(newest) - before
    assert connections <= 7
    assert ran["evalsha"] + ran["eval"] <= QUEUES  # with beats and looks they were 4 x 40 a second
    assert not ran.keys() & {"xadd", "xclaim", "xdel", "hincrby", "hset", "publish"}


def held_in_memory() -> list[HeldJob]:
    """Return the jobs that the collector knows. It does not ask objects for their class, as some of
    them are lazy."""
    return [one for one in gc.get_objects() if type(one) is HeldJob]


@pytest.mark.slow
def test_a_quiet_queue_keeps_no_job_in_memory(
    work: Work, queues: list[Queue], record: Recorder
) -> None:
    """The reply of its last call is freed without the collector. With a thousand queues it could be
    a megabyte each."""
    worker = work(heartbeat=0.4, timeout=2.0)
    serve(worker, record)
    before = set(map(id, held_in_memory()))  # of other tests' circles
    gc.disable()
    try:
        with worker:
            for queue in queues:
                queue.enqueue_many([b"x"] * 5)
            record.await_ended(5 * QUEUES)
            until(lambda: not [one for one in held_in_memory() if id(one) not in before])
    finally:
        gc.enable()


@pytest.mark.slow
@ENGINES
@pytest.mark.parametrize("peer", ["rested", "new", "plain"])
def test_a_peer_that_works_and_dies_is_found_where_all_rest(
    kind: str, peer: str, work: Work, queues: list[Queue], newest: Server, record: Recorder
) -> None:
    """The peer sends a message when it begins or is no longer idle, and the others then look. Its
    jobs are back after a timeout, or when their leases expire.
    """
    worker, ops = work(heartbeat=0.4, timeout=2.0), queues[0].ops
    with Queue(NAMES[0], url=newest.url) as first:
        first.lease()  # there is a group
    if peer == "rested":
        assert queues[0]._run(ops.beat("peer.1", 60.0, register=True))
        assert queues[0]._run(presence_ops.rest(ops, "peer.1", 600.0)) == ALL_IDLE
    serve(worker, record)
    with worker, redis.Redis(unix_socket_path=newest.path) as client:
        until(lambda: rests(worker))
        since = time.monotonic()
        with client.pipeline() as together:  # at once: or the worker would have the job
            if peer != "plain":
                together.execute_command(*ops.beat("peer.1", 2.0, register=peer == "new").wire())
            together.execute_command(*ops.enqueue([b"x"]).wire())
            options: dict[str, Any] = {"ttl": 12.0, "duration": 2.0} if peer == "plain" else {}
            together.execute_command(*ops.lease("peer.1", 1, **options).wire())
            leased = together.execute()[-1]
        assert len(leased[3]) == 2
        record.await_ended(1)
        # or it may have come by the next call to rest
        assert time.monotonic() - since < LEAST_S / 2
        until(lambda: queues[0].counts().completed == 1)


@pytest.mark.slow
@ENGINES
@pytest.mark.parametrize("how", ["new", "parked"])
def test_what_another_reader_was_given_and_left_is_found_where_all_rest(
    work: Work, queues: list[Queue], newest: Server, record: Recorder, how: str
) -> None:
    """The other reader died before its lease call, or is frozen."""
    worker, queue = work(heartbeat=0.4, timeout=2.0), queues[3]
    serve(worker, record)
    part = queue.ops.keys.key
    with worker, redis.Redis(unix_socket_path=newest.path) as client:
        until(lambda: rests(worker))
        since = time.monotonic()
        with client.pipeline() as together:  # at once: or the worker would have it
            together.xadd(part("jobs"), {"data": "x"})
            together.xreadgroup(
                "workers", "idle" if how == "new" else "parked", {part("jobs"): ">"}
            )
            if how == "parked":
                together.xadd(part("wake"), {"": ""})
                together.xreadgroup("workers", "idle", {part("wake"): ">"})
            together.execute()
        record.await_ended(1)
        # or it may have come by the next call to rest
        assert time.monotonic() - since < LEAST_S / 2
        until(lambda: queue.counts().completed == 1)


@pytest.mark.sampled
@ENGINES
def test_a_worker_at_rest_learns_that_it_was_declared_dead(
    work: Work, queues: list[Queue], newest: Server, record: Recorder
) -> None:
    """The worker learns it with the next job, which it runs under another name."""
    worker = work(heartbeat=0.4, timeout=2.0)
    serve(worker, record)
    with worker:
        until(lambda: rests(worker))
        old = {state.name for state in queues[0].admin.workers()}
        queues[0].admin.fail_worker(worker.worker.name)
        queues[0].enqueue(b"x")
        record.await_ended(1)
        until(lambda: queues[0].counts().completed == 1)
        assert len(old) == 1
        assert not old & {state.name for state in queues[0].admin.workers()}


@pytest.mark.sampled
@ENGINES
def test_every_queue_wakes_the_worker(work: Work, queues: list[Queue], record: Recorder) -> None:
    """Each queue wakes the worker again and again, by an enqueue, a release, a delay or a
    resume."""
    worker = work(heartbeat=0.4, timeout=2.0)
    serve(worker, record)
    paused = queues[::4]
    for queue in paused:
        queue.admin.pause()
    with worker:
        for queue in queues:
            queue.enqueue(b"first")
        others = {(name, b"first") for number, name in enumerate(NAMES) if number % 4}
        until(lambda: others <= set(record.ended))
        until(lambda: sum(queue.counts().completed for queue in queues) == len(others))
        for number, queue in enumerate(queues):
            if number % 4 == 0:
                queue.admin.resume()
            elif number % 4 == 1:
                queue.enqueue(b"delayed", delay=0.1)
            elif number % 4 == 2:
                queue.enqueue(b"second")
            else:
                queue.admin.delete()
                queue.enqueue(b"second")
        record.await_ended(len(others) + QUEUES)
    assert len(set(record.ended)) == len(others) + QUEUES
    for queue in queues:
        counts = queue.counts()
        assert (counts.waiting, counts.leased, counts.delayed, counts.lost) == (0, 0, 0, 0)


@pytest.mark.slow
@ENGINES
def test_a_full_queue_starves_no_other(work: Work, queues: list[Queue], record: Recorder) -> None:
    """One queue has thousands of jobs and the others have one. These do not wait for the first to
    be empty."""
    worker = work()
    serve(worker, record)
    queues[0].enqueue_many([b"bulk"] * 20_000)
    for queue in queues[1:]:
        queue.enqueue(b"lone")
    with worker:
        until(lambda: queues[0].counts().completed == 20_000)
        last = max(at for at, (_, payload) in enumerate(record.ended) if payload == b"lone")
    assert len(record.ended) == 20_000 + QUEUES - 1
    assert last < 15_000


@ENGINES
def test_queues_of_several_places_share_no_read(
    work: Work, queues: list[Queue], record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor says where the keys are, as in a cluster. Two places have 20 queues each."""
    for kind in (AsyncTrips, Trips):
        monkeypatch.setattr(kind, "place", lambda _, keys: int(keys.queue[-1]) % 2)
    worker = work()
    serve(worker, record)
    with worker:
        for queue in queues:
            queue.enqueue(b"x")
        record.await_ended(QUEUES)
        assert len(worker.worker._running._running["wait"]) == 2 * 3
