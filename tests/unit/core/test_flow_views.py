"""A flow is drawn in its order: each stage behind all that lead to it, whatever circles there are."""

from __future__ import annotations

import pytest

from headrace._core.views.flows import STAGES_AT_MOST, flow_of, ranks
from headrace._model.state import Counts
from headrace._model.views import QueueView
from headrace._protocol.flow_ops import LEADS
from headrace._ui.web.graph import drawn


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ({}, {}),
        ({"a": []}, {"a": 0}),
        ({"b": [], "a": ["b"]}, {"a": 0, "b": 1}),
        ({"a": ["b", "c"], "b": ["c"], "c": []}, {"a": 0, "b": 1, "c": 2}),
        ({"a": ["c"], "b": ["c"], "c": []}, {"a": 0, "b": 0, "c": 1}),
        ({"a": ["a", "b"], "b": ["a"]}, {"a": 0, "b": 1}),
        ({"c": ["d"], "d": ["e"], "e": ["d"], "a": ["c"]}, {"a": 0, "c": 1, "d": 2, "e": 3}),
        ({"a": ["gone"]}, {"a": 0}),
        (
            {str(at): [str(at + 1)] for at in range(STAGES_AT_MOST)},
            {str(at): at for at in range(STAGES_AT_MOST)},
        ),
    ],
)
def test_ranks(edges: dict[str, list[str]], expected: dict[str, int]) -> None:
    assert ranks(edges) == expected


def queues(*names: str) -> list[QueueView]:
    return [QueueView(f"shop/{name}", Counts(), 0.0, False, 1, ()) for name in names]


def test_a_flow_of_what_its_stages_declare() -> None:
    """Stages that the server does not know are left out, and so is foreign text."""
    declared = {"shop/a": {LEADS: "b gone +c <x>"}, "shop/b": {LEADS: "a"}, "shop/c": {LEADS: "-"}, "shop/d": {}}
    flow = flow_of("shop", queues("a", "b", "c", "d"), declared)
    assert [(one.name, one.next, one.children) for one in flow.stages] == [
        ("a", ("b",), ("c",)), ("d", (), ()), ("b", ("a",), ()), ("c", (), ()),
    ]  # fmt: skip
    assert flow.known
    graph = drawn(flow)
    assert [box.stage.name for box in graph.boxes] == ["a", "d", "b", "c"]
    assert [arrow.children for arrow in graph.arrows] == [False, True, False]
    assert graph.summary == "The stages of shop: a leads to b; b leads to a; a fans out to c"
    assert all(0 <= box.x < graph.width and 0 <= box.y < graph.height for box in graph.boxes)
    assert len({(box.x, box.y) for box in graph.boxes}) == 4


def test_a_group_of_queues_is_no_flow() -> None:
    flow = flow_of("shop", queues("b", "a"), {"shop/a": {}, "shop/b": {"codec": "json"}})
    assert not flow.known
    assert [box.y for box in drawn(flow).boxes] == [6, 6]
    assert drawn(flow).summary == "The stages of shop: a; b"
