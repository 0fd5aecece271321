"""Facts that the packaging states twice are equal."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import headrace

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
GITHUB = ROOT / ".github"


def test_the_groups_of_developers_are_what_the_extra_brings() -> None:
    groups = PROJECT["dependency-groups"]
    extra = [
        one
        for one in PROJECT["project"]["optional-dependencies"]["dev"]
        if not one.startswith("headrace[")
    ]
    assert sorted(groups["tests"] + groups["lint"]) == sorted(extra)
    assert groups["dev"] == [{"include-group": "tests"}, {"include-group": "lint"}]


def test_actions_are_pinned_by_their_commits() -> None:
    used = [
        line
        for path in GITHUB.glob("workflows/*.yml")
        for line in re.findall(r"uses: (.*)", path.read_text())
    ]
    assert len(used) > 4
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used)


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {headrace.__version__}\n" in (GITHUB / "CITATION.cff").read_text("utf-8")


def test_the_security_policy_names_days() -> None:
    policy = (GITHUB / "SECURITY.md").read_text("utf-8")
    assert re.findall(r"\| (\d+) days", policy) == ["3", "7", "30"]


def test_the_workflow_runs_what_ci_runs() -> None:
    assert "run: bash .ci/run" in (GITHUB / "workflows" / "test.yml").read_text("utf-8")
