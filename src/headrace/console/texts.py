"""Times, rates, numbers and errors in few characters, for people."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import starmap
from typing import Any

import redis

from headrace import Schedule
from headrace.errors import HeadraceError, describe_error
from headrace.platform import HEADERS, declared_rates, span

LARGE = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
BACK_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
BACK = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?(s|m|min|h|d)")
BARS = "▁▂▃▄▅▆▇█"
# of commands and scripts
FORBIDDEN = ("NOPERM", "no permissions", "ACL failure", "can't run this command")
PLACE = re.compile(  # of an error in a script, as Redis 6.2, and as later servers write it
    r"Error running script \(call to f_\w+\): |@user_script:\s?\d+: ?|(?:,? script: \w+,)? on @user_script:\d+\.?"
)
# of reading a queue, and of acting on it
FAILURES = (redis.RedisError, OSError, HeadraceError, ValueError)


class Refused(ValueError):
    """Raised for a form that asks for nothing that can be done. Its text says why."""


def took(seconds: float | None, *, narrow: bool = False) -> str:
    if seconds is None or seconds >= 9.95:
        return span(seconds) if narrow else spelled(seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{f'{seconds:.1f}'.removesuffix('.0')} s"


def signal_data(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def in_words(structure: str) -> str:
    return f"`{structure}`" if structure else "none"


EACH = {1.0: "a second", 60.0: "a minute", 3600.0: "an hour", 86400.0: "a day"}
SECONDS = ("ageing", "unique_for", "history_ttl")  # options in seconds


def declared(option: str, value: str) -> str:
    if option == "rate":
        shown = ", ".join(starmap(_rate_limit, declared_rates(value)))
        cut = value and not value.endswith(")")  # the server keeps 200 bytes
        return f"{shown}, …".removeprefix(", ") if cut or not shown else shown
    if option == "concurrency":
        return f"{value} in each worker, as an operator has set it"
    if value == "None":
        return "no limit"
    try:
        return span(float(value)) if option in SECONDS else value
    except ValueError:
        return value


def _rate_limit(limit: int, per: float, key: str | None, burst: int | None, per_shard: bool) -> str:
    text = f"{limit:,} {EACH.get(per) or f'in {span(per)}'}"
    if key is not None:
        text += f" for each {'job key' if key == HEADERS.key else key}"
    text += "" if burst is None else f", {burst:,} at once"
    return text + (", over all shards" if per_shard else "")


def percent(part: float) -> str:
    return f"{part:.1%}" if 0 < part < 0.1 else f"{part:.0%}"


SMALLER = {"min": (60, 1, "s"), "h": (3600, 60, "min"), "d": (86400, 3600, "h")}  # in seconds


def spelled(seconds: float | None) -> str:
    text = span(seconds)
    unit = text.rpartition(" ")[2]
    if seconds is None or unit not in SMALLER:
        return text
    size, part, smaller = SMALLER[unit]
    large, rest = divmod(round(seconds / part), size // part)
    return f"{large} {unit} {rest} {smaller}" if rest else f"{large} {unit}"


def from_now(moment: float | None, now: float, *, narrow: bool = False) -> str:
    if moment is None:
        return ""
    away = (span if narrow else spelled)(abs(moment - now))
    return f"in {away}" if moment > now else f"{away} ago"


def moment(name: str, text: str, now: float) -> float | None:
    text = text.strip()
    if not text:
        return None
    back = BACK.fullmatch(text)
    if back:
        # whole tens of seconds, so that all viewers of this span see one reading
        return max(0.0, now // 10 * 10 - float(back[1]) * BACK_S[back[2]])
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise Refused(
            f"{name} {text!r:.50}: give a span such as 10m, 1h or 2d, or 2026-11-27T01:00 in UTC."
        ) from None


def timing(one: Schedule) -> str:
    if one.every:
        return f"every {spelled(one.every)}"
    words = one.cron or ""
    with suppress(Exception):  # no library, or foreign bytes
        from cronsim import CronSim

        words = CronSim(words, datetime.now(UTC)).explain()
    return f"{words}, {one.timezone}" if one.timezone else words


def clock(moment: float | None) -> str:
    if moment is None:
        return ""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{moment:.0f}"


def rate(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:.1f}" if 0 < number < 10 else f"{number:,.0f}"


def memory(used: float, most: float = 0) -> str:
    texts = [_bytes(number) for number in (used, most) if number]
    return " of ".join(texts) or "0 B"


def _bytes(number: float) -> str:
    size, unit = next((unit for unit in SIZES if number >= unit[0]), (1, "B"))
    text = (
        f"{number / size:.1f}".removesuffix(".0") if number < 10 * size else f"{number / size:.0f}"
    )
    return f"{text} {unit}"


def short(number: float) -> str:
    if abs(number) < 100_000:
        return f"{number:,.0f}"
    size, unit = next(unit for unit in LARGE if abs(number) >= unit[0])
    return (
        f"{number / size:.1f}{unit}" if abs(number) < 100 * size else f"{number / size:.0f}{unit}"
    )


def middle(text: str, most: int = 28) -> str:
    """Cut a long name in its middle, as its beginning and its end tell it from others."""
    return text if len(text) <= most else f"{text[: most - 9]}…{text[-8:]}"


def chart(values: Sequence[float], width: int) -> str:
    latest = list(values)[-width:]
    top = max(latest, default=0.0)
    bars = (
        " " if value <= 0 else BARS[min(len(BARS) - 1, int(value / top * len(BARS)))]
        for value in latest
    )
    return "".join(bars).rjust(width)


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def jobs(number: int) -> str:
    return counted(number, "job")


def without_place(text: str) -> str:
    """Return an error's words without the place in the script that met it, which tells a user
    nothing."""
    return PLACE.sub("", text)


def complaint(error: Exception) -> str:
    match error:
        case Refused():
            return str(error)
        case redis.ResponseError() if any(word in str(error) for word in FORBIDDEN):
            return (
                f"This user of the server may not do that: {without_place(describe_error(error))}"
            )
        case redis.ResponseError():
            return f"The server refused that: {without_place(describe_error(error))}"
        case redis.RedisError() | OSError():
            return f"The server does not answer: {describe_error(error)}"
        case _:
            return describe_error(error)
