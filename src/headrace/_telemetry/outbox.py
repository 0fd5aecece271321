"""Metrics of SQL outboxes. They show how late rows become jobs, and which rows wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace._model.views.outbox import OutboxView
from headrace._telemetry.metrics import instruments, outboxes
from headrace._telemetry.tracing import Place

REPORT_EVERY_S = 15.0  # seconds between two reports of a relay


def record_relayed(place: Place, waits: Iterable[float]) -> None:
    meters: Any = instruments()
    if meters is not None:
        for wait in waits:
            meters.waited.rows.record(max(0.0, wait), place.common)


def record_outbox(place: Place, view: OutboxView) -> None:
    if instruments() is not None:
        key = f"{place.server} {place.queue}"
        outboxes.due(key, place, REPORT_EVERY_S)
        outboxes.read(key, view)
