"""The texts of jobs as they may be shown. They are bounded, printable and redacted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from headrace._model.codec import Codec, from_text
from headrace._model.event import ENDS
from headrace._model.flow import FlowState
from headrace._model.job import Job
from headrace._model.settings import KIND
from headrace._model.state import Attempt, JobState
from headrace._model.steps import Step
from headrace._model.terms import LimitView, Share
from headrace._model.views.jobs import ENDED, JobView, Moment
from headrace._model.views.texts import READ_BYTES, Payload, bounded, one_line, readable, text_of

Redact = Callable[[str, str, Job[Any]], str]
WAITS = {"waiting": "waits for the signal", "sleeping": "sleeps:"}  # by the states of steps


class Redaction:
    """Maker of the texts of jobs that may be shown."""

    def __init__(self, redact: Redact | None) -> None:
        if redact is not None and not callable(redact):
            raise TypeError(
                f"redact must be a function of (what, text, job), not {type(redact).__name__}"
            )
        self._redact = redact
        self.redacts = redact is not None  # a text that is shown may not be the one that is kept

    def gone(self, name: str, id: str, end: JobState[Any] | None, result: bytes | None) -> JobView:
        job: Job[Any] = Job(id, b"", name) if end is None else end.job
        shown = None if result is None else self.payload(job, result, "result")
        if end is None:
            nothing = Payload("text", "", 0)
            what = "completed; its result is kept"
            return JobView(
                id,
                name,
                ENDED[0],
                0,
                0,
                None,
                nothing,
                {},
                result=shown,
                timeline=(Moment(None, what),),
            )
        view = evolve(self.job(end, whole=True), result=shown)
        attempt = f" in {_numbered(view, job.attempt)}" if job.attempt else ""
        worker = f", with {end.worker}" if end.worker else ""
        first = [Moment(view.enqueued_at, "enqueued")] if view.enqueued_at else []
        last = Moment(end.since, f"{end.state}{attempt}{worker}")
        return evolve(view, timeline=(*first, *_ended(view), last))

    def job(
        self,
        state: JobState[Any],
        *,
        token: int | None = None,
        until: float | None = None,
        position: int | None = None,
        whole: bool = False,
        now: float | None = None,
    ) -> JobView:
        """Make the view of a job. It has only the beginnings of its texts, unless *whole*. *now* is
        the server's time.
        """
        job = state.job
        reason = None if not state.reason else self.text("reason", state.reason, job)
        traceback = (
            None
            if not (whole and state.traceback)
            else self.text("traceback", state.traceback, job)
        )
        headers = {
            one_line(name): bounded(self.text(f"header {name}", value, job), 2000)[0]
            for name, value in (job.headers.items() if whole else ())
        }
        view = JobView(
            job.id,
            job.queue,
            state.state,
            job.attempt,
            job.priority,
            state.enqueued_at,
            self.payload(job, job.payload, "payload"),
            headers,
            state.worker,
            state.since,
            state.due,
            None if reason is None else bounded(reason, 2000)[0],
            None if traceback is None else bounded(traceback)[0],
            token,
            until,
            position,
            kind=self.kind(job),
            wait=wait_of(state),
            duration=duration_of(state, now),
            finished=state.since if state.state in ENDS else None,
            deliveries=state.deliveries,
            suspended=state.suspended,
            overcome=state.overcome,
            children=state.children,
        )
        if not whole:
            return view
        view = evolve(
            view,
            steps=tuple(self._step(job, step) for step in state.steps),
            progress=state.progress,
        )
        view = evolve(view, attempts=tuple(self._attempt(job, one) for one in state.attempts))
        if state.progress is not None:
            text = one_line(self.text("progress", state.progress.text, job))
            view = evolve(view, progress=evolve(state.progress, text=text))
        return evolve(view, timeline=tuple(_timeline(view)))

    def kind(self, job: Job[Any]) -> str | None:
        return (
            one_line(self.text(f"header {KIND}", job.headers[KIND], job))
            if KIND in job.headers
            else None
        )

    def value(self, queue: str, header: str, value: str) -> str:
        return self.text(f"header {header}", value, Job("", b"", queue, headers={header: value}))

    def share(self, queue: str, fair: Sequence[str], share: Share) -> Share:
        parts = zip(fair, share.value, strict=False)
        return evolve(
            share,
            value=tuple(
                None if part is None else self.value(queue, header, part) for header, part in parts
            ),
        )

    def slots(self, queue: str, limit: LimitView) -> LimitView:
        values = (
            evolve(slot, value=self.value(queue, limit.key, slot.value)) for slot in limit.values
        )
        return evolve(limit, values=tuple(values))

    def _step(self, job: Job[Any], step: Step) -> Step:
        result = (
            None if step.result is None else self.payload(job, step.result, f"step {step.name}")
        )
        return evolve(step, result=result)

    def _attempt(self, job: Job[Any], one: Attempt) -> Attempt:
        reason = None if not one.reason else bounded(self.text("reason", one.reason, job), 2000)[0]
        traceback = (
            None if not one.traceback else bounded(self.text("traceback", one.traceback, job))[0]
        )
        return evolve(one, reason=reason, traceback=traceback)

    def text(self, what: str, text: str, job: Job[Any]) -> str:
        if self._redact is None:
            return text
        try:
            return str(self._redact(what, text, job))
        except Exception:  # of the user's function: show nothing rather than a secret
            return "(not shown: redact= failed)"

    def payload(self, job: Job[Any], value: Any, what: str) -> Payload:
        if value is None:  # of an ended job
            return Payload("text", "", 0)
        kind, text = text_of(value)
        size = len(value) if isinstance(value, (bytes, str)) else len(text)
        shown, cut = bounded(self.text(what, text, job))
        cut = cut or (isinstance(value, bytes) and size > READ_BYTES)
        return Payload(kind, shown, size, cut, whole=not cut and shown == text and kind != "hex")

    def attributes(self, flow: str, run: FlowState) -> dict[str, str]:
        job: Job[Any] = Job(run.id, b"", flow)
        texts = {
            name: value if isinstance(value, str) else ", ".join(value)
            for name, value in run.attributes.items()
        }
        return {
            name: one_line(self.text(f"attribute {name}", text, job))
            for name, text in texts.items()
        }

    def reason(self, flow: str, run: FlowState) -> str | None:
        if run.reason is None:
            return None
        return bounded(self.text("reason", run.reason, Job(run.id, b"", flow)), 2000)[0]

    def result_text(self, flow: str, id: str, data: bytes) -> Payload:
        kind, text = readable(data)
        shown, cut = bounded(self.text("result", text, Job(id, data, flow)))
        return Payload(kind, shown, len(data), cut or len(data) > READ_BYTES)


def editable(codec: Codec[Any], shown: Payload, value: Any) -> Payload:
    """Let the text of a payload be edited only if it stands for that *value*, as its codec reads
    it."""
    if not shown.whole or isinstance(value, bytes):
        return shown
    try:
        same = bool(from_text(codec, shown.text) == value)
    except Exception:  # whatever the codec raises
        same = False
    return evolve(shown, whole=same)


def wait_of(state: JobState[Any]) -> float | None:
    """Return the seconds from a job's first enqueue to its first attempt, as far as they are
    known."""
    first = state.began or (
        state.since if state.state == "leased" and state.job.attempt == 1 else None
    )
    return (
        None if first is None or state.enqueued_at is None else max(0.0, first - state.enqueued_at)
    )


def duration_of(state: JobState[Any], now: float | None = None) -> float | None:
    """Return the seconds that a job took, or of its lease at the server's time *now*, as far as
    known."""
    if state.state == "leased":
        return None if now is None or state.since is None else max(0.0, now - state.since)
    return state.took


def _numbered(job: JobView, attempt: int) -> str:
    return f"delivery {job.deliveries}" if job.is_run and job.deliveries else f"attempt {attempt}"


def _ended(job: JobView) -> list[Moment]:
    found = list[Moment]()
    for one in job.attempts:
        worker = one.worker or "no worker"
        if one.suspended:
            found.append(Moment(one.ended, f"{job.counted} {one.number} suspended, with {worker}"))
        elif one.failed:
            found.append(
                Moment(
                    one.ended,
                    f"{job.counted} {one.number} failed, with {worker}: {one.reason or one.error}",
                )
            )
    return found


def _timeline(job: JobView) -> list[Moment]:
    moments = [Moment(job.enqueued_at, "enqueued"), *_ended(job)]
    leased = job.state == "leased"
    if job.is_run:
        before = job.deliveries - leased
    elif leased:
        before = job.attempt - 1
    else:
        before = job.attempt if job.reason or job.attempt > 1 else 0
    if before and job.state != "dead":
        moments.append(
            Moment(None, f"delivered {before} {'time' if before == 1 else 'times'} before")
        )
    if job.state == "dead":
        moments.append(
            Moment(
                job.since,
                f"died in {_numbered(job, job.attempt)}, with {job.holder or 'no worker'}",
            )
        )
    elif leased:
        token = "" if job.token is None else f" under token {job.token}"
        moments.append(
            Moment(
                job.since, f"{_numbered(job, job.attempt)} leased or renewed by {job.holder}{token}"
            )
        )
        moments.append(Moment(job.until, "its lease ends, unless it is renewed"))
    elif job.suspended:
        moments += [
            Moment(step.began, f"{WAITS[step.state]} {step.name}")
            for step in job.steps
            if step.state in WAITS
        ]
        moments += [Moment(job.due, "due")] if job.due else []
    elif job.state == "delayed":
        moments.append(Moment(job.due, "due"))
    else:
        states = {
            "parked": "given back: in front of all that is new",
            "blocked": "waits for its children",
            "waiting": "waits for its turn",
        }
        moments.append(Moment(None, states.get(job.state, job.state)))
    return moments
