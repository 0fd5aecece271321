"""No case of a body is lost between the rings: `support/cases.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cases import BY_COLOUR, NEWEST, RINGS, binary_of, chosen, colour_of
from tests.support.servers import binaries

AXES: dict[str, Sequence[Any]] = {
    "colour": ["sync", "async"],
    "kind": ["threads", "tasks", "plain"],
    "binary": binaries(),
    "verb": ["lease", "enqueue", "complete"],
}
MARKS = {"": None, "sampled": (), "sampled by kind": ("kind",), "storm": ()}
SHAPES = [(), ("colour",), ("kind",), ("verb",), ("colour", "binary"), ("colour", "verb"), ("kind", "verb"),
          ("colour", "binary", "verb")]  # fmt: skip
BODIES = [(axes, mark) for axes in SHAPES for mark in MARKS if "kind" in axes or mark != "sampled by kind"]


def cases(axes: Sequence[str], mark: str, name: str) -> Iterator[Any]:
    """Yield stand-ins for the cases of one body."""
    function = object()
    for values in product(*(AXES[axis] for axis in axes)):
        item = SimpleNamespace(function=function, originalname=name, path=Path("tests/workers/test_it.py"))
        item.get_closest_marker = lambda name: SimpleNamespace(args=MARKS[mark]) if mark.startswith(name) else None
        if axes:
            item.callspec = SimpleNamespace(params=dict(zip(axes, values, strict=True)))
        yield item


@pytest.mark.parametrize(("axes", "mark"), BODIES)
def test_each_case_on_the_newest_server_is_in_one_ring(axes: Sequence[str], mark: str) -> None:
    """And a body that is not marked is there by default in both colours, and once on the oldest server."""
    for number in range(20):  # names, which decide
        items = [*cases(axes, mark, f"test_{number}")]
        rings = {ring: [*map(id, chosen(items, ring, full=False))] for ring in RINGS}
        newest = {id(item) for item in items if binary_of(item) in BY_COLOUR}
        default, others = (set(rings[ring]) & newest for ring in ("ends", "others"))
        assert set(rings["newest"]) == newest == default | others
        assert not default & others
        assert all(len(ran) == len(set(ran)) for ran in rings.values())
        if not mark:
            ran = {colour_of(item) for item in items if axes and id(item) in default}
            assert len(ran) >= min(2, len({colour_of(item) for item in items if axes}))
        if "binary" in axes and mark != "storm":
            oldest = [item for item in items if binary_of(item) == binaries()[-1] != NEWEST]
            assert len([item for item in oldest if id(item) in rings["ends"]]) == min(1, len(oldest))
