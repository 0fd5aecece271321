"""The shares of values, and the slots that they have taken, joined over the shards of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headrace._core.effects import Call, send, send_all
from headrace._core.fair.leasing import LOOKS_AT_MOST
from headrace._model.job import KEY
from headrace._model.terms import BUSIEST_AT_MOST, LimitView, Share, SlotView, Structure
from headrace._protocol import view_ops
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.queue_ops import Ops

T = TypeVar("T")


def _joined(found: Iterable[T], name: str, both: Callable[[T, T], T]) -> list[T]:
    kept: dict[object, T] = {}
    for one in found:
        key = getattr(one, name)
        kept[key] = both(kept[key], one) if key in kept else one
    return list(kept.values())


def joined(found: Iterable[Share]) -> list[Share]:
    """Return the ten values that had the most, then the ten others that have waited for longest.

    A value has the sums of all shards, and the longest dwells and age of one.
    """
    values = sorted(
        _joined(found, "value", Share.__add__), key=lambda one: (-one.used, -one.running, one.name)
    )
    busiest = values[:BUSIEST_AT_MOST]
    longest = sorted((one for one in values if one.oldest is not None), key=_age)[:BUSIEST_AT_MOST]
    return [*busiest, *(one for one in longest if one not in busiest)]


def _age(one: Share) -> float:
    return -(one.oldest or 0.0)


def shares(shards: Sequence[Ops]) -> Call[list[Share]]:
    """Read the shares of a queue's busiest and longest waiting values. It reads at most
    `LOOKS_AT_MOST` more pages of each shard."""
    found: list[Share] = []
    pages = yield from send_all([fair_ops.shares(ops) for ops in shards])
    for ops, page in zip(shards, pages, strict=True):
        some, place = page
        for _ in range(LOOKS_AT_MOST):
            if not place:
                break
            more, place = yield from send(fair_ops.shares(ops, place))
            some += more
        found += _joined(some, "value", lambda one, other: min(one, other, key=_age))
    return joined(found)


def wanted(shards: Sequence[Ops], value: object) -> Call[list[str | bytes]]:
    """Return a *value* as scripts take it, or nothing for `None`. Raises `ConfigurationError`.

    The terms are those that workers have declared. Before any worker has, they are the terms of
    this program.
    """
    if value is None:
        return []
    # some shards may have handed out no job yet
    found = yield from send_all([view_ops.about(ops) for ops in shards])
    declared = max(about.declared.get("terms", "") for about in found)
    own = shards[0].settings.terms
    structure = declared or (own.structure if own else "")
    return fair_ops.wanted(Structure.read(structure).value(value))


def joined_slots(found: Iterable[LimitView]) -> list[LimitView]:
    """Join the limits of all shards. The jobs of one key are in one shard, and have places there
    alone."""
    return _joined(found, "key", _both)


def _both(one: LimitView, other: LimitView) -> LimitView:
    total: Callable[[int, int], int] = max if one.key == KEY else int.__add__

    def slots(a: SlotView, b: SlotView) -> SlotView:
        return SlotView(
            a.value,
            a.taken + b.taken,
            a.waits or b.waits,
            total(a.places or 0, b.places or 0) or None,
        )

    values = sorted(
        _joined([*one.values, *other.values], "value", slots),
        key=lambda slot: (-slot.taken, not slot.waits, slot.value),
    )
    return LimitView(
        one.key,
        total(one.places, other.places),
        tuple(values[:BUSIEST_AT_MOST]),
        one.more or other.more,
    )


def standing(shards: Sequence[Ops]) -> Call[tuple[list[Share], list[LimitView]]]:
    found = yield from shares(shards)
    slots = yield from send_all([fair_ops.slots(ops) for ops in shards])
    return found, joined_slots(one for some in slots for one in some)
