"""Workers of tasks, which call the task of each job as Django's contract has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from headrace import Job, Worker
from headrace.django import _contract as contract, _results as results
from headrace.django._backend import TaskBackend, backend_of, outbox_of
from headrace.django._tasks import OWN, discovered, scheduled
from headrace.errors import (
    ConfigurationError,
    DeadLetter,
    RunLost,
    RunSuspended,
    Verdict,
    class_path,
    traced,
)
from headrace.isolation import Isolation
from headrace.platform import HEADERS, InnerWorker, given


def _fresh_connections() -> None:
    """Close connections to databases that have failed, or are too old, as Django does around
    requests.
    """
    db: Any = import_module("django.db")
    db.reset_queries()
    db.close_old_connections()


class Runner:
    def __init__(
        self, backend: TaskBackend, queue: str, worker: Worker, own: Collection[str] = ()
    ) -> None:
        self._backend, self._queue, self._worker = backend, queue, worker
        self._own = own  # paths of the tasks whose own options the worker knows

    def _again(self) -> tuple[str, str, tuple[Any, ...]]:
        # a function that makes `run` in a child process, and its arguments
        known = (self._backend.alias, self._queue, self._worker.name, list(self._own))
        return "headrace.django._isolated", "run_of", known

    def run(self, job: Job[bytes]) -> bytes | None:
        """Call the task of a job. Return its value as JSON, or `None` for `None`. Raises as the
        task does.
        """
        _fresh_connections()
        try:
            return self._run(job)
        finally:
            _fresh_connections()

    def _run(self, job: Job[bytes]) -> bytes | None:
        sender = type(self._backend)
        try:
            result = self._begun(job)
        except ValueError as error:
            raise DeadLetter(f"its payload holds no arguments of a task: {error}") from error
        names = contract.contract_of(result.task)
        signals = names.signals()
        signals.task_started.send(sender=sender, task_result=result)
        try:
            context = [names.context(result, job)] if result.task.takes_context else []
            value = names.normalized(result.task.call(*context, *result.args, **result.kwargs))
            kept = None if value is None else results.value_of(value)
        except BaseException as error:
            if self._final(job, error, result.task):
                found = names.TaskError(
                    exception_class_path=class_path(error), traceback=traced(error)
                )
                result.errors.append(found)
                results.change(result, finished_at=results.now(), status=names.Status.FAILED)
                signals.task_finished.send_robust(sender, task_result=result)
            raise
        results.change(
            result, finished_at=results.now(), status=names.Status.SUCCESSFUL, _return_value=value
        )
        signals.task_finished.send_robust(sender, task_result=result)
        return kept

    def _begun(self, job: Job[bytes]) -> Any:
        """Make the result of a job that begins now. Raises `ImportError` if its task can't be
        imported.
        """
        path = job.headers.get(HEADERS.kind, "")
        task = results.task_of(path)
        if path in OWN and path not in self._own:
            raise ConfigurationError(
                f"task {path!r} has options of its own, and was imported after the worker had started: let its module "
                "be named tasks in an app, or import it there"
            )
        result = results.new(self._backend.alias, job, task)
        if job.attempt > 1:
            state = self._backend.queue(self._queue).find(job.id)
            if state is not None:
                results.attempted(result, state)
        workers = (result.worker_ids + [results.UNKNOWN_WORKER] * job.attempt)[: job.attempt - 1]
        now = results.now()
        results.change(
            result,
            status=contract.contract_of(result.task).Status.RUNNING,
            worker_ids=[*workers, self._worker.name],
            started_at=result.started_at or now,
            last_attempted_at=now,
        )
        return result

    def _final(self, job: Job[bytes], error: BaseException, task: Any) -> bool:
        stopping = InnerWorker(self._worker).stopping
        if job.lost or isinstance(error, (RunSuspended, RunLost)):
            return False
        if stopping and isinstance(error, (KeyboardInterrupt, SystemExit)):
            return False  # the worker stops, and the task runs elsewhere
        if isinstance(error, Verdict):
            return isinstance(error, DeadLetter)
        attempts = (getattr(task, "retry", None) or self._backend.settings.retry).attempts
        return attempts is not None and job.attempt >= attempts


def queues_of(backend: TaskBackend, queues: Sequence[str]) -> list[str]:
    """Return the names of *queues*, or of all. Raises `ConfigurationError` for one that `QUEUES`
    does not name."""
    where = f"TASKS[{backend.alias!r}]['QUEUES']"
    named = sorted(map(str, backend.queues))
    wanted = list(dict.fromkeys(queues)) or named
    if not wanted:
        raise ConfigurationError(
            f"{where} is empty, which allows any queue: name some with --queue"
        )
    if named and (unknown := [name for name in wanted if name not in named]):
        raise ConfigurationError(f"{where} has no {unknown[0]!r}: it has {', '.join(named)}")
    return wanted


def worker_of(
    alias: str = "default",
    queues: Sequence[str] = (),
    concurrency: int | None = None,
    isolate: bool | Isolation = False,
) -> Worker:
    """Make the worker of a backend's tasks, of these *queues* or all of `QUEUES`, and the relay of
    its outbox. *isolate* is as in `Worker.handler`.

    Raises `ConfigurationError` for settings that are wrong, a queue that `QUEUES` does not name,
    and an outbox without its table.
    """
    backend = backend_of(alias)
    options = backend.settings
    wanted = queues_of(backend, queues)
    given(options.url)
    if options.outbox:
        for database in {options.database, options.relayed_by()}:
            _require_table(database, options.schema)
    worker = Worker(options.url, namespace=options.namespace)
    own = discovered()
    slots = options.concurrency if concurrency is None else concurrency
    for name in wanted:
        runner = Runner(backend, name, worker, own)
        queue = backend.queue(name)
        register: Callable[..., Any] = partial(
            worker.handler, queue, concurrency=slots, isolate=isolate
        )
        register(retry=options.retry, deadline=options.deadline)(runner.run)
        for path, task in own.items():
            deadline = options.deadline if task.deadline is None else task.deadline
            register(retry=task.retry or options.retry, deadline=deadline, kind=path)(runner.run)
        found = [
            (path, when, job)
            for task, path, when, job in scheduled(options)
            if task.queue_name == name
        ]
        InnerWorker(worker).declare_schedules(queue, found)
        if options.outbox:
            worker.relay(outbox_of(options, queue), options.relayed_by(), poll=options.poll)
    return worker


def _require_table(database: str, schema: str | None) -> None:
    connection: Any = import_module("headrace.sql.connections").connection_of(database)
    connection.require("headrace_outbox", schema)
    import_module("django.db").connections[database].close()
