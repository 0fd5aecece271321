"""The backend's promises beyond Django's contract. They concern transactions, priorities, times,
retries and crashes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import override_settings
from django.utils import timezone

from headrace import Queue
from headrace.django import _contract as contract, worker
from headrace.django._backend import TaskBackend
from headrace.django._options import Options
from headrace.errors import QueueFull
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


def test_an_outbox_is_of_the_transaction(
    backend: Make, database: None, newest: Server, finished: Make
) -> None:
    """A row of a transaction becomes a task when the worker relays it. Outside of a transaction, a
    row is its own transaction.
    """
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
def own_server(newest: Server) -> Iterator[Server]:
    """Start a server that the test may break."""
    with Server(newest.binary) as server:
        yield server


def test_a_server_that_is_away_at_a_commit(
    backend: Make, database: None, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A request waits for the server once and goes on. Its data is committed, later hooks run, and
    the tasks are logged.
    """
    backend(url=own_server.url, timeout=0.5)
    tasks.note.enqueue("connects")
    own_server.suspend()
    ran: list[bool] = []
    began = time.monotonic()
    with transaction.atomic():
        Group.objects.create(name="committed")
        lost = [tasks.note.enqueue(n) for n in range(10)]
        transaction.on_commit(lambda: ran.append(True))
    took = time.monotonic() - began
    own_server.wake()
    assert Group.objects.filter(name="committed").exists()
    assert ran == [True]
    assert 0.4 < took < 5, took  # ten would be 5 s by themselves
    logged = [one for one in caplog.records if getattr(one, "event", "") == "task_not_sent"]
    assert [one.job_id for one in logged] == [one.id for one in lost]  # type: ignore[attr-defined]
    assert "tests.django.tasks.note" in logged[0].getMessage()
    assert {one.enqueued_at for one in lost} == {None}


def test_a_server_that_is_away_outside_of_a_transaction(backend: Make, own_server: Server) -> None:
    backend(url=own_server.url, timeout=0.3)
    own_server.suspend()
    began = time.monotonic()
    with pytest.raises(redis.exceptions.RedisError):
        tasks.note.enqueue("never sent")
    with pytest.raises(redis.exceptions.RedisError):
        tasks.note.get_result("unknown")
    assert time.monotonic() - began < 5
    own_server.wake()


def test_an_outbox_needs_no_server(
    backend: Make, database: None, own_server: Server, finished: Make
) -> None:
    """The page promises this for a server that is away at a commit."""
    backend(url=own_server.url, outbox=True, timeout=0.5)
    own_server.suspend()
    with transaction.atomic():
        result = tasks.note.enqueue("kept")
    own_server.wake()
    assert finished(result).return_value == "kept"


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
    """The migration makes the table. A committed row is relayed, and is found meanwhile."""
    backend(outbox=True, database=on_postgresql)
    with working():
        until(
            lambda: newest.ask("HGET", "headrace:{default}:default:stats", "history"),
            "a history of ended tasks",
        )
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
    """The look sees no job first, then no row any more, and then the job."""
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
    assert [options.level(n) for n in range(100, -101, -1)] == sorted(
        options.level(n) for n in range(-100, 101)
    )


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
    assert (result.attempts, len(result.errors), failed.attempts, len(failed.errors)) == (
        3,
        2,
        3,
        3,
    )
    assert result.started_at < result.last_attempted_at <= result.finished_at
    assert [error.exception_class for error in failed.errors] == [LookupError] * 3
    assert [error.traceback.splitlines()[-1] for error in failed.errors] == [
        f"LookupError: attempt {n}" for n in (1, 2, 3)
    ]


def test_a_task_may_give_up(backend: Make, finished: Make) -> None:
    backend(retry={"attempts": 5, "wait": 0.0})
    result = finished(tasks.gives_up.enqueue())
    assert (result.status, result.attempts, len(result.errors)) == (
        contract.FIRST.Status.FAILED,
        1,
        1,
    )
    assert result.errors[0].exception_class_path == "headrace.DeadLetter"


def test_the_signal_says_what_the_result_says(backend: Make, finished: Make) -> None:
    """This also holds for a value that can't be kept."""
    backend()
    said: list[tuple[str, int]] = []

    def on_finish(task_result: Any, **_: Any) -> None:
        said.append((str(task_result.status), len(task_result.errors)))

    signals = contract.FIRST.signals()
    signals.task_finished.connect(on_finish)
    try:
        results = [finished(tasks.surrogate.enqueue()), finished(tasks.returns_no_json.enqueue())]
    finally:
        signals.task_finished.disconnect(on_finish)
    assert (
        said
        == [(str(one.status), len(one.errors)) for one in results]
        == [("FAILED", 1), ("FAILED", 1)]
    )


def test_arguments_tell_tasks_apart(backend: Make, newest: Server, finished: Make) -> None:
    """The arguments that `fair`, `limits` and `rate` name are headers, however a call gives
    them."""
    made = backend(
        fair="customer",
        limits={"limit": 1, "key": "customer"},
        rate={"limit": 1000, "key": "amount"},
    )
    calls = [
        tasks.bills.enqueue("ada"),
        tasks.bills.enqueue(amount=5, customer="bob"),
        tasks.note.enqueue(1),
    ]
    found = [made.queue("default").find(one.id).job.headers for one in calls]
    assert [(one.get("customer"), one.get("amount")) for one in found] == [
        ("ada", "1"),
        ("bob", "5"),
        (None, None),
    ]
    assert finished(*calls).return_value == "ada: 1"
    for wrong in ({"customer": ["ada"]}, {"customer": "ada", "colour": 1}):
        with pytest.raises(TypeError, match=r"customer|colour"):
            tasks.bills.enqueue(**wrong)


def test_more_tasks_than_may_wait(backend: Make) -> None:
    backend(max_waiting=2)
    for number in range(2):
        tasks.note.enqueue(number)
    with pytest.raises(QueueFull):
        tasks.note.enqueue(3)


def test_a_running_task_is_seen(backend: Make) -> None:
    backend()
    result = tasks.takes.enqueue(0.5)
    with working():
        until(
            lambda: tasks.takes.get_result(result.id).status == contract.FIRST.Status.RUNNING,
            "the task to begin",
        )
        seen = tasks.takes.get_result(result.id)
        assert seen.attempts == 1
        assert seen.started_at is not None
        assert seen.finished_at is None
        await_end(result)


@pytest.mark.parametrize("later", [0, 60])
def test_a_cancelled_task_has_failed(backend: Make, later: int) -> None:
    """The task has the reason, even if it was to run later. The result of an earlier job of its id
    does not count."""
    made = backend()
    result = tasks.note.using(
        run_after=timezone.now() + timedelta(seconds=later) if later else None
    ).enqueue("x")
    assert made.queue("default").cancel(result.id)
    result.refresh()
    assert (result.status, result.args, result.is_finished) == (
        contract.FIRST.Status.FAILED,
        ["x"],
        True,
    )
    assert [error.traceback for error in result.errors] == ["the job was cancelled\n"]
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_task_that_is_cancelled_after_an_earlier_one_of_its_id(
    backend: Make, finished: Make
) -> None:
    """The result of the earlier task is not the later one's."""
    made = backend()
    queue = made.queue("default")
    first = finished(tasks.note.enqueue("first"))
    assert first.return_value == "first"
    state = queue.find(first.id)
    assert state is not None
    assert queue.enqueue(state.job.payload, id=first.id, headers=state.job.headers).added
    assert queue.cancel(first.id)
    again = tasks.note.get_result(first.id)
    assert again.status == contract.FIRST.Status.FAILED
    assert again._return_value is None
    assert again.errors[-1].traceback == "the job was cancelled\n"


def test_connections_are_closed_between_tasks(
    backend: Make, database: None, finished: Make
) -> None:
    """Django does this around requests. A dead connection does not fail the next task."""
    backend()
    with working(concurrency=1):
        assert await_end(tasks.queries.enqueue(1)).return_value == 1
        assert await_end(tasks.queries.enqueue(2)).return_value == 2


def test_a_task_that_is_not_importable_is_kept(backend: Make, newest: Server) -> None:
    """The task has failed with an error that says why. Its dead letter can be redriven once the
    code is there."""
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
        assert (
            "'os.getcwd' is no task, but of type builtin_function_or_method" in reasons["no task"]
        )
        assert queue.admin.redrive() == 3


def test_results_after_a_server_was_emptied(backend: Make, newest: Server, finished: Make) -> None:
    """A project's tests do this in one process."""
    backend()
    for number in range(6):
        results = [
            tasks.note.using(queue_name=name).enqueue(number) for name in ("default", "mail")
        ]
        finished(*results)
        assert [tasks.note.get_result(one.id).return_value for one in results] == [number, number]
        newest.ask("FLUSHDB")


def test_each_task_has_the_rate_of_its_kind(backend: Make) -> None:
    """With the key `kind`, tasks of one kind wait and others do not."""
    made = backend(rate={"limit": 2, "per": 3600, "key": "kind"})
    tasks.ran.clear()
    some = [tasks.note.enqueue(number) for number in range(5)]
    other = tasks.answer.enqueue()
    with working():
        assert await_end(other).return_value == 42
        until(
            lambda: made.queue("default").counts().delayed == 3,
            "three tasks to wait for their rate",
        )
    assert tasks.ran == [0, 1]
    assert [tasks.note.get_result(one.id).is_finished for one in some] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_any_queue(backend: Make, newest: Server) -> None:
    """`QUEUES = []` allows any name. A result is found by its id, and a worker is given the
    queues."""
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
