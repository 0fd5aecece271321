"""The rings of `support/cases.py` together run every case of a body."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.cases import BY_COLOUR, GUESTS, NEWEST, RINGS, binary_of, chosen, colour_of
from tests.support.facts import each
from tests.support.servers import binaries

AXES: dict[str, Sequence[Any]] = {
    "colour": ["sync", "async"],
    "kind": ["threads", "tasks", "plain"],
    "binary": binaries(),
    "verb": ["lease", "enqueue", "complete"],
}
MARKS = {"": None, "sampled": (), "sampled by kind": ("kind",), "ci": (), "slow": ()}
SHAPES = [(), ("colour",), ("kind",), ("verb",), ("colour", "binary"), ("colour", "verb"), ("kind", "verb"),
          ("colour", "binary", "verb")]  # fmt: skip
FOLDERS = ["conformance", "scripts", "workers"]
BODIES = [
    (folder, axes, mark)
    for folder, axes, mark in product(FOLDERS, SHAPES, MARKS)
    if "kind" in axes or mark != "sampled by kind"
]


def cases(folder: str, axes: Sequence[str], mark: str, name: str) -> Iterator[Any]:
    """Yield stand-ins for the cases of one body."""
    function = object()
    for values in product(*(AXES[axis] for axis in axes)):
        item = SimpleNamespace(
            function=function, originalname=name, path=Path(f"tests/{folder}/test_it.py")
        )
        item.get_closest_marker = lambda name: (
            SimpleNamespace(args=MARKS[mark]) if mark.startswith(name) else None
        )
        if axes:
            item.callspec = SimpleNamespace(params=dict(zip(axes, values, strict=True)))
        yield item


@each(("folder", "axes", "mark"), BODIES)
def test_each_case_on_the_newest_server_is_in_one_ring(
    folder: str, axes: Sequence[str], mark: str
) -> None:
    """A body without a mark runs by default, in both colours if their code differs by hand.

    On the oldest server a body has one case: by default if it is one of `scripts`, and otherwise in
    `others`.
    """
    for number in range(20):  # names, which decide
        items = [*cases(folder, axes, mark, f"test_{number}")]
        rings = {ring: [*map(id, chosen(items, ring, full=False))] for ring in RINGS}
        newest = {id(item) for item in items if binary_of(item) in BY_COLOUR}
        default = set(rings["ends"]) & newest
        others = set(rings["others"]) & newest
        assert set(rings["newest"]) == newest == default | others
        assert not default & others
        assert all(len(ran) == len(set(ran)) for ran in rings.values())
        if not mark:
            ran = {colour_of(item) for item in items if axes and id(item) in default}
            colours = {colour_of(item) for item in items if axes}
            assert len(ran) >= min(2 if folder == "workers" else 1, len(colours))
        if "binary" in axes:
            oldest = {id(item) for item in items if binary_of(item) == binaries()[-1] != NEWEST}
            by_default = folder == "scripts" and mark not in ("ci", "slow")
            assert len(oldest.intersection(rings["ends"])) == by_default
            assert len(oldest.intersection(rings["others"])) == (not by_default)


def test_guests_run_when_they_are_named() -> None:
    """The folders exist, and the command of CI names them all."""
    tests = Path(__file__).parents[2]
    config = tomllib.loads((tests.parent / "pyproject.toml").read_text("utf-8"))
    command = config["tool"]["poe"]["tasks"]["guests"]["cmd"].split()
    assert {f"tests/{guest}" for guest in GUESTS} < set(command)
    assert all((tests / guest).is_dir() for guest in GUESTS)
    assert "poe guests" in (tests.parent / ".ci" / "run").read_text("utf-8")
