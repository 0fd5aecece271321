"""Policies for the rate of jobs, the retries of failed jobs, the fate of a known id, and the
durability of writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from math import ceil
from typing import Any, Literal, TypedDict

from attrs import field, frozen

from headrace._model.checks import (
    JOBS_PER_S_AT_MOST,
    count,
    delay,
    flag,
    headers,
    millis,
    names_meant,
    seconds,
    show_options,
)
from headrace._model.job import Claim, NewJob
from headrace.errors import Complete, ConfigurationError, DeadLetter, Release, RetryLater, Verdict


class Default(int):
    """A default number. A limit that was given elsewhere takes precedence."""


ATTEMPTS = Default(20)  # deliveries of a job in all: with the default backoff, about eight hours


def per(value: object) -> float:
    return seconds("per", value, least=0.001)


@names_meant
@frozen
class Rate:
    """A rate limit of *limit* jobs in *per* seconds, by the server's clock and over all workers
    of the queue.

    *key* is the name of a header. Each of its values has its own limit, and jobs without the header
    have none. Without *key* the limit is the whole queue's. It is a token bucket of *burst* tokens
    (default *limit*). After a quiet time so many jobs may start at once, and then one every `per /
    limit` seconds.

    In a queue with shards `key="headrace-key"` limits the jobs of each `key=`, which are in one
    shard. Any other limit needs *per_shard*. Each of S shards then admits `limit / S`. *burst* is
    divided too, but is at least one, so jobs in few shards are admitted more slowly. While the
    number of shards changes, old shards admit their shares in addition to the new ones, until they
    are drained.
    """

    limit: int
    per: float = field(default=1.0, converter=per)
    key: str | None = None
    burst: int | None = None
    per_shard: bool = False

    def __attrs_post_init__(self) -> None:
        flag("per_shard", self.per_shard)
        count("limit", self.limit, most=JOBS_PER_S_AT_MOST * 100)
        if self.step < 1000 / JOBS_PER_S_AT_MOST:
            raise ValueError(
                f"limit={self.limit} in {self.per:g} s: give at most {JOBS_PER_S_AT_MOST:,} jobs a second"
            )
        if self.burst is not None:
            count("burst", self.burst, most=JOBS_PER_S_AT_MOST * 100)
        if self.key is not None:
            headers({self.key: ""})

    @property
    def step(self) -> float:
        """Milliseconds until a token is available again."""
        return self.per * 1000 / self.limit

    @property
    def tokens(self) -> int:
        """The most tokens that the bucket holds."""
        return self.limit if self.burst is None else self.burst


DECLARED = re.compile(
    r"Rate\(limit=(\d+), per=([\d.e+-]+), key=(None|'.*?'|\".*?\"), burst=(None|\d+), per_shard=(\w+)\)"
)


def declared_rates(text: str) -> Iterator[tuple[int, float, str | None, int | None, bool]]:
    """Yield the fields of each rate limit in a declaration, in the order of `Rate`."""
    for limit, per_s, key, burst, per_shard in DECLARED.findall(text):
        yield (
            int(limit),
            float(per_s),
            None if key == "None" else key[1:-1],
            None if burst == "None" else int(burst),
            per_shard == "True",
        )


def bucket(rate: Rate, share: float) -> tuple[float, int]:
    """Return the milliseconds that a token takes, and the most tokens, for a shard with this
    *share* of all keys."""
    if not rate.per_shard:
        return rate.step, rate.tokens
    return divided(rate.step, rate.tokens, share)


def divided(step: float, tokens: int, share: float) -> tuple[float, int]:
    """Divide a bucket for a shard with this *share* of all keys. Return its milliseconds for a
    token, and the most tokens.
    """
    # shards of equal size differ by one key
    return step / share, max(1, ceil(tokens * share - 1e-6))


def room(most: int, share: float) -> int:
    """Return how many of *most* waiting jobs a shard may have that owns this *share* of all
    keys."""
    return -(-most // round(1 / share))  # shards of equal size differ by one key


def _period(value: object) -> int:
    return millis(seconds("seconds", value, zero=False))


@names_meant
@frozen
class Debounce:
    """A condition of an enqueue that postpones a job of the same id that has not begun. An
    example is `Debounce(5, max_wait=60)`.

    *seconds* is the delay of the job, from each enqueue on. *max_wait* is the number of seconds
    after its first enqueue by which it is due in any case. Both may be a `timedelta`. With
    *replace* the job also gets the payload, the headers and the priority of the latest enqueue. The
    receipt's `outcome` is `moved` or `replaced`. For a new job it is `added`.
    """

    seconds: float | timedelta
    max_wait: float | timedelta | None = field(default=None, kw_only=True)
    replace: bool = field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _period(self.seconds)
        if self.max_wait is not None:
            seconds("max_wait", self.max_wait, zero=False)
        flag("replace", self.replace)

    @property
    def terms(self) -> dict[str, int]:
        """The condition in the form that the script takes, with times in ms."""
        terms = {"debounce": _period(self.seconds)}
        if self.max_wait is not None:
            terms["max_wait"] = millis(seconds("max_wait", self.max_wait))
        return terms | {"replace": 1} if self.replace else terms


@names_meant
@frozen
class Throttle:
    """A condition of an enqueue that adds one job of an id, and drops later ones for *seconds*,
    which may be a `timedelta`.

    The receipt's `outcome` is `added`, then `present` while the job is there, or else `dropped`.
    """

    seconds: float | timedelta

    def __attrs_post_init__(self) -> None:
        _period(self.seconds)

    @property
    def terms(self) -> dict[str, int]:
        """The condition in the form that the script takes, in ms."""
        return {"throttle": _period(self.seconds)}


@names_meant
@frozen
class Replace:
    """A condition of an enqueue that replaces a job of the same id that has not begun.

    The job gets this payload, these headers, this priority and delay, and goes to the back. The
    receipt's `outcome` is `replaced`. For a new job it is `added`.
    """

    @property
    def terms(self) -> dict[str, int]:
        """The condition in the form that the script takes."""
        return {"replace": 1}


IfExists = Debounce | Throttle | Replace
On = Mapping[type[BaseException], Verdict | type[Verdict] | Callable[[Any], Verdict | None]]


def _on(value: On | None) -> On:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"on must map exception types to verdicts, not {type(value).__name__}")
    items: Any = value.items()  # of any type, without a type checker
    for kind, rule in items:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise TypeError(f"on: {kind!r} is no type of exceptions")
        if issubclass(kind, Verdict):
            raise ConfigurationError(f"on: {kind.__name__} says itself how its job ends")
        if kind is BaseException:
            raise ConfigurationError(
                "on: BaseException is every end of a handler: give Exception, or narrower classes"
            )
        if isinstance(rule, RetryLater):
            delay(rule.delay)
        elif isinstance(rule, type) and rule not in (DeadLetter, Release, Complete):
            raise ConfigurationError(
                f"on: {rule.__name__}: give DeadLetter, Release, Complete, or RetryLater(seconds)"
            )
        elif not isinstance(rule, Verdict) and not callable(rule):
            raise TypeError(
                f"on: {rule!r} is no verdict, and no function that makes one of an exception"
            )
    return dict(value)


@names_meant
@frozen
class Retry:
    """A policy for retrying failures of a handler, in tenacity's own strategy objects.

    *attempts* is the number of deliveries in all, after which the job is a dead letter. `None`
    means no end. If only one of *attempts* and `max_attempts` is given, it sets both. *wait* is any
    `wait_*` object, or seconds. The default is an exponential backoff with jitter from 1 s to 1 h,
    with which 20 attempts take about eight hours. *stop* is any `stop_*` object, and is asked
    besides *attempts*. *retry* is any `retry_if_*` object. An exception that it does not accept
    makes a dead letter at once. They are asked with a state that has `attempt_number`, `outcome`,
    `seconds_since_start` (since the first enqueue) and `idle_for`.

    *on* is a map from exception types to verdicts. A verdict is `DeadLetter`, `Release`,
    `Complete`, `RetryLater(seconds)`, or a function from the exception to one of these, or to
    `None` for no verdict. The map is asked before all others. Of several types that fit, the
    nearest base class counts.
    """

    attempts: int | None = ATTEMPTS
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


Full = Literal["raise", "block"]
Outcome = Literal["added", "present", "replaced", "moved", "dropped"]
UNIQUE = "headrace-unique"  # the header with the ms for which the id of a completed job stays taken
FULL = ("raise", "block")


class Conditions(TypedDict, total=False):
    """Keyword arguments of an enqueue, and fields of a `NewJob`, for a job whose id is known."""

    unique_for: float | timedelta | None
    if_exists: IfExists | None


with_conditions = show_options(Conditions, dict.fromkeys(Conditions.__annotations__))


def full(value: object) -> str:
    if value not in FULL:
        raise ConfigurationError(f"full={value!r:.100}: give 'raise' or 'block'")
    return str(value)


def conditional(job: NewJob[Any]) -> bool:
    return job.unique_for is not None or job.if_exists is not None


def unconditional(job: NewJob[Any]) -> NewJob[Any]:
    if conditional(job):
        raise ValueError("unique_for, if_exists: for enqueue and enqueue_many only")
    return job


def staying(claims: Sequence[Claim]) -> Iterator[str]:
    """Return the *claims* whose ids stay taken after completion, in the form that the script
    takes."""
    for number, claim in enumerate(claims, 1):
        ms = claim.job.headers.get(UNIQUE, "") if claim.named else ""
        if re.fullmatch("[1-9][0-9]{0,12}", ms):  # a foreign producer may write anything
            yield f"={number} {ms}"


def conditions(job: NewJob[Any], unique_for: float | None) -> dict[str, int]:
    """Check the conditions of a job, and return them in ms for the script. *unique_for* is the
    queue's.

    Raises `ValueError` for conditions that need an id, `TypeError` for a value that is no
    condition.
    """
    terms: dict[str, int] = {}
    if job.unique_for is not None:
        terms["unique"] = millis(seconds("unique_for", job.unique_for, zero=False))
    if job.if_exists is not None:
        if not isinstance(job.if_exists, IfExists):
            given = f"{job.if_exists!r:.100}"
            raise TypeError(
                f"if_exists={given}: give Debounce(seconds), Throttle(seconds) or Replace()"
            )
        terms |= job.if_exists.terms
    if terms and job.id is None:
        name = "unique_for" if job.if_exists is None else "if_exists"
        raise ValueError(f"{name}: give the job an id: it is about jobs of one id")
    if "debounce" in terms and job.delay is not None:
        raise ValueError(
            "if_exists=Debounce(...) and delay exclude each other: Debounce is the delay"
        )
    if "unique" not in terms and unique_for is not None and job.id is not None:
        terms["unique"] = millis(unique_for)
    return terms


@frozen
class Durability:
    """The places that must have a write before its call returns. They are replicas, and the
    primary's disk.
    """

    replicas: int = 0
    fsync: bool = False

    @classmethod
    def of(cls, value: object) -> Durability | None:
        """Read a text such as `fsync`. Raises `ValueError` or `TypeError` for anything else.

        The texts are "replicas:1", "fsync" and "replicas:1,fsync".
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise TypeError(
                f'durable must be a str, such as "replicas:1", not {type(value).__name__}'
            )
        replicas = 0
        fsync = False
        for part in value.split(","):
            if (number := re.fullmatch(r"replicas:([1-9]\d?)", part)) and not replicas:
                replicas = int(number[1])
            elif part == "fsync" and not fsync:
                fsync = True
            else:
                raise ValueError(
                    f'durable={value!r:.100}: give "replicas:1", "fsync" or "replicas:1,fsync"'
                )
        return cls(replicas, fsync)

    def __str__(self) -> str:
        return ",".join(
            [f"replicas:{self.replicas}"] * bool(self.replicas) + ["fsync"] * self.fsync
        )
