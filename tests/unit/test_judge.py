"""What a handler's exception means for its job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tenacity import retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_fixed, wait_incrementing

from headrace import DeadLetter, Job, Release, Retry, RetryLater
from headrace._job import Claim
from headrace._judge import judge
from headrace._settings import FOREVER


def verdict(error: BaseException, attempt: int = 1, age: float = 0.0, **policy: Any) -> tuple[str, Any]:
    claim = Claim(Job("1-0", b"x", "q", attempt=attempt), "w.1", "1-0", attempt, attempt)
    found = judge(Retry(**policy), claim, error, age, wait_fixed(7))
    return found.kind, found.delay if found.kind == "retry" else found.reason


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "options", "expected"),
    [
        (ValueError("x"), {}, ("retry", 7.0)),
        (SystemExit(1), {}, ("retry", 7.0)),
        (ValueError("x"), {"wait": 3}, ("retry", 3.0)),
        (ValueError("x"), {"wait": timedelta(minutes=1)}, ("retry", 60.0)),
        (ValueError("x"), {"wait": wait_incrementing(10, 5), "attempt": 3}, ("retry", 20.0)),
        (ValueError("x"), {"wait": lambda _: -1}, ("retry", 0.0)),
        (ValueError("x"), {"wait": lambda _: float("inf")}, ("retry", FOREVER)),
        (ValueError("x"), {"stop": stop_after_attempt(3), "attempt": 2}, ("retry", 7.0)),
        (ValueError("x"), {"stop": stop_after_attempt(3), "attempt": 3}, ("dead", "ValueError: x")),
        (ValueError("x"), {"stop": stop_after_delay(60), "age": 59.0}, ("retry", 7.0)),
        (ValueError("x"), {"stop": stop_after_delay(60), "age": 60.0}, ("dead", "ValueError: x")),
        (ValueError("x"), {"retry": retry_if_exception_type(OSError)}, ("dead", "ValueError: x")),
        (OSError("x"), {"retry": retry_if_exception_type(OSError)}, ("retry", 7.0)),
        (Silent(), {"retry": retry_if_exception_type(OSError)}, ("dead", "Silent")),
        (RetryLater(5), {"stop": stop_after_attempt(1)}, ("retry", 5.0)),
        (RetryLater(MOMENT), {}, ("retry", MOMENT)),  # type: ignore[arg-type]
        (DeadLetter("no"), {}, ("dead", "no")),
        (Release(), {}, ("release", "")),
        (KeyboardInterrupt(), {}, ("release", "")),
        (GeneratorExit(), {}, ("release", "")),
    ],
)
def test_what_an_exception_means(error: BaseException, options: dict[str, Any], expected: tuple[str, Any]) -> None:
    assert verdict(error, **options) == expected
