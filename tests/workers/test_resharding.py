"""Workers while the number of shards changes. They start with new shards, drain old ones and leave
removed ones."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import redis

from headrace import NewJob, Queue
from headrace._core.shards import roles as following
from headrace._protocol.keys import Keys
from tests.conformance.test_resharding import gone, table_of
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server

OLD = 4


@pytest.fixture
def queue(server: Server) -> Any:
    with Queue("q", url=server.url, shards=OLD) as queue:
        yield queue


@pytest.fixture
def client(server: Server) -> Any:
    with redis.Redis.from_url(server.url) as client:
        yield client


def registered(queue: Any, name: str) -> int:
    """Return the number of shards in which a worker is registered."""
    return sum(worker.name.startswith(name) for worker in queue.admin.workers())


@pytest.mark.sampled
@pytest.mark.parametrize("shards", [8, 2, 12])
def test_a_worker_takes_on_new_shards_and_leaves_old_ones(
    server: Server, client: Any, queue: Any, kind: str, shards: int
) -> None:
    worker, done = Running(kind, url=server.url, name="w"), Counter[bytes]()

    @worker.handler(queue, concurrency=5)
    def work(job: Any) -> None:
        done[job.payload] += 1

    queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(50)])
    with worker:
        until(lambda: registered(queue, "w") == OLD, "a registration in each shard")
        assert queue.admin.reshard(shards).shards == shards
        queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(50, 200)])
        assert queue.enqueue(b"200").result(timeout=30) is None
        assert queue.admin.drain(60)
        until(lambda: registered(queue, "w") == OLD + shards, "a registration in each shard")
        # the result is kept, if it went to an old one
        assert gone(queue, client).draining in (0, 1)
        for key in client.scan_iter("headrace:*:result:*"):
            client.delete(key)
        assert gone(queue, client).done
        until(lambda: registered(queue, "w") == shards, "the new ones only")
        queue.enqueue_many([NewJob(b"%d" % n, key=f"k{n}") for n in range(201, 260)])
        assert queue.admin.drain(60)
    assert done == {b"%d" % n: 1 for n in range(260)}
    assert registered(queue, "w") == 0
    left = {key.decode().rpartition(":")[2] for key in client.scan_iter("headrace:{q~0.*")}
    assert left <= {"stats", "jobs", "wake", "tallies"}  # what was counted stays for a day
    counts = queue.counts()
    assert (counts.enqueued, counts.completed, counts.lost) == (260, 260, 0)


@pytest.mark.slow
def test_a_worker_goes_on_with_a_change_that_stopped(
    server: Server, client: Any, queue: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "GO_ON_AFTER_S", 1.0)
    queue.enqueue(b"x")
    worker = Running(kind, url=server.url)
    worker.handler(queue)(lambda _job: None)
    client.hset(Keys.of("q").shards, mapping=table_of(client).divided(6).rows())
    with worker:
        until(lambda: not table_of(client).changing, "the end of the change", patience=60)
    assert [part.state for part in table_of(client).shards] == ["draining"] * OLD + ["open"] * 6


@pytest.mark.sampled
@pytest.mark.long
def test_a_backlog_is_worked_off_once(server: Server, queue: Any, kind: str) -> None:
    """Producers go on while shards are added and removed. No job is lost or runs twice."""
    done, lock, enough = Counter[bytes](), threading.Lock(), threading.Event()
    worker = Running(kind, url=server.url)

    @worker.handler(queue, concurrency=8)
    def work(job: Any) -> None:
        with lock:
            done[job.payload] += 1

    added: list[bytes] = []
    errors: list[BaseException] = []

    def produce(name: str) -> None:
        try:
            with Queue("q", url=server.url, shards=OLD) as mine:
                number = 0
                while not enough.is_set():
                    some = [b"%s %d" % (name.encode(), number + at) for at in range(4)]
                    mine.enqueue_many(
                        [
                            some[0],
                            NewJob(some[1], key=f"k{number % 9}"),
                            NewJob(some[2], id=some[2].decode()),
                        ]
                    )
                    mine.enqueue(some[3], id=some[3].decode())
                    added.extend(some)
                    number += 4
        except BaseException as error:
            errors.append(error)

    producers = [threading.Thread(target=produce, args=(name,)) for name in "ab"]
    with worker:
        for producer in producers:
            producer.start()
        for shards in (8, OLD, 6):
            before = len(added)
            assert queue.admin.reshard(shards).shards == shards
            until(lambda before=before: errors or len(added) > before + 40, "producers that go on")
        enough.set()
        for producer in producers:
            producer.join()
        assert not errors
        assert queue.admin.drain(60)
    assert done == dict.fromkeys(added, 1)
    assert queue.counts().lost == 0


@pytest.mark.slow
def test_an_ordered_queue_keeps_its_order(server: Server, kind: str) -> None:
    """Jobs of a key come one after the other while the number of shards changes twice, with a
    backlog."""
    done, at_once, lock, most = dict[str, list[int]](), Counter[str](), threading.Lock(), [0]
    worker = Running(kind, url=server.url)
    with Queue("q", url=server.url, shards=OLD, ordered=True) as queue:

        @worker.handler(queue, concurrency=8)
        def work(job: Any) -> Any:
            with lock:
                at_once[job.key] += 1
                most[0] = max(most[0], at_once[job.key])
                done.setdefault(job.key, []).append(int(job.payload))
            yield 0.002
            with lock:
                at_once[job.key] -= 1

        number = 0
        for shards in (8, 3, None):
            queue.enqueue_many([NewJob(b"%d" % (number + n), key=f"k{n % 10}") for n in range(100)])
            number += 100
            if shards is not None:
                queue.admin.reshard(shards)
        with worker:
            queue.enqueue_many([NewJob(b"%d" % (number + n), key=f"k{n % 10}") for n in range(100)])
            number += 100
            queue.admin.reshard(6)
            queue.enqueue_many([NewJob(b"%d" % (number + n), key=f"k{n % 10}") for n in range(100)])
            number += 100
            assert queue.admin.drain(120)
    assert most == [1]
    assert done == {f"k{k}": [*range(k, number, 10)] for k in range(10)}
