"""Validated options, seconds as float. What is wrong is said here, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from attrs import field, frozen

from headrace._job import Job
from headrace.errors import Complete, ConfigurationError, DeadLetter, Release, RetryLater, Verdict

OWN = ("data", "id", "attempt", "enq")  # fields of an entry that are no headers, in their order
PRIORITIES = 10  # levels of a queue, at most: a level is one digit wherever entries are named
HEADERS = 1000  # of one job: Lua's limit on unpack is near 8,000 values
KIND = "kind"  # the header by which a queue's handlers share its jobs
ATTEMPT = "headrace-attempt"  # the header that says where an earlier attempt was traced
GRACE = 300.0  # seconds for which jobs of unknown kinds are put back
Context = Callable[[], Sequence[str]]  # flat headers for one more job: how it is traced
FOREVER = 10 * 365 * 86400.0  # longer than any duration we accept


def seconds(name: str, value: object, *, least: float = 0.0, zero: bool = True) -> float:
    """A duration as float seconds. `TypeError` or `ValueError` naming *name*."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    number = float(value) if abs(value) <= FOREVER else math.inf  # an int may be too large for a float
    if not math.isfinite(number) or number < least or number > FOREVER or (not zero and number == 0):
        least_text = f"more than {least:g}" if not zero else f"at least {least:g}"
        raise ValueError(f"{name}={value!r}: give {least_text} and at most {FOREVER:g} seconds")
    return number


def millis(number: float) -> int:
    """Seconds to milliseconds, rounded up: no positive time becomes 0, which often means for ever."""
    return math.ceil(number * 1000)


def count(name: str, value: object, *, least: int = 1, most: int | None = None, hint: str = "") -> int:
    """A whole number in a range. `TypeError` or `ValueError` naming *name*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" + (f" and at most {most}" if most is not None else "")
        raise ValueError(f"{name}={value}: give {bounds}{hint}")
    return value


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
    return value.encode("utf-8", "backslashreplace").decode()[:10_000]


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


def _lease(value: object) -> float:
    return seconds("lease", value, zero=False)


def _result_ttl(value: object) -> float:
    return seconds("result_ttl", value, zero=False)


def _ageing(value: object) -> float | None:
    return None if value is None else seconds("ageing", value, zero=False)


def _heartbeat(value: object) -> float:
    return seconds("heartbeat", value, zero=False)


def _timeout(value: object) -> float:
    return seconds("timeout", value, zero=False)


def _per(value: object) -> float:
    return seconds("per", value, zero=False)


@frozen
class Rate:
    """A rate limit: *limit* jobs in *per* seconds, by the server's clock, over all workers of the queue.

    *key*: the name of a header; each of its values has a limit of its own, and jobs without it have none. Without *key*
    the limit is the whole queue's. It is a token bucket of *burst* tokens (default *limit*): so many may start at once
    after a quiet time, and then one every `per / limit` seconds.
    """

    limit: int
    per: float = field(default=1.0, converter=_per)
    key: str | None = None
    burst: int | None = None

    def __attrs_post_init__(self) -> None:
        count("limit", self.limit)
        if self.burst is not None:
            count("burst", self.burst)
        if self.key is not None:
            headers({self.key: ""})

    @property
    def step(self) -> float:
        """Milliseconds that a token takes to come back."""
        return self.per * 1000 / self.limit

    @property
    def tokens(self) -> int:
        """How many there are at most."""
        return self.limit if self.burst is None else self.burst


def _rates(value: object) -> tuple[Rate, ...]:
    rates: Any = () if value is None else (value,) if isinstance(value, Rate) else value
    if not isinstance(rates, (list, tuple)):
        raise TypeError(f"rate must be a Rate(...) or a list of them, not {value!r:.100}")
    for rate in cast("Iterable[object]", rates):
        if not isinstance(rate, Rate):
            raise TypeError(f"rate must be a Rate(...) or a list of them; {rate!r:.100} is none")
    return tuple(cast("Iterable[Rate]", rates))


@frozen
class QueueSettings:
    """How a queue behaves for this client. Times are seconds."""

    lease: float = field(default=60.0, converter=_lease)
    max_attempts: int | None = None
    priorities: int = 1
    dead_limit: int = 1000
    result_ttl: float = field(default=86400.0, converter=_result_ttl)
    fenced: bool = False
    rates: tuple[Rate, ...] = field(default=(), converter=_rates)
    ageing: float | None = field(default=None, converter=_ageing)

    def __attrs_post_init__(self) -> None:
        if self.max_attempts is not None:
            count("max_attempts", self.max_attempts)
        count("priorities", self.priorities, most=PRIORITIES)
        if self.ageing is not None and self.priorities == 1:
            raise ConfigurationError("ageing: for queues with priorities; give priorities=, too")
        count("dead_limit", self.dead_limit, least=0)
        if not isinstance(self.fenced, bool):
            raise TypeError(f"fenced must be a bool, not {type(self.fenced).__name__}")


@frozen
class WorkerSettings:
    """How a worker lives. Times are seconds."""

    heartbeat: float = field(default=2.0, converter=_heartbeat)
    timeout: float = field(default=10.0, converter=_timeout)

    def __attrs_post_init__(self) -> None:
        if self.timeout < 2 * self.heartbeat:
            raise ValueError(
                f"timeout={self.timeout:g}: give at least twice the heartbeat ({self.heartbeat:g}), "
                "or one late beat looks like a death"
            )


On = Mapping[type[BaseException], Verdict | type[Verdict] | Callable[[Any], Verdict | None]]


def _on(value: On | None) -> On:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"on must map exception types to verdicts, not {type(value).__name__}")
    items: Any = value.items()  # nothing is known of them for those who use no type checker
    for kind, rule in items:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise TypeError(f"on: {kind!r} is no type of exceptions")
        if issubclass(kind, Verdict):
            raise ConfigurationError(f"on: {kind.__name__} says itself how its job ends")
        if not issubclass(kind, (Exception, SystemExit)):
            raise ConfigurationError(f"on: {kind.__name__} is no failure: it always releases the job")
        if isinstance(rule, RetryLater):
            delay(rule.delay)
        elif isinstance(rule, type) and rule not in (DeadLetter, Release, Complete):
            raise ConfigurationError(f"on: {rule.__name__}: give DeadLetter, Release, Complete, or RetryLater(seconds)")
        elif not isinstance(rule, Verdict) and not callable(rule):
            raise TypeError(f"on: {rule!r} is no verdict, and no function that makes one of an exception")
    return dict(value)


@frozen
class Retry:
    """How failures of a handler are retried, in tenacity's own strategy objects.

    *attempts*: deliveries in all, after which the job is a dead letter (`None`: the queue's `max_attempts`).
    *wait*: any `wait_*` object, or seconds. *stop*: any `stop_*` object, asked besides *attempts*. *retry*: any
    `retry_if_*` object; an exception it does not want makes a dead letter at once. They are asked
    with a state that has `attempt_number`, `outcome`, `seconds_since_start` (since the first enqueue) and `idle_for`.
    *on*: exception types (the nearest counts), and as what a handler is taken that raised one, before all others are
    asked: `DeadLetter`, `Release`, `Complete`, `RetryLater(seconds)`, or a function from the exception to one of
    these, or to `None` for none.
    """

    attempts: int | None = None
    wait: Any = None
    stop: Any = None
    retry: Any = None
    on: On = field(default=None, converter=_on, hash=False)

    def __attrs_post_init__(self) -> None:
        if self.attempts is not None:
            count("attempts", self.attempts)
        for name in ("stop", "retry"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} must be one of tenacity's {name}_* objects, or None")
        if self.wait is not None and not callable(self.wait):
            seconds("wait", self.wait)


@frozen
class HandlerSettings:
    """One handler: its queue, its function, and how it runs."""

    queue: str
    function: Callable[..., Any]
    concurrency: int
    retry: Retry
    deadline: float | None
    queue_settings: QueueSettings
    codec: Any
    batch: bool = False
    max_size: int = 1
    max_wait: float = 0.0
    flow: Any = None
    persistent: bool = False
    grace: float = GRACE
    kinds: Mapping[str | None, HandlerSettings] = field(factory=dict[str | None, Any])
    """If they share the queue: its handlers by kind, `None` for the rest; then this one is what they have in common."""

    def __attrs_post_init__(self) -> None:
        count("concurrency", self.concurrency, most=10_000)
        count("max_size", self.max_size, most=10_000)
        if not callable(self.function):
            raise TypeError(f"a handler must be callable, {self.function!r} is not")
        if not isinstance(self.retry, Retry):
            raise TypeError(f"retry must be a Retry(...), not {type(self.retry).__name__}")
        if not isinstance(self.persistent, bool):
            raise TypeError(f"persistent must be a bool, not {type(self.persistent).__name__}")
        limits = {
            "deadline": self.deadline,
            "max_attempts": self.queue_settings.max_attempts,
            "attempts of its Retry": self.retry.attempts,
            "stop of its Retry": self.retry.stop,
        }
        for name, limit in limits.items() if self.persistent else ():
            if limit is not None:
                raise ConfigurationError(f"persistent: it never ends, so give no {name}")

    def takes(self, job: Job) -> HandlerSettings | None:
        """Which handler of those that share the queue takes *job*."""
        return self.kinds.get(job.headers.get(KIND)) or self.kinds.get(None)
