"""The usual mistakes in handlers with steps. They are a missing `await` and progress that was not
saved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from headrace import Job, Queue, Retry
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server

Work = Callable[..., Running]


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


async def nothing() -> None:
    """Run as the function of a step."""


FORGOTTEN: dict[str, tuple[str, Callable[[Job], Any]]] = {
    "a step": ("step 'ship'", lambda job: job.step("ship", nothing)),
    "a sleep": ("sleep 'cool'", lambda job: job.sleep("cool", 14 * 86400)),
    "a wait": ("wait 'go'", lambda job: job.wait_for("go")),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_step_that_was_not_awaited_fails_the_attempt(
    what: str, newest: Server, queue: Queue
) -> None:
    name, make = FORGOTTEN[what]
    worker = Running("tasks", url=newest.url)

    @worker.worker.handler("q", retry=Retry(attempts=1))
    async def handle(job: Job) -> None:
        await job.step("charge", nothing)
        make(job)

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: queue.counts().dead == 1, "the dead letter")
    state = queue.find("a")
    assert state is not None
    assert state.reason is not None
    assert f"{name}: never awaited, so it did nothing. Write `await job.step(…)`" in state.reason
    assert [one.name for one in state.steps] == ["charge"]


def test_steps_that_a_handler_cancels_are_not_forgotten(newest: Server, queue: Queue) -> None:
    worker = Running("tasks", url=newest.url)

    @worker.worker.handler("q", retry=Retry(attempts=1))
    async def handle(job: Job) -> None:
        steps = [
            asyncio.ensure_future(job.step(f"s-{number}", asyncio.sleep, number))
            for number in (0, 60)
        ]
        await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        steps[1].cancel()

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: queue.counts().present == 0, "its end")
    assert queue.counts().completed == 1


def noted(queue: Queue) -> tuple[float, str] | None:
    """Return the progress that is shown."""
    state = queue.find("a")
    progress = state and state.progress
    return (progress.fraction, progress.text) if progress else None


@pytest.mark.parametrize("end", ["sleep", "wait", "fail"])
def test_the_last_progress_is_noted_by_the_end(
    end: str, work: Work, kind: str, queue: Queue
) -> None:
    """This holds although another note was sent less than a second ago."""
    worker = work()

    @worker.handler("q", retry=Retry(wait=3600))
    def handle(job: Any) -> Any:
        job.progress(0.3, "first")
        until_noted = threading.Event()
        waiter = threading.Thread(
            target=lambda: (until(lambda: noted(queue), "the first"), until_noted.set())
        )
        waiter.start()
        yield until_noted
        job.progress(1.0, "last")
        if end == "sleep":
            yield partial(job.sleep, "nap", 3600)
        elif end == "wait":
            yield partial(job.wait_for, "go")
        raise ValueError("failed")

    with worker:
        queue.enqueue(b"x", id="a")
        until(lambda: (now := queue.counts()).delayed + now.blocked == 1, "the end of the delivery")
        assert noted(queue) == (1.0, "last")


def test_the_last_progress_of_a_completed_job_is_told(work: Work, kind: str, queue: Queue) -> None:
    worker = work()

    @worker.handler("q")
    def handle(job: Any) -> None:
        job.progress(0.3, "first")
        job.progress(1.0, "last")

    with queue.events(["progress"], 30.0) as events, worker:
        queue.enqueue(b"x", id="a")
        told = [next(events)]
        while told[-1].reason != "1 last":
            told.append(next(events))
