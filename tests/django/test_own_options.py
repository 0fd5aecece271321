"""Options of a single task, which are its job, its retries and deadline, and its schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.django import _contract as contract, worker
from headrace.django._tasks import OWN
from tests.django import tasks
from tests.django.conftest import await_end, working
from tests.support.awaiting import until
from tests.support.servers import Server

Make = Callable[..., Any]


def test_the_job_is_in_the_context(backend: Make) -> None:
    """A task may run as steps. It waits without a slot, and recorded steps do not run again."""
    queue = backend().queue("default")
    tasks.ran.clear()
    with working():
        result = tasks.steps.enqueue(7)
        until(lambda: (queue.find(result.id) or result).state == "blocked", "the run to wait")
        assert tasks.steps.get_result(result.id).status == contract.FIRST.Status.READY
        assert queue.signal(result.id, "approved", "ada") == "woke"
        assert await_end(result).return_value == {
            "paid": None,
            "who": "ada",
            "attempt": 1,
            "id": True,
        }
    assert tasks.ran == ["paid 7"]


def test_a_task_that_runs_is_cancelled(backend: Make) -> None:
    queue = backend().queue("default")
    tasks.ran.clear()
    with working():
        result = tasks.endless.enqueue()
        until(
            lambda: tasks.endless.get_result(result.id).status == contract.FIRST.Status.RUNNING,
            "the task to begin",
        )
        assert queue.cancel(result.id)
        until(lambda: tasks.ran == ["lost"], "the task to learn it")


def test_a_task_has_its_own_retries_and_deadline(backend: Make, finished: Make) -> None:
    """The options apply in each queue beside tasks with the backend's options. Signals agree with
    the result."""
    backend(retry={"attempts": 1})
    ended: list[tuple[str, int]] = []

    def on_finish(task_result: Any, **_: Any) -> None:
        ended.append((task_result.task.name, task_result.attempts))

    signals = contract.FIRST.signals()
    signals.task_finished.connect(on_finish)
    try:
        results = [
            tasks.persists.enqueue(),
            tasks.persists.using(queue_name="mail").enqueue(),
            tasks.raises.enqueue(),
        ]
        finished(*results)
    finally:
        signals.task_finished.disconnect(on_finish)
    assert [one.attempts for one in results] == [3, 3, 1]
    assert [one.errors[-1].exception_class for one in results] == [
        LookupError,
        LookupError,
        ValueError,
    ]
    assert sorted(ended) == [("persists", 3), ("persists", 3), ("raises", 1)]
    late = finished(tasks.dawdles.enqueue())
    assert late.status == contract.FIRST.Status.FAILED
    assert "past its deadline of 0.2 s" in late.errors[0].traceback


def test_options_that_come_late_are_told(backend: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose module the worker has not imported in time would run with the backend's
    options."""
    backend()
    late = OWN.pop("tests.django.tasks.persists")
    running = worker()
    monkeypatch.setitem(OWN, "tests.django.tasks.persists", late)
    result = tasks.persists.enqueue()
    with running:
        await_end(result)
    assert "was imported after the worker had started" in result.errors[0].traceback


def test_tasks_recur(backend: Make, newest: Server) -> None:
    """The settings name the recurring tasks. The next worker removes a schedule that they no longer
    name."""
    backend(schedules={"tests.django.tasks.tick": {"every": 0.2, "missed": "skip"}})
    tasks.ran.clear()
    with working(), newest.queue("default", priorities=5) as queue:
        until(lambda: tasks.ran.count("tick") >= 2, "two ticks")
        (schedule,) = queue.admin.schedules()
        assert (schedule.name, schedule.every) == ("tasks/tests.django.tasks.tick", 0.2)
    backend()
    with working(), newest.queue("default", priorities=5) as queue:
        until(lambda: not queue.admin.schedules(), "the schedule to go")
