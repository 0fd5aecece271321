"""The storm over slots and shares, and the bugs that it must find.

    CHAOS_SEED=7 CHAOS_SECONDS=600 pytest tests/fair -k storm --servers others -n 0 -s

repeats or prolongs it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fair.mutants import MUTANTS
from tests.fair.storm import Storm, judged
from tests.support.facts import each
from tests.support.servers import binaries

pytestmark = pytest.mark.ci

SEED = int(os.environ.get("CHAOS_SEED", "29"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "10"))


@pytest.mark.slow
def test_storm(tmp_path: Path) -> None:
    """At most n jobs of a value are leased. Slots equal leased jobs. No job starves, is lost or is
    left."""
    with Storm(binaries()[0], tmp_path, SEED) as storm:
        storm.blow(SECONDS)
        lacking = storm.lacks()
        storm.calm()
        story, wrong = storm.story(), storm.verdict()
    print(story)
    assert not wrong, (story, wrong[:20])
    assert not lacking, (story, lacking)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bug_of_a_storm(mutant: str, tmp_path: Path) -> None:
    complaint = MUTANTS[mutant][1]
    with Storm(binaries()[0], tmp_path, SEED, mutant) as storm:
        storm.blow(SECONDS, until_heard=complaint)
        assert storm.heard(complaint), storm.story()


def waited(**seconds: float) -> str:
    """Return a ledger of thirty jobs each, which waited for so long."""
    lines = [(f"{name}-{n}", wait) for name, wait in seconds.items() for n in range(30)]
    return "\n".join(
        [
            *(f"add {name} 0" for name, _ in lines),
            *(f"beg {name} n {wait}" for name, wait in sorted(lines, key=lambda line: line[1])),
        ]
    )


@each(
    ("ledger", "cancelled", "complaint"),
    [
        ("beg a-1 n 1\nfin a-1 n 1", 0, ""),
        ("beg a-1 n 1", 1, ""),
        ("beg a-1 n 1", 0, "starved"),
        ("beg a-1 n 1\nfin a-1 m 1", 0, "phantom"),
        (waited(flood=4.0, quiet=1.0), 60, ""),
        (waited(flood=4.0, quiet=3.0), 60, "shares"),
    ],
)
def test_the_judge(ledger: str, cancelled: int, complaint: str) -> None:
    """The judge finds the fault and nothing else."""
    wrong = judged([line.split(" ") for line in ledger.splitlines()], cancelled, 1)
    assert any(one.startswith(complaint) for one in wrong) if complaint else not wrong
