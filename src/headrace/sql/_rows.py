"""A row of an outbox as a job. SQLite keeps a value of any type in any column, so each is
checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import redis

from headrace import NewJob, Throttle
from headrace.errors import CodecError, ConfigurationError, HeadraceError, describe_error
from headrace.platform import HEADERS

# a row that is sent again within a day is dropped, also if its job has ended
AGAIN = Throttle(86400.0)
# of an error reply that is not the row's fault: WRONGTYPE, NOPERM, …
_CODE = re.compile(r"[A-Z]{3,} ")
_RIGHTS = re.compile(r"ACL failure in script|user executing the script can't|unknown command")


def job_of(row: Mapping[str, Any]) -> NewJob[bytes]:
    """Make the job of a row. Raises an error of any class for a row that can't be a job."""
    headers = _headers(row["headers"])
    return NewJob(
        _payload(row["payload"]),
        _text("job_id", row["job_id"]),
        headers or None,
        _delay(row),
        _whole("priority", row["priority"]),
        key=None if row["job_key"] is None else _text("job_key", row["job_key"]),
        cost=float(headers[HEADERS.cost]) if HEADERS.cost in headers else None,
        if_exists=AGAIN,
    )


def _payload(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", value))
    raise TypeError(f"payload: give bytes or text, not a value of type {type(value).__name__}")


def _headers(value: Any) -> dict[str, str]:
    if value == "{}":
        return {}
    found = json.loads(_text("headers", value))
    if not isinstance(found, dict):
        raise TypeError(f"headers: give a JSON object, not one of type {type(found).__name__}")
    return cast("dict[str, str]", found)


def _delay(row: Mapping[str, Any]) -> Any:
    """Return when the job is due, or `None` for at once. A delay counts from the writing of the
    row."""
    if row["due_ms"] is not None:
        return datetime.fromtimestamp(_whole("due_ms", row["due_ms"]) / 1000, UTC)
    if row["delay_ms"] is not None:
        return max(0.0, (_whole("delay_ms", row["delay_ms"]) - row["waited_ms"]) / 1000) or None
    return None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: give text, not a value of type {type(value).__name__}")
    return value


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(
            f"{name}: give a whole number, not {value!r:.50} of type {type(value).__name__}"
        )
    return value


def is_of_row(error: Exception) -> bool:
    """Tell whether *error* may be the fault of a row, so that other rows may go, and not of queue
    or server.
    """
    if isinstance(error, redis.ResponseError):
        words = str(error)[:1000]
        return (
            type(error) is redis.ResponseError
            and not _CODE.match(words)
            and not _RIGHTS.search(words)
        )
    if isinstance(error, ConfigurationError):
        return False
    return isinstance(error, CodecError) or not isinstance(
        error, (HeadraceError, redis.RedisError, OSError)
    )


def reason_of(error: Exception) -> str:
    """Return the words of *error* without SQL, NUL and invalid Unicode. Any database stores
    them."""
    words = describe_error(getattr(error, "orig", None) or error)
    # as many characters as a line of the log has
    return words.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:1000]
