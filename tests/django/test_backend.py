"""What the backend promises beyond Django's contract: transactions, priorities, times, retries, crashes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import override_settings
from django.utils import timezone

from headrace import Queue
from headrace._django import contract
from headrace._django.backend import TaskBackend
from headrace._django.options import Options
from headrace.django import worker
from tests.django import tasks
from tests.django.conftest import await_end, working
from tests.sql.databases import postgresql
from tests.support.awaiting import until
from tests.support.servers import Server

Make = Callable[..., Any]


def waiting(server: Server, name: str = "default") -> int:
    with server.queue(name, priorities=5) as queue:
        return queue.counts().present


def test_a_rollback_enqueues_nothing(backend: Make, database: None, newest: Server) -> None:
    backend()
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        lost = tasks.note.enqueue("rolled back")
        raise ZeroDivisionError
    with transaction.atomic():
        kept = tasks.note.enqueue("committed")
        assert (kept.status, kept.enqueued_at) == (contract.FIRST.Status.READY, None)
        assert waiting(newest) == 0
        with pytest.raises(contract.TaskResultDoesNotExist):
            tasks.note.get_result(kept.id)
    assert kept.enqueued_at is not None
    assert waiting(newest) == 1
    assert tasks.note.get_result(kept.id) == kept
    with pytest.raises(contract.TaskResultDoesNotExist):
        tasks.note.get_result(lost.id)


def test_on_commit_may_be_turned_off(backend: Make, database: None, newest: Server) -> None:
    backend(on_commit=False)
    with transaction.atomic():
        assert tasks.note.enqueue("at once").enqueued_at is not None
        assert waiting(newest) == 1
        transaction.set_rollback(True)
    assert waiting(newest) == 1


def test_an_outbox_is_of_the_transaction(backend: Make, database: None, newest: Server, finished: Make) -> None:
    """A row of a transaction is a task; the worker relays it. Outside of a transaction it is one by itself."""
    backend(outbox=True)
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        lost = tasks.note.enqueue("rolled back")
        raise ZeroDivisionError
    with transaction.atomic():
        inside = tasks.note.using(priority=50).enqueue({"a": [1]})
    alone = tasks.note.enqueue("alone")
    assert waiting(newest) == 0
    for result in (inside, alone):
        found = tasks.note.get_result(result.id)
        assert (found.status, found.args, found.task, found.enqueued_at) == (
            contract.FIRST.Status.READY, result.args, result.task, result.enqueued_at,
        )  # fmt: skip
    finished(inside, alone)
    assert (inside.return_value, alone.return_value) == ({"a": [1]}, "alone")
    with pytest.raises(contract.TaskResultDoesNotExist):
        tasks.note.get_result(lost.id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM headrace_outbox")
        assert cursor.fetchone() == (0,)


@pytest.fixture
def on_postgresql() -> Iterator[str]:
    """The alias of a database of PostgreSQL with Django's tables."""
    with postgresql() as url:
        place = urlsplit(url)
        connections.settings["other"] = {
            **connections.settings["default"],
            "ENGINE": "django.db.backends.postgresql",
            "NAME": place.path[1:],
            "USER": place.username,
            "HOST": place.hostname,
            "PORT": place.port,
            "OPTIONS": {},
        }
        call_command("migrate", database="other", verbosity=0)
        yield "other"
        connections.close_all()
        del connections["other"], connections.settings["other"]


def test_an_outbox_on_postgresql(backend: Make, on_postgresql: str, newest: Server) -> None:
    """The migration makes the table there; a row is relayed when it is committed, and is found meanwhile."""
    backend(outbox=True, database=on_postgresql)
    with working():
        until(lambda: newest.ask("HGET", "headrace:{default}:default:stats", "history"), "a history of ended tasks")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=on_postgresql):
            tasks.note.enqueue("rolled back")
            raise ZeroDivisionError
        for value in range(20):
            with transaction.atomic(using=on_postgresql):
                result = tasks.note.enqueue(value)
            await_end(result)
            assert result.return_value == value
    with connections[on_postgresql].cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM headrace_outbox")
        assert cursor.fetchone() == (0,)
    with newest.queue("default", priorities=5) as queue:
        assert queue.counts().enqueued == 20


def test_a_row_that_is_relayed_while_it_is_looked_for(
    backend: Make, database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found: in no queue yet, then no row any more, then in a queue."""
    backend(outbox=True)
    result = tasks.note.enqueue("moved")
    look = TaskBackend._in_outbox

    def relayed(self: TaskBackend, id: str) -> Any:
        with working():
            until(lambda: look(self, id) is None, "the relay")

    monkeypatch.setattr(TaskBackend, "_in_outbox", relayed)
    assert tasks.note.get_result(result.id).id == result.id


@pytest.mark.parametrize(
    ("levels", "bands"),
    [
        (5, {100: 0, 60: 0, 59: 1, 20: 1, 19: 2, 0: 2, -20: 2, -21: 3, -60: 3, -61: 4, -100: 4}),
        (3, {100: 0, 34: 0, 33: 1, -33: 1, -34: 2, -100: 2}),
        (1, {100: 0, -100: 0}),
    ],
)
def test_priorities_are_bands(levels: int, bands: dict[int, int]) -> None:
    options = Options(priorities=levels)
    assert {priority: options.level(priority) for priority in bands} == bands
    assert [options.level(n) for n in range(100, -101, -1)] == sorted(options.level(n) for n in range(-100, 101))


def test_higher_priorities_run_first(backend: Make) -> None:
    backend()
    tasks.ran.clear()
    results = [tasks.note.using(priority=one).enqueue(one) for one in (-100, 0, 100, 30, -30)]
    with working(concurrency=1):
        for result in results:
            await_end(result)
    assert tasks.ran == [100, 30, 0, -30, -100]


def test_run_after(backend: Make, finished: Make) -> None:
    backend()
    due = timezone.now() + timedelta(seconds=0.4)
    result = finished(tasks.note.using(run_after=due).enqueue("late"))
    assert result.started_at >= due - timedelta(milliseconds=2)
    assert result.task.run_after == due


def test_a_retried_task_has_all_its_attempts(backend: Make, finished: Make) -> None:
    backend(retry={"attempts": 3, "wait": 0.0})
    began: list[Any] = []
    ended: list[Any] = []
    signals = contract.FIRST.signals()

    def on_start(task_result: Any, **_: Any) -> None:
        began.append(task_result.attempts)

    def on_finish(task_result: Any, **_: Any) -> None:
        ended.append(str(task_result.status))

    signals.task_started.connect(on_start)
    signals.task_finished.connect(on_finish)
    try:
        result = finished(tasks.seen.enqueue(fails=2))
        failed = finished(tasks.seen.enqueue(fails=9))
    finally:
        signals.task_started.disconnect(on_start)
        signals.task_finished.disconnect(on_finish)
    assert began == [1, 2, 3] * 2
    assert ended == ["SUCCESSFUL", "FAILED"]
    assert result.return_value == {
        "attempt": 3, "context": True, "status": "RUNNING", "errors": ["builtins.LookupError"] * 2, "workers": 3,
        "began": True,
    }  # fmt: skip
    assert (result.attempts, len(result.errors), failed.attempts, len(failed.errors)) == (3, 2, 3, 3)
    assert result.started_at < result.last_attempted_at <= result.finished_at
    assert [error.exception_class for error in failed.errors] == [LookupError] * 3
    assert [error.traceback.splitlines()[-1] for error in failed.errors] == [
        f"LookupError: attempt {n}" for n in (1, 2, 3)
    ]


def test_a_task_may_give_up(backend: Make, finished: Make) -> None:
    backend(retry={"attempts": 5, "wait": 0.0})
    result = finished(tasks.gives_up.enqueue())
    assert (result.status, result.attempts, len(result.errors)) == (contract.FIRST.Status.FAILED, 1, 1)
    assert result.errors[0].exception_class_path == "headrace.DeadLetter"


def test_a_running_task_is_seen(backend: Make) -> None:
    backend()
    result = tasks.takes.enqueue(0.5)
    with working():
        until(lambda: tasks.takes.get_result(result.id).status == contract.FIRST.Status.RUNNING, "the task to begin")
        seen = tasks.takes.get_result(result.id)
        assert seen.attempts == 1
        assert seen.started_at is not None
        assert seen.finished_at is None
        await_end(result)


def test_a_cancelled_task_has_failed(backend: Make, newest: Server) -> None:
    backend()
    result = tasks.note.enqueue("cancelled")
    with newest.queue("default", priorities=5) as queue:
        assert queue.cancel(result.id)
    with pytest.raises(contract.TaskResultDoesNotExist):  # no payload is kept of it, and so no task
        result.refresh()


def test_connections_are_closed_between_tasks(backend: Make, database: None, finished: Make) -> None:
    """As Django does around requests: a connection that has died does not fail the next task."""
    backend()
    with working(concurrency=1):
        assert await_end(tasks.queries.enqueue(1)).return_value == 1
        assert await_end(tasks.queries.enqueue(2)).return_value == 2


def test_a_task_that_is_not_importable_is_kept(backend: Make, newest: Server) -> None:
    """It has failed, with an error that says why; the dead letter may be redriven once the code is there."""
    backend()
    job = {"kind": "tests.django.tasks.gone"}
    with newest.queue("default", priorities=5) as queue:
        queue.enqueue(b'{"args": [], "kwargs": {}}', id="gone", headers=job)
        queue.enqueue(b"[1]", id="no arguments", headers={"kind": "tests.django.tasks.note"})
        queue.enqueue(b"{}", id="no task", headers={"kind": "os.getcwd"})
        with working():
            until(lambda: queue.counts().dead == 3, "dead letters")
        reasons = {one.job.id: one.reason for one in queue.admin.dead()}
        assert "gone" in reasons["gone"]
        assert "holds no arguments of a task" in reasons["no arguments"]
        assert "'os.getcwd' is no task, but of type builtin_function_or_method" in reasons["no task"]
        assert queue.admin.redrive() == 3


def test_any_queue(backend: Make, newest: Server) -> None:
    """`QUEUES = []` allows any name; a result is found by its id, and a worker is told the queues."""
    backend([])
    result = tasks.note.using(queue_name="anything").enqueue("x")
    with working(queues=["anything"]):
        assert await_end(tasks.note.get_result(result.id)).return_value == "x"
    with pytest.raises(contract.InvalidTask, match="Queue 'no name' is not valid for headrace"):
        tasks.note.using(queue_name="no name")
    with pytest.raises(contract.TaskResultDoesNotExist):
        tasks.note.get_result("abc.no name")


def test_two_backends_share_a_server(backend: Make, newest: Server) -> None:
    made = backend()
    assert made.queue("mail") is backend().queue("mail")  # as Django makes a backend in each thread
    assert isinstance(made.queue("mail"), Queue)


def test_without_time_zones(backend: Make, finished: Make) -> None:
    backend()
    with override_settings(USE_TZ=False):
        result = finished(tasks.note.enqueue(1))
    assert result.finished_at.tzinfo is None
    assert abs(result.finished_at.timestamp() - time.time()) < 60


def test_the_worker_closes_its_own_connections(backend: Make, database: None) -> None:
    backend(outbox=True)
    worker()
    assert connections["default"].connection is None
