"""The timeline of a job, with a lane for each step, or else for each attempt, on one axis of
time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from headrace.console.texts import clock, took
from headrace.inspect import Attempt, JobView, Step

# of ended attempts
COLOURS = {"suspended": "good", "failed": "bad", "died": "bad", "completed": "good"}
STEP_COLOURS = {
    "done": "good",
    "undoable": "good",
    "undone": "quiet",
    "dying": "bad",
    "slept": "quiet",
    "signalled": "good",
    "timed out": "bad",
    "kept": "quiet",
    "not kept": "quiet",
    "running": "good",  # of a child
    "dead": "bad",
    "cancelled": "quiet",
    "deleted": "quiet",
}
PAUSES = {"delayed": "warn", "blocked": "warn", "waiting": "accent", "parked": "accent"}
WAITS = ("sleeping", "slept", "waiting", "signalled", "timed out")  # steps that are no work
CALM = (
    "",
    "done",
    "undoable",
    "slept",
    "signalled",
    "completed",
    "suspended",
)  # states that need no badge
SHOWN_AT_MOST = 20  # steps; of more, the ones that went well are folded
SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
TICKS = 6  # of an axis at most
Family = Mapping[tuple[str, str], Sequence[Step]]  # children by queue and id, with their children


@frozen
class Mark:  # of a lane, in per cent of the axis
    start: float
    width: float
    colour: str
    hatched: bool = False


@frozen
class Bar:
    """A lane of a timeline, with its `label`, its colour and its marks.

    `state` is how it ended or stands. `began` and `ended` are `None` if they are not known, or not
    yet. With a `bound` it took at least (≥) or at most (≤) so long.
    """

    label: str
    state: str
    colour: str
    began: float | None
    ended: float | None
    attempt: Attempt | None = None
    step: Step | None = None
    worker: str | None = None
    bound: str = ""
    marks: tuple[Mark, ...] = ()

    @property
    def took(self) -> float | None:
        return (
            None if self.began is None or self.ended is None else max(0.0, self.ended - self.began)
        )

    @property
    def calm(self) -> bool:
        return self.state in CALM

    @property
    def hatched(self) -> bool:
        if self.step is not None:
            return self.state in WAITS
        return self.attempt is None and self.state != "running"


@frozen
class Timeline:
    """The lanes of a job from its first enqueue to its end, or to now.

    `whole` has all of its `bars` in one lane. `ticks` are places in per cent of the axis, each with
    a text and the text's anchor.
    """

    bars: tuple[Bar, ...]
    steps: tuple[Bar, ...]
    folded: tuple[Bar, ...]
    """Steps before `steps` that are done, of a run with many."""
    whole: Bar
    ticks: tuple[tuple[float, str, str], ...]
    unknown: int
    """Attempts that are not recorded."""


def timeline(job: JobView, now: float) -> Timeline:
    bars = list(_bars(job, now))
    steps = [_step(step, now, job.finished) for step in job.steps]
    times = [at for bar in (*bars, *steps) for at in (bar.began, bar.ended) if at is not None]
    start = min(times, default=now)
    end = max([*times, start + 0.001])
    if not job.finished:
        end = max(end, now)
    axis = (start, end)
    recorded = sum(bar.label.startswith(job.counted.capitalize()) for bar in bars)
    bars = [evolve(bar, marks=tuple(_marks((bar,), *axis))) for bar in bars]
    failed = _failures(job.attempts, steps)
    steps = [
        evolve(bar, marks=(*_marks((bar,), *axis), *_marks(failed.get(bar.label, ()), *axis)))
        for bar in steps
    ]
    folded, shown = _folded(steps)
    ran = _marks((bar for bar in bars if not bar.hatched), *axis)
    pauses = Mark(0.0, 100.0, "", hatched=True)
    whole = Bar("Deliveries", "", "", start, end, marks=(pauses, *ran))
    unknown = max(0, _made(job) - recorded)
    ended = job.finished is not None
    return Timeline(tuple(bars), shown, folded, whole, tuple(_ticks(*axis, ended)), unknown)


def waits(job: JobView) -> list[Step]:
    over = job.ended or job.state == "dead"
    return [step for step in job.steps if step.state in ("waiting", "sleeping") and not over]


def below(step: Step, family: Family, deep: int = 1) -> Iterator[tuple[int, Step]]:
    for one in family.get((step.queue or "", step.child or ""), ()):
        yield deep, one
        yield from below(one, family, deep + 1)


def begun_by(job: JobView) -> float | None:
    """Return the time at which the attempt of a running job had begun.

    Its lease may have been renewed since, but its steps may be older.
    """
    if job.state != "leased":
        return None
    times = [job.since, *(step.began for step in job.steps if step.attempt == job.attempt)]
    return min((at for at in times if at is not None), default=None)


def _marks(bars: Iterable[Bar], start: float, end: float) -> Iterator[Mark]:
    for bar in bars:
        known = [at for at in (bar.began, bar.ended) if at is not None]
        if known:
            first, last = ((at - start) / (end - start) * 100 for at in (known[0], known[-1]))
            width = max(0.5, last - first)  # per cent, so that a mark is seen
            place = round(min(first, 100 - width), 2)
            yield Mark(place, round(width, 2), bar.colour, bar.hatched)


def _failures(attempts: Sequence[Attempt], steps: Sequence[Bar]) -> dict[str, list[Bar]]:
    # A step is recorded when it ends, so an attempt failed at the step that was recorded next.
    found: dict[str, list[Bar]] = {}
    known = sorted(
        (bar for bar in steps if bar.began is not None), key=lambda bar: bar.began or 0.0
    )
    for one in attempts:
        if not one.failed or one.began is None:
            continue
        tried = next((bar for bar in known if (bar.began or 0.0) >= one.ended), None)
        if tried is not None:
            since = [at for at in (bar.ended for bar in known) if at and at <= one.ended]
            began = max([one.began, *since])
            found.setdefault(tried.label, []).append(
                Bar("", "failed", "bad", began, one.ended, one)
            )
    return found


def _folded(steps: Sequence[Bar]) -> tuple[tuple[Bar, ...], tuple[Bar, ...]]:
    if len(steps) <= SHOWN_AT_MOST:
        return (), tuple(steps)
    before, last = steps[:-SHOWN_AT_MOST], steps[-SHOWN_AT_MOST:]
    open_ones = [bar for bar in before if not bar.calm]
    return tuple(bar for bar in before if bar.calm), (*open_ones, *last)


def _ticks(start: float, end: float, ended: bool) -> Iterator[tuple[float, str, str]]:
    whole = end - start
    yield 0.0, f"{clock(start)[11:19]} UTC", "start"
    least = whole / TICKS
    every = next((one for one in SECONDS if one >= least), -(-least // 86400) * 86400)
    for number in range(1, TICKS):
        place = number * every / whole * 100
        if 15 < place < 88 and whole >= 1:
            yield round(place, 2), f"+{took(float(number * every))}", "middle"
    yield 100.0, clock(end)[11:19] or "the end" if ended else "now", "end"


def _bars(job: JobView, now: float) -> Iterator[Bar]:
    attempts = _attempts(job)
    word = job.counted.capitalize()
    delivered = begun_by(job)
    first = delivered if job.attempt == 1 else None
    if attempts:
        first = attempts[0].began
    left = first if attempts or job.state == "leased" else job.finished or now
    if job.enqueued_at is not None and left is not None:
        yield Bar(
            "Wait",
            "",
            "accent",
            job.enqueued_at,
            left,
            bound="≤" if left and left == delivered else "",
        )
    for one in attempts:
        state = _how_ended(one, dead=job.state == "dead" and one is attempts[-1])
        label = f"{word} {one.number or ''}".rstrip()
        yield Bar(label, state, COLOURS[state], one.began, one.ended, one, worker=one.worker)
    if job.state == "leased":
        yield Bar(
            f"{word} {_last(job)}", "running", "good", delivered, now, worker=job.holder, bound="≥"
        )
    elif job.state in PAUSES and attempts:
        yield Bar(job.state.capitalize(), "", PAUSES[job.state], attempts[-1].ended, now)
    elif job.state in ("cancelled", "deleted"):
        yield Bar(job.state.capitalize(), "", "quiet", None, job.finished)


def _how_ended(one: Attempt, *, dead: bool) -> str:
    if one.suspended:
        return "suspended"
    if not one.failed:
        return "completed"
    return "died" if dead else "failed"


def _last(job: JobView) -> int:
    return job.deliveries if job.is_run and job.deliveries else job.attempt


def _made(job: JobView) -> int:
    if job.state in PAUSES:
        return job.deliveries if job.is_run else 0
    return _last(job)


def _attempts(job: JobView) -> list[Attempt]:
    attempts = list(job.attempts)
    last = _last(job)
    known = bool(attempts) and attempts[-1].number >= last
    if job.finished is not None and job.state in ("dead", "completed") and not known:
        reason = (job.reason or "it died") if job.state == "dead" else None
        attempts.append(Attempt(last, None, job.finished, job.holder, None, reason))
    return attempts


def _step(step: Step, now: float, job_ended: float | None) -> Bar:
    colour = STEP_COLOURS.get(step.state, "warn")
    if not step.began:  # it stands for many steps
        return Bar(step.name, step.state, colour, None, None, step=step)
    over = step.ended is not None or job_ended is not None
    ended = step.ended or job_ended or now
    return Bar(
        step.name, step.state, colour, step.began, ended, step=step, bound="" if over else "≥"
    )
