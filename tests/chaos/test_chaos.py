"""The storm on every server, and the bugs that it must find.

    CHAOS_SEED=7 CHAOS_SECONDS=600 pytest tests/chaos -k storm -n 0 -s

repeats or prolongs it. The seed decides who is hurt, when and how; what that meets is up to the machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.mutants import MUTANTS
from tests.chaos.storm import Storm
from tests.servers import Binary, binaries

SEED = int(os.environ.get("CHAOS_SEED", "20"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "20"))


@pytest.mark.slow
@pytest.mark.parametrize("binary", binaries(), ids=lambda binary: binary.name)
def test_storm(binary: Binary, tmp_path: Path) -> None:
    """0 lost, 0 completed twice, 0 phantoms; the law of conservation at every sample; nothing left at the end."""
    with Storm(binary, tmp_path, SEED) as storm:
        storm.blow(SECONDS)
        fate = storm.calm()
        story = storm.story()
    print(story)
    assert not storm.judge.complaints, story
    assert storm.raged(fate.counts), story


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bug(mutant: str, tmp_path: Path) -> None:
    """The storm finds it, and says what is wrong."""
    expected = MUTANTS[mutant].complaint
    with Storm(binaries()[0], tmp_path, SEED, mutant) as storm:
        storm.blow(120, restarts=0, until_heard=expected)
        story = storm.story()
    print(story)
    assert storm.judge.complaints.get(expected), story
