"""The panes of workers: all, and one with its running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from headrace._model.state import WorkerFacts, WorkerState
from headrace._model.views import one_line
from headrace._ui.texts import clock, jobs, memory, short
from headrace._ui.top.acts import JOB_BINDINGS, JOB_KEYS, WORKER_BINDINGS, WORKER_KEYS, job_action, worker_action
from headrace._ui.top.job import JOB_COLUMNS, JobPane, job_row, since
from headrace._ui.top.pane import Column, Key, Pane, PendingAction, Row

NO_FACTS = WorkerFacts("", "", "", 0, 0, 0, 0.0)
STYLES = {"DEAD": "bold red", "quiet": "bold yellow", "stops": "bold yellow"}


def state_of(worker: WorkerState) -> str:
    """Return the state of a worker in a word."""
    return {"quiet": "quiet", "stop": "stops"}.get(worker.asked, "alive") if worker.alive else "DEAD"


class WorkersPane(Pane):
    """The workers of all queues."""

    BINDINGS: ClassVar[list[BindingType]] = [*WORKER_BINDINGS]
    KEYS = WORKER_KEYS
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("worker", flexible=2, middle=True),
        Column("queue", flexible=1),
        Column("state", 5),
        Column("runs", 8, right=True),
        Column("machine", flexible=1),
        Column("memory", 8, right=True),
        Column("version", 7),
        Column("since", 6, right=True),
    )
    heading = "workers"

    def __init__(self) -> None:
        super().__init__()
        self._workers: dict[Key, WorkerState] = {}

    async def read(self) -> None:
        """Read the overview."""
        view = await self.top.inspector.overview()
        self._workers = {(worker.queue, worker.name): worker for worker in view.workers}
        alive = [worker for worker in view.workers if worker.alive]
        versions = sorted({worker.facts.version for worker in alive if worker.facts is not None})
        several = f" · ! of several versions: {', '.join(map(one_line, versions))}" if len(versions) > 1 else ""
        head = f"{len(alive)} of {len(view.workers)} workers alive, one a queue{several}"
        self.fill(view.now, [head], [self._row(worker, view.now) for worker in view.workers])

    @staticmethod
    def _row(worker: WorkerState, now: float) -> Row:
        facts, state = worker.facts or NO_FACTS, state_of(worker)
        slots = f" of {facts.slots}" if facts.slots else ""
        used = memory(facts.memory) if facts.memory else ""
        its = one_line(facts.host), used, one_line(facts.version), since(worker.since or None, now)
        texts = (one_line(worker.name), worker.queue, state, f"{short(worker.leased)}{slots}", *its)
        numbers = facts.host, facts.memory, facts.version, -worker.since
        values = (worker.name, worker.queue, state, worker.leased, *numbers)
        styles = ((2, STYLES[state]),) if state in STYLES else ()
        return Row((worker.queue, worker.name), texts, styles, values)

    def chosen(self, key: Key) -> None:
        """Open the worker."""
        self.top.push_screen(WorkerPane(*key))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the request of an action for the worker."""
        worker = self._workers.get(key) if key else None
        return None if worker is None else worker_action(action, worker)


class WorkerPane(Pane):
    """A worker of a queue, and its running jobs."""

    BINDINGS: ClassVar[list[BindingType]] = [*JOB_BINDINGS, *WORKER_BINDINGS]
    KEYS = f"""\
{WORKER_KEYS}
{JOB_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = JOB_COLUMNS["worker"]

    def __init__(self, queue: str, worker: str) -> None:
        super().__init__()
        self.queue, self.worker, self.heading = queue, worker, f"{queue} · worker {one_line(worker)}"
        self._state: WorkerState | None = None

    async def read(self) -> None:
        """Read the worker."""
        view = await self.top.inspector.worker(self.queue, self.worker)
        now = (await self.top.inspector.queue(self.queue)).now
        if view is None:
            self.fill(now, ["It is not registered any more."])
            return
        self._state = worker = view.worker
        began = f" since {clock(worker.since)}" if worker.since else ""
        shown = f", {len(view.jobs)} of them below" if len(view.jobs) < worker.leased else ""
        head = [f"{state_of(worker)}{began} · {jobs(worker.leased)} leased{shown}"]
        if worker.facts is not None:
            its = worker.facts
            used = f" · {memory(its.memory)}" if its.memory else ""
            place = f"{one_line(its.host)}, process {its.pid}"
            head.append(f"{place} · headrace {one_line(its.version)}, Python {one_line(its.python)}{used}")
        self.fill(now, head, [job_row(job, now, "worker") for job in view.jobs])

    def chosen(self, key: Key) -> None:
        """Open the job."""
        self.top.push_screen(JobPane(self.queue, key[0]))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the request of an action for the job, or the worker."""
        if action.endswith("_worker"):
            return None if self._state is None else worker_action(action, self._state)
        return job_action(action, self.queue, *key) if key else None
