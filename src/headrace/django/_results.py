"""Results of tasks, as Django describes them, made of jobs."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from headrace import Job, JobState
from headrace.django import _contract as contract
from headrace.platform import HEADERS, parameters

# headers
PRIORITY, RUN_AFTER, ENQUEUED = "django-priority", "django-run-after", "django-enqueued-at"
UNKNOWN_WORKER = "unknown"  # of an attempt whose worker died
# the class for an end that no exception of the task has made
NO_ERROR = "headrace.errors.JobFailed"


def now() -> datetime:
    return moment(time.time())


def moment(seconds: float) -> datetime:
    settings: Any = import_module("django.conf").settings
    aware = datetime.fromtimestamp(seconds, UTC)
    if settings.USE_TZ:
        return aware
    timezone: Any = import_module("django.utils.timezone")
    naive: datetime = timezone.make_naive(aware)
    return naive


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def task_of(path: str) -> Any:
    """Import the task of a path. Raises `ImportError` if there is none."""
    loading: Any = import_module("django.utils.module_loading")
    found = loading.import_string(path)
    if not isinstance(found, contract.TASKS):
        raise ImportError(f"{path!r} is no task, but of type {type(found).__name__}")  # noqa: TRY004 - as for no module
    return found


def told_apart(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
) -> dict[str, str]:
    """Return the headers that a call has for these *names* of arguments.

    Raises `TypeError` for a value that is no text, number or bool, and for arguments that the task
    does not take.
    """
    if not names:
        return {}
    context = (None,) if task.takes_context else ()
    bound = inspect.signature(task.func).bind(*context, *args, **kwargs)
    bound.apply_defaults()
    return dict(parameters(names, {**bound.arguments, **kwargs}))


def headers_of(task: Any, enqueued: float | None, more: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a task's job, from which `new` makes the task again, and *more*.

    *enqueued* is in seconds since the epoch, or `None` if the server knows it.
    """
    found = {**more, HEADERS.kind: task.module_path}
    if enqueued is not None:
        found[ENQUEUED] = f"{enqueued:.6f}"
    if task.priority:
        found[PRIORITY] = str(task.priority)
    if task.run_after is not None:
        found[RUN_AFTER] = task.run_after.isoformat()
    return found


def payload_of(args: list[Any], kwargs: Mapping[str, Any]) -> bytes:
    return value_of({"args": args, "kwargs": kwargs})


def value_of(value: Any) -> bytes:
    """Encode a value that JSON can carry. Raises `ValueError` for text that is no Unicode."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _call(payload: bytes | None) -> tuple[list[Any], dict[str, Any]]:
    given: Any = {} if payload is None else json.loads(payload)
    try:
        return [*given.get("args", [])], {**given.get("kwargs", {})}
    except (AttributeError, TypeError):
        raise ValueError("it is no object with args and kwargs") from None


def new(alias: str, job: Job[Any], task: Any) -> Any:
    """Make the result of a job, not begun. Raises `ValueError` for a payload that holds no
    arguments."""
    args, kwargs = _call(job.payload)
    after = job.headers.get(RUN_AFTER)
    priority = int(job.headers.get(PRIORITY, "0"))
    enqueued = job.headers.get(ENQUEUED)
    options = {"priority": priority, "queue_name": str(job.queue), "backend": alias}
    try:
        own = task.using(
            **options, run_after=None if after is None else datetime.fromisoformat(after)
        )
    except contract.INVALID:  # QUEUES have changed since
        own = task
    names = contract.contract_of(task)
    return names.TaskResult(
        task=own,
        id=job.id,
        status=names.Status.READY,
        enqueued_at=moment(float(enqueued)) if enqueued else _moment(job.enqueued_at or None),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def change(result: Any, **values: Any) -> None:
    """Change fields of a result, which is frozen for its users."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def attempted(result: Any, state: JobState[Any]) -> None:
    attempts = state.attempts
    known = {one.number: one.worker for one in attempts}
    last = state.job.attempt if state.ended else 0
    if state.state == "leased":
        last = state.job.attempt - 1
    workers = [known.get(number) or UNKNOWN_WORKER for number in range(1, max(last, *known, 0) + 1)]
    failed = [one for one in attempts if one.error or one.reason]
    errors = [
        contract.contract_of(result.task).TaskError(
            exception_class_path=one.error or NO_ERROR,
            traceback=one.traceback or f"{one.reason or one.error}\n",
        )
        for one in failed
    ]
    began = [one.began for one in attempts if one.began is not None]
    change(
        result,
        worker_ids=workers,
        errors=errors,
        started_at=_moment(began[0] if began else None),
        last_attempted_at=_moment(began[-1] if began else None),
    )


def result_of(alias: str, state: JobState[Any], task: Any, value: Any) -> Any:
    result = new(alias, state.job, task)
    names = contract.contract_of(task)
    attempted(result, state)
    if state.state == "leased":
        since = _moment(state.since)
        change(
            result,
            status=names.Status.RUNNING,
            worker_ids=[*result.worker_ids, state.worker or UNKNOWN_WORKER],
            started_at=result.started_at or since,
            last_attempted_at=since,
        )
    elif state.state == "completed":
        change(
            result,
            status=names.Status.SUCCESSFUL,
            finished_at=_moment(state.ended),
            _return_value=value,
        )
    elif state.state in ("dead", "cancelled", "deleted"):
        change(result, status=names.Status.FAILED, finished_at=_moment(state.ended))
        last = state.attempts[-1] if state.attempts else None
        if last is None or last.number < state.job.attempt or state.state != "dead":
            why = (
                f"the job was {state.state}"
                if state.state != "dead"
                else f"{state.reason or 'no reason is known'}"
            )
            result.errors.append(
                names.TaskError(exception_class_path=NO_ERROR, traceback=f"{why}\n")
            )
    return result
