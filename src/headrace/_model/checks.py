"""Checks of arguments that many places share: each says what is wrong and what to give instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from headrace.errors import WORDS

OWN = ("data", "id", "attempt", "enq")  # fields of an entry that are no headers, in their order
PRIORITIES = 10  # levels of a queue, at most: a level is one digit wherever entries are named
HEADERS = 1000  # of one job: Lua's limit on unpack is near 8,000 values
Context = Callable[[], Sequence[str]]  # flat headers for one more job: how it is traced
FOREVER = 10 * 365 * 86400.0  # longer than any duration we accept
FASTEST = 10_000_000  # jobs a second that a rate limit may name: none of its tokens comes back in no time
VALUE_BYTES = 512 << 20  # a server's proto-max-bulk-len, and half of what it lets a client have in flight
MOST = 2**53 - 1  # as far as the numbers of Lua count exactly


def seconds(name: str, value: object, *, least: float = 0.0, zero: bool = True) -> float:
    """A duration as float seconds. `TypeError` or `ValueError` naming *name*."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    number = float(value) if abs(value) <= FOREVER else math.inf  # an int may be too large for a float
    if not math.isfinite(number) or number < least or number > FOREVER or (not zero and number == 0):
        least_text = f"more than {least:g}" if not zero else f"at least {least:g}"
        raise ValueError(f"{name}={_shown(value)}: give {least_text} and at most {FOREVER:g} seconds")
    return number


def term(name: str, value: object, *, zero: bool = False) -> int:
    """Like `seconds`, in whole milliseconds, as the scripts take it."""
    return millis(seconds(name, value, zero=zero))


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # of thousands of digits
        return "…"


def millis(number: float) -> int:
    """Seconds to milliseconds, rounded up: no positive time becomes 0, which often means for ever."""
    return math.ceil(number * 1000)


def count(name: str, value: object, *, least: int = 1, most: int = MOST, hint: str = "") -> int:
    """A whole number in a range. `TypeError` or `ValueError` naming *name*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name}={_shown(value)}: give at least {least} and at most {most}{hint}")
    return value


def together(what: str, jobs: Sequence[Sequence[str | bytes | int]], most: int, size: int, instead: str) -> None:
    """Refuse more *jobs*, as fields, than one script may add: *most*, and *size* bytes if it is not one alone."""
    there = sum(len(field) for fields in jobs for field in fields if not isinstance(field, int))
    if len(jobs) > most or (there > size and len(jobs) > 1):
        raise ValueError(
            f"{what}: {len(jobs)} jobs of {there:,} bytes; they are added in one step, at most {most:,} and {size:,} "
            f"bytes in all, or one alone of any size: {instead}"
        )


def fits(what: str, values: Sequence[str | bytes | int]) -> None:
    """Refuse what no server takes in one command: it would close the connection, whenever we tried."""
    some = [value for value in values if not isinstance(value, int)]
    if 4 * sum(map(len, some)) > VALUE_BYTES:  # it may be: no character has more bytes in UTF-8
        there = sum(len(value.encode()) if isinstance(value, str) else len(value) for value in some)
        if there > VALUE_BYTES:
            raise ValueError(
                f"{what}: {there:,} bytes; a server takes {VALUE_BYTES:,} at most: keep elsewhere what is so large, "
                "and say in the job where it is"
            )


def level(value: object, priorities: int) -> int:
    """A job's priority level, in a queue of so many."""
    return count("priority", value, least=0, most=priorities - 1, hint="; a queue has more levels with priorities=…")


def delay(value: object) -> str:
    """A delay for the scripts: '' none, '+ms' from the server's now, '@ms' a moment of its clock."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("delay: give a datetime with a time zone; a naive one means a different moment everywhere")
        return f"@{millis(max(0.0, value.timestamp()))}"
    after = millis(seconds("delay", value))
    return f"+{after}" if after else ""


def reason(value: object) -> str:
    """Why a job is retried, or dead: as much of it as is kept."""
    if not isinstance(value, str):
        raise TypeError(f"reason must be a str, not {type(value).__name__}")
    return str.encode(value[:WORDS], "utf-8", "backslashreplace").decode()[:WORDS]


def headers(value: object) -> list[str]:
    """Headers as a flat list. `TypeError` or `ValueError` for anything but text to text."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise TypeError(f"headers must map str to str, not {type(value).__name__}")
    flat: list[str] = []
    items: Any = value  # pyright: ignore[reportUnknownVariableType]
    if len(items) > HEADERS:
        raise ValueError(f"headers: {len(items)} of them; give at most {HEADERS}")
    for key, text in items.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"headers must map str to str; {key!r}: {text!r} does not")
        if not key or key in OWN:
            raise ValueError(f"header name {key!r}: {', '.join(sorted(OWN))} and '' are taken")
        try:
            f"{key}{text}".encode()
        except UnicodeEncodeError:
            raise ValueError(f"header {key!r}: {text!r} is not valid Unicode") from None
        flat += (key, text)
    return flat


def joined(headers: Mapping[str, str] | None, context: Context) -> Sequence[str]:
    """What *context* adds to a job's *headers*: nothing, if its user has said how it is traced."""
    flat = context()
    return () if headers and not headers.keys().isdisjoint(flat[::2]) else flat
