"""Views of flows and their runs."""

from __future__ import annotations

from headrace._core.effects import Scan, Step, send
from headrace._core.flows import sharded as flow_shards
from headrace._core.views.catalogue import SCANS_PER_LOOK
from headrace._core.views.reader import Reader
from headrace._model.flow import FlowState
from headrace._model.shards import number_in
from headrace._model.views import (
    RunsPage,
)
from headrace._protocol import view_ops
from headrace._protocol.flow_ops import FlowOps
from headrace._protocol.keys import run_in, run_pattern
from headrace._protocol.limits import OPS_PER_TRIP


class FlowViews(Reader):
    """Views of flows and their runs."""

    def _flow(self, name: str, stages: list[str]) -> FlowOps:
        flow = FlowOps(name, self.namespace)
        for stage in stages:
            flow.declare(stage, (), (), {})
        return flow

    def _stages(self, flow: str) -> Step[list[str]]:
        names = yield from self._catalogue.refresh()
        return [name.partition("/")[2] for name in names if name.startswith(f"{flow}/")]

    def runs(self, flow: str, cursor: str) -> Step[RunsPage]:
        """Read some runs of a flow, as a scan of the server finds them."""
        self._flow(flow, [])  # refused before anything is sent
        if not cursor.isdigit() and cursor:
            raise ValueError(f"cursor {cursor!r}: give that of the page before")

        def build() -> Step[RunsPage]:
            stages, at, found = (yield from self._stages(flow)), int(cursor or 0), set[tuple[int | None, str]]()
            for _ in range(SCANS_PER_LOOK):
                at, keys = yield from Scan(at, run_pattern(flow, self.namespace))
                found |= {(number_in(key), run[1]) for key in keys if (run := run_in(key))}
                if at == 0 or len(found) >= OPS_PER_TRIP:
                    break
            names = flow_shards.by_place(sorted(found, key=lambda one: one[1]))
            known = yield from flow_shards.places(self._flow(flow, stages or ["-"]))
            states = (yield from flow_shards.read_at(known, names)) if names else {}
            about = yield from send(view_ops.about(self._ops_factory.whole(flow)))
            runs = [state for some in states.values() for state in some.values()]
            return RunsPage(about.now, flow, tuple(stages), tuple(runs), str(at) if at else "")

        return (yield from self.kept(("runs", flow, cursor), build))

    def run(self, flow: str, id: str) -> Step[FlowState | None]:
        """Read one run of a flow, or one of its children."""
        self._flow(flow, []).run(id)  # refused before anything is sent

        def build() -> Step[FlowState | None]:
            stages = yield from self._stages(flow)
            return (yield from flow_shards.read(self._flow(flow, stages or ["-"]), [id]))[0]

        return (yield from self.kept(("run", flow, id), build))
