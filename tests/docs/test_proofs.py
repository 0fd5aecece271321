"""Every test that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.facts import each

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"


@each(("page", "at_least"), [("choosing.md", 15), ("security.md", 9), ("guarantees.md", 25)])
def test_every_proof_is_a_test(page: str, at_least: int) -> None:
    proofs = re.findall(
        r"`(\w+/test_\w+\.py)::(test_\w+)`", (EXPLANATION / page).read_text("utf-8")
    )
    assert len(proofs) >= at_least
    for file, test in proofs:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text("utf-8"), f"{file}::{test}"
