"""The control channel. A handler learns at once that its job is gone, because leases of ten minutes
need no renewal."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from headrace import Counts, Job, Queue
from headrace._protocol.keys import Keys
from tests.support.awaiting import until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server
from tests.workers.test_handlers import calls

Work = Callable[..., Running]
LONG = 600.0


@pytest.fixture
def client(newest: Server) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=newest.path) as client:
        yield client


def ears(client: redis.Redis) -> int:
    """Return how many connections listen."""
    return len(client.client_list(_type="pubsub"))


def hanging(worker: Running, record: Recorder, queue: str = "q", **options: Any) -> list[str]:
    """Register handlers that run until they are told. Return the ids of jobs whose coroutines were
    cancelled."""
    cancelled: list[str] = []

    @worker.handler(queue, **{"lease": LONG, "concurrency": 5, **options})
    def body(job: Job) -> Iterator[float]:
        with record(job.id):
            try:
                while not job.lost:
                    yield 0.005
            except asyncio.CancelledError:
                cancelled.append(job.id)
                raise

    return cancelled


WAYS: dict[str, tuple[Callable[[Queue, str], object], Counts]] = {
    "by id": (lambda queue, name: queue.cancel(name), Counts(enqueued=3, cancelled=1, leased=2)),
    "by payload": (
        lambda queue, _: queue.admin.cancel_payload(b"b"),
        Counts(enqueued=3, cancelled=1, leased=2),
    ),
    "with the queue": (lambda queue, _: queue.admin.delete(), Counts(enqueued=3, deleted=3)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_is_told_at_once(
    work: Work, queue: Queue, kind: str, client: redis.Redis, record: Recorder, way: str
) -> None:
    """Only handlers of removed jobs are told (W-12, W-13)."""
    worker = work()
    cancelled = hanging(worker, record)
    remove, after = WAYS[way]
    ids = [receipt.id for receipt in queue.enqueue_many([b"a", b"b", b"c"])]
    with worker:
        record.await_started(3)
        until(lambda: ears(client) == 1)
        remove(queue, ids[1])
        gone = ids if way == "with the queue" else [ids[1]]
        record.await_ended(len(gone))
        assert sorted(record.ended) == gone
        assert sorted(cancelled) == (gone if kind == "tasks" else [])
        assert queue.counts() == after
        queue.admin.delete()


def test_a_deleted_queue_comes_back(
    work: Work, queue: Queue, client: redis.Redis, record: Recorder
) -> None:
    """Waiting and working workers learn it. No job comes back, and new jobs are done (W-13,
    W-14)."""
    busy, idle = work(), work()
    hanging(busy, record, concurrency=1)

    @idle.handler("other", lease=LONG)
    def body(job: Job) -> bytes:
        return b"done"

    with Queue("other", url=queue._address.target) as other, busy, idle:
        first = [queue.enqueue(b"x").id, other.enqueue(b"x").id]
        record.await_started(1)
        until(lambda: other.counts().completed == 1)
        until(lambda: ears(client) == 2)
        assert (queue.admin.delete(), other.admin.delete()) == (1, 0)
        record.await_ended(1)
        second = [queue.enqueue(b"y").id, other.enqueue(b"y").id]
        assert all(new > old for new, old in zip(second, first, strict=True))
        record.await_started(2)
        assert record.started == [first[0], second[0]]
        until(lambda: other.counts().completed == 2)
        assert queue.counts() == Counts(enqueued=2, deleted=1, leased=1)
        queue.admin.delete()


def test_what_was_said_while_nobody_heard_it(
    work: Work, queue: Queue, client: redis.Redis, record: Recorder
) -> None:
    """The message is lost with the connection. The worker looks at its jobs when it listens
    again."""
    worker = work()
    hanging(worker, record)
    ids = [receipt.id for receipt in queue.enqueue_many([b"a", b"b"])]
    with worker:
        record.await_started(2)
        for number, name in enumerate(ids, 1):
            until(lambda: ears(client) == 1)
            with client.pipeline() as pipe:  # a transaction: nobody can be back in between
                if number == 1:
                    pipe.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                pipe.execute_command(*queue.ops.cancel(name).wire())
                killed = pipe.execute()
            assert killed == ([1, 1] if number == 1 else [1])
            record.await_ended(number)
    assert record.ended == ids


@pytest.mark.sampled
def test_a_server_that_lets_nobody_listen(
    work: Work,
    queue: Queue,
    client: redis.Redis,
    newest: Server,
    record: Recorder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker logs it once and works. The caller that cancels gets no error, and renewals find
    lost jobs."""
    client.execute_command(
        "ACL", "SETUSER", "deaf", "reset", "on", ">x", "~*", "+@all", "resetchannels"
    )
    caplog.set_level(logging.WARNING, "headrace")
    deaf = f"unix://deaf@{newest.path}?password=x"
    worker = work(url=deaf, heartbeat=1.0, timeout=5.0)
    # a third of it until a renewal finds out; all of it must not pass
    hanging(worker, record, lease=4.0)
    try:
        with Queue("q", url=deaf) as mine, worker:
            ids = [receipt.id for receipt in mine.enqueue_many([b"a", b"b"])]
            record.await_started(2)
            assert mine.cancel(ids[0])
            record.await_ended(1)
            assert mine.admin.delete() == 1
            record.await_ended(2)
        assert record.ended == ids
        events = [entry.getMessage().split(":")[0] for entry in caplog.records]
        assert (events.count("not_heard"), set(events)) == (1, {"not_heard", "lease_lost"})
    finally:
        client.execute_command("ACL", "DELUSER", "deaf")


def test_a_worker_listens_on_one_connection_and_nothing_is_said_about_work(
    work: Work, queue: Queue, client: redis.Redis, newest: Server
) -> None:
    """Jobs cause no message and no look for listeners, and neither does the cancellation of a
    waiting job. A worker sends one message when it begins, for each queue.
    """
    worker = work()
    for name in ("q", "other"):

        @worker.handler(name, lease=LONG)
        def body(job: Job) -> bytes | None:
            if job.attempt == 1 and job.payload == b"again":
                raise OSError
            return b"r"

    before = calls(newest)
    queue.enqueue_many([b"x"] * 300)
    waits = queue.enqueue(b"x", delay=60)
    assert queue.cancel(waits.id)
    with worker:
        until(lambda: queue.counts().completed == 300)
        until(lambda: ears(client) == 1)
    said = calls(newest) - before
    assert {name: said[name] for name in ("publish", "pubsub", "pubsub|numsub") if said[name]} == {
        "publish": 2
    }
    assert said["subscribe"] == 1
    until(lambda: ears(client) == 0)


@pytest.mark.sampled
def test_an_idle_line_is_pinged(
    monkeypatch: pytest.MonkeyPatch, work: Work, queue: Queue, client: redis.Redis
) -> None:
    """A connection that does not answer is given up, so a server that vanished is noticed."""
    for colour in ("aio", "sync"):
        monkeypatch.setattr(f"headrace._net.{colour}.subscription.PING_AFTER_S", 0.1)
    monkeypatch.setattr("headrace._core.worker.control.BLOCK_S", 0.05)
    worker = work()

    @worker.handler("q", lease=LONG)
    def body(job: Job) -> None:
        pass

    def pinged() -> bool:
        return [line["cmd"] for line in client.client_list(_type="pubsub")] == ["ping"]

    with worker:
        until(pinged)
        (line,) = client.client_list(_type="pubsub")
        # it stays
        until(lambda: [other["id"] for other in client.client_list(_type="pubsub")] == [line["id"]])
        client.client_pause(2000)  # nobody is answered
        until(
            lambda: [o["id"] for o in client.client_list(_type="pubsub")] not in ([line["id"]], [])
        )
        client.client_unpause()


def test_stopping_does_not_wait_for_the_listener(
    work: Work, queue: Queue, client: redis.Redis
) -> None:
    """A read with seconds to go is interrupted."""
    worker = work()

    @worker.handler("q")
    def body(job: Job) -> None:
        pass

    over = threading.Event()
    worker.start()
    until(lambda: ears(client) == 1)
    closing = threading.Thread(target=lambda: (worker.close(), over.set()))
    closing.start()
    assert over.wait(4.0)  # of the 5 s that a read may last
    closing.join()


def test_what_was_declared_is_declared_anew_when_the_queue_is_deleted(
    work: Work, newest: Server, client: redis.Redis
) -> None:
    """Trends and a history begin anew while the workers go on."""
    running, stats = work(), Keys.of("q").key("stats")
    running.worker.handler("q", trends=True, history=7)(lambda _job: None)

    def kept() -> bool:
        declared = client.hget(stats, "declared")
        return client.hexists(stats, "trends") and declared is not None and b"history" in declared

    with newest.queue("q") as queue, running:
        until(kept)
        queue.admin.delete()
        until(kept)
