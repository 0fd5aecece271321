"""Checks of arguments that many modules share. Each error names the argument and a valid value."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast

from headrace._model.job import Cause, NewJob
from headrace.errors import REASON_CHARACTERS

# fields of an entry that are not headers, in their order
ENTRY_FIELDS = ("data", "id", "attempt", "enq")
# Of a job that was retried: why, and its attempts in a queue with a history; in a history also the
# places of its children. They are shown as no headers either.
KEPT_FIELDS = ("headrace-reason", "headrace-traceback", "headrace-attempts", "headrace-children")
LEVELS_AT_MOST = 10  # levels of a queue: a level is one digit wherever entries are named
HEADERS_AT_MOST = 1000  # of one job: Lua's limit on unpack is near 8,000 values
Context = Callable[[], Sequence[str]]  # flat headers for one more job: how it is traced
FOREVER_S = 10 * 365 * 86400.0  # seconds: longer than any duration we accept
LAST_MOMENT_S = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
JOBS_PER_S_AT_MOST = 10_000_000  # of a rate limit: a faster one would refill its tokens in no time
# bytes: the default of proto-max-bulk-len, and half of what a client may have in flight
VALUE_BYTES = 512 << 20
INTEGER_AT_MOST = 2**53 - 1  # Lua counts exactly as far as this
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


def seconds(name: str, value: object, *, least: float = 0.0, zero: bool = True) -> float:
    """Convert a duration to float seconds. Raises `TypeError` or `ValueError` naming *name*."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    # an int may be too large for a float
    number = float(value) if abs(value) <= FOREVER_S else math.inf
    if (
        not math.isfinite(number)
        or number < least
        or number > FOREVER_S
        or (not zero and number == 0)
    ):
        least_text = f"more than {least:g}" if not zero else f"at least {least:g}"
        raise ValueError(
            f"{name}={_shown(value)}: give {least_text} and at most {FOREVER_S:g} seconds"
        )
    return number


def patience(timeout: object) -> float:
    """Return the seconds for which a call waits. Without a *timeout* it waits for ever, and with 0
    not at all."""
    return FOREVER_S if timeout is None else seconds("timeout", timeout)


def term(name: str, value: object, *, zero: bool = False) -> int:
    """Convert a duration like `seconds`, to the whole milliseconds that scripts take."""
    return millis(seconds(name, value, zero=zero))


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # of thousands of digits
        return "…"


def millis(number: float) -> int:
    """Convert seconds to milliseconds, rounded up. No positive time becomes 0, which often means
    for ever."""
    return math.ceil(number * 1000)


def count(
    name: str, value: object, *, least: int = 1, most: int = INTEGER_AT_MOST, hint: str = ""
) -> int:
    """Return *value* if it is an int from *least* to *most*. Raises `TypeError` or `ValueError`
    naming *name*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name}={_shown(value)}: give at least {least} and at most {most}{hint}")
    return value


def listed(jobs: Any) -> Sequence[Any]:
    batch: Any = jobs
    if isinstance(jobs, (str, bytes, bytearray, memoryview, NewJob)) or not isinstance(
        jobs, Iterable
    ):
        raise TypeError(
            f"jobs must be an iterable of payloads or NewJob objects, not {type(batch).__name__}"
        )
    return batch if isinstance(jobs, (list, tuple)) else [*batch]


def several(name: str, kind: type[C], value: object) -> tuple[C, ...]:
    """Return one object of a *kind*, several of them, or none, as a tuple. Raises `TypeError`
    naming *name*."""
    if value is None:
        return ()
    some: Any = (value,) if isinstance(value, kind) else value
    if not isinstance(some, (list, tuple)):
        raise TypeError(
            f"{name} must be a {kind.__name__}(...) or a list of them, not {value!r:.100}"
        )
    for one in cast("Iterable[object]", some):
        if not isinstance(one, kind):
            raise TypeError(
                f"{name} must be a {kind.__name__}(...) or a list of them; {one!r:.100} is none"
            )
    return tuple(cast("Iterable[C]", some))


def limit_batch(
    what: str, jobs: Sequence[Sequence[str | bytes | int]], most: int, size: int, instead: str
) -> None:
    """Refuse more *jobs*, given by their fields, than one script may add. The bounds are *most*
    jobs and, except for a single job, *size* bytes.
    """
    total = sum(len(field) for fields in jobs for field in fields if not isinstance(field, int))
    if len(jobs) > most or (total > size and len(jobs) > 1):
        raise ValueError(
            f"{what}: {len(jobs)} jobs of {total:,} bytes; they are added in one step, at most {most:,} and {size:,} "
            f"bytes in all, or one alone of any size: {instead}"
        )


def check_size(what: str, values: Sequence[str | bytes | int]) -> None:
    """Refuse more bytes than a server accepts in one command. It would close the connection at each
    attempt."""
    texts = [value for value in values if not isinstance(value, int)]
    if 4 * sum(map(len, texts)) > VALUE_BYTES:  # it may be: no character has more bytes in UTF-8
        total = sum(
            len(value.encode()) if isinstance(value, str) else len(value) for value in texts
        )
        if total > VALUE_BYTES:
            raise ValueError(
                f"{what}: {total:,} bytes; a server takes {VALUE_BYTES:,} at most: store large values elsewhere, "
                "and enqueue a reference"
            )


def level(value: object, priorities: int) -> int:
    return count(
        "priority",
        value,
        least=0,
        most=priorities - 1,
        hint="; a queue has more levels with priorities=…",
    )


def delay(value: object) -> str:
    """Encode a delay for the scripts. It is '' for none, '+ms' counted from the server's now, or
    '@ms' for a moment of its clock.
    """
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


def reason(value: object) -> str:
    """Check the reason for a retry or a death, and cut it to the length that is kept."""
    # a subclass may do anything
    kept = str.__getitem__(text("reason", value), slice(REASON_CHARACTERS))
    return kept.encode("utf-8", "backslashreplace").decode()[:REASON_CHARACTERS]


def cause(value: object) -> str | bytes:
    if not isinstance(value, Cause):
        return reason(value)
    traceback = reason(value.traceback).encode()
    return (
        reason(value.reason).encode() + b"\xff" + traceback if traceback else reason(value.reason)
    )


def attempt(value: object, began: str) -> bytes:
    """Check a reason, and join it with the other values that a history keeps of an attempt.
    *began* is '+ms' before now, or '@ms'.
    """
    whole = value if isinstance(value, Cause) else Cause(reason(value))
    parts = whole.reason, whole.traceback, whole.error
    return b"\xff".join([*(reason(part).encode() for part in parts), began.encode()])


def headers(value: object) -> list[str]:
    """Flatten headers to a list of names and values. Raises `TypeError` or `ValueError` unless both
    are text."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise TypeError(f"headers must map str to str, not {type(value).__name__}")
    flat: list[str] = []
    given: Any = value  # pyright: ignore[reportUnknownVariableType]
    if len(given) > HEADERS_AT_MOST:
        raise ValueError(f"headers: {len(given)} of them; give at most {HEADERS_AT_MOST}")
    for name, content in given.items():
        if not isinstance(name, str) or not isinstance(content, str):
            raise TypeError(f"headers must map str to str; {name!r}: {content!r} does not")
        if not name or name in ENTRY_FIELDS:
            raise ValueError(
                f"header name {name!r}: {', '.join(sorted(ENTRY_FIELDS))} and '' are taken"
            )
        try:
            f"{name}{content}".encode()
        except UnicodeEncodeError:
            raise ValueError(f"header {name!r}: {content!r} is not valid Unicode") from None
        flat += (name, content)
    return flat


def trace_headers(headers: Mapping[str, str] | None, context: Context) -> Sequence[str]:
    """Return the headers that *context* adds to a job's *headers*. There are none if the caller set
    trace headers already.
    """
    flat = context()
    return () if headers and not headers.keys().isdisjoint(flat[::2]) else flat


# names that other libraries have
MEANT = {"countdown": "delay", "eta": "delay", "task_id": "id", "job_id": "id"}


def refuse_unknown(caller: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Raise `TypeError` if there are names that *caller* does not take, and say which of its
    arguments is like one."""
    for name in sorted(unknown):
        known = [*inspect.signature(caller).parameters]
        close = get_close_matches(MEANT.get(name, name), known, 1)
        meant = f", did you mean {close[0]!r}?" if close else ""
        raise TypeError(f"{caller.__name__}() got an unexpected keyword argument {name!r}{meant}")


def names_meant(kind: type[C]) -> type[C]:
    """Let a class, and its public functions, say which argument was meant by an unknown keyword.

    A call takes about 1 µs more, so this is for classes that are used rarely. `lease` and `NewJob`
    are left as they are, because a wrapper costs each call, `**unknown` is worse for type checkers,
    and Python 3.13 says it of any function.
    """
    for name, function in list(vars(kind).items()):
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _explained(function, kind if name == "__init__" else function))
    return kind


def _explained(function: Callable[..., Any], caller: Callable[..., Any]) -> Callable[..., Any]:
    def explain(given: Mapping[str, Any]) -> None:
        refuse_unknown(caller, given.keys() - inspect.signature(caller).parameters)

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return function(*args, **given)
        except TypeError:
            explain(given)
            raise

    @wraps(function)
    async def acall(*args: Any, **given: Any) -> Any:
        try:
            return await function(*args, **given)
        except TypeError:
            explain(given)
            raise

    return acall if inspect.iscoroutinefunction(function) else call


def show_options(kind: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Show a function's `**options` in its signature. Each of *defaults* is shown by its name
    with the annotation of *kind*, a `TypedDict`. The function itself does not change.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=getattr(kind.__annotations__[name], "__forward_arg__", "Any"),
            )
            for name, default in defaults.items()
        ]
        cast("Any", function).__signature__ = signature.replace(parameters=[*own, *shown])
        return function

    return decorate
