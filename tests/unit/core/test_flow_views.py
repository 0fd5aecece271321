"""Drawings of flows. A stage comes after every stage that leads to it, even in a circle."""

from __future__ import annotations

from functools import partial

from attrs import evolve

from headrace._core.views.flows import STAGES_AT_MOST, flow_of, ranks
from headrace._model.flow import ChildView, FlowState, RunView
from headrace._model.state import Counts
from headrace._model.views.queues import QueueView
from headrace._protocol.features.flows.ops import LEADS
from headrace.console.web.graph import Node, drawn, nodes
from tests.support.facts import each


@each(
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
    declared = {
        "shop/a": {LEADS: "b gone +c <x>"},
        "shop/b": {LEADS: "a"},
        "shop/c": {LEADS: "-"},
        "shop/d": {},
    }
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


def test_the_way_of_a_run() -> None:
    """A stage that an older version saw has no time. A redriven stage does not keep the time of its
    end."""
    state = FlowState("r", "running", "c", results={"a": b"", "b": b""}, started_at=1.0)
    of = partial(RunView.of, parts=())
    assert of(state, 1.0, {"a": 3.0, "b": 7.0}).passed == {"a": 2.0, "b": 4.0}
    assert evolve(of(state, 1.0, {"a": 3.0, "b": 7.0, "c": 9.0}), now=8.5).took == 1.5
    assert of(state, 1.0, {"b": 7.0}).passed == {"a": None, "b": None}
    assert of(state, 1.0, {}).took is None
    ended = evolve(state, state="completed")
    assert of(ended, 1.0, {"c": 7.0, "a": 3.0, "b": 7.0}).passed == {"a": 2.0, "b": 4.0, "c": 0.0}
    assert of(ended, 1.0, {"a": 3.0, "b": 7.0, "c": 9.0}).took == 2.0
    assert of(evolve(ended, id="r/1/c", results={"a": b""}), None, {"c": 7.0}).passed == {"c": None}


def test_the_nodes_of_a_run() -> None:
    """The children of a stage are one node. It counts them by state and links to three, failed ones
    first."""
    declared = {"shop/a": {LEADS: "b +c"}, "shop/b": {LEADS: "-"}, "shop/c": {LEADS: "-"}}
    flow = flow_of("shop", queues("a", "b", "c"), declared)
    parts = [ChildView(f"r/1/{n}", "completed", "c", 1.0, 2.5) for n in range(5)]
    parts += [
        ChildView("r/1/5", "running", "c", 1.0, job="waiting"),
        ChildView("r/1/6", "running", "c", 1.0),
    ]
    parts += [ChildView("r/1/7", "failed", "c", 1.0, 2.0)]
    found = nodes(flow, RunView("r", "blocked", "a", since=1.0, now=4.0, parts=tuple(parts)))
    assert (found["a"].state, found["a"].took, found["b"]) == ("blocked", 3.0, Node())
    assert found["c"].lines == ["5 completed · 1 waiting", "1 going on · 1 failed"]
    assert [(one.name, one.took(4.0)) for one in found["c"].children] == [
        ("7", 1.0),
        ("5", 3.0),
        ("6", 3.0),
    ]
    graph = drawn(flow, found)
    assert [box.height for box in graph.boxes] == [62, 62, 67 + 3 * 24]
    assert graph.height >= max(box.y + box.height for box in graph.boxes)
    assert parts[-1].there
    assert not parts[0].there


def test_a_group_of_queues_is_no_flow() -> None:
    flow = flow_of("shop", queues("b", "a"), {"shop/a": {}, "shop/b": {"codec": "json"}})
    assert not flow.known
    assert [box.y for box in drawn(flow).boxes] == [6, 6]
    assert drawn(flow).summary == "The stages of shop: a; b"
