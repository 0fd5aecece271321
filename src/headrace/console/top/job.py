"""The rows of jobs in tables, by state, and the pane of one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from headrace.console.texts import clock, from_now, took
from headrace.console.timeline import Bar, Family, below, timeline, waits
from headrace.console.top.acts import DEAD_BINDINGS, JOB_BINDINGS, JOB_KEYS, RUN_KEYS, job_action
from headrace.console.top.pane import LEAST_FLEXIBLE, Column, Key, Pane, PendingAction, Row, cell
from headrace.inspect import Attempt, JobView, Step
from headrace.platform import LIMITS, cause_first, one_line, span

Cell = Callable[[JobView, float], str]
WIDE = LEAST_FLEXIBLE * 3  # cells of the marks of a step
SIGNS = {"bad": "✗"}  # of marks, by colour


def _state_word(state: str) -> str:
    return "running" if state == "leased" else state


CELLS: Mapping[str, tuple[Column, Cell]] = {
    "job": (Column("job", 15, flexible=1, middle=True), lambda job, _: one_line(job.id)),
    "kind": (Column("kind", 8, flexible=1), lambda job, _: job.kind or ""),
    "state": (Column("state", 9), lambda job, _: _state_word(job.state)),
    "attempt": (Column("att", 3, right=True), lambda job, _: str(job.attempt or "")),
    "age": (Column("age", 6, right=True), lambda job, now: since(job.enqueued_at, now)),
    "due": (Column("due", 10, right=True), lambda job, now: from_now(job.due, now, narrow=True)),
    "at": (Column("ended", 10, right=True), lambda job, now: from_now(job.since, now, narrow=True)),
    "took": (Column("took", 6, right=True), lambda job, _: took(job.duration, narrow=True)),
    "worker": (
        Column("worker", flexible=2, middle=True),
        lambda job, _: one_line(job.holder or ""),
    ),
    "reason": (Column("reason", flexible=4), lambda job, _: one_line(cause_first(job.told or ""))),
    "payload": (Column("payload", flexible=3), lambda job, _: job.payload.line),
}
SHOWN: Mapping[str, Sequence[str]] = {
    "waiting": ("job", "kind", "state", "attempt", "age", "payload"),
    "running": ("job", "kind", "attempt", "took", "worker", "payload"),
    "worker": ("job", "kind", "attempt", "took", "payload"),
    "delayed": ("job", "kind", "attempt", "due", "reason", "payload"),
    "blocked": ("job", "kind", "attempt", "age", "payload"),
    "ended": ("job", "kind", "state", "attempt", "at", "took", "payload"),
    "dead": ("job", "kind", "attempt", "at", "took", "reason", "payload"),
}
JOB_COLUMNS = {state: [CELLS[name][0] for name in names] for state, names in SHOWN.items()}


def since(moment: float | None, now: float) -> str:
    return "" if moment is None else span(max(0.0, now - moment))


def job_row(job: JobView, now: float, state: str) -> Row:
    return Row((job.id, job.state), tuple(CELLS[name][1](job, now) for name in SHOWN[state]))


class JobPane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [
        *JOB_BINDINGS,
        *DEAD_BINDINGS,
        ("i", "act('signal')", "Signal"),
    ]
    KEYS = f"""\
{RUN_KEYS}
{JOB_KEYS}
R  X    redrive the dead letter, remove it for good"""

    def __init__(self, queue: str, id: str) -> None:
        super().__init__()
        self.queue = queue
        self.job_id = id
        self.heading = f"{queue} · {one_line(id)}"
        self._job: JobView | None = None

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("", id="head")

    async def read(self) -> None:
        self._job = job = await self.top.inspector.job(self.queue, self.job_id)
        page = await self.top.inspector.queue(self.queue)
        if job is None:
            self.fill(page.now, ["Nothing is known of it: it has ended, or never was."])
            return
        next_up = page.queue.counts.waiting + page.queue.counts.parked
        family = await self.top.inspector.descendants(job.steps)
        self.fill(page.now, _lines(job, page.now, next_up, family))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:  # noqa: ARG002 - there is no table
        job = self._job
        if job is None:
            return None
        if action != "signal":
            return job_action(action, self.queue, job.id, job.state)
        name = next((step.name for step in waits(job) if step.state == "waiting"), None)
        if name is None:
            return None
        question = f"Data of the signal {one_line(name)}, JSON or text; Enter sends it:"
        fields = {"id": job.id, "signal": name}
        return PendingAction("signal", self.queue, question, fields, fill="data")


def _lines(job: JobView, now: float, next_up: int, family: Family) -> list[str | Text]:
    fields = {
        "state": _state_word(job.state),
        "kind": job.kind or "",
        "attempt": str(job.attempt) if job.attempt else "",
        "deliveries": str(job.deliveries) if job.is_run and job.deliveries else "",
        "priority": str(job.priority) if job.priority else "",
        "position": _position(job, next_up),
        "held by": one_line(job.holder or "") if job.state == "leased" else "",
        "ended with": one_line(job.holder or "") if job.ended else "",
        "token": "" if job.token is None else str(job.token),
        "until": "" if job.until is None else f"{clock(job.until)} ({from_now(job.until, now)})",
        "waited": took(job.wait),
        "runs for" if job.state == "leased" else "took": took(job.duration),
        "progress": ""
        if job.progress is None
        else f"{job.progress.fraction:.0%} {job.progress.text}",
    }
    lines: list[str | Text] = [Text(_wait(step, now), style="bold") for step in waits(job)]
    lines += [
        Text(f"{name:<10} ", style="bold") + Text(value) for name, value in fields.items() if value
    ]
    if job.steps:
        drawn = timeline(job, now)
        lines += ["", Text("steps", style="bold"), _lane(drawn.whole)]
        lines += [f"  {len(drawn.folded)} steps before, all done"] if drawn.folded else []
        for bar in drawn.steps:
            lines.append(_lane(bar))
            lines += [] if bar.step is None else map(_child_line, below(bar.step, family))
    lines += ["", Text("timeline", style="bold")]
    for event in job.timeline:
        when = "" if event.at is None else f"{clock(event.at)} ({from_now(event.at, now)}): "
        lines.append(f"  {when}{one_line(event.what)}")
    if job.attempts:
        title = "deliveries" if job.is_run else "attempts"
        lines += ["", Text(title, style="bold"), *(_attempt_line(one) for one in job.attempts)]
    if job.overcome and job.reason:
        lines += ["", Text("failed before", style="bold"), one_line(job.reason)]
    for title, text in (
        ("reason", job.told),
        ("traceback", None if job.overcome else job.traceback),
    ):
        lines += ["", Text(title, style="bold"), text] if text else []
    for title, payload in (
        ("result", job.result),
        ("payload", None if job.ended and not job.payload.size else job.payload),
    ):
        if payload is not None:
            note = f"{title}: {payload.kind}, {payload.size:,} bytes{', the beginning' if payload.cut else ''}"
            lines += ["", Text(note, style="bold"), payload.text]
    if job.headers:
        lines += ["", Text("headers", style="bold")]
        lines += [f"  {one_line(name)}: {one_line(value)}" for name, value in job.headers.items()]
    return lines


def _child_line(child: tuple[int, Step]) -> Text:
    deep, one = child
    style = "bold red" if one.state == "dead" else ""
    return Text(f"  {'  ' * deep}↳ {one_line(one.name)} · {one.state}", style)


def _position(job: JobView, next_up: int) -> str:
    if job.position is None:
        return ""
    if job.position >= LIMITS.jobs_per_script:
        return f"after {LIMITS.jobs_per_script:,} of {next_up:,}"
    return f"{job.position + 1:,} of {max(next_up, job.position + 1):,}"


def _attempt_line(one: Attempt) -> str:
    ran = "" if one.took is None else f"took {took(one.took)}"
    how = "suspended" if one.suspended else one_line(one.reason or one.error or "") or "completed"
    return "  " + " · ".join(
        filter(None, (str(one.number), clock(one.began), ran, one_line(one.worker or ""), how))
    )


def _wait(step: Step, now: float) -> str:
    what = "Waits for the signal" if step.state == "waiting" else "Sleeps:"
    until = "" if step.due is None else f", until {clock(step.due)}, {from_now(step.due, now)}"
    return f"{what} {one_line(step.name)}, since {clock(step.began)}{until}"


def _lane(bar: Bar) -> str:
    cells = "·" * WIDE
    for mark in bar.marks:
        first = min(WIDE - 1, int(mark.start * WIDE / 100))
        last = max(first + 1, round((mark.start + mark.width) * WIDE / 100))
        sign = "░" if mark.hatched else SIGNS.get(mark.colour, "█")
        cells = cells[:first] + sign * (last - first) + cells[last:]
    its = bar.step
    told = (
        f"  {cell(one_line(bar.label), 18).plain} {cells} {bar.bound}{took(bar.took)}",
        bar.state,
        f"by {one_line(its.by)}" if its and its.by else "",
        f"{its.omitted:,} bytes not kept" if its and its.omitted else "",
        one_line(its.result.line, 60) if its and its.result is not None else "",
    )
    return " · ".join(filter(None, told))
