"""The machine of a changing number of shards on every server, and the bugs that it must find.

RESHARDING_EXAMPLES=2000 RESHARDING_SEED=7 pytest tests/model/test_resharding.py -k holds -n 2
--timeout 0

is a long run of other examples.
"""

from __future__ import annotations

import os

import pytest

from tests.model.mutants import RESHARDING, RESHARDING_IN_MODULES
from tests.model.resharding import Machine
from tests.support.machines import hunt, run_on
from tests.support.planted import plant, plant_scripts
from tests.support.servers import Server

EXAMPLES = int(os.environ.get("RESHARDING_EXAMPLES", "6"))
STEPS = int(os.environ.get("RESHARDING_STEPS", "50"))
SEED = int(os.environ.get("RESHARDING_SEED", "1"))


@pytest.mark.slow
def test_what_holds(server: Server, large: bool) -> None:
    """Each server gets other examples, and the newest gets more."""
    run_on(server, Machine, SEED, EXAMPLES, STEPS, large=large)


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("mutant", [*RESHARDING, *RESHARDING_IN_MODULES])
def test_planted_bug(newest: Server, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine finds it, with one of the first seeds."""
    if mutant in RESHARDING:
        plant_scripts(monkeypatch, RESHARDING[mutant])
    else:
        plant(monkeypatch, *RESHARDING_IN_MODULES[mutant])
    with pytest.raises(AssertionError):
        hunt(lambda: Machine(newest), STEPS)
