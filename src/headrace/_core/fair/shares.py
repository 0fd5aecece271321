"""The shares of the busiest values, joined over the shards of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace._core.effects import Step, send_all
from headrace._model.terms import BUSIEST_AT_MOST, Share
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
