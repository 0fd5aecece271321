"""The command that installs an extra is right where headrace was installed from."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace._installing import _wanted
from headrace.errors import without_extra
from tests.support.facts import each
from tests.unit.house.test_docs import DOCS, ROOT, name

GIT = "https://github.com/headrace/headrace"
HERE = Path(__file__).parents[2]
FROM: dict[str, tuple[Any, list[str]]] = {
    "a registry": ({}, ["headrace[web]"]),
    "a checkout": ({"url": HERE.as_uri(), "dir_info": {}}, [".[web]"]),
    "an editable checkout": (
        {"url": HERE.as_uri(), "dir_info": {"editable": True}},
        ["-e", ".[web]"],
    ),
    "a directory elsewhere": (
        {"url": (HERE / "docs").as_uri(), "dir_info": {}},
        [f"{HERE / 'docs'}[web]"],
    ),
    "a directory that is gone": (
        {"url": "file:///no/such/folder", "dir_info": {}},
        ["headrace[web]"],
    ),
    "git": (
        {"url": GIT, "vcs_info": {"vcs": "git", "commit_id": "0"}},
        [f"headrace[web] @ git+{GIT}"],
    ),
    "a branch": (
        {
            "url": GIT,
            "vcs_info": {"vcs": "git", "requested_revision": "main"},
            "subdirectory": "src",
        },
        [f"headrace[web] @ git+{GIT}@main#subdirectory=src"],
    ),
    "a wheel with a password": (
        {"url": "https://ada:secret@example.org/headrace.whl", "archive_info": {}},
        ["headrace[web] @ https://example.org/headrace.whl"],
    ),
}


@each("source", FROM)
def test_from(source: str) -> None:
    direct, wanted = FROM[source]
    assert _wanted("web", direct, HERE) == wanted


def test_the_message_of_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the checkout, as the tests run in one."""
    monkeypatch.chdir(HERE)
    words, _, command = without_extra("headrace top", "top").partition(": ")
    assert words == "headrace top is an extra"
    assert shlex.split(command)[-1] == ".[top]"


@each("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=name)
def test_pages_name_what_can_be_installed(page: Path) -> None:
    """Pages name a checkout or the repository, because no registry has headrace."""
    url = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
    for line in page.read_text("utf-8").splitlines():
        if "headrace[" in (wanted := line.partition("pip install")[2]):
            assert f"] @ git+{url}'" in wanted, line
