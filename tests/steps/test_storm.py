"""The storm over runs, and the bugs that it must find.

    CHAOS_SEED=7 CHAOS_SECONDS=600 pytest tests/steps -k storm --servers others -n 0 -s

repeats or prolongs it.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.steps.storm import Storm, judged
from tests.support.facts import each
from tests.support.servers import binaries

pytestmark = pytest.mark.ci

SEED = int(os.environ.get("CHAOS_SEED", "20"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "8"))


@pytest.mark.slow
def test_storm(tmp_path: Path) -> None:
    """Each record is of a function that ran to its end. once=True never runs twice. A zombie
    records nothing, and no key is left.
    """
    with Storm(binaries()[0], tmp_path, SEED) as storm:
        storm.blow(SECONDS)
        lacking = storm.lacks()
        storm.calm()
        story, wrong = storm.story(), storm.verdict()
    print(story)
    assert not wrong, story
    assert not lacking, story


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "complaint"),
    [
        ("a zombie's step is recorded", ("zombie", "twice", "other values")),
        ("a step that runs once is recorded at its end only", ("once",)),
        ("the end of a child is not told", ("forgotten",)),
        ("each end counts as completed", ("phantom",)),
        ("a run that dies is not undone", ("not undone",)),
    ],
)
def test_planted_bug_of_a_storm(mutant: str, complaint: tuple[str, ...], tmp_path: Path) -> None:
    """Not each storm meets the bug, as no two are the same. Then the next one has its turn."""
    stories = list[str]()
    for number in range(4):
        path = tmp_path / str(number)
        path.mkdir()
        with Storm(binaries()[0], path, SEED + number, mutant) as storm:
            storm.blow(SECONDS, until_heard=complaint)
            if storm.heard(complaint):
                return
            stories.append(storm.story())
    pytest.fail("\n".join(stories))


@each(
    ("ledger", "complaint"),
    [
        ("beg r s0 a\nend r s0 a\nrec r s0 a\nfin r a", ""),
        ("beg r s0 a\nrec r s0 a", "phantom"),
        ("beg r s0 a\nend r s0 a\nrec r s0 a\nbeg r s0 b\nend r s0 b\nrec r s0 b", "twice"),
        ("beg r s0 a\nend r s0 a\nlos r s0 a\nfin r a", "zombie"),
        ("beg r s2 a\nbeg r s2 b", "once"),
        ("beg r s2 a\ndbt r s2\nred r s2\nbeg r s2 b", ""),
        ("beg r s0 a\nend r s0 a\nfin r a\nbeg r s0 b\nend r s0 b\nfin r b", "other values"),
        ("bad r what", "bad"),
        ("die r\nbeg r s0 a\nend r s0 a\nund r s0 a\nbeg r s0 b\nend r s0 b\nfin r b", ""),
        ("die r\nbeg r s0 a\nend r s0 a\nund r s0 a\nfin r a", "undone"),
        ("beg r s0 a\nend r s0 a\nund r s0 a", "undone"),
        ("beg r s0 a\nend r s0 a\nrec r s0 a\ndie r\ndied r", "not undone"),
        ("beg r s0 a\nend r s0 a\nrec r s0 a\ndie r\nund r s0 a\ndied r", ""),
        ("cho r done\ncho r late", "another choice"),
        ("cho r done\ndied r\nred r own\ncho r late", ""),
        ("beg r c a\nend r c a\nrec r c a\nbeg r c b\nend r c b\nrec r c b", "twice"),
    ],
)
def test_the_judge(ledger: str, complaint: str) -> None:
    """The judge finds the fault and nothing else."""
    wrong = judged(ledger, Counter())
    assert any(one.startswith(complaint) for one in wrong) if complaint else not wrong
