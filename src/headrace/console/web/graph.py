"""An SVG drawing of a flow's stages, or of one run. It has columns from left to right, and an arrow
for each way on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import field, frozen

from headrace.inspect import ChildView, FlowView, RunView, StageView
from headrace.platform import ranks

BOX_WIDTH, BOX_HEIGHT = 168, 62
RUN_WIDTH, LINE = 236, 24  # of a box of a run, and of a link in it
WORDS = {"leased": "running"}  # for states
ORDER = ("failed", "cancelled", "running", "blocked", "completed")  # of a run's children
GAP_X, GAP_Y, MARGIN = 52, 18, 6


@frozen
class Box:
    stage: StageView
    x: int
    y: int
    height: int = BOX_HEIGHT


@frozen
class Node:
    """A stage in one run.

    `state` is the state of the run's job there, empty before it comes. `took` is its seconds.
    `numbers` counts the run's children there by state, and `children` has the first of them.
    """

    state: str = ""
    took: float | None = None
    numbers: Mapping[str, int] = field(factory=dict[str, int])
    children: tuple[ChildView, ...] = ()

    @property
    def there(self) -> bool:
        return self.state not in ("", "completed", "cancelled")

    @property
    def lines(self) -> list[str]:
        words = [f"{number:,} {WORDS.get(state, state)}" for state, number in self.numbers.items()]
        return [" · ".join(words[at : at + 2]) for at in range(0, len(words), 2)]

    @property
    def top(self) -> int:
        return max(BOX_HEIGHT, 33 + 17 * (bool(self.state) + len(self.lines)))

    @property
    def height(self) -> int:
        return self.top + LINE * len(self.children)


@frozen
class Arrow:
    path: str
    head: str
    children: bool


@frozen
class Graph:
    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    summary: str
    box: int = BOX_WIDTH
    """The width of its boxes."""


def drawn(flow: FlowView, nodes: Mapping[str, Node] | None = None) -> Graph:
    columns = _columns(flow)
    wide = BOX_WIDTH if nodes is None else RUN_WIDTH
    ends: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    for stage in flow.stages:
        column = columns[stage.name]
        x, y = MARGIN + column * (wide + GAP_X), ends.get(column, MARGIN)
        boxes[stage.name] = box = Box(
            stage, x, y, BOX_HEIGHT if nodes is None else nodes[stage.name].height
        )
        ends[column] = y + box.height + GAP_Y
    arrows = [
        _arrow(boxes[stage.name], boxes[other], wide, children=other in stage.children)
        for stage in flow.stages
        for other in (*stage.next, *stage.children)
        if other in boxes
    ]
    width = max((box.x for box in boxes.values()), default=0) + wide + MARGIN
    height = max((box.y + box.height for box in boxes.values()), default=0) + MARGIN
    back = any(
        columns[other] <= columns[stage.name]
        for stage in flow.stages
        for other in stage.next
        if other in boxes
    )
    return Graph(
        width,
        height + (GAP_Y if back else 0),
        tuple(boxes.values()),
        tuple(arrows),
        _in_words(flow),
        wide,
    )


def nodes(flow: FlowView, run: RunView) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for stage in flow.stages:
        name = stage.name
        state, took = ("completed", run.passed[name]) if name in run.passed else ("", None)
        if name == run.stage:
            state = run.job or run.state
            took = run.took
        here = [child for child in run.parts if child.stage == name]
        numbers = Counter(child.shown for child in here)
        first = sorted(
            here, key=lambda child: ORDER.index(child.state) if child.state in ORDER else len(ORDER)
        )
        found[name] = Node(state, took, numbers, tuple(first[:3]))  # children to link to
    return found


def _columns(flow: FlowView) -> Mapping[str, int]:
    if not flow.known:
        return {stage.name: number for number, stage in enumerate(flow.stages)}
    return ranks({stage.name: (*stage.next, *stage.children) for stage in flow.stages})


def _arrow(start: Box, end: Box, wide: int, *, children: bool) -> Arrow:
    if end.x > start.x:
        x1, y1, x2, y2 = (
            start.x + wide,
            start.y + BOX_HEIGHT // 2,
            end.x - 6,
            end.y + BOX_HEIGHT // 2,
        )
        bend = GAP_X // 2
        path = f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
        return Arrow(path, f"{x2},{y2 - 4} {x2 + 6},{y2} {x2},{y2 + 4}", children)
    x1, x2 = start.x + wide // 2 + 12, end.x + wide // 2 - 12
    y1, y2 = start.y + start.height, end.y + end.height + 6
    path = f"M{x1} {y1}C{x1} {y1 + GAP_Y} {x2} {y2 + GAP_Y} {x2} {y2}"
    return Arrow(path, f"{x2 - 4},{y2} {x2},{y2 - 6} {x2 + 4},{y2}", children)


def _in_words(flow: FlowView) -> str:
    ways = [f"{stage.name} leads to {', '.join(stage.next)}" for stage in flow.stages if stage.next]
    ways += [
        f"{stage.name} fans out to {', '.join(stage.children)}"
        for stage in flow.stages
        if stage.children
    ]
    return f"The stages of {flow.name}: " + "; ".join(ways or [stage.name for stage in flow.stages])
