"""`TaskBackend`, with which Django's tasks are jobs of queues of the same names."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from headrace import Job, JobState, NewJob, Queue
from headrace.django import _contract as contract, _results as results
from headrace.django._commit import sent_on_commit
from headrace.django._options import Options
from headrace.django._tables import schema
from headrace.django._tasks import Task, scheduled
from headrace.errors import ConfigurationError, JobFailed, without_extra
from headrace.platform import HEADERS, check_names, forks, given
from headrace.sql.dialects import DIALECTS, table_name

APP = "headrace.django"
FROM_OUTBOX = "SELECT queue, payload, headers, refused FROM {} WHERE namespace = %s AND job_id = %s"
# of all backends: Django makes one of each in every thread
_queues: dict[tuple[Options, str], Queue[bytes]] = {}
_lock = forks.lock()


def queue_of(options: Options, name: str) -> Queue[bytes]:
    with _lock:
        found = _queues.get((options, name))
        if found is None:
            found = _queues[options, name] = Queue(
                name,
                url=options.url,
                namespace=options.namespace,
                **options.of_queue(),
            )
        return found


def close() -> None:
    """Close the connections of all queues of this process. A later call opens them again."""
    with _lock:
        some = [*_queues.values()]
        _queues.clear()
    for queue in some:
        queue.close()


def tables() -> Any:
    """Return the module of outboxes. Raises `ConfigurationError` without the extra `sql`."""
    if find_spec("sqlalchemy") is None:
        raise ConfigurationError(without_extra("an outbox", "sql"))
    return import_module("headrace.sql")


def outbox_of(options: Options, queue: Queue[bytes]) -> Any:
    return tables().Outbox(queue, schema=options.schema)


class TaskBackend(contract.BaseTaskBackend):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Runs Django's tasks as jobs. An entry of `TASKS` names it as its `BACKEND`, by the path
    `headrace.django.TaskBackend`.

    Each name of `QUEUES` is a queue of that name. The command `manage.py headrace_worker` runs
    tasks. Options are described in docs/how-to/use-in-django.md. Wrong ones are errors of
    `manage.py check`, and a `ConfigurationError` of the first call.
    """

    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @forks.cached_property
    def settings(self) -> Options:
        """The options, checked. Raises `ConfigurationError`."""
        return Options.of(self.alias, self.options)

    def queue(self, name: str) -> Queue[bytes]:
        """Return the queue of this *name*, shared by the threads of this process."""
        return queue_of(self.settings, name)

    def validate_task(self, task: Any) -> None:
        """Refuse a task that can't be run. Raises Django's `InvalidTask`."""
        check: Any = super()
        try:
            check.validate_task(task)
        except contract.INVALID as error:
            raise contract.InvalidTask(*error.args) from None
        try:
            check_names(task.queue_name)
        except ValueError as error:
            raise contract.InvalidTask(
                f"Queue {task.queue_name!r} is not valid for headrace: {error}"
            ) from None

    # -- enqueueing --------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a call of *task*, and return its result, which is `READY`.

        In a transaction of the option `database`, it is sent when that is committed, and never if
        it is rolled back. With the option `outbox` it is a row of the transaction. Raises Django's
        `InvalidTask`, and `TypeError` for arguments that JSON can't carry. If the server is away,
        raises an error of redis after the option `timeout`. After a commit that is logged instead
        (`task_not_sent`), and later hooks of the transaction run.
        """
        self.validate_task(task)
        began = time.time()
        name = secrets.token_hex(12)
        names = contract.contract_of(task)
        result = names.TaskResult(
            task=task,
            id=name if self.queues else f"{name}.{task.queue_name}",
            status=names.Status.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        payload = results.payload_of(result.args, result.kwargs)
        headers = results.headers_of(
            task, began, results.told_apart(task, args, kwargs, self.settings.told_apart)
        )
        after = task.run_after
        if after is not None and after.tzinfo is None:
            after = after.astimezone()  # naive only without USE_TZ: then it is local
        job = NewJob(payload, result.id, headers, after, self.settings.level(task.priority))
        if self.settings.outbox:
            self._write(task.queue_name, job)
            self._enqueued(result, began)
        elif self.settings.on_commit and (transaction := self._transaction()) is not None:
            sent_on_commit(
                transaction,
                partial(self._send, job, result, began, task.queue_name),
                task,
                result.id,
            )
        else:
            self._send(job, result, began, task.queue_name)
        return result

    def _transaction(self) -> Any:
        """Return the connection of the database if it is in a transaction. This does not connect to
        it.
        """
        db: Any = import_module("django.db")
        connection = db.connections[self.settings.database]
        return connection if connection.in_atomic_block else None

    def _send(
        self,
        job: NewJob[bytes],
        result: Any,
        began: float,
        queue: str,
        timeout: float | None = None,
    ) -> None:
        self.queue(queue).enqueue(job, timeout=timeout)
        self._enqueued(result, began)

    def _write(self, queue: str, job: NewJob[bytes]) -> None:
        outbox = outbox_of(self.settings, self.queue(queue))
        with import_module("django.db.transaction").atomic(using=self.settings.database):
            outbox.enqueue(self.settings.database, job)

    def _enqueued(self, result: Any, began: float) -> None:
        results.change(result, enqueued_at=results.moment(began))
        contract.contract_of(result.task).signals().task_enqueued.send(
            type(self), task_result=result
        )

    # -- results -----------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """Return the result of an earlier call, from any process.

        Raises Django's `TaskResultDoesNotExist`, also for a task that ended longer than
        `result_ttl` ago, or before the last `history` ones of its queue. Two or three scripts for
        each queue that is asked.
        """
        found = self._in_queues(result_id)
        if found is None and self.settings.outbox and isinstance(result_id, str):
            # The relay may have moved the row between the two: then it is in a queue by now.
            found = self._in_outbox(result_id) or self._in_queues(result_id)
        if found is not None:
            return found
        raise contract.TaskResultDoesNotExist(result_id)

    def _in_queues(self, result_id: str) -> Any | None:
        for name in self._places(result_id):
            try:
                queue = self.queue(name)
                state = queue.find(result_id)
            except (TypeError, ValueError):  # no id that a job may have, or no queue
                return None
            if state is not None:
                return self._result(queue, state)
        return None

    def _places(self, id: object) -> Sequence[str]:
        if self.queues:
            return sorted(self.queues)
        _, dot, name = str(id).partition(".")
        return [name] if dot and name else []

    def _result(self, queue: Queue[bytes], state: JobState[bytes]) -> Any:
        task = self._task(state.job)
        value = None
        if state.state == "completed":
            try:
                kept = queue.result(state.job.id, timeout=0)
                value = None if kept is None else json.loads(kept)
            except JobFailed:  # the result has gone a moment before the end has
                value = None
        return results.result_of(self.alias, state, task, value)

    def _task(self, job: Job[Any]) -> Any:
        """Return the task of a job. Raises `TaskResultDoesNotExist` if this process can't import
        it."""
        path = job.headers.get(HEADERS.kind, "")
        try:
            return results.task_of(path)
        except Exception as error:
            why = f"{job.id} is of task {path!r}, which can't be imported: {error}"
            raise contract.TaskResultDoesNotExist(why) from error

    def _in_outbox(self, id: str) -> Any:
        db: Any = import_module("django.db")
        table = table_name("headrace_outbox", self.settings.schema)
        with db.connections[self.settings.database].cursor() as cursor:
            cursor.execute(FROM_OUTBOX.format(table), [self.settings.namespace, id])
            row = cursor.fetchone()
        if row is None:
            return None
        queue, payload, headers, refused = row
        job = Job(
            id, bytes(payload), queue, json.loads(headers) if isinstance(headers, str) else headers
        )
        result = results.new(self.alias, job, self._task(job))
        if refused:
            names = contract.contract_of(result.task)
            results.change(result, status=names.Status.FAILED)
            result.errors.append(
                names.TaskError(exception_class_path=results.NO_ERROR, traceback=f"{refused}\n")
            )
        return result

    # -- checks ------------------------------------------------------------------------------------

    def check(self, **_: Any) -> Iterator[Any]:
        """Yield the faults of the settings for `manage.py check`."""
        checks: Any = import_module("django.core.checks")
        where = f"TASKS[{self.alias!r}]"
        try:
            options = self.settings
            given(options.url)
        except (ConfigurationError, ValueError) as error:
            text = str(error) if where in str(error) else f"{where}: {error}"
            hint = (
                f"Give {where}['OPTIONS']['url'], or set HEADRACE_URL."
                if "HEADRACE_URL" in text
                else None
            )
            yield checks.Error(text, hint=hint, id="headrace.E001")
            return
        for name in sorted(map(str, self.queues)):
            try:
                check_names(name, options.namespace)
            except ValueError as error:
                yield checks.Error(f"{where}['QUEUES']: {error}", id="headrace.E002")
        yield from self._check_aliases(checks, where, options)
        try:
            for task, *_rest in scheduled(options):
                self.validate_task(task)
        except (ConfigurationError, contract.InvalidTask) as error:
            yield checks.Error(f"{where}['OPTIONS']: {error}", id="headrace.E008")
        db: Any = import_module("django.db")
        for name, alias in {
            "database": options.database,
            "relay_database": options.relayed_by(),
        }.items():
            if alias not in db.connections.settings:
                yield checks.Error(
                    f"{where}['OPTIONS'][{name!r}]: there is no database {alias!r}",
                    hint="Name one of DATABASES.",
                    id="headrace.E003",
                )
                return
        if options.outbox:
            yield from self._check_outbox(checks, db, where, options)

    def _check_aliases(self, checks: Any, where: str, options: Options) -> Iterator[Any]:
        """Yield an error for each alias before this one in `TASKS` that has a queue of ours and
        other options.
        """
        for other in contract.task_backends().all():
            if other.alias == self.alias:
                return
            if not isinstance(other, TaskBackend):
                continue
            try:
                theirs = other.settings
                if options.place() != theirs.place():
                    continue
            except (ConfigurationError, ValueError):  # its own check says so
                continue
            differing = options.differing(theirs)
            shared = self._shared(other)
            if shared and differing:
                yield checks.Error(
                    f"{where} and TASKS[{other.alias!r}] share {shared}, and differ in {', '.join(differing)}",
                    hint="A worker of either runs the tasks of both: give them other QUEUES, or the same OPTIONS.",
                    id="headrace.E007",
                )

    def _shared(self, other: TaskBackend) -> str:
        if self.queues and other.queues:
            return ", ".join(
                f"queue {name!r}" for name in sorted(map(str, self.queues & other.queues))
            )
        return "all queues, as an empty QUEUES allows any"

    def _check_outbox(self, checks: Any, db: Any, where: str, options: Options) -> Iterator[Any]:
        try:
            tables()
        except ConfigurationError as error:
            yield checks.Error(f"{where}: {error}", id="headrace.E004")
        if not import_module("django.apps").apps.is_installed(APP):
            yield checks.Error(
                f"{where}: an outbox has a table, of which Django knows nothing",
                hint=f"Add {APP!r} to INSTALLED_APPS, and migrate.",
                id="headrace.E005",
            )
        vendor = db.connections[options.database].vendor
        if vendor not in DIALECTS:
            yield checks.Error(
                f"{where}: an outbox is for PostgreSQL and SQLite, and {options.database!r} is {vendor}",
                hint="Leave out 'outbox': tasks are sent on commit.",
                id="headrace.E006",
            )
        elif options.schema is not None and vendor != "postgresql":
            yield checks.Error(
                f"{where}: a schema is for PostgreSQL, and {options.database!r} is {vendor}",
                hint="Leave out 'schema'.",
                id="headrace.E009",
            )
        elif options.schema != schema():
            yield checks.Error(
                f"{where}: the tables are in schema {schema()!r}, as another alias has it, not in {options.schema!r}",
                hint="Give each alias that has an outbox the same 'schema'.",
                id="headrace.E009",
            )


def missing_table(databases: Sequence[str] | None = None, **_: Any) -> Iterator[Any]:
    """Yield a warning for each backend whose outbox has no table. `manage.py check --database
    default` asks.
    """
    checks: Any = import_module("django.core.checks")
    db: Any = import_module("django.db")
    for backend in contract.task_backends().all():
        if not isinstance(backend, TaskBackend) or [*backend.check()]:
            continue
        options = backend.settings
        if options.outbox and options.database in (databases or ()):
            connection: Any = import_module("headrace.sql.connections").connection_of(
                db.connections[options.database]
            )
            if not connection.columns("headrace_outbox", options.schema):
                missing = table_name("headrace_outbox", options.schema)
                yield checks.Warning(
                    f"database {options.database!r} has no table {missing}: no task can be enqueued",
                    hint="Run manage.py migrate headrace.",
                    id="headrace.W001",
                )


def backend_of(alias: str) -> TaskBackend:
    """Return the backend *alias* of `TASKS`. Raises `ConfigurationError` if it is none of ours."""
    try:
        backend: Any = contract.task_backends()[alias]
    except contract.InvalidTaskBackend as error:
        raise ConfigurationError(f"TASKS: {error}") from None
    if not isinstance(backend, TaskBackend):
        kind = f"{type(backend).__module__}.{type(backend).__qualname__}"
        raise ConfigurationError(
            f"TASKS[{alias!r}] is a {kind}: give the alias of a headrace.django.TaskBackend"
        )
    return backend
