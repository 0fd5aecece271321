"""Hypothesis' state machines against a server. The same seed finds the same bug on a busy machine
too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.servers import Server, binaries


class Calming:
    """A mixin for machines. Each example ends with all remaining work done."""

    def teardown(self: Any) -> None:
        try:
            self.calm()
        finally:
            super().teardown()


def run_machine(
    make: Callable[[], RuleBasedStateMachine],
    chosen: int,
    examples: int,
    steps: int,
    *,
    shrink: bool = True,
) -> None:
    """Do random steps until one fails. The seed *chosen* decides everything but the clock."""
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),  # they ask for speed
    )
    run_state_machine_as_test(seed(chosen)(make), settings=profile)


def run_on(
    server: Server,
    make: Callable[[Server], RuleBasedStateMachine],
    first: int,
    examples: int,
    steps: int,
    *,
    large: bool,
) -> None:
    """Run *examples* on a server, others for each server. Run half as many unless *large*."""
    chosen = first + 1_000_000 * binaries().index(server.binary)
    run_machine(lambda: make(server), chosen, examples if large else examples // 2, steps)


def hunt(make: Callable[[], RuleBasedStateMachine], steps: int) -> None:
    """Do random steps in many short runs until one fails. Each run has the next seed.

    The clock changes a walk, so no seed finds a bug on every machine: rules must make the way to it
    frequent. On ours most bugs take fewer than ten seeds, and none took more than 40, of 120. A
    long run would begin with small examples, as many as a tenth of all. A failure that the same
    steps do not bring about again is one, too: it may depend on the time that has passed.
    """
    failed: list[bool] = []

    def watched() -> RuleBasedStateMachine:
        machine = make()
        teardown = machine.teardown

        def noted() -> None:
            try:
                teardown()
            finally:
                failed.append(isinstance(sys.exception(), AssertionError))

        machine.teardown = noted  # type: ignore[method-assign]
        return machine

    for chosen in range(1, 121):
        try:
            run_machine(watched, chosen, 6, steps, shrink=False)
        except Flaky as error:
            if not any(failed):
                raise
            raise AssertionError("not found again by the same steps") from error
