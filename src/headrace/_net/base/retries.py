"""Retries of round trips. They depend on the error and on the time spent. They depend on whether
the server may have carried out the calls, too.

Calls are numbered in lanes, with one call in flight in each. So the server tells a repeated call
from a new one. All executors of this process that connect to one server share its lanes. A
short-lived executor then leaves no record behind.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from traceback import walk_tb
from typing import Any, TypeVar, cast

from attrs import define, field
from redis import exceptions as errors
from tenacity import RetryCallState, retry_if_exception, wait_random_exponential

from headrace._model.shards import Sealed
from headrace._protocol.durability import DurabilityWait
from headrace._protocol.limits import ATTEMPT_S, HEALING_ERRORS, RECORD_S, RETRY_BUDGET_S
from headrace._protocol.op import Op, TooLarge, pack
from headrace._telemetry.client import Outage
from headrace.errors import OutcomeUnknown, PrioritiesMismatch

R = TypeVar("R")
RETRY_PAUSE_S = 2.0  # seconds between two attempts, at most
RECONNECT_PAUSE_S = RETRY_PAUSE_S / 10  # the same, of a subscription
FAILOVER_PAUSE_S = 0.5  # the same, if another node or a replica takes over within a second or two
REDIRECTED_AT_MOST = 8  # redirections in a row; then there is a pause, as after an error
FIRST_ANSWER_S = 5.0  # seconds of retries before the first answer: a wrong address should show soon
# seconds by which a step may be late; a later step means that the process or the machine was
# suspended
SLACK_S = 1.0
_HEALS = re.compile(rf"\b({'|'.join(HEALING_ERRORS)})\b")
_RIGHTS = re.compile(r"ACL failure in script|user executing the script can't")
SETTLING = frozenset(
    ("complete", "retry", "dead_letter", "flow_advance", "step", "suspend")
)  # how a job, or step, ended
REPEATABLE = frozenset(("complete", "retry", "dead_letter", "release", "lease", "flow_advance"))
"""Recorded operations that free entries first. A repetition after a missing right doubles nothing,
as it might for operations that add jobs.
"""
_LEVELS = re.compile(r"\bPRIORITIES (\d+)")
_SEALED = re.compile(r"\bSHARDS (\d+)")
# goes on while the machine sleeps, like records
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Return the seconds of a clock that never goes back, and that counts on while this machine is
    suspended.
    """
    return time.clock_gettime(_CLOCK)


def unwelcome(error: BaseException) -> bool:
    """Tell whether the server refuses the user's credentials. redis-py calls these connection
    errors.
    """
    return isinstance(error, (errors.AuthenticationError, errors.AuthorizationError))


def refuse_signalled(error: BaseException) -> None:
    """Raise the exception of the program's own signal handler, if *error* comes from one.

    An `OSError` of the handler, such as the `TimeoutError` of a time limit, is not a broken
    connection, even if redis-py wraps it.
    """
    handlers = [one for one in map(signal.getsignal, signal.valid_signals()) if callable(one)]
    bodies = [
        body
        for one in handlers
        for body in (getattr(one, "func", one), cast("Any", type(one)).__call__)
    ]
    codes = {getattr(body, "__code__", None) for body in bodies}
    errors_seen: list[BaseException | None] = [error]
    for one in errors_seen:
        if one is not None and any(
            frame.f_code in codes for frame, _ in walk_tb(one.__traceback__)
        ):
            raise one
        errors_seen += (
            [] if one is None or len(errors_seen) > 20 else [one.__cause__, one.__context__]
        )


def heals(
    error: BaseException, ops: Sequence[Op[Any]] = (), *, good: bool = False, rights: bool = False
) -> bool:
    """Tell whether a retry can help. It can't for errors that are not listed here.

    With *good*, the server has answered before, so credentials are being changed. With *rights*,
    the user had the missing rights before. If a right was missing in the middle of a script, only
    *ops* that may run twice are retried.
    """
    if unwelcome(error):
        return good
    if rights and isinstance(error, errors.ResponseError):
        if isinstance(error, errors.NoPermissionError):
            return True  # nothing ran
        if _RIGHTS.search(str(error)[:1000]):
            return all(not op.lane_prefix or op.name in REPEATABLE for op in ops)
    if isinstance(error, (errors.ConnectionError, errors.TimeoutError, OSError)):
        return True
    recovers = (
        errors.OutOfMemoryError,
        errors.ReadOnlyError,
        errors.TryAgainError,
        errors.ClusterDownError,
    )
    if isinstance(error, recovers):
        return True
    return isinstance(error, errors.ResponseError) and bool(_HEALS.search(str(error)[:300]))


def answers(error: BaseException) -> bool:
    """Tell whether the server itself sent the error. It is up then, but loading, full, or no
    primary.
    """
    return (
        isinstance(error, (errors.ResponseError, errors.BusyLoadingError))
        or "max number of clients" in str(error)[:300]
    )


def bound(outage: Outage, budget: float) -> float:
    """Return the seconds for retries, which are fewer than *budget* before the first answer of the
    server.
    """
    return budget if outage.found or outage.answers else min(FIRST_ANSWER_S, budget)


def bounding(timeout: float) -> float | None:
    """Return the time limit of each round trip in seconds.

    `None` is the default, which lets the last attempt end.
    """
    return None if timeout == RETRY_BUDGET_S else timeout


# a question for the largest value that a server takes
SIZE_LIMIT = pack(("CONFIG", "GET", "proto-max-bulk-len"))
SIZE_LIMIT_AT_LEAST = 1 << 20  # bytes: no server has a smaller limit


def largest(ops: Sequence[Op[Any]]) -> tuple[int, str]:
    return max(
        ((len(arg), op.name) for op in ops for arg in op.args if not isinstance(arg, int)),
        default=(0, ""),
    )


def announced(size: int) -> bytes:
    """Pack a query for the server's largest value, and the announcement of a value of *size* bytes.

    The server refuses the announcement at once, even if the user may not ask the question.
    """
    return SIZE_LIMIT + b"*1\r\n$%d\r\n" % size


def value_limit(reply: Any) -> int | None:
    words: Any = list(*reply.items()) if isinstance(reply, dict) and reply else reply  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return int(words[1]) if isinstance(words, list) and len(words) == 2 else None  # pyright: ignore[reportUnknownArgumentType]


def refuses(reply: Any) -> bool:
    return isinstance(reply, errors.ResponseError) and "invalid bulk length" in str(reply)[:300]


def too_large(ops: Sequence[Op[Any]], limit: int | None, refused: bool) -> TooLarge | None:
    """Return an error if a value of *ops* exceeds *limit*.

    If the limit is not known, return it if the server *refused* a value.
    """
    size, name = largest(ops)
    if not refused and (limit is None or size <= limit):
        return None  # no value is too large, or the server does not say its limit
    most = "no value as large" if limit is None else f"{limit:,} at most"
    error = TooLarge(
        f"{name}: a value of {size:,} bytes; this server takes {most} (proto-max-bulk-len)"
    )
    error.limit = size - 1 if limit is None else limit
    return error


def stale(error: BaseException) -> bool:
    """Tell whether the connection leads to a server that is no longer the primary. Then connect
    again.
    """
    return isinstance(error, errors.ReadOnlyError) or "READONLY" in str(error)[:300]


def faultless(replies: Sequence[Any]) -> bool:
    for reply in replies:  # noqa: SIM110 - every call runs this, and `all` takes several times as long
        if isinstance(reply, Exception):
            return False
    return True


def missing(replies: Sequence[Any]) -> list[int]:
    """Return the indices of replies that say NOSCRIPT. Nothing ran, and the source must be sent."""
    return [
        i
        for i, reply in enumerate(replies)
        if isinstance(reply, errors.NoScriptError)
        or (isinstance(reply, errors.ResponseError) and "NOSCRIPT" in str(reply)[:200])
    ]


def known(error: Exception, trip: Trip) -> None:
    """Add the outcome of *trip*, as far as known, to its final *error*.

    It is added as a note, and as the attribute `outcome`.
    """
    after = f"after {trip.spent:.1f} s"
    if trip.unanswered:
        outcome, text = (
            "unknown",
            "sent, and not answered: it happened, or did not, or will yet; look, or repeat it with an id",
        )
    elif trip.sent:
        outcome, text = "refused", "the server took it and refused it: nothing has happened"
    else:
        outcome, text = "not sent", "nothing has happened"
    error.add_note(f"headrace: {outcome} {after}: {text}")
    error.outcome = outcome  # type: ignore[attr-defined]  # carried by whatever error it is


def first_error(replies: Sequence[Any]) -> BaseException | None:
    """Return the error to raise, if any. An error that will not heal comes before one that will."""
    found = [r for r in replies if isinstance(r, Exception)]
    for error in found:
        if levels := _LEVELS.search(str(error)[:300]):
            return PrioritiesMismatch(int(levels[1]))
        if sealed := _SEALED.search(str(error)[:300]):
            return Sealed(int(sealed[1]))
    return next((r for r in found if not heals(r)), found[0] if found else None)


@define(eq=False)
class Trip:
    """One round trip with its operations, the time of the first sending, and its time limit."""

    ops: Sequence[Op[Any]]
    # seconds in all, with retries; `None`: only each attempt is limited
    within: float | None = None
    began: float = field(factory=since_boot)
    spent: float = 0.0
    sent: float = 0.0
    unanswered: int = 0  # attempts that were sent, and not answered
    error: BaseException | None = None  # the error of the last attempt
    durability: DurabilityWait | None = None

    @property
    def left(self) -> float | None:
        """The seconds that were left of `within` when the last attempt ended."""
        return None if self.within is None else max(0.0, self.within - self.spent)

    def answered(self) -> None:
        self.unanswered -= 1

    def leaves(self) -> None:
        """Record that the trip is sent now.

        Raises `OutcomeUnknown` if a repetition is so late that the server may have forgotten the
        first answer.
        """
        self.unanswered += 1
        now = since_boot()
        if not self.sent:
            self.sent = now
        elif now - self.sent > RECORD_S / 2 and any(op.lane_prefix for op in self.ops):
            what = ", ".join(op.name for op in self.ops)
            raise OutcomeUnknown(
                f"unknown whether {what} happened: sent {now - self.sent:.0f} s ago and "
                "not answered since, it is too old to be sent again; look, or repeat it if that does no harm"
            ) from self.error


def remaining(trip: Trip, took: float) -> float | None:
    """Return the seconds that are left of a trip after its attempt took *took* seconds.

    Returns `None` without a bound. Raises `redis.TimeoutError` if the time left is too short to
    send the rest.
    """
    if trip.left is None:
        return None
    if (left := trip.left - took) < ATTEMPT_S:
        raise errors.TimeoutError(f"no answer within {trip.within:g} s")
    return left


@define(eq=False)
class RetryBudget:
    """The time spent on a round trip. It excludes time in which this process, or the machine, was
    suspended.
    """

    outage: Outage
    limit: Callable[[], float]  # seconds; the limit may change meanwhile
    step: float  # seconds that an attempt takes at most
    trip: Trip
    rights: bool = False  # as for `heals`
    since: float = field(init=False)
    slowest: float = 0.0  # seconds that the server took to refuse an attempt

    def __attrs_post_init__(self) -> None:
        self.since = self.trip.began

    def stop(self, state: RetryCallState) -> bool:
        """Record a failed attempt, and tell tenacity whether it was the last."""
        outcome = state.outcome
        if outcome is not None and (error := outcome.exception()) is not None:
            self.failed(error)
        pause = 0.0 if self.trip.within is None else state.upcoming_sleep + self._needed()
        return self.trip.spent + pause >= self.limit()

    def _needed(self) -> float:
        """Return the seconds that an attempt needs.

        That is as long as other attempts took, if a known outcome could be lost.
        """
        return ATTEMPT_S if self.trip.unanswered else max(ATTEMPT_S, 2 * self.slowest)

    def heals(self, error: BaseException) -> bool:
        """Tell whether a retry can help. Raises the program's own errors."""
        refuse_signalled(error)
        return heals(error, self.trip.ops, good=self.outage.answers > 0, rights=self.rights)

    def before(self, state: RetryCallState) -> None:
        self._passed(state.upcoming_sleep)

    def failed(self, error: BaseException) -> None:
        took = self._passed(self.step)
        if reported := answers(error):
            self.slowest = max(self.slowest, took)
        self.trip.error = error
        self.outage.failed(error, reported=reported)

    def _passed(self, most: float) -> float:
        now = since_boot()
        took, self.since = now - self.since, now
        took = took if took <= most + SLACK_S else SLACK_S
        self.trip.spent += took
        return took


def policy(budget: RetryBudget, pause: float = RETRY_PAUSE_S) -> dict[str, Any]:
    return {
        "retry": retry_if_exception(budget.heals),
        "before": budget.before,
        "wait": wait_random_exponential(0.02, max=pause),
        "stop": budget.stop,
        "reraise": True,
    }


Meanwhile = Callable[[], None] | None


@define
class Lanes:
    """Free lanes, by the prefix of their records.

    Taking and returning one is atomic under the interpreter's lock.
    """

    free: dict[str, list[Lane]] = field(factory=dict)  # pyright: ignore[reportUnknownVariableType]
    pid: int = field(factory=os.getpid)

    def take(self, prefix: str) -> Lane:
        """Take a lane for a call whose record begins with *prefix*, and number the call.

        The prefix of a call without a record is empty.
        """
        # a fork copied the lanes: two processes on one lane would get each other's answers
        if self.pid != os.getpid():
            self.free, self.pid = {}, os.getpid()
        try:
            lane = self.free[prefix].pop()
        except LookupError:
            lane = Lane()
        lane.calls += 1
        return lane

    def give(self, ops: Sequence[Op[Any]], lanes: Sequence[Lane]) -> None:
        for op, lane in zip(ops, lanes, strict=True):
            if not lane.repeated:
                self.put(op.lane_prefix, lane)

    def put(self, prefix: str, lane: Lane) -> None:
        """Return the lane of a call whose record begins with *prefix*, and whose first attempt was
        answered.
        """
        try:
            self.free[prefix].append(lane)
        except KeyError:
            self.free.setdefault(prefix, []).append(lane)

    def drop(self, prefix: str) -> list[str]:
        """Forget the free lanes, and return the keys of their records, which are not needed any
        more.
        """
        free = self.free.get(prefix, []) if self.pid == os.getpid() else []
        keys: list[str] = []
        with suppress(IndexError):
            while True:
                keys.append(prefix + free.pop().name)
        return keys


@define(eq=False)
class Lane:
    """A sequence of numbered calls, one in flight at a time."""

    name: str = field(factory=lambda: secrets.token_hex(8))
    calls: int = 0
    # a call was sent again: a copy may still be on its way, and must find this record
    repeated: bool = False


_SHARED: dict[Hashable, Lanes] = {}  # by server


def lanes_of(pool: Any) -> Lanes:
    """Return the lanes of this process for the server of *pool*.

    A server under two names has two sets of lanes, and two servers under one name share a set.
    Either way, a lane has one call in flight, and its numbers grow.
    """
    return _SHARED.setdefault(place(pool), Lanes())


def place(pool: Any) -> Hashable:
    get = pool.connection_kwargs.get
    return get("host"), get("port"), get("path"), get("db"), getattr(pool, "service_name", None)


def pack_all(ops: Sequence[Op[Any]], lanes: Sequence[Lane], verb: str) -> list[bytes]:
    return [
        op.packed(verb, lane.name, str(lane.calls)) for op, lane in zip(ops, lanes, strict=True)
    ]
