"""Lines over time in SVG, with axes, ticks and a legend. A queue's trends become charts and a
table.

Horizontal places are per cent, so a chart is as wide as its page, and its text is never stretched.
Its values are in `data` too: the script shows them below the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from attrs import frozen

from headrace.console.texts import clock, rate
from headrace.inspect import TrendPoint, Trends
from headrace.platform import span

WIDTH, HEIGHT = 1000, 120  # of the plot's own coordinates; its height is in pixels, too
SMALL_WIDTH, SMALL_HEIGHT = 120, 24
LEAST_HEIGHT = 1.5  # of a bar's part
Every = Literal["minute", "hour"]
EVERY_S = {"minute": 60, "hour": 3600}  # seconds between two records
SPANS: dict[str, tuple[str, Every, int]] = {
    "5m": ("5 minutes", "minute", 5),
    "30m": ("30 minutes", "minute", 30),
    "2h": ("2 hours", "minute", 120),
    "12h": ("12 hours", "minute", 720),
    "2d": ("2 days", "minute", 2880),
    "14d": ("14 days", "hour", 336),
    "90d": ("90 days", "hour", 2160),
}
# between two ticks
STEPS_S = (1, 5, 10, 30, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
FORMS = ((86400, "%d %b"), (60, "%H:%M"))  # of ticks that are so many seconds apart
Measure = Callable[[Sequence[TrendPoint]], float]
Write = Callable[[float], str]


@frozen
class Line:
    name: str
    colour: str
    parts: tuple[str, ...]
    last: str


@frozen
class Tick:
    place: float
    label: str
    anchor: str = "middle"


@frozen
class Chart:
    title: str
    lines: tuple[Line, ...]
    heights: tuple[Tick, ...]
    times: tuple[Tick, ...]
    data: str
    summary: str
    bars: bool = False
    """Whether the parts of lines are the paths of bars, one upon another."""


def draw(
    title: str,
    times: Sequence[float],
    lines: Sequence[tuple[str, str, Sequence[float]]],
    write: Write,
    first: float | None = None,
    step: float = math.inf,
    least: float = 0.0,
) -> Chart:
    """Draw *lines*, each a name, a colour and a value for each of *times* (seconds, ascending),
    from *first* on.

    *write* puts a value into words. A line is broken where two times are more than *step* seconds
    apart. The axis of values reaches *least* at least.
    """
    start = times[0] if first is None else min(first, times[0])
    end = max(times[-1], start + 1.0)
    top = _round_up(max((value for _, _, values in lines for value in values), default=0.0), least)
    places = [(at - start) / (end - start) * WIDTH for at in times]
    breaks = [i for i, (a, b) in enumerate(pairwise(times), 1) if b - a > step]
    drawn = tuple(
        Line(name, colour, _parts(places, values, breaks, top), write(values[-1]))
        for name, colour, values in lines
    )
    heights = tuple(Tick(HEIGHT - HEIGHT * part / 2, write(top * part / 2)) for part in (0, 1, 2))
    moments = [clock(at) for at in times]
    values = [
        {"name": name, "values": [write(value) for value in values]} for name, _, values in lines
    ]
    data = json.dumps(
        {
            "labels": moments,
            "places": [round(place / WIDTH * 100, 2) for place in places],
            "lines": values,
        },
        separators=(",", ":"),
    )
    most = ", ".join(
        f"{name} at most {write(max(values))}, now {write(values[-1])}" for name, _, values in lines
    )
    return Chart(title, drawn, heights, _times(start, end), data, f"{title}: {most}")


def stack(
    title: str,
    times: Sequence[float],
    lines: Sequence[tuple[str, str, Sequence[float]]],
    write: Write,
    first: float,
    last: float,
    step: float,
) -> Chart:
    """Draw bars of *step* seconds that begin at *times*, from *first* to *last*. The first of
    *lines* stands at the bottom. A part that is not 0 can always be seen.
    """
    top = _round_up(max(map(sum, zip(*(values for _, _, values in lines), strict=True))), 2.0)
    wide = step / (last - first) * WIDTH
    base = [float(HEIGHT)] * len(times)
    drawn: list[Line] = []
    for name, colour, values in lines:
        path: list[str] = []
        for number, (at, value) in enumerate(zip(times, values, strict=True)):
            if value:
                high = max(value / top * HEIGHT, LEAST_HEIGHT)
                base[number] -= high
                left = (at - first) / (last - first) * WIDTH
                path.append(
                    f"M{left:.1f} {base[number]:.1f}h{wide * 0.8:.1f}v{high:.1f}h-{wide * 0.8:.1f}z"
                )
        drawn.append(Line(name, colour, ("".join(path),), write(sum(values))))
    places = [round((at + step / 2 - first) / (last - first) * 100, 2) for at in times]
    said = [
        {"name": name, "values": [write(value) for value in values]} for name, _, values in lines
    ]
    data = {"labels": [clock(at) for at in times], "places": places, "lines": said}
    heights = tuple(Tick(HEIGHT - HEIGHT * part / 2, write(top * part / 2)) for part in (0, 1, 2))
    summary = ", ".join(f"{name} {write(sum(values))}" for name, _, values in lines)
    return Chart(
        title,
        tuple(drawn),
        heights,
        _times(first, last),
        json.dumps(data, separators=(",", ":")),
        f"{title}: {summary}",
        bars=True,
    )


def _round_up(value: float, least: float) -> float:
    """Return the next of 1, 2, 4, 6, 8, 10, … for the top of an axis. The middle of the axis
    then has a short label too.
    """
    value = max(value, least)
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(size * power for size in (1, 2, 4, 6, 8, 10) if value <= size * power * (1 + 1e-9))


def _times(start: float, end: float) -> tuple[Tick, ...]:
    # ticks of the axis
    step = next((size for size in STEPS_S if (end - start) / size <= 6), STEPS_S[-1])
    form = next((form for least, form in FORMS if step >= least), "%H:%M:%S")
    moments = (
        number * step for number in range(math.ceil(start / step), math.floor(end / step) + 1)
    )
    ticks = [_tick((at - start) / (end - start) * 100, at, form) for at in moments]
    inner = tuple(tick for tick in ticks if tick.anchor == "middle")
    return inner if len(inner) > 1 else tuple(ticks)  # in a narrow chart they would overlap


def _tick(place: float, at: float, form: str) -> Tick:
    anchor = "middle"
    if place < 4:
        anchor = "start"
    elif place > 96:
        anchor = "end"
    return Tick(round(place, 2), datetime.fromtimestamp(at, UTC).strftime(form), anchor)


def _parts(
    places: Sequence[float], values: Sequence[float], breaks: Sequence[int], top: float
) -> tuple[str, ...]:
    points = [
        f"{x:.1f},{HEIGHT - value / top * HEIGHT:.1f}"
        for x, value in zip(places, values, strict=True)
    ]
    parts = [points[a:b] for a, b in pairwise([0, *breaks, len(points)])]
    return tuple(" ".join(part if len(part) > 1 else [*part, *part]) for part in parts)


def _a_second(name: str) -> Measure:
    return lambda group: (
        sum(getattr(one, name) for one in group) / max(1.0, sum(one.seconds for one in group))
    )


def _most(name: str) -> Measure:
    return lambda group: float(max(getattr(one, name) for one in group))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


DRAWN: Sequence[tuple[str, Write, Sequence[tuple[str, str, Measure]]]] = (
    (
        "Jobs a second",
        rate,
        (("in", "accent", _a_second("enqueued")), ("done", "good", _a_second("completed"))),
    ),
    (
        "Waiting and later",
        _number,
        (("waiting", "accent", _most("waiting")), ("later", "warn", _most("later"))),
    ),
    ("Running", _number, (("running", "good", _most("leased")),)),
    ("Dead", _number, (("dead", "bad", _most("dead")),)),
    ("Oldest waiting", span, (("oldest", "accent", _most("lag")),)),
)


def _columns(trends: Trends, number: int, columns: int) -> dict[int, list[TrendPoint]]:
    seconds = number * EVERY_S[trends.every]
    groups: dict[int, list[TrendPoint]] = {}
    for point in trends.points:
        place = columns - 1 - int((trends.now - point.at) / seconds * columns)
        groups.setdefault(max(0, place), []).append(point)
    return groups


def charts(trends: Trends, number: int) -> list[Chart]:
    columns = min(180, number)  # denser points are put together
    groups = [group for _, group in sorted(_columns(trends, number, columns).items())]
    seconds = number * EVERY_S[trends.every]
    times = [group[-1].at for group in groups]
    return [
        draw(
            title,
            times,
            [
                (name, colour, [measure(group) for group in groups])
                for name, colour, measure in lines
            ],
            write,
            trends.now - seconds,
            2.5 * seconds / columns,
            0.0 if write is rate else 2.0,
        )
        for title, write, lines in (DRAWN if times else ())
    ]


def rows(trends: Trends, number: int) -> list[tuple[float, Sequence[str]]]:
    shown: list[tuple[float, Sequence[str]]] = []
    for _, group in sorted(_columns(trends, number, 24).items(), reverse=True):  # rows of the table
        sums = [
            _number(sum(getattr(one, name) for one in group))
            for name in ("enqueued", "completed", "removed")
        ]
        most = [_number(_most(name)(group)) for name in ("waiting", "leased", "later", "dead")]
        shown.append((group[0].at, (*sums, *most, span(_most("lag")(group)))))
    return shown


def bars(hour: Sequence[tuple[int, int]], which: int) -> str:
    """Return the path of one of the two numbers of a small chart of an hour. Two minutes are a bar,
    in which the failed attempts stand on the completed jobs.
    """
    pairs = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(hour[::2], hour[1::2], strict=False)]
    top = max((sum(pair) for pair in pairs), default=0) or 1
    wide = SMALL_WIDTH / max(1, len(pairs))
    path: list[str] = []
    for number, pair in enumerate(pairs):
        if pair[which]:
            high = max(pair[which] / top * SMALL_HEIGHT, LEAST_HEIGHT)
            low = SMALL_HEIGHT - which * pair[0] / top * SMALL_HEIGHT
            path.append(f"M{number * wide:.0f} {low:.1f}v-{high:.1f}h{wide - 1:.0f}v{high:.1f}z")
    return "".join(path)


def points(trail: Sequence[tuple[float, float]], which: int) -> str:
    top = max((max(pair) for pair in trail), default=0.0) or 1.0
    step = SMALL_WIDTH / max(1, len(trail) - 1)
    return " ".join(
        f"{i * step:.1f},{SMALL_HEIGHT - 1 - pair[which] / top * (SMALL_HEIGHT - 2):.1f}"
        for i, pair in enumerate(trail)
    )
