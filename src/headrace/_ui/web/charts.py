"""Charts of a queue's trends: lines over time as points of SVG, and the same as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from headrace._model.views import EVERY_S, Every, TrendPoint, Trends
from headrace._ui.texts import rate, span

WIDTH, HEIGHT = 720, 96
COLUMNS = 240  # of a chart at most: what is denser is put together
ROWS = 24  # of the table
SPANS: dict[str, tuple[str, Every, int]] = {
    "2h": ("Two hours", "minute", 120), "2d": ("Two days", "minute", 2880), "90d": ("90 days", "hour", 2160),
}  # fmt: skip
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
    return lambda some: sum(getattr(one, name) for one in some) / max(1.0, sum(one.seconds for one in some))


def _most(name: str) -> Measure:
    return lambda some: float(max(getattr(one, name) for one in some))


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
    """Put the points together by their place in the time that is shown."""
    long = number * EVERY_S[trends.every]
    found: dict[int, list[TrendPoint]] = {}
    for one in trends.points:
        at = columns - 1 - int((trends.now - one.at) / long * columns)
        found.setdefault(max(0, at), []).append(one)
    return found


def charts(trends: Trends, number: int) -> list[Chart]:
    """Draw the charts of the last *number* minutes or hours."""
    columns = min(COLUMNS, number)
    places = _columns(trends, number, columns)
    return [_chart(title, write, lines, places, columns) for title, write, lines in DRAWN] if places else []


def _chart(
    title: str, write: Callable[[float], str], lines: Sequence[tuple[str, str, Measure]],
    places: dict[int, list[TrendPoint]], columns: int,
) -> Chart:  # fmt: skip
    values = [{at: measure(some) for at, some in sorted(places.items())} for _, _, measure in lines]
    top = max((value for one in values for value in one.values()), default=0.0)
    drawn = [
        Line(name, kind, _parts(value, top, columns), write(value[max(value)]))
        for (name, kind, _), value in zip(lines, values, strict=True)
    ]
    return Chart(title, tuple(drawn), write(top))


def _parts(values: dict[int, float], top: float, columns: int) -> tuple[str, ...]:
    """Write the points of a line, which is broken where nothing was kept."""
    parts: list[list[str]] = []
    last = -2
    for at, value in values.items():
        if at != last + 1:
            parts.append([])
        x, y = at * WIDTH / max(1, columns - 1), HEIGHT - 1 - value / (top or 1.0) * (HEIGHT - 2)
        parts[-1].append(f"{x:.1f},{y:.1f}")
        last = at
    return tuple(" ".join(part if len(part) > 1 else [*part, *part]) for part in parts)


def rows(trends: Trends, number: int) -> list[tuple[float, Sequence[str]]]:
    """Write the same as a table, the newest first: each time with its values."""
    places = _columns(trends, number, ROWS)
    shown: list[tuple[float, Sequence[str]]] = []
    for _, some in sorted(places.items(), reverse=True):
        sums = [_number(sum(getattr(one, name) for one in some)) for name in ("enqueued", "completed", "removed")]
        most = [_number(_most(name)(some)) for name in ("waiting", "leased", "delayed", "dead")]
        shown.append((some[0].at, (*sums, *most, span(_most("lag")(some)))))
    return shown
