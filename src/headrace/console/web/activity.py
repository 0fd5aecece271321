"""The charts and tables of the counts of workers, by kind and by machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from attrs import frozen

from headrace.console.texts import percent, took
from headrace.console.web.charts import Chart, draw, stack
from headrace.console.web.render import to
from headrace.console.web.request import NotThere, PageRequest
from headrace.inspect import Activity, ActivityPoint, Ends, MachineWork

Step = Literal["minute", "ten minutes"]
SPANS: Mapping[str, tuple[str, Step, int]] = {  # the words, the step of the records, the seconds
    "1h": ("1 hour", "minute", 3600),
    "2h": ("2 hours", "minute", 7200),
    "24h": ("24 hours", "ten minutes", 86_400),
}
SPAN = "2h"  # that is shown first
SECONDS = {"minute": 60, "ten minutes": 600}  # of a record
COLOURS = ("accent", "good", "warn", "quiet")
DRAWN = len(COLOURS)  # kinds, or machines, that have a line
OTHERS = "others"


@frozen
class KindRow:
    kind: str | None
    ends: Ends

    @property
    def name(self) -> str:
        return OTHERS if self.kind is None else self.kind or "without a kind"

    @property
    def failing(self) -> float:
        failed = self.ends.retried + self.ends.died
        return failed / max(1, self.ends.done + failed)

    @property
    def wait(self) -> float | None:
        return Ends.p95(self.ends.waits)

    @property
    def run(self) -> float | None:
        return Ends.p95(self.ends.runs)


@frozen
class MachineRow:
    name: str
    work: MachineWork


@frozen
class Shown:
    ends: Chart
    waits: Chart | None
    runs: Chart | None
    busy: Chart | None
    share: float | None  # the busy part of the workers' time, all in all
    kinds: tuple[KindRow, ...]
    machines: tuple[MachineRow, ...]
    late: int
    minutes: int  # from the beginning of the charts until now


def span_of(request: PageRequest) -> str:
    span = request.param("span", SPAN)
    if span not in SPANS:
        raise NotThere(f"There is no span {span!r}.")
    return span


def links(page: str, /, **asked: object) -> list[tuple[str, str, str]]:
    return [(key, text, to(page, **{**asked, "span": key})) for key, (text, *_) in SPANS.items()]


async def read(
    request: PageRequest, names: Sequence[str], span: str, kind: str | None = None
) -> Shown | None:
    _, step, seconds = SPANS[span]
    return shown(await request.inspector.activity(names, step), seconds, kind)


def shown(activity: Activity, whole: int, kind: str | None = None) -> Shown | None:
    seconds = SECONDS[activity.step]
    last = (activity.now // seconds + 1) * seconds
    points = [
        point
        for point in activity.points
        if point.at >= last - whole and (kind is None or kind in point.kinds)
    ]
    if not points:
        return None
    # there is room for 30 bars, however young the counts are
    first = max(last - whole, min(points[0].at, last - 30 * seconds))
    some = [list(point.kinds.values()) if kind is None else [point.kinds[kind]] for point in points]
    times = [point.at for point in points]
    counts = [
        (name, colour, [float(sum(getattr(one, name) for one in ends)) for ends in some])
        for name, colour in (("died", "bad"), ("retried", "warn"), ("done", "accent"))
    ]
    title = "Jobs a minute" if seconds == 60 else "Jobs in ten minutes"
    kinds = _kinds(points, kind)
    machines = _machines(points)
    every = MachineWork(
        busy=sum(one.work.busy for one in machines), slots=sum(one.work.slots for one in machines)
    )
    lines = [row for row in kinds if row.kind is not None][:DRAWN]
    return Shown(
        stack(title, times, counts, _number, first, last, seconds),
        _lines("Wait, p95", points, lines, lambda ends: Ends.p95(ends.waits), first, seconds),
        _lines("Run, p95", points, lines, lambda ends: Ends.p95(ends.runs), first, seconds),
        _busy(points, machines, first, seconds) if kind is None else None,
        every.share,
        tuple(kinds),
        tuple(machines),
        activity.late,
        round((activity.now - first) / 60),
    )


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _kinds(points: Sequence[ActivityPoint], only: str | None) -> list[KindRow]:
    found = {kind for point in points for kind in point.kinds if only is None or kind == only}
    rows = [
        KindRow(kind, Ends.of(point.kinds[kind] for point in points if kind in point.kinds))
        for kind in found
    ]
    return sorted(
        rows, key=lambda row: (row.kind is None, -row.ends.done - row.ends.died, row.name)
    )


def _machines(points: Sequence[ActivityPoint]) -> list[MachineRow]:
    sums: dict[str | None, MachineWork] = {}
    for point in points:
        for name, one in point.machines.items():
            there = sums.get(name, MachineWork())
            sums[name] = MachineWork(
                there.done + one.done,
                there.retried + one.retried,
                there.died + one.died,
                there.busy + one.busy,
                there.slots + one.slots,
            )
    rows = [MachineRow(OTHERS if name is None else name, one) for name, one in sums.items()]
    return sorted(rows, key=lambda row: (-row.work.slots, row.name))


def _lines(
    title: str,
    points: Sequence[ActivityPoint],
    rows: Sequence[KindRow],
    measure: Callable[[Ends], float | None],
    first: float,
    seconds: float,
) -> Chart | None:
    measured = {
        row.name: [
            measure(point.kinds[row.kind]) if row.kind in point.kinds else None for point in points
        ]
        for row in rows
    }
    return _drawn(title, points, measured, first, seconds, took)


def _busy(
    points: Sequence[ActivityPoint], machines: Sequence[MachineRow], first: float, seconds: float
) -> Chart | None:
    measured = {
        row.name: [
            point.machines[row.name].share if row.name in point.machines else None
            for point in points
        ]
        for row in machines
        if row.name != OTHERS
    }
    some = dict(list(measured.items())[:DRAWN])
    return _drawn("Workers busy", points, some, first, seconds, percent, 1.0)


def _drawn(
    title: str,
    points: Sequence[ActivityPoint],
    measured: Mapping[str, Sequence[float | None]],
    first: float,
    seconds: float,
    write: Callable[[float], str],
    least: float = 0.0,
) -> Chart | None:
    known = [
        number
        for number in range(len(points))
        if any(values[number] is not None for values in measured.values())
    ]
    if not known:
        return None
    lines = [
        (name, colour, _filled([values[number] for number in known]))
        for (name, values), colour in zip(measured.items(), COLOURS, strict=False)
        if any(value is not None for value in values)
    ]
    times = [points[number].at for number in known]
    return draw(title, times, lines, write, first, 2.5 * seconds, least)


def _filled(values: Sequence[float | None]) -> list[float]:
    last = next(value for value in values if value is not None)
    filled: list[float] = []
    for value in values:
        last = last if value is None else value
        filled.append(last)
    return filled
