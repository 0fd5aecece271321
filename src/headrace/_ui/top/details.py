"""The panes of one thing: a queue, a job, a worker, the dead letters of a queue by reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from headrace._core.views.views import STATES
from headrace._model.views import ENDED, DeadGroup, JobView, QueueView, TrendPoint, one_line
from headrace._ui.texts import clock, counted, from_now, jobs, rate, span
from headrace._ui.top.cells import Column, chart, short
from headrace._ui.top.lists import QUEUE_BINDINGS, QUEUE_KEYS, queue_action, state_of
from headrace._ui.top.pane import Key, Pane, PendingAction, Row

PER_PAGE = 100  # jobs
JOB_BINDINGS: Sequence[BindingType] = (("C", "act('cancel')", "Cancel"), ("E", "act('expire')", "End its lease"))
JOB_KEYS = """\
C       cancel the job
E       end its lease: it goes to the front"""
JOB_COLUMNS: Sequence[Column] = (
    Column("job", flexible=2), Column("state", 8), Column("att", 3, right=True), Column("when", 12),
    Column("worker / reason", flexible=2), Column("payload", flexible=3),
)  # fmt: skip


def job_row(job: JobView, now: float) -> Row:
    """Make the row of a job."""
    moment = job.due or job.since or job.enqueued_at
    why = one_line(job.reason or job.holder or "")
    texts = (one_line(job.id), job.state, str(job.attempt), from_now(moment, now), why, job.payload.line)
    return Row((job.id, job.state), texts, ((1, "bold red"),) if job.state == "dead" else ())


def job_action(action: str, queue: str, id: str, state: str) -> PendingAction | None:
    """Return the actions for one job."""
    fields, name = (("id", id),), one_line(id)
    dead = state == "dead"
    match action:
        case "cancel" if not dead and state not in ENDED:
            return PendingAction(action, queue, fields, f"Cancel job {name} of {queue}?")
        case "expire" if state == "leased":
            return PendingAction(action, queue, fields, f"End the lease of job {name} of {queue}?")
        case "redrive" if dead:
            return PendingAction(action, queue, fields, f"Send the dead letter {name} back to {queue}?")
        case "purge_dead" if dead:
            return PendingAction(action, queue, fields, f"Remove the dead letter {name} of {queue} for good?")
        case _:
            return None


class QueuePane(Pane):
    """One queue, and its jobs in one state."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *QUEUE_BINDINGS, *JOB_BINDINGS, ("s", "state", "State"), ("n", "page('next')", "Next page"),
        ("b", "page('first')", "First page"), ("g", "groups", "By reason"),
    ]  # fmt: skip
    KEYS = f"""\
s       the next state: {", ".join(STATES)}
n  b    next page, first page
g       dead letters by reason
{QUEUE_KEYS}
{JOB_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = JOB_COLUMNS

    def __init__(self, queue: str, state: str) -> None:
        super().__init__()
        self.queue, self.state = queue, state
        self._cursor, self._next = "", ""
        self._view: QueueView | None = None

    def heading(self) -> str:
        """Return its name."""
        return f"· {self.queue}"

    async def read(self) -> None:
        """Read the queue, and a page of its jobs."""
        page = await self.top.look.queue(self.queue)
        state, cursor = self.state, self._cursor
        found = await self.top.look.jobs(self.queue, state, cursor, PER_PAGE)
        if (state, cursor) != (self.state, self._cursor):
            return  # a key was pressed meanwhile
        kept = page.declared.get("trends") == "yes"
        past = (await self.top.look.trends(self.queue, "minute", 120)).points if kept else ()
        self._view, self._next = page.queue, found.cursor
        self.retitle(clock(page.now))
        self.set_head(*self._head(page.queue, len(found.jobs)), *self._past(past))
        self.set_rows([job_row(one, page.now) for one in found.jobs])

    def _head(self, q: QueueView, shown: int) -> list[str | Text]:
        c, wide = q.counts, max(10, self.top.size.width - 14)
        state, style = state_of(q)
        numbers = {
            "waiting": c.waiting, "in front": c.parked, "running": c.leased, "delayed": c.delayed,
            "blocked": c.blocked, "dead": c.dead,
        }  # fmt: skip
        tabs = "  ".join(f"[{one}]" if one == self.state else one for one in STATES)
        workers = f"{q.alive} workers alive" if q.shards else f"{q.alive} of {len(q.workers)} workers alive"
        law = Text(("✓ " if q.balanced else "✗ ") + q.law, style="" if q.balanced else "bold red", no_wrap=True)
        return [
            Text("  ".join(f"{name} {short(number)}" for name, number in numbers.items()))
            + Text(f"  {state}" if state else "", style=style),
            law,
            f"oldest {span(q.lag) if q.lag else '–'} · {workers}",
            *([Text(_shards(q), no_wrap=True)] if q.shards else []),
            f"in   {rate(q.rates.get('enqueued')):>7}/s {chart([pair[0] for pair in q.trail], wide)}",
            f"done {rate(q.rates.get('completed')):>7}/s {chart([pair[1] for pair in q.trail], wide)}",
            f"{tabs}  ({shown}{', n for more' if self._next else ''})",
        ]

    def _past(self, points: Sequence[TrendPoint]) -> list[str | Text]:
        """Draw the last two hours, if the queue is declared to have trends."""
        wide = max(10, self.top.size.width - 24)
        lines = {"waiting": [float(one.waiting) for one in points], "dead": [float(one.dead) for one in points]}
        return [f"2 h {name:<7} {short(int(line[-1])):>6} {chart(line, wide)}" for name, line in lines.items() if line]

    def chosen(self, key: Key) -> None:
        """Open the job."""
        self.top.open_job(self.queue, key[0])

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the actions for the job, or the queue."""
        if action in ("cancel", "expire"):
            return job_action(action, self.queue, *key) if key else None
        return None if self._view is None else queue_action(action, self._view)

    def action_state(self) -> None:
        """Show the jobs in the next state."""
        self.state, self._cursor = STATES[(STATES.index(self.state) + 1) % len(STATES)], ""
        self.top.again()

    def action_page(self, which: str) -> None:
        """Show another page."""
        self._cursor = self._next if which == "next" and self._next else ""
        self.top.again()

    def action_groups(self) -> None:
        """Show the dead letters by reason."""
        self.top.open_groups(self.queue)


class GroupsPane(Pane):
    """The dead letters of a queue by reason."""

    BINDINGS: ClassVar[list[BindingType]] = [*QUEUE_BINDINGS[2:4]]
    KEYS = """\
R       redrive the dead letters of this reason
X       remove them for good"""
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("number", 7, right=True), Column("first", 11), Column("last", 11), Column("reason", flexible=1),
    )  # fmt: skip

    def __init__(self, queue: str) -> None:
        super().__init__()
        self.queue = queue
        self._groups: dict[str, DeadGroup] = {}

    def heading(self) -> str:
        """Return its name."""
        return f"· {self.queue} · dead letters"

    async def read(self) -> None:
        """Read them."""
        page = await self.top.look.dead(self.queue)
        self._groups = {one.key: one for one in page.groups}
        self.retitle(clock(page.now))
        more = "" if page.seen == page.all else f", the oldest {page.seen:,} of which are grouped"
        self.set_head(f"{counted(page.all, 'dead letter')}{more}, by reason, numbers aside")
        self.set_rows(
            [
                Row((g.key,), (short(g.number), from_now(g.first, page.now), from_now(g.last, page.now), g.reason))
                for g in page.groups
            ]
        )

    def chosen(self, key: Key) -> None:
        """Open its oldest letter."""
        self.top.open_job(self.queue, self._groups[key[0]].ids[0])

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the actions for dead letters of a reason."""
        group = self._groups.get(key[0]) if key else None
        if group is None:
            return None
        what = "Send back to the queue" if action == "redrive" else "Remove for good"
        question = f"{what} {counted(group.number, 'dead letter')}: {group.reason}"
        return PendingAction(action, self.queue, (("group", group.key),), question)


class JobPane(Pane):
    """One job, whole."""

    BINDINGS: ClassVar[list[BindingType]] = [*JOB_BINDINGS, *QUEUE_BINDINGS[2:4]]
    KEYS = f"""\
{JOB_KEYS}
R       redrive the dead letter
X       remove it for good"""

    def __init__(self, queue: str, id: str) -> None:
        super().__init__()
        self.queue, self.id_ = queue, id
        self._job: JobView | None = None

    def heading(self) -> str:
        """Return its name."""
        return f"· {self.queue} · {one_line(self.id_)}"

    def compose(self) -> ComposeResult:
        """Lay out the pane, with a text that scrolls."""
        yield Static("", id="title")
        with VerticalScroll():
            yield Static("", id="head")
        yield Static("", id="said")
        yield Static("", id="keys")

    async def read(self) -> None:
        """Read it."""
        self._job = job = await self.top.look.job(self.queue, self.id_)
        now = (await self.top.look.queue(self.queue)).now
        self.retitle(clock(now))
        if job is None:
            self.set_head("Nothing is known of it: it has ended, or never was.")
        else:
            self.set_head(*_lines(job, now))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:  # noqa: ARG002 - there is no table
        """Return its actions."""
        return None if self._job is None else job_action(action, self.queue, self._job.id, self._job.state)


def _lines(job: JobView, now: float) -> list[str | Text]:
    """Write all that is known of a job."""
    fields: list[tuple[str, str]] = [
        ("state", job.state),
        ("attempt", str(job.attempt) if job.attempt else ""),
        ("priority", str(job.priority) if job.priority else ""),
        ("before it", "" if job.position is None else jobs(job.position)),
        ("held by", one_line(job.holder or "") if job.state == "leased" else ""),
        ("ended with", one_line(job.holder or "") if job.ended else ""),
        ("token", "" if job.token is None else str(job.token)),
        ("until", "" if job.until is None else f"{clock(job.until)} ({from_now(job.until, now)})"),
    ]
    lines: list[str | Text] = [Text(f"{name:<10} ", style="bold") + Text(value) for name, value in fields if value]
    lines += ["", Text("timeline", style="bold")]
    for one in job.timeline:
        at = "" if one.at is None else f"{clock(one.at)} ({from_now(one.at, now)}): "
        lines.append(f"  {at}{one_line(one.what)}")
    for title, text in (("reason", job.reason), ("traceback", job.traceback)):
        lines += ["", Text(title, style="bold"), text] if text else []
    for title, payload in (("result", job.result), ("payload", None if job.ended else job.payload)):
        if payload is not None:
            note = f"{title}: {payload.kind}, {payload.size:,} bytes{', the beginning' if payload.cut else ''}"
            lines += ["", Text(note, style="bold"), payload.text]
    if job.headers:
        lines += ["", Text("headers", style="bold")]
        lines += [f"  {one_line(name)}: {one_line(value)}" for name, value in job.headers.items()]
    return lines


class WorkerPane(Pane):
    """A worker of a queue, and its running jobs."""

    BINDINGS: ClassVar[list[BindingType]] = [*JOB_BINDINGS, ("F", "act('fail_worker')", "Fail")]
    KEYS = f"""\
F       fail the worker: declare it dead in this queue
{JOB_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = JOB_COLUMNS

    def __init__(self, queue: str, worker: str) -> None:
        super().__init__()
        self.queue, self.worker = queue, worker

    def heading(self) -> str:
        """Return its name."""
        return f"· {self.queue} · worker {one_line(self.worker)}"

    async def read(self) -> None:
        """Read it."""
        view = await self.top.look.worker(self.queue, self.worker)
        now = (await self.top.look.queue(self.queue)).now
        self.retitle(clock(now))
        if view is None:
            self.set_head("It is not registered any more.")
            self.set_rows([])
            return
        one = view.worker
        alive = "alive" if one.alive else "NOT ALIVE"
        since = f" since {clock(one.since)}" if one.since else ""
        some = f", {len(view.jobs)} of them below" if len(view.jobs) < one.leased else ""
        self.set_head(f"{alive}{since} · {jobs(one.leased)} leased{some}")
        self.set_rows([job_row(job, now) for job in view.jobs])

    def chosen(self, key: Key) -> None:
        """Open the job."""
        self.top.open_job(self.queue, key[0])

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the actions for the job, or the worker."""
        if action != "fail_worker":
            return job_action(action, self.queue, *key) if key else None
        question = f"Declare {one_line(self.worker)} dead in {self.queue}? What it has leased goes to the front."
        return PendingAction(action, self.queue, (("worker", self.worker),), question)


def _shards(queue: QueueView) -> str:
    """Tell how many jobs wait in each shard."""
    waiting = (f"{one.number}: {short(one.counts.waiting + one.counts.parked)}" for one in queue.shards)
    return f"{len(queue.shards)} shards, waiting in each  {'  '.join(waiting)}"
