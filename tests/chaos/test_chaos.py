"""The storm on every server, and the bugs that it must find.

    CHAOS_SEED=7 CHAOS_SECONDS=600 pytest tests/chaos -k storm -n 0 -s

repeats or prolongs it. The seed decides who is hurt, when and how; what that meets is up to the
machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.clock import Clock
from tests.chaos.mutants import MUTANTS
from tests.chaos.storm import Storm
from tests.support.awaiting import until
from tests.support.servers import Binary, binaries

pytestmark = pytest.mark.ci

SEED = int(os.environ.get("CHAOS_SEED", "20"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "4"))


@pytest.mark.slow
@pytest.mark.parametrize("binary", binaries(), ids=lambda binary: binary.name)
def test_storm(binary: Binary, tmp_path: Path) -> None:
    """No job is lost, completed twice, or invented. The counts add up at every sample, and no key
    is left."""
    with Storm(binary, tmp_path, SEED) as storm:
        lacking = storm.blow(SECONDS)
        storm.calm()
        story = storm.story()
    print(story)
    assert not storm.judge.complaints, story
    assert not lacking, story


@pytest.mark.slow
@pytest.mark.skipif(not Clock.possible(), reason="no C compiler to make a clock with")
def test_storm_with_a_clock_that_jumps(tmp_path: Path) -> None:
    """The clock jumps by half a minute forward and back. The same holds, except for the number of
    jobs a second."""
    with Storm(binaries()[0], tmp_path, SEED, clock=Clock(tmp_path)) as storm:
        lacking = storm.blow(SECONDS)
        storm.calm()
        story = storm.story()
    print(story)
    assert not storm.judge.complaints, story
    assert not lacking, story


@pytest.mark.slow
def test_an_outage_of_more_than_a_minute(tmp_path: Path) -> None:
    """Workers wait for their server however long it is away, and go on. No job is lost or runs
    twice."""
    with Storm(binaries()[0], tmp_path, SEED) as storm:
        for role in ("producer with ids", "threads", "tasks", "batches"):
            storm.start(role)
        workers = [player for player in storm.players if player.role != "producer with ids"]
        until(lambda: storm.judge.sample(storm.queue).completed > 20, "work")
        until(
            lambda: storm.registered == len(workers),
            "all workers: one that starts without its server ends",
        )
        storm.outage(65)
        done = storm.judge.sample(storm.queue).completed
        # a call of a queue of one's own ends by an error in the end
        if not storm.players[0].process.is_alive():
            storm.start("producer with ids")
        until(lambda: storm.judge.sample(storm.queue).completed > done + 50, "the workers to go on")
        assert all(player.process.is_alive() for player in workers)
        storm.calm()
        story = storm.story()
    assert not storm.judge.complaints, story


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bug(mutant: str, tmp_path: Path) -> None:
    """The storm finds the bug and names the fault."""
    expected = MUTANTS[mutant].complaint
    with Storm(binaries()[0], tmp_path, SEED, mutant) as storm:
        storm.blow(240, falls=0, until_heard=expected)
        story = storm.story()
    print(story)
    assert storm.judge.complaints.get(expected), story
