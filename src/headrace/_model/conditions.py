"""Conditions of an enqueue: the fate of a job whose id is known, and of a job without room."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from headrace._model.checks import millis, seconds
from headrace._model.job import Claim, NewJob
from headrace._model.policy import IfExists
from headrace._model.spelled import spelled_out
from headrace.errors import ConfigurationError

Full = Literal["raise", "block"]
Outcome = Literal["added", "present", "replaced", "moved", "dropped"]
UNIQUE = "headrace-unique"  # the header with the ms for which the id of a completed job stays taken
FULL = ("raise", "block")
DIGITS = 14  # of a number of ms, fewer: whatever a foreign producer writes


class Conditions(TypedDict, total=False):
    """Keyword arguments of an enqueue, and fields of a `NewJob`, for a job whose id is known."""

    unique_for: float | timedelta | None
    if_exists: IfExists | None


with_conditions = spelled_out(Conditions, dict.fromkeys(Conditions.__annotations__))


def full(value: object) -> str:
    """Check the choice for a full queue. Raises `ConfigurationError` unless it is one of `FULL`."""
    if value not in FULL:
        raise ConfigurationError(f"full={value!r:.100}: give 'raise' or 'block'")
    return str(value)


def conditional(job: NewJob[Any]) -> bool:
    """Tell whether a job has conditions of its own."""
    return job.unique_for is not None or job.if_exists is not None


def unconditional(job: NewJob[Any]) -> NewJob[Any]:
    """Refuse a job with conditions, where there are none. Raises `ValueError`."""
    if conditional(job):
        raise ValueError("unique_for, if_exists: for enqueue and enqueue_many only")
    return job


def staying(claims: Sequence[Claim]) -> Iterator[str]:
    """Name the *claims* whose ids stay taken after completion, as the script takes them."""
    for number, claim in enumerate(claims, 1):
        ms = claim.job.headers.get(UNIQUE, "") if claim.named else ""
        if len(ms) < DIGITS and re.fullmatch("[1-9][0-9]*", ms):
            yield f"={number} {ms}"


def conditions(job: NewJob[Any], unique_for: float | None) -> dict[str, int]:
    """Check the conditions of a job, and return them in ms, as the script takes them. *unique_for*: the queue's.

    Raises `ValueError` for conditions that need an id, `TypeError` for a value that is no condition.
    """
    terms: dict[str, int] = {}
    if job.unique_for is not None:
        terms["unique"] = millis(seconds("unique_for", job.unique_for, zero=False))
    if job.if_exists is not None:
        if not isinstance(job.if_exists, IfExists):
            given = f"{job.if_exists!r:.100}"
            raise TypeError(f"if_exists={given}: give Debounce(seconds), Throttle(seconds) or Replace()")
        terms |= job.if_exists.terms
    if terms and job.id is None:
        name = "unique_for" if job.if_exists is None else "if_exists"
        raise ValueError(f"{name}: give the job an id: it is about jobs of one id")
    if "debounce" in terms and job.delay is not None:
        raise ValueError("if_exists=Debounce(...) and delay exclude each other: Debounce is the delay")
    if "unique" not in terms and unique_for is not None and job.id is not None:
        terms["unique"] = millis(unique_for)
    return terms
