"""The vectors agree with the package, with every server, and with the client in another
language."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import vectors
from tests.interop.conftest import Node
from tests.support.servers import Server

FOLDER = vectors.FILE.parent


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def raw(server: Server, protocol: int) -> Iterator[vectors.Raw]:
    raw = vectors.Raw(server, protocol)
    yield raw
    raw.close()


@pytest.fixture
def known() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(vectors.FILE.read_text("utf-8"))
    return found


def changed(known: dict[str, Any]) -> dict[str, Any]:
    """Return vectors with one fault in each kind."""
    known["names"]["id"]["valid"].append("\n")
    known["names"]["queue"]["invalid"].append("fine")
    known["keys"][0]["jobs"] += "x"
    known["operations"][0]["argv"][-1] = "other"
    known["receipts"][1]["receipts"][0]["added"] = False
    known["leases"][1]["jobs"][0]["token"] += 1
    steps = known["stories"]["the fence"]
    steps[3]["reply"], steps[-1]["reply"] = [1], ["1"]
    known["stories"]["the front and the back"][6]["reply"][1][0] = "<e1>"
    known["stories"]["what is no job"][1]["reply"][5] = -5
    return known


def test_the_file_is_fresh(newest: Server) -> None:
    stale = "run python -m tests.interop.vectors"
    assert vectors.FILE.read_text("utf-8") == vectors.dumped(vectors.vectors(newest)), stale


def test_a_stale_file_fails_the_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["vectors.py", "--check"])
    assert vectors.main() == 0
    monkeypatch.setattr(vectors, "FILE", tmp_path / "vectors.json")
    assert vectors.main() == 1


@pytest.mark.parametrize("kind", vectors.NAMES)
def test_the_package_knows_the_names(kind: str, known: dict[str, Any]) -> None:
    accept = vectors.NAMES[kind][0]
    for name in known["names"][kind]["valid"]:
        accept(name)
    for name in known["names"][kind]["invalid"]:
        with pytest.raises(ValueError, match=r"."):
            accept(name)


def test_every_server_tells_the_stories(raw: vectors.Raw, known: dict[str, Any]) -> None:
    assert vectors.differences(known, raw) == []


def test_every_script_of_a_producer_and_a_worker_is_in_the_stories(known: dict[str, Any]) -> None:
    told = {step.get("script") for story in known["stories"].values() for step in story}
    assert told >= {
        *("enqueue", "lease", "complete", "release", "retry", "dead_letter", "renew", "result"),
        *("beat", "reclaim", "leave", "cancel", "find", "counts", "workers", "redrive"),
    }


def test_another_story_is_told_apart(newest: Server, known: dict[str, Any]) -> None:
    raw = vectors.Raw(newest)
    try:
        assert len(vectors.differences(changed(known), raw)) == 4
    finally:
        raw.close()


def test_node_agrees(node: Node, server: Server) -> None:
    assert (
        json.loads(node.run("vectors.js", str(node.protocol), str(vectors.FILE), server.path, "3"))
        == []
    )


def test_node_agrees_under_resp2(node: Node, newest: Server) -> None:
    assert (
        json.loads(node.run("vectors.js", str(node.protocol), str(vectors.FILE), newest.path, "2"))
        == []
    )


def test_node_tells_the_differences(
    node: Node, newest: Server, known: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(changed(known)), "utf-8")
    found = json.loads(node.run("vectors.js", str(node.protocol), str(path), newest.path, "3"))
    starts = [re.split(r"[ :]", line)[0] for line in found]
    assert starts == [
        "queue",
        "id",
        "keys",
        "operation",
        "receipts",
        "lease",
        "what",
        "the",
        "the",
        "the",
    ], found


def test_the_lock_file_names_no_registry() -> None:
    lock = (FOLDER / "package-lock.json").read_text("utf-8")
    assert "://" not in lock
    assert '"resolved"' not in lock
    assert json.loads(lock)["packages"]["node_modules/redis"]["integrity"]
