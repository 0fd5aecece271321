"""Validated options. Durations are float seconds. A bad option is refused before a call is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypedDict, cast

import attrs
from attrs import field, frozen

from headrace._model.checks import (
    FOREVER_S,
    LEVELS_AT_MOST,
    F,
    count,
    flag,
    refuse_unknown,
    seconds,
    several,
    show_options,
)
from headrace._model.isolation import Isolation
from headrace._model.job import KEY, Job
from headrace._model.policy import (
    ATTEMPTS,
    Default,
    Durability,
    Full,
    Rate,
    Retry,
    full as checked_full,
)
from headrace._model.shards import shard_count
from headrace._model.terms import (
    Limit,
    Named,
    Terms,
    Weights,
    fair as checked_fair,
    limits as checked_limits,
    value_of,
    weights as checked_weights,
)
from headrace.errors import ConfigurationError

KIND = "kind"  # the header by which a queue's handlers share its jobs
# options that are the queue's, not one user's
AGREED = (
    "max_attempts",
    "priorities",
    "rate",
    "ageing",
    "history",
    "trends",
    "max_waiting",
    "full",
    "unique_for",
    "ordered",
)
ATTEMPT = "headrace-attempt"  # the header with the trace context of the previous attempt
# seconds for which jobs of unknown kinds are put back, before they become dead letters
GRACE_S = 300.0


def _lease(value: object) -> float:
    return seconds("lease", value, zero=False)


def _result_ttl(value: object) -> float:
    return seconds("result_ttl", value, zero=False)


def _history_ttl(value: object) -> float:
    return seconds("history_ttl", value, zero=False)


def _ageing(value: object) -> float | None:
    return None if value is None else seconds("ageing", value, zero=False)


def _unique_for(value: object) -> float | None:
    return None if value is None else seconds("unique_for", value, zero=False)


def _heartbeat(value: object) -> float:
    return seconds("heartbeat", value, zero=False)


def _timeout(value: object) -> float:
    return seconds("timeout", value, zero=False)


def _durable(value: object) -> Durability | None:
    return Durability.of(value)


def _rates(value: object) -> tuple[Rate, ...]:
    return several("rate", Rate, value)


def _in_words(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


class BatchOptions(TypedDict, total=False):
    """Keyword arguments that become `QueueSettings`. These are the options of a batch handler,
    which `Queue` explains.
    """

    lease: float | timedelta
    max_attempts: int | None
    priorities: int
    dead_limit: int
    fenced: bool
    rate: Rate | Sequence[Rate] | None
    ageing: float | timedelta | None
    tracebacks: bool
    history: int | None
    history_ttl: float | timedelta
    trends: bool | None
    shards: int
    fair: str | None
    weights: Named | None
    limits: Limit | Sequence[Limit] | None


class HandlerOptions(BatchOptions, total=False):
    """Keyword arguments that become `QueueSettings`. These are the options of a handler."""

    result_ttl: float | timedelta
    ordered: bool


class QueueOptions(HandlerOptions, total=False):
    """Keyword arguments that become `QueueSettings`. These are the options of a queue."""

    timeout: float | timedelta
    max_waiting: int | None
    full: Full
    unique_for: float | timedelta | None
    durable: str | None


@frozen
class QueueSettings:
    """Options of a queue, as one client uses it. Durations are seconds."""

    lease: float = field(default=60.0, converter=_lease)
    max_attempts: int | None = ATTEMPTS
    priorities: int = 1
    dead_limit: int = 1000
    result_ttl: float = field(default=86400.0, converter=_result_ttl)
    fenced: bool = False
    rates: tuple[Rate, ...] = field(default=None, converter=_rates, alias="rate")
    ageing: float | None = field(default=None, converter=_ageing)
    tracebacks: bool = False
    timeout: float = field(default=45.0, converter=_timeout)  # as RETRY_BUDGET_S
    history: int | None = None
    history_ttl: float = field(default=7 * 86400.0, converter=_history_ttl)
    trends: bool | None = None
    max_waiting: int | None = None
    full: Full = "raise"
    unique_for: float | None = field(default=None, converter=_unique_for)
    durable: Durability | None = field(default=None, converter=_durable)
    shards: int = field(default=1, converter=shard_count)
    ordered: bool = False
    fair: str | None = field(default=None, converter=checked_fair)
    weights: Weights = field(default=None, converter=checked_weights)
    limits: tuple[Limit, ...] = field(default=None, converter=checked_limits)
    terms: Terms | None = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(
            self, "terms", Terms.of(self.fair, self.weights, self.limits, self.rates)
        )
        self._refuse_without_per_shard()
        if self.max_attempts is not None:
            count("max_attempts", self.max_attempts)
        count("priorities", self.priorities, most=LEVELS_AT_MOST)
        if self.ageing is not None and self.priorities == 1:
            raise ConfigurationError("ageing: for queues with priorities; give priorities=, too")
        if self.ageing is not None and self.terms is not None:
            raise ConfigurationError(
                "ageing: not with fair= or limits=, as jobs in lines keep their level: leave ageing= out, or give all "
                "jobs one level and more weight to some"
            )
        count("dead_limit", self.dead_limit, least=0)
        if self.history is not None:
            count("history", self.history, least=0, most=1_000_000)
        if self.max_waiting is not None:
            count("max_waiting", self.max_waiting)
        checked_full(self.full)
        for name in (
            "fenced",
            "tracebacks",
            "ordered",
            *([] if self.trends is None else ["trends"]),
        ):
            flag(name, getattr(self, name))
        if self.ordered and self.priorities > 1:
            raise ConfigurationError(
                "ordered: not with priorities, which are another order: leave out one of them"
            )
        if self.ordered and any(rate.key is not None for rate in self.rates):
            raise ConfigurationError(
                "ordered: not with Rate(key=…), which puts jobs off one by one: give a Rate without key"
            )

    def _refuse_without_per_shard(self) -> None:
        each = f"a script reaches one of {self.shards} shards"
        for rate in self.rates if self.shards > 1 else ():
            if rate.key is None and not rate.per_shard:
                raise ConfigurationError(
                    f"rate: {each}: give Rate(…, per_shard=True): each shard admits 1/{self.shards}"
                )
            if rate.key != KEY and not rate.per_shard:
                raise ConfigurationError(
                    f"rate: {each}, and the jobs of one {rate.key!r} may be in several: enqueue them with key=, and "
                    f"give Rate(…, key={KEY!r}), or per_shard=True: each shard admits 1/{self.shards}"
                )
        for limit in self.limits if self.shards > 1 else ():
            if limit.key != KEY and not limit.per_shard:
                raise ConfigurationError(
                    f"limits: {each}: give Limit(…, key={KEY!r}) for the jobs of each key=, or per_shard=True: each "
                    f"shard hands out 1/{self.shards}"
                )

    @classmethod
    def of(
        cls,
        caller: Callable[..., Any],
        options: QueueOptions | BatchOptions,
        kind: type = QueueOptions,
    ) -> QueueSettings:
        refuse_unknown(caller, options.keys() - _known(kind))
        return cls(**cast("QueueOptions", options))

    @classmethod
    def defaults(cls, kind: type = QueueOptions) -> dict[str, Any]:
        return {
            str(one.alias): one.default
            for one in attrs.fields(cls)
            if one.alias in kind.__annotations__
        }

    def declared(self) -> dict[str, str]:
        """Map each given option on which all users of a queue must agree to its value in words."""
        found = [(option, getattr(self, name), usual) for option, name, usual in _agreed_defaults()]
        said = {option: _in_words(value) for option, value, usual in found if value != usual}
        said |= {} if self.terms is None else self.terms.declared()
        return said if self.history is None else {**said, "history_ttl": f"{self.history_ttl:g}"}

    @property
    def keeps(self) -> bool:
        """Whether the declaration starts a history or trends. Such a one is sent before the first
        call, and repeated.
        """
        return self.history is not None or self.trends is not None

    def options(self) -> dict[str, Any]:
        return {option: getattr(self, name) for option, name in _attributes_by_option().items()}


# What settings are asked as a queue is made and declared is the same for all, and found once.


@cache
def _attributes_by_option() -> dict[str, str]:
    return {str(one.alias): one.name for one in attrs.fields(QueueSettings) if one.init}


@cache
def _known(kind: type) -> frozenset[str]:
    return frozenset(QueueSettings.defaults(kind))


@cache
def _agreed_defaults() -> list[tuple[str, str, Any]]:
    usual = QueueSettings().options()
    return [(option, _attributes_by_option()[option], usual[option]) for option in AGREED]


def with_options(kind: type = QueueOptions) -> Callable[[F], F]:
    return show_options(kind, QueueSettings.defaults(kind))


def at_once(number: object, hint: str = "") -> int:
    return count("concurrency", number, most=10_000, hint=hint)


def _max_outage(value: object) -> float:
    return FOREVER_S if value is None else seconds("max_outage", value, zero=False)


@frozen
class WorkerSettings:
    """A worker's heartbeat, timeout and longest outage, in seconds."""

    heartbeat: float = field(default=2.0, converter=_heartbeat)
    timeout: float = field(default=10.0, converter=_timeout)
    max_outage: float = field(default=None, converter=_max_outage)
    durable: Durability | None = field(default=None, converter=_durable)

    def __attrs_post_init__(self) -> None:
        if self.timeout < 2 * self.heartbeat:
            raise ValueError(
                f"timeout={self.timeout:g}: give at least twice the heartbeat ({self.heartbeat:g}), "
                "or one late beat looks like a death"
            )


@frozen
class HandlerSettings:
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
    same: bool = False
    flow: Any = None
    persistent: bool = False
    grace: float = GRACE_S
    encode: Callable[[Any], Any] | None = None  # of results, before the codec
    isolation: Isolation | None = None
    build: str = ""  # of the worker
    runs: str = "any"  # that it continues, by the build that began them
    # describes the children of isolated handlers, for `ChildFacts`
    children: Callable[[], Sequence[Sequence[Any]]] | None = None
    # middleware, the first outermost
    around: Sequence[Callable[[Any, Callable[[], Any]], Any]] = ()
    kinds: Mapping[str | None, HandlerSettings] = field(factory=dict[str | None, Any])
    """The handlers of a queue that handlers share by kind. `None` is the handler of the rest. This
    one then holds their common options.
    """

    def __attrs_post_init__(self) -> None:
        at_once(self.concurrency)
        count("max_size", self.max_size, most=10_000)
        if not callable(self.function):
            raise TypeError(f"a handler must be callable, {self.function!r} is not")
        if not isinstance(self.retry, Retry):
            raise TypeError(f"retry must be a Retry(...), not {type(self.retry).__name__}")
        flag("persistent", self.persistent)
        flag("same", self.same)
        if self.same and self.queue_settings.fair is None:
            raise ConfigurationError(
                "same: its batches are of one value of fair=, which is missing"
            )
        if self.queue_settings.ordered and (self.batch or self.persistent or self.flow is not None):
            single = "persistent" if self.persistent else "the stage of a flow"
            what = "a batch handler" if self.batch else single
            raise ConfigurationError(
                f"ordered: not for {what}: one job of a key at a time is for @worker.handler"
            )
        if self.isolation is not None and self.persistent:
            raise ConfigurationError("isolate: not for a persistent handler, which never ends")
        limits = {
            "deadline": self.deadline,
            "max_attempts": self.queue_settings.max_attempts,
            "attempts of its Retry": self.retry.attempts,
            "stop of its Retry": self.retry.stop,
        }
        for name, limit in limits.items() if self.persistent else ():
            if limit is not None and not isinstance(limit, Default):
                raise ConfigurationError(f"persistent: it never ends, so give no {name}")

    def limited(self) -> HandlerSettings:
        """Decide how often its jobs are delivered, from `max_attempts` and each `Retry`.

        A missing one takes the value of the other. If both are missing, both are 20 (no limit for
        persistent jobs). Failures end at the smaller value.
        """
        default = None if self.persistent else int(ATTEMPTS)
        most = self.queue_settings.max_attempts

        def attempts(handler: HandlerSettings) -> int | None:
            own = handler.retry.attempts
            if isinstance(own, Default):
                return default if isinstance(most, Default) else most
            return own if most is None or isinstance(most, Default) else min(own or most, most)

        every = list(self.kinds.values()) or [self]
        limits = list(map(attempts, every))
        if isinstance(most, Default):
            most = (
                max((limit for limit in limits if limit is not None), default=None)
                if None not in limits
                else None
            )
        settings = attrs.evolve(self.queue_settings, max_attempts=most)
        some = [
            attrs.evolve(
                handler, retry=attrs.evolve(handler.retry, attempts=limit), queue_settings=settings
            )
            for handler, limit in zip(every, limits, strict=True)
        ]
        if not self.kinds:
            return some[0]
        kinds = dict(zip(self.kinds, some, strict=True))
        return attrs.evolve(self, kinds=kinds, queue_settings=settings)

    def announced_kinds(self) -> list[str]:
        """List the kinds of jobs that have a handler, in the form of a registration, which is ''
        for all."""
        return (
            [""]
            if None in self.kinds or not self.kinds
            else [kind for kind in self.kinds if kind is not None]
        )

    def fair_value(self, job: Job) -> tuple[str | None, ...]:
        terms = self.queue_settings.terms
        return () if terms is None else value_of(terms.path, job.headers)

    def takes(self, job: Job) -> HandlerSettings | None:
        """Return the handler for *job* among the handlers that share the queue. It is `None` if its
        kind has no handler.
        """
        return self.kinds.get(job.headers.get(KIND)) or self.kinds.get(None)
