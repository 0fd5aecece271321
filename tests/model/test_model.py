"""The model on every server, and the bugs that it must find.

    MODEL_EXAMPLES=20000 MODEL_SEED=7 pytest tests/model -k agrees -n 2 --timeout 0

is a long run of other examples (`MODEL_STEPS`, 40, is how long each is). The seed decides
everything but the clock, so the same one finds the same again; a failure is made small, and printed
as the steps that lead to it.
"""

from __future__ import annotations

import os

import pytest

from tests.model.machine import Machine
from tests.model.mutants import MUTANTS, SCHEDULES
from tests.model.recurring import Scheduling
from tests.support.machines import hunt, run_on
from tests.support.planted import plant_scripts
from tests.support.servers import Server

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "10"))
STEPS = int(os.environ.get("MODEL_STEPS", "40"))
SEED = int(os.environ.get("MODEL_SEED", "4"))


@pytest.mark.long
@pytest.mark.parametrize("machine", [Machine, Scheduling])
def test_server_agrees(server: Server, machine: type[Machine], large: bool) -> None:
    """The model predicts the outcome of every operation. Each server gets other examples, and the
    newest gets more."""
    run_on(server, machine, SEED, EXAMPLES, STEPS, large=large)


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bug(newest: Server, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model finds it, with one of the first seeds."""
    plant_scripts(monkeypatch, MUTANTS[mutant])
    with pytest.raises(AssertionError):
        hunt(lambda: Machine(newest), STEPS)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("mutant", SCHEDULES)
def test_planted_bug_of_schedules(
    newest: Server, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model with schedules finds it."""
    plant_scripts(monkeypatch, SCHEDULES[mutant])
    with pytest.raises(AssertionError):
        hunt(lambda: Scheduling(newest), STEPS)
