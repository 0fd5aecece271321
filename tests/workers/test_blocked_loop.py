"""Handlers that block the event loop of an `AsyncWorker`. Its jobs stay leased, and the log says
where it is blocked.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.asyncio
import redis.asyncio.sentinel

from headrace import AsyncWorker, Job, Queue, Worker
from headrace._engine.pulse import detach_sentinel
from headrace._net.aio.executor import AsyncExecutor
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server

QUICK = {"heartbeat": 0.2, "timeout": 0.8}
Said = Callable[[str], list[Any]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    caplog.set_level(logging.INFO, "headrace")
    return lambda event: [one for one in list(caplog.records) if getattr(one, "event", "") == event]


@pytest.fixture
def peer(newest: Server) -> Iterator[list[Job]]:
    """Start a worker on threads that may declare others dead, and return the list of its jobs."""
    got: list[Job] = []
    worker = Worker(url=newest.url, **QUICK)
    worker.handler("q", lease=1.2, concurrency=5)(got.append)
    with worker:
        time.sleep(QUICK["timeout"])  # until then it declares nobody dead
        yield got


def runs_async(worker: AsyncWorker, stop: threading.Event) -> threading.Thread:
    async def main() -> None:
        async with worker:
            while not stop.is_set():  # noqa: ASYNC110 - it is a thread's event
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    return thread


@pytest.fixture
def blocked(newest: Server) -> Iterator[Callable[..., list[int]]]:
    """Return a function that starts a worker whose handler blocks its loop until an event is set.
    It returns the attempts.
    """
    stop, threads, gates = threading.Event(), list[threading.Thread](), list[threading.Event]()

    def start(gate: threading.Event, **options: Any) -> list[int]:
        attempts: list[int] = []
        worker = AsyncWorker(url=newest.url, **QUICK)

        @worker.handler("q", concurrency=3, **options)
        async def hold(job: Job) -> None:
            attempts.append(job.attempt)
            if job.attempt == 1 and job.payload == b"block":
                gate.wait(PATIENCE)
            await asyncio.sleep(0)

        gates.append(gate)
        threads.append(runs_async(worker, stop))
        return attempts

    yield start
    stop.set()
    for gate in gates:
        gate.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_blocked_loop_keeps_its_jobs(
    newest: Server, blocked: Callable[..., list[int]], said: Said, request: pytest.FixtureRequest
) -> None:
    """The pulse renews the registration and the lease, so a peer takes no job."""
    gate = threading.Event()
    with Queue("q", url=newest.url, lease=1.2) as queue:
        attempts = blocked(gate, lease=1.2, deadline=PATIENCE)
        receipt = queue.enqueue(b"block")
        until(lambda: attempts)
        got: list[Job] = request.getfixturevalue("peer")
        time.sleep(2 * 1.2)
        assert queue.counts().leased == 1
        until(lambda: said("loop_blocked"))
        gate.set()
        until(lambda: queue.counts().completed == 1)
    assert (attempts, got) == ([1], [])
    # A busy machine may stop the worker for as long, too.
    (warning,) = (one for one in said("loop_blocked") if hasattr(one, "job_id"))
    text = warning.getMessage()
    assert warning.levelno == logging.WARNING
    assert (warning.queue, warning.job_id, warning.attempt) == ("q", receipt.id, 1)
    assert warning.handler.endswith(".hold")
    assert warning.handler in text
    assert "test_blocked_loop.py:" in text
    assert "plain def" in text
    until(lambda: said("loop_unblocked"))
    assert not said("worker_declared_dead")


def test_a_loop_that_is_blocked_for_ever_loses_its_jobs(
    newest: Server, blocked: Callable[..., list[int]], said: Said, request: pytest.FixtureRequest
) -> None:
    """After a lease the worker gives the jobs up, and after a timeout they run elsewhere. When the
    loop is back, it works again.
    """
    gate = threading.Event()
    with Queue("q", url=newest.url, lease=1.2) as queue:
        attempts = blocked(gate, lease=1.2)
        queue.enqueue(b"block")
        until(lambda: attempts)
        got: list[Job] = request.getfixturevalue("peer")
        until(lambda: got)
        assert got[0].attempt == 2
        assert said("worker_declared_dead")
        until(lambda: queue.counts().completed == 1)
        gate.set()
        until(lambda: said("loop_unblocked"))
        for _ in range(10):
            queue.enqueue(b"more")
        until(lambda: queue.counts().completed == 11)


def test_what_blocks_the_loop_besides_handlers_is_named(newest: Server, said: Said) -> None:
    worker = AsyncWorker(url=newest.url, **QUICK)
    worker.handler("q")(print)

    async def main() -> None:
        async with worker:
            asyncio.current_task().set_name("the-app")  # type: ignore[union-attr]
            await asyncio.sleep(0.1)
            until(lambda: said("loop_blocked"))

    asyncio.run(main())
    (warning,) = said("loop_blocked")
    assert "'the-app'" in warning.getMessage()
    assert warning.worker == worker.name


def test_a_loop_that_turns_is_not_named(newest: Server, said: Said) -> None:
    worker = AsyncWorker(url=newest.url, **QUICK)

    @worker.handler("q")
    def plain(_job: Job) -> None:
        time.sleep(3 * QUICK["heartbeat"])

    async def main() -> None:
        with Queue("q", url=newest.url) as queue:
            queue.enqueue(b"x")
            async with worker:
                while not queue.counts().completed:  # noqa: ASYNC110 - the server knows it
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    # others may be the machine's doing
    assert not [one for one in said("loop_blocked") if hasattr(one, "job_id")]


def pulses() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-pulse"]


def test_the_pulse_ends_with_the_worker(newest: Server) -> None:
    worker = AsyncWorker(url=newest.url)
    worker.handler("q")(print)
    before = pulses()

    async def main() -> None:
        async with worker:
            assert len(pulses()) == len(before) + 1

    asyncio.run(main())
    until(lambda: pulses() == before)


# connections that the loop left open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_pulse_ends_with_a_loop_that_is_closed_under_the_worker(newest: Server) -> None:
    """The worker's jobs can't run any more. Peers take them over, as after a kill."""
    before = pulses()
    abandoned(newest.url)
    until(lambda: pulses() == before)
    with Queue("q", url=newest.url) as queue:
        until(lambda: not any(one.alive for one in queue.admin.workers()))
    gc.collect()


def abandoned(url: str) -> None:
    worker = AsyncWorker(url=url, **QUICK)
    worker.handler("q")(print)

    async def main() -> None:
        worker.start()
        with Queue("q", url=url) as queue:
            while not queue.admin.workers():  # noqa: ASYNC110 - the server knows it
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_the_pulse_asks_sentinels_of_its_own() -> None:
    """The user's Sentinel clients belong to the user's event loop. The pulse makes its own of the
    same class."""

    class Own(redis.asyncio.sentinel.Sentinel):
        async def discover_master(self, service_name: str) -> Any:
            return await super().discover_master(service_name)

    watch = Own([("a", 1), ("b", 2)], sentinel_kwargs={"password": "x"}, db=3)
    theirs = watch.master_for("primary")
    pool: Any = AsyncExecutor(client=theirs).pool
    assert pool.sentinel_manager is watch
    detach_sentinel(pool)
    ours = pool.sentinel_manager
    places = [one.connection_pool.connection_kwargs for one in ours.sentinels]
    assert [(one["host"], one["port"], one["password"]) for one in places] == [
        ("a", 1, "x"),
        ("b", 2, "x"),
    ]
    assert not set(map(id, ours.sentinels)) & set(map(id, watch.sentinels))
    assert ours.connection_kwargs == watch.connection_kwargs
