"""The time that there is for another attempt."""

from __future__ import annotations

import redis
import tenacity

from headrace._net.base import retries as retrying
from headrace._telemetry.client import Outage
from tests.support.facts import each


@each(("spent", "last"), [(0.5, False), (0.96, True), (1.5, True)])
def test_an_attempt_without_the_time_to_be_answered_is_not_made(spent: float, last: bool) -> None:
    """The outcome of a refused call is known. After an attempt without an answer it would be
    unknown."""
    trip = retrying.Trip([], within=1.0)
    patience = retrying.RetryBudget(Outage({}), lambda: 1.0, 1.0, trip)
    trip.spent = spent
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.set_exception((redis.ConnectionError, redis.ConnectionError("refused"), None))
    state.upcoming_sleep = 0.01
    assert patience.stop(state) is last


@each(("unanswered", "last"), [(0, True), (1, False)])
def test_an_attempt_is_given_the_time_that_others_took(unanswered: int, last: bool) -> None:
    """A busy or distant server takes long to refuse a call. A call with an unknown outcome is tried
    until its end."""
    trip = retrying.Trip([], within=1.0, unanswered=unanswered)
    patience = retrying.RetryBudget(Outage({}), lambda: 1.0, 1.0, trip)
    patience.since -= 0.3  # seconds that the first attempt took
    full = redis.OutOfMemoryError("command not allowed")
    patience.failed(full)
    trip.spent = 0.5
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.upcoming_sleep = 0.01
    assert patience.stop(state) is last
