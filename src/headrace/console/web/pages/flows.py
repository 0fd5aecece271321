"""The pages of flows and their runs."""

from __future__ import annotations

from headrace.console.web.graph import ORDER, drawn, nodes
from headrace.console.web.request import Answer, NotThere, PageRequest
from headrace.inspect import FlowView
from headrace.platform import WORDS

FILTERS = ("state", "stage", "prefix")  # of runs
CHILDREN_SHOWN = 100  # children of a run in each state


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
    page = await request.inspector.runs(name, request.param("cursor"), **only)
    shown = next((one for one in await _flows(request) if one.name == name), None)
    return "flow.html", {
        "page": page,
        "only": only,
        "states": WORDS.run_states,
        "now": page.now,
        "flow": shown,
        "graph": None if shown is None else drawn(shown),
        "first": not request.param("cursor"),
    }


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
        for one in parts[:CHILDREN_SHOWN]
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
