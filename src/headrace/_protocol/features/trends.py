"""The operations of the trends of a queue, and of the tallies of its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from struct import Struct, unpack_from
from typing import Any, Literal

from headrace._model.views.activity import STEP_S, STEPS, Step
from headrace._model.views.trends import EVERY_S, KEPT, Every, TrendPoint, Trends
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import text

_RECORD = Struct(">9I")  # see lua/lib/trend_records.lua
_NUMBER = Struct(">I")
_SUMS = {2: "H", 4: "I"}  # by bytes
Ring = Step | Literal["value"]
RINGS: Mapping[Ring, tuple[str, int, int]] = {  # fields, seconds of a record, records
    "minute": ("m", STEP_S["minute"], STEPS["minute"]),
    "ten minutes": ("t", STEP_S["ten minutes"], STEPS["ten minutes"]),
    "value": ("v", 60, 60),
}


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


Rows = dict[str, tuple[int, ...]]
"""The sums of a record of tallies, by name: see lua/lib/tally_records.lua."""


def tally(ops: Ops, counted: str) -> Op[int]:
    """Add the counts of a worker, a JSON object of rows. The answer is 0 if it was not kept."""
    return ops.op("tally", [counted], int)


def tallies(ops: Ops, ring: Ring, after: int) -> Op[tuple[float, dict[int, Rows]]]:
    """Read the records of a ring whose numbers are larger than *after*. The answer is the server's
    time, and the rows by number."""
    name, seconds, records = RINGS[ring]

    def decode(reply: Any) -> tuple[float, dict[int, Rows]]:
        now = reply[0] / 1000
        newest = int(now) // seconds
        found = dict(_record(packed) for packed in reply[1:] if len(packed) >= _NUMBER.size)
        oldest = max(after, newest - records)
        return now, {one: rows for one, rows in found.items() if oldest < one <= newest}

    return ops.op("tallies", [name, max(0, after)], decode)


def _record(packed: bytes) -> tuple[int, Rows]:
    rows: Rows = {}
    (number,) = _NUMBER.unpack_from(packed)
    at = _NUMBER.size
    while at + 3 <= len(packed):
        length, size, width = packed[at : at + 3]
        start = at + 3 + length
        at = start + size * width
        if width not in _SUMS or at > len(packed):
            break
        rows[text(packed[start - length : start])] = unpack_from(
            f">{size}{_SUMS[width]}", packed, start
        )
    return number, rows
