"""Conditions of an enqueue, before anything is sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import ConfigurationError, NewJob
from headrace._model.conditions import conditional, conditions, full, unconditional


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ({}, {}),
        ({"replace": True}, {"replace": 1}),
        ({"debounce": 5, "max_wait": timedelta(minutes=1)}, {"debounce": 5000, "max_wait": 60_000}),
        ({"throttle": 60, "unique_for": 1}, {"unique": 1000, "throttle": 60_000}),
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


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"replace": 1, "id": "i"}, TypeError, "replace must be a bool"),
        ({"throttle": 5}, ValueError, "give the job an id"),
        ({"throttle": 5, "debounce": 5, "id": "i"}, ValueError, "exclude each other"),
        ({"throttle": 5, "replace": True, "id": "i"}, ValueError, "exclude each other"),
        ({"debounce": 5, "delay": 5, "id": "i"}, ValueError, "debounce is the delay"),
        ({"max_wait": 5, "id": "i"}, ValueError, "it bounds debounce"),
    ],
)
def test_what_excludes_each_other(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        conditions(NewJob(b"x", **given), None)


def test_where_there_are_none() -> None:
    assert unconditional(NewJob(b"x")).payload == b"x"
    with pytest.raises(ValueError, match="for enqueue and enqueue_many only"):
        unconditional(NewJob(b"x", id="i", replace=True))
    with pytest.raises(ConfigurationError, match="give 'raise' or 'block'"):
        full("wait")
