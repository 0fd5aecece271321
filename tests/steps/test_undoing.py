"""Random handlers whose runs are undone, on every server, and the bugs that they must find.

UNDO_EXAMPLES=5000 UNDO_SEED=7 pytest tests/steps/test_undoing.py -k holds -n 2 --timeout 0

is a long run of other examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from tests.steps.mutants import UNDONE, UNDONE_IN_MODULES
from tests.steps.undoing import Story
from tests.support.planted import plant, plant_scripts
from tests.support.servers import Server, binaries

EXAMPLES = int(os.environ.get("UNDO_EXAMPLES", "60"))
SEED = int(os.environ.get("UNDO_SEED", "1"))


def tell(server: Server, seeds: Iterable[int]) -> None:
    for seed in seeds:
        Story(server, seed).tell()


@pytest.mark.long
def test_what_holds(server: Server, large: bool) -> None:
    """Each server gets other stories, and the newest gets more."""
    first = SEED + 1_000_000 * binaries().index(server.binary)
    tell(server, range(first, first + (EXAMPLES if large else EXAMPLES // 2)))


@pytest.mark.sampled
@pytest.mark.parametrize("mutant", [*UNDONE, *UNDONE_IN_MODULES])
def test_planted_bug_of_undos(newest: Server, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A story finds it, with one of the first seeds."""
    if mutant in UNDONE:
        plant_scripts(monkeypatch, UNDONE[mutant])
    else:
        plant(monkeypatch, *UNDONE_IN_MODULES[mutant])
    with pytest.raises(AssertionError):
        tell(newest, range(120))
