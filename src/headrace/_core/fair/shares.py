"""The shares of values, and the slots that they have taken, joined over the shards of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headrace._core.effects import Call, send_all, send_each
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


def _pages(every: Sequence[Ops]) -> Call[list[list[Share]]]:
    found: list[list[Share]] = [[] for _ in every]
    places: list[str | bytes] = ["-"] * len(every)
    for _ in range(1 + LOOKS_AT_MOST):
        due = [number for number, place in enumerate(places) if place]
        ops = [fair_ops.shares(every[number], places[number]) for number in due]
        for number, (some, place) in zip(due, (yield from send_each(ops)), strict=True):
            found[number] += some
            places[number] = place
    return found


def _of_shards(pages: Iterable[list[Share]]) -> list[Share]:
    return joined(
        one
        for page in pages
        for one in _joined(page, "value", lambda one, other: min(one, other, key=_age))
    )


def shares(shards: Sequence[Ops]) -> Call[list[Share]]:
    return _of_shards((yield from _pages(shards)))


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


def standing(queues: Sequence[Sequence[Ops]]) -> Call[list[tuple[list[Share], list[LimitView]]]]:
    every = [ops for shards in queues for ops in shards]
    pages = iter((yield from _pages(every)))
    slots = iter((yield from send_each([fair_ops.slots(ops) for ops in every])))
    return [
        (
            _of_shards([next(pages) for _ in shards]),
            joined_slots(one for _ in shards for one in next(slots)),
        )
        for shards in queues
    ]
