"""`Event`, and the kinds of events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import field, frozen

from headrace._model.job import shortened

KINDS = (
    "added",
    "leased",
    "completed",
    "retried",
    "released",
    "dead",
    "cancelled",
    "deleted",
    "reclaimed",
    "promoted",
    "redriven",
    "progress",
)
# after these a job has its result, or won't have one
ENDS = ("completed", "dead", "cancelled", "deleted")


@frozen
class Event:
    """Something that happened to a job.

    `kind` is added, leased, completed, retried, released, dead, cancelled, deleted, reclaimed,
    promoted (a delayed job is due), redriven or progress. `id` is the job's, or `None` when the
    whole queue was deleted. `at` is the server's time, in seconds. `worker` leased the job or
    settled it, if the script knows it. For a reclaimed job it is the worker that lost it. `reason`
    says why a job was retried or is dead, in at most 500 bytes. For a progress it is the fraction
    and the text.
    """

    kind: str
    queue: str
    id: str | None
    at: float
    worker: str | None = None
    reason: str | None = field(default=None, repr=shortened)


def kinds(value: object) -> tuple[str, ...]:
    """Check a choice of event kinds. `None` chooses all. Raises `TypeError` or `ValueError`."""
    if value is None:
        return KINDS
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"kinds must be an iterable of str, not {type(value).__name__}")
    names: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if not names or any(name not in KINDS for name in names):
        raise ValueError(f"kinds={names!r}: give some of {', '.join(KINDS)}")
    return tuple(dict.fromkeys(names))
