"""Metrics of the child processes of isolated handlers."""

from __future__ import annotations

from typing import Any, Literal

from headrace._telemetry.metrics import instruments
from headrace._telemetry.tracing import DESTINATION

REASON = "headrace.reason"
Reason = Literal["deadline", "memory", "lost", "died"]


def record_killed(queue: str, reason: Reason) -> None:
    meters: Any = instruments()
    if meters is not None:
        meters.isolated.killed.add(1, {DESTINATION: queue, REASON: reason})


def record_recycled(queue: str) -> None:
    meters: Any = instruments()
    if meters is not None:
        meters.isolated.recycled.add(1, {DESTINATION: queue})


def record_start(queue: str, seconds: float) -> None:
    meters: Any = instruments()
    if meters is not None:
        meters.isolated.start.record(seconds, {DESTINATION: queue})
