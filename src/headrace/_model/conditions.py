"""Conditions of an enqueue: the fate of a job whose id is known, and of a job without room."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from headrace._model.checks import millis, seconds
from headrace._model.job import Claim, NewJob
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
    debounce: float | timedelta | None
    max_wait: float | timedelta | None
    throttle: float | timedelta | None
    replace: bool


DEFAULTS = {name: False if name == "replace" else None for name in Conditions.__annotations__}
with_conditions = spelled_out(Conditions, DEFAULTS)


def full(value: object) -> str:
    """Check the choice for a full queue. Raises `ConfigurationError` unless it is one of `FULL`."""
    if value not in FULL:
        raise ConfigurationError(f"full={value!r:.100}: give 'raise' or 'block'")
    return str(value)


def conditional(job: NewJob[Any]) -> bool:
    """Tell whether a job has conditions of its own."""
    return not (
        job.unique_for is None and job.debounce is None and job.throttle is None and job.max_wait is None
    ) or bool(job.replace)  # fmt: skip


def unconditional(job: NewJob[Any]) -> NewJob[Any]:
    """Refuse a job with conditions, where there are none. Raises `ValueError`."""
    if conditional(job):
        raise ValueError("unique_for, debounce, max_wait, throttle, replace: for enqueue and enqueue_many only")
    return job


def staying(claims: Sequence[Claim]) -> Iterator[str]:
    """Name the *claims* whose ids stay taken after completion, as the script takes them."""
    for number, claim in enumerate(claims, 1):
        ms = claim.job.headers.get(UNIQUE, "") if claim.named else ""
        if len(ms) < DIGITS and re.fullmatch("[1-9][0-9]*", ms):
            yield f"={number} {ms}"


def conditions(job: NewJob[Any], unique_for: float | None) -> dict[str, int]:
    """Check the conditions of a job, and return them in ms, as the script takes them. *unique_for*: the queue's.

    Raises `ValueError` for conditions that exclude each other or need an id, `TypeError` for an invalid time.
    """
    if not isinstance(job.replace, bool):
        raise TypeError(f"replace must be a bool, not {type(job.replace).__name__}")
    given = {"debounce": job.debounce, "max_wait": job.max_wait, "throttle": job.throttle, "unique_for": job.unique_for}
    ms = {name: millis(seconds(name, value, zero=False)) for name, value in given.items() if value is not None}
    if job.replace:
        ms["replace"] = 1
    if ms and job.id is None:
        raise ValueError(f"{next(iter(ms))}: give the job an id: it is about jobs of one id")
    for one, other in (("debounce", "throttle"), ("replace", "throttle")):
        if one in ms and other in ms:
            raise ValueError(f"{one} and {other} exclude each other: give one of them")
    if "debounce" in ms and job.delay is not None:
        raise ValueError("debounce and delay exclude each other: debounce is the delay")
    if "max_wait" in ms and "debounce" not in ms:
        raise ValueError("max_wait: it bounds debounce: give that, too")
    unique = ms.pop("unique_for", None if unique_for is None or job.id is None else millis(unique_for))
    return ms if unique is None else {"unique": unique, **ms}
