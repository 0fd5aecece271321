"""Django's own names for tasks, of `django.tasks` (Django 6 and later), and of the backport
`django-tasks`.

Both may be there, because a project on Django 6 may use a package whose tasks are the backport's,
as Wagtail's are. A task, its result and its signals are of one of them. All names are `Any` for
type checkers, because the annotations of the two differ.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from attrs import field, frozen

from headrace.errors import ConfigurationError, requiring


@frozen
class Contract:
    package: str
    Task: Any = field(init=False)
    TaskContext: Any = field(init=False)
    TaskError: Any = field(init=False)
    TaskResult: Any = field(init=False)
    Status: Any = field(init=False)
    exceptions: Any = field(init=False)
    _context: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        base: Any = import_module(f"{self.package}.base")
        for name in ("Task", "TaskContext", "TaskError", "TaskResult"):
            object.__setattr__(self, name, getattr(base, name))
        object.__setattr__(
            self, "_context", type("TaskContext", (base.TaskContext,), {"__slots__": ("job",)})
        )
        object.__setattr__(self, "Status", base.TaskResultStatus)
        object.__setattr__(self, "exceptions", import_module(f"{self.package}.exceptions"))

    def error(self, name: str) -> Any:
        """Return an exception by its name, to which the backport adds `Error` in some cases."""
        return getattr(self.exceptions, name, None) or getattr(self.exceptions, f"{name}Error")

    def context(self, result: Any, job: Any) -> Any:
        made = self._context(task_result=result)
        object.__setattr__(made, "job", job)
        return made

    def signals(self) -> Any:
        """Return the module of the signals. It is imported late, as the backport's needs the
        settings.
        """
        return import_module(f"{self.package}.signals")

    def normalized(self, value: Any) -> Any:
        """Return *value* as JSON can carry it. Raises `TypeError` or `ValueError` for other types,
        as Django does."""
        where = "django_tasks.utils" if self.package == "django_tasks" else "django.utils.json"
        normalize: Any = import_module(where).normalize_json
        return normalize(value)


def _contracts() -> list[Contract]:
    """Return the packages that are there, Django's own first. Raises `ConfigurationError` if there
    is none."""
    with requiring("headrace.django", "django", "django"):
        import_module("django")
    found = [Contract(name) for name in ("django.tasks", "django_tasks") if find_spec(name)]
    if not found:
        raise ConfigurationError(
            "this Django has no tasks: use Django 6 or later, or install the package django-tasks"
        )
    return found


def _error(name: str) -> Any:
    """Make an exception that is caught as that of each package."""
    kinds = [one.error(name) for one in CONTRACTS]
    return kinds[0] if len(kinds) == 1 else type(name, tuple(kinds), {"__module__": __name__})


CONTRACTS = _contracts()
FIRST = CONTRACTS[0]
BaseTaskBackend: Any = import_module(f"{FIRST.package}.backends.base").BaseTaskBackend
TASKS: tuple[Any, ...] = tuple(one.Task for one in CONTRACTS)
# as they are raised by Django
INVALID: tuple[Any, ...] = tuple(one.error("InvalidTask") for one in CONTRACTS)
InvalidTask: Any = _error("InvalidTask")
InvalidTaskBackend: Any = tuple(one.error("InvalidTaskBackend") for one in CONTRACTS)
TaskResultDoesNotExist: Any = _error("TaskResultDoesNotExist")


def contract_of(task: Any) -> Contract:
    return next((one for one in CONTRACTS if isinstance(task, one.Task)), FIRST)


def task_backends() -> Any:
    return import_module(FIRST.package).task_backends
