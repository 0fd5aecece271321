"""Validated options, seconds as float. What is wrong is said here, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import field, frozen

RESERVED = frozenset({"data", "id", "attempt", "enq"})
FOREVER = 10 * 365 * 86400.0  # longer than any duration we accept


def seconds(name: str, value: object, *, least: float = 0.0, zero: bool = True) -> float:
    """A duration as float seconds. `TypeError` or `ValueError` naming *name*."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    number = float(value)
    if (
        not math.isfinite(number)
        or number < least
        or number > FOREVER
        or (not zero and number == 0)
    ):
        least_text = f"more than {least:g}" if not zero else f"at least {least:g}"
        raise ValueError(f"{name}={value!r}: give {least_text} and at most {FOREVER:g} seconds")
    return number


def millis(number: float) -> int:
    """Seconds to milliseconds, rounded up: no positive time becomes 0, which often means for ever."""
    return math.ceil(number * 1000)


def count(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """A whole number in a range. `TypeError` or `ValueError` naming *name*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" + (f" and at most {most}" if most is not None else "")
        raise ValueError(f"{name}={value}: give {bounds}")
    return value


def delay(value: object) -> str:
    """A delay for the scripts: '' none, '+ms' from the server's now, '@ms' a moment of its clock."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                "delay: give a datetime with a time zone; a naive one means a different moment everywhere"
            )
        return f"@{millis(max(0.0, value.timestamp()))}"
    after = millis(seconds("delay", value))
    return f"+{after}" if after else ""


def headers(value: object) -> list[str]:
    """Headers as a flat list. `TypeError` or `ValueError` for anything but text to text."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise TypeError(f"headers must map str to str, not {type(value).__name__}")
    flat: list[str] = []
    items: Mapping[Any, Any] = value
    for key, text in items.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"headers must map str to str; {key!r}: {text!r} does not")
        if not key or key in RESERVED:
            raise ValueError(f"header name {key!r}: {', '.join(sorted(RESERVED))} and '' are taken")
        flat += (key, text)
    return flat


@frozen
class QueueSettings:
    """How a queue behaves for this client. Times are seconds."""

    lease: float = field(default=60.0, converter=lambda v: seconds("lease", v, zero=False))
    max_attempts: int | None = None
    priorities: int = 1
    dead_limit: int = 1000
    result_ttl: float = field(
        default=86400.0, converter=lambda v: seconds("result_ttl", v, zero=False)
    )
    fenced: bool = False

    def __attrs_post_init__(self) -> None:
        if self.max_attempts is not None:
            count("max_attempts", self.max_attempts)
        count("priorities", self.priorities, most=1)
        count("dead_limit", self.dead_limit, least=0)
        if not isinstance(self.fenced, bool):
            raise TypeError(f"fenced must be a bool, not {type(self.fenced).__name__}")


@frozen
class WorkerSettings:
    """How a worker lives. Times are seconds."""

    heartbeat: float = field(default=2.0, converter=lambda v: seconds("heartbeat", v, zero=False))
    timeout: float = field(default=10.0, converter=lambda v: seconds("timeout", v, zero=False))

    def __attrs_post_init__(self) -> None:
        if self.timeout < 2 * self.heartbeat:
            raise ValueError(
                f"timeout={self.timeout:g}: give at least twice the heartbeat ({self.heartbeat:g}), "
                "or one late beat looks like a death"
            )
