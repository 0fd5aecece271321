"""The operations of queues with terms, which declare `fair=`, `weights=` and `limits=`.

`Ops.lease(fair=True)` calls `lease_fair` in place of `lease`. Its `Grant` says with `unread` that
new jobs were not looked at, so `line_up` is to be called until it answers false. It says with
`structure` which terms the queue has. Each of the two answers `elsewhere` if the other is to be
called. A client with terms calls `declare` before its first lease, and `declare(again=True)` while
the queue has others. `redeclare` is for operators. Without terms it ends them. All are repeated
while they answer `again`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from headrace._model.policy import bucket
from headrace._model.settings import QueueSettings
from headrace._model.terms import (
    BUSIEST_AT_MOST,
    IN_TERMS,
    VALUE_BYTES,
    LimitView,
    Share,
    SlotView,
    Terms,
    Value,
)
from headrace._protocol.limits import LOOKS_PER_SCRIPT
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Declaration, declaration, raw, text
from headrace.errors import ConfigurationError


@frozen
class DeclaredTerms:
    again: bool  # call again: a change of the structure takes several calls
    structure: str  # of the queue; '' for none
    said: Declaration  # what others declared differently, if ours count now


NONE = '{"words":{}}'  # the offer of a program without terms
REFUSED = {
    2: "value: the terms of the queue change at this moment: try again",
    3: "value: 1,000 values of this queue are paused: resume some, or pause the queue",
}


def _declare(ops: Ops, mode: str, worker: str) -> Op[DeclaredTerms]:
    terms = ops.settings.terms
    offer: list[Arg] = (
        ["", NONE]
        if terms is None
        else [terms.structure, given(terms, ops.settings, ops.share), *numbers(terms, ops.share)]
    )

    def decode(reply: Any) -> DeclaredTerms:
        return DeclaredTerms(reply[0] == 2, text(reply[1]), declaration(reply[2:]))

    return ops.op("declare_terms", [mode, worker, *offer], decode)


def tell(ops: Ops, worker: str) -> Op[DeclaredTerms]:
    """Say which terms *worker* will declare when it is registered. Nothing else changes."""
    return _declare(ops, "tell", worker)


def declare(ops: Ops, worker: str, *, again: bool = False) -> Op[DeclaredTerms]:
    """Declare the terms of *worker*, or ask *again* whether all live workers declare them by
    now."""
    return _declare(ops, "again" if again else "serve", worker)


def redeclare(ops: Ops) -> Op[DeclaredTerms]:
    """Give the queue these terms, or end them. Jobs in lines go to the front first."""
    return _declare(ops, "force", "")


def line_up(ops: Ops, worker: str) -> Op[bool]:  # noqa: ARG001 - as all calls of workers
    """Look at `LOOKS_PER_SCRIPT` new jobs without leasing any. The answer is true if there are
    more."""
    return ops.op("line_up", [LOOKS_PER_SCRIPT, *ops.order()], bool)


def shares(ops: Ops, start: str | bytes = "-") -> Op[tuple[list[Share], str | bytes]]:
    """Read the shares of the busiest values, and of the values that have waited for longest in the
    first lines. Then *start* is where the answer before says, and only the next lines are read. ''
    is the end, and asks for the busiest alone.
    """

    def decode(reply: Any) -> tuple[list[Share], str | bytes]:
        found = [
            Share(
                parts(raw(path)),
                int(running),
                int(waiting),
                float(p50) / 1000 or None,
                float(p95) / 1000 or None,
                float(ms) / 1000,
                float(weight),
                int(most) or None,
                float(age) / 1000 if age else None,
                paused == 1,
            )
            for path, ms, weight, running, waiting, p50, p95, most, age, paused in reply[2]
        ]
        return found, raw(reply[3])

    return ops.op("shares", [BUSIEST_AT_MOST, start], decode)


def paused(ops: Ops) -> Op[list[Value]]:
    return ops.op("shares", [0, ""], lambda reply: [parts(raw(path)) for path in reply[4]])


def pause(ops: Ops, wanted: Sequence[str | bytes], pause: bool) -> Op[bool]:
    """Pause a value, or resume it. The answer is false if it was in that state already. Raises
    `ConfigurationError`."""

    def decode(reply: int) -> bool:
        if reply > 1:
            raise ConfigurationError(REFUSED[reply])
        return reply == 1

    return ops.op("pause_value", [int(pause), *wanted], decode)


def slots(ops: Ops) -> Op[list[LimitView]]:
    """Read how many slots of each limit by a header are taken, of the ten values with the most."""

    def decode(reply: Any) -> list[LimitView]:
        return [
            LimitView(
                text(key),
                places,
                tuple(
                    SlotView(text(row[0]), row[1], row[2] == 1, row[3] or None)
                    for row in zip(*[iter(rows)] * 4, strict=True)
                ),
                more == 1,
            )
            for key, places, more, rows in reply
        ]

    return ops.op("slots", [BUSIEST_AT_MOST], decode)


# -- the terms as scripts take them ------------------------------------------------------------


def part(value: str | None) -> bytes:
    """Return a value as nodes and lines have it, which is with its length in front. A missing value
    is `-`."""
    if value is None:
        return b"-"
    cut = value.encode()[:VALUE_BYTES]
    return b"%d:%b" % (len(cut), cut)


def parts(path: bytes) -> tuple[str | None, ...]:
    return tuple(_values(path))


def _values(data: bytes) -> Iterator[str | None]:
    while data:
        if data[:1] == b"-":
            yield None
            data = data[1:]
            continue
        size, _, rest = data.partition(b":")
        yield rest[: int(size)].decode("utf-8", "replace")
        data = rest[int(size) :]


def wanted(value: Mapping[str, str | None]) -> list[str | bytes]:
    """Return the headers of a value, each with its part of the value, as `of_value` in the scripts
    takes them."""
    parts = {
        name: b"-" if text is None else f"={text}".encode()[: VALUE_BYTES + 1]
        for name, text in value.items()
    }
    return [text for row in parts.items() for text in row]


def given(terms: Terms, settings: QueueSettings, share: float) -> str:
    """Return the path, further keys of limits and rates, the numbers of both in a shard with this
    *share* of all keys, and the options in words.
    """
    keys = list(dict.fromkeys((*filter(None, (limit.key for limit in terms.limits)), *terms.rates)))
    rates = [[rate.key or "", *bucket(rate, share)] for rate in settings.rates]
    words = {name: value for name, value in settings.declared().items() if name in IN_TERMS}
    offered = {
        "path": list(terms.path),
        "keys": [key for key in keys if key not in terms.path],
        "limits": [
            [limit.key or "", limit.slots(share), *[1][: len(limit.each)]] for limit in terms.limits
        ],
        "rates": rates,
        "words": words,
    }
    return json.dumps(offered, ensure_ascii=False, separators=(",", ":"))


def numbers(terms: Terms, share: float) -> list[str | bytes]:
    """Return the paths of the weights, each followed by the weight, and the slots of values with a
    limit of their own, each followed by the limit in a shard with this *share* of all keys.
    """
    rows = [(b"".join(map(part, path)), f"{weight:.10g}") for path, weight in terms.weights]
    own = ((limit, value) for limit in terms.limits for value in limit.each)
    rows += [
        (b"e" + part(limit.key) + part(value), f"{limit.slots(share, value)}")
        for limit, value in own
    ]
    return [text for row in rows for text in row]
