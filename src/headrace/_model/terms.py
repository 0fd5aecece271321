"""The terms of a queue decide which jobs come next, and how many run at once. Bad terms are
refused before a call is sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, cast
from urllib.parse import quote, unquote

from attrs import field, frozen

from headrace._model.checks import INTEGER_AT_MOST, flag, headers, names_meant, several
from headrace._model.job import KEY, SHOWN_CHARACTERS
from headrace._model.policy import Rate, room
from headrace.errors import ConfigurationError

# of the headers that begin so, only `headrace-key` holds a value of the user
RESERVED = "headrace-"
# of one queue, and values with a limit of their own: they are sent in one call
WEIGHTS_AT_MOST = 10_000
VALUE_BYTES = 500  # of a value count; a longer one is cut
BUSIEST_AT_MOST = 10  # values whose shares are shown
# the options that a queue with terms declares with them
IN_TERMS = ("fair", "limits", "each", "rate", "weights")
LEAST, MOST = 0.001, 1_000_000.0  # of weights and costs: starts have 16 digits, in ms


def _header(option: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{option} must be the name of a header, not {type(name).__name__}")
    if name.startswith(RESERVED) and name != KEY:
        raise ConfigurationError(
            f"{option}={name!r}: headers that begin with {RESERVED!r} are reserved, except {KEY!r}"
        )
    try:
        headers({name: ""})
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None
    return name


def positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    number = float(value) if abs(value) <= MOST else math.inf
    if not LEAST <= number <= MOST:  # neither is NaN
        raise ConfigurationError(
            f"{name}={value!r:.100}: give a number from {LEAST:g} to {MOST:,.0f}"
        )
    return number


def _some(name: str, value: Mapping[Any, object]) -> Mapping[Any, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must map values to numbers, not {value!r:.100}")
    if len(value) > WEIGHTS_AT_MOST:
        raise ConfigurationError(
            f"{name}: {len(value):,} of them; give at most {WEIGHTS_AT_MOST:,}"
        )
    return value


@names_meant
@frozen
class Limit:
    """A limit of concurrency. At most *limit* jobs are leased at a time, over all workers of the
    queue.

    *key* is the name of a header, or of a task's argument. Each of its values has its own limit,
    and jobs without it have none. Without *key* the limit is the whole queue's. *each* has the
    limits of some values of *key*, in place of *limit*, as in `Limit(20, key="tenant",
    each={"free": 2})`. It has 10,000 values at most, each of 500 bytes at most. Like *limit* it may
    change at any time. The latest declaration counts.

    In a queue with shards `key="headrace-key"` limits the jobs of each `key=`, which are in one
    shard. Any other limit needs *per_shard*. Each of S shards then hands out `limit / S`, rounded
    up. Raises `ConfigurationError` for a limit below 1, the name of a reserved header, and *each*
    without *key* or with too much. Raises `TypeError` for other types.
    """

    limit: int
    key: str | None = None
    per_shard: bool = False
    each: Mapping[str, int] = field(factory=dict[str, int], hash=False)

    def __attrs_post_init__(self) -> None:
        flag("per_shard", self.per_shard)
        _some("each", self.each)
        for value in self.each:
            if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"each: {value!r:.100} must be a str")
            if len(value.encode()) > VALUE_BYTES:
                raise ConfigurationError(f"each: {value!r:.100}: give at most {VALUE_BYTES} bytes")
        numbers = [
            ("limit", self.limit),
            *((f"each: {value!r:.100}", limit) for value, limit in self.each.items()),
        ]
        for name, number in numbers:
            if isinstance(number, bool) or not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{name} must be an int, not {type(number).__name__}")
            if not 1 <= number <= INTEGER_AT_MOST:
                raise ConfigurationError(
                    f"{name}={number!r:.100}: give at least 1; pause the queue to hand out no job"
                )
        if self.key is not None:
            _header("key", self.key)
        elif self.each:
            raise ConfigurationError("each: its values are of the header key=, which is missing")
        object.__setattr__(self, "each", dict(self.each))

    def slots(self, share: float, value: str | None = None) -> int:
        """Return how many jobs, of a *value* of its own, a shard with this *share* of all keys may
        hand out."""
        most = self.limit if value is None else self.each[value]
        return room(most, share) if self.per_shard else most


def limits(value: object) -> tuple[Limit, ...]:
    given = sorted(several("limits", Limit, value), key=lambda one: one.key or "")
    for one, other in pairwise(given):
        if one.key == other.key:
            which = "the whole queue" if one.key is None else f"key={one.key!r}"
            raise ConfigurationError(
                f"limits: {one.limit} and {other.limit} for {which}: give one of them"
            )
    return tuple(given)


def fair(value: object) -> str | None:
    """Check the path of `fair`, which is one header, or two that are joined by `/`."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(
            f"fair must be the name of a header, such as 'tenant' or 'org/user', not {value!r:.100}"
        )
    names = value.split("/")
    if len(names) > 2:  # a value, and the values in it
        raise ConfigurationError(f"fair={value!r:.200}: give one header, or two as in 'org/user'")
    for name in names:
        _header("fair", name)
    if len(set(names)) < len(names):
        raise ConfigurationError(f"fair={value!r:.200}: give two headers that differ")
    return value


Value = tuple[str | None, ...]
Weights = tuple[tuple[tuple[str, ...], float], ...]
# by values, and pairs of values; keys of mappings are invariant, and users have either
Named = Mapping[Any, float]


def weights(value: object) -> Weights:
    if value is None:
        return ()
    given: Any = value
    if isinstance(value, tuple) and all(isinstance(row, tuple) for row in given):
        given = dict(given)  # checked before
    made: dict[tuple[str, ...], float] = {}
    for name, weight in _some("weights", given).items():
        path: Any = (name,) if isinstance(name, str) else name
        if not isinstance(path, tuple) or not all(
            isinstance(part, str) for part in cast("tuple[object, ...]", path)
        ):
            raise TypeError(f"weights: {name!r:.100} must be a str, or a tuple of two")
        if path in made:
            raise ConfigurationError(f"weights: {name!r:.100} is given twice")
        made[path] = positive(f"weights: {name!r:.100}", weight)
    return tuple(sorted(made.items()))


@frozen
class Terms:
    """The terms that a program declares. A queue has one `structure`. Its numbers follow the
    latest declaration.
    """

    path: tuple[str, ...]
    weights: Weights = field(hash=False)  # there may be many, and each lease call looks terms up
    limits: tuple[Limit, ...]
    rates: tuple[str, ...]
    """The keys of the rate limits. They tell lines apart, too."""
    structure: str = field(init=False)
    names: tuple[str, ...] = field(init=False)
    """The headers of `fair` and `limits`, for which tasks copy arguments."""

    def __attrs_post_init__(self) -> None:
        keys = [one.key or "" for one in self.limits]
        limits = (_word(key) if key else "*" for key in keys)
        words = (
            "/".join(map(_word, self.path)),
            ",".join(limits),
            ",".join(map(_word, self.rates)),
        )
        object.__setattr__(self, "structure", "fair={} limits={} rates={}".format(*words))
        object.__setattr__(self, "names", tuple(dict.fromkeys([*self.path, *filter(None, keys)])))

    @classmethod
    def of(
        cls, fair: str | None, weights: Weights, limits: Sequence[Limit], rates: Sequence[Rate]
    ) -> Terms | None:
        if weights and fair is None:
            raise ConfigurationError("weights: they are of the values of fair=, which is missing")
        if fair is None and not limits:
            return None
        path = () if fair is None else tuple(fair.split("/"))
        for name, _ in weights:
            if not 1 <= len(name) <= len(path):
                known = "a value" if len(path) == 1 else "a value, or a tuple of two values"
                raise ConfigurationError(f"weights: {name!r:.100}: with fair={fair!r} give {known}")
        keys = sorted({rate.key for rate in rates if rate.key is not None})
        return cls(path, weights, tuple(limits), tuple(keys))

    def declared(self) -> dict[str, str]:
        """Map the given options to their values in words, for comparisons and views."""
        own = [
            f"{most} of {one.key} {value}"
            for one in self.limits
            for value, most in sorted(one.each.items())
        ]
        words = {
            "fair": "/".join(self.path),
            "weights": _shown(
                [f"{'/'.join(name)}: {weight:g}" for name, weight in self.weights], "weights"
            ),
            "limits": ", ".join(
                f"{one.limit} of {one.key}" if one.key else f"{one.limit}" for one in self.limits
            ),
            "each": _shown(own, "limits"),
        }
        return {option: text for option, text in words.items() if text}


def value_of(path: Sequence[str], headers: Mapping[str, str]) -> Value:
    return tuple(map(headers.get, path))


def _shown(words: Sequence[str], what: str) -> str:
    """Return *words*, or their number and digest if they are many. The server keeps 200 bytes."""
    shown = ", ".join(words)
    if len(shown.encode()) <= SHOWN_CHARACTERS:
        return shown
    return f"{len(words)} {what} ({sha256(shown.encode()).hexdigest()[:8]})"


def _word(name: str) -> str:
    return quote(name, safe="")


@frozen
class Structure:
    """The keys of a queue's terms, as the server has them in words. They are the path of `fair`
    and the keys of limits.
    """

    text: str = ""
    path: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    """`''` is the limit of the whole queue."""
    rates: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Structure:
        """Read a structure. An empty or unreadable text means a queue without terms."""
        if (found := _STRUCTURE.fullmatch(text)) is None:
            return cls()
        path, limits, rates = found.groups()
        keys = tuple("" if key == "*" else unquote(key) for key in limits.split(",") if key)
        return cls(text, _unquoted(path, "/"), keys, _unquoted(rates, ","))

    def value(self, value: object) -> dict[str, str | None]:
        """Map headers to the parts of a value that an operator names.

        A value is a text, or a tuple as in `Share.value`. Its headers are in `fair`, or without it
        the header of the only limit. Raises `ConfigurationError` if the queue has no such values.
        """
        path = self.path or tuple(filter(None, self.limits))
        if not path or len(path) > max(1, len(self.path)):
            raise ConfigurationError(
                f"value={value!r:.100}: this queue has no fair=, and no single Limit with a key=, as far as its "
                "workers have declared: give fair= to the Queue of its workers, or call admin.redeclare()"
            )
        parts: Any = tuple(value.split("/", len(path) - 1)) if isinstance(value, str) else value
        texts = isinstance(parts, tuple) and all(
            part is None or isinstance(part, str) for part in cast("Any", parts)
        )
        if not texts or not 1 <= len(cast("tuple[object, ...]", parts)) <= len(path):
            raise ConfigurationError(
                f"value={value!r:.100}: give a value of {'/'.join(path)!r}, as shares() names it"
            )
        return dict(zip(path, cast("tuple[str | None, ...]", parts), strict=False))

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.path, *filter(None, self.limits)]))


_STRUCTURE = re.compile(r"fair=(\S*) limits=(\S*) rates=(\S*)")


def _unquoted(text: str, separator: str) -> tuple[str, ...]:
    return tuple(unquote(word) for word in text.split(separator) if word)


def in_words(structure: str) -> str:
    return f"`{structure}`" if structure else "none"


@frozen
class Share:
    """The share of one value of `fair`. It has its `running` and `waiting` jobs, and how long
    jobs waited for their lease.

    `value` has a text for each header of `fair`, and `None` for a missing one. `p50` and `p95` are
    the approximate dwells of its jobs, in seconds, or `None` if none was leased yet. `used` is the
    workers' time in seconds, of which each minute ago counts half.
    """

    value: tuple[str | None, ...]
    running: int
    waiting: int
    p50: float | None
    p95: float | None
    used: float
    weight: float = 1.0
    """Its weight among the values of the queue."""
    most: int | None = None
    """The number of its jobs that may run, if a limit of the header of `fair` has one for this
    value alone."""
    oldest: float | None = None
    """The seconds since its oldest waiting job might run. It is `None` if none waits in its
    line."""
    paused: bool = False
    """Whether it is paused, alone or with its organisation."""
    hour: tuple[tuple[int, int], ...] = ()
    """The numbers of its jobs that completed, and of attempts that failed, in each minute of the
    last hour, the oldest first. Its workers report every ten seconds. Only `headrace.inspect` reads
    them. It is empty if none ended, or if 50 other values had more jobs in each minute."""

    @property
    def name(self) -> str:
        """The value in words, such as `acme/ada`. A missing header is `-`."""
        return "/".join("-" if part is None else part for part in self.value)

    def __add__(self, other: Share) -> Share:
        """Join the shares of a value in two shards. It keeps the longer one of their dwells and
        ages."""
        return Share(
            self.value,
            self.running + other.running,
            self.waiting + other.waiting,
            _longer(self.p50, other.p50),
            _longer(self.p95, other.p95),
            self.used + other.used,
            self.weight,
            ((self.most or 0) + (other.most or 0)) or None,
            _longer(self.oldest, other.oldest),
            self.paused or other.paused,
        )


def _longer(*times: float | None) -> float | None:
    return max((one for one in times if one is not None), default=None)


def cost(value: object) -> str:
    return f"{positive('cost', value):.10g}"


def parameters(names: Iterable[str], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the headers that a task's job has for the *names* of its terms, from its packed
    arguments.

    An argument that is `None` is none. Raises `TypeError` for a value that is no text, number or
    bool.
    """
    for name in names:
        value = arguments.get(name)
        if isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, (str, int, float)):
            yield name, str(value)
        elif value is not None:
            raise TypeError(
                f"{name}: the queue tells jobs apart by this argument, so it must be text, a number or a bool, not "
                f"{type(value).__name__}"
            )


@frozen
class SlotView:
    """A value of a limit's header. `taken` is the number of its slots that leased jobs hold.
    `waits` is whether other jobs wait for one. `places` is its own limit, if it has one.
    """

    value: str
    taken: int
    waits: bool
    places: int | None = None


@frozen
class LimitView:
    """A limit by the header `key`, with `places` for each value, and the ten `values` that have
    taken the most slots. `more` is whether there are other values.
    """

    key: str
    places: int
    values: tuple[SlotView, ...]
    more: bool = False


@frozen
class Tenants:
    """The values between which a queue is `fair`, by the headers `fair`, with the `shares` of
    the busiest. `limits` are pairs of a header (`None` for the whole queue) and a number of
    jobs. `leased` jobs run now. `slots` belong to the limits by a header.
    """

    queue: str
    fair: tuple[str, ...]
    limits: tuple[tuple[str | None, int], ...]
    shares: tuple[Share, ...]
    leased: int
    slots: tuple[LimitView, ...] = ()

    @classmethod
    def of(
        cls,
        queue: str,
        declared: Mapping[str, str],
        shares: Sequence[Share],
        leased: int,
        slots: Sequence[LimitView] = (),
    ) -> Tenants:
        """Read the terms in the words of their declaration. Limits that can't be read are left
        out."""
        words = map(
            re.compile(r"(\d+)(?: of (.+))?").fullmatch, declared.get("limits", "").split(", ")
        )
        limits = tuple((word[2], int(word[1])) for word in words if word is not None)
        return cls(queue, fair_by(declared), limits, tuple(shares), leased, tuple(slots))

    @property
    def used(self) -> float:
        """The seconds of the workers' time that the shown values had of late."""
        return sum(share.used for share in self.shares)

    @property
    def most(self) -> int | None:
        """The number of jobs of one value that may run, if a limit has the header of `fair`, or
        else `None`.
        """
        return next((limit for key, limit in self.limits if self.fair == (key,)), None)


def fair_by(declared: Mapping[str, str]) -> tuple[str, ...]:
    return Structure.read(declared.get("terms", "")).path
