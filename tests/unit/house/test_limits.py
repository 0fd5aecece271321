"""A limit of `.ci/limits.toml` rises only with a decision record that says so."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

HOUSE = runpy.run_path(str(Path(__file__).parents[3] / ".ci" / "house.py"))
NAME = "words of docs"


def row(limit: float, record: str = "more-words.md") -> dict[str, dict[str, Any]]:
    return {NAME: {"limit": limit, "record": record}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a project with a record of a limit of 1,200 words."""
    decisions = tmp_path / "docs" / "decisions"
    decisions.mkdir(parents=True)
    (decisions / "more-words.md").write_text(
        f"`{NAME}` may be 1,200, for a page on backups.\n", "utf-8"
    )
    return tmp_path


@pytest.mark.parametrize("limit", [900, 1000])
def test_a_limit_may_fall(root: Path, limit: int) -> None:
    assert HOUSE["unrecorded"](row(limit, ""), {NAME: 1000}, root) == []


def test_a_limit_rises_with_its_record(root: Path) -> None:
    assert HOUSE["unrecorded"](row(1200), {NAME: 1000}, root) == []


@pytest.mark.parametrize(
    ("limit", "record"),
    [(1200, ""), (1200, "another.md"), (1300, "more-words.md")],
    ids=["none", "missing", "other"],
)
def test_a_limit_does_not_rise_otherwise(root: Path, limit: int, record: str) -> None:
    (complaint,) = HOUSE["unrecorded"](row(limit, record), {NAME: 1000}, root)
    assert complaint.startswith(f"{NAME}: rose from 1,000 to {limit:,}")


@pytest.mark.ci  # it reads all code
def test_each_count_has_a_limit() -> None:
    rows = HOUSE["tomllib"].loads(HOUSE["LIMITS"].read_text("utf-8"))
    assert rows.keys() == HOUSE["counts"]().keys()
    assert HOUSE["unrecorded"](rows, HOUSE["lowest_limits"]()) == []
