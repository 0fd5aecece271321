"""Conditions of an enqueue, before anything is sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import ConfigurationError, Debounce, NewJob, Replace, Throttle
from headrace._model.policy import conditional, conditions, full, unconditional
from tests.support.facts import each


@each(
    ("given", "ms"),
    [
        ({}, {}),
        ({"if_exists": Replace()}, {"replace": 1}),
        (
            {"if_exists": Debounce(5, max_wait=timedelta(minutes=1))},
            {"debounce": 5000, "max_wait": 60_000},
        ),
        ({"if_exists": Debounce(0.5, replace=True)}, {"debounce": 500, "replace": 1}),
        ({"if_exists": Throttle(60), "unique_for": 1}, {"unique": 1000, "throttle": 60_000}),
    ],
)
def test_in_milliseconds(given: Any, ms: dict[str, int]) -> None:
    job = NewJob(b"x", id="i", **given)
    assert conditions(job, None) == ms
    assert conditional(job) == bool(given)


def test_the_queue_s_own_is_for_jobs_with_an_id() -> None:
    assert conditions(NewJob(b"x", id="i"), 2.0) == {"unique": 2000}
    assert conditions(NewJob(b"x", id="i", unique_for=1), 2.0) == {"unique": 1000}
    assert conditions(NewJob(b"x"), 2.0) == {}


@each(
    ("given", "error", "says"),
    [
        ({"if_exists": Throttle(5)}, ValueError, "if_exists: give the job an id"),
        ({"unique_for": 5}, ValueError, "unique_for: give the job an id"),
        ({"if_exists": Debounce(5), "delay": 5, "id": "i"}, ValueError, "Debounce is the delay"),
        ({"if_exists": 5, "id": "i"}, TypeError, "if_exists=5: give Debounce"),
        ({"if_exists": Throttle, "id": "i"}, TypeError, "give Debounce"),
    ],
)
def test_refused_jobs(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        conditions(NewJob(b"x", **given), None)


@each(
    ("made", "error", "says"),
    [
        (lambda: Debounce(5, replace=1), TypeError, "replace must be a bool"),  # type: ignore[arg-type]
        (lambda: Debounce(0), ValueError, "seconds"),
        (lambda: Debounce(5, max_wait=-1), ValueError, "max_wait"),
        (lambda: Throttle("5"), TypeError, "seconds"),  # type: ignore[arg-type]
    ],
)
def test_refused_conditions(made: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        made()


def test_where_there_are_none() -> None:
    assert unconditional(NewJob(b"x")).payload == b"x"
    with pytest.raises(ValueError, match="for enqueue and enqueue_many only"):
        unconditional(NewJob(b"x", id="i", if_exists=Replace()))
    with pytest.raises(ConfigurationError, match="give 'raise' or 'block'"):
        full("wait")
