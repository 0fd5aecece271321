"""What a handler's exception means for its job: `Retry` and the verdict exceptions, judged without a clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from attrs import evolve, field, frozen

from headrace._job import Claim
from headrace._settings import FOREVER, Retry
from headrace._settings import delay as checked_delay
from headrace.errors import DeadLetter, Release, RetryLater, said


@frozen
class Verdict:
    """How a delivered job is settled: complete, release, retry or dead."""

    kind: str
    claim: Claim
    result: bytes | None = None
    delay: float | datetime = 0.0
    spend: bool = True
    reason: str = ""


@frozen
class Outcome:
    """What tenacity's `retry_*`, `stop_*` and `wait_*` objects ask of a future."""

    error: BaseException
    failed: bool = True

    def exception(self) -> BaseException:
        """What the handler raised."""
        return self.error

    def result(self) -> Any:
        """Raises it."""
        raise self.error


@frozen
class Attempt:
    """The part of tenacity's `RetryCallState` that its strategy objects read."""

    attempt_number: int
    outcome: Outcome
    seconds_since_start: float
    idle_for: float = 0.0
    upcoming_sleep: float = 0.0
    next_action: Any = None
    fn: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(factory=dict[str, Any])
    retry_object: Any = None


def lasting(delay: Any) -> float | datetime:
    """A delay that the scripts take: what strategies and handlers compute may be negative, or beyond all bounds."""
    if isinstance(delay, datetime):
        checked_delay(delay)  # refuses a naive one
        return delay
    return min(max(0.0, delay.total_seconds() if isinstance(delay, timedelta) else float(delay)), FOREVER)


def judge(policy: Retry, claim: Claim, error: BaseException, age: float, wait: Callable[[Any], float]) -> Verdict:
    """How a job ends whose handler raised *error*. *wait* is the default strategy."""
    reason = said(error)
    if isinstance(error, RetryLater):
        asked = str(error.reason) if error.reason else reason
        return Verdict("retry", claim, delay=lasting(error.delay), spend=error.spend, reason=asked)
    if isinstance(error, DeadLetter):
        return Verdict("dead", claim, reason=str(error.reason))
    if isinstance(error, Release) or not isinstance(error, (Exception, SystemExit)):
        return Verdict("release", claim)  # cancelled or interrupted: not the job's fault
    state = Attempt(claim.job.attempt, Outcome(error), age)
    if policy.retry is not None and not policy.retry(state):
        return Verdict("dead", claim, reason=reason)
    strategy: Any = policy.wait if policy.wait is not None else wait
    delay: Any = lasting(strategy(state) if callable(strategy) else strategy)
    if policy.stop is not None and policy.stop(evolve(state, upcoming_sleep=delay)):
        return Verdict("dead", claim, reason=reason)
    return Verdict("retry", claim, delay=delay, reason=reason)
