"""How often `as_completed` looks where nothing tells it of ends."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace._api.completion import Pursuit
from headrace._core.effects import Step


class Quiet:
    """Shards of which no job has ended."""

    told = False

    def ends(self, ids: Sequence[str], told: object) -> Step[dict[str, Any]]:
        yield from ()
        return {}


def look(pursuit: Pursuit, start: float, end: float) -> float:
    """Look once, from *start* to *end*; return for how long to wait then."""
    step = pursuit.look()
    next(step)
    step.send(start)
    with pytest.raises(StopIteration):
        step.send(end)
    return pursuit.patience(1e9, end)


def test_often_at_first_and_a_tenth_of_the_time_at_most() -> None:
    pursuit = Pursuit(SimpleNamespace(_verbs=Quiet()), {"i": []})
    waits = [look(pursuit, float(n), float(n)) for n in range(12)]
    assert waits[0] == pytest.approx(0.01)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(0.25)
    assert look(pursuit, 20.0, 20.01) == pytest.approx(0.25)
    assert look(pursuit, 30.0, 32.0) == pytest.approx(18.0)
    assert pursuit.patience(3.0, 32.0) == 3.0
    assert pursuit.patience(3.0, 99.0) == 0.0
