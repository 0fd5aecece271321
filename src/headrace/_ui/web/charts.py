"""Charts: lines over time as points of SVG, and a queue's trends as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from headrace._model.views import EVERY_S, Every, TrendPoint, Trends
from headrace._ui.texts import rate, span

WIDTH, HEIGHT = 720, 96
SMALL_WIDTH, SMALL_HEIGHT = 120, 24
COLUMNS = 240  # of a chart at most: denser points are put together
ROWS = 24  # of the table
SPANS: dict[str, tuple[str, Every, int]] = {
    "2h": ("Two hours", "minute", 120),
    "2d": ("Two days", "minute", 2880),
    "90d": ("90 days", "hour", 2160),
}
Measure = Callable[[Sequence[TrendPoint]], float]


@frozen
class Line:
    """A line of a chart: its name, how it is drawn, its unbroken parts, and its last value in words."""

    name: str
    kind: str
    parts: tuple[str, ...]
    last: str


@frozen
class Chart:
    """A chart: its title, its lines, and the value at its top in words."""

    title: str
    lines: tuple[Line, ...]
    top: str


def _a_second(name: str) -> Measure:
    return lambda group: sum(getattr(one, name) for one in group) / max(1.0, sum(one.seconds for one in group))


def _most(name: str) -> Measure:
    return lambda group: float(max(getattr(one, name) for one in group))


def _number(value: float) -> str:
    return f"{value:,.0f}"


DRAWN: Sequence[tuple[str, Callable[[float], str], Sequence[tuple[str, str, Measure]]]] = (
    ("Jobs a second", rate, (("in", "in", _a_second("enqueued")), ("done", "done", _a_second("completed")))),
    ("Waiting, delayed", _number, (("waiting", "in", _most("waiting")), ("delayed", "done", _most("delayed")))),
    ("Running", _number, (("running", "in", _most("leased")),)),
    ("Dead letters", _number, (("dead", "in", _most("dead")),)),
    ("Age of the oldest of the next", span, (("oldest", "in", _most("lag")),)),
)


def _columns(trends: Trends, number: int, columns: int) -> dict[int, list[TrendPoint]]:
    """Group the points by their column of the chart."""
    seconds = number * EVERY_S[trends.every]
    groups: dict[int, list[TrendPoint]] = {}
    for point in trends.points:
        place = columns - 1 - int((trends.now - point.at) / seconds * columns)
        groups.setdefault(max(0, place), []).append(point)
    return groups


def charts(trends: Trends, number: int) -> list[Chart]:
    """Draw the charts of the last *number* minutes or hours."""
    columns = min(COLUMNS, number)
    places = sorted(_columns(trends, number, columns).items())
    drawn: list[Chart] = []
    for title, write, lines in DRAWN if places else ():
        values = [{place: measure(group) for place, group in places} for _, _, measure in lines]
        top = max(value for by_place in values for value in by_place.values())
        shown = [
            Line(name, kind, _parts(by_place, top, columns), write(by_place[max(by_place)]))
            for (name, kind, _), by_place in zip(lines, values, strict=True)
        ]
        drawn.append(Chart(title, tuple(shown), write(top)))
    return drawn


def _parts(values: dict[int, float], top: float, columns: int) -> tuple[str, ...]:
    """Write the points of a line, which is broken where nothing was recorded."""
    parts: list[list[str]] = []
    last = -2
    for place, value in values.items():
        if place != last + 1:
            parts.append([])
        x, y = place * WIDTH / max(1, columns - 1), HEIGHT - 1 - value / (top or 1.0) * (HEIGHT - 2)
        parts[-1].append(f"{x:.1f},{y:.1f}")
        last = place
    return tuple(" ".join(part if len(part) > 1 else [*part, *part]) for part in parts)


def rows(trends: Trends, number: int) -> list[tuple[float, Sequence[str]]]:
    """Write the trends as a table, the newest first: each time with its values."""
    shown: list[tuple[float, Sequence[str]]] = []
    for _, group in sorted(_columns(trends, number, ROWS).items(), reverse=True):
        sums = [_number(sum(getattr(one, name) for one in group)) for name in ("enqueued", "completed", "removed")]
        most = [_number(_most(name)(group)) for name in ("waiting", "leased", "delayed", "dead")]
        shown.append((group[0].at, (*sums, *most, span(_most("lag")(group)))))
    return shown


def points(trail: Sequence[tuple[float, float]], which: int) -> str:
    """Draw one of the two lines of a small chart: the points of a polyline, the newest at the right."""
    top = max((max(pair) for pair in trail), default=0.0) or 1.0
    step = SMALL_WIDTH / max(1, len(trail) - 1)
    return " ".join(
        f"{i * step:.1f},{SMALL_HEIGHT - 1 - pair[which] / top * (SMALL_HEIGHT - 2):.1f}"
        for i, pair in enumerate(trail)
    )
