"""Workers of sharded queues: one pool of slots for all shards, and no shard that waits for another."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import redis

from headrace import ConfigurationError, DeadLetter, NewJob, Queue, Retry, ShardsMismatch, Tasks
from headrace._model.shards import Table
from headrace._protocol.keys import Keys
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

SHARDS = 6


@pytest.fixture
def queue(server: Server) -> Any:
    with Queue("q", url=server.url, shards=SHARDS) as queue:
        yield queue


@pytest.mark.parametrize("concurrency", [1, 3, 40])
def test_all_shards_share_the_slots(server: Server, queue: Any, kind: str, concurrency: int) -> None:
    runs, seen = Recorder(), Counter[str]()
    worker = Running(kind, url=server.url)

    @worker.handler(queue, concurrency=concurrency)
    def work(job: Any) -> Any:
        with runs(job):
            yield 0.001
        seen[job.key] += 1
        return job.payload

    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(300)])
    with worker:
        assert queue.drain(60)
        receipt = queue.enqueue(b"one more", key="k300")
        assert receipt.result(timeout=20) == b"one more"
    assert seen == {f"k{n}": 1 for n in range(301)}
    assert runs.most <= concurrency
    counts = queue.counts()
    assert (counts.completed, counts.present, counts.lost) == (301, 0, 0)
    assert [one for one in queue.workers() if not one.name.startswith("queue-")] == []


@pytest.mark.parametrize("concurrency", [1, 4])
def test_shards_take_turns(server: Server, queue: Any, kind: str, concurrency: int) -> None:
    """With a backlog in each, none is worked off while another waits."""
    worker, done = Running(kind, url=server.url), []

    @worker.handler(queue, concurrency=concurrency)
    def work(job: Any) -> Any:
        yield 0.002
        done.append(job.shard)

    table = Table.of("q", SHARDS)
    keys = [next(f"k{n}" for n in range(999) if table.part_of(f"k{n}") == shard) for shard in range(SHARDS)]
    queue.enqueue_many([NewJob(b"x", key=key) for _ in range(80) for key in keys])
    with worker:
        assert queue.drain(60)
    early = Counter(done[: len(done) // 2])
    assert min(early[shard] for shard in range(SHARDS)) >= 10, early


def test_a_key_s_jobs_come_in_order_to_one_slot(server: Server, queue: Any, kind: str) -> None:
    worker, done = Running(kind, url=server.url), dict[str, list[int]]()

    @worker.handler(queue, concurrency=1)
    def work(job: Any) -> None:
        done.setdefault(job.key, []).append(int(job.payload))

    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n % 10}") for n in range(300)])
    with worker:
        assert queue.drain(60)
    assert done == {f"k{k}": [*range(k, 300, 10)] for k in range(10)}


def test_a_foreign_job_wakes_a_worker_at_rest(server: Server, queue: Any, kind: str) -> None:
    worker, runs = Running(kind, url=server.url), Recorder()

    @worker.handler(queue, concurrency=1)
    def work(job: Any) -> None:
        with runs(job.payload):
            pass

    with worker:
        until(lambda: len(queue.workers()) == SHARDS, "a registration in each shard")
        client: Any = redis.Redis.from_url(server.url)
        for part in Table.of("q", SHARDS).parts:
            client.xadd(Keys.of("q").at(part).part("jobs"), {"data": b"%d" % part.number})
            runs.await_ended(part.number + 1)
        client.close()
    assert runs.ended == [b"%d" % number for number in range(SHARDS)]


def test_slow_jobs_of_one_shard_leave_the_others_their_turn(server: Server, queue: Any, kind: str) -> None:
    """Jobs that were leased ahead, and got no slot, go back; they are leased again as soon as there is one."""
    worker, gate, runs = Running(kind, url=server.url), threading.Event(), Recorder()

    @worker.handler(queue, concurrency=2)
    def work(job: Any) -> Any:
        with runs(job.payload):
            if job.payload == b"slow":
                yield gate

    queue.enqueue_many([NewJob(b"fast", key=f"k{n}") for n in range(200)])
    with worker:
        runs.await_ended(200)
        queue.enqueue_many([b"slow", b"slow"])
        runs.await_started(202)
        queue.enqueue_many([NewJob(b"fast", key=f"k{n}") for n in range(200)])
        until(lambda: queue.counts().leased == 2, "others are given back, or were not leased")
        gate.set()
        assert queue.drain(60)
    assert len(runs.ended) == 402


def test_batches_are_of_one_shard(server: Server, queue: Any, kind: str) -> None:
    worker, batches = Running(kind, url=server.url), list[list[Any]]()

    @worker.batch_handler(queue, max_size=20, max_wait=0.05)
    def work(jobs: Any) -> None:
        batches.append(list(jobs))

    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(200)])
    with worker:
        assert queue.drain(60)
    assert sum(map(len, batches)) == 200
    assert all(len({job.shard for job in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) > 5


def test_failures_are_judged_as_anywhere(server: Server, queue: Any, kind: str) -> None:
    worker, tried = Running(kind, url=server.url), Counter[str]()

    @worker.handler(queue, concurrency=5, retry=Retry(attempts=3, wait=lambda _state: 0.0))
    def work(job: Any) -> None:
        tried[job.id] += 1
        if job.payload == b"dead":
            raise DeadLetter("no")
        if job.attempt < 3 or job.payload == b"poison":
            raise ValueError("again")

    receipts = [queue.enqueue(payload, key=f"k{n}") for n, payload in enumerate([b"ok", b"dead", b"poison"] * 5)]
    with worker:
        assert queue.drain(60)
    assert [tried[receipt.id] for receipt in receipts] == [3, 1, 3] * 5
    assert (queue.counts().completed, queue.counts().dead, queue.counts().lost) == (5, 10, 0)


def test_a_dead_worker_s_jobs_come_back_in_every_shard(server: Server, queue: Any, kind: str) -> None:
    queue.enqueue_many([NewJob(b"x", key=f"k{n}") for n in range(60)])
    with Queue("q", url=server.url, shards=SHARDS, lease=1) as other:
        assert len(other.lease_many(60)) == 60
    worker, seen = Running(kind, url=server.url), Counter[str]()

    @worker.handler("q", shards=SHARDS, lease=1)
    def work(job: Any) -> None:
        seen[job.key] += 1

    with worker:
        assert queue.drain(60)
    assert seen == {f"k{n}": 1 for n in range(60)}


def test_a_worker_of_another_number_of_shards_ends(server: Server, queue: Any, kind: str) -> None:
    queue.enqueue(b"x")
    worker = Running(kind, url=server.url)
    worker.handler("q", shards=SHARDS + 1)(lambda _job: None)
    worker.start()
    until(lambda: worker.engine is None or worker.engine.finished or worker.engine.error is not None, "its end")
    with pytest.raises(ShardsMismatch, match=f"give shards={SHARDS}"):
        worker.close()


def test_what_takes_no_shards(server: Server, kind: str) -> None:
    worker = Running(kind, url=server.url).worker
    with pytest.raises(ConfigurationError, match="persistent handlers: not for queues with shards"):
        worker.handler("q", shards=2, persistent=True)(lambda _job: None)
    if kind == "threads":
        with pytest.raises(ConfigurationError, match="tasks: not for queues with shards"):
            worker.tasks(Tasks("q", url=server.url, shards=2))
