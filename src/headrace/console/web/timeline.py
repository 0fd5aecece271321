"""The timeline of a job, with a bar for its wait, each attempt and each step, on one axis of
time."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from headrace.inspect import Attempt, JobView, Step

# of ended attempts
COLOURS = {"suspended": "quiet", "failed": "bad", "died": "bad", "completed": "good"}
LEAST = 1.0  # per cent: the width of a bar at least
STEP_COLOURS = {
    "done": "good",
    "slept": "quiet",
    "signalled": "good",
    "timed out": "bad",
    "kept": "quiet",
    "not kept": "quiet",
}
PAUSES = {"delayed": "warn", "blocked": "warn", "waiting": "accent", "parked": "accent"}


@frozen
class Bar:
    """A bar of a timeline, with its `label` and its colour.

    `state` is how it ended or stands. `began` and `ended` are `None` if they are not known, or not
    yet. `start` and `width` are its place, in per cent of the axis. With a `bound` it took at least
    (≥) or at most (≤) so long.
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
    start: float = 0.0
    width: float = 0.0

    @property
    def took(self) -> float | None:
        return (
            None if self.began is None or self.ended is None else max(0.0, self.ended - self.began)
        )


@frozen
class Timeline:
    """The bars of a job from its first enqueue to its end, or to now, or to its due time."""

    bars: tuple[Bar, ...]
    steps: tuple[Bar, ...]
    start: float
    end: float
    unknown: int
    """Attempts that are not recorded."""


def timeline(job: JobView, now: float) -> Timeline:
    bars = list(_bars(job, now))
    steps = [_step(step, now, job.finished) for step in job.steps]
    times = [at for bar in (*bars, *steps) for at in (bar.began, bar.ended) if at is not None]
    start = min(times, default=now)
    end = max([*times, start + 0.001])
    recorded = sum(bar.label.startswith(job.counted.capitalize()) for bar in bars)
    placed = [tuple(_placed(bar, start, end) for bar in some) for some in (bars, steps)]
    return Timeline(placed[0], placed[1], start, end, max(0, _made(job) - recorded))


def begun_by(job: JobView) -> float | None:
    """Return the time at which the attempt of a running job had begun.

    Its lease may have been renewed since, but its steps may be older.
    """
    if job.state != "leased":
        return None
    times = [job.since, *(step.began for step in job.steps if step.attempt == job.attempt)]
    return min((at for at in times if at is not None), default=None)


def _placed(bar: Bar, start: float, end: float) -> Bar:
    known = [at for at in (bar.began, bar.ended) if at is not None]
    if not known:
        return bar
    first, last = ((at - start) / (end - start) * 100 for at in (known[0], known[-1]))
    width = max(LEAST, last - first)
    return evolve(bar, start=round(min(first, 100 - width), 2), width=round(width, 2))


def _bars(job: JobView, now: float) -> Iterator[Bar]:
    attempts = _attempts(job)
    word = job.counted.capitalize()
    delivered = begun_by(job)
    first = delivered if job.attempt == 1 else None
    if attempts:
        first = attempts[0].began
    left = first if attempts or job.state == "leased" else job.finished or min(now, job.due or now)
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
    elif job.state in PAUSES and (attempts or job.due):
        began = attempts[-1].ended if attempts else now
        yield Bar(job.state.capitalize(), "", PAUSES[job.state], began, max(now, job.due or now))
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
    """Return the attempts that have ended. The last one is among them even if only its end is
    known."""
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
