"""The trends of a queue, as they are shown."""

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

    `waiting` (parked jobs too), `leased`, `later` (delayed or blocked) and `dead` are counts at the
    moment `at`. `lag` is how many seconds the oldest of the next jobs had waited then. `enqueued`,
    `completed` and `removed` (cancelled, deleted, trimmed) count the jobs of the `seconds` since
    the record before. That is longer ago than a minute, or an hour, if no worker has swept the
    queue meanwhile. For a sharded queue all values are sums, but `lag` is the longest. Each shard
    keeps its own records. The first record of a new shard leaves out its earlier work.
    """

    at: float
    seconds: float
    enqueued: int
    completed: int
    removed: int
    waiting: int
    leased: int
    later: int
    dead: int
    lag: float


@frozen
class Trends:
    """Earlier counts of a queue, oldest first. `kept` is whether the queue is declared with
    `trends=True`.
    """

    now: float
    queue: str
    every: Every
    kept: bool
    points: tuple[TrendPoint, ...]


def sum_trends(shards: Sequence[Trends]) -> Trends:
    """Sum the trends of a queue's shards, minute by minute, or hour by hour.

    A shard without a record, as it was not swept then, counts with the jobs of its last record.
    """
    length = EVERY_S[shards[0].every]
    sums: dict[int, TrendPoint] = {}
    times = sorted({int(one.at) // length for shard in shards for one in shard.points})
    for shard in shards:
        own = {int(one.at) // length: one for one in shard.points}
        last: TrendPoint | None = None
        for time in times:
            if time in own:
                last = own[time]
            elif last is not None:
                last = evolve(
                    last, at=0.0, seconds=0.0, enqueued=0, completed=0, removed=0, lag=0.0
                )
            if last is not None:
                sums[time] = _both(sums[time], last) if time in sums else last
    return evolve(
        shards[0],
        now=max(shard.now for shard in shards),
        kept=any(shard.kept for shard in shards),
        points=tuple(sums[time] for time in times),
    )


def _both(a: TrendPoint, b: TrendPoint) -> TrendPoint:
    return TrendPoint(
        max(a.at, b.at),
        max(a.seconds, b.seconds),
        a.enqueued + b.enqueued,
        a.completed + b.completed,
        a.removed + b.removed,
        a.waiting + b.waiting,
        a.leased + b.leased,
        a.later + b.later,
        a.dead + b.dead,
        max(a.lag, b.lag),
    )
