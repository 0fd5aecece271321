"""Views of jobs: lists by state, one job, and the search by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace._core.effects import Step, send, send_all
from headrace._core.queue import calls
from headrace._core.views.catalogue import place
from headrace._core.views.reader import STATES, Reader, asked
from headrace._model.state import JobState, ended_as
from headrace._model.views import (
    ENDED,
    JobsPage,
    JobView,
)
from headrace._protocol import view_ops
from headrace._protocol.keys import job_id
from headrace._protocol.limits import LISTED_PER_SCRIPT, OPS_PER_TRIP
from headrace._protocol.queue_ops import Ops

PARTS_A_PAGE = 8  # calls for a page at most


class JobViews(Reader):
    """Views of jobs: lists by state, one job, and the search by id."""

    def jobs(
        self, name: str, state: str, cursor: str, limit: int, kind: str | None = None, end: str | None = None
    ) -> Step[JobsPage]:
        """Read a page of the jobs in one state. *kind* and *end* choose among jobs that have ended."""
        if state not in STATES and state != "ended":
            raise ValueError(f"state {state!r}: give one of {', '.join(STATES)}, ended")
        if (kind or end) and state != "ended":
            raise ValueError(f"kind and end are for jobs that have ended, not for the state {state!r}")
        listed = ended_as(kind, end) if state == "ended" else state
        self._ops_factory.whole(name).listing(state, cursor, limit)  # refused before anything is sent
        if limit > LISTED_PER_SCRIPT:
            raise ValueError(f"limit {limit}: give at most {LISTED_PER_SCRIPT}")

        def build() -> Step[JobsPage]:
            parts = yield from self._of(name)
            at, inner = place(cursor, len(parts))
            states, reads, now = list[JobState[Any]](), 0, 0.0
            while at < len(parts) and len(states) < limit and reads < PARTS_A_PAGE:
                some, inner, now = yield from send(view_ops.page(parts[at], listed, inner, limit - len(states)))
                states += some
                reads += bool(some or inner)  # a page ends after the parked jobs, after each level, and at 1 MiB
                at += not inner
            more = inner if len(parts) == 1 else f"{at}:{inner}" if at < len(parts) else ""
            return JobsPage(now, name, state, tuple(self.showing.job(one) for one in states), more)

        return (yield from self.kept(("jobs", name, listed, cursor, limit), build))

    def job(self, name: str, id: str) -> Step[JobView | None]:
        """Read one job."""
        self._ops_factory.whole(name)  # refused before anything is sent
        job_id(id)

        def build() -> Step[JobView | None]:
            gone: JobView | None = None
            for ops, its in asked((yield from self._of(name)), id):
                found = yield from self._one(ops, its)
                if found is not None and not found.ended:
                    return found
                gone = gone or found
            return gone

        return (yield from self.kept(("job", name, id), build))

    def _one(self, ops: Ops, id: str) -> Step[JobView | None]:
        """Read one job of a shard, by the id that it has there."""
        state, token, cursor = yield from send(view_ops.seek(ops, id, ""))
        while state is None and cursor:
            state, token, cursor = yield from send(view_ops.seek(ops, id, cursor))
        if state is None or state.state in ENDED:
            result = yield from send(ops.result(id))
            return None if state is None and result is None else self.showing.gone(ops.keys.queue, id, state, result)
        until = position = None
        if state.state == "leased" and state.entry:
            holding = yield from send(view_ops.lease_of(ops, state.entry))
            until = holding.until if holding is not None and holding.worker == state.worker else None
        if state.state in ("waiting", "parked"):
            position = yield from calls.position(ops, id)
        state = self._with_results(ops.bound, state)
        return self.showing.job(state, token=token or None, until=until, position=position, whole=True)

    def find(self, id: str, names: Sequence[str]) -> Step[list[str]]:
        """Find the queues among *names* that have a job of this id. Reads the newest 1,000 dead letters, or 1 MiB."""
        job_id(id)
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[list[str]]:
            found: list[str] = []
            for start in range(0, len(names), OPS_PER_TRIP):
                some = names[start : start + OPS_PER_TRIP]
                parts = yield from self._ops_factory.levelled(some)
                places = {name: asked(parts[name], id) for name in some}
                states = iter((yield from send_all([ops.find(its) for name in some for ops, its in places[name]])))
                found += (name for name in some if [None for _ in places[name] if next(states) is not None])
            return found

        return (yield from self.kept(("find", id, *names), build))
