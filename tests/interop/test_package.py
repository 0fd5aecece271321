"""The client as a package. It is packed, installed beside its dependency, and tested there by its
own tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import headrace
from tests.interop.conftest import CLIENT, HERE, Node
from tests.support.program import PATIENCE
from tests.support.servers import Server


def said(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def test_it_is_of_this_version_and_needs_what_the_tests_lock() -> None:
    package = said(CLIENT / "package.json")
    assert package["version"] == headrace.__version__
    assert package["dependencies"] == said(HERE / "package.json")["dependencies"]


def test_its_own_tests_pass_where_it_is_installed(
    node: Node, newest: Server, tmp_path: Path
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{node.binary.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HEADRACE_SOCKET": newest.path}
    source = shutil.copytree(CLIENT, tmp_path / "source")
    packed = subprocess.check_output(
        [*node.npm, "pack", "--silent"], cwd=source, env=environment, text=True, timeout=PATIENCE
    ).strip()
    place = tmp_path / "node_modules"
    place.mkdir()
    for one in (node.folder / "node_modules").iterdir():
        (place / one.name).symlink_to(one.resolve())
    with tarfile.open(source / packed) as archive:
        assert sorted(archive.getnames()) == [
            f"package/{name}"
            for name in ("README.md", "headrace.js", "headrace.json", "package.json")
        ]
        for one in archive.getmembers():
            assert one.isfile(), one.name
            archive.extract(one, tmp_path)
    (tmp_path / "package").rename(place / "headrace")
    shutil.copytree(CLIENT / "test", tmp_path / "test")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    done = subprocess.run(
        [node.binary, "--test", "test/headrace.test.js"], cwd=tmp_path, env=environment, text=True, timeout=PATIENCE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "pass 7" in done.stdout, done.stdout
    assert "skipped 0" in done.stdout, done.stdout
