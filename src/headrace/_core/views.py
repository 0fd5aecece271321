"""The views of `headrace.inspect`, as generators of effects: written once for both colours, bounded in what they read.

`Views` is the one reader of a process: it keeps what was read for a moment, for all viewers, and the counts of
earlier looks, for rates. Nothing is read but on demand.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from attrs import define, evolve, field

from headrace._core import calls, flow_calls
from headrace._core.effects import Step, current_time, scan, send, send_all
from headrace._model.checks import count
from headrace._model.codec import Codec, chosen
from headrace._model.flow import FlowState
from headrace._model.job import Job
from headrace._model.settings import QueueSettings
from headrace._model.shown import READ_BYTES, Payload, bounded, one_line, readable, spelled
from headrace._model.state import Counts, JobState, Schedule, WorkerState
from headrace._model.trends import KEPT, Every, Trends
from headrace._model.views import (
    ENDED,
    DeadGroup,
    DeadPage,
    JobsPage,
    JobView,
    Moment,
    Overview,
    QueuePage,
    QueueView,
    RunsPage,
    WorkerView,
)
from headrace._protocol import view_ops
from headrace._protocol.flow_ops import FlowOps
from headrace._protocol.keys import Keys, in_shard, job_id, pattern, queue_of
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.view_ops import About

R = TypeVar("R")
Redact = Callable[[str, str, Job[Any]], str]
STATES = ("waiting", "running", "delayed", "dead")
SCANS_PER_LOOK = 50  # steps of 1,000 keys each: about 20 ms
LOOK_AGAIN_S = 10.0  # seconds between two passes over all keys
TRAIL = 60  # looks that are remembered of each queue, for rates
RATE_S = 60.0  # seconds over which rates are told
QUEUES_AT_ONCE = 50  # in one round trip
KEPT_AT_MOST = 256  # views
JOBS_AT_MOST = 200  # on a page
DEAD_PAGES = 10  # of 200 dead letters each: those that are grouped
IDS_SHOWN = 20  # of a group of dead letters
WORKER_JOBS = 20  # of a worker that are shown
LEASED_LOOKED_AT = 400  # leased jobs, for those of one worker
RUNS_AT_ONCE = 50
PARTS_A_PAGE = 8  # calls for a page at most
WITHHELD = "(not shown: redact= failed)"
NOTHING_KEPT: tuple[float | None, Any, Exception | None] = (None, None, None)


@define
class _Catalogue:
    """The names of the queues, as far as the keys have been looked at."""

    names: set[str] = field(factory=set[str])
    found: set[str] = field(factory=set[str])  # in the pass that is under way
    cursor: int = 0
    whole: bool = False
    since: float | None = None  # the end of the last pass


def reason_key(reason: str) -> str:
    """Name the group of dead letters to which one of this *reason* belongs."""
    return hashlib.sha256(_common(reason).encode("utf-8", "replace")).hexdigest()[:16]


def _common(reason: str) -> str:
    """Return what dead letters of one cause have in common: the first line of the reason, numbers aside."""
    first = reason.strip().partition("\n")[0][:300]
    return re.sub(r"0x[0-9a-f]+|\d+", "#", first)


class Views:
    """Maker of all views of one namespace. *fresh*: seconds for which what was read is shown again."""

    def __init__(
        self, namespace: str, codecs: Mapping[str, Codec[Any]] | None, redact: Redact | None, fresh: float,
        refusals: tuple[type[Exception], ...],
    ) -> None:  # fmt: skip
        self._pattern = pattern(namespace)
        self.namespace, self.fresh = namespace, fresh
        self._codecs = {name: chosen(codec) for name, codec in (codecs or {}).items()}
        if redact is not None and not callable(redact):
            raise TypeError(f"redact must be a function of (what, text, job), not {type(redact).__name__}")
        self._redact, self._refusals = redact, refusals
        self._catalogue = _Catalogue()
        self._abouts: dict[str, About] = {}
        self._trails: dict[str, deque[tuple[float, int, int]]] = {}
        self._kept: dict[tuple[Any, ...], tuple[float, Any, Exception | None]] = {}

    def ops(self, name: str) -> Ops:
        """Make the operations of a queue, for as many priority levels as it is known to have."""
        known = self._abouts.get(name)
        settings = QueueSettings(priorities=known.levels if known else 1)
        return Ops(Keys.of(name, self.namespace), settings, self._codecs.get(name, chosen(None)), self.namespace)

    def kept(self, key: tuple[Any, ...], build: Callable[[], Step[R]]) -> Step[R]:
        """Return what was read under *key* a moment ago, or what *build* reads now; its error is kept, too."""
        now = yield from current_time()
        at, value, error = self._kept.get(key, NOTHING_KEPT)
        if at is None or now - at >= self.fresh:
            error = None
            try:
                read: Any = yield from build()
                value = read
            except Exception as raised:  # of a server that is away, say: not to be tried by each viewer in turn
                error = raised
            if len(self._kept) >= KEPT_AT_MOST:
                self._kept = {k: v for k, v in self._kept.items() if now - v[0] < self.fresh}
            self._kept[key] = ((yield from current_time()), value, error)
        if error is not None:
            raise error
        found: R = value
        return found

    def forget(self) -> None:
        """Read everything anew from now on: something was changed."""
        self._kept.clear()
        self._catalogue.since = None

    # -- queues --------------------------------------------------------------------------------------

    def _look(self) -> Step[list[str]]:
        """Go on looking for queues; return the names of those known now."""
        catalogue, now = self._catalogue, (yield from current_time())
        if catalogue.cursor == 0 and catalogue.since is not None and now - catalogue.since < LOOK_AGAIN_S:
            return sorted(catalogue.names)
        for _ in range(SCANS_PER_LOOK):
            catalogue.cursor, keys = yield from scan(catalogue.cursor, self._pattern)
            catalogue.found.update(name for key in keys if (name := queue_of(key)) and not in_shard(key))
            if catalogue.cursor == 0:
                catalogue.names, catalogue.found = catalogue.found, set()
                catalogue.whole, catalogue.since = True, now
                break
        return sorted(catalogue.names | catalogue.found)

    def overview(self) -> Step[Overview]:
        """Read the overview."""
        return (yield from self.kept(("overview",), self._overview))

    def _overview(self) -> Step[Overview]:
        names = yield from self._look()
        views: list[QueueView] = []
        broken: dict[str, str] = {}
        for start in range(0, len(names), QUEUES_AT_ONCE):
            some = names[start : start + QUEUES_AT_ONCE]
            try:
                views += yield from self._queues(some)
            except self._refusals:  # of one of them: a key of another type, say
                for name in some:
                    try:
                        views += yield from self._queues([name])
                    except self._refusals as error:
                        broken[name] = one_line(str(error))
        known = set(names)
        self._abouts = {name: about for name, about in self._abouts.items() if name in known}
        self._trails = {name: trail for name, trail in self._trails.items() if name in known}
        now = max((one.now for one in self._abouts.values()), default=0.0)
        return Overview(now, tuple(views), self._catalogue.whole, broken)

    def _queues(self, names: list[str]) -> Step[list[QueueView]]:
        """Read some queues in two round trips: scripts want the streams of all levels, and know when one is missing."""
        abouts = yield from send_all([view_ops.about(self.ops(name)) for name in names])
        self._abouts.update(zip(names, abouts, strict=True))
        ops: list[Op[Any]] = []
        for name in names:
            ops += (self.ops(name).measure(), self.ops(name).workers())
        replies: list[Any] = yield from send_all(ops)
        rows = zip(names, abouts, replies[::2], replies[1::2], strict=True)
        return [self._view(name, about, measured[0], measured[1], workers) for name, about, measured, workers in rows]

    def _view(self, name: str, about: About, counts: Counts, lag: float, workers: list[WorkerState]) -> QueueView:
        trail = self._trails.setdefault(name, deque(maxlen=TRAIL))
        if trail and (counts.enqueued < trail[-1][1] or about.now < trail[-1][0]):
            trail.clear()  # another queue of this name, or the clock went back
        if not trail or about.now - trail[-1][0] >= 0.5:
            trail.append((about.now, counts.enqueued, counts.completed))
        recent = [one for one in trail if about.now - one[0] <= RATE_S]
        rates: dict[str, float] = {}
        if len(recent) > 1:
            (start, *before), (end, *after) = recent[0], recent[-1]
            rates = dict(zip(("enqueued", "completed"), _rates(start, end, before, after), strict=True))
        steps = list(trail)
        line = tuple(_rates(a[0], b[0], a[1:], b[1:]) for a, b in pairwise(steps))
        by_name = tuple(sorted(workers, key=lambda one: one.name))
        return QueueView(name, counts, lag, about.paused, about.levels, by_name, rates, line)

    def queue(self, name: str) -> Step[QueuePage]:
        """Read one queue."""
        self.ops(name)  # refused before anything is sent

        def build() -> Step[QueuePage]:
            (view,) = yield from self._queues([name])
            about = self._abouts[name]
            schedules = yield from calls.schedules(self.ops(name))
            return QueuePage(about.now, view, about.declared, about.declaration, tuple(schedules))

        return (yield from self.kept(("queue", name), build))

    def schedules(self, names: Sequence[str]) -> Step[dict[str, list[Schedule]]]:
        """Read the schedules of these queues, by queue; at most 500 of each."""
        every = [self.ops(name).schedules() for name in names]  # refused before anything is sent

        def build() -> Step[dict[str, list[Schedule]]]:
            found: list[list[Schedule]] = []
            for start in range(0, len(every), QUEUES_AT_ONCE):
                found += yield from send_all(every[start : start + QUEUES_AT_ONCE])
            return dict(zip(names, found, strict=True))

        return (yield from self.kept(("schedules", *names), build))

    def trends(self, name: str, every: Every, number: int | None) -> Step[Trends]:
        """Read the trends of a queue."""
        if every not in KEPT:
            raise ValueError(f"every {every!r}: give 'minute' or 'hour'")
        if number is not None:
            count("number", number, most=KEPT[every])
        op = view_ops.trends(self.ops(name), every, number or KEPT[every])  # refused before anything is sent
        return (yield from self.kept(("trends", name, every, number), lambda: send(op)))

    # -- jobs ----------------------------------------------------------------------------------------

    def jobs(self, name: str, state: str, cursor: str, limit: int) -> Step[JobsPage]:
        """Read a page of the jobs in one state."""
        if state not in STATES:
            raise ValueError(f"state {state!r}: give one of {', '.join(STATES)}")
        self.ops(name).listing(state, cursor, limit)  # refused before anything is sent
        if limit > JOBS_AT_MOST:
            raise ValueError(f"limit {limit}: give at most {JOBS_AT_MOST}")

        def build() -> Step[JobsPage]:
            ops = yield from self._levelled(name)
            states, more, now = yield from send(view_ops.page(ops, state, cursor, limit))
            for _ in range(PARTS_A_PAGE - 1):  # a part ends with the jobs that are parked, and with each level
                if not more or len(states) >= limit:
                    break
                others, more, now = yield from send(view_ops.page(ops, state, more, limit - len(states)))
                states += others
            return JobsPage(now, name, state, tuple(self._job(one) for one in states), more)

        return (yield from self.kept(("jobs", name, state, cursor, limit), build))

    def _levelled(self, name: str) -> Step[Ops]:
        """Make the operations of a queue for the levels that it has now."""
        self._abouts[name] = yield from send(view_ops.about(self.ops(name)))
        return self.ops(name)

    def job(self, name: str, id: str) -> Step[JobView | None]:
        """Read one job."""
        self.ops(name)  # refused before anything is sent
        job_id(id)
        return (yield from self.kept(("job", name, id), lambda: self._one(name, id)))

    def _one(self, name: str, id: str) -> Step[JobView | None]:
        ops = yield from self._levelled(name)
        state, token, cursor = yield from send(view_ops.seek(ops, id, ""))
        while state is None and cursor:
            state, token, cursor = yield from send(view_ops.seek(ops, id, cursor))
        if state is None or state.state in ENDED:
            result = yield from send(ops.result(id))
            return None if state is None and result is None else self._gone(name, id, state, result)
        until = position = None
        if state.state == "leased" and state.entry:
            holding = yield from send(view_ops.lease_of(ops, state.entry))
            until = holding.until if holding is not None and holding.worker == state.worker else None
        if state.state in ("waiting", "parked"):
            position = yield from calls.position(ops, id)
        return self._job(state, token=token or None, until=until, position=position, whole=True)

    def _gone(self, name: str, id: str, end: JobState[Any] | None, result: bytes | None) -> JobView:
        """Show a job that has ended: by the *end* that the queue's history has, if it has, and by its result."""
        job: Job[Any] = Job(id, b"", name) if end is None else end.job
        shown = None if result is None else self._payload(job, result, "result")
        nothing, what = Payload("text", "", 0), "completed; its result is kept"
        if end is None:
            return JobView(id, name, ENDED[0], 0, 0, None, nothing, {}, result=shown, timeline=(Moment(None, what),))
        attempt = f" in attempt {job.attempt}" if job.attempt else ""
        worker = f", with {end.worker}" if end.worker else ""
        reason = None if not end.reason else bounded(self._text("reason", end.reason, job), 2000)[0]
        return JobView(
            id, name, end.state, job.attempt, 0, None, nothing, {}, end.worker, end.since, None, reason,
            result=shown, timeline=(Moment(end.since, f"{end.state}{attempt}{worker}"),),
        )  # fmt: skip

    def _job(
        self, state: JobState[Any], *, token: int | None = None, until: float | None = None,
        position: int | None = None, whole: bool = False,
    ) -> JobView:  # fmt: skip
        """Make what may be shown of a job; the beginnings of its texts only, unless it is to be shown *whole*."""
        job = state.job
        reason = None if not state.reason else self._text("reason", state.reason, job)
        traceback = None if not (whole and state.traceback) else self._text("traceback", state.traceback, job)
        headers = {
            one_line(name): bounded(self._text(f"header {name}", value, job), 2000)[0]
            for name, value in (job.headers.items() if whole else ())
        }
        view = JobView(
            job.id, job.queue, state.state, job.attempt, job.priority, job.enqueued_at or None,
            self._payload(job, job.payload, "payload"), headers, state.worker, state.since, state.due,
            None if reason is None else bounded(reason, 2000)[0],
            None if traceback is None else bounded(traceback)[0], token, until, position,
        )  # fmt: skip
        return evolve(view, timeline=tuple(_timeline(view))) if whole else view

    def _text(self, what: str, text: str, job: Job[Any]) -> str:
        if self._redact is None:
            return text
        try:
            return str(self._redact(what, text, job))
        except Exception:  # of a function that the user gave: rather nothing than a secret
            return WITHHELD

    def _payload(self, job: Job[Any], value: Any, what: str) -> Payload:
        kind, text = spelled(value)
        size = len(value) if isinstance(value, (bytes, str)) else len(text)
        shown, cut = bounded(self._text(what, text, job))
        return Payload(kind, shown, size, cut or (isinstance(value, bytes) and size > READ_BYTES))

    def find(self, id: str, names: Sequence[str]) -> Step[list[str]]:
        """Read in which of these queues there is a job of this id; of dead letters, the newest 1,000 or 1 MiB."""
        job_id(id)
        every = [self.ops(name) for name in names]  # refused before anything is sent

        def build() -> Step[list[str]]:
            found: list[str] = []
            for start in range(0, len(every), QUEUES_AT_ONCE):
                some = names[start : start + QUEUES_AT_ONCE]
                abouts = yield from send_all([view_ops.about(self.ops(name)) for name in some])
                self._abouts.update(zip(some, abouts, strict=True))
                states = yield from send_all([self.ops(name).find(id) for name in some])
                found += (name for name, state in zip(some, states, strict=True) if state is not None)
            return found

        return (yield from self.kept(("find", id, *names), build))

    # -- dead letters --------------------------------------------------------------------------------

    def dead(self, name: str) -> Step[DeadPage]:
        """Group the dead letters of a queue by reason."""
        self.ops(name)  # refused before anything is sent

        def build() -> Step[DeadPage]:
            ops = yield from self._levelled(name)
            groups, seen, now = yield from self._grouped(ops)
            counts = yield from send(ops.counts())
            shown = [self._group(key, states) for key, states in groups.items()]
            shown.sort(key=lambda one: (-one.number, one.reason))
            return DeadPage(now, name, tuple(shown), seen, max(seen, counts.dead))

        return (yield from self.kept(("dead", name), build))

    def dead_ids(self, name: str, key: str) -> Step[list[str]]:
        """Read the ids of the dead letters of one group, as far as `dead` looks."""
        groups, _, _ = yield from self._grouped((yield from self._levelled(name)))
        return [state.job.id for state in groups.get(key, ())]

    def _grouped(self, ops: Ops) -> Step[tuple[dict[str, list[JobState[Any]]], int, float]]:
        groups: dict[str, list[JobState[Any]]] = {}
        cursor, seen, now = "", 0, 0.0
        for _ in range(DEAD_PAGES):
            states, cursor, now = yield from send(view_ops.page(ops, "dead", cursor, JOBS_AT_MOST))
            seen += len(states)
            for state in states:
                groups.setdefault(reason_key(state.reason or ""), []).append(state)
            if not cursor:
                break
        return groups, seen, now

    def _group(self, key: str, states: list[JobState[Any]]) -> DeadGroup:
        moments = [state.since or 0.0 for state in states]
        first = states[0]
        reason = one_line(self._text("reason", first.reason or "", first.job), 300)
        ids = tuple(state.job.id for state in states[:IDS_SHOWN])
        return DeadGroup(key, reason, len(states), min(moments), max(moments), ids)

    # -- workers -------------------------------------------------------------------------------------

    def worker(self, name: str, worker: str) -> Step[WorkerView | None]:
        """Read a worker of a queue, and which jobs it has leased."""
        self.ops(name)  # refused before anything is sent

        def build() -> Step[WorkerView | None]:
            ops = yield from self._levelled(name)
            state = next((one for one in (yield from send(ops.workers())) if one.name == worker), None)
            if state is None:
                return None
            cursor, mine = "", list[JobState[Any]]()
            for _ in range(LEASED_LOOKED_AT // JOBS_AT_MOST):
                states, cursor, _ = yield from send(view_ops.page(ops, "running", cursor, JOBS_AT_MOST))
                mine += (one for one in states if one.worker == worker)
                if not cursor or len(mine) >= min(WORKER_JOBS, state.leased):
                    break
            return WorkerView(state, tuple(self._job(one) for one in mine[:WORKER_JOBS]))

        return (yield from self.kept(("worker", name, worker), build))

    # -- flows ---------------------------------------------------------------------------------------

    def _flow(self, name: str, stages: list[str]) -> FlowOps:
        flow = FlowOps(name, self.namespace, None, (), 1000, 86400, False)
        for stage in stages:
            flow.declare(stage, (), (), {})
        return flow

    def _stages(self, flow: str) -> Step[list[str]]:
        names = yield from self._look()
        return [name.partition("/")[2] for name in names if name.startswith(f"{flow}/")]

    def runs(self, flow: str, cursor: str) -> Step[RunsPage]:
        """Read some runs of a flow, as a scan of the server finds them."""
        ops = self._flow(flow, [])
        prefix = ops.keys.flow("")
        if not cursor.isdigit() and cursor:
            raise ValueError(f"cursor {cursor!r}: give that of the page before")

        def build() -> Step[RunsPage]:
            stages, at, found = (yield from self._stages(flow)), int(cursor or 0), list[str]()
            for _ in range(SCANS_PER_LOOK):
                at, keys = yield from scan(at, f"{prefix}*")
                found += (key.removeprefix(prefix) for key in keys)
                if at == 0 or len(found) >= RUNS_AT_ONCE:
                    break
            states = yield from flow_calls.read(self._flow(flow, stages or ["-"]), sorted(set(found)))
            about = yield from send(view_ops.about(self.ops(flow)))
            runs = tuple(state for state in states if state is not None)
            return RunsPage(about.now, flow, tuple(stages), runs, str(at) if at else "")

        return (yield from self.kept(("runs", flow, cursor), build))

    def run(self, flow: str, id: str) -> Step[FlowState | None]:
        """Read one run of a flow, or one of its children."""
        self._flow(flow, []).run(id)  # refused before anything is sent

        def build() -> Step[FlowState | None]:
            stages = yield from self._stages(flow)
            return (yield from flow_calls.read(self._flow(flow, stages or ["-"]), [id]))[0]

        return (yield from self.kept(("run", flow, id), build))

    def attributes(self, flow: str, run: FlowState) -> dict[str, str]:
        """Show the attributes of a run, lists with commas."""
        job: Job[Any] = Job(run.id, b"", flow)
        texts = {name: value if isinstance(value, str) else ", ".join(value) for name, value in run.attributes.items()}
        return {name: one_line(self._text(f"attribute {name}", text, job)) for name, text in texts.items()}

    def result_text(self, flow: str, id: str, data: bytes) -> Payload:
        """Show a result of a run's stage."""
        kind, text = readable(data)
        shown, cut = bounded(self._text("result", text, Job(id, data, flow)))
        return Payload(kind, shown, len(data), cut or len(data) > READ_BYTES)


def _rates(start: float, end: float, before: Any, after: Any) -> tuple[float, float]:
    took = max(end - start, 0.001)
    enqueued, completed = ((b - a) / took for a, b in zip(before, after, strict=True))
    return enqueued, completed


def _timeline(job: JobView) -> list[Moment]:
    """Tell what a job's data says of its life, in order."""
    told = [Moment(job.enqueued_at, "enqueued")]
    leased = job.state == "leased"
    before = job.attempt - 1 if leased else job.attempt if job.reason or job.attempt > 1 else 0
    if before and job.state != "dead":
        told.append(Moment(None, f"delivered {before} {'time' if before == 1 else 'times'} before"))
    if job.state == "dead":
        told.append(Moment(job.since, f"died in attempt {job.attempt}, with {job.holder or 'no worker'}"))
    elif leased:
        token = "" if job.token is None else f" under token {job.token}"
        told.append(Moment(job.since, f"attempt {job.attempt} leased or renewed by {job.holder}{token}"))
        told.append(Moment(job.until, "its lease ends, unless it is renewed"))
    elif job.state == "delayed":
        told.append(Moment(job.due, "due"))
    else:
        states = {
            "parked": "given back: in front of all that is new", "blocked": "waits for its children",
            "waiting": "waits for its turn",
        }  # fmt: skip
        told.append(Moment(None, states.get(job.state, job.state)))
    return told
