"""Steps, sleeps and waits side by side, in tasks and in threads. A wait ends the delivery when the
steps are recorded.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from headrace import AsyncWorker, Counts, Job, Queue, Retry
from headrace.errors import RunLost, RunSuspended
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.servers import Server

Work = Callable[..., Running]
ONCE = Retry(attempts=1)
SUSPENDED = Counts(blocked=1, enqueued=1), Counts(delayed=1, enqueued=1)


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


def beside(kind: str, *calls: Callable[[], Any]) -> Any:
    """Make these calls at the same time and return their answers."""
    if kind == "tasks":
        return asyncio.gather(*(call() for call in calls))
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.result() for future in futures]


def slow(
    kind: str, calls: list[str], gate: threading.Event, error: Exception | None = None
) -> Callable[[], Any]:
    """Return the function of a step that lasts until the gate opens."""

    def run() -> str:
        calls.append("began")
        assert gate.wait(PATIENCE)
        if error is not None:
            raise error
        return "done"

    async def run_async() -> str:
        calls.append("began")
        while not gate.is_set():  # noqa: ASYNC110 - it is a thread's event
            await asyncio.sleep(0.002)
        if error is not None:
            raise error
        return "done"

    return run_async if kind == "tasks" else run


def once_begun(
    kind: str, calls: list[str], wait: Callable[[], Any], steps: int = 1
) -> Callable[[], Any]:
    """Return a call that waits once *steps* steps have begun. Without a step, a wait would suspend
    the run at once."""

    def run() -> Any:
        until(lambda: len(calls) >= steps, "the step")
        return wait()

    async def run_async() -> Any:
        while len(calls) < steps:  # noqa: ASYNC110 - it is a list
            await asyncio.sleep(0.002)
        return await wait()

    return run_async if kind == "tasks" else run


def names(queue: Queue) -> list[tuple[str, str]]:
    """Return the records of the run with their states."""
    state = queue.find("a")
    return [] if state is None else [(one.name, one.state) for one in state.steps]


def await_end(queue: Queue) -> None:
    until(lambda: queue.find("a") is None, "the end of the job")


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("stop", ["wait", "sleep"])
def test_a_step_beside_a_wait_runs_once(
    once: bool, stop: str, work: Work, kind: str, queue: Queue, gate: threading.Event
) -> None:
    calls: list[str] = []
    values: list[Any] = []
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        wait = partial(job.wait_for, "go") if stop == "wait" else partial(job.sleep, "nap", 0.3)
        step = partial(job.step, "a", slow(kind, calls, gate), once=once)
        values.append((yield partial(beside, kind, step, once_begun(kind, calls, wait))))

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: calls and len(names(queue)) == 1 + once, "the record of the wait")
        assert queue.counts().leased == 1
        gate.set()
        if stop == "wait":
            until(lambda: queue.counts() == SUSPENDED[0], "the suspension")
            assert sorted(names(queue)) == [("a", "done"), ("go", "waiting")]
            assert queue.signal("a", "go", 7) == "woke"
        await_end(queue)
    assert calls == ["began"]
    assert values == [["done", 7 if stop == "wait" else None]]


def test_steps_that_follow_each_other_beside_a_wait(work: Work, kind: str, queue: Queue) -> None:
    """Between two steps of a thread, the wait in another may end the delivery. Tasks leave no such
    moment."""
    calls: list[str] = []
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        def note(name: str) -> None:
            calls.append(name)

        async def pages() -> None:
            for name in ("one", "two", "three"):
                await job.step(name, note, name)

        def pages_plain() -> None:
            for name in ("one", "two", "three"):
                job.step(name, note, name)

        wait = partial(job.wait_for, "go")
        yield partial(
            beside, kind, once_begun(kind, calls, wait), pages if kind == "tasks" else pages_plain
        )

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: queue.counts() == SUSPENDED[0], "the suspension")
        assert kind != "tasks" or calls == ["one", "two", "three"]
        queue.signal("a", "go")
        await_end(queue)
    assert calls == ["one", "two", "three"]


def test_a_step_that_fails_beside_a_wait_fails_the_delivery(
    work: Work, kind: str, queue: Queue, gate: threading.Event
) -> None:
    calls: list[str] = []
    attempts: list[int] = []
    worker = work()

    @worker.handler("q", retry=Retry(attempts=2, wait=0))
    def handle(job: Any) -> Any:
        attempts.append(job.attempt)
        step = partial(job.step, "a", slow(kind, calls, gate, ValueError("no money")))
        yield partial(
            beside, kind, step, once_begun(kind, calls, partial(job.wait_for, "go"), job.attempt)
        )

    with worker:
        queue.enqueue(b"x", id="a")
        gate.set()
        until(lambda: queue.counts().dead == 1, "the dead letter")
    state = queue.find("a")
    assert state is not None
    assert state.reason == "ValueError: no money"
    assert attempts == [1, 2]
    assert len(calls) == 2


def test_any_of_several_waits_wakes_the_run(work: Work, kind: str, queue: Queue) -> None:
    got: list[Any] = []
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        async def second() -> None:
            got.append(await job.wait_for("second"))

        def second_plain() -> None:
            got.append(job.wait_for("second"))

        waits = partial(job.wait_for, "first"), second if kind == "tasks" else second_plain
        got.append((yield partial(beside, kind, *waits, partial(job.sleep, "night", 3600))))

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: queue.counts().blocked == 1, "the suspension")
        state = queue.find("a")
        assert state is not None
        assert state.due is not None
        assert queue.signal("a", "second", 2) == "woke"
        until(lambda: got == [2] and queue.counts().blocked == 1, "the second suspension")
        assert queue.signal("a", "first", 1) == "woke"
        until(lambda: got[-1] == 2 and len(got) >= 2 and queue.counts().delayed == 1, "the third")
        queue.cancel("a")


def test_a_signal_that_comes_while_a_step_runs_beside_its_wait(
    work: Work, kind: str, queue: Queue, gate: threading.Event
) -> None:
    calls: list[str] = []
    values: list[Any] = []
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        step = partial(job.step, "a", slow(kind, calls, gate))
        values.append(
            (
                yield partial(
                    beside, kind, step, once_begun(kind, calls, partial(job.wait_for, "go"))
                )
            )
        )

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: calls and ("go", "waiting") in names(queue), "the record of the wait")
        assert queue.signal("a", "go", 7) == "kept"
        gate.set()
        await_end(queue)
    assert (calls, values) == (["began"], [["done", 7]])


@pytest.mark.parametrize("end", ["cancel", "deadline", "halt"])
def test_a_run_that_ends_while_its_wait_stays(
    end: str, work: Work, kind: str, queue: Queue, gate: threading.Event
) -> None:
    """The wait ends then, and suspends nothing."""
    calls: list[str] = []
    ends: list[type[BaseException]] = []
    worker = work()

    async def waits(job: Any) -> None:
        try:
            await job.wait_for("go")
        except BaseException as error:
            ends.append(type(error))
            raise

    def waits_plain(job: Any) -> None:
        try:
            job.wait_for("go")
        except BaseException as error:
            ends.append(type(error))
            raise

    @worker.handler("q", retry=ONCE, deadline=0.5 if end == "deadline" else None)
    def handle(job: Any) -> Any:
        step = partial(job.step, "a", slow(kind, calls, gate))
        wait = partial(waits if kind == "tasks" else waits_plain, job)
        yield partial(beside, kind, step, once_begun(kind, calls, wait))

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: calls and ("go", "waiting") in names(queue), "the record of the wait")
        if end == "cancel":
            assert queue.cancel("a")
        elif end == "halt":
            worker.worker.stop(wait=False) if kind == "threads" else worker.stop(wait=False)
            worker.stop(wait=False)
        until(lambda: ends, "the end of the wait")
        gate.set()
    counts = queue.counts()
    left = {"cancel": Counts(enqueued=1, cancelled=1), "deadline": Counts(enqueued=1, dead=1)}
    assert counts == left.get(
        end, Counts(enqueued=1, waiting=counts.waiting, parked=1 - counts.waiting)
    )
    assert ends[0] in (RunLost, asyncio.CancelledError)


def test_a_worker_that_stops_waits_for_the_step_and_suspends(
    work: Work, kind: str, queue: Queue, gate: threading.Event
) -> None:
    calls: list[str] = []
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        step = partial(job.step, "a", slow(kind, calls, gate))
        yield partial(beside, kind, step, once_begun(kind, calls, partial(job.wait_for, "go")))

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: calls and ("go", "waiting") in names(queue), "the record of the wait")
        worker.stop(wait=False)
        gate.set()
    assert queue.counts() == SUSPENDED[0]
    assert names(queue) == [("go", "waiting"), ("a", "done")]


@pytest.mark.slow
def test_runs_that_go_on_at_once_lose_no_lease(
    work: Work, kind: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker may lease a job again before it has heard that its run is suspended."""
    worker = work()

    @worker.handler("q", retry=ONCE, concurrency=50)
    def handle(job: Any) -> Any:
        for number in range(3):
            yield partial(job.sleep, f"nap-{number}", 0.001)

    receipts = queue.enqueue_many([b"x"] * 300)
    with worker:
        until(lambda: queue.counts().completed == len(receipts), "the end of all")
    assert [one for one in caplog.records if getattr(one, "event", "") == "lease_lost"] == []


def test_a_task_group(newest: Server, queue: Queue) -> None:
    """The group wraps the exception that ends the handler, and cancels its other tasks."""
    calls: list[int] = []
    worker = Running("tasks", url=newest.url)

    @worker.worker.handler("q", retry=ONCE)
    async def handle(job: Job) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(job.step("a", asyncio.sleep, 0.05))  # type: ignore[arg-type]
            group.create_task(job.wait_for("go"))
            group.create_task(job.wait_for("other", timeout=3600))
        calls.append(job.attempt)

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: queue.counts().blocked == 1, "the suspension")
        assert queue.signal("a", "go") == "woke"
        assert queue.signal("a", "other") in ("woke", "kept")  # kept: the run is on its way
        await_end(queue)
    assert calls == [1]


def test_steps_of_a_lease_beside_its_wait(queue: Queue) -> None:
    """Only the wait ends there, so it suspends the run."""
    gate, calls = threading.Event(), list[str]()
    queue.enqueue(b"x", id="a")
    lease = queue.lease()
    assert lease is not None
    with ThreadPoolExecutor() as pool:
        step = pool.submit(lease.job.step, "a", slow("threads", calls, gate))
        until(lambda: calls, "the step")
        wait = pool.submit(lease.job.wait_for, "go")
        until(lambda: names(queue) == [("go", "waiting")], "the record of the wait")
        assert queue.counts().leased == 1
        gate.set()
        assert step.result() == "done"
        with pytest.raises(RunSuspended):
            wait.result()
    assert queue.counts() == SUSPENDED[0]
    with pytest.raises(RunLost):
        lease.job.wait_for("other")
    queue.signal("a", "go", 7)
    again = queue.lease(block=10)
    assert again is not None
    assert again.job.step("a", slow("threads", calls, gate)) == "done"
    assert again.job.wait_for("go") == 7
    assert again.complete()
    assert calls == ["began"]


def test_a_step_that_outlives_its_worker_opens_no_connection(
    newest: Server, queue: Queue, gate: threading.Event
) -> None:
    """A plain function goes on in its thread after a halt, and its event loop may go on too."""
    calls: list[str] = []
    ends: list[BaseException] = []
    step = slow("threads", calls, gate)

    def handle(job: Job) -> None:
        try:
            job.step("a", step)
        except BaseException as error:
            ends.append(error)
            raise

    def connections() -> set[str]:
        with newest.client() as client:
            return {row["id"] for row in client.client_list() if row["cmd"] != "client|list"}

    async def program() -> None:
        worker = AsyncWorker(newest.url)
        worker.handler("q", retry=ONCE)(handle)
        async with worker:
            queue.enqueue(b"x", id="a")
            await asyncio.to_thread(until, lambda: calls, "the step")
            await worker.stop(wait=False)
            await worker.stop(wait=False)
        before = connections()
        gate.set()
        await asyncio.to_thread(until, lambda: ends, "the end of the step")
        assert connections() <= before

    asyncio.run(program())
    assert [type(end) for end in ends] == [RunLost]
