"""The panes: lists of queues, workers and dead letters; one queue, its dead letters by reason, one job, one worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from headrace._core.views.reader import STATES
from headrace._model.letters import DeadGroup
from headrace._model.steps import Step
from headrace._model.terms import Share
from headrace._model.views import ENDED, JobView, QueueView, TrendPoint, one_line
from headrace._ui.texts import chart, clock, counted, from_now, jobs, rate, short, span
from headrace._ui.top.pane import Column, Key, Pane, PendingAction, Row

PER_PAGE = 100  # jobs
CHART_CELLS = 8  # of the chart in a row
SHARES_SHOWN = 5  # values above the jobs: there is little room
DEAD_BINDINGS: Sequence[BindingType] = (
    ("R", "act('redrive')", "Redrive"),
    ("X", "act('purge_dead')", "Remove dead letters"),
)
DEAD_KEYS = """\
R       redrive its dead letters
X       remove its dead letters for good"""
QUEUE_BINDINGS: Sequence[BindingType] = (
    ("p", "act('pause')", "Pause"),
    ("P", "act('purge')", "Purge"),
    *DEAD_BINDINGS,
    ("D", "act('delete')", "Delete"),
)
QUEUE_KEYS = f"""\
p       pause the queue, or resume it
P       purge it: remove the jobs that wait
{DEAD_KEYS}
D       delete it: asks for its name"""
FAIL_BINDING: BindingType = ("F", "act('fail_worker')", "Fail")
FAIL_KEY = "F       fail the worker: declare it dead in this queue"
JOB_BINDINGS: Sequence[BindingType] = (("C", "act('cancel')", "Cancel"), ("E", "act('expire')", "End its lease"))
JOB_KEYS = """\
C       cancel the job
E       end its lease: it goes to the front"""
JOB_COLUMNS: Sequence[Column] = (
    Column("job", flexible=2),
    Column("state", 8),
    Column("att", 3, right=True),
    Column("when", 12),
    Column("worker / reason", flexible=2),
    Column("payload", flexible=3),
)


def state_of(queue: QueueView) -> tuple[str, str]:
    """Return the state of a queue in a word, and its style."""
    if not queue.balanced:
        lost = queue.counts.lost
        return ("slots" if not lost else "missing" if lost > 0 else "surplus"), "bold red"
    return ("paused", "bold yellow") if queue.paused else ("", "")


def queue_action(action: str, queue: QueueView | None) -> PendingAction | None:
    """Return the request of an action for a whole queue; `None` if there is nothing to do."""
    if queue is None:
        return None
    name, counts = queue.name, queue.counts
    dead = counted(counts.dead, "dead letter")
    match action:
        case "pause":
            action, question = "resume" if queue.paused else "pause", ""
        case "purge":
            number = counts.waiting + counts.parked + counts.delayed
            question = f"Purge {name}: remove {jobs(number)} that wait for good?"
        case "redrive" if counts.dead:
            question = f"Redrive {name}: send {dead} back to the queue?"
        case "purge_dead" if counts.dead:
            question = f"Remove {dead} of {name} for good?"
        case "delete":
            question = f"Delete {name}, with {jobs(counts.present)} in it, running ones too?"
        case _:
            return None
    return PendingAction(action, name, question, typed=action == "delete")


def job_action(action: str, queue: str, id: str, state: str) -> PendingAction | None:
    """Return the request of an action for one job; `None` if the job is not in the state for it."""
    name, dead = one_line(id), state == "dead"
    match action:
        case "cancel" if not dead and state not in ENDED:
            question = f"Cancel job {name} of {queue}?"
        case "expire" if state == "leased":
            question = f"End the lease of job {name} of {queue}?"
        case "redrive" if dead:
            question = f"Send the dead letter {name} back to {queue}?"
        case "purge_dead" if dead:
            question = f"Remove the dead letter {name} of {queue} for good?"
        case _:
            return None
    return PendingAction(action, queue, question, {"id": id})


def fail_action(queue: str, worker: str) -> PendingAction:
    """Return the request to fail a worker."""
    question = f"Declare {one_line(worker)} dead in {queue}? What it has leased goes to the front."
    return PendingAction("fail_worker", queue, question, {"worker": worker})


def job_row(job: JobView, now: float) -> Row:
    """Make the row of a job."""
    moment = job.due or job.since or job.enqueued_at
    why = one_line(job.reason or job.holder or "")
    texts = (one_line(job.id), job.state, str(job.attempt), from_now(moment, now), why, job.payload.line)
    return Row((job.id, job.state), texts, ((1, "bold red"),) if job.state == "dead" else ())


# -- lists -------------------------------------------------------------------------------------------


class QueueTable(Pane):
    """A table of queues."""

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[str, QueueView] = {}

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the request of an action for the queue under the cursor."""
        return queue_action(action, self._views.get(key[0]) if key else None)


class QueuesPane(QueueTable):
    """All queues."""

    BINDINGS: ClassVar[list[BindingType]] = [*QUEUE_BINDINGS]
    KEYS = QUEUE_KEYS
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("queue", flexible=1),
        Column("waiting", 7, right=True),
        Column("runs", 5, right=True),
        Column("delayed", 7, right=True),
        Column("dead", 5, right=True),
        Column("in/s", 5, right=True),
        Column("done/s", 6, right=True),
        Column("of late", CHART_CELLS),
        Column("oldest", 7, right=True),
        Column("", 7),
    )
    heading = "queues"

    async def read(self) -> None:
        """Read the overview."""
        view = await self.top.inspector.overview()
        self._views = {queue.name: queue for queue in view.queues}
        alive = sum(worker.alive for worker in view.workers)
        bad = sum(not queue.balanced for queue in view.queues)
        law = f"✗ {bad} out of balance" if bad else "✓ balanced"
        more = "" if view.whole else " (still looking)"
        broken = f" · {len(view.broken)} can't be read" if view.broken else ""
        number = counted(len(view.queues), "queue")
        unread = [Row((), (name, *[""] * 8, "error"), ((9, "bold red"),)) for name in view.broken]
        self.fill(
            view.now,
            [f"{number}{more}{broken} · {alive} of {len(view.workers)} workers alive · {law}"],
            [*map(self._row, view.queues), *unread],
        )

    def _row(self, queue: QueueView) -> Row:
        counts, (state, style) = queue.counts, state_of(queue)
        shards = f" ({len(queue.shards)} shards)" if queue.shards else ""
        texts = (
            queue.name + shards,
            short(counts.waiting + counts.parked),
            short(counts.leased),
            short(counts.delayed),
            short(counts.dead),
            rate(queue.rates.get("enqueued")),
            rate(queue.rates.get("completed")),
            chart([done for _, done in queue.trail], CHART_CELLS),
            span(queue.lag) if queue.lag else "",
            state,
        )
        return Row((queue.name,), texts, ((9, style),) if style else ())

    def chosen(self, key: Key) -> None:
        """Open the queue."""
        if key:
            self.top.push_screen(QueuePane(key[0]))


def _shares(shares: Sequence[Share]) -> Iterator[Text]:
    """Write a line for each of the busiest values."""
    for one in shares[:SHARES_SHOWN]:
        dwell = "–" if one.p95 is None else span(one.p95)
        numbers = f"{short(one.running):>6} running {short(one.waiting):>6} waiting  p95 {dwell:<7} "
        yield Text(numbers + one_line(one.name), no_wrap=True)


class WorkersPane(Pane):
    """The workers of all queues."""

    BINDINGS: ClassVar[list[BindingType]] = [FAIL_BINDING]
    KEYS = FAIL_KEY
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("worker", flexible=2),
        Column("queue", flexible=1),
        Column("alive", 5),
        Column("since", 12),
        Column("leased", 6, right=True),
    )
    heading = "workers"

    async def read(self) -> None:
        """Read the overview."""
        view = await self.top.inspector.overview()
        alive = sum(worker.alive for worker in view.workers)
        rows: list[Row] = []
        for worker in view.workers:
            since = from_now(worker.since or None, view.now)
            state, styles = ("yes", ()) if worker.alive else ("NO", ((2, "bold red"),))
            texts = (one_line(worker.name), worker.queue, state, since, short(worker.leased))
            rows.append(Row((worker.queue, worker.name), texts, styles))
        self.fill(view.now, [f"{alive} of {len(view.workers)} workers alive, one a queue"], rows)

    def chosen(self, key: Key) -> None:
        """Open the worker."""
        self.top.push_screen(WorkerPane(*key))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:  # noqa: ARG002 - it has one
        """Return the request to fail the worker."""
        return fail_action(*key) if key else None


class DeathsPane(QueueTable):
    """The queues that have dead letters."""

    BINDINGS: ClassVar[list[BindingType]] = [*DEAD_BINDINGS]
    KEYS = DEAD_KEYS
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("queue", flexible=1),
        Column("dead letters", 12, right=True),
        Column("trimmed", 9, right=True),
    )
    heading = "dead letters"

    async def read(self) -> None:
        """Read the overview."""
        view = await self.top.inspector.overview()
        self._views = {queue.name: queue for queue in view.queues if queue.counts.dead}
        number = sum(queue.counts.dead for queue in view.queues)
        queues = sorted(self._views.values(), key=lambda queue: (-queue.counts.dead, queue.name))
        self.fill(
            view.now,
            [f"{counted(number, 'dead letter')} in {counted(len(queues), 'queue')}"],
            [Row((q.name,), (q.name, f"{q.counts.dead:,}", short(q.counts.dead_trimmed))) for q in queues],
        )

    def chosen(self, key: Key) -> None:
        """Open the queue's dead letters by reason."""
        self.top.push_screen(GroupsPane(key[0]))


# -- one queue, job or worker ------------------------------------------------------------------------


class QueuePane(Pane):
    """One queue, and its jobs in one state."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *QUEUE_BINDINGS,
        *JOB_BINDINGS,
        ("s", "state", "State"),
        ("n", "page('next')", "Next page"),
        ("b", "page('first')", "First page"),
        ("g", "groups", "By reason"),
    ]
    KEYS = f"""\
s       the next state: {", ".join(STATES)}
n  b    next page, first page
g       dead letters by reason
{QUEUE_KEYS}
{JOB_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = JOB_COLUMNS

    def __init__(self, queue: str) -> None:
        super().__init__()
        self.queue, self.state, self.heading = queue, STATES[0], queue
        self._cursor, self._next = "", ""
        self._view: QueueView | None = None

    async def read(self) -> None:
        """Read the queue, and a page of its jobs."""
        page = await self.top.inspector.queue(self.queue)
        state, cursor = self.state, self._cursor
        found = await self.top.inspector.jobs(self.queue, state, cursor, PER_PAGE)
        if (state, cursor) != (self.state, self._cursor):
            return  # a key was pressed meanwhile
        has_trends = page.declared.get("trends") == "yes"
        points = (await self.top.inspector.trends(self.queue, "minute", 120)).points if has_trends else ()
        self._view, self._next = page.queue, found.cursor
        head = [*self._head(page.queue, len(found.jobs)), *_shares(page.shares), *self._two_hours(points)]
        self.fill(page.now, head, [job_row(job, page.now) for job in found.jobs])

    def _head(self, queue: QueueView, number: int) -> Iterator[str | Text]:
        counts, wide = queue.counts, max(10, self.top.size.width - 14)
        numbers = {
            "waiting": counts.waiting,
            "in front": counts.parked,
            "running": counts.leased,
            "delayed": counts.delayed,
            "blocked": counts.blocked,
            "dead": counts.dead,
        }
        state, style = state_of(queue)
        texts = "  ".join(f"{name} {short(number)}" for name, number in numbers.items())
        yield Text(texts) + Text(f"  {state}" if state else "", style=style)
        mark, style = ("✓", "") if queue.balanced else ("✗", "bold red")
        yield Text(f"{mark} {queue.law}", style=style, no_wrap=True)
        of = "" if queue.shards else f" of {len(queue.workers)}"
        yield f"oldest {span(queue.lag) if queue.lag else '–'} · {queue.alive}{of} workers alive"
        if queue.shards:
            waiting = (f"{shard.number}: {short(shard.counts.waiting + shard.counts.parked)}" for shard in queue.shards)
            yield Text(f"{len(queue.shards)} shards, waiting in each  {'  '.join(waiting)}", no_wrap=True)
        yield f"in   {rate(queue.rates.get('enqueued')):>7}/s {chart([enqueued for enqueued, _ in queue.trail], wide)}"
        yield f"done {rate(queue.rates.get('completed')):>7}/s {chart([done for _, done in queue.trail], wide)}"
        tabs = "  ".join(f"[{name}]" if name == self.state else name for name in STATES)
        yield f"{tabs}  ({number}{', n for more' if self._next else ''})"

    def _two_hours(self, points: Sequence[TrendPoint]) -> list[str]:
        """Draw the last two hours, if the queue is declared to have trends."""
        wide = max(10, self.top.size.width - 24)
        lines = {"waiting": [float(one.waiting) for one in points], "dead": [float(one.dead) for one in points]}
        return [f"2 h {name:<7} {short(int(line[-1])):>6} {chart(line, wide)}" for name, line in lines.items() if line]

    def chosen(self, key: Key) -> None:
        """Open the job."""
        self.top.push_screen(JobPane(self.queue, key[0]))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the request of an action for the job, or the queue."""
        if action in ("cancel", "expire"):
            return job_action(action, self.queue, *key) if key else None
        return queue_action(action, self._view)

    def action_state(self) -> None:
        """Show the jobs in the next state."""
        self.state, self._cursor = STATES[(STATES.index(self.state) + 1) % len(STATES)], ""
        self.top.again()

    def action_page(self, which: str) -> None:
        """Show another page."""
        self._cursor = self._next if which == "next" else ""
        self.top.again()

    def action_groups(self) -> None:
        """Show the dead letters by reason."""
        self.top.push_screen(GroupsPane(self.queue))


class GroupsPane(Pane):
    """The dead letters of a queue by reason."""

    BINDINGS: ClassVar[list[BindingType]] = [*DEAD_BINDINGS]
    KEYS = """\
R       redrive the dead letters of this reason
X       remove them for good"""
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("number", 7, right=True),
        Column("first", 11),
        Column("last", 11),
        Column("reason", flexible=1),
    )

    def __init__(self, queue: str) -> None:
        super().__init__()
        self.queue, self.heading = queue, f"{queue} · dead letters"
        self._groups: dict[str, DeadGroup] = {}

    async def read(self) -> None:
        """Read the groups."""
        page = await self.top.inspector.dead(self.queue)
        self._groups = {group.key: group for group in page.groups}
        more = "" if page.seen == page.all else f", the newest {page.seen:,} of which are grouped"
        rows: list[Row] = []
        for group in page.groups:
            times = from_now(group.first, page.now), from_now(group.last, page.now)
            rows.append(Row((group.key,), (short(group.number), *times, group.reason)))
        self.fill(page.now, [f"{counted(page.all, 'dead letter')}{more}, by reason and kind"], rows)

    def chosen(self, key: Key) -> None:
        """Open the newest dead letter."""
        self.top.push_screen(JobPane(self.queue, self._groups[key[0]].ids[0]))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the request of an action for the dead letters of a reason."""
        group = self._groups.get(key[0]) if key else None
        if group is None:
            return None
        verb = "Send back to the queue" if action == "redrive" else "Remove for good"
        question = f"{verb} {counted(group.number, 'dead letter')}: {group.reason}"
        return PendingAction(action, self.queue, question, {"group": group.key})


class JobPane(Pane):
    """One job, with all that is known of it."""

    BINDINGS: ClassVar[list[BindingType]] = [*JOB_BINDINGS, *DEAD_BINDINGS]
    KEYS = f"""\
{JOB_KEYS}
R       redrive the dead letter
X       remove it for good"""

    def __init__(self, queue: str, id: str) -> None:
        super().__init__()
        self.queue, self.job_id, self.heading = queue, id, f"{queue} · {one_line(id)}"
        self._job: JobView | None = None

    def body(self) -> ComposeResult:
        """Lay out a head that scrolls."""
        with VerticalScroll():
            yield Static("", id="head")

    async def read(self) -> None:
        """Read the job."""
        self._job = job = await self.top.inspector.job(self.queue, self.job_id)
        now = (await self.top.inspector.queue(self.queue)).now
        self.fill(now, _lines(job, now) if job else ["Nothing is known of it: it has ended, or never was."])

    def pending(self, action: str, key: Key | None) -> PendingAction | None:  # noqa: ARG002 - there is no table
        """Return the request of an action for the job."""
        return None if self._job is None else job_action(action, self.queue, self._job.id, self._job.state)


def _lines(job: JobView, now: float) -> list[str | Text]:
    """Write all that is known of a job."""
    fields = {
        "state": job.state,
        "attempt": str(job.attempt) if job.attempt else "",
        "priority": str(job.priority) if job.priority else "",
        "before it": "" if job.position is None else jobs(job.position),
        "held by": one_line(job.holder or "") if job.state == "leased" else "",
        "ended with": one_line(job.holder or "") if job.ended else "",
        "token": "" if job.token is None else str(job.token),
        "until": "" if job.until is None else f"{clock(job.until)} ({from_now(job.until, now)})",
        "progress": "" if job.progress is None else f"{job.progress.fraction:.0%} {job.progress.text}",
    }
    lines: list[str | Text] = [
        Text(f"{name:<10} ", style="bold") + Text(value) for name, value in fields.items() if value
    ]
    lines += ["", Text("timeline", style="bold")]
    for event in job.timeline:
        when = "" if event.at is None else f"{clock(event.at)} ({from_now(event.at, now)}): "
        lines.append(f"  {when}{one_line(event.what)}")
    if job.steps:
        lines += ["", Text("steps", style="bold"), *(_step_line(step, now) for step in job.steps)]
    for title, text in (("reason", job.reason), ("traceback", job.traceback)):
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


def _step_line(step: Step, now: float) -> str:
    """Write a step of a job."""
    ends = f"due {from_now(step.due, now)}" if step.due is not None else ""
    took = ends if step.ended is None else f"after {span(step.ended - step.began)}"
    result = "" if step.result is None else step.result.line
    return "  " + " · ".join(filter(None, (one_line(step.name), step.state, clock(step.began), took, result)))


class WorkerPane(Pane):
    """A worker of a queue, and its running jobs."""

    BINDINGS: ClassVar[list[BindingType]] = [*JOB_BINDINGS, FAIL_BINDING]
    KEYS = f"""\
{FAIL_KEY}
{JOB_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = JOB_COLUMNS

    def __init__(self, queue: str, worker: str) -> None:
        super().__init__()
        self.queue, self.worker, self.heading = queue, worker, f"{queue} · worker {one_line(worker)}"

    async def read(self) -> None:
        """Read the worker."""
        view = await self.top.inspector.worker(self.queue, self.worker)
        now = (await self.top.inspector.queue(self.queue)).now
        if view is None:
            self.fill(now, ["It is not registered any more."])
            return
        worker = view.worker
        alive = "alive" if worker.alive else "NOT ALIVE"
        since = f" since {clock(worker.since)}" if worker.since else ""
        shown = f", {len(view.jobs)} of them below" if len(view.jobs) < worker.leased else ""
        head = f"{alive}{since} · {jobs(worker.leased)} leased{shown}"
        self.fill(now, [head], [job_row(job, now) for job in view.jobs])

    def chosen(self, key: Key) -> None:
        """Open the job."""
        self.top.push_screen(JobPane(self.queue, key[0]))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the request of an action for the job, or the worker."""
        if action == "fail_worker":
            return fail_action(self.queue, self.worker)
        return job_action(action, self.queue, *key) if key else None
