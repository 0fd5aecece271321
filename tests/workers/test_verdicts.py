"""The end of a handler settles its job. The tests cover results, retries, verdicts, deadlines and
unexpected errors."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import pairwise
from typing import Any

import pytest
import redis
from tenacity import (
    retry_if_exception_message,
    retry_if_exception_type,
    stop_after_attempt,
    wait_chain,
    wait_fixed,
    wait_random,
)

from headrace import AsyncWorker, Counts, DeadLetter, Job, Queue, Release, Retry, RetryLater
from headrace._core.verdicts import FREE_RELEASES
from headrace._model.codec import BytesCodec
from headrace.codecs import JSONCodec
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Recorder, Running
from tests.support.servers import Server

Work = Callable[..., Running]


# -- results ---------------------------------------------------------------------------------------


def test_a_return_value_is_the_result(work: Work, queue: Queue) -> None:
    worker = work()

    @worker.handler("q")
    def body(job: Job) -> bytes | None:
        return None if job.payload == b"nothing" else b"did " + job.payload

    receipts = queue.enqueue_many([b"one", b"", b"nothing"])
    with worker:
        assert queue.result(receipts[0].id, timeout=PATIENCE) == b"did one"
        assert queue.result(receipts[1].id, timeout=PATIENCE) == b"did "
        until(lambda: queue.counts().completed == 3)
    assert queue.result(receipts[2].id) is None


class Silent(StopIteration):
    """An exception that can't be inspected or set in a future."""

    def __repr__(self) -> str:
        raise GeneratorExit

    __str__ = __repr__


class SilentRelease(Release):
    """A verdict that can't be inspected."""

    def __bool__(self) -> bool:
        raise GeneratorExit


@pytest.mark.parametrize(
    ("error", "persistent"), [(Silent, False), (Silent, True), (SilentRelease, True)]
)
def test_what_cannot_be_looked_at_takes_no_slot(
    work: Work, queue: Queue, error: type[Exception], persistent: bool
) -> None:
    """It ends its job like any other, and the only slot is free for the next."""
    worker = work()
    ran: list[bytes] = []

    @worker.handler("q", concurrency=1, retry=Retry(wait=60), persistent=persistent)
    def body(job: Job) -> None:
        ran.append(job.payload)
        raise error if job.payload == b"bad" else DeadLetter("ran")

    queue.enqueue_many([b"bad", b"good"])
    with worker:
        until(lambda: b"good" in ran, "the other job")


@pytest.mark.parametrize("commands", [["+@all"], ["+@all", "-config"]])
def test_a_result_larger_than_the_server_takes(
    kind: str, newest: Server, commands: list[str]
) -> None:
    """The job completes without its result, even if the user can't ask for the limit. Other jobs
    complete too."""
    large = b"x" * (3 << 20)
    with (
        Server(newest.binary, extra=["--proto-max-bulk-len", "1mb"]) as server,
        Queue("q", url=server.url) as queue,
    ):
        with redis.Redis(unix_socket_path=server.path) as admin:
            admin.acl_setuser(
                "default", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=commands
            )
        worker = Running(kind, url=server.url)

        @worker.handler("q", retry=Retry(attempts=1), concurrency=4)
        def body(job: Job) -> bytes | None:
            return {b"large": large, b"small": b"s"}.get(job.payload)

        queue.enqueue_many([b"small", b"large", b"none"] * 3)
        with worker:
            until(lambda: queue.counts().completed == 9, "the end of all")
            receipt = queue.enqueue(b"small")
            assert queue.result(receipt.id, timeout=PATIENCE) == b"s"  # it goes on
        assert queue.counts() == Counts(enqueued=10, completed=10)


def test_results_by_codec(work: Work, newest: Server) -> None:
    worker = work()

    @worker.handler("q", codec=JSONCodec())
    def body(job: Job) -> Any:
        return {"twice": job.payload["n"] * 2}

    with Queue("q", url=newest.url, codec=JSONCodec()) as queue, worker:
        receipt = queue.enqueue({"n": 21})
        assert queue.result(receipt.id, timeout=PATIENCE) == {"twice": 42}


def test_a_result_that_cannot_be_kept_fails_no_job(
    work: Work, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is not repeated. The job is complete, and the log names the missing result."""
    worker = work()
    ran: list[bytes] = []

    @worker.handler("q")
    def body(job: Job) -> Any:
        ran.append(job.payload)
        return 42 if job.payload == b"number" else b"fine"

    number, _ = queue.enqueue_many([b"number", b"bytes"])
    with worker:
        # its queue could not tell whether it is still to come
        assert number.result(timeout=PATIENCE) is None
        until(lambda: queue.counts() == Counts(enqueued=2, completed=2))
    assert sorted(ran) == [b"bytes", b"number"]
    (record,) = [
        record for record in caplog.records if getattr(record, "event", "") == "result_dropped"
    ]
    assert (record.levelname, record.job_id) == ("ERROR", number.id)  # type: ignore[attr-defined]
    assert "TypeError: result: payload must be bytes or str, not int" in record.getMessage()


def test_undecodable_jobs_are_quarantined(work: Work, newest: Server, record: Recorder) -> None:
    """Each such job becomes a dead letter once, with its raw bytes and the reason. The queue goes
    on (H-7)."""
    worker = work()

    @worker.handler("q", codec=JSONCodec(), concurrency=1)
    def body(job: Job) -> None:
        with record(job.payload):
            pass

    with Queue("q", url=newest.url) as queue, redis.Redis(unix_socket_path=newest.path) as client:
        queue.enqueue_many([b"1", b"{", b"2", b"\xff\x00", b"3"])
        stream = queue.ops.keys.key("jobs")
        client.xadd(stream, {"no": "data"})
        queue.enqueue(b"4")
        with worker:
            until(lambda: queue.counts().completed == 4)
            until(lambda: queue.counts().dead == 3)
        letters = list(queue.admin.dead())
        assert [letter.job.payload for letter in letters] == [b"{", b"\xff\x00", b""]
        assert all(letter.reason for letter in letters)
        assert queue.counts().present == 3
    assert record.ended == [1, 2, 3, 4]


# -- retries ---------------------------------------------------------------------------------------


def test_a_failure_is_tried_again_until_it_works(work: Work, queue: Queue) -> None:
    """Two failures and a success make three deliveries, and the handler sees the attempt (H-2)."""
    worker = work()
    attempts: list[int] = []

    @worker.handler("q", retry=Retry(wait=wait_fixed(0.01)))
    def body(job: Job) -> bytes:
        attempts.append(job.attempt)
        if job.attempt < 3:
            raise OSError("not yet")
        return b"at last"

    receipt = queue.enqueue(b"x")
    with worker:
        assert queue.result(receipt.id, timeout=PATIENCE) == b"at last"
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize(
    ("retry", "runs"),
    [
        (Retry(attempts=1), 1),
        (Retry(attempts=3, wait=0), 3),
        (Retry(attempts=4, wait=wait_random(0, 0.01)), 4),
        (Retry(wait=0, stop=stop_after_attempt(2)), 2),
        (
            Retry(
                attempts=5,
                wait=wait_chain(wait_fixed(0.01), wait_fixed(0)),
                stop=stop_after_attempt(3),
            ),
            3,
        ),
        (Retry(retry=retry_if_exception_type(ValueError), wait=0), 1),
        (Retry(attempts=2, retry=retry_if_exception_message(match="no r"), wait=0), 2),
    ],
)
def test_tenacitys_objects(work: Work, queue: Queue, retry: Retry, runs: int) -> None:
    """`wait_*`, `stop_*` and `retry_if_*` are used unchanged. The last failure makes a dead letter
    with a reason."""
    worker = work()
    attempts: list[int] = []

    @worker.handler("q", retry=retry)
    def body(job: Job) -> None:
        attempts.append(job.attempt)
        raise OSError("no route")

    queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().dead == 1)
    assert attempts == list(range(1, runs + 1))
    (letter,) = queue.admin.dead()
    assert (letter.job.attempt, letter.reason) == (runs, "OSError: no route")


def test_waits_are_kept(work: Work, queue: Queue) -> None:
    """A failed job is delayed on the server and then goes to the back. Other jobs run before it."""
    worker = work()
    ran: list[tuple[bytes, float]] = []

    @worker.handler("q", concurrency=1, retry=Retry(wait=wait_fixed(0.5)))
    def body(job: Job) -> None:
        ran.append((job.payload, time.monotonic()))
        if job.payload == b"a" and job.attempt == 1:
            raise OSError

    with worker:
        queue.enqueue_many([b"a", b"b"])
        until(lambda: queue.counts().delayed == 1)
        queue.enqueue(b"c")
        until(lambda: queue.counts().completed == 3)
    assert [payload for payload, _ in ran] == [b"a", b"b", b"c", b"a"]
    assert ran[3][1] - ran[0][1] >= 0.45


def test_verdicts(work: Work, queue: Queue) -> None:
    """RetryLater and Release spend no attempt, and RetryLater(spend=True) does. DeadLetter ends the
    job."""
    worker = work()
    attempts: list[tuple[bytes, int]] = []
    verdicts = {
        b"later": RetryLater(0.01, "not now"),
        b"spent": RetryLater(0.01, spend=True),
        b"back": Release(),
        b"class": Release,
        b"dead": DeadLetter("too late"),
    }

    @worker.handler("q", concurrency=1)
    def body(job: Job) -> None:
        first = job.payload not in {payload for payload, _ in attempts}
        attempts.append((job.payload, job.attempt))
        if first:
            raise verdicts[job.payload]

    queue.enqueue_many(list(verdicts))
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=5, completed=4, dead=1))
    again = {payload: attempt for payload, attempt in attempts[::-1] if payload != b"dead"}
    assert sorted(attempts) == sorted(
        [(payload, 1) for payload in verdicts]
        + [(payload, 2 if payload == b"spent" else 1) for payload in again]
    )
    assert [letter.reason for letter in queue.admin.dead()] == ["too late"]


def test_retry_goes_to_the_back_and_release_to_the_front(work: Work, queue: Queue) -> None:
    """Both orders are checked (H-3, W-8)."""
    worker = work()
    order: list[bytes] = []

    @worker.handler("q", concurrency=1, retry=Retry(wait=0))
    def body(job: Job) -> Iterator[float]:
        order.append(job.payload)
        yield 0.1  # so slow that no other job is leased in advance
        if order.count(job.payload) == 1:
            if job.payload == b"release":
                raise Release
            if job.payload == b"retry":
                raise OSError

    queue.enqueue(b"warm")
    lease = queue.lease()
    assert lease is not None
    # a script that the server does not know yet would run behind the lease sent with it
    lease.release()
    assert queue.admin.purge() == 1
    queue.enqueue_many([b"retry", b"release", b"c", b"d"])
    with worker:
        until(lambda: queue.counts().completed == 4)
    assert order == [b"retry", b"release", b"release", b"c", b"d", b"retry"]


@pytest.mark.parametrize("way", ["worker", "handler"])
def test_where_it_failed_stays_with_the_job(work: Work, queue: Queue, way: str) -> None:
    """The reason is always kept. The place is kept on request, without frames of headrace before
    the handler's."""
    worker = work(tracebacks=True) if way == "worker" else work()
    options: dict[str, Any] = {"tracebacks": True} if way == "handler" else {}

    def inner(job: Job) -> None:
        raise OSError(f"no {job.payload.decode()}")

    @worker.handler("q", retry=Retry(wait=60, on={EOFError: DeadLetter}), **options)
    def body(job: Job) -> None:
        if job.payload == b"dead":
            raise EOFError("never")
        inner(job)

    queue.enqueue_many([b"luck", b"dead"])
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=2, delayed=1, dead=1))
    (delayed,), (letter,) = queue.admin.delayed(), queue.admin.dead()
    assert (delayed.reason, letter.reason) == ("OSError: no luck", "EOFError: never")
    assert delayed.traceback is not None
    lines = delayed.traceback.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "OSError: no luck")
    assert any("in inner" in line for line in lines)
    assert "src/headrace" not in delayed.traceback
    assert (letter.traceback or "").endswith("EOFError: never\n")


def test_max_attempts_of_the_queue(work: Work, queue: Queue) -> None:
    """`max_attempts=` of a handler limits failures too, even if its `Retry` allows more."""
    worker = work()
    runs: list[bytes] = []

    @worker.handler("q", max_attempts=2, retry=Retry(attempts=5, wait=0))
    def body(job: Job) -> None:
        runs.append(job.payload)
        raise OSError("no")

    queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().dead == 1)
    assert len(runs) == 2


def test_dead_letters_are_capped(work: Work, queue: Queue) -> None:
    """Two of four dead letters are kept, the newest ones (H-4)."""
    worker = work()

    @worker.handler("q", concurrency=1, dead_limit=2)
    def body(job: Job) -> None:
        raise DeadLetter(job.payload.decode())

    with worker:
        for number in range(1, 5):
            queue.enqueue(str(number))
            now = Counts(enqueued=number, dead=min(number, 2), dead_trimmed=max(number - 2, 0))
            until(lambda now=now: queue.counts() == now)
    assert [letter.reason for letter in queue.admin.dead()] == ["3", "4"]


# -- the unexpected --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_would_end_the_program_is_a_failure(
    work: Work, queue: Queue, error: BaseException
) -> None:
    """The failure spends an attempt, so such a job ends and the worker goes on."""
    worker = work()
    attempts: list[int] = []

    @worker.handler("q", concurrency=1, retry=Retry(attempts=2, wait=0))
    def body(job: Job) -> None:
        if job.payload == b"x":
            attempts.append(job.attempt)
            raise error

    queue.enqueue(b"x")
    queue.enqueue(b"y")
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=2, completed=1, dead=1))
    assert attempts == [1, 2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_would_end_the_program_releases_the_job_of_a_worker_that_stops(
    work: Work, queue: Queue, gate: threading.Event, error: BaseException
) -> None:
    worker = work()

    @worker.handler("q", retry=Retry(attempts=1))
    def body(job: Job) -> Iterator[Any]:
        yield gate
        raise error

    queue.enqueue(b"x")
    with worker:
        until(lambda: queue.counts().leased == 1)
        worker.stop(wait=False)
        gate.set()
    assert queue.counts() == Counts(enqueued=1, parked=1)


@pytest.mark.parametrize("how", ["by asyncio.run", "by Python"])
def test_an_interrupted_loop(queue: Queue, newest: Server, how: str) -> None:
    """Ctrl-C in a coroutine while Python handles SIGINT. The jobs are at the front with no attempt
    spent."""
    worker = AsyncWorker(url=newest.url)
    both = asyncio.Event()

    @worker.handler("q", concurrency=2)
    async def body(job: Job) -> None:
        if job.payload == b"x":
            both.set()
        else:
            await both.wait()
            signal.raise_signal(signal.SIGINT)  # it cancels the main task of asyncio.run
            signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(PATIENCE)

    async def main() -> None:
        async with worker:
            await asyncio.sleep(PATIENCE)

    def run() -> None:
        if how == "by asyncio.run":
            asyncio.run(main())
            return
        with closing(asyncio.new_event_loop()) as loop:
            working = loop.create_task(main())
            try:
                loop.run_until_complete(working)
            finally:
                working.cancel()
                working.cancel()  # wait for no handler
                with suppress(asyncio.CancelledError):
                    loop.run_until_complete(working)

    queue.enqueue_many([b"x", b"y", b"z"])
    with pytest.raises(KeyboardInterrupt):
        run()
    leases = queue.lease_many(3)
    assert [(lease.job.payload, lease.job.attempt) for lease in leases] == [
        (b"x", 1),
        (b"y", 1),
        (b"z", 1),
    ]
    assert not [state for state in queue.admin.workers() if state.name.startswith(worker.name)]


@pytest.mark.parametrize("error", [StopIteration(1), StopAsyncIteration(), RecursionError()])
def test_what_must_not_end_the_worker(work: Work, queue: Queue, error: BaseException) -> None:
    """Exceptions with a meaning for generators and the interpreter are ordinary failures. Other
    jobs go on."""
    worker = work()

    @worker.handler("q", concurrency=1, retry=Retry(attempts=2, wait=0))
    def body(job: Job) -> None:
        if job.payload == b"bad":
            raise error

    queue.enqueue_many([b"bad", b"good"])
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=2, completed=1, dead=1))
    assert [letter.job.attempt for letter in queue.admin.dead()] == [2]


def test_a_handler_object(newest: Server, queue: Queue) -> None:
    """An object with an async `__call__` is an async handler. An error inside its call fails its
    jobs."""

    class Greeter:
        async def __call__(self, job: Job) -> bytes:
            await asyncio.sleep(0)
            return b"hello " + job.payload

    async def story() -> None:
        worker = AsyncWorker(url=newest.url)
        worker.handler("q")(Greeter())
        wrong = AsyncWorker(url=newest.url)

        @wrong.handler("wrong", retry=Retry(attempts=1))
        async def no_argument(*given: Job) -> None:
            await Greeter().__call__(*given, *given)

        receipt = queue.enqueue(b"you")
        with Queue("wrong", url=newest.url) as other:
            other.enqueue(b"x")
            async with worker, wrong:
                while not queue.results([receipt.id]) or not other.counts().dead:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert queue.result(receipt.id) == b"hello you"
            (letter,) = other.admin.dead()
            assert "TypeError" in str(letter.reason)

    asyncio.run(asyncio.wait_for(story(), PATIENCE))


# -- deadlines -------------------------------------------------------------------------------------


def test_a_handler_that_never_returns_ends_by_its_deadline(
    work: Work, queue: Queue, kind: str
) -> None:
    """The job is listed as running and fails after its deadline. A coroutine is cancelled, and a
    thread is told (H-11).
    """
    worker = work()
    told = threading.Event()
    cancelled = threading.Event()

    @worker.handler("q", deadline=0.3, retry=Retry(attempts=1))
    def body(job: Job) -> Iterator[float]:
        try:
            while not job.lost:
                yield 0.005
        except asyncio.CancelledError:
            cancelled.set()
            raise
        told.set()

    queue.enqueue(b"x")
    with worker:
        until(lambda: list(queue.admin.running()))
        (state,) = queue.admin.running()
        assert state.worker is not None
        assert state.worker.startswith(worker.worker.name)
        until(lambda: queue.counts().dead == 1)
        until(lambda: cancelled.is_set() if kind == "tasks" else told.is_set())
    (letter,) = queue.admin.dead()
    assert letter.reason == "TimeoutError: the handler ran past its deadline of 0.3 s"
    assert queue.counts() == Counts(enqueued=1, dead=1)


def test_a_handler_deaf_to_its_deadline(
    work: Work, queue: Queue, gate: threading.Event, record: Recorder
) -> None:
    """The job fails and runs again while its old run goes on. The old run's result is ignored."""
    worker = work()

    @worker.handler("q", concurrency=2, deadline=0.3, retry=Retry(wait=0))
    def body(job: Job) -> Iterator[Any]:
        with record(job.attempt):
            while job.attempt == 1 and not gate.is_set():
                with suppress(asyncio.CancelledError):
                    yield 0.005
            return b"from %d" % job.attempt

    receipt = queue.enqueue(b"x")
    with worker:
        assert queue.result(receipt.id, timeout=PATIENCE) == b"from 2"
        gate.set()
        record.await_ended(2)
    assert queue.result(receipt.id) == b"from 2"
    assert queue.counts() == Counts(enqueued=1, completed=1)


def test_a_timeout_of_the_handlers_own(newest: Server, queue: Queue) -> None:
    """Its own message is kept, because it is not the deadline's error."""

    async def story() -> None:
        worker = AsyncWorker(url=newest.url)

        @worker.handler("q", deadline=60, retry=Retry(attempts=1))
        async def body(job: Job) -> None:
            raise TimeoutError("the mail server is slow")

        queue.enqueue(b"x")
        async with worker:
            while not queue.counts().dead:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(story(), PATIENCE))
    assert [letter.reason for letter in queue.admin.dead()] == [
        "TimeoutError: the mail server is slow"
    ]


def test_the_deadline_of_a_batch(work: Work, queue: Queue) -> None:
    worker = work()

    @worker.batch_handler("q", max_size=3, max_wait=0.05, deadline=0.3, retry=Retry(attempts=1))
    def body(jobs: list[Job]) -> Iterator[float]:
        while not all(job.lost for job in jobs):
            yield 0.005

    queue.enqueue_many([b"x"] * 3)
    with worker:
        until(lambda: queue.counts().dead == 3)
    assert {letter.reason for letter in queue.admin.dead()} == {
        "TimeoutError: the handler ran past its deadline of 0.3 s"
    }


# -- what is no exception, and what spends no attempt ----------------------------------------------


class Panic(BaseException):
    """An exception like the panic of an extension in Rust."""


@pytest.mark.parametrize(
    "error", [Panic("x"), GeneratorExit("x"), asyncio.CancelledError("x"), RetryLater(float("nan"))]
)
def test_whatever_a_handler_always_raises_ends(
    work: Work, queue: Queue, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a failure that the handler's `Retry` judges. It is kept as the reason and logged."""
    worker = work()
    seen: list[int] = []

    @worker.handler("q", retry=Retry(attempts=3, wait=0.01))
    def body(job: Job) -> None:
        seen.append(job.attempt)
        raise error

    queue.enqueue(b"x", id="i")
    with worker:
        until(lambda: queue.counts().dead == 1)
        assert seen == [1, 2, 3]
        (letter,) = queue.admin.dead()
        assert str(letter.reason).startswith(type(error).__name__)
        queue.enqueue(b"y")  # the slot is still there
        until(lambda: queue.counts().dead == 2)
    assert sum("job_failed" in record.message for record in caplog.records) >= 2


def test_a_task_that_is_cancelled_inside_a_handler_is_a_failure(
    newest: Server, queue: Queue
) -> None:
    worker = AsyncWorker(url=newest.url)

    @worker.handler("q", retry=Retry(attempts=2, wait=0.01))
    async def handler(job: Job) -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    async def main() -> None:
        async with worker:
            await asyncio.to_thread(until, lambda: queue.counts().dead == 1)

    queue.enqueue(b"x")
    asyncio.run(main())


@pytest.mark.sampled
@pytest.mark.parametrize("error", [Release(), RetryLater(0)])
def test_releases_in_a_row_are_slowed_and_told_of(
    work: Work, queue: Queue, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The server counts releases, also over workers and restarts. Other jobs go on."""
    queue.enqueue(b"x", id="i")
    seen: list[float] = []
    for _ in range(2):
        worker = work()

        @worker.handler("q", concurrency=2)
        def body(job: Job) -> None:
            if job.payload == b"x":
                seen.append(time.monotonic())
                assert job.attempt == 1
                raise error

        before = len(seen)
        with worker:
            until(
                lambda before=before: (
                    len(seen) >= before + (FREE_RELEASES + 3 if before == 0 else 2)
                )
            )  # type: ignore[misc]
            completed = queue.counts().completed
            queue.enqueue(b"another")
            until(lambda completed=completed: queue.counts().completed == completed + 1)  # type: ignore[misc]
    assert len(seen) <= FREE_RELEASES + 8
    gaps = [later - sooner for sooner, later in pairwise(seen[FREE_RELEASES:])]
    assert all(gap >= 0.1 for gap in gaps)
    assert any("releases_slowed" in record.message for record in caplog.records)
    state = queue.find("i")
    assert state is not None
    assert (state.state, state.job.attempt) in {("delayed", 1), ("parked", 1), ("waiting", 1)}


@pytest.mark.slow
def test_a_stop_gives_back_at_once_what_was_often_released(work: Work, queue: Queue) -> None:
    worker = work()
    stopping = threading.Event()
    runs: list[int] = []

    @worker.handler("q", concurrency=1)
    def body(job: Job) -> Any:
        runs.append(1)
        if len(runs) > FREE_RELEASES + 1:
            while not stopping.is_set():
                yield 0.01
        raise Release

    queue.enqueue(b"x")
    with worker:
        until(lambda: len(runs) == FREE_RELEASES + 2)
        worker.stop(wait=False)
        until(worker.engine.stopping.is_set)
        stopping.set()
    assert (queue.counts().parked, queue.counts().delayed) == (1, 0)


def test_a_codec_that_panics_quarantines(work: Work, newest: Server, queue: Queue) -> None:
    """Other jobs go on, and so does a queue without the codec."""
    worker = work()

    class Panics(BytesCodec):
        def decode(self, data: bytes) -> bytes:
            if data == b"bad":
                raise Panic("in Rust")
            return data

    @worker.handler("q", codec=Panics())
    def body(job: Job) -> None:
        assert job.payload == b"good"

    queue.enqueue_many([b"bad", b"good", b"bad"])
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=3, completed=1, dead=2))
    assert ["Panic: in Rust" in str(letter.reason) for letter in queue.admin.dead()] == [True, True]
    queue.enqueue_many([b"bad", b"good"])
    with Queue("q", url=newest.url, codec=Panics()) as other:
        lease = other.lease()
        assert lease is not None
        assert (lease.job.payload, other.counts().dead) == (b"good", 3)


class Lying(Exception):
    """An exception that can't be inspected."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no class")


def test_an_exception_whose_class_raises(work: Work, queue: Queue) -> None:
    """Its job fails like any other, and its slot takes the next job."""
    worker = work()

    @worker.handler("q", concurrency=1, retry=Retry(attempts=1))
    def handle(job: Job) -> None:
        if job.id == "first":
            raise Lying

    with worker:
        queue.enqueue(b"x", id="first")
        queue.enqueue(b"x", id="second")
        until(lambda: queue.counts() == Counts(enqueued=2, completed=1, dead=1))
