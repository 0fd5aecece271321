"""The checked `OPTIONS` of an entry of `TASKS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from attrs import field, fields, frozen

from headrace import Limit, Rate, Retry
from headrace.errors import ConfigurationError
from headrace.platform import LIMITS, Address, check_names, checks, recurrence, told_apart
from headrace.sql.dialects import schema_name

PRIORITY_AT_MOST = 100  # of a task, and with a minus the least
BANDS = 5  # levels, unless the settings say otherwise
TIMEOUT_S = 5.0  # seconds that a request waits for a server that is away


def retry_of(value: Any) -> Retry:
    if isinstance(value, Retry):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(
            f"retry must be a mapping, such as {{'attempts': 5}}, not {type(value).__name__}"
        )
    given = dict(cast("Mapping[str, Any]", value))
    if unknown := given.keys() - {"attempts", "wait"}:
        raise ValueError(f"retry: {min(unknown)!r} is unknown; it takes attempts and wait")
    return Retry(**given)


def _plain(name: str, kind: type[Any], example: str, value: Any) -> tuple[Any, ...]:
    """Make a tuple of *kind* from one value or several, which are objects, or mappings of their
    arguments.
    """
    some: list[Any] = []
    if isinstance(value, (list, tuple)):
        some = list(cast("Sequence[Any]", value))
    elif value is not None:
        some = [value]
    known = [str(one.alias) for one in fields(kind) if one.init]
    made: list[Any] = []
    for one in some:
        if isinstance(one, kind):
            made.append(one)
            continue
        if not isinstance(one, Mapping):
            raise TypeError(
                f"{name} must be a mapping, such as {example}, or a list of them, not {type(one).__name__}"
            )
        given = dict(cast("Mapping[str, Any]", one))
        if unknown := given.keys() - set(known):
            raise ValueError(f"{name}: {min(unknown)!r} is unknown; it takes {', '.join(known)}")
        made.append(kind(**given))
    return tuple(made)


def _rate(value: Any) -> tuple[Rate, ...]:
    return _plain("rate", Rate, "{'limit': 10, 'per': 60}", value)


def _limits(value: Any) -> tuple[Limit, ...]:
    return _plain("limits", Limit, "{'limit': 2, 'key': 'customer'}", value)


def _schedules(value: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, Mapping):
        raise TypeError(
            f"schedules must map paths of tasks to {{'cron': '0 3 * * *'}}, not {type(value).__name__}"
        )
    made: list[tuple[str, Any]] = []
    for path, its in cast("Mapping[str, Any]", value).items():
        if not isinstance(its, Mapping) or its.keys() - {"every", "cron", "tz", "missed"}:
            wrong = (
                sorted(cast("Mapping[str, Any]", its))
                if isinstance(its, Mapping)
                else type(its).__name__
            )
            raise ValueError(
                f"schedules: {path!r} takes a mapping of every or cron, tz and missed, not {wrong}"
            )
        its = cast("Mapping[str, Any]", its)
        try:
            when = recurrence(
                its.get("every"), its.get("cron"), its.get("tz"), its.get("missed", "once")
            )
            made.append((checks.text("path", path), when))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"schedules: {path!r}: {error}") from None
    return tuple(made)


def _timeout(value: object) -> float:
    return checks.seconds("timeout", value, zero=False)


def deadline_of(value: object) -> float | None:
    return None if value is None else checks.seconds("deadline", value, zero=False)


def _poll(value: object) -> float | None:
    return None if value is None else checks.seconds("poll", value, zero=False)


def _result_ttl(value: object) -> float:
    return checks.seconds("result_ttl", value, zero=False)


@frozen
class Options:
    """The options of a backend.

    *url*: the server's URL. Without it, the environment's is used. *retry*: attempts at a task that
    fails, and the seconds between them. Without it there is one attempt, as Django's own backends
    make. *outbox*: tasks are written as rows of *database*, in its transaction. *on_commit*:
    otherwise, tasks are sent when the transaction of *database* is committed. *priorities*: levels
    for Django's priorities. *concurrency*: tasks at once, of each queue in each process.
    *deadline*: seconds that a task may take. *history*: how many ended tasks each queue keeps, for
    *result_ttl* seconds. *timeout*: seconds that a call may wait for a server that is away. *rate*,
    *limits*, *fair* and *max_waiting*: of each queue, as `headrace.Queue` has them; their keys are
    names of arguments, or `kind`. *schedules*: when tasks recur, by their paths. *schema*: of
    PostgreSQL, in which the outbox is. *relay_database*: the alias by which workers relay, where
    *database* goes through a pooler. *poll*: seconds between two looks for rows.
    """

    url: str | None = None
    namespace: str = "headrace"
    retry: Retry = field(default=Retry(1), converter=retry_of)
    outbox: bool = False
    on_commit: bool = True
    database: str = "default"
    priorities: int = BANDS
    concurrency: int = 4
    deadline: float | None = field(default=None, converter=deadline_of)
    history: int = 10_000
    result_ttl: float = field(default=7 * 86400.0, converter=_result_ttl)
    timeout: float = field(default=TIMEOUT_S, converter=_timeout)
    rate: tuple[Rate, ...] = field(default=(), converter=_rate)
    limits: tuple[Limit, ...] = field(default=(), converter=_limits)
    fair: str | None = None
    max_waiting: int | None = None
    schedules: tuple[tuple[str, Any], ...] = field(factory=cast("Any", dict), converter=_schedules)
    schema: str | None = field(default=None, converter=schema_name)
    relay_database: str | None = None
    poll: float | None = field(default=None, converter=_poll)
    told_apart: tuple[str, ...] = field(init=False, eq=False)
    """Arguments of tasks that become headers, as the queues tell jobs apart by them."""

    def __attrs_post_init__(self) -> None:
        for name in ("outbox", "on_commit"):
            checks.flag(name, getattr(self, name))
        for name in ("database", "namespace"):
            checks.text(name, getattr(self, name))
        for name in ("url", "relay_database"):
            if getattr(self, name) is not None:
                checks.text(name, getattr(self, name))
        check_names(namespace=self.namespace)
        checks.count("priorities", self.priorities, most=LIMITS.levels)
        checks.count("concurrency", self.concurrency)
        checks.count("history", self.history, most=1_000_000)
        object.__setattr__(self, "told_apart", told_apart(self.of_queue()))

    def of_queue(self) -> dict[str, Any]:
        return {
            "priorities": self.priorities,
            "history": self.history,
            "history_ttl": self.result_ttl,
            "result_ttl": self.result_ttl,
            "tracebacks": True,
            "timeout": self.timeout,
            "rate": self.rate,
            "limits": self.limits,
            "fair": self.fair,
            "max_waiting": self.max_waiting,
        }

    def relayed_by(self) -> str:
        return self.relay_database or self.database

    def place(self) -> tuple[str, str]:
        """Return the server and the namespace of the queues. Raises `ConfigurationError` if no
        server is named."""
        return Address(self.url).shown.removesuffix("/0").rstrip("/"), self.namespace

    def differing(self, other: Options) -> list[str]:
        """List the options in which this alias and *other* differ, without the server's address."""
        names = [one.name for one in fields(Options) if one.eq and one.name != "url"]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    @classmethod
    def of(cls, alias: str, given: Any) -> Options:
        """Check `OPTIONS` of the backend *alias*. Raises `ConfigurationError`, which names the
        setting to change.
        """
        where = f"TASKS[{alias!r}]['OPTIONS']"
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"{where} must be a dict, not {type(given).__name__}")
        mapping = cast("Mapping[str, Any]", given)
        known = [one.name for one in fields(cls) if one.init]
        for name in mapping:
            if name not in known:
                close = get_close_matches(str(name), known, 1)
                meant = (
                    f": did you mean {close[0]!r}?" if close else f": it takes {', '.join(known)}"
                )
                raise ConfigurationError(f"{where} has an unknown {name!r}{meant}")
        try:
            return cls(**mapping)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{where}: {error}") from None

    def level(self, priority: int) -> int:
        """Return the level of a task's *priority*. Equal bands of -100 to 100 are levels, the
        highest first.
        """
        span = 2 * PRIORITY_AT_MOST + 1
        return min(self.priorities - 1, (PRIORITY_AT_MOST - priority) * self.priorities // span)
