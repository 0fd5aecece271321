"""The machine of children on every server, and the bugs that it must find.

CHILDREN_EXAMPLES=500 CHILDREN_SEED=7 pytest tests/children/test_machine.py -k holds --timeout 0

is a long run of other examples.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.children.machine import Machine
from tests.children.mutants import MUTANTS
from tests.scripts import conftest as lua
from tests.steps.conftest import Runs
from tests.support.planted import planted

EXAMPLES = int(os.environ.get("CHILDREN_EXAMPLES", "6"))
SEED = int(os.environ.get("CHILDREN_SEED", "1"))
STEPS = 150
SEEDS = 40  # within which each planted bug is found


def walk(runs: Runs, seed: int) -> None:
    runs.lua.redis.flushdb()
    Machine(runs, random.Random(seed)).walk(STEPS)


@pytest.mark.long
def test_what_holds(runs: Runs) -> None:
    for seed in range(SEED, SEED + EXAMPLES):
        walk(runs, seed)


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", [*MUTANTS])
def test_planted_bug(newest_runs: Runs, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine finds it, with one of the first seeds."""
    monkeypatch.setattr(lua, "script", planted(MUTANTS[mutant]))

    def hunt() -> None:
        for seed in range(1, SEEDS + 1):
            walk(newest_runs, seed)

    with pytest.raises(AssertionError):
        hunt()
