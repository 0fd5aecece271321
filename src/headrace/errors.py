"""The errors headrace raises: one tree under `HeadraceError`, each saying what to do next.

    HeadraceError
    ├── ConfigurationError (ValueError)   nothing was sent: correct the settings
    ├── CodecError (ValueError)           a payload could not be encoded; nothing was sent
    ├── ReplyError                        the server answered something no headrace script answers
    ├── WorkerLost                        this worker was declared dead; its jobs run elsewhere
    ├── NameTaken                         another worker lives under this worker's name
    └── Verdict                           raised or returned *by handlers*, to say how a job ends
        ├── RetryLater · DeadLetter · Release · Complete
    BatchError (HeadraceError)            raised by batch handlers: a verdict per job

Redis's own transport errors (`redis.ConnectionError`, …) pass through as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

__all__ = [
    "BatchError",
    "CodecError",
    "Complete",
    "ConfigurationError",
    "DeadLetter",
    "HeadraceError",
    "NameTaken",
    "Release",
    "ReplyError",
    "RetryLater",
    "Verdict",
    "WorkerLost",
]


class HeadraceError(Exception):
    """The root of everything headrace raises itself."""


class ConfigurationError(HeadraceError, ValueError):
    """A setting, URL or missing extra that stops us before anything is sent."""


class CodecError(HeadraceError, ValueError):
    """The queue's codec could not encode a payload. Nothing was sent."""


class ReplyError(HeadraceError):
    """The server's reply is not one that this version's scripts give.

    Another program answers on this address, or a proxy rewrites replies.
    """


class WorkerLost(HeadraceError):
    """This worker was declared dead by its peers; what it held runs elsewhere.

    A `Worker` handles this by itself: it stops its handlers and comes back under a new name.
    """


class NameTaken(HeadraceError):
    """Another worker lives under the name that was given to this one.

    Give each process a name of its own, or none; a name is free once its worker has stopped, or been dead for a moment.
    """


class Verdict(HeadraceError):
    """Base of what a handler raises, or returns, to say how its job ends. Both mean the same."""


class RetryLater(Verdict):
    """Try the job again after *delay*: seconds, a `timedelta`, or an aware `datetime`.

    Spends no attempt unless `spend=True`.
    """

    def __init__(self, delay: float | timedelta | datetime = 0.0, reason: str = "", *, spend: bool = False) -> None:
        when = f"in {delay} s" if isinstance(delay, (int, float)) else f"after {delay}"
        super().__init__(reason or f"retry {when}")
        self.delay, self.reason, self.spend = delay, reason, spend

    def __reduce__(self) -> tuple[Any, ...]:  # raised in another process, it is pickled
        return type(self), (self.delay, self.reason), {"spend": self.spend}


class DeadLetter(Verdict):
    """The job will never work: keep it with *reason* among the dead letters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Verdict):
    """Give the job back untouched, to the front. No attempt is spent."""


class Complete(Verdict):
    """The job is done; *result* is kept as if the handler had returned it."""

    def __init__(self, result: Any = None) -> None:
        super().__init__("the job is done")
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:  # like RetryLater's
        return type(self), (self.result,)


class BatchError(HeadraceError):
    """Some jobs of a batch ended otherwise than by completion.

    *failures* maps job ids to the exception (a `Verdict`, or any other, settled by the handler's
    `Retry`) that each ended with; the jobs not named are completed.
    """

    def __init__(self, failures: Mapping[str, BaseException]) -> None:
        super().__init__(f"{len(failures)} job(s) of the batch failed: {', '.join(list(failures)[:5])}")
        self.failures = dict(failures)

    def __reduce__(self) -> tuple[Any, ...]:  # like RetryLater's
        return type(self), (self.failures,)


def said(error: object) -> str:
    """An exception in words; its `__str__` is the user's and may raise."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
