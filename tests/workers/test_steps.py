"""Handlers that take steps, under every kind of worker. A recorded step runs once, and a suspended
run needs no slot.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from headrace import Counts, Queue, Release, Retry, Tasks
from headrace.codecs import Compressed, Encrypted, JSONCodec
from headrace.errors import CodecError, ConfigurationError, InDoubt, RunLost, RunSuspended
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.servers import Server

Work = Callable[..., Running]
ONCE = Retry(attempts=1)


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


class Calls(list[Any]):
    """The calls of functions that steps run."""

    def of(
        self, kind: str, name: str, value: Any = None, error: BaseException | None = None
    ) -> Callable[..., Any]:
        """Return such a function. It is a coroutine function for handlers that are coroutines."""

        def run(*args: Any) -> Any:
            self.append((name, *args))
            if error is not None:
                raise error
            return value

        async def run_async(*args: Any) -> Any:
            return run(*args)

        return run_async if kind == "tasks" else run


@pytest.fixture
def calls() -> Calls:
    return Calls()


def gone(queue: Queue) -> bool:
    """Tell whether all jobs have left, with all records of runs."""
    return queue.counts().present == 0


def await_end(queue: Queue, name: str) -> None:
    """Wait until a job has left. A waiter for its result could start too late to learn that there
    is none."""
    until(lambda: queue.find(name) is None, f"the end of {name}")


def test_a_recorded_step_answers_from_its_record(
    work: Work, kind: str, queue: Queue, calls: Calls
) -> None:
    seen: list[Any] = []
    worker = work()

    @worker.handler("q", retry=Retry(wait=0))
    def handle(job: Any) -> Any:
        charge = yield partial(job.step, "charge", calls.of(kind, "pay", {"paid": 3}), 3)
        text = yield partial(job.step, "text", calls.of(kind, "text", "héy"))
        data = yield partial(job.step, "data", calls.of(kind, "data", b"\xff"))
        nothing = yield partial(job.step, "nothing", calls.of(kind, "nothing"))
        seen.append((charge, text, data, nothing))
        if len(seen) < 3:
            raise RuntimeError("again")
        return str(charge)

    queue.enqueue(b"x", id="a")
    with worker:
        assert queue.result("a", timeout=60) == b"{'paid': 3}"
    assert seen == 3 * [({"paid": 3}, "héy", b"\xff", None)]
    assert calls == [("pay", 3), ("text",), ("data",), ("nothing",)]
    assert gone(queue)


def test_a_sleep_takes_no_slot_and_spends_no_attempt(work: Work, kind: str, queue: Queue) -> None:
    attempts: list[int] = []
    worker = work()

    @worker.handler("q", concurrency=1, retry=ONCE)
    def handle(job: Any) -> Any:
        if job.payload == b"other":
            return
        attempts.append(job.attempt)
        yield partial(job.sleep, "short", 0.05)
        yield partial(job.sleep, "passed", datetime(2020, 1, 1, tzinfo=UTC))
        yield partial(job.sleep, "night", timedelta(days=14) if len(attempts) < 3 else 0)

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: queue.counts() == Counts(delayed=1, enqueued=1) and len(attempts) == 2)
        queue.enqueue(b"other", id="b")
        await_end(queue, "b")
        assert queue.counts() == Counts(delayed=1, enqueued=2, completed=1)
        state = queue.find("a")
        assert state is not None
        assert [(one.name, one.state) for one in state.steps] == [
            ("short", "slept"), ("passed", "slept"), ("night", "sleeping"),
        ]  # fmt: skip
        assert state.state == "delayed"
        assert state.due is not None
        assert queue.cancel("a")
    assert attempts == [1, 1]
    assert gone(queue)


@pytest.mark.parametrize("first", [True, False], ids=["before the wait", "after it"])
def test_a_signal_comes(first: bool, work: Work, kind: str, queue: Queue) -> None:
    got: list[Any] = []
    worker = work()

    @worker.handler("q", retry=Retry(wait=0))
    def handle(job: Any) -> Any:
        got.append((yield partial(job.wait_for, "approved")))
        if len(got) == 1:
            raise RuntimeError("again")

    queue.enqueue(b"x", id="a")
    if first:
        assert queue.signal("a", "approved", {"by": "ada"}) == "kept"
        assert queue.signal("a", "approved", 2) == "present"
    with worker:
        if not first:
            until(lambda: queue.counts().blocked == 1)
            assert queue.signal("a", "approved", {"by": "ada"}) == "woke"
        await_end(queue, "a")
    assert got == 2 * [{"by": "ada"}]
    assert queue.signal("a", "approved") == "unknown"
    assert gone(queue)


def test_a_wait_ends_as_it_did_before(work: Work, kind: str, queue: Queue, calls: Calls) -> None:
    ends: list[Any] = []
    worker = work()

    @worker.handler("q", retry=Retry(wait=0))
    def handle(job: Any) -> Any:
        for timeout in (0, 0.05):
            try:
                ends.append((yield partial(job.wait_for, f"answer-{timeout}", timeout=timeout)))
            except TimeoutError as error:
                ends.append(str(error))
        yield partial(job.step, "after", calls.of(kind, "after"))
        if len(ends) < 5:
            raise RuntimeError("again")

    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: calls)
        assert queue.signal("a", "answer-0.05", 1) == "unknown"
        await_end(queue, "a")
    late = [f"no signal 'answer-{timeout}' has come in time" for timeout in (0, 0.05)]
    assert ends == [late[0], *late, *late]
    assert calls == [("after",)]


def test_attempts_count_from_the_last_record(
    work: Work, kind: str, queue: Queue, calls: Calls
) -> None:
    attempts: list[int] = []
    worker = work()

    @worker.handler("q", retry=Retry(attempts=2, wait=0))
    def handle(job: Any) -> Any:
        attempts.append(job.attempt)
        for number in range(4):
            yield partial(job.step, f"page-{number}", calls.of(kind, "page"), number)
            if len(attempts) == number + 1:
                raise RuntimeError("each stretch fails once")
        raise RuntimeError("the last one always")

    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: queue.counts().dead == 1)
    assert attempts == [1, 2, 2, 2, 2]
    assert calls == [("page", number) for number in range(4)]
    state = queue.find("a")
    assert state is not None
    assert [one.name for one in state.steps] == [f"page-{number}" for number in range(4)]
    with worker:
        assert queue.admin.redrive("a", from_step="page-2") == 1
        until(lambda: queue.counts().dead == 1 and len(calls) == 6)
    assert calls[4:] == [("page", 2), ("page", 3)]


def test_a_run_took_what_its_handlers_ran(work: Work, kind: str, newest: Server) -> None:
    """The time sums all deliveries. It leaves out suspensions and waits for a slot."""
    worker = work()

    @worker.handler("q", concurrency=1, retry=Retry(wait=0), history=10)
    def handle(job: Any) -> Any:
        if job.payload == b"long":
            time.sleep(0.3)
            return
        yield partial(job.sleep, "nap", 0.2)
        time.sleep(0.05)
        if job.attempt == 1:
            raise RuntimeError("again")

    with newest.queue("q", history=10) as queue:
        queue.enqueue(b"long")
        queue.enqueue(b"x", id="a")
        with worker:
            until(lambda: (state := queue.find("a")) is not None and state.ended)
        state = queue.find("a")
        assert state is not None
        assert [(one.number, one.suspended, one.failed) for one in state.attempts] == [
            (1, True, False), (2, False, True), (3, False, False),
        ]  # fmt: skip
        assert state.deliveries == 3
        assert state.took is not None
        assert state.took >= 0.1
        assert state.took < state.since - state.enqueued_at - 0.2
        first = state.attempts[0]
        assert first.began is not None
        assert first.began >= state.enqueued_at + 0.25  # it waited for the slot of the long one


def test_a_step_that_runs_once_is_in_doubt_after_a_failure(
    work: Work, kind: str, queue: Queue, calls: Calls
) -> None:
    doubts: list[str] = []
    worker = work()

    @worker.handler("q", retry=Retry(wait=0))
    def handle(job: Any) -> Any:
        try:
            yield partial(
                job.step, "ship", calls.of(kind, "ship", error=RuntimeError("lost")), once=True
            )
        except InDoubt as doubt:
            doubts.append(doubt.step)

    queue.enqueue(b"x", id="a")
    with worker:
        await_end(queue, "a")
    assert (calls, doubts) == ([("ship",)], ["ship"])


def test_a_run_that_was_lost_ends(
    work: Work, kind: str, queue: Queue, calls: Calls, gate: threading.Event
) -> None:
    ends: list[type[BaseException]] = []
    worker = work()

    @worker.handler("q")
    def handle(job: Any) -> Any:
        yield partial(job.step, "first", calls.of(kind, "first"))
        with suppress(Exception):  # as a handler that catches everything
            try:
                yield gate
                yield partial(job.step, "second", calls.of(kind, "second"))
            except BaseException as error:
                ends.append(type(error))
                raise
        ends.append(ValueError)

    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: (state := queue.find("a")) and state.steps)  # its record, not only its call
        assert queue.cancel("a")
        if kind != "tasks":  # a coroutine is cancelled
            gate.set()
        until(lambda: ends)
    assert ends[0] is (RunLost if kind != "tasks" else ends[0])
    assert len(ends) == 1
    assert gone(queue)


def test_after_its_suspension_a_handler_takes_no_step(
    work: Work, kind: str, queue: Queue, calls: Calls
) -> None:
    ends: list[type[BaseException]] = []
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        for take in (
            partial(job.sleep, "night", 3600),
            partial(job.step, "ship", calls.of(kind, "ship")),
        ):
            try:
                yield take
            except BaseException as error:
                ends.append(type(error))
        return "kept by nobody"

    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: len(ends) == 2)
        until(lambda: queue.counts() == Counts(delayed=1, enqueued=1))
    assert ends == [RunSuspended, RunLost]
    assert calls == []
    state = queue.find("a")
    assert state is not None
    assert state.state == "delayed"


BAD: dict[str, tuple[type[Exception], str, Callable[[Any], Any]]] = {
    "an empty name": (ValueError, "name of 0 characters", lambda job: partial(job.step, "", str)),
    "a long name": (
        ValueError,
        "name of 201 characters",
        lambda job: partial(job.step, "x" * 201, str),
    ),
    "no name": (TypeError, "name must be a str", lambda job: partial(job.step, 5, str)),
    "no function": (TypeError, "give a function", lambda job: partial(job.step, "x", "y")),
    "a negative sleep": (
        ValueError,
        "give 0 or more seconds",
        lambda job: partial(job.sleep, "x", -1),
    ),
    "no number": (
        ValueError,
        "give 0 or more seconds",
        lambda job: partial(job.sleep, "x", float("nan")),
    ),
    "a sleep for ever": (
        ValueError,
        "before the year 10000",
        lambda job: partial(job.sleep, "x", 1e15),
    ),
    "a naive time": (
        ValueError,
        "no time zone",
        lambda job: partial(job.sleep, "x", datetime(2026, 1, 1)),  # noqa: DTZ001
    ),
    "a large value": (
        ValueError,
        "65,536 can be recorded",
        lambda job: partial(job.step, "x", bytes, 70_000),
    ),
    "no JSON": (CodecError, "can't be recorded", lambda job: partial(job.step, "x", object)),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_use_is_refused(bad: str, work: Work, kind: str, queue: Queue) -> None:
    error, words, use = BAD[bad]
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        yield use(job)

    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: queue.counts().dead == 1)
    state = queue.find("a")
    assert state is not None
    assert state.reason is not None
    assert state.reason.startswith(error.__name__)
    assert words in state.reason
    assert state.steps == ()


def test_a_name_is_taken_once(work: Work, kind: str, queue: Queue, calls: Calls) -> None:
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        yield partial(job.step, "page", calls.of(kind, "page"))
        yield partial(job.step, "page", calls.of(kind, "page"))

    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: queue.counts().dead == 1)
    state = queue.find("a")
    assert state is not None
    assert 'step(f"page-{n}", …)' in str(state.reason)
    assert calls == [("page",)]


def test_a_step_that_failed_is_taken_again(
    work: Work, kind: str, queue: Queue, calls: Calls
) -> None:
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        with suppress(RuntimeError):
            yield partial(job.step, "page", calls.of(kind, "page", error=RuntimeError("first")))
        yield partial(job.step, "page", calls.of(kind, "page"))

    queue.enqueue(b"x", id="a")
    with worker:
        await_end(queue, "a")
    assert len(calls) == 2


def test_a_run_has_bounds(work: Work, kind: str, queue: Queue, calls: Calls) -> None:
    errors: list[str] = []
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        for number in range(17):
            try:
                yield partial(job.step, f"page-{number}", calls.of(kind, "page", bytes(65_000)))
            except ValueError as error:
                errors.append(str(error))

    queue.enqueue(b"x", id="a")
    with worker:
        await_end(queue, "a")
    assert len(errors) == 1
    assert "step 'page-16': a run has 1,048,576 bytes of records at most" in errors[0]


def test_batches_and_persistent_jobs_take_none(
    work: Work, kind: str, queue: Queue, calls: Calls
) -> None:
    errors: list[str] = []
    worker = work()

    @worker.batch_handler("q", retry=ONCE)
    def handle(jobs: Any) -> Any:
        with pytest.raises(ConfigurationError) as error:
            yield partial(jobs[0].step, "x", calls.of(kind, "x"))
        errors.append(str(error.value))
        with pytest.raises(ConfigurationError, match="takes no steps and no progress"):
            jobs[0].progress(0.5)

    queue.enqueue(b"x", id="a")
    with worker:
        await_end(queue, "a")
    assert "takes no steps" in errors[0]


@pytest.mark.parametrize(
    "codec", [JSONCodec(), Compressed(JSONCodec()), Encrypted(None, {"k": bytes(32)})]
)
def test_values_travel_by_the_codec(
    codec: Any, work: Work, kind: str, newest: Server, calls: Calls
) -> None:
    seen: list[Any] = []
    queue: Any = Queue("coded", url=newest.url, codec=codec)
    worker = work()

    @worker.handler(queue, retry=Retry(wait=0))
    def handle(job: Any) -> Any:
        seen.append((yield partial(job.step, "pay", calls.of(kind, "pay", {"paid": [3]}))))
        seen.append((yield partial(job.wait_for, "ok")))
        if len(seen) < 4:
            raise Release

    with queue:
        queue.enqueue(b"x" if isinstance(codec, Encrypted) else "x", id="a")
        queue.signal("a", "ok", {"by": "ada"})
        with worker:
            await_end(queue, "a")
        assert gone(queue)
    assert seen == 2 * [{"paid": [3]}, {"by": "ada"}]


@pytest.mark.parametrize("codec", [None, JSONCodec()])
def test_a_step_whose_annotation_is_not_found(
    codec: Any, work: Work, kind: str, newest: Server, calls: Calls
) -> None:
    """The step is refused before it runs, with the name."""
    pay = calls.of(kind, "pay", {"n": 1})
    pay.__annotations__["return"] = "Invoice"
    queue: Any = Queue("q", url=newest.url, codec=codec)
    worker = work()

    @worker.handler(queue, retry=ONCE)
    def handle(job: Any) -> Any:
        yield partial(job.step, "pay", pay)

    with queue:
        queue.enqueue(b"x" if codec is None else "x", id="a")
        with worker:
            until(lambda: queue.counts().dead == 1)
        (letter,) = queue.admin.dead()
    assert "step 'pay': name 'Invoice' is not defined" in letter.reason
    assert "at the top of tests.workers.test_steps" in letter.reason
    assert calls == []


def test_a_task_takes_steps(work: Work, kind: str, newest: Server, calls: Calls) -> None:
    worker = work()
    with Tasks("q", newest.url) as tasks:

        def total(first: int) -> int:
            return int(tasks.job.step("add", lambda: first + 1))

        async def total_async(first: int) -> int:
            return int(await tasks.job.step("add", lambda: first + 1))

        task: Any = tasks.task(name="total")(total_async if kind == "tasks" else total)  # type: ignore[type-var]
        worker.worker.tasks(tasks)
        with worker:
            assert task.enqueue(2).result(timeout=60) == 3


def test_progress_is_shown(work: Work, kind: str, queue: Queue, gate: threading.Event) -> None:
    worker = work()

    @worker.handler("q")
    def handle(job: Any) -> Any:
        for number in range(10):
            job.progress(number / 10, f"page {number}")
        yield gate

    queue.enqueue(b"x", id="a")
    with worker:

        def latest() -> bool:
            state = queue.find("a")
            progress = state and state.progress
            return bool(progress and (progress.fraction, progress.text) == (0.9, "page 9"))

        until(latest)
        gate.set()
        await_end(queue, "a")
    assert gone(queue)


def test_another_job_s_task_takes_no_step(
    work: Work, kind: str, queue: Queue, gate: threading.Event
) -> None:
    """This holds under asyncio. A thread may belong to a pool and work for several jobs."""
    if kind != "tasks":
        return
    jobs: list[Any] = []
    errors: list[str] = []
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        yield partial(job.step, "own", asyncio.sleep, 0)
        jobs.append(job)
        if job.id == "a":
            yield gate
            return
        try:
            yield partial(jobs[0].step, "other", asyncio.sleep, 0)
        except ConfigurationError as error:
            errors.append(str(error))
        gate.set()

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: jobs)
        queue.enqueue(b"x", id="b")
        await_end(queue, "a")
        await_end(queue, "b")
    assert "step 'other' of job 'a' is taken in the task of another job" in errors[0]


def test_the_first_delivery_gets_the_value_of_the_record(
    work: Work, kind: str, newest: Server, calls: Calls
) -> None:
    """A value that its codec changes is then noticed before the first crash."""
    seen: list[Any] = []
    worker = work()
    with Queue("coded", url=newest.url, codec=JSONCodec()) as queue:

        @worker.handler(queue, retry=Retry(wait=0))
        def handle(job: Any) -> Any:
            seen.append((yield partial(job.step, "pair", calls.of(kind, "pair", (1, 2)))))
            if len(seen) < 2:
                raise RuntimeError("again")

        receipt = queue.enqueue("x", id="a")
        with worker:
            receipt.result(PATIENCE)
    assert seen == [[1, 2], [1, 2]]
