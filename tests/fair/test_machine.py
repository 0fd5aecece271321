"""The machine on every server, and the bugs that it must find.

FAIR_EXAMPLES=5000 FAIR_SEED=7 pytest tests/fair/test_machine.py -k holds -n 2 --timeout 0

is a long run of other examples.
"""

from __future__ import annotations

import os

import pytest

from tests.fair.machine import Machine
from tests.fair.mutants import PICKS
from tests.support.machines import Calming, hunt, run_on
from tests.support.planted import plant_scripts
from tests.support.servers import Server

EXAMPLES = int(os.environ.get("FAIR_EXAMPLES", "12"))
STEPS = int(os.environ.get("FAIR_STEPS", "60"))
SEED = int(os.environ.get("FAIR_SEED", "1"))


class Calm(Calming, Machine):
    """A machine whose examples end calmly."""


@pytest.mark.long
def test_what_holds(server: Server, large: bool) -> None:
    """Each server gets other examples, and the newest gets more."""
    run_on(server, Calm, SEED, EXAMPLES, STEPS, large=large)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("mutant", PICKS)
def test_planted_bug(newest: Server, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine finds it, with one of the first seeds."""
    plant_scripts(monkeypatch, PICKS[mutant])
    with pytest.raises(AssertionError):
        hunt(lambda: Calm(newest), STEPS)
