"""Django's own tests of its task backends, rewritten for this backend. They note where a backend
without results, priorities or `run_after` would refuse.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import pickle
import queue
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import django
import pytest
from django.test import override_settings
from django.utils import timezone

from headrace.django import TaskBackend, _contract as contract
from tests.django import tasks
from tests.django.conftest import BACKEND
from tests.support.servers import Server

Make = Callable[..., Any]
LOGGER = "django.tasks" if contract.FIRST.package == "django.tasks" else "django_tasks"


@pytest.fixture(autouse=True)
def default(backend: Make) -> Any:
    """The backend of most tests."""
    return backend()


# -- the immediate backend -------------------------------------------------------------------------


def test_using_correct_backend(default: Any) -> None:
    assert contract.task_backends()["default"] is default
    assert isinstance(default, TaskBackend)
    assert default.alias == "default"
    assert set(default.options) == {"url"}


def test_everything_is_supported(default: Any) -> None:
    assert default.supports_defer is True
    assert default.supports_async_task is True
    assert default.supports_get_result is True
    assert default.supports_priority is True


@pytest.mark.parametrize("task", [tasks.nothing, tasks.nothing_async], ids=["def", "async def"])
def test_enqueue_task(task: Any, finished: Make) -> None:
    result = finished(task.enqueue(1, two=3))
    assert result.status == contract.FIRST.Status.SUCCESSFUL
    assert result.is_finished is True
    # by the clocks of two machines
    assert result.enqueued_at <= result.started_at + timedelta(seconds=1)
    assert result.started_at <= result.last_attempted_at <= result.finished_at
    assert result.return_value is None
    assert (result.task, result.args, result.kwargs, result.attempts) == (task, [1], {"two": 3}, 1)


@pytest.mark.parametrize("task", [tasks.nothing, tasks.nothing_async], ids=["def", "async def"])
def test_enqueue_task_async(task: Any, finished: Make) -> None:
    result = finished(asyncio.run(task.aenqueue()))
    assert result.status == contract.FIRST.Status.SUCCESSFUL
    assert None not in (result.started_at, result.last_attempted_at, result.finished_at)
    assert (result.return_value, result.args, result.kwargs, result.attempts) == (None, [], {}, 1)
    assert asyncio.run(task.aget_result(result.id)) == result


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_catches_exception(
    kind: type[BaseException], finished: Make, caplog: pytest.LogCaptureFixture
) -> None:
    result = finished(tasks.raises.enqueue(kind.__name__, "This task failed"))
    errors = [
        one
        for one in caplog.records
        if one.name.startswith(LOGGER) and one.levelno == logging.ERROR
    ]
    assert len(errors) == 1
    assert errors[0].exc_info
    assert "This task failed" in str(errors[0].exc_info[1])
    assert result.status == contract.FIRST.Status.FAILED
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert result.is_finished is True
    assert result.started_at <= result.last_attempted_at <= result.finished_at
    (error,) = result.errors
    assert error.exception_class is kind
    assert error.traceback.endswith(f"{kind.__name__}: This task failed\n")
    assert (result.task, result.args) == (tasks.raises, [kind.__name__, "This task failed"])


def test_keyboard_interrupt_is_a_failure(finished: Make) -> None:
    """The immediate backend lets the user interrupt it. A worker that goes on records the
    failure."""
    result = finished(tasks.raises.enqueue("KeyboardInterrupt"))
    assert result.status == contract.FIRST.Status.FAILED
    assert [one.exception_class for one in result.errors] == [KeyboardInterrupt]


def test_complex_exception(finished: Make) -> None:
    result = finished(tasks.raises_nested.enqueue())
    assert result.status == contract.FIRST.Status.FAILED
    assert result._return_value is None
    assert result.errors[0].exception_class is ValueError
    assert "ValueError(ValueError(" in result.errors[0].traceback


def test_complex_return_value(finished: Make) -> None:
    result = finished(tasks.returns_no_json.enqueue())
    assert result.status == contract.FIRST.Status.FAILED
    assert result._return_value is None
    assert result.errors[0].exception_class is TypeError
    assert "Unsupported type" in result.errors[0].traceback


def test_result(default: Any, finished: Make) -> None:
    assert finished(default.enqueue(tasks.answer, [], {})).return_value == 42


def test_result_async(default: Any, finished: Make) -> None:
    assert finished(asyncio.run(default.aenqueue(tasks.answer, [], {}))).return_value == 42


def test_missing_result(default: Any) -> None:
    for wrong in ("123", 123, "", "x" * 600):
        with pytest.raises(contract.TaskResultDoesNotExist):
            default.get_result(wrong)
        with pytest.raises(contract.TaskResultDoesNotExist):
            asyncio.run(default.aget_result(wrong))


def test_run_after_is_taken(default: Any) -> None:
    default.validate_task(tasks.raises.using(run_after=timezone.now()))


def test_enqueue_logs(finished: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER):
        result = finished(tasks.nothing.enqueue())
    lines = [one.getMessage() for one in caplog.records if one.name.startswith(LOGGER)]
    assert len(lines) == 3
    assert all(result.id in line and "NoneType" not in line for line in lines)
    for line, words in zip(lines, ("enqueued", "state=RUNNING", "state=SUCCESSFUL"), strict=True):
        assert words in line


def test_failed_logs(finished: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER):
        result = finished(tasks.raises.enqueue())
    lines = [one.getMessage() for one in caplog.records if one.name.startswith(LOGGER)]
    assert ["state=RUNNING" in lines[1], "state=FAILED" in lines[2]] == [True, True]
    assert result.id in lines[2]


def test_takes_context(finished: Make) -> None:
    result = finished(tasks.own_id.enqueue())
    assert result.return_value == result.id


def test_context(finished: Make) -> None:
    assert finished(tasks.seen.enqueue()).return_value == {
        "attempt": 1, "context": True, "status": "RUNNING", "errors": [], "workers": 1, "began": True,
    }  # fmt: skip


def test_validate_on_enqueue(backend: Make) -> None:
    elsewhere = tasks.nothing.using(queue_name="mail")
    backend(["queue-1"])
    with pytest.raises(contract.InvalidTask, match="Queue 'mail' is not valid for backend"):
        elsewhere.enqueue()
    with pytest.raises(contract.InvalidTask, match="Queue 'mail' is not valid for backend"):
        asyncio.run(elsewhere.aenqueue())


# -- the dummy backend -----------------------------------------------------------------------------


def test_a_task_that_waits() -> None:
    result = tasks.nothing.enqueue(1, two=3)
    assert result.status == contract.FIRST.Status.READY
    assert (result.started_at, result.finished_at, result.is_finished, result.attempts) == (
        None,
        None,
        False,
        0,
    )
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    assert (result.args, result.kwargs) == ([1], {"two": 3})


def test_get_result(default: Any) -> None:
    result = default.enqueue(tasks.nothing, (), {})
    assert tasks.nothing.get_result(result.id) == result
    assert default.get_result(result.id) == result
    assert asyncio.run(tasks.nothing.aget_result(result.id)) == result


def test_refresh_result(finished: Make) -> None:
    result = tasks.nothing.enqueue()
    before = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == before
    asyncio.run(result.arefresh())
    assert dataclasses.asdict(result) == before
    assert finished(result).status == contract.FIRST.Status.SUCCESSFUL


def test_get_incorrect_result() -> None:
    result = tasks.nothing_async.enqueue()
    with pytest.raises(contract.FIRST.exceptions.TaskResultMismatch, match="Task does not match"):
        tasks.nothing.get_result(result.id)
    with pytest.raises(contract.FIRST.exceptions.TaskResultMismatch, match="Task does not match"):
        asyncio.run(tasks.nothing.aget_result(result.id))


# -- tasks -----------------------------------------------------------------------------------------


def test_enqueue_with_invalid_argument() -> None:
    for wrong in (datetime.now(UTC), object(), {1, 2}):
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.nothing.enqueue(wrong)
        with pytest.raises(TypeError, match="Unsupported type"):
            asyncio.run(tasks.nothing.aenqueue(x=wrong))


def test_using_priority_queue_name_and_run_after() -> None:
    later = timezone.now()
    for name, value, usual in (
        ("priority", 1, 0),
        ("queue_name", "mail", "default"),
        ("run_after", later, None),
    ):
        assert getattr(tasks.nothing, name) == usual
        assert getattr(tasks.nothing.using(**{name: value}), name) == value
        assert getattr(tasks.nothing, name) == usual


def test_using_unknown_backend() -> None:
    with pytest.raises(contract.InvalidTaskBackend, match="The connection 'unknown' doesn't exist"):
        tasks.nothing.using(backend="unknown")


def test_chained_using() -> None:
    later = timezone.now()
    chained = tasks.nothing.using(run_after=later).using(priority=10)
    assert (chained.priority, chained.run_after) == (10, later)
    assert tasks.nothing.using() == tasks.nothing
    assert tasks.nothing.using() is not tasks.nothing


def test_naive_datetime() -> None:
    with pytest.raises(contract.InvalidTask, match="run_after must be an aware datetime"):
        tasks.nothing.using(run_after=datetime(2026, 1, 1))  # noqa: DTZ001 - on purpose


def test_invalid_priority() -> None:
    for wrong in (-101, 101, 3.1):
        with pytest.raises(
            contract.InvalidTask, match="priority must be a whole number between -100 and 100"
        ):
            tasks.nothing.using(priority=wrong)
    for right in (100, -100, 0):
        tasks.nothing.using(priority=right)


def test_unknown_queue_name(newest: Server) -> None:
    with pytest.raises(contract.InvalidTask, match="Queue 'queue-2' is not valid for backend"):
        tasks.nothing.using(queue_name="queue-2")
    anything = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"url": newest.url}}
    with override_settings(TASKS={"default": anything}):
        assert tasks.nothing.using(queue_name="queue-2").queue_name == "queue-2"


def test_call_task() -> None:
    assert tasks.answer.call() == 42
    assert asyncio.run(tasks.answer.acall()) == 42
    assert asyncio.run(tasks.nothing_async.acall()) is None
    assert tasks.nothing_async.call() is None


def test_invalid_function() -> None:
    def local() -> None: ...

    for wrong in (any, test_invalid_function.__get__(object()), local):
        with pytest.raises(
            contract.InvalidTask, match="Task function must be defined at a module level"
        ):
            tasks.task()(wrong)


def test_names(default: Any) -> None:
    assert tasks.nothing.name == "nothing"
    assert tasks.nothing.module_path == "tests.django.tasks.nothing"
    assert tasks.nothing.backend == "default"
    assert tasks.nothing.get_backend() is default


@pytest.mark.skipif(
    contract.FIRST.package == "django_tasks" or django.VERSION < (6, 1),
    reason="tasks are pickled by Django 6.1 and later",
)
def test_pickle() -> None:
    assert pickle.loads(pickle.dumps(tasks.nothing)) == tasks.nothing
    result = tasks.nothing.enqueue()
    assert pickle.loads(pickle.dumps(result)) == result


def test_no_backends() -> None:
    with (
        override_settings(TASKS={"other": {"BACKEND": BACKEND}}),
        pytest.raises(contract.InvalidTaskBackend),
    ):
        tasks.nothing.enqueue()


def test_task_errors(finished: Make) -> None:
    (error,) = finished(tasks.raises.enqueue()).errors
    object.__setattr__(error, "exception_class_path", "subprocess.run")
    with pytest.raises(ValueError, match=r"'subprocess.run' does not reference a valid exception"):
        _ = error.exception_class
    object.__setattr__(error, "exception_class_path", "does.not.exist")
    with pytest.raises(ImportError):
        _ = error.exception_class


def test_takes_context_without_taking_context() -> None:
    with pytest.raises(contract.InvalidTask, match="does not have a first argument of 'context'"):
        tasks.task(takes_context=True)(tasks.answer.func)


def test_results_by_priority_and_time() -> None:
    """Results of a queue can be told apart by their tasks."""
    now = timezone.now()
    some: queue.PriorityQueue[Any] = queue.PriorityQueue()
    for number, (priority, after) in enumerate(
        [(5, now), (1, now + timedelta(hours=1)), (1, None)]
    ):
        result = tasks.nothing.using(priority=priority, run_after=after).enqueue(number)
        some.put((result.task.priority, result.task.run_after or now - timedelta(1), number))
        assert tasks.nothing.get_result(result.id).task == result.task
    assert [some.get()[2] for _ in range(3)] == [2, 1, 0]


# -- custom backends -------------------------------------------------------------------------------


def test_async_tasks_are_refused_where_they_are_not_supported(
    default: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskBackend, "supports_async_task", False)
    with pytest.raises(contract.InvalidTask, match=r"(?i)backend does not support async tasks"):
        default.validate_task(tasks.nothing_async)


def test_options(backend: Make) -> None:
    assert backend(priorities=3).settings.priorities == 3
