"""The settings of the child processes of isolated handlers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, get_args

from attrs import field, frozen

from headrace._model import checks
from headrace.errors import ConfigurationError

StartMethod = Literal["forkserver", "spawn"]
LEAST_MB = 64.0  # MiB: Python itself has about 30


def _grace(value: object) -> float:
    return checks.seconds("grace_s", value)


def _megabytes(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of MiB, not {type(value).__name__}")
    if not value >= LEAST_MB:
        raise ValueError(f"{name}={value!r}: give at least {LEAST_MB:g} MiB")


@frozen(kw_only=True)
class Isolation:
    """The child processes in which an isolated handler runs.

    - *processes*: number of children, as many as the handler's *concurrency* by default.
    - *recycle_jobs*: a child is replaced after about so many jobs. The number differs by a tenth
      from child to child, so that they are not replaced at once. The next child is ready before.
    - *recycle_mb*: a child is replaced after a job that leaves it with more MiB of memory.
    - *memory_mb*: MiB of address space of a child (`RLIMIT_AS`), where the platform enforces it,
      as Linux does. A job that needs more fails.
    - *start*: with `forkserver`, as by default, children are copies of a process that has loaded
      the handler's module. With `spawn`, each child loads it.
    - *grace_s*: seconds, or a `timedelta`, from SIGTERM to SIGKILL for a child that must end.

    Raises `TypeError`, `ValueError` or `ConfigurationError` for a bad value.
    """

    processes: int | None = None
    recycle_jobs: int | None = None
    recycle_mb: float | None = None
    memory_mb: float | None = None
    start: StartMethod | None = None
    grace_s: float | timedelta = field(default=2.0, converter=_grace)

    def __attrs_post_init__(self) -> None:
        if self.processes is not None:
            checks.count("processes", self.processes, most=1000)
        if self.recycle_jobs is not None:
            checks.count("recycle_jobs", self.recycle_jobs)
        _megabytes("recycle_mb", self.recycle_mb)
        _megabytes("memory_mb", self.memory_mb)
        if self.start is not None and self.start not in get_args(StartMethod):
            raise ConfigurationError(
                f"start={self.start!r}: give 'forkserver' or 'spawn': a fork copies locks that "
                "other threads hold"
            )


def wanted(value: object) -> Isolation | None:
    """Return how a handler is isolated, or `None` if it is not. Raises `TypeError`."""
    if value is None or value is False:
        return None
    if value is True:
        return Isolation()
    if not isinstance(value, Isolation):
        raise TypeError(f"isolate must be True or an Isolation(...), not {type(value).__name__}")
    return value
