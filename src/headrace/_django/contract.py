"""Django's own names for tasks: of `django.tasks` (Django 6 and later), or of the backport `django-tasks`.

They are `Any` for type checkers: neither package has annotations that both would agree on.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from headrace.errors import ConfigurationError, requiring


def _package() -> str:
    """Return the package of tasks. Raises `ConfigurationError` if there is none."""
    with requiring("headrace.django", "django", "django"):
        import_module("django")
    found = next((name for name in ("django.tasks", "django_tasks") if find_spec(name)), None)
    if found is None:
        raise ConfigurationError("this Django has no tasks: use Django 6 or later, or install the package django-tasks")
    return found


PACKAGE = _package()
_base: Any = import_module(f"{PACKAGE}.base")
_errors: Any = import_module(f"{PACKAGE}.exceptions")
BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
Status: Any = _base.TaskResultStatus
TaskResultDoesNotExist: Any = _errors.TaskResultDoesNotExist
InvalidTask: Any = getattr(_errors, "InvalidTask", None) or _errors.InvalidTaskError
InvalidTaskBackend: Any = getattr(_errors, "InvalidTaskBackend", None) or _errors.InvalidTaskBackendError


def signals() -> Any:
    """Return the module of the signals. It is imported late: the backport's needs the settings."""
    return import_module(f"{PACKAGE}.signals")


def task_backends() -> Any:
    """Return the backends by alias."""
    return import_module(PACKAGE).task_backends


def normalized(value: Any) -> Any:
    """Return *value* as JSON can carry it. Raises `TypeError` or `ValueError` for other types, as Django does."""
    where = "django_tasks.utils" if PACKAGE == "django_tasks" else "django.utils.json"
    normalize: Any = import_module(where).normalize_json
    return normalize(value)
