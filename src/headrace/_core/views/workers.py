"""Views of workers."""

from __future__ import annotations

from typing import Any

from headrace._core.effects import Call, send, send_all
from headrace._core.views.reader import JOBS_SHOWN, Reader
from headrace._model.state import JobState
from headrace._model.views.jobs import WorkerView
from headrace._protocol import view_ops
from headrace._protocol.limits import CLAIMS_PER_SCRIPT, LISTED_PER_SCRIPT


class WorkerViews(Reader):
    def worker(self, name: str, worker: str) -> Call[WorkerView | None]:
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[WorkerView | None]:
            parts = yield from self._of(name)
            there = [
                one
                for some in (yield from send_all([view_ops.workers(ops) for ops in parts]))
                for one in some
            ]
            state = next((one for one in there if one.name == worker), None)
            if state is None:
                return None
            mine = list[JobState[Any]]()
            looked = 0
            now = 0.0
            for ops in parts:
                cursor = ""
                while looked < CLAIMS_PER_SCRIPT and len(mine) < min(JOBS_SHOWN, state.leased):
                    states, cursor, now, _ = yield from send(
                        view_ops.weighed(ops, "running", cursor, LISTED_PER_SCRIPT)
                    )
                    mine += (one for one in states if one.worker == worker)
                    looked += len(states)
                    if not cursor:
                        break
            return WorkerView(
                state, tuple(self.showing.job(one, now=now) for one in mine[:JOBS_SHOWN])
            )

        return (yield from self.kept(("worker", name, worker), build))
