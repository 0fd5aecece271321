"""The graph of a flow's stages as an SVG drawing: columns from left to right, and an arrow for each way on."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from headrace._core.views.flows import ranks
from headrace._model.views import FlowView, StageView

BOX_WIDTH, BOX_HEIGHT = 168, 62
GAP_X, GAP_Y, MARGIN = 52, 18, 6


@frozen
class Box:
    """A stage, and the place of its box."""

    stage: StageView
    x: int
    y: int


@frozen
class Arrow:
    """The path of an arrow, and the points of its head; `children`: it leads to the children of a fan-out."""

    path: str
    head: str
    children: bool


@frozen
class Graph:
    """A drawn flow, its size in pixels, and its description in words."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    summary: str


def drawn(flow: FlowView) -> Graph:
    """Draw a flow. Stages whose order is not known are side by side."""
    columns = _columns(flow)
    rows: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    for stage in flow.stages:
        column = columns[stage.name]
        row = rows.get(column, 0)
        rows[column] = row + 1
        x, y = MARGIN + column * (BOX_WIDTH + GAP_X), MARGIN + row * (BOX_HEIGHT + GAP_Y)
        boxes[stage.name] = Box(stage, x, y)
    arrows = [
        _arrow(boxes[stage.name], boxes[other], children=other in stage.children)
        for stage in flow.stages
        for other in (*stage.next, *stage.children)
        if other in boxes
    ]
    width = max((box.x for box in boxes.values()), default=0) + BOX_WIDTH + MARGIN
    height = max((box.y for box in boxes.values()), default=0) + BOX_HEIGHT + MARGIN
    back = any(columns[other] <= columns[stage.name] for stage in flow.stages for other in stage.next if other in boxes)
    return Graph(width, height + (GAP_Y if back else 0), tuple(boxes.values()), tuple(arrows), _in_words(flow))


def _columns(flow: FlowView) -> Mapping[str, int]:
    if not flow.known:
        return {stage.name: number for number, stage in enumerate(flow.stages)}
    return ranks({stage.name: (*stage.next, *stage.children) for stage in flow.stages})


def _arrow(start: Box, end: Box, *, children: bool) -> Arrow:
    """Draw an arrow: to the right between the boxes, or back below them."""
    if end.x > start.x:
        x1, y1, x2, y2 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2, end.x - 6, end.y + BOX_HEIGHT // 2
        bend = GAP_X // 2
        path = f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
        return Arrow(path, f"{x2},{y2 - 4} {x2 + 6},{y2} {x2},{y2 + 4}", children)
    x1, x2 = start.x + BOX_WIDTH // 2 + 12, end.x + BOX_WIDTH // 2 - 12
    y1, y2 = start.y + BOX_HEIGHT, end.y + BOX_HEIGHT + 6
    path = f"M{x1} {y1}C{x1} {y1 + GAP_Y} {x2} {y2 + GAP_Y} {x2} {y2}"
    return Arrow(path, f"{x2 - 4},{y2} {x2},{y2 - 6} {x2 + 4},{y2}", children)


def _in_words(flow: FlowView) -> str:
    """Describe the ways of a flow."""
    ways = [f"{stage.name} leads to {', '.join(stage.next)}" for stage in flow.stages if stage.next]
    ways += [f"{stage.name} fans out to {', '.join(stage.children)}" for stage in flow.stages if stage.children]
    return f"The stages of {flow.name}: " + "; ".join(ways or [stage.name for stage in flow.stages])
