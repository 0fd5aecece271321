"""Workers of tasks: each job is a call of a task, made as Django's contract has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from headrace._api.sync.worker import Worker
from headrace._core.effects import Phase
from headrace._django import contract, results
from headrace._django.backend import TaskBackend, backend_of, tables
from headrace._model.job import Job
from headrace._model.settings import KIND
from headrace._net.base.address import given
from headrace.errors import ConfigurationError, DeadLetter, RunLost, RunSuspended, Verdict, class_path, traced


def _fresh_connections() -> None:
    """Close connections to databases that have failed, or are too old, as Django does around requests."""
    db: Any = import_module("django.db")
    db.reset_queries()
    db.close_old_connections()


class Runner:
    """The runner of the tasks of one queue in one worker."""

    def __init__(self, backend: TaskBackend, queue: str, worker: Worker) -> None:
        self._backend, self._queue, self._worker = backend, queue, worker

    def run(self, job: Job[bytes]) -> bytes | None:
        """Call the task of a job. Returns its value as JSON; `None` for `None`. Raises as the task does."""
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
            context = [names.TaskContext(task_result=result)] if result.task.takes_context else []
            value = names.normalized(result.task.call(*context, *result.args, **result.kwargs))
        except BaseException as error:
            if self._final(job, error):
                found = names.TaskError(exception_class_path=class_path(error), traceback=traced(error))
                result.errors.append(found)
                results.change(result, finished_at=results.now(), status=names.Status.FAILED)
                signals.task_finished.send_robust(sender, task_result=result)
            raise
        results.change(result, finished_at=results.now(), status=names.Status.SUCCESSFUL, _return_value=value)
        signals.task_finished.send_robust(sender, task_result=result)
        return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def _begun(self, job: Job[bytes]) -> Any:
        """Make the result of a job that begins now. Raises `ImportError` if its task can't be imported."""
        result = results.new(self._backend.alias, job, results.task_of(job.headers.get(KIND, "")))
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

    def _final(self, job: Job[bytes], error: BaseException) -> bool:
        """Tell whether the task has failed for good: it has no attempts left."""
        engine = self._worker._running  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        stopping = engine is not None and engine.lifecycle.phase is not Phase.RUNNING
        if job.lost or isinstance(error, (RunSuspended, RunLost)):
            return False
        if stopping and isinstance(error, (KeyboardInterrupt, SystemExit)):
            return False  # the worker stops, and the task runs elsewhere
        if isinstance(error, Verdict):
            return isinstance(error, DeadLetter)
        attempts = self._backend.settings.retry.attempts
        return attempts is not None and job.attempt >= attempts


def worker_of(alias: str = "default", queues: Sequence[str] = (), concurrency: int | None = None) -> Worker:
    """Make the worker of a backend's tasks: of these *queues*, or all of `QUEUES`; and the relay of its outbox.

    Raises `ConfigurationError` for settings that are wrong, a queue that `QUEUES` does not name, and an outbox without
    its table.
    """
    backend = backend_of(alias)
    options, named = backend.settings, sorted(map(str, backend.queues))
    wanted = list(dict.fromkeys(queues)) or named
    if not wanted:
        raise ConfigurationError(f"TASKS[{alias!r}]['QUEUES'] is empty, which allows any queue: name some with --queue")
    if named and (unknown := [name for name in wanted if name not in named]):
        raise ConfigurationError(f"TASKS[{alias!r}]['QUEUES'] has no {unknown[0]!r}: it has {', '.join(named)}")
    given(options.url)
    if options.outbox:
        _require_table(options.database)
    worker = Worker(options.url, namespace=options.namespace)
    for name in wanted:
        runner, queue = Runner(backend, name, worker), backend.queue(name)
        register: Callable[[Any], Any] = worker.handler(
            queue, concurrency=concurrency or options.concurrency, retry=options.retry, deadline=options.deadline
        )
        register(runner.run)
        if options.outbox:
            worker.relay(tables().Outbox(queue), options.database)
    return worker


def _require_table(database: str) -> None:
    db: Any = import_module("django.db")
    outboxes: Any = import_module("headrace._sql.django"), import_module("headrace._sql.tables")
    connection = outboxes[0].connection_of(database)
    outboxes[1].require_table(connection, "headrace_outbox")
    db.connections[database].close()
