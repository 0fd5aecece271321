"""Times, rates and errors in few characters, for people."""

from __future__ import annotations

from datetime import UTC, datetime

import redis

from headrace.errors import said

UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
FORBIDDEN = ("NOPERM", "no permissions", "ACL failure", "can't run this command")  # of commands and scripts


def span(seconds: float | None) -> str:
    """Write a duration in few characters."""
    if seconds is None:
        return ""
    size, unit = next((one for one in UNITS if seconds >= one[0]), (1.0, "s"))
    return f"{seconds / size:.1f} {unit}" if seconds < 10 * size and unit != "s" else f"{seconds / size:.0f} {unit}"


def from_now(moment: float | None, now: float) -> str:
    """Write how far a moment is from *now*, both of the server's clock."""
    if moment is None:
        return ""
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def clock(moment: float | None) -> str:
    """Write a moment in UTC; one that no calendar has as a number."""
    if moment is None:
        return ""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{moment:.0f}"


def rate(number: float | None) -> str:
    """Write jobs a second."""
    if number is None:
        return "–"
    return f"{number:.1f}" if 0 < number < 10 else f"{number:,.0f}"


def counted(number: int, what: str) -> str:
    """Write a number of things."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def jobs(number: int) -> str:
    """Write a number of jobs."""
    return counted(number, "job")


def complaint(error: Exception) -> str:
    """Write the meaning of an error for a user."""
    match error:
        case redis.ResponseError() if any(word in str(error) for word in FORBIDDEN):
            return f"This user of the server may not do that: {said(error)}"
        case redis.ResponseError():
            return f"The server refused that: {said(error)}"
        case redis.RedisError() | OSError():
            return f"The server does not answer: {said(error)}"
        case _:
            return said(error)
