"""Trends: what the counts of a queue were, minute by minute or hour by hour."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

Every = Literal["minute", "hour"]
EVERY_S = {"minute": 60, "hour": 3600}  # seconds between two records
KEPT = {"minute": 2880, "hour": 2160}  # records that a queue keeps: two days, and 90


@frozen
class TrendPoint:
    """A record of a queue's counts.

    `waiting` (parked jobs too), `leased`, `delayed` (and blocked) and `dead` are those of the moment `at`, and `lag` is
    for how many seconds the oldest of the next jobs had waited then. `enqueued`, `completed` and `removed` (cancelled,
    deleted, trimmed) are jobs of the `seconds` before it: since the record before, which is longer ago than a minute,
    or an hour, if nothing has looked after the queue meanwhile.
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
