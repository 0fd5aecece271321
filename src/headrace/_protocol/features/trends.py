"""The operation that reads the trends of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import Any

from headrace._model.views.trends import EVERY_S, KEPT, Every, TrendPoint, Trends
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops

_RECORD = Struct(">9I")  # see lua/lib/trend_records.lua


def trends(ops: Ops, every: Every, number: int) -> Op[Trends]:
    """Read the last *number* records of a queue's trends, and the record before them, for the first
    differences."""

    def decode(reply: Any) -> Trends:
        now, kept, data = reply
        length = EVERY_S[every]
        # Other records are unused places, or are left from an earlier round of the ring.
        records = sorted(
            one
            for one in _RECORD.iter_unpack(data)
            if one[0] > 0 and 0 <= now / 1000 // length - one[0] // length <= number
        )
        points = (_point(before, one) for before, one in pairwise(records))
        return Trends(now / 1000, ops.keys.queue, every, kept == 1, tuple(points)[-number:])

    return ops.op("trends", [int(every == "hour"), min(number + 1, KEPT[every])], decode)


def _point(before: Sequence[int], one: Sequence[int]) -> TrendPoint:
    at, *sums, waiting, leased, later, dead, lag = one
    since = ((now - then) % 2**32 for then, now in zip(before[1:4], sums, strict=True))
    # counters that went back belong to another queue of this name
    enqueued, completed, removed = (number if number < 2**31 else 0 for number in since)
    seconds = float(at - before[0])
    return TrendPoint(
        at, seconds, enqueued, completed, removed, waiting, leased, later, dead, lag / 1000
    )
