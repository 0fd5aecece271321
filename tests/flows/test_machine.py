"""The machine on every server, and the bugs that it must find.

FLOWS_EXAMPLES=5000 FLOWS_SEED=7 pytest tests/flows/test_machine.py -k holds -n 2

is a long run of other examples.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from headrace._protocol import flow_ops, queue_ops
from tests.flows.machine import Machine
from tests.flows.mutants import MUTANTS
from tests.support.planted import planted
from tests.support.servers import Server, binaries

EXAMPLES = int(os.environ.get("FLOWS_EXAMPLES", "100"))
STEPS = int(os.environ.get("FLOWS_STEPS", "50"))
SEED = int(os.environ.get("FLOWS_SEED", "1"))


class Calm(Machine):
    """Each example ends with everything done that is left."""

    def teardown(self) -> None:
        try:
            self.calm()
        finally:
            super().teardown()


def run(server: Server, *phases: Phase, examples: int = EXAMPLES, salt: int = 0) -> None:
    profile = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        phases=phases,
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),  # they ask for speed
    )
    run_state_machine_as_test(seed(SEED + salt)(lambda: Calm(server)), settings=profile)


def test_what_holds(server: Server) -> None:
    """Other examples for each server."""
    run(server, Phase.generate, Phase.shrink, salt=1_000_000 * binaries().index(server.binary))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bug(newest: Server, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found."""
    scripts = planted(MUTANTS[mutant])
    monkeypatch.setattr(queue_ops, "script", scripts)
    monkeypatch.setattr(flow_ops, "script", scripts)
    with pytest.raises((AssertionError, KeyError)):
        run(newest, Phase.generate, examples=300, salt=1)
