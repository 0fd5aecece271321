"""The server matrix: what the README promises is tested on is here, or said to be missing."""

from __future__ import annotations

import re
import subprocess
from itertools import product
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cases import CLUSTER, CLUSTERS, MASTERS, SHARDED, chosen
from tests.support.cluster import SLOTS, slot_of
from tests.support.differences import listed
from tests.support.servers import MATRIX, binaries, on_path

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("name", MATRIX)
def test_a_server_of_the_matrix(name: str) -> None:
    """A server that this machine lacks shows as skipped, here, and nowhere else."""
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


def test_a_server_is_found_behind_others_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment's own comes first on PATH, and not everything that is called so is a server."""
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
            (tmp_path / name / "redis-server").write_text(f"#!/bin/sh\n{script}\n" if script else "no program")
            (tmp_path / name / "redis-server").chmod(0o755)
    monkeypatch.setenv("PATH", ":".join(str(tmp_path / name) for name in ["absent", *scripts]))
    assert on_path("redis-server", "7.0") == tmp_path / "system" / "redis-server"
    assert on_path("redis-server", "6.2") == tmp_path / "environment" / "redis-server"
    assert on_path("redis-server", "8.2") is None


SHAPES: dict[str, list[tuple[str, int]]] = {  # the names that each mark gives values, and how many cases it has
    "plain": [],
    "two": [("a", 2)],
    "pairs": [("a, b", 4)],
    "triples": [("a,b,c", 5)],
    "a table": [("a,b", 3), ("c", 3)],
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_body_runs_on_every_server(shape: list[tuple[str, int]]) -> None:
    """In both colours and by both protocols; all cases on the newest, on others a sixth or so, and one at least; on
    three masters, in their own run, one, with shards if it holds there.
    """
    body: Any = SimpleNamespace(
        name="test_body",
        path=Path("tests/conformance/test_file.py"),
        iter_markers=lambda _: [SimpleNamespace(args=(names,)) for names, _ in shape],
    )
    servers = [*binaries(), *CLUSTERS]
    numbers = [range(len(servers)), range(2), range(2), *(range(size) for _, size in shape)]
    cases = []
    for server, colour, protocol, *rest in product(*numbers):
        indices = {"server": server, "colour": colour, "protocol": protocol}
        for number, (names, _) in zip(rest, shape, strict=True):
            indices |= dict.fromkeys(re.findall(r"\w", names), number)
        params = {**indices, "server": servers[server], "colour": ["sync", "async"][colour], "protocol": protocol + 2}
        cases.append(SimpleNamespace(params=params, indices=indices, id="-".join(map(str, indices.values()))))
    every = prod(size for _, size in shape)

    def run(which: str, *, full: bool = False, **wanted: object) -> int:
        found = chosen(cases, body, which, full=full)
        return sum(all(one.params[name] == value for name, value in wanted.items()) for one in found)

    newest, second, *others, oldest = binaries()
    sixth = range(1, max(1, every // 3) + 1)  # of a table it may be a third
    assert run("all", server=newest, colour="sync", protocol=2) == every
    assert run("all", server=newest, colour="sync", protocol=3) == every
    assert run("all", server=second, colour="async", protocol=2) in sixth
    assert run("all", server=second, colour="sync") == 0
    assert run("all", server=oldest, colour="sync", protocol=3) in sixth
    assert all(run("all", server=other, colour="sync", protocol=2) in sixth for other in [*others, oldest, CLUSTER])
    assert all(run("all", server=other, colour="async") == 0 for other in [newest, *others, oldest, CLUSTER])
    assert run("newest", colour="async", protocol=2) in sixth
    assert run("ends", server=oldest, colour="sync", protocol=2) in sixth
    assert run("all", full=True) == len(cases)
    for cluster in CLUSTERS:
        assert run(cluster.name) == run(cluster.name, server=cluster) == 4 * every
    assert (run("masters", server=SHARDED), run("masters")) == (1, 1)
    assert run("all", server=SHARDED) == run("all", server=MASTERS) == 0
    assert run("newest", server=SHARDED) == run("ends", server=MASTERS) == 0
    for sharded, expected in ((True, (0, 1)), (False, (0, 0))):  # what differs with shards only; what differs anyway
        body.path, body.name = differing(sharded=sharded)
        assert (run("masters", server=SHARDED), run("masters", server=MASTERS)) == expected
        assert run("all", full=True) == len(cases)
    assert run("newest") == run("newest", server=newest)
    assert run("ends") == run("ends", server=newest) + run("ends", server=oldest)


def test_queues_lie_on_different_masters() -> None:
    """Those of names that tests often use; that of most is not on the first, which is asked first."""
    found = {name: slot_of(name) * 3 // SLOTS for name in ("q", "r", "shop")}
    assert set(found.values()) == {0, 1, 2}
    assert found["q"]


def differing(*, sharded: bool) -> tuple[Path, str]:
    """Return the file and the name of a body that differs on three masters, whatever its case."""
    there = listed(sharded=True).keys() - listed(sharded=False).keys() if sharded else listed(sharded=False).keys()
    file, name = min(one for one in there if listed(sharded=True)[one][0][0] == "")
    return Path(f"tests/conformance/{file}.py"), name
