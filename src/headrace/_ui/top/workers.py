"""The panes of workers: all, and one with its running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from headrace._model.views import one_line
from headrace._ui.texts import clock, from_now, jobs, short
from headrace._ui.top.acts import FAIL_BINDING, FAIL_KEY, JOB_BINDINGS, JOB_KEYS, fail_action, job_action
from headrace._ui.top.job import JOB_COLUMNS, JobPane, job_row
from headrace._ui.top.pane import Column, Key, Pane, PendingAction, Row


class WorkersPane(Pane):
    """The workers of all queues."""

    BINDINGS: ClassVar[list[BindingType]] = [FAIL_BINDING]
    KEYS = FAIL_KEY
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("worker", flexible=2, middle=True),
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
            values = (worker.name, worker.queue, state, worker.since, worker.leased)
            rows.append(Row((worker.queue, worker.name), texts, styles, values))
        self.fill(view.now, [f"{alive} of {len(view.workers)} workers alive, one a queue"], rows)

    def chosen(self, key: Key) -> None:
        """Open the worker."""
        self.top.push_screen(WorkerPane(*key))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:  # noqa: ARG002 - it has one
        """Return the request to fail the worker."""
        return fail_action(*key) if key else None


class WorkerPane(Pane):
    """A worker of a queue, and its running jobs."""

    BINDINGS: ClassVar[list[BindingType]] = [*JOB_BINDINGS, FAIL_BINDING]
    KEYS = f"""\
{FAIL_KEY}
{JOB_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = JOB_COLUMNS["worker"]

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
        self.fill(now, [head], [job_row(job, now, "worker") for job in view.jobs])

    def chosen(self, key: Key) -> None:
        """Open the job."""
        self.top.push_screen(JobPane(self.queue, key[0]))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the request of an action for the job, or the worker."""
        if action == "fail_worker":
            return fail_action(self.queue, self.worker)
        return job_action(action, self.queue, *key) if key else None
