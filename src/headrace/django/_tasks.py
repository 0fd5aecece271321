"""The `task_class` of the backend for tasks with options of their own, and the schedules that the
settings name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headrace import NewJob
from headrace.django import _contract as contract, _results as results
from headrace.django._options import Options, deadline_of, retry_of
from headrace.errors import ConfigurationError

# tasks with options of their own, by path, as far as their modules are imported
OWN: dict[str, Task] = {}


_Base: Any = contract.FIRST.Task


@dataclass(frozen=True, kw_only=True)
class Task(_Base):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """A task of a `TaskBackend` with options in place of its backend's, as in
    `@task(deadline=30)`."""

    retry: Any = None
    deadline: Any = None

    def __post_init__(self) -> None:
        if self.retry is not None:
            object.__setattr__(self, "retry", retry_of(self.retry))
        object.__setattr__(self, "deadline", deadline_of(self.deadline))
        _Base.__post_init__(self)
        if self.retry is not None or self.deadline is not None:
            OWN.setdefault(self.module_path, self)


def discovered() -> dict[str, Task]:
    """Import the modules `tasks` of all apps. Return the tasks with options of their own."""
    loading: Any = import_module("django.utils.module_loading")
    loading.autodiscover_modules("tasks")
    return dict(OWN)


def scheduled(options: Options) -> Iterator[tuple[Any, str, Any, NewJob[Any]]]:
    """Yield the tasks that `schedules` names, with their paths, when they recur, and their jobs.

    Raises `ConfigurationError` for a path that is no task, and for a task that needs arguments.
    """
    for path, when in options.schedules:
        try:
            task = results.task_of(path)
            inspect.signature(task.func).bind(*((None,) if task.takes_context else ()))
        except (ImportError, TypeError) as error:
            raise ConfigurationError(f"schedules: {path!r}: {error}") from None
        headers = results.headers_of(task, None, {})
        job = NewJob(results.payload_of([], {}), None, headers, None, options.level(task.priority))
        yield task, path, when, job
