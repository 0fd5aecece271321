"""Starting and stopping workers, and the errors that end them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from headrace import AsyncWorker, ConfigurationError, Counts, Job, Queue, Worker
from headrace._core.worker import consumer, fetch
from headrace._net.base import retries as retry
from headrace._net.sync.subscription import Subscription
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]


def consumers(server: Server, queue: Queue) -> set[str]:
    """Return the consumers that belong to workers."""
    with redis.Redis(unix_socket_path=server.path) as client:
        stream = queue.ops.keys.key("jobs")
        rows: list[dict[str, Any]] = (
            client.xinfo_consumers(stream, "workers") if client.exists(stream) else []
        )
    return {row["name"].decode() for row in rows} - {"parked", "idle"}


def payloads(queue: Queue, number: int) -> list[tuple[bytes, int]]:
    """Lease the next jobs and return their payloads and attempts."""
    return [(lease.job.payload, lease.job.attempt) for lease in queue.lease_many(number)]


# -- stopping --------------------------------------------------------------------------------------


def test_a_graceful_stop(
    work: Work,
    queue: Queue,
    newest: Server,
    record: Recorder,
    gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker leases no more, releases unstarted jobs, renews running ones until they finish,
    and leaves no key."""
    monkeypatch.setattr(
        consumer, "START_WITHIN_S", PATIENCE
    )  # once a handler has ended, much is leased ahead on any machine
    worker = work(heartbeat=0.1, timeout=PATIENCE)

    @worker.handler("q", concurrency=1, lease=2.0)
    def body(job: Job) -> Iterator[Any]:
        with record(job.payload):
            if job.payload == b"slow":
                yield gate
                yield 0.0
        return b"done"

    worker.start()
    queue.enqueue(b"quick")
    until(lambda: queue.counts().completed == 1)
    receipts = queue.enqueue_many([b"slow", b"b", b"c", b"d"])
    record.await_started(2)
    until(lambda: queue.counts().leased == 4, "it does not lease ahead")
    worker.stop(wait=False)
    until(lambda: queue.counts().leased == 1, "it does not give back what it can't start")
    queue.enqueue(b"new")
    assert [state.job.payload for state in queue.admin.waiting()] == [b"b", b"c", b"d", b"new"]
    assert len(queue.admin.workers()) == 1
    (state,) = queue.admin.running()
    until(
        lambda: [x.since for x in queue.admin.running()] > [state.since], "its lease is not renewed"
    )
    gate.set()
    worker.close()
    assert queue.result(receipts[0].id) == b"done"
    assert queue.admin.workers() == []
    assert consumers(newest, queue) == set()
    assert queue.counts() == Counts(parked=3, waiting=1, enqueued=6, completed=2)
    assert payloads(queue, 5) == [(b"b", 1), (b"c", 1), (b"d", 1), (b"new", 1)]


def test_a_second_stop_releases_everything(
    work: Work, queue: Queue, newest: Server, kind: str, record: Recorder
) -> None:
    """A coroutine is cancelled, and a thread is told. The jobs are at the front at once with no
    attempt spent."""
    worker = work()
    cancelled: list[bytes] = []

    @worker.handler("q", concurrency=3)
    def body(job: Job) -> Iterator[float]:
        with record(job.payload):
            try:
                while not job.lost:
                    yield 0.005
            except asyncio.CancelledError:
                cancelled.append(job.payload)
                raise

    queue.enqueue_many([b"a", b"b", b"c", b"d"])
    worker.start()
    record.await_started(3)
    worker.stop(wait=False)
    worker.stop()
    worker.close()
    record.await_ended(3)
    assert sorted(cancelled) == ([b"a", b"b", b"c"] if kind == "tasks" else [])
    assert queue.counts() == Counts(parked=3, waiting=1, enqueued=4)
    assert queue.admin.workers() == []
    assert consumers(newest, queue) == set()
    assert payloads(queue, 4) == [(b"a", 1), (b"b", 1), (b"c", 1), (b"d", 1)]


def test_a_thread_that_is_deaf_to_a_second_stop(
    work: Work, queue: Queue, gate: threading.Event
) -> None:
    """The stop does not wait for the thread. Its job is released, and its late return changes
    nothing."""
    worker = work()
    began, ended = threading.Event(), threading.Event()

    @worker.handler("q")
    def body(job: Job) -> Iterator[Any]:
        began.set()
        while not gate.is_set():
            try:
                yield 0.005
            except asyncio.CancelledError:
                continue
        ended.set()

    queue.enqueue(b"x")
    worker.start()
    assert began.wait(PATIENCE)
    worker.stop(wait=False)
    worker.stop()
    lease = queue.lease()
    assert lease is not None
    assert lease.job.attempt == 1
    gate.set()
    worker.close()
    assert ended.wait(PATIENCE)
    assert queue.counts() == Counts(leased=1, enqueued=1)
    assert lease.complete()


def test_a_stop_gives_back_a_batch_that_gathers(work: Work, queue: Queue) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=100, max_wait=60)
    def body(jobs: list[Job]) -> None:
        raise AssertionError

    queue.enqueue_many([b"a", b"b"])
    with worker:
        until(lambda: queue.counts().leased == 2)
    assert payloads(queue, 2) == [(b"a", 1), (b"b", 1)]


def test_stopping_what_does_not_run(work: Work, queue: Queue) -> None:
    """A stop before the start and a second stop do nothing."""
    worker = work()

    @worker.handler("q")
    def body(job: Job) -> None: ...

    if worker.kind == "threads":
        worker.worker.stop()
    else:
        asyncio.run(worker.worker.stop())
    worker.start()
    worker.stop()
    worker.stop()
    worker.close()
    assert queue.admin.workers() == []


def test_everybody_may_stop_it_at_once(work: Work, queue: Queue) -> None:
    worker = work()

    @worker.handler("q")
    def body(job: Job) -> None: ...

    queue.enqueue_many([b"x"] * 100)
    worker.start()
    stoppers = [threading.Thread(target=worker.stop) for _ in range(8)]
    for stopper in stoppers:
        stopper.start()
    for stopper in stoppers:
        stopper.join(PATIENCE)
    worker.close()
    assert queue.admin.workers() == []
    assert queue.counts().lost == queue.counts().leased == 0


def test_a_handler_may_stop_its_worker(work: Work, queue: Queue, record: Recorder) -> None:
    """The stop does not wait for its own handler. The handler's job is completed, and the others
    stay."""
    worker = work()
    main = threading.Event()

    if worker.kind == "tasks":

        @worker.worker.handler("q", concurrency=1)
        async def stops(job: Job) -> None:
            with record(job.payload):
                await worker.worker.stop()
                main.set()

    else:

        @worker.handler("q", concurrency=1)
        def body(job: Job) -> None:
            with record(job.payload):
                if worker.kind == "threads":
                    worker.worker.stop()
                else:
                    worker.stop(wait=False)
                main.set()

    queue.enqueue_many([b"a", b"b"])
    worker.start()
    assert main.wait(PATIENCE)
    until(lambda: queue.counts() == Counts(waiting=1, enqueued=2, completed=1))
    worker.close()
    assert record.ended == [b"a"]


def test_a_worker_starts_again(work: Work, queue: Queue, record: Recorder) -> None:
    """Each start has another name, so that it never inherits a predecessor's registration."""
    worker = work(name="mail")
    names: list[str] = []

    @worker.handler("q")
    def body(job: Job) -> None:
        with record(job.payload):
            pass

    for round_ in range(3):
        with worker:
            until(queue.admin.workers)
            names += [state.name for state in queue.admin.workers()]
            queue.enqueue(b"%d" % round_)
            record.await_ended(round_ + 1)
    assert len(set(names)) == 3
    assert all(name.startswith("mail.") for name in names)
    assert record.ended == [b"0", b"1", b"2"]


def test_a_client_of_the_users(
    work: Work, queue: Queue, newest: Server, kind: str, record: Recorder
) -> None:
    """The client's settings are used. The client is not used or closed."""
    make = redis.Redis if kind == "threads" else redis.asyncio.Redis
    client: Any = make(unix_socket_path=newest.path, decode_responses=True, max_connections=1)
    worker = work(client=client)

    @worker.handler("q")
    def body(job: Job) -> None:
        with record(job.payload):
            pass

    queue.enqueue_many([b"x"] * 20)
    with worker:
        until(lambda: queue.counts().completed == 20)
    assert record.ended == [b"x"] * 20
    assert (
        client.connection_pool._created_connections == 0
        if kind == "threads"
        else not client.connection_pool._in_use_connections
    )
    with pytest.raises(ValueError, match="not both"):
        type(worker.worker)(client=client, url=newest.url)


def test_a_handler_stays_a_function(work: Work) -> None:
    """A decorated function can be called as before, in tests or by other handlers."""
    worker = work().worker

    def body(job: Job) -> bytes:
        return job.payload

    assert worker.handler("a")(body) is body
    assert worker.batch_handler("b")(body) is body


def test_a_worker_runs_once_at_a_time(work: Work, queue: Queue) -> None:
    worker = work()

    @worker.handler("q")
    def body(job: Job) -> None: ...

    with worker:
        until(queue.admin.workers)
        with pytest.raises(RuntimeError, match="running already"):
            worker.worker.start()
        assert len(queue.admin.workers()) == 1


def test_a_stop_is_not_held_up_by_a_read_that_begins_too_late(
    queue: Queue, newest: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop does not wait for a read that connects meanwhile."""
    monkeypatch.setattr(fetch, "BLOCK_S", 9.0)
    worker = Worker(url=newest.url)

    @worker.handler("q")
    def body(job: Job) -> None: ...

    queue.enqueue(b"x")
    worker.start()
    engine = worker._running
    assert engine is not None
    late = engine.executors["blocking"].wait

    def wait(command: Any) -> bool:
        assert engine.stopping.wait(PATIENCE)
        time.sleep(0.05)  # it comes after drain() has closed all connections there were
        return late(command)

    monkeypatch.setattr(engine.executors["blocking"], "wait", wait)
    until(lambda: queue.counts().completed == 1)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 8.5
    assert all(role.ended.is_set() for role in engine._running["wait"])


# -- how it ends -----------------------------------------------------------------------------------


def test_a_worker_without_handlers(work: Work, kind: str) -> None:
    worker = work()
    with pytest.raises(ConfigurationError, match="no handlers"):
        worker.worker.run()


def test_one_handler_for_a_queue(work: Work) -> None:
    worker = work()
    worker.handler("q")(print)
    for register in worker.handler("q"), worker.batch_handler("q"):
        with pytest.raises(ConfigurationError, match="has a handler already"):
            register(print)


def test_threads_take_no_coroutines(newest: Server) -> None:
    worker = Worker(url=newest.url)

    async def body(job: Job) -> None: ...

    with pytest.raises(ConfigurationError, match="AsyncWorker"):
        worker.handler("q")(body)


def test_a_role_that_dies_ends_the_worker(
    work: Work, queue: Queue, newest: Server, record: Recorder, gate: threading.Event
) -> None:
    """A key has another type. Handlers of other queues finish, and the error is raised."""
    worker = work(heartbeat=0.1, timeout=1.0)

    @worker.handler("q")
    def body(job: Job) -> Iterator[Any]:
        with record(job.payload):
            yield gate

    @worker.handler("broken")
    def broken(job: Job) -> None: ...

    queue.enqueue(b"x")
    worker.start()
    record.await_started(1)
    with (
        redis.Redis(unix_socket_path=newest.path) as client,
        Queue("broken", url=newest.url) as other,
    ):
        key = other.ops.keys.key("jobs")
        client.pipeline().delete(key).set(key, "no stream").execute()
    assert worker.engine is not None
    until(worker.engine.stopping.is_set)
    gate.set()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        worker.close()
    assert queue.counts() == Counts(enqueued=1, completed=1)
    assert queue.admin.workers() == []


@pytest.mark.parametrize("make", [Worker, AsyncWorker])
def test_the_error_comes_out_of_run(queue: Queue, newest: Server, make: Any) -> None:
    worker = make(url=newest.url)
    worker.handler("q")(lambda _: None)
    with redis.Redis(unix_socket_path=newest.path) as client:
        client.set(queue.ops.keys.key("jobs"), "no stream")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        worker.run()


@pytest.mark.parametrize("make", [Worker, AsyncWorker])
def test_no_server_there(make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A wrong address shows within seconds, as redis-py says it."""
    monkeypatch.setattr(retry, "FIRST_ANSWER_S", 0.3)
    worker = make(url=f"unix://{tmp_path}/no.sock")
    worker.handler("q")(lambda _: None)
    with pytest.raises(redis.ConnectionError):
        worker.run()


def test_an_error_in_the_block_is_not_replaced(queue: Queue, newest: Server) -> None:
    """The exception of the `with worker:` block is raised, and the worker has stopped."""
    worker = Worker(url=newest.url)
    worker.handler("q")(lambda _: None)
    with pytest.raises(LookupError, match="mine"), worker:  # noqa: PT012
        until(queue.admin.workers)
        raise LookupError("mine")
    assert queue.admin.workers() == []

    async def story() -> None:
        worker = AsyncWorker(url=newest.url)
        worker.handler("q")(lambda _: None)
        async with worker:
            while not queue.admin.workers():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        asyncio.run(story())
    assert queue.admin.workers() == []


def test_serve_may_be_cancelled(queue: Queue, newest: Server) -> None:
    """The owner of the event loop may cancel the call. All jobs are released, and `stop` may be
    called too."""

    async def story() -> None:
        worker = AsyncWorker(url=newest.url)
        began = asyncio.Event()

        @worker.handler("q")
        async def body(job: Job) -> None:
            began.set()
            await asyncio.sleep(PATIENCE)

        queue.enqueue(b"x")
        serving = asyncio.create_task(worker.serve())
        await began.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert payloads(queue, 1) == [(b"x", 1)]
        began.clear()
        queue.enqueue(b"y")
        serving = asyncio.create_task(worker.serve())
        await began.wait()
        await worker.stop(wait=False)
        await worker.stop()
        await serving
        assert payloads(queue, 1) == [(b"y", 1)]

    asyncio.run(asyncio.wait_for(story(), PATIENCE))


@pytest.mark.parametrize("more", [1, 2, 3])
def test_its_block_may_be_cancelled_more_than_once(queue: Queue, newest: Server, more: int) -> None:
    """A second cancellation at any moment releases all jobs. The worker ends and can be started
    again. After the last waiter has left, it leaves an embedded server by itself.
    """
    worker = AsyncWorker(url=newest.url)
    left: list[bool] = []
    worker._address.leave = lambda: left.append(True)  # type: ignore[method-assign]
    began = asyncio.Event()

    @worker.handler("q")
    async def body(job: Job) -> None:
        began.set()
        await asyncio.sleep(PATIENCE)

    async def block() -> None:
        async with worker:
            await asyncio.sleep(PATIENCE)

    async def story() -> None:
        before = asyncio.all_tasks()
        for turns in (1, 2, 3, 5, 10, 30, 100):  # without a turn between them two are one
            began.clear()
            working = asyncio.create_task(block())
            await began.wait()
            left.clear()
            engine = worker._running
            assert engine is not None
            working.cancel()
            for _ in range(more):
                for _ in range(turns):
                    await asyncio.sleep(0)
                working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            if more == 1:
                assert engine.finished
            while not engine.finished:  # noqa: ASYNC110 - who was cancelled once more did not wait
                await asyncio.sleep(0.01)
            assert left == [True]
            assert queue.admin.workers() == []
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == before
            (state,) = queue.admin.waiting()
            assert state.job.attempt == 1  # none was spent
        worker.start()
        await worker.stop()

    queue.enqueue(b"x")
    asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert queue.admin.workers() == []
    assert payloads(queue, 1) == [(b"x", 1)]


# connections that the loop left open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_its_loop_may_end_in_the_middle(queue: Queue, newest: Server) -> None:
    """A closed loop cancels the tasks of a stopping worker, which leaves first. A worker without a
    stop can be started on another loop.
    """
    its_loop_ends(queue, newest)
    until(lambda: "headrace-pulse" not in {thread.name for thread in threading.enumerate()})
    gc.collect()  # here, so that what is unclosed is no warning in another test


def its_loop_ends(queue: Queue, newest: Server) -> None:
    worker = AsyncWorker(url=newest.url)

    @worker.handler("q")
    async def body(job: Job) -> None:
        await asyncio.sleep(PATIENCE)

    async def abandoned() -> None:
        worker.start()
        engine: Any = worker._running
        while not queue.admin.running():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(worker.stop())
        await engine.stopping.wait()
        assert not stopping.done()

    async def unstopped() -> None:
        worker.start()
        while not queue.admin.workers():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def again() -> None:
        worker.start()
        await worker.stop()

    queue.enqueue(b"x")
    asyncio.run(abandoned())
    assert queue.admin.workers() == []
    assert [state.job.attempt for state in queue.admin.waiting()] == [1]
    queue.admin.purge()
    asyncio.run(unstopped())
    asyncio.run(again())


def test_a_subscription_that_is_opened_anew_as_the_worker_stops(
    queue: Queue, newest: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription is opened again between two lines of its reader. It is closed until the
    reader has ended."""
    closed, close = [], Subscription.close

    def lost(subscription: Subscription) -> None:
        closed.append(subscription)
        if len(closed) > 1:
            close(subscription)

    worker = Worker(url=newest.url, timeout=30.0)
    worker.handler("q")(print)
    worker.start()
    until(queue.admin.workers)
    monkeypatch.setattr(Subscription, "close", lost)
    worker.stop()
    assert queue.admin.workers() == []
    assert len(closed) > 1
