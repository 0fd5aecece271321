"""One worker for many queues: what it costs, and that each of them is served as one alone would be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from headrace import Job, Queue
from headrace._base.executor import BaseExecutor
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
    """Let a worker note what runs of all queues."""

    def body(job: Job) -> None:
        with record((job.queue, job.payload)):
            pass

    for name in NAMES:
        worker.handler(name, concurrency=1, **options)(body)


@ENGINES
def test_what_many_idle_queues_cost(work: Work, queues: list[Queue], newest: Server, record: Recorder) -> None:
    """A blocked read, and nothing more for a queue at rest than a beat, and a short look now and then; a handful of
    connections, after many calls at once, too."""
    worker = work()
    serve(worker, record)

    def rests() -> bool:
        looks = calls(newest)["xautoclaim"]  # of the looks that find something to see to
        time.sleep(1.5)
        return calls(newest)["xautoclaim"] == looks

    with redis.Redis(unix_socket_path=newest.path) as client:
        ours = len(client.client_list())
        with worker:
            for queue in queues:
                queue.enqueue_many([b"x"] * 5)
            record.await_ended(5 * QUEUES)
            until(lambda: all(queue.counts().completed == 5 for queue in queues))
            connections = len(client.client_list()) - ours - QUEUES  # each of the queues has one
            until(rests)
            before = calls(newest)
            time.sleep(5.0)  # what is awaited is that hardly anything happens
            ran = calls(newest) - before
    assert connections <= 8
    assert ran["xreadgroup"] <= 30  # one a second, and a few for those that have just come to wait
    assert ran["evalsha"] + ran["eval"] <= 5.0 * QUEUES * (0.5 + 0.4) * 1.5  # beats and looks
    assert sum(ran.values()) <= 5.0 * QUEUES * 9
    assert not ran.keys() & {"xadd", "xclaim", "xdel", "hincrby"}


@ENGINES
def test_every_queue_wakes_the_worker(work: Work, queues: list[Queue], record: Recorder) -> None:
    """Enqueued, released, delayed, or resumed: whichever of them it is, and again and again."""
    worker = work(heartbeat=0.4, timeout=2.0)
    serve(worker, record)
    paused = queues[::4]
    for queue in paused:
        queue.pause()
    with worker:
        for queue in queues:
            queue.enqueue(b"first")
        others = {(name, b"first") for number, name in enumerate(NAMES) if number % 4}
        until(lambda: others <= set(record.ended))
        until(lambda: sum(queue.counts().completed for queue in queues) == len(others))
        for number, queue in enumerate(queues):
            if number % 4 == 0:
                queue.resume()
            elif number % 4 == 1:
                queue.enqueue(b"delayed", delay=0.1)
            elif number % 4 == 2:
                queue.enqueue(b"second")
            else:
                queue.delete()
                queue.enqueue(b"second")
        record.await_ended(len(others) + QUEUES)
    assert len(set(record.ended)) == len(others) + QUEUES
    for queue in queues:
        counts = queue.counts()
        assert (counts.waiting, counts.leased, counts.delayed, counts.lost) == (0, 0, 0, 0)


@ENGINES
def test_a_full_queue_starves_no_other(work: Work, queues: list[Queue], record: Recorder) -> None:
    """One has thousands of jobs, the others one: these do not wait until that one is empty."""
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
    """What an executor says of its places, as one of a cluster may, is heard: here two, of 20 queues each."""
    monkeypatch.setattr(BaseExecutor, "place", lambda _, keys: int(keys.queue[-1]) % 2)
    worker = work()
    serve(worker, record)
    with worker:
        for queue in queues:
            queue.enqueue(b"x")
        record.await_ended(QUEUES)
        assert len(worker.worker._running._running["wait"]) == 2 * 3
