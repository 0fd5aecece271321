"""The shares of the busiest values, and the slots that they have taken, joined over the shards of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace._core.effects import Step, send_all
from headrace._model.job import KEY
from headrace._model.terms import BUSIEST_AT_MOST, Share
from headrace._model.views import LimitView, SlotView
from headrace._protocol import fair_ops
from headrace._protocol.queue_ops import Ops


def joined(found: Iterable[Share]) -> list[Share]:
    """Return the ten values that had the most, with the sums of all shards, and the longest dwells of one shard."""
    values: dict[tuple[str | None, ...], Share] = {}
    for one in found:
        before = values.get(one.value)
        values[one.value] = one if before is None else before + one
    return sorted(values.values(), key=lambda one: (-one.used, one.name))[:BUSIEST_AT_MOST]


def shares(shards: Sequence[Ops]) -> Step[list[Share]]:
    """Read the shares of a queue's busiest values."""
    found = yield from send_all([fair_ops.shares(ops) for ops in shards])
    return joined(one for some in found for one in some)


def joined_slots(found: Iterable[LimitView]) -> list[LimitView]:
    """Join the limits of all shards. The jobs of one key are in one shard, and have places there alone."""
    limits: dict[str, LimitView] = {}
    for one in found:
        before = limits.get(one.key)
        limits[one.key] = one if before is None else _both(before, one)
    return list(limits.values())


def _both(one: LimitView, other: LimitView) -> LimitView:
    values = {slot.value: slot for slot in one.values}
    for slot in other.values:
        before = values.get(slot.value, SlotView(slot.value, 0, waits=False))
        values[slot.value] = SlotView(slot.value, before.taken + slot.taken, before.waits or slot.waits)
    places = max(one.places, other.places) if one.key == KEY else one.places + other.places
    some = sorted(values.values(), key=lambda slot: (-slot.taken, not slot.waits, slot.value))[:BUSIEST_AT_MOST]
    return LimitView(one.key, places, tuple(some), one.more or other.more)


def standing(shards: Sequence[Ops]) -> Step[tuple[list[Share], list[LimitView]]]:
    """Read the shares of a queue's busiest values, and the slots of its limits."""
    found = yield from shares(shards)
    slots = yield from send_all([fair_ops.slots(ops) for ops in shards])
    return found, joined_slots(one for some in slots for one in some)
