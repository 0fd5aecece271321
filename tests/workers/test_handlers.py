"""Handlers and batch handlers. The tests check how many run at once, how many jobs are leased
ahead, and several queues.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import (
    AsyncWorker,
    BatchError,
    ConfigurationError,
    Counts,
    DeadLetter,
    Job,
    Queue,
    Release,
    Retry,
    RetryLater,
    Worker,
)
from headrace._api.sync.worker import THREADS_AT_MOST
from headrace._engine.threads import Engine
from headrace.testing import run_until_empty
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]


@contextmanager
def queues(server: Server, *names: str) -> Iterator[list[Queue]]:
    made = [Queue(name, url=server.url) for name in names]
    yield made
    for queue in made:
        queue.close()


def calls(server: Server) -> Counter[str]:
    """Return how often each command ran since the server's start."""
    with server.client() as client:
        stats: dict[str, dict[str, int]] = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()})


# -- concurrency -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 1000])
def test_every_job_runs_once(work: Work, queue: Queue, record: Recorder, number: int) -> None:
    """1, 2 and 1,000 jobs run. The counts are exact afterwards, and no key of the worker is left
    (H-1)."""
    worker = work()

    @worker.handler("q")
    def body(job: Job) -> None:
        with record(job.payload):
            pass

    queue.enqueue_many([b"%d" % i for i in range(number)])
    with worker:
        until(lambda: queue.counts().completed == number)
    assert sorted(record.ended, key=int) == [b"%d" % i for i in range(number)]
    assert queue.counts() == Counts(enqueued=number, completed=number)
    assert queue.admin.workers() == []


def test_four_workers_share_a_queue(work: Work, queue: Queue, record: Recorder) -> None:
    """Four workers run 1,000 jobs. Each job runs once, and each worker gets some (H-1)."""
    workers = [work(name=f"w{n}") for n in range(4)]
    for worker in workers:

        @worker.handler("q", concurrency=2)
        def body(job: Job, name: str = worker.worker.name) -> Iterator[float]:
            with record((name, job.id)):
                yield 0.002

    for worker in workers:
        worker.start()
    queue.enqueue_many([b"x"] * 1000)
    until(lambda: queue.counts().completed == 1000)
    for worker in workers:
        worker.close()
    assert len({job for _, job in record.ended}) == len(record.ended) == 1000
    assert len({name for name, _ in record.ended}) == 4


def test_concurrency_is_used_and_never_exceeded(work: Work, queue: Queue, record: Recorder) -> None:
    worker = work()

    @worker.handler("q", concurrency=3)
    def body(job: Job) -> Iterator[float]:
        with record(job.id):
            yield 0.01

    queue.enqueue_many([b"x"] * 60)
    with worker:
        until(lambda: queue.counts().completed == 60)
    assert record.most == 3


def test_a_lone_job_begins_in_the_thread_that_waited_for_it(
    newest: Server, queue: Queue, record: Recorder
) -> None:
    """So a queue has one thread more than slots. Another thread waits while handlers run, and as
    many of these run as there are slots.
    """
    worker = Worker(url=newest.url)
    threads: set[int] = set()
    gates = [threading.Event()]

    @worker.handler("q", concurrency=2)
    def body(job: Job) -> None:
        threads.add(threading.get_ident())
        with record(job.id):
            assert gates[-1].wait(PATIENCE)

    def each_has_had_one() -> bool:
        before = len(record.started)
        for number in (1, 2):  # one by one: each begins as it comes
            queue.enqueue(b"x")
            record.await_started(before + number)
        queue.enqueue(b"x")  # there is no slot for it, but it may be leased ahead
        assert worker._running is not None
        (consumer,) = worker._running.lifecycle.consumers
        until(lambda: queue.counts().leased == 3 or not consumer.ahead())
        gates[-1].set()
        until(lambda: queue.counts().completed == before + 3)
        gates.append(threading.Event())
        return len(threads) == 3

    with worker:
        until(each_has_had_one)
    assert record.most == 2


def test_a_handler_with_one_slot_runs_in_one_thread(newest: Server, queue: Queue) -> None:
    """Objects of a handler, such as a SQLite connection, may belong to one thread."""
    worker = Worker(url=newest.url)
    threads: list[int] = []

    @worker.handler("q", concurrency=1)
    def body(job: Job) -> None:
        threads.append(threading.get_ident())

    with worker:
        for number in range(1, 5):
            queue.enqueue(b"x")
            until(lambda number=number: queue.counts().completed == number)
    assert len(set(threads)) == 1


@pytest.mark.parametrize("theirs", [False, True])
def test_tasks_that_end_as_they_begin(newest: Server, queue: Queue, theirs: bool) -> None:
    """Handlers that never wait still run in a task, in the allowed number, and leave no task
    behind. One of them may stop its worker. Since Python 3.12 tasks can begin when they are made,
    by headrace or by the program's factory.
    """
    if theirs and sys.version_info < (3, 12):
        pytest.skip("asyncio.eager_task_factory is new in Python 3.12")
    worker, running, most, seen, tasks = (
        AsyncWorker(url=newest.url),
        0,
        0,
        list[bytes](),
        set[Any](),
    )

    @worker.handler("q", concurrency=3)
    async def body(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        tasks.add(asyncio.current_task())
        async with asyncio.timeout(PATIENCE):
            if job.payload.endswith(b"0"):
                await asyncio.sleep(0)
        seen.append(job.payload)
        running -= 1
        if len(seen) == 200:
            await worker.stop()

    async def story() -> list[int]:
        if theirs:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        await worker.serve()
        engine: Any = worker._running
        return [len(slots.tasks) for slots in engine._slots.values()]

    queue.enqueue_many([b"%d" % number for number in range(200)])
    assert asyncio.run(story()) == [0]
    assert sorted(seen, key=int) == [b"%d" % number for number in range(200)]
    assert most <= 3
    assert len(tasks) == 200
    assert {task.get_name() for task in tasks} == {"headrace-q"}
    assert queue.counts() == Counts(enqueued=200, completed=200)


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def returns_coroutine(seen: list[str], gate: asyncio.Event | None = None) -> Callable[[Any], Any]:
    """Return a plain function that sets a variable and returns a coroutine, as wrappers and lambdas
    do."""

    async def body(argument: Any) -> bytes:
        try:
            await (asyncio.sleep(0) if gate is None else gate.wait())
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        seen.append(TENANT.get())
        return b"done"

    def handler(argument: Any) -> Any:
        TENANT.set("somebody")
        return body(argument)

    return handler


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_an_awaitable_result_is_awaited_by_an_async_worker(
    newest: Server, queue: Queue, around: bool, batch: bool
) -> None:
    """It is awaited within the middleware, with the context variables of the function that made
    it."""
    worker, seen = AsyncWorker(url=newest.url), list[str]()
    register = worker.batch_handler("q") if batch else worker.handler("q")
    register(returns_coroutine(seen))
    if around:

        @worker.middleware
        async def surround(_job: Any, call: Callable[[], Any]) -> Any:
            result = await call()
            seen.append("left")
            return result

    ids = [receipt.id for receipt in queue.enqueue_many([b"x"])]

    async def story() -> None:
        async with worker:
            while queue.counts().completed < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert seen == ["somebody", *(["left"] if around else [])]
    assert batch or queue.result(ids[0], timeout=PATIENCE) == b"done"
    assert queue.counts().delayed == 0


@pytest.mark.parametrize("around", [False, True])
def test_what_awaits_a_result_is_cancelled_when_its_deadline_is_over(
    newest: Server, queue: Queue, around: bool
) -> None:
    worker, seen = AsyncWorker(url=newest.url), list[str]()
    if around:

        @worker.middleware
        async def surround(_job: Any, call: Callable[[], Any]) -> Any:
            return await call()

    async def story() -> None:
        handler = returns_coroutine(seen, asyncio.Event())
        worker.handler("q", deadline=0.2, retry=Retry(attempts=1))(handler)
        async with worker:
            while not seen or not queue.counts().dead:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    queue.enqueue(b"x")
    asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert seen == ["cancelled"]


@pytest.mark.parametrize("around", [False, True])
def test_what_awaits_a_result_is_cancelled_by_the_end(
    newest: Server, queue: Queue, around: bool
) -> None:
    """The job goes back with no attempt spent."""
    worker, seen = AsyncWorker(url=newest.url), list[str]()
    if around:

        @worker.middleware
        async def surround(_job: Any, call: Callable[[], Any]) -> Any:
            return await call()

    async def story() -> None:
        worker.handler("q")(returns_coroutine(seen, asyncio.Event()))
        worker.start()
        engine: Any = worker._running
        (slots,) = engine._slots.values()
        while not slots.awaited:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await worker.stop(wait=False)
        await worker.stop()

    queue.enqueue(b"x")
    asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert seen == ["cancelled"]
    assert queue.counts().parked == 1


@pytest.mark.filterwarnings("error")
def test_an_awaitable_result_is_a_failure_under_a_worker(newest: Server, queue: Queue) -> None:
    worker, seen = Worker(url=newest.url), list[str]()
    worker.handler("q", retry=Retry(attempts=1))(returns_coroutine(seen))
    queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().dead)
    (letter,) = queue.admin.dead()
    assert letter.reason is not None
    assert "returned an awaitable (coroutine), which nobody awaits" in letter.reason
    assert not seen


@pytest.mark.slow
def test_one_at_a_time_is_in_order(work: Work, queue: Queue, record: Recorder) -> None:
    """This holds however far ahead it leases, and with any number of calls under way."""
    worker = work()

    @worker.handler("q", concurrency=1)
    def body(job: Job) -> None:
        with record(int(job.payload)):
            pass

    queue.enqueue_many([b"%d" % i for i in range(4000)])
    with worker:
        until(lambda: queue.counts().completed == 4000)
    assert record.started == list(range(4000))


@pytest.mark.slow
def test_a_flood_in_one_queue_starves_no_other(work: Work, newest: Server) -> None:
    """Each handler has its own slots. Jobs of a small queue run while thousands wait in another."""
    worker = work()
    order: list[str] = []

    @worker.handler("flood", concurrency=4)
    def flood(job: Job) -> Iterator[float]:
        order.append("flood")
        yield 0.001

    @worker.handler("drops", concurrency=1)
    def drops(job: Job) -> Iterator[float]:
        order.append("drop")
        yield 0.001

    with queues(newest, "flood", "drops") as (flooded, dropped):
        flooded.enqueue_many([b"x"] * 3000)
        with worker:
            until(lambda: len(order) > 100)
            dropped.enqueue_many([b"x"] * 20)
            until(lambda: order.count("drop") == 20)
            left = flooded.counts()
            until(lambda: flooded.counts().completed == 3000)
    assert left.present > 0  # it was a flood until the last drop


def test_slow_handlers_of_one_queue_hold_up_no_other(
    work: Work, newest: Server, gate: threading.Event, record: Recorder
) -> None:
    worker = work()

    @worker.handler("stuck", concurrency=2)
    def stuck(job: Job) -> Iterator[threading.Event]:
        yield gate

    @worker.handler("free", concurrency=2)
    def free(job: Job) -> None:
        with record(job.id):
            pass

    with queues(newest, "stuck", "free") as (slow, quick):
        slow.enqueue_many([b"x"] * 10)
        with worker:
            until(lambda: slow.counts().leased == 2)
            quick.enqueue_many([b"x"] * 100)
            record.await_ended(100)
            gate.set()
            until(lambda: slow.counts().completed == 10)


# -- fetching --------------------------------------------------------------------------------------


def test_no_more_is_leased_than_can_start(
    work: Work, queue: Queue, gate: threading.Event, record: Recorder
) -> None:
    """A worker with two slow handlers holds two jobs, and another worker gets the rest."""
    slow, quick = work(), work()

    @slow.handler("q", concurrency=2)
    def waits(job: Job) -> Iterator[threading.Event]:
        with record(job.id):
            yield gate

    done: list[str] = []

    @quick.handler("q", concurrency=2)
    def runs(job: Job) -> None:
        done.append(job.id)

    receipts = queue.enqueue_many([b"x"] * 20)
    with slow:
        record.await_started(2)
        counts = queue.counts()
        assert (counts.leased, counts.waiting) == (2, 18)
        with quick:
            until(lambda: len(done) == 18)
        assert set(done) == {receipt.id for receipt in receipts[2:]}
        assert queue.counts().leased == 2
        gate.set()
        until(lambda: queue.counts().completed == 20)


@pytest.mark.slow
def test_what_was_leased_ahead_of_a_handler_that_hangs_goes_to_others(
    work: Work, queue: Queue, gate: threading.Event
) -> None:
    """A quick worker leases some jobs ahead. If its handler then hangs, they go back to their
    place."""
    first, second = work(), work()
    held: list[bytes] = []

    @first.handler("q", concurrency=1)
    def hangs(job: Job) -> Iterator[threading.Event]:
        if job.payload == b"hang":
            held.append(job.payload)
            yield gate

    done: list[Job] = []

    @second.handler("q", concurrency=1)
    def runs(job: Job) -> None:
        done.append(job)

    def is_quick() -> bool:
        """Tell whether the first worker leases ahead after some more jobs. On a busy machine one
        job may take long."""
        queue.enqueue_many([b"quick"] * 200)
        until(lambda: queue.counts().present == 0)
        return first.engine.lifecycle.consumers[0].ahead() > 1

    with first:
        until(is_quick)
        before = queue.counts().completed
        receipts = queue.enqueue_many([b"hang", *[b"later"] * 30])
        until(lambda: held)
        until(
            lambda: first.engine.lifecycle.consumers[0].leasing.saturated,
            "it gives back what it can't start",
        )
        until(lambda: queue.counts().leased == 1)
        with second:
            until(lambda: len(done) == 30)
        assert [job.id for job in done] == [receipt.id for receipt in receipts[1:]]
        assert {job.attempt for job in done} == {1}
        gate.set()
        until(lambda: queue.counts().completed == before + 31)


def test_what_went_back_as_no_thread_could_begin_is_leased_again(
    queue: Queue, newest: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine all threads may wait for a second. No handler then ends and makes the
    worker lease again."""
    may_begin, went_back = threading.Event(), threading.Event()

    class Gated(SimpleQueue[Any]):
        def get(self, *args: Any, **options: Any) -> Any:
            may_begin.wait()
            return super().get(*args, **options)

    def take_back(engine: Engine, consumer: Any) -> Any:
        units, others = taken_back(engine, consumer)
        if units:
            went_back.set()
        return units, others

    taken_back = Engine.take_back
    monkeypatch.setattr(Engine, "take_back", take_back)
    monkeypatch.setattr(
        "headrace._engine.threads.queue", SimpleNamespace(SimpleQueue=Gated, Empty=Empty)
    )
    worker = Worker(newest.url)
    worker.handler("q", concurrency=2)(lambda _job: None)
    queue.enqueue_many([b"x"] * 3)
    try:
        with worker:
            assert went_back.wait(60)
            may_begin.set()
            until(lambda: queue.counts().completed == 3)
    finally:
        may_begin.set()


def test_settling_and_leasing_share_a_round_trip(work: Work, queue: Queue, newest: Server) -> None:
    """One call settles finished jobs and leases more, so there are far fewer calls than jobs."""
    worker = work(heartbeat=30, timeout=60)

    @worker.handler("q")
    def body(job: Job) -> None:
        pass

    queue.enqueue_many([b"x"] * 20_000)
    before = calls(newest)
    with worker:
        until(lambda: queue.counts().completed == 20_000)
    ran = calls(newest) - before
    assert ran["xreadgroup"] < 1500  # lease calls and blocked reads
    assert ran["evalsha"] + ran["eval"] < 4000


# -- batches ---------------------------------------------------------------------------------------


def test_batches_are_full_when_there_is_enough(work: Work, queue: Queue, record: Recorder) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=100, max_wait=30.0)
    def body(jobs: list[Job]) -> None:
        with record([job.payload for job in jobs]):
            pass

    queue.enqueue_many([b"%d" % i for i in range(500)])
    with worker:
        record.await_ended(5)
        until(lambda: queue.counts().completed == 500)
    assert [len(batch) for batch in record.ended] == [100] * 5
    # in order
    assert [payload for batch in record.ended for payload in batch] == [
        b"%d" % i for i in range(500)
    ]
    assert record.most == 1


def test_a_batch_may_be_larger_than_one_script_hands_out(
    work: Work, queue: Queue, record: Recorder
) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=2500, max_wait=30.0)
    def body(jobs: list[Job]) -> None:
        with record(len(jobs)):
            pass

    queue.enqueue_many([b"x"] * 2500)
    with worker:
        until(lambda: queue.counts().completed == 2500)
    assert record.ended == [2500]


def test_a_batch_waits_no_longer_than_it_may(work: Work, queue: Queue, record: Recorder) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=100, max_wait=0.3)
    def body(jobs: list[Job]) -> None:
        with record(([job.payload for job in jobs], time.monotonic())):
            pass

    with worker:
        until(queue.admin.workers)
        began = time.monotonic()
        queue.enqueue(b"first")
        until(lambda: queue.counts().leased == 1)
        queue.enqueue(b"second")
        record.await_ended(1)
        until(lambda: queue.counts().completed == 2)
    payloads, at = record.ended[0]
    assert payloads == [b"first", b"second"]
    assert at - began >= 0.3


def test_batches_of_several_slots_run_side_by_side(
    work: Work, queue: Queue, record: Recorder, gate: threading.Event
) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=10, max_wait=0.01, concurrency=3)
    def body(jobs: list[Job]) -> Iterator[threading.Event]:
        with record(len(jobs)):
            yield gate

    queue.enqueue_many([b"x"] * 100)
    with worker:
        record.await_started(3)
        counts = queue.counts()
        assert (counts.leased, counts.waiting) == (30, 70)
        gate.set()
        until(lambda: queue.counts().completed == 100)
    assert record.most == 3


def test_verdicts_of_a_batch(work: Work, queue: Queue) -> None:
    """`BatchError` settles some jobs by their own exceptions. The others are completed."""
    worker = work()
    seen: list[dict[bytes, int]] = []

    @worker.batch_handler("q", max_size=10, max_wait=0.05, retry=Retry(wait=0))
    def body(jobs: list[Job]) -> None:
        seen.append({job.payload: job.attempt for job in jobs})
        verdicts: dict[bytes, BaseException] = {
            b"dead": DeadLetter("no good"),
            b"later": RetryLater(0.0, "busy"),
            b"back": Release(),
            b"fail": ValueError("oops"),
        }
        failures = {
            job.id: verdicts[job.payload]
            for job in jobs
            if job.attempt == 1 and job.payload in verdicts
        }
        if failures and len(seen) == 1:
            raise BatchError(failures)

    queue.enqueue_many([b"good", b"dead", b"later", b"back", b"fail", b"fine"])
    with worker:
        until(lambda: queue.counts().completed == 5)
    assert queue.counts() == Counts(enqueued=6, completed=5, dead=1)
    assert [(letter.job.payload, letter.reason) for letter in queue.admin.dead()] == [
        (b"dead", "no good")
    ]
    again = {payload: attempt for batch in seen[1:] for payload, attempt in batch.items()}
    assert again == {b"later": 1, b"back": 1, b"fail": 2}


def test_a_batch_that_raises_fails_as_a_whole(work: Work, queue: Queue) -> None:
    worker = work()
    sizes: list[int] = []

    @worker.batch_handler("q", max_size=10, max_wait=0.05, retry=Retry(attempts=2, wait=0))
    def body(jobs: list[Job]) -> None:
        sizes.append(len(jobs))
        raise OSError("no route")

    queue.enqueue_many([b"x"] * 10)
    with worker:
        until(lambda: queue.counts().dead == 10)
    assert sum(sizes) == 20
    assert {(letter.job.attempt, letter.reason) for letter in queue.admin.dead()} == {
        (2, "OSError: no route")
    }


def test_a_batch_keeps_no_result(work: Work, queue: Queue) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=1, max_wait=0)
    def body(jobs: list[Job]) -> bytes:
        return b"ignored"

    receipt = queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().completed == 1)
    assert queue.result(receipt.id) is None


# -- registering -----------------------------------------------------------------------------------


def test_another_queue_is_left_alone(work: Work, queue: Queue, kind: str) -> None:
    """A worker without a handler for the queue leaves its jobs alone."""
    worker = work()

    @worker.handler("other")
    def body(job: Job) -> None:
        pass

    queue.enqueue(b"x")
    if kind == "threads":
        with pytest.raises(TimeoutError, match="still 1 jobs"):
            run_until_empty(worker.worker, queue, timeout=0.1)
    with worker, Queue("other", url=worker.worker._address.target) as other:
        other.enqueue(b"x")
        until(lambda: other.counts().completed == 1)
    assert queue.counts() == Counts(waiting=1, enqueued=1)


def test_more_threads_than_a_process_should_have_are_refused() -> None:
    """The error comes before a call to a server or a hook, and says what to do."""
    worker = Worker("redis://127.0.0.1:1/0")
    for name in "a", "b":
        worker.handler(name, concurrency=THREADS_AT_MOST // 2)(print)
    worker.on_start(pytest.fail)
    with pytest.raises(
        ConfigurationError, match=r"20,000 slots of 2 queues take 20,004 threads.*AsyncWorker"
    ):
        worker.start()


def test_arguments_are_checked_at_once(work: Work) -> None:
    worker = work().worker

    def body(job: Job) -> None:
        pass

    bad: list[dict[str, Any]] = [
        {"concurrency": 0},
        {"concurrency": "3"},
        {"retry": 3},
        {"deadline": 0},
        {"lease": -1},
        {"max_attempts": 0},
        {"dead_limit": -1},
        {"result_ttl": 0},
        {"fenced": 1},
    ]
    for options in bad:
        with pytest.raises((ValueError, TypeError), match=next(iter(options))):
            worker.handler("q", **options)(body)
    with pytest.raises(ValueError, match="max_wait"):
        worker.batch_handler("q", max_wait=-1)
    with pytest.raises(ValueError, match="max_size"):
        worker.batch_handler("q", max_size=0)(body)
    with pytest.raises(ValueError, match="queue name"):
        worker.handler("no/good/name")(body)
    with pytest.raises(TypeError, match="callable"):
        worker.handler("q")("body")
    assert worker.handlers == {}
