"""The options of a backend: `OPTIONS` of an entry of `TASKS`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast

from attrs import field, fields, frozen

from headrace._model import checks
from headrace._model.checks import LEVELS_AT_MOST
from headrace._model.policy import Retry
from headrace._protocol.keys import Keys
from headrace.errors import ConfigurationError

PRIORITY_AT_MOST = 100  # of a task, and with a minus the least
BANDS = 5  # levels, unless the settings say otherwise


def _retry(value: Any) -> Retry:
    """Make the policy from its mapping."""
    if isinstance(value, Retry):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"retry must be a mapping, such as {{'attempts': 5}}, not {type(value).__name__}")
    given = dict(cast("Mapping[str, Any]", value))
    if unknown := given.keys() - {"attempts", "wait"}:
        raise ValueError(f"retry: {min(unknown)!r} is unknown; it takes attempts and wait")
    return Retry(**given)


def _deadline(value: object) -> float | None:
    return None if value is None else checks.seconds("deadline", value, zero=False)


def _result_ttl(value: object) -> float:
    return checks.seconds("result_ttl", value, zero=False)


@frozen
class Options:
    """The options of a backend.

    *url*: of the server; without it, the environment's. *retry*: attempts at a task that fails, and the seconds between
    them; without it, one attempt, as Django's own backends make. *outbox*: tasks are written as rows of *database*, in
    its transaction. *on_commit*: otherwise, tasks are sent when the transaction of *database* is committed.
    *priorities*: levels for Django's priorities. *concurrency*: tasks at once, of each queue in each process.
    *deadline*: seconds that a task may take. *history*: how many ended tasks each queue keeps, for *result_ttl*
    seconds.
    """

    url: str | None = None
    namespace: str = "headrace"
    retry: Retry = field(default=Retry(1), converter=_retry)
    outbox: bool = False
    on_commit: bool = True
    database: str = "default"
    priorities: int = BANDS
    concurrency: int = 4
    deadline: float | None = field(default=None, converter=_deadline)
    history: int = 10_000
    result_ttl: float = field(default=7 * 86400.0, converter=_result_ttl)

    def __attrs_post_init__(self) -> None:
        for name in ("outbox", "on_commit"):
            checks.flag(name, getattr(self, name))
        for name in ("database", "namespace"):
            checks.text(name, getattr(self, name))
        if self.url is not None:
            checks.text("url", self.url)
        Keys.of("any", self.namespace)
        checks.count("priorities", self.priorities, most=LEVELS_AT_MOST)
        checks.count("concurrency", self.concurrency)
        checks.count("history", self.history, most=1_000_000)

    @classmethod
    def of(cls, alias: str, given: Any) -> Options:
        """Check `OPTIONS` of the backend *alias*. Raises `ConfigurationError`, which says where to change what."""
        where = f"TASKS[{alias!r}]['OPTIONS']"
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"{where} must be a dict, not {type(given).__name__}")
        mapping = cast("Mapping[str, Any]", given)
        known = [one.name for one in fields(cls)]
        for name in mapping:
            if name not in known:
                close = get_close_matches(str(name), known, 1)
                meant = f": did you mean {close[0]!r}?" if close else f": it takes {', '.join(known)}"
                raise ConfigurationError(f"{where} has an unknown {name!r}{meant}")
        try:
            return cls(**mapping)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{where}: {error}") from None

    def level(self, priority: int) -> int:
        """Return the level of a task's *priority*: equal bands of -100 to 100, the highest first."""
        span = 2 * PRIORITY_AT_MOST + 1
        return min(self.priorities - 1, (PRIORITY_AT_MOST - priority) * self.priorities // span)
