"""The pages of flows and their runs."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from headrace import FlowState
from headrace.console.actions import PER_PAGE
from headrace.console.web.graph import ORDER, drawn, nodes
from headrace.console.web.render import to
from headrace.console.web.request import Answer, NotThere, PageRequest
from headrace.inspect import FlowView
from headrace.platform import WORDS, ranks

FILTERS = ("state", "stage", "prefix")  # of runs


async def _flows(request: PageRequest) -> list[FlowView]:
    found: list[FlowView] = []
    for flow in await request.inspector.flows():
        stages = tuple(stage for stage in flow.stages if request.rights.sees(stage.queue.name))
        if stages:
            found.append(FlowView(flow.name, stages, flow.known))
    return found


async def flows(request: PageRequest) -> Answer:
    view, _ = await request.seen()
    return "flows.html", {
        "flows": [(flow, drawn(flow)) for flow in await _flows(request)],
        "now": view.now,
    }


async def flow(request: PageRequest) -> Answer:
    name = request.queue()
    only = {word: request.param(word)[:500] for word in FILTERS}
    if only["state"] not in ("", *WORDS.run_states):
        raise NotThere(f"There is no state {only['state']!r} of runs.")
    state = only.pop("state")
    cursor = request.param("cursor")
    page = await request.inspector.runs(name, cursor, **only, newest=True)
    runs = [run for run in page.runs if state in ("", run.state)]
    at = int(request.param("at")) if request.param("at").isdecimal() else 0
    shown = next((one for one in await _flows(request) if one.name == name), None)
    asked = {**only, "cursor": cursor}
    tabs = [("", "All", sum(page.counts.values()), to("flow", name=name, **asked))]
    tabs += [
        (one, one.capitalize(), page.counts.get(one, 0), to("flow", name=name, state=one, **asked))
        for one in WORDS.run_states
    ]
    showing = request.inspector.views.showing
    some = runs[at : at + PER_PAGE]
    return "flow.html", {
        "page": page,
        "runs": some,
        "reasons": {run.id: showing.reason(name, run) for run in some if run.reason},
        "strip": None if shown is None else strip(shown),
        "only": only,
        "asked": {**asked, "state": state},
        "state": state,
        "tabs": tabs,
        "now": page.now,
        "flow": shown,
        "graph": None if shown is None else drawn(shown),
        "first": not (cursor or at),
        "further": at + PER_PAGE if at + PER_PAGE < len(runs) else 0,
    }


@frozen
class Dot:
    stage: str
    state: str


def strip(flow: FlowView) -> Callable[[FlowState], list[Dot]]:
    order = ranks({stage.name: (*stage.next, *stage.children) for stage in flow.stages})
    children = {name for stage in flow.stages for name in stage.children}
    names = [stage.name for stage in flow.stages if stage.name not in children]

    def state_of(run: FlowState, name: str) -> str:
        if name == run.stage:
            return run.state if run.state in ("running", "blocked", "completed") else "failed"
        past = name in run.results or order[name] < order.get(run.stage, 0)
        return "completed" if past else ""

    def dots(run: FlowState) -> list[Dot]:
        return [Dot(name, state_of(run, name)) for name in names]

    return dots


async def run(request: PageRequest) -> Answer:
    name = request.queue("flow")
    wanted = request.param("id")
    found = await request.inspector.run(name, wanted)
    if found is None:
        raise NotThere(f"Nothing is known of run {wanted!r} of flow {name!r}.")
    showing = request.inspector.views.showing
    show = showing.result_text
    shown = next((one for one in await _flows(request) if one.name == name), None)
    order = [] if shown is None else [stage.name for stage in shown.stages]
    steps = None if shown is None else nodes(shown, found)
    passed = sorted(
        found.results,
        key=lambda stage: (order.index(stage) if stage in order else len(order), stage),
    )
    results = {stage: show(name, wanted, found.results[stage]) for stage in passed}
    children = {
        child: None if data is None else show(name, wanted, data)
        for child, data in found.children.items()
    }
    by_state = {state: [one for one in found.parts if one.state == state] for state in ORDER}
    numbers = [(len(parts), state) for state, parts in by_state.items() if parts]
    some = [
        one
        for parts in by_state.values()
        for one in parts[:100]  # children in each state
        if one.state != "running" or one.job
    ]
    return "run.html", {
        "run": found,
        "flow": name,
        "results": results,
        "attributes": showing.attributes(name, found),
        "now": found.now,
        "reason": showing.reason(name, found),
        "parent": wanted.rsplit("/", 2)[0] if wanted.count("/") > 1 else "",
        "children": children,
        "some": some,
        "numbers": numbers,
        "graph": None if shown is None or steps is None else drawn(shown, steps),
        "nodes": steps,
    }
