"""Views of flows and their runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from headrace._core.effects import Call, Scan, send, send_all
from headrace._core.flows import sharded as flow_shards
from headrace._core.views.catalogue import SCANS_PER_LOOK
from headrace._core.views.overview import OverviewViews
from headrace._core.views.reader import JOBS_SHOWN, SEARCH_KEPT
from headrace._model.flow import FlowState, FlowView, RunsPage, RunView, StageView
from headrace._model.shards import number_in
from headrace._model.views.queues import QueueView
from headrace._protocol import view_ops
from headrace._protocol.features.flows.ops import LEADS, FlowOps
from headrace._protocol.keys import run_in, run_pattern
from headrace._protocol.limits import JOBS_PER_SCRIPT, OPS_PER_TRIP
from headrace._protocol.op import Op

STAGES_AT_MOST = 100  # of a flow that are shown
RUN_STATES = ("running", "blocked", "completed", "failed", "cancelled")


def ranks(edges: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the column of each stage, which is behind all stages that lead to it. Edges that close
    a circle do not count.
    """
    order = list[str]()
    open_now = set[str]()
    back = set[tuple[str, str]]()

    def visit(name: str) -> None:
        open_now.add(name)
        for other in edges[name]:
            if other in open_now:
                back.add((name, other))
            elif other in edges and other not in order:
                visit(other)
        open_now.remove(name)
        order.append(name)

    targets = {other for some in edges.values() for other in some}
    # in the given order, the first stages first
    for name in sorted(edges, key=lambda name: name in targets):
        if name not in order:
            visit(name)
    found = dict.fromkeys(edges, 0)
    for name in reversed(order):
        for other in edges[name]:
            if other in found and (name, other) not in back:
                found[other] = max(found[other], found[name] + 1)
    return found


def flow_of(
    name: str, queues: Sequence[QueueView], declared: Mapping[str, Mapping[str, str]]
) -> FlowView:
    stages: list[StageView] = []
    names = {queue.name.partition("/")[2] for queue in queues}
    for queue in queues:
        leads = [
            word
            for word in declared[queue.name].get(LEADS, "").split(" ")
            if word.lstrip("+") in names
        ]
        following = tuple(word for word in leads if word[:1] != "+")
        children = tuple(word[1:] for word in leads if word[:1] == "+")
        stages.append(StageView(queue.name.partition("/")[2], queue, following, children))
    order = ranks({stage.name: (*stage.next, *stage.children) for stage in stages})
    stages.sort(key=lambda stage: (order[stage.name], stage.name))
    return FlowView(name, tuple(stages), any(LEADS in declared[queue.name] for queue in queues))


class FlowViews(OverviewViews):
    def flows(self) -> Call[tuple[FlowView, ...]]:
        def build() -> Call[tuple[FlowView, ...]]:
            groups: dict[str, list[QueueView]] = {}
            for queue in (yield from self.overview()).queues:
                if "/" in queue.name:
                    groups.setdefault(queue.name.partition("/")[0], []).append(queue)
            declared = yield from self._declared(
                [queue for some in groups.values() for queue in some]
            )
            return tuple(
                flow_of(name, some[:STAGES_AT_MOST], declared) for name, some in groups.items()
            )

        return (yield from self.kept(("flows",), build))

    def _flow(self, name: str, stages: list[str]) -> FlowOps:
        flow = FlowOps(name, self.namespace)
        for stage in stages:
            flow.declare(stage, (), (), {})
        return flow

    def _stages(self, flow: str) -> Call[list[str]]:
        names = yield from self._catalogue.refresh()
        return [name.partition("/")[2] for name in names if name.startswith(f"{flow}/")]

    def runs(
        self,
        flow: str,
        cursor: str,
        state: str = "",
        stage: str = "",
        prefix: str = "",
        newest: bool = False,
    ) -> Call[RunsPage]:
        self._flow(flow, [])  # refused before anything is sent
        if not cursor.isdigit() and cursor:
            raise ValueError(f"cursor {cursor!r}: give that of the page before")
        if state not in ("", *RUN_STATES):
            raise ValueError(f"state={state!r:.100}: give one of {', '.join(RUN_STATES)}")

        def build() -> Call[RunsPage]:
            stages = yield from self._stages(flow)
            at = int(cursor or 0)
            runs = dict[str, FlowState]()
            counts = Counter[str]()
            known = yield from flow_shards.places(self._flow(flow, stages or ["-"]))
            looked = 0
            for _ in range(SCANS_PER_LOOK):
                at, keys = yield from Scan(at, run_pattern(flow, self.namespace, prefix))
                found = {(number_in(key), run[1]) for key in keys if (run := run_in(key))}
                names = flow_shards.by_place(sorted(found, key=lambda one: one[1]))
                states = (yield from flow_shards.read_at(known, names)) if names else {}
                every = [
                    run
                    for some in states.values()
                    for run in some.values()
                    if stage in ("", run.stage) and run.id not in runs
                ]
                counts.update(run.state for run in every)
                runs |= {run.id: run for run in every if state in ("", run.state)}
                looked += len(found)
                enough = len(runs) >= OPS_PER_TRIP and not newest
                if at == 0 or enough or looked >= JOBS_PER_SCRIPT:
                    break
            about = yield from send(view_ops.about(self._ops_factory.whole(flow)))
            some = list(runs.values())
            if newest:
                some.sort(key=lambda run: run.started_at or 0.0, reverse=True)
            return RunsPage(
                about.now, flow, tuple(stages), tuple(some), str(at) if at else "", counts
            )

        # 1,000 runs take longer than others
        fresh = self.fresh * SEARCH_KEPT if newest else self.fresh
        return (
            yield from self.kept(("runs", flow, cursor, state, stage, prefix, newest), build, fresh)
        )

    def run(self, flow: str, id: str) -> Call[RunView | None]:
        self._flow(flow, []).run(id)  # refused before anything is sent

        def build() -> Call[RunView | None]:
            stages = yield from self._stages(flow)
            known = yield from flow_shards.places(self._flow(flow, stages or ["-"]))
            for number in known.of(id):
                part = known.at(number)
                found = None if part is None else (yield from self._run(part, id))
                if found is not None:
                    return found
            return None

        return (yield from self.kept(("run", flow, id), build))

    def _run(self, flow: FlowOps, id: str) -> Call[RunView | None]:
        found, begun = yield from send(flow.whole_run(id))
        for _ in range(3):  # each page has 500 children, or 1 MiB
            if begun is None:
                break
            found, begun = yield from send(flow.whole_run(id, begun))
        if found is None:
            return None
        going = [child for child in found.parts if child.state == "running"][:JOBS_SHOWN]
        asked = {child.id: child.stage for child in going if child.stage in flow.stages}
        if found.state == "running" and found.stage in flow.stages:
            asked[id] = found.stage
        ops: list[Op[Any]] = [view_ops.about(self._ops_factory.whole(flow.name))]
        ops += [
            view_ops.seek_delivery(flow.stages[stage].ops, name, "")
            for name, stage in asked.items()
        ]
        about, *answers = yield from send_all(ops)
        jobs = {
            name: answer[0].state
            for name, answer in zip(asked, answers, strict=True)
            if answer[0] is not None
        }
        parts = tuple(evolve(child, job=jobs.get(child.id, "")) for child in found.parts)
        return evolve(found, parts=parts, job=jobs.get(id, ""), now=about.now, whole=begun is None)
