"""The time that there is for another attempt."""

from __future__ import annotations

import pytest
import redis
import tenacity

from headrace._base import retrying
from headrace._telemetry.client import Outage


@pytest.mark.parametrize(("spent", "last"), [(0.5, False), (0.96, True), (1.5, True)])
def test_an_attempt_without_the_time_to_be_answered_is_not_made(spent: float, last: bool) -> None:
    """What is known of a call, as that the server refused it, would be unknown after it."""
    trip = retrying.Trip([], within=1.0)
    patience = retrying.Patience(Outage({}), lambda: 1.0, 1.0, trip)
    trip.spent = spent
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.set_exception((redis.ConnectionError, redis.ConnectionError("refused"), None))
    state.upcoming_sleep = 0.01
    assert patience.stop(state) is last
