"""Validated options; durations are float seconds. A bad one is refused here, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from attrs import field, frozen

from headrace._model.checks import (
    FOREVER,
    LEVELS_AT_MOST,
    count,
    seconds,
)
from headrace._model.job import Job
from headrace._model.policy import Rate, Retry
from headrace.errors import ConfigurationError

KIND = "kind"  # the header by which a queue's handlers share its jobs
ATTEMPT = "headrace-attempt"  # the header with the trace context of the previous attempt
GRACE_S = 300.0  # seconds for which jobs of unknown kinds are put back, before they become dead letters


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
    """Options of a queue, as one client uses it. Durations are seconds."""

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
        count("priorities", self.priorities, most=LEVELS_AT_MOST)
        if self.ageing is not None and self.priorities == 1:
            raise ConfigurationError("ageing: for queues with priorities; give priorities=, too")
        count("dead_limit", self.dead_limit, least=0)
        if not isinstance(self.fenced, bool):
            raise TypeError(f"fenced must be a bool, not {type(self.fenced).__name__}")


def _max_outage(value: object) -> float:
    return FOREVER if value is None else seconds("max_outage", value, zero=False)


@frozen
class WorkerSettings:
    """A worker's heartbeat, timeout and longest outage, in seconds."""

    heartbeat: float = field(default=2.0, converter=_heartbeat)
    timeout: float = field(default=10.0, converter=_timeout)
    max_outage: float = field(default=None, converter=_max_outage)

    def __attrs_post_init__(self) -> None:
        if self.timeout < 2 * self.heartbeat:
            raise ValueError(
                f"timeout={self.timeout:g}: give at least twice the heartbeat ({self.heartbeat:g}), "
                "or one late beat looks like a death"
            )


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
    grace: float = GRACE_S
    kinds: Mapping[str | None, HandlerSettings] = field(factory=dict[str | None, Any])
    """Of a queue that handlers share by kind: its handlers, `None` for the rest; this one then holds their common
    options.
    """

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
        """Return the handler for *job* among those that share the queue, or `None` if its kind has none."""
        return self.kinds.get(job.headers.get(KIND)) or self.kinds.get(None)
