"""How often `as_completed` reads results when no message tells of an end."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace._api.results import CompletionTracker
from headrace._core.effects import Call


class Quiet:
    """Shards of which no job has ended."""

    notified = False

    def ends(self, ids: Sequence[str], told: object) -> Call[dict[str, Any]]:
        yield from ()
        return {}


def look(tracker: CompletionTracker, start: float, end: float) -> float:
    """Look once, from *start* to *end*, and return how long to wait until the next look."""
    step = tracker.refresh()
    next(step)
    step.send(start)
    with pytest.raises(StopIteration):
        step.send(end)
    return tracker.patience(1e9, end)


def test_often_at_first_and_a_tenth_of_the_time_at_most() -> None:
    tracker = CompletionTracker(SimpleNamespace(_verbs=SimpleNamespace(results=Quiet())), {"i": []})
    waits = [look(tracker, float(n), float(n)) for n in range(12)]
    assert waits[0] == pytest.approx(0.01)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(0.25)
    assert look(tracker, 20.0, 20.01) == pytest.approx(0.25)
    assert look(tracker, 30.0, 32.0) == pytest.approx(18.0)
    assert tracker.patience(3.0, 32.0) == 3.0
    assert tracker.patience(3.0, 99.0) == 0.0
