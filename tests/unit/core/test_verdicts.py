"""The verdict that a handler's exception means for its job."""

from __future__ import annotations

import asyncio
import gc
import pickle
import re
from collections.abc import AsyncIterator, Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tenacity import (
    retry_always,
    retry_any,
    retry_if_exception,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_exception_type,
    retry_if_result,
    retry_never,
    stop_after_attempt,
    stop_after_delay,
    stop_all,
    stop_any,
    stop_before_delay,
    stop_never,
    wait_chain,
    wait_combine,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_incrementing,
    wait_none,
    wait_random_exponential,
)

from headrace import BatchError, Complete, DeadLetter, Job, Release, Retry, RetryLater
from headrace._core.verdicts import (
    FREE_RELEASES,
    PAUSE_AT_MOST_S,
    RETRY_PAUSE_AT_MOST_S,
    Settlement,
    judge,
    meant,
    returned_verdict,
    unknown_kind,
)
from headrace._model.checks import FOREVER_S
from headrace._model.codec import BytesCodec
from headrace._model.job import Claim
from headrace._model.settings import HandlerSettings, QueueSettings
from headrace.errors import REASON_CHARACTERS, describe_error
from tests.support.facts import each


def verdict(
    error: BaseException, attempt: int = 1, age: float = 0.0, **policy: Any
) -> tuple[str, Any]:
    claim = Claim(Job("1-0", b"x", "q", attempt=attempt), "w.1", "1-0", attempt, attempt)
    found = judge(Retry(**policy), claim, error, age, wait_fixed(7))
    return found.kind, found.delay if found.kind == "retry" else found.reason


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Panic(BaseException):
    """An exception like the panic of an extension in Rust."""


NAN = float("nan")
SAID = "RetryLater: retry in nan s"
RANGE = f"give at least 0 and at most {FOREVER_S:g} seconds"
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


@each(
    ("error", "options", "expected"),
    [
        (ValueError("x"), {}, ("retry", 7.0)),
        (ValueError("x"), {"wait": 3}, ("retry", 3.0)),
        (ValueError("x"), {"wait": timedelta(minutes=1)}, ("retry", 60.0)),
        (ValueError("x"), {"wait": wait_incrementing(10, 5), "attempt": 3}, ("retry", 20.0)),
        (ValueError("x"), {"wait": lambda _: -1}, ("retry", 0.0)),
        (ValueError("x"), {"wait": lambda _: float("inf")}, ("retry", FOREVER_S)),
        (ValueError("x"), {"stop": stop_after_attempt(3), "attempt": 2}, ("retry", 7.0)),
        (ValueError("x"), {"stop": stop_after_attempt(3), "attempt": 3}, ("dead", "ValueError: x")),
        (ValueError("x"), {"stop": stop_after_delay(60), "age": 59.0}, ("retry", 7.0)),
        (ValueError("x"), {"stop": stop_after_delay(60), "age": 60.0}, ("dead", "ValueError: x")),
        (ValueError("x"), {"retry": retry_if_exception_type(OSError)}, ("dead", "ValueError: x")),
        (OSError("x"), {"retry": retry_if_exception_type(OSError)}, ("retry", 7.0)),
        (Silent(), {"retry": retry_if_exception_type(OSError)}, ("dead", "Silent")),
        (RetryLater(5), {"stop": stop_after_attempt(1)}, ("retry", 5.0)),
        (RetryLater(MOMENT), {}, ("retry", MOMENT)),
        (RetryLater(timedelta(minutes=1)), {}, ("retry", 60.0)),
        (RetryLater(-5), {}, ("retry", 7.0)),
        (RetryLater(1e300), {}, ("retry", 7.0)),
        (RetryLater(5), {"retry": retry_if_exception_type(OSError)}, ("retry", 5.0)),
        (DeadLetter("no"), {}, ("dead", "no")),
        (Release(), {}, ("release", "")),
        (KeyboardInterrupt(), {}, ("retry", 7.0)),
        (SystemExit(1), {}, ("retry", 7.0)),
        (Panic("x"), {}, ("retry", 7.0)),
        (Panic("x"), {"stop": stop_after_attempt(3), "attempt": 3}, ("dead", "Panic: x")),
        (GeneratorExit(), {}, ("retry", 7.0)),
        (asyncio.CancelledError(), {}, ("retry", 7.0)),
        (
            asyncio.CancelledError(),
            {"retry": retry_if_exception_type(OSError)},
            ("dead", "CancelledError: "),
        ),
        (ExceptionGroup("g", [ValueError("x")]), {}, ("retry", 7.0)),
        (BaseExceptionGroup("g", [KeyboardInterrupt()]), {}, ("retry", 7.0)),
        (BaseExceptionGroup("g", [OSError(), SystemExit()]), {}, ("retry", 7.0)),
        (BaseExceptionGroup("g", [Panic("x")]), {}, ("retry", 7.0)),
        (RetryLater(NAN), {}, ("retry", 7.0)),
        (
            RetryLater(NAN),
            {"stop": stop_after_attempt(1)},
            ("dead", f"{SAID}: ValueError: delay=nan: {RANGE}"),
        ),
        (RetryLater("5"), {}, ("retry", 7.0)),  # type: ignore[arg-type]
        (
            RetryLater("5"),  # type: ignore[arg-type]
            {"stop": stop_after_attempt(1)},
            (
                "dead",
                "RetryLater: retry after 5: TypeError: delay must be seconds or a timedelta, not str",
            ),
        ),
        (RetryLater(None), {}, ("retry", 7.0)),  # type: ignore[arg-type]
        (RetryLater(datetime(2030, 1, 1)), {}, ("retry", 7.0)),  # noqa: DTZ001
        (RetryLater(float("inf")), {}, ("retry", 7.0)),
        (RetryLater(10**400), {}, ("retry", 7.0)),
        (RetryLater(timedelta.max), {}, ("retry", 7.0)),
        # more of tenacity's own
        (
            OSError("x"),
            {"stop": stop_any(stop_after_attempt(9), stop_after_delay(60)), "age": 60.0},
            ("dead", "OSError: x"),
        ),
        (
            OSError("x"),
            {"stop": stop_all(stop_after_attempt(9), stop_after_delay(60)), "age": 60.0},
            ("retry", 7.0),
        ),
        (OSError("x"), {"stop": stop_before_delay(60), "age": 52.0}, ("retry", 7.0)),
        (OSError("x"), {"stop": stop_before_delay(60), "age": 54.0}, ("dead", "OSError: x")),
        (OSError("x"), {"stop": stop_never}, ("retry", 7.0)),
        (OSError("x"), {"retry": retry_if_not_exception_type(OSError)}, ("dead", "OSError: x")),
        (OSError("x"), {"retry": retry_if_exception_message("x")}, ("retry", 7.0)),
        (
            OSError("x"),
            {"retry": retry_if_exception(lambda e: str(e) == "y")},
            ("dead", "OSError: x"),
        ),
        (OSError("x"), {"retry": retry_any(retry_never, retry_always)}, ("retry", 7.0)),
        (OSError("x"), {"retry": retry_if_result(bool)}, ("dead", "OSError: x")),
        (OSError("x"), {"wait": wait_exponential(2, max=60), "attempt": 4}, ("retry", 16.0)),
        (OSError("x"), {"wait": wait_exponential(2, max=60), "attempt": 40}, ("retry", 60.0)),
        (
            OSError("x"),
            {"wait": wait_chain(wait_fixed(1), wait_fixed(2)), "attempt": 5},
            ("retry", 2.0),
        ),
        (OSError("x"), {"wait": wait_combine(wait_fixed(1), wait_fixed(2))}, ("retry", 3.0)),
        (OSError("x"), {"wait": wait_none()}, ("retry", 0.0)),
    ],
)
def test_what_an_exception_means(
    error: BaseException, options: dict[str, Any], expected: tuple[str, Any]
) -> None:
    assert verdict(error, **options) == expected


@each("wait", [wait_random_exponential(1, 60), wait_exponential_jitter(1, 60)])
def test_random_waits_stay_within_their_bounds(wait: Any) -> None:
    waits = [
        verdict(OSError("x"), wait=wait, attempt=attempt)[1]
        for attempt in (1, 2, 5, 50)
        for _ in range(20)
    ]
    assert all(0 <= seconds <= 61 for seconds in waits)
    assert len(set(waits)) > 20


def test_a_strategy_sees_the_job_s_history() -> None:
    """The history has the attempts in all processes, the time since the first enqueue, and the
    handler's exception."""
    seen: list[Any] = []

    def strategy(state: Any) -> float:
        seen.append(state)
        return 5.0

    error = OSError("x")
    verdict(error, attempt=4, age=90.0, wait=strategy, stop=lambda state: bool(seen.append(state)))
    waiting, stopping = seen
    assert (waiting.attempt_number, waiting.seconds_since_start) == (4, 90.0)
    assert (waiting.outcome.failed, waiting.outcome.exception()) == (True, error)
    with pytest.raises(OSError, match="x"):
        waiting.outcome.result()
    assert (waiting.upcoming_sleep, stopping.upcoming_sleep) == (0.0, 5.0)


@each("name", ["wait", "stop", "retry"])
def test_what_a_broken_strategy_raises_comes_out(name: str) -> None:
    """The worker turns such an exception into a retry. The tests of its roles check that."""

    def broken(_: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        verdict(OSError("x"), **{name: broken})


@each(
    ("wait", "error"),
    [
        (lambda _: "soon", TypeError),
        (lambda _: NAN, ValueError),
        (lambda _: None, TypeError),
        (lambda _: datetime(2030, 1, 1), ValueError),  # noqa: DTZ001
    ],
)
def test_what_is_no_delay_comes_out(wait: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        verdict(OSError("x"), wait=wait)


def test_only_said_so_attempts_are_spent() -> None:
    claim = Claim(Job("1-0", b"x", "q"), "w.1", "1-0", 1, 1)
    found = [judge(Retry(), claim, error, 0.0, wait_fixed(7)) for error in (
        OSError("x"), RetryLater(5), RetryLater(5, spend=True), Release(), DeadLetter("no"),
    )]  # fmt: skip
    assert [(v.kind, v.spend) for v in found[:3]] == [
        ("retry", True),
        ("retry", False),
        ("retry", True),
    ]
    assert all(v.claim is claim for v in found)


@each(
    ("error", "reason"),
    [
        (OSError("x"), "OSError: x"),
        (Silent(), "Silent"),
        (RetryLater(5), "RetryLater: retry in 5 s"),
        (RetryLater(5, "busy"), "busy"),
        (RetryLater(timedelta(minutes=1)), "RetryLater: retry after 0:01:00"),
    ],
)
def test_reasons(error: BaseException, reason: str) -> None:
    claim = Claim(Job("1-0", b"x", "q"), "w.1", "1-0", 1, 1)
    assert judge(Retry(), claim, error, 0.0, wait_fixed(7)).reason == reason


def test_an_exception_in_words() -> None:
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(Silent()) == "Silent"


def test_a_group_of_exceptions_is_named_with_its_causes() -> None:
    inner = BaseExceptionGroup("inner", [KeyboardInterrupt(), Silent()])
    group = ExceptionGroup(
        "two failed", [OSError("no route"), ExceptionGroup("deep", [ValueError("bad")])]
    )
    assert describe_error(group) == (
        "ExceptionGroup: two failed (2 sub-exceptions); OSError: no route; "
        "ExceptionGroup: deep (1 sub-exception); ValueError: bad"
    )
    assert (
        describe_error(inner)
        == "BaseExceptionGroup: inner (2 sub-exceptions); KeyboardInterrupt: ; Silent"
    )
    many = ExceptionGroup("many", [ExceptionGroup("x", [ValueError("y" * 100)] * 100)] * 10_000)
    assert len(describe_error(many)) == REASON_CHARACTERS


@each(
    "error",
    [
        RetryLater(5, "busy", spend=True),
        RetryLater(MOMENT),
        DeadLetter("no"),
        Release(),
        Complete(b"x"),
        BatchError({"i": DeadLetter("no")}),
    ],
)
def test_verdicts_come_whole_out_of_another_process(error: Exception) -> None:
    """A handler may do its work in another process."""
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert repr(twin.__dict__) == repr(error.__dict__)


# -- verdicts that are returned --------------------------------------------------------------------


@each("verdict", [RetryLater(5), DeadLetter("no"), Release()])
def test_a_verdict_that_is_returned_is_as_if_raised(verdict: Exception) -> None:
    assert meant("1-0", None, verdict, batch=False) == (verdict, None)
    assert meant("1-0", None, verdict, batch=True) == (verdict, None)
    assert meant("1-0", verdict, None, batch=False) == (verdict, None)


@each(
    ("returned", "expected"),
    [(Release, Release), (RetryLater, RetryLater), (Complete, Complete), (DeadLetter, TypeError)],
)
def test_a_class_that_is_returned_is_as_if_raised(returned: type, expected: type) -> None:
    """`raise DeadLetter` also has no reason."""
    assert type(returned_verdict(returned)) is expected


def test_a_result_whose_type_has_no_hash_is_an_error() -> None:
    """Nothing is raised, which would end the handler's thread."""

    class Meta(type):
        __hash__ = None  # type: ignore[assignment]

    assert type(returned_verdict(Meta("Odd", (), {})())) is TypeError


@each(
    "value",
    [None, b"x", 5, {"1-0": Release()}, ValueError("x"), ValueError, BatchError({}), [Release()]],
)
def test_what_is_returned_else_is_a_result(value: Any) -> None:
    assert meant("1-0", None, value, batch=False) == (None, value)


class Later:
    def __await__(self) -> Generator[None, None, None]:
        yield


async def _coroutine() -> None: ...


async def _async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_coroutine, r"returned an awaitable \(coroutine\), which nobody awaits"),
        (Later, r"returned an awaitable \(Later\)"),
        (lambda: (number for number in range(3)), r"returned a generator \(generator\)"),
        (_async_generator, r"returned a generator \(async_generator\)"),
    ],
)
def test_a_result_that_has_still_to_run_is_a_failure(
    make: Callable[[], Any], says: str, batch: bool
) -> None:
    error, result = meant("1-0", None, make(), batch=batch)
    assert isinstance(error, TypeError)
    assert re.search(says, str(error))
    assert result is None
    gc.collect()  # a coroutine that is left open warns


@each("batch", [False, True])
def test_complete_is_a_result(batch: bool) -> None:
    assert meant("1-0", Complete(b"r"), None, batch=batch) == (None, b"r")
    assert meant("1-0", None, Complete(), batch=batch) == (None, None)


def test_the_verdicts_of_a_batch() -> None:
    no, error = DeadLetter("no"), ValueError("v")
    said_so: dict[str, Any] = {
        "a": no,
        "b": error,
        "c": None,
        "d": Complete(b"r"),
        "e": Release,
        "x": 5,
    }
    for raised, returned in [
        (BatchError(said_so), None),
        (None, BatchError(said_so)),
        (None, said_so),
    ]:

        def of(name: str, raised: Any = raised, returned: Any = returned) -> Any:
            return meant(name, raised, returned, batch=True)

        assert [of(name) for name in "abcdz"] == [
            (no, None),
            (error, None),
            (None, None),
            (None, b"r"),
            (None, None),
        ]
        assert isinstance(of("e")[0], Release)
        assert isinstance(of("x")[0], TypeError)
    assert meant("a", error, None, batch=True) == (error, None)
    assert meant("a", None, b"a result of all", batch=True) == (None, None)


# -- policies --------------------------------------------------------------------------------------


@each(
    ("error", "rule", "expected"),
    [
        (ValueError("x"), DeadLetter, ("dead", "ValueError: x")),
        (ValueError("x"), DeadLetter("no good"), ("dead", "no good")),
        (ValueError("x"), Release, ("release", "")),
        (ValueError("x"), Release(), ("release", "")),
        (ValueError("x"), RetryLater(5), ("retry", 5.0)),
        (ValueError("x"), Complete, ("complete", "")),
        (ValueError("x"), lambda _: None, ("retry", 7.0)),
        (ValueError(9), lambda error: RetryLater(error.args[0]), ("retry", 9.0)),
        (UnicodeError("x"), DeadLetter, ("dead", "UnicodeError: x")),
        (OSError("x"), DeadLetter, ("retry", 7.0)),
        (Release(), DeadLetter, ("release", "")),
        (KeyboardInterrupt(), DeadLetter, ("retry", 7.0)),
        (ValueError("x"), lambda _: RetryLater(NAN), ("retry", 7.0)),
    ],
)
def test_a_policy(error: BaseException, rule: Any, expected: tuple[str, Any]) -> None:
    """A policy goes before `retry=`. A handler's own verdict goes before the policy."""
    assert verdict(error, on={ValueError: rule}) == expected
    if expected != ("retry", 7.0):
        assert verdict(error, on={ValueError: rule}, retry=retry_never) == expected


@each("error", [Panic("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_policy_for_what_is_no_exception(error: BaseException) -> None:
    assert verdict(error, on={type(error): DeadLetter})[0] == "dead"


@each("error", [Panic("x"), SystemExit(1), GeneratorExit(), asyncio.CancelledError()])
def test_who_was_told_to_give_up_has_not_failed(error: BaseException) -> None:
    """The cancellation causes the exception. An ordinary exception is still the handler's own
    failure."""
    claim = Claim(Job("1-0", b"x", "q"), "w.1", "1-0", 1, 1)
    claim.job.lost.set()
    assert (
        judge(Retry(on={type(error): DeadLetter}), claim, error, 0.0, wait_fixed(7)).kind
        == "release"
    )
    assert judge(Retry(), claim, OSError(), 0.0, wait_fixed(7)).kind == "retry"


@each("error", [SystemExit(1), KeyboardInterrupt(), BaseExceptionGroup("g", [SystemExit()])])
def test_who_ends_the_program_as_the_worker_stops_has_not_failed(error: BaseException) -> None:
    claim = Claim(Job("1-0", b"x", "q"), "w.1", "1-0", 1, 1)
    assert judge(Retry(), claim, error, 0.0, wait_fixed(7), stopping=True).kind == "release"
    assert judge(Retry(), claim, Panic("x"), 0.0, wait_fixed(7), stopping=True).kind == "retry"


# -- releases in a row -----------------------------------------------------------------------------


def given_back(
    error: BaseException, count: int, releases: int, attempt: int = 1, **when: float
) -> Settlement:
    """Return the verdict after so many deliveries of the entry and so many releases of the job."""
    claim = Claim(
        Job("1-0", b"x", "q", attempt=attempt), "w.1", "1-0", count, attempt + releases, **when
    )
    return judge(Retry(), claim, error, 0.0, wait_fixed(7))


def test_releases_in_a_row_wait_longer_each_time() -> None:
    error = Release()
    found = [given_back(error, row, row - 1) for row in range(1, 200)]
    pauses: list[Any] = [v.delay for v in found]
    assert pauses[:FREE_RELEASES] == [0.0] * FREE_RELEASES
    assert pauses[FREE_RELEASES : FREE_RELEASES + 4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses == sorted(pauses)
    assert set(pauses[FREE_RELEASES + 10 :]) == {PAUSE_AT_MOST_S}
    assert [v.row for v in found] == [0] * FREE_RELEASES + list(range(FREE_RELEASES + 1, 200))
    assert given_back(error, 10**15, 10**15).delay == PAUSE_AT_MOST_S


def test_an_attempt_ends_the_row() -> None:
    """A retry makes a new entry. After a reclaim, the delivery counts as an attempt."""
    assert given_back(Release(), 1, 500).delay == 0.0
    assert given_back(Release(), 500, 3, attempt=497).delay == 0.0
    assert given_back(Release(), 30, 500, attempt=9).delay == PAUSE_AT_MOST_S


@each("asked", [0.0, datetime(1970, 1, 2, tzinfo=UTC), timedelta(0)])
def test_what_spends_no_attempt_is_not_tried_at_once_for_ever(asked: Any) -> None:
    found = [given_back(RetryLater(asked), 1, row - 1, leased_at=86401.0) for row in range(1, 100)]
    delays = [v.delay for v in found]
    assert delays[FREE_RELEASES:][:3] == [0.1, 0.2, 0.4]
    assert set(delays[FREE_RELEASES + 5 :]) == {RETRY_PAUSE_AT_MOST_S}
    assert (found[0].row, found[50].row) == (0, 51)
    assert given_back(RetryLater(asked, spend=True), 1, 50).row == 0


def test_who_asks_for_more_has_what_was_asked_for() -> None:
    later = datetime(1970, 1, 2, tzinfo=UTC)
    assert [given_back(RetryLater(5), 1, 500).delay, given_back(RetryLater(5), 1, 500).row] == [
        5.0,
        0,
    ]
    assert given_back(RetryLater(later), 1, 500, leased_at=86390.0).delay == later


def test_the_nearest_type_counts() -> None:
    on: dict[Any, Any] = {Exception: DeadLetter, OSError: RetryLater(5), ConnectionError: Release}
    found = [
        verdict(error, on=on)[0]
        for error in (ValueError(), OSError(), TimeoutError(), ConnectionResetError())
    ]
    assert found == ["dead", "retry", "retry", "release"]
    assert verdict(Release(), on=on)[0] == "release"


def test_a_policy_keeps_what_was_raised() -> None:
    """The exception becomes the reason, unless the verdict has its own. The policy spends an
    attempt if the verdict does.
    """
    claim = Claim(Job("1-0", b"x", "q"), "w.1", "1-0", 1, 1)
    for rule, reason, spend in [
        (RetryLater(5), "ValueError: x", 0),
        (RetryLater(5, "busy"), "busy", 0),
        (RetryLater(5, spend=True), "ValueError: x", 1),
    ]:
        found = judge(
            Retry(attempts=3, on={ValueError: rule}), claim, ValueError("x"), 0.0, wait_fixed(7)
        )
        assert (found.reason, found.spend, found.attempts) == (reason, spend, 3)


def test_a_policy_may_complete_with_a_result() -> None:
    claim = Claim(Job("1-0", b"x", "q"), "w.1", "1-0", 1, 1)
    found = judge(
        Retry(on={KeyError: lambda _: Complete("r")}),
        claim,
        KeyError(),
        0.0,
        wait_fixed(7),
        str.encode,
    )
    assert (found.kind, found.result) == ("complete", b"r")


def test_a_policy_that_makes_no_verdict_comes_out() -> None:
    with pytest.raises(TypeError, match="on: 5 is no verdict"):
        verdict(ValueError("x"), on={ValueError: lambda _: 5})


def test_anew() -> None:
    claim = Claim(Job("1-0", b"x", "q", attempt=9), "w.1", "1-0", 9, 9)
    found = judge(
        Retry(wait=wait_incrementing(10, 5)), claim, OSError(), 0.0, wait_fixed(7), anew=True
    )
    assert found.delay == 10.0


# -- jobs of unknown kinds -------------------------------------------------------------------------


@each(
    ("age", "rounds", "grace", "expected"),
    [
        (0.0, 0, 300.0, ("retry", timedelta(seconds=10), 0)),
        (299.0, 50, 300.0, ("retry", timedelta(seconds=10), 0)),
        # old, but perhaps it has only waited for long
        (5000.0, 29, 300.0, ("retry", timedelta(seconds=10), 0)),
        (300.0, 30, 300.0, ("dead", 0.0, 1)),
        (0.0, 0, 0.0, ("dead", 0.0, 1)),
    ],
)
def test_a_job_of_an_unknown_kind(
    age: float, rounds: int, grace: float, expected: tuple[str, Any, int]
) -> None:
    def handler(**kinds: Any) -> HandlerSettings:
        return HandlerSettings(
            "q", print, 1, Retry(), None, QueueSettings(), BytesCodec(), grace=grace, kinds=kinds
        )

    job = Job("1-0", b"x", "q", {"kind": "c"}, attempt=3, enqueued_at=1000.0)
    claim = Claim(job, "w.1", "1-0", 3, 3 + rounds, leased_at=1000.0 + age)
    found = unknown_kind(handler(a=handler(), b=handler()), claim)
    assert (found.kind, found.delay, found.spend) == expected
    assert found.reason == "no handler for jobs of kind 'c': this worker knows 'a', 'b'"
