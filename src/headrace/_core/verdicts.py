"""What a handler's exception means for its job: `Retry` and the verdict exceptions, judged without a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from attrs import evolve, field, frozen

from headrace import errors
from headrace._job import Claim
from headrace._settings import FOREVER, KIND, HandlerSettings, Retry
from headrace._settings import delay as checked_delay
from headrace.errors import BatchError, Complete, DeadLetter, Release, RetryLater, said

ROUNDS = 30  # how often a job is put back, at least, before nobody seems to know its kind


@frozen
class Verdict:
    """How a delivered job is settled: complete, release, retry or dead."""

    kind: str
    claim: Claim
    result: bytes | None = None
    delay: float | timedelta | datetime = 0.0  # the worker looks by itself for what is due after a float
    spend: int = 1  # attempts: 1, 0, or -1: all that were spent are given back
    reason: str = ""
    attempts: int | None = None  # the limit, where the handler has one of its own


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


def overran(deadline: float | None) -> str:
    """What a job is told to have failed by."""
    return f"the handler ran past its deadline of {deadline:g} s"


def lasting(delay: Any) -> float | datetime:
    """A delay that the scripts take: what strategies and handlers compute may be negative, or beyond all bounds."""
    if isinstance(delay, datetime):
        checked_delay(delay)  # refuses a naive one
        return delay
    return min(max(0.0, delay.total_seconds() if isinstance(delay, timedelta) else float(delay)), FOREVER)


def spoken(value: Any) -> BaseException | None:
    """The verdict that *value* is, also as a class, if a handler returned it; `None` if it is none."""
    if isinstance(value, type) and issubclass(value, errors.Verdict):
        try:
            return value()
        except TypeError as wrong:  # a DeadLetter without a reason
            return wrong
    return value if isinstance(value, errors.Verdict) else None


def meant(name: str, error: BaseException | None, result: Any, *, batch: bool) -> tuple[BaseException | None, Any]:
    """How the job *name* of a unit ended whose handler raised *error* or returned *result*: its error, its result."""
    if batch:
        whole = result if error is None else error
        each = whole.failures if isinstance(whole, BatchError) else whole
        if isinstance(each, Mapping):
            own: Any = cast("Mapping[str, Any]", each).get(name)
            error = own if isinstance(own, BaseException) else spoken(own)
            if own is not None and error is None:
                error = TypeError(f"BatchError names {own!r} for this job, which is no exception")
        elif error is None:
            error = spoken(result)
        result = None  # of a batch it would be nobody's
    elif error is None:
        error = spoken(result)
    if isinstance(error, Complete):
        return None, error.result
    return error, None if error is not None else result


def ruled(policy: Retry, error: BaseException) -> BaseException:
    """*error*, or the verdict that the policy's `on` has for the nearest of its types."""
    rule: Any = next((policy.on[kind] for kind in type(error).__mro__ if kind in policy.on), None)
    if rule is None or isinstance(error, errors.Verdict):
        return error
    if rule is DeadLetter:
        return DeadLetter(said(error))
    if not isinstance(rule, errors.Verdict):
        rule = rule() if isinstance(rule, type) else rule(error)
    if rule is None:
        return error
    if not isinstance(rule, errors.Verdict):
        raise TypeError(f"on: {rule!r:.200} is no verdict")
    if isinstance(rule, RetryLater) and not rule.reason:
        return RetryLater(rule.delay, said(error), spend=rule.spend)
    return rule


def judge(
    policy: Retry,
    claim: Claim,
    error: BaseException,
    age: float,
    wait: Callable[[Any], float],
    keep: Callable[[Any], bytes] = bytes,
    *,
    anew: bool = False,
) -> Verdict:
    """How a job ends whose handler raised *error*. *wait* is the default strategy; *keep* makes bytes of a result;
    *anew* asks the strategies as after the first attempt."""
    reason = said(error)
    error = ruled(policy, error)
    if isinstance(error, Complete):
        return Verdict("complete", claim, result=None if error.result is None else keep(error.result))
    if isinstance(error, RetryLater):
        asked = str(error.reason) if error.reason else reason
        spend = int(bool(error.spend))
        return Verdict("retry", claim, delay=lasting(error.delay), spend=spend, reason=asked, attempts=policy.attempts)
    if isinstance(error, DeadLetter):
        return Verdict("dead", claim, reason=str(error.reason))
    if isinstance(error, Release) or not isinstance(error, (Exception, SystemExit)):
        return Verdict("release", claim)  # cancelled or interrupted: not the job's fault
    return _failed(policy, claim, Attempt(1 if anew else claim.job.attempt, Outcome(error), age), reason, wait)


def _failed(policy: Retry, claim: Claim, state: Attempt, reason: str, wait: Callable[[Any], float]) -> Verdict:
    """What tenacity's objects make of a failure."""
    if policy.retry is not None and not policy.retry(state):
        return Verdict("dead", claim, reason=reason)
    strategy: Any = policy.wait if policy.wait is not None else wait
    delay: Any = lasting(strategy(state) if callable(strategy) else strategy)
    if policy.stop is not None and policy.stop(evolve(state, upcoming_sleep=delay)):
        return Verdict("dead", claim, reason=reason)
    return Verdict("retry", claim, delay=delay, reason=reason, attempts=policy.attempts)


def stranger(handler: HandlerSettings, claim: Claim) -> Verdict:
    """What becomes of a job that none of its queue's handlers takes: others may, for a while; then nobody does."""
    job, grace = claim.job, handler.grace
    known = ", ".join(repr(kind) for kind in handler.kinds)
    reason = f"no handler for jobs of kind {job.headers.get(KIND)!r:.500}: this worker knows {known}"
    rounds = claim.token - job.attempt  # deliveries that spent no attempt, such as those to strangers
    if claim.leased_at - job.enqueued_at >= grace and (rounds >= ROUNDS or not grace):
        return Verdict("dead", claim, reason=reason)
    aside = timedelta(seconds=grace / ROUNDS)  # no float: who knows it not is not who should look first when it is due
    return Verdict("retry", claim, delay=aside, spend=0, reason=reason)
