"""The machine of `hand_over` on every server, and the bugs that it must find.

HAND_OVER_EXAMPLES=5000 HAND_OVER_SEED=7 pytest tests/model/test_hand_over.py -k holds -n 2
--timeout 0

is a long run of other examples.
"""

from __future__ import annotations

import os

import pytest

from tests.model.hand_over import Machine
from tests.model.mutants import HAND_OVER, HAND_OVER_IN_MODULES
from tests.support.machines import hunt, run_on
from tests.support.planted import plant, plant_scripts
from tests.support.servers import Server

EXAMPLES = int(os.environ.get("HAND_OVER_EXAMPLES", "6"))
STEPS = int(os.environ.get("HAND_OVER_STEPS", "50"))
SEED = int(os.environ.get("HAND_OVER_SEED", "1"))


@pytest.mark.slow
def test_what_holds(server: Server, large: bool) -> None:
    """Each server gets other examples, and the newest gets more."""
    run_on(server, Machine, SEED, EXAMPLES, STEPS, large=large)


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", [*HAND_OVER, *HAND_OVER_IN_MODULES])
def test_planted_bug(newest: Server, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine finds it, with one of the first seeds."""
    if mutant in HAND_OVER:
        plant_scripts(monkeypatch, HAND_OVER[mutant])
    else:
        plant(monkeypatch, *HAND_OVER_IN_MODULES[mutant])
    with pytest.raises(AssertionError):
        hunt(lambda: Machine(newest), STEPS)
