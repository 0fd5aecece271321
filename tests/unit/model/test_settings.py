"""Options are checked before anything is sent, and the message names the one that is wrong."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import attrs
import pytest
from tenacity import retry_if_exception_type, stop_after_attempt, wait_fixed

from headrace import (
    Complete,
    ConfigurationError,
    DeadLetter,
    Queue,
    Release,
    Retry,
    RetryLater,
    Worker,
)
from headrace._api.worker import DEFAULT_WAIT
from headrace._model import checks
from headrace._model.checks import FOREVER_S, INTEGER_AT_MOST
from headrace._model.codec import BytesCodec
from headrace._model.policy import ATTEMPTS
from headrace._model.settings import (
    BatchOptions,
    HandlerSettings,
    QueueOptions,
    QueueSettings,
    WorkerSettings,
)
from headrace._protocol.limits import RETRY_BUDGET_S
from tests.support.facts import each

INF, NAN = math.inf, math.nan


@each(
    ("value", "expected"),
    [
        (0, 0.0),
        (1, 1.0),
        (0.5, 0.5),
        (timedelta(minutes=1), 60.0),
        (FOREVER_S, FOREVER_S),
        (timedelta(), 0.0),
    ],
)
def test_seconds(value: Any, expected: float) -> None:
    assert checks.seconds("x", value) == expected


@each(
    ("value", "options", "error"),
    [
        (-1, {}, ValueError),
        (-0.001, {}, ValueError),
        (INF, {}, ValueError),
        (NAN, {}, ValueError),
        (FOREVER_S + 1, {}, ValueError),
        (timedelta(days=-1), {}, ValueError),
        (timedelta.max, {}, ValueError),
        (0, {"zero": False}, ValueError),
        (1, {"least": 2.0}, ValueError),
        (10**400, {}, ValueError),
        ("1", {}, TypeError),
        (True, {}, TypeError),
        (None, {}, TypeError),
        (datetime(2030, 1, 1, tzinfo=UTC), {}, TypeError),
    ],
)
def test_what_are_no_seconds(value: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="lease"):
        checks.seconds("lease", value, **options)


@each(("seconds", "expected"), [(0, 0), (1e-9, 1), (0.001, 1), (0.0011, 2), (1, 1000), (1.5, 1500)])
def test_millis_round_up(seconds: float, expected: int) -> None:
    """A 0 often means for ever."""
    assert checks.millis(seconds) == expected


@each(("value", "options"), [(1, {}), (0, {"least": 0}), (5, {"most": 5}), (INTEGER_AT_MOST, {})])
def test_count(value: int, options: dict[str, Any]) -> None:
    assert checks.count("n", value, **options) == value


@each(
    ("value", "options", "error"),
    [
        (0, {}, ValueError),
        (-1, {"least": 0}, ValueError),
        (6, {"most": 5}, ValueError),
        (INTEGER_AT_MOST + 1, {}, ValueError),
        (1.0, {}, TypeError),
        ("1", {}, TypeError),
        (True, {}, TypeError),
        (None, {}, TypeError),
    ],
)
def test_what_is_no_count(value: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^max_size"):
        checks.count("max_size", value, **options)


@each(
    ("value", "expected"),
    [
        (None, ""),
        (0, ""),
        (0.0, ""),
        (timedelta(), ""),
        (1e-9, "+1"),
        (1.5, "+1500"),
        (timedelta(hours=1), "+3600000"),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "@1000"),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "@0"),
        (datetime(1960, 1, 1, tzinfo=UTC), "@0"),
        (datetime.max.replace(tzinfo=UTC), "@253402300800000"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), "@253402351200000"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "@0"),
    ],
)
def test_delay(value: Any, expected: str) -> None:
    assert checks.delay(value) == expected


@each(
    ("value", "error"),
    [
        (-1, ValueError),
        (INF, ValueError),
        (NAN, ValueError),
        (datetime(2030, 1, 1), ValueError),  # noqa: DTZ001 - naive, which is the point
        ("5", TypeError),
        (True, TypeError),
    ],
)
def test_what_is_no_delay(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="delay"):
        checks.delay(value)


def test_headers_stay_in_order() -> None:
    """Entries of one queue then share their field list, which saves memory."""
    assert checks.headers(None) == checks.headers({}) == []
    assert checks.headers({"b": "1", "a": "", "traceparent": "ä"}) == [
        "b",
        "1",
        "a",
        "",
        "traceparent",
        "ä",
    ]
    assert checks.headers(MappingProxyType({"a": "b"})) == ["a", "b"]
    assert (
        len(checks.headers({str(i): "" for i in range(checks.HEADERS_AT_MOST)}))
        == 2 * checks.HEADERS_AT_MOST
    )


@each(
    ("value", "error"),
    [
        ([("a", "b")], TypeError),
        ("a=b", TypeError),
        ({"a": 1}, TypeError),
        ({1: "a"}, TypeError),
        ({b"a": b"b"}, TypeError),
        ({"": "x"}, ValueError),
        *[({name: "x"}, ValueError) for name in ("data", "id", "attempt", "enq")],
        ({"a": "\ud800"}, ValueError),
        ({"\ud800": "a"}, ValueError),
        ({str(i): "" for i in range(checks.HEADERS_AT_MOST + 1)}, ValueError),
    ],
)
def test_what_are_no_headers(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="header"):
        checks.headers(value)


def test_the_defaults_are_the_documented_ones() -> None:
    assert attrs.astuple(QueueSettings()) == (
        60.0,
        20,
        1,
        1000,
        86_400.0,
        False,
        (),
        None,
        False,
        RETRY_BUDGET_S,
        None,
        604_800.0,
        None,
        None,
        "raise",
        None,
        None,
        1,
        False,
        None,
        (),
        (),
        None,
    )
    assert attrs.astuple(WorkerSettings()) == (2.0, 10.0, FOREVER_S, None)
    assert attrs.astuple(Retry()) == (20, None, None, None, {})


@each(
    ("options", "error"),
    [
        ({"lease": 10**400}, ValueError),
        ({"lease": 0}, ValueError),
        ({"lease": -1}, ValueError),
        ({"lease": "60"}, TypeError),
        ({"lease": None}, TypeError),
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": 1.5}, TypeError),
        ({"priorities": 0}, ValueError),
        ({"priorities": 11}, ValueError),
        ({"ageing": 5}, ConfigurationError),
        ({"ageing": 0}, ValueError),
        ({"dead_limit": -1}, ValueError),
        ({"dead_limit": sys.maxsize}, ValueError),
        ({"max_attempts": sys.maxsize}, ValueError),
        ({"dead_limit": None}, TypeError),
        ({"result_ttl": 0}, ValueError),
        ({"result_ttl": INF}, ValueError),
        ({"fenced": 1}, TypeError),
        ({"fenced": None}, TypeError),
    ],
)
def test_what_is_no_setting_of_a_queue(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        QueueSettings(**options)


def test_options_and_settings_have_the_same_names() -> None:
    """The options that type checkers accept are the fields of the class."""
    assert (
        QueueOptions.__annotations__.keys()
        == QueueSettings().options().keys()
        == QueueSettings.defaults().keys()
    )
    assert QueueSettings.of(Queue, {"lease": 5}).options() == QueueSettings(lease=5).options()


def test_an_option_that_there_is_not_is_named() -> None:
    unknown: Any = {"leases": 5}
    with pytest.raises(
        TypeError, match=r"^Queue\(\) got an unexpected .* 'leases', did you mean 'lease'\?$"
    ):
        QueueSettings.of(Queue, unknown)
    with pytest.raises(
        TypeError, match=r"^batch_handler\(\) got an unexpected keyword argument 'result_ttl'$"
    ):
        QueueSettings.of(Worker().batch_handler, {"result_ttl": 5}, BatchOptions)


@each(
    ("options", "error", "says"),
    [
        ({"heartbeat": 0}, ValueError, "heartbeat"),
        ({"heartbeat": "2"}, TypeError, "heartbeat"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": True}, TypeError, "timeout"),
        ({"heartbeat": 6}, ValueError, "timeout=10: give at least twice the heartbeat"),
        (
            {"timeout": timedelta(seconds=3)},
            ValueError,
            "timeout=3: give at least twice the heartbeat",
        ),
    ],
)
def test_what_is_no_setting_of_a_worker(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        WorkerSettings(**options)


def test_a_timeout_of_two_heartbeats_will_do() -> None:
    assert attrs.astuple(WorkerSettings(heartbeat=timedelta(seconds=5), timeout=10)) == (
        5.0,
        10.0,
        FOREVER_S,
        None,
    )


def test_retry_takes_tenacity_s_objects() -> None:
    options: dict[str, Any] = {
        "wait": wait_fixed(1), "stop": stop_after_attempt(2), "retry": retry_if_exception_type(OSError),
    }  # fmt: skip
    assert attrs.astuple(Retry(3, **options)) == (3, *options.values(), {})
    assert Retry(wait=5).wait == 5
    assert Retry(wait=timedelta(seconds=5)).wait == timedelta(seconds=5)


@each(
    ("options", "error"),
    [
        ({"attempts": 0}, ValueError),
        ({"attempts": "5"}, TypeError),
        ({"attempts": True}, TypeError),
        ({"wait": -1}, ValueError),
        ({"wait": "1"}, TypeError),
        ({"stop": 5}, TypeError),
        ({"retry": "OSError"}, TypeError),
        ({"on": [ValueError]}, TypeError),
        ({"on": {"ValueError": DeadLetter}}, TypeError),
        ({"on": {int: DeadLetter}}, TypeError),
        ({"on": {(ValueError, OSError): DeadLetter}}, TypeError),
        ({"on": {ValueError: 5}}, TypeError),
        ({"on": {ValueError: None}}, TypeError),
        ({"on": {ValueError: OSError("x")}}, TypeError),
        ({"on": {ValueError: OSError}}, ValueError),
        ({"on": {ValueError: RetryLater}}, ValueError),
        ({"on": {ValueError: RetryLater("5")}}, TypeError),
        ({"on": {ValueError: RetryLater(-5)}}, ValueError),
        ({"on": {Release: DeadLetter}}, ValueError),
        ({"on": {BaseException: DeadLetter}}, ValueError),
    ],
)
def test_what_is_no_retry(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next("delay|on" if name == "on" else name for name in options)):
        Retry(**options)


def test_what_may_be_on() -> None:
    on: dict[Any, Any] = {
        ValueError: DeadLetter,
        SystemExit: Complete,
        KeyError: Release(),
        OSError: lambda _: None,
    }
    retry = Retry(on=on)
    assert retry.on == on
    on.clear()
    assert len(retry.on) == 4  # ours, whatever becomes of theirs
    assert hash(retry) == hash(Retry(on={}))


@each(
    ("options", "error"),
    [
        ({"concurrency": 0}, ValueError),
        ({"concurrency": 10_001}, ValueError),
        ({"concurrency": 1.0}, TypeError),
        ({"max_size": 0}, ValueError),
        ({"max_size": 10_001}, ValueError),
        ({"function": 5}, TypeError),
        ({"retry": 5}, TypeError),
        ({"persistent": "yes"}, TypeError),
        ({"persistent": True, "deadline": 5.0}, ValueError),
        ({"persistent": True, "queue_settings": QueueSettings(max_attempts=5)}, ValueError),
        ({"persistent": True, "retry": Retry(attempts=5)}, ValueError),
        ({"persistent": True, "retry": Retry(stop=stop_after_attempt(5))}, ValueError),
    ],
)
def test_what_is_no_setting_of_a_handler(options: dict[str, Any], error: type[Exception]) -> None:
    given: dict[str, Any] = {
        "queue": "q", "function": print, "concurrency": 1, "retry": Retry(), "deadline": None,
        "queue_settings": QueueSettings(), "codec": BytesCodec(),
    }  # fmt: skip
    with pytest.raises(error, match="callable" if "function" in options else next(iter(options))):
        HandlerSettings(**given | options)


def of(most: Any = ..., *policies: Any, persistent: bool = False) -> HandlerSettings:
    """Return a handler, or one of several kinds. A number is the attempts of a `Retry`, and `...`
    the default."""
    settings = QueueSettings() if most is ... else QueueSettings(max_attempts=most)
    retries = [Retry() if one is ... else Retry(attempts=one) for one in policies or (...,)]
    made = [
        HandlerSettings("q", print, 1, retry, None, settings, BytesCodec(), persistent=persistent)
        for retry in retries
    ]
    kinds: dict[str | None, HandlerSettings] = (
        {str(i): one for i, one in enumerate(made)} if len(made) > 1 else {}
    )
    return attrs.evolve(made[0], kinds=kinds)


@each(
    ("handler", "most", "each"),
    [
        (of(), 20, [20]),
        (of(..., 5), 5, [5]),
        (of(..., 50), 50, [50]),
        (of(..., None), None, [None]),
        (of(3), 3, [3]),
        (of(50), 50, [50]),
        (of(None), None, [None]),
        (of(20, 50), 20, [20]),
        (of(20, None), 20, [20]),
        (of(None, 5), None, [5]),
        (of(5, 3), 5, [3]),
        (of(..., 5, ...), 20, [5, 20]),
        (of(..., 50, ...), 50, [50, 20]),
        (of(..., None, ...), None, [None, 20]),
        (of(4, None, 2, ...), 4, [4, 2, 4]),
        (of(None, 2, ...), None, [2, None]),
        (of(persistent=True), None, [None]),
    ],
)
def test_of_two_limits_the_one_that_was_given_counts(
    handler: HandlerSettings, most: Any, each: list[Any]
) -> None:
    limited = handler.limited()
    assert limited.queue_settings.max_attempts == most
    assert [one.retry.attempts for one in limited.kinds.values() or [limited]] == each
    assert type(limited.queue_settings.max_attempts) in (int, type(None))


def test_the_default_backoff_takes_eight_hours() -> None:
    """`DEFAULT_WAIT` is called after each failure but the last. Its 20 attempts are a second to an
    hour apart."""
    waits = [
        DEFAULT_WAIT(cast("Any", SimpleNamespace(attempt_number=n))) for n in range(1, ATTEMPTS)
    ]
    assert all(2 ** min(n, 12) <= wait <= 3600 for n, wait in enumerate(waits) if n < 12)
    assert (waits[0] <= 2, waits[-1]) == (True, 3600)
    assert 8 * 3600 < sum(waits) < 8.25 * 3600
