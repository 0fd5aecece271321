"""The storm of deploys, and the bugs that it must find.

    CHAOS_SEED=7 pytest tests/steps -k friday --servers others -n 0 -s

repeats it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.steps.changes import Part, Program
from tests.steps.friday import Fridays, judged
from tests.support.servers import binaries

pytestmark = pytest.mark.ci

SEED = int(os.environ.get("CHAOS_SEED", "7"))


@pytest.mark.slow
def test_deploys_over_parked_runs(tmp_path: Path) -> None:
    """No run is lost, and none dies but of a record that does not fit. A run that goes on has the
    values that it had. One that does not is listed with what it waits for."""
    with Fridays(binaries()[0], tmp_path, SEED) as storm:
        storm.blow(20)
        lacking = storm.lacks()
        storm.withhold()
        storm.calm()
        story, wrong = storm.story(), storm.verdict()
    print(story)
    assert not wrong, story
    assert not lacking, story


class Brief(Fridays):
    PATIENCE = 20.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "complaint"),
    [
        ("a run that is held back spends an attempt", ("died",)),
        ("the records are not read", ("other values",)),
        ("a dead letter loses its records", ("other values",)),
    ],
)
def test_planted_bug_of_deploys(mutant: str, complaint: tuple[str, ...], tmp_path: Path) -> None:
    """Some storms end without a run that meets the bug, as they are not the same on each machine.
    Then the next one has its turn."""
    stories = list[str]()
    for number in range(5):
        path = tmp_path / str(number)
        path.mkdir()
        with Brief(binaries()[0], path, SEED + number, mutant) as storm:
            storm.blow(20, until_heard=complaint)
            if storm.heard(complaint):
                return
            stories.append(storm.story())
    pytest.fail("\n".join(stories))


PROGRAMS = {0: Program((Part("pay"),)), 1: Program((Part("pay", type="str"),))}


@pytest.mark.parametrize(
    ("ledger", "complaint"),
    [
        ("att r 0\nask r pay 0\nend r pay 5\nval r pay 5\nfin r 0", ""),
        ("ask r pay 0\nval r pay 5", "phantom"),
        ("end r pay 5\nval r pay 5\nend r pay 6\nval r pay 6", "other values"),
        ("ask r pay 0\nask r pay 1\nmisfit r pay 1", ""),
        ("ask r pay 1\nmisfit r pay 1", "refused"),
        ("bad r what", "bad"),
    ],
)
def test_the_judge_of_deploys(ledger: str, complaint: str) -> None:
    wrong = judged(ledger, PROGRAMS)
    assert any(one.startswith(complaint) for one in wrong) if complaint else not wrong
