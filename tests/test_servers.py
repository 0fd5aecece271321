"""The server matrix. Each server that the README promises is here or is reported as missing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cluster import SLOTS, slot_of
from tests.support.servers import MATRIX, binaries, on_path

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("name", MATRIX)
def test_a_server_of_the_matrix(name: str) -> None:
    """A server that this machine lacks is shown as skipped here, and nowhere else."""
    found = {binary.name: binary.path for binary in binaries()}
    if name not in found:
        pytest.skip(f"{name} is not here, nothing is tested on it ({MATRIX[name]})")
    said = subprocess.check_output([found[name], "--version"], text=True)
    program, version = name.split("-")
    assert f"v={version}." in said
    assert program in said.lower()


def test_the_readme_names_them() -> None:
    (sentence,) = re.findall(r"^Tested on (.*)\.$", README.read_text("utf-8"), re.MULTILINE)
    named = set()
    for program, versions in re.findall(r"(Redis|Valkey) ([\d., and]+?)(?=, V|$)", sentence):
        named |= {f"{program.lower()}-{version}" for version in re.findall(r"\d+\.\d+", versions)}
    assert named == set(MATRIX)


def test_the_newest_comes_first_and_the_oldest_last() -> None:
    order = [tuple(map(int, name.split("-")[1].split("."))) for name in MATRIX]
    assert order == sorted(order, reverse=True)


def test_a_server_is_found_behind_others_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment's own server comes first on PATH. A program of that name may be no server."""
    scripts = {
        "environment": "echo Redis server v=6.2.14 sha=0",
        "broken": "exit 3",
        "text": None,
        "empty": None,
        "system": "echo Redis server v=7.0.15 sha=0",
        "later": "echo Redis server v=7.0.1 sha=0",
    }
    for name, script in scripts.items():
        (tmp_path / name).mkdir()
        if name != "empty":
            (tmp_path / name / "redis-server").write_text(
                f"#!/bin/sh\n{script}\n" if script else "no program"
            )
            (tmp_path / name / "redis-server").chmod(0o755)
    monkeypatch.setenv("PATH", ":".join(str(tmp_path / name) for name in ["absent", *scripts]))
    assert on_path("redis-server", "7.0") == tmp_path / "system" / "redis-server"
    assert on_path("redis-server", "6.2") == tmp_path / "environment" / "redis-server"
    assert on_path("redis-server", "8.2") is None


def test_queues_lie_on_different_masters() -> None:
    """The names that tests often use are on several masters. Most are not on the first, which is
    asked first."""
    found = {name: slot_of(name) * 3 // SLOTS for name in ("q", "r", "shop")}
    assert set(found.values()) == {0, 1, 2}
    assert found["q"]
