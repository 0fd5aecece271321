"""Trends: the counts of a queue, minute by minute or hour by hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import evolve, frozen

Every = Literal["minute", "hour"]
EVERY_S = {"minute": 60, "hour": 3600}  # seconds between two records
KEPT = {"minute": 2880, "hour": 2160}  # records that a queue keeps: two days, and 90


@frozen
class TrendPoint:
    """A record of a queue's counts.

    `waiting` (parked jobs too), `leased`, `delayed` (and blocked) and `dead` are counts at the moment `at`; `lag` is
    how many seconds the oldest of the next jobs had waited then. `enqueued`, `completed` and `removed` (cancelled,
    deleted, trimmed) are jobs of the `seconds` before it: since the record before, which is longer ago than a minute,
    or an hour, if nothing has looked after the queue meanwhile. For a sharded queue all values are sums, but `lag` is
    the longest. Each shard keeps its own records: work of a new shard before its first record is in none.
    """

    at: float
    seconds: float
    enqueued: int
    completed: int
    removed: int
    waiting: int
    leased: int
    delayed: int
    dead: int
    lag: float


@frozen
class Trends:
    """Counts that a queue had, oldest first; `kept`: whether the queue is declared with `trends=True`."""

    now: float
    queue: str
    every: Every
    kept: bool
    points: tuple[TrendPoint, ...]


def together(some: Sequence[Trends]) -> Trends:
    """Sum the trends of a queue's parts, minute by minute, or hour by hour.

    A part that has no record of one, as nothing looked after it then, counts with the jobs that it had before.
    """
    first, length = some[0], EVERY_S[some[0].every]
    sums: dict[int, TrendPoint] = {}
    turns = sorted({int(one.at) // length for part in some for one in part.points})
    for part in some:
        own = {int(one.at) // length: one for one in part.points}
        last: TrendPoint | None = None
        for turn in turns:
            if turn in own:
                last = own[turn]
            elif last is not None:
                last = evolve(last, at=0.0, seconds=0.0, enqueued=0, completed=0, removed=0, lag=0.0)
            if last is not None:
                sums[turn] = _both(sums[turn], last) if turn in sums else last
    return evolve(
        first, now=max(part.now for part in some), kept=any(part.kept for part in some),
        points=tuple(sums[turn] for turn in turns),
    )  # fmt: skip


def _both(one: TrendPoint, other: TrendPoint) -> TrendPoint:
    return TrendPoint(
        max(one.at, other.at), max(one.seconds, other.seconds), one.enqueued + other.enqueued,
        one.completed + other.completed, one.removed + other.removed, one.waiting + other.waiting,
        one.leased + other.leased, one.delayed + other.delayed, one.dead + other.dead, max(one.lag, other.lag),
    )  # fmt: skip
