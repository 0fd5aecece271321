"""The judgement of a handler's end, without a clock, and the settlements and operations that follow
from it."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, cast

from attrs import evolve, field, frozen

from headrace import errors
from headrace._model.checks import (
    FOREVER_S,
    LAST_MOMENT_S,
    delay as checked_delay,
    seconds as checked_seconds,
)
from headrace._model.job import Cause, Claim, Postponed
from headrace._model.policy import Retry
from headrace._model.settings import KIND, HandlerSettings
from headrace._protocol.limits import (
    BYTES_PER_SCRIPT,
    CLAIMS_PER_SCRIPT,
    JOBS_PER_SCRIPT,
    REWRITES_PER_SCRIPT,
)
from headrace._protocol.op import Op, chunks
from headrace._protocol.queue_ops import Ops
from headrace.errors import (
    BatchError,
    ChildFailed,
    Complete,
    DeadLetter,
    Release,
    RetryLater,
    describe_error,
)

FREE_RELEASES = 10  # releases in a row, without an attempt, after which a job still starts at once
# seconds it waits after more of them, longer each time
PAUSE_AT_LEAST_S, PAUSE_AT_MOST_S = 0.1, 60.0
RETRY_PAUSE_AT_MOST_S = 1.0  # seconds it waits at most where its handler asked for a shorter delay
PLAIN = frozenset((type(None), bool, int, float, bytes, str, list, dict))  # results, at a glance
UNKNOWN_KIND_ROUNDS = 30  # times a job of an unknown kind is put back, at least


@frozen
class Settlement:
    kind: str  # complete, release, retry, dead, or step (of its flow)
    claim: Claim
    result: bytes | None = None
    # after a float, the worker itself waits for the due time
    delay: float | timedelta | datetime = 0.0
    spend: int = 1  # attempts: 1, 0, or -1: all that were spent are given back
    reason: str = ""
    traceback: str = ""
    raised: str = ""  # the path of the error's class, for the history
    attempts: int = 0  # the limit: 0 for none
    row: int = 0  # releases in a row without an attempt, if there were so many that the job waits
    step: Any = None  # of a flow's job
    error: BaseException | None = None  # that a handler raised

    @property
    def may_bury(self) -> bool:
        """Whether this settlement may make a dead letter. The server decides."""
        last = self.spend == 1 and 0 < self.attempts <= self.claim.job.attempt
        return self.kind == "dead" or (self.kind == "retry" and last)

    @property
    def largest(self) -> int:
        """Bytes of the largest value that the settlement sends."""
        values = () if self.step is None else self.step.args
        return max(
            len(self.result or b""), *(len(one) for one in values if not isinstance(one, int)), 0
        )

    @property
    def cause(self) -> str | Cause:
        return (
            Cause(self.reason, self.traceback, self.raised)
            if self.traceback or self.raised
            else self.reason
        )

    @property
    def size(self) -> int:
        return self.claim.size + Cause(self.reason, self.traceback).size

    def without_result(self) -> Settlement:
        return evolve(
            self, result=None, step=None if self.step is None else self.step.without_result()
        )

    @property
    def pause(self) -> Any:
        return self.delay if self.kind == "release" else None


@frozen
class RetryOutcome:
    """The part of a future that tenacity's `retry_*`, `stop_*` and `wait_*` objects read."""

    error: BaseException
    failed: bool = True

    def exception(self) -> BaseException:
        return self.error

    def result(self) -> Any:
        raise self.error


@frozen
class RetryState:
    """The part of tenacity's `RetryCallState` that its strategy objects read."""

    attempt_number: int
    outcome: RetryOutcome
    seconds_since_start: float
    idle_for: float = 0.0
    upcoming_sleep: float = 0.0
    next_action: Any = None
    fn: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(factory=dict[str, Any])
    retry_object: Any = None


def overran(deadline: float | None) -> str:
    return f"the handler ran past its deadline of {deadline:g} s"


def asked_delay(delay: Any) -> float | datetime:
    """Check a delay that a handler, or a codec, asks for. Raises `TypeError` or `ValueError`, as
    each duration does."""
    return bounded_delay(delay) if isinstance(delay, datetime) else checked_seconds("delay", delay)


def bounded_delay(delay: Any) -> float | datetime:
    """Bring a delay into the range of the scripts, because strategies may compute negative or
    infinite delays."""
    if isinstance(delay, bool) or not isinstance(delay, (int, float, timedelta, datetime)):
        raise TypeError(
            f"a delay must be seconds, a timedelta or a datetime, not {type(delay).__name__}"
        )
    if isinstance(delay, datetime):
        checked_delay(delay)  # refuses a naive one
        return datetime.fromtimestamp(
            min(max(0.0, delay.timestamp()), LAST_MOMENT_S), UTC
        )  # its time zone is the user's
    seconds = float(
        delay.total_seconds() if isinstance(delay, timedelta) else min(delay, FOREVER_S)
    )
    if math.isnan(seconds):
        raise ValueError("a delay of nan seconds")
    return min(max(0.0, seconds), FOREVER_S)


def patience(row: int) -> float:
    """Return how many seconds a job waits after this number of releases in a row without an
    attempt."""
    more = row - FREE_RELEASES
    return min(PAUSE_AT_MOST_S, PAUSE_AT_LEAST_S * 2.0 ** min(more - 1, 20)) if more > 0 else 0.0


def interrupted(claim: Claim, error: BaseException) -> bool:
    """Tell whether the job is not to blame, because its handler was told to give up."""
    return bool(claim.job.lost) and not isinstance(error, Exception)


def ends_program(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        some: Any = cast("BaseExceptionGroup[BaseException]", error)
        return some.subgroup((KeyboardInterrupt, SystemExit)) is not None
    return isinstance(error, (KeyboardInterrupt, SystemExit))


def released(claim: Claim) -> Settlement:
    # As many of the releases of the job's life as fit into the deliveries of this entry: a retry
    # makes a new one.
    row = min(claim.token - claim.job.attempt, claim.count - 1) + 1
    delay = patience(row)
    return Settlement("release", claim, delay=delay, row=row if delay else 0)


def later(policy: Retry, claim: Claim, asked: RetryLater, reason: str) -> Settlement:
    """Retry after the delay that the handler asks for, but not at once after many retries that
    spent no attempt."""
    delay = asked_delay(asked.delay)
    spend = int(bool(asked.spend))
    row = 0
    if not spend:
        often = claim.token - claim.job.attempt + 1
        least = min(RETRY_PAUSE_AT_MOST_S, patience(often))
        after = delay.timestamp() - claim.leased_at if isinstance(delay, datetime) else delay
        if least and after < least:
            delay = least
            row = often
    reason = str(asked.reason) if asked.reason else reason
    return Settlement(
        "retry",
        claim,
        delay=delay,
        spend=spend,
        reason=reason,
        attempts=policy.attempts or 0,
        row=row,
    )


def returned_verdict(value: Any) -> BaseException | None:
    """Return the verdict that a handler returned, as an instance or a class. Returns `None` if
    *value* is a result.

    A coroutine or a generator is no result. Nothing of its body has run, so that is a `TypeError`.
    """
    try:
        if type(value) in PLAIN:
            return None
        if isinstance(value, type) and issubclass(value, errors.Verdict):
            return value()
        return value if isinstance(value, errors.Verdict) else _not_run(value)
    except BaseException as wrong:  # a DeadLetter without a reason, or any error of the user's code
        return wrong


def _not_run(value: Any) -> TypeError | None:
    name: str = value.__class__.__name__
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # it would warn that it was never awaited
        of = f"the handler returned an awaitable ({name}), which nobody awaits"
        return TypeError(f"{of}: await it, in an async function under an AsyncWorker")
    if isinstance(value, (Generator, AsyncGenerator)):
        return TypeError(
            f"the handler returned a generator ({name}), and nothing of its body has run"
        )
    return None


def meant(
    name: str, error: BaseException | None, result: Any, *, batch: bool
) -> tuple[BaseException | None, Any]:
    """Return the error and the result of the job *name*, whose unit's handler raised *error* or
    returned *result*."""
    if batch:
        whole = result if error is None else error
        each = whole.failures if isinstance(whole, BatchError) else whole
        if isinstance(each, Mapping):
            own: Any = cast("Mapping[str, Any]", each).get(name)
            error = own if isinstance(own, BaseException) else returned_verdict(own)
            if own is not None and error is None:
                error = TypeError(f"BatchError names {own!r} for this job: give an exception")
        elif error is None:
            error = returned_verdict(result)
        result = None  # of a batch it would belong to no job
    elif error is None:
        error = returned_verdict(result)
    if isinstance(error, Complete):
        return None, error.result
    return error, None if error is not None else result


def ruled(policy: Retry, error: BaseException) -> BaseException:
    """Apply the policy's `on`. Returns the verdict that it has for the nearest base class of
    *error*, or *error* itself.
    """
    rule: Any = next((policy.on[kind] for kind in type(error).__mro__ if kind in policy.on), None)
    if rule is None or isinstance(error, errors.Verdict):
        return error
    if rule is DeadLetter:
        return DeadLetter(describe_error(error))
    if not isinstance(rule, errors.Verdict):
        rule = rule() if isinstance(rule, type) else rule(error)
    if rule is None:
        return error
    if not isinstance(rule, errors.Verdict):
        raise TypeError(f"on: {rule!r:.200} is no verdict")
    if isinstance(rule, RetryLater) and not rule.reason:
        return RetryLater(rule.delay, describe_error(error), spend=rule.spend)
    return rule


def judge(
    policy: Retry,
    claim: Claim,
    error: BaseException,
    age: float,
    wait: Callable[[Any], float],
    keep: Callable[[Any], bytes | None] = bytes,
    *,
    anew: bool = False,
    stopping: bool = False,
) -> Settlement:
    """Settle a job whose handler raised *error*. *stopping* is true while its worker stops.

    *wait* is the default strategy. *keep* encodes a result, if it can. *anew* asks the strategies
    as after the first attempt.
    """
    if interrupted(claim, error) or (stopping and ends_program(error)):
        return released(claim)
    reason = describe_error(error)
    error = ruled(policy, error)
    if isinstance(error, Complete):
        return Settlement(
            "complete", claim, result=None if error.result is None else keep(error.result)
        )
    if isinstance(error, (DeadLetter, ChildFailed)):  # a child's failure comes in each attempt
        return Settlement(
            "dead", claim, reason=str(error.reason) if isinstance(error, DeadLetter) else reason
        )
    if isinstance(error, Release):
        return released(claim)
    if isinstance(error, RetryLater):
        try:
            return later(policy, claim, error, reason)
        except Exception as wrong:  # what was asked for is no delay: to ask was a failure
            error = wrong
            reason = f"{reason}: {describe_error(wrong)}"
    return _failed(
        policy,
        claim,
        RetryState(1 if anew else claim.job.attempt, RetryOutcome(error), age),
        reason,
        wait,
    )


def _failed(
    policy: Retry, claim: Claim, state: RetryState, reason: str, wait: Callable[[Any], float]
) -> Settlement:
    if policy.retry is not None and not policy.retry(state):
        return Settlement("dead", claim, reason=reason)
    strategy: Any = policy.wait if policy.wait is not None else wait
    delay: Any = bounded_delay(strategy(state) if callable(strategy) else strategy)
    if policy.stop is not None and policy.stop(evolve(state, upcoming_sleep=delay)):
        return Settlement("dead", claim, reason=reason)
    return Settlement("retry", claim, delay=delay, reason=reason, attempts=policy.attempts or 0)


def undecoded(claim: Claim, reason: str) -> Settlement:
    """Settle a job whose payload does not decode. It becomes a dead letter, or comes later if its
    codec asked for that.
    """
    if isinstance(reason, Postponed):
        try:
            return Settlement(
                "retry", claim, delay=asked_delay(reason.delay), spend=0, reason=reason
            )
        except Exception as wrong:  # what was asked for is no delay
            reason = f"{reason}: {describe_error(wrong)}"
    return Settlement("dead", claim, reason=reason)


def unknown_kind(handler: HandlerSettings, claim: Claim, *, elsewhere: bool = False) -> Settlement:
    """Settle a job that no handler here takes. Leave it to other workers until the grace period is
    over, and longer if a live worker takes its kind (*elsewhere*).
    """
    job = claim.job
    grace = handler.grace
    known = ", ".join(repr(kind) for kind in handler.kinds)
    reason = (
        f"no handler for jobs of kind {job.headers.get(KIND)!r:.500}: this worker knows {known}"
    )
    # deliveries without an attempt, such as those to workers that lack a handler
    rounds = claim.token - job.attempt
    over = claim.leased_at - job.enqueued_at >= grace and (
        rounds >= UNKNOWN_KIND_ROUNDS or not grace
    )
    if over and not elsewhere:
        return Settlement("dead", claim, reason=reason)
    # once its grace is over, another worker takes it
    pause = max(grace / UNKNOWN_KIND_ROUNDS, 1.0 if over else 0.0)
    # no float: another worker should look first when it is due
    return Settlement("retry", claim, delay=timedelta(seconds=pause), spend=0, reason=reason)


size = attrgetter("size")
alike = attrgetter(
    "kind", "claim.worker", "attempts", "pause"
)  # the attributes that settlements of one operation share


def operations(ops: Ops, some: Sequence[Settlement]) -> Iterator[Op[list[bool]]]:
    match some[0].kind:
        case "complete":
            for chunk in chunks(
                some, lambda one: len(one.result or b""), JOBS_PER_SCRIPT, BYTES_PER_SCRIPT
            ):
                results = {one.claim.entry: one.result for one in chunk if one.result is not None}
                yield ops.complete([one.claim for one in chunk], results=results)
        case "release":
            for chunk in chunks(some, size, CLAIMS_PER_SCRIPT, BYTES_PER_SCRIPT):
                yield ops.release([one.claim for one in chunk], pause=some[0].pause)
        case "dead":
            for chunk in chunks(some, size, REWRITES_PER_SCRIPT, BYTES_PER_SCRIPT):
                yield evolve(
                    ops.dead_letter([(one.claim, one.cause) for one in chunk]), items=chunk
                )
        case _:
            for chunk in chunks(some, size, REWRITES_PER_SCRIPT, BYTES_PER_SCRIPT):
                items = [(one.claim, one.delay, one.spend, one.cause) for one in chunk]
                yield evolve(ops.retry(items, max_attempts=some[0].attempts), items=chunk)


@frozen(eq=False)
class SettlementBatch:
    plain: Sequence[Claim]  # completed without a result to keep
    verdicts: Sequence[Settlement]  # all other settlements
    ops: Sequence[Op[list[bool]]]

    @property
    def claims(self) -> list[Claim]:
        return [*self.plain, *(verdict.claim for verdict in self.verdicts)]

    @property
    def next_due(self) -> float | None:
        some = [
            one
            for one in self.verdicts
            if one.kind == "retry" or (one.kind == "release" and one.delay)
        ]
        return min((one.delay for one in some if isinstance(one.delay, float)), default=None)
