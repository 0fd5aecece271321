"""The pages of flows and their runs."""

from __future__ import annotations

from headrace._model.views import QueueView
from headrace._ui.web.request import Answer, NotThere, PageRequest


async def flows(request: PageRequest) -> Answer:
    """Show the groups of queues that may be flows."""
    view, queues = await request.seen()
    groups: dict[str, list[QueueView]] = {}
    for queue in queues:
        group, _, stage = queue.name.partition("/")
        if stage:
            groups.setdefault(group, []).append(queue)
    return "flows.html", {"groups": groups, "now": view.now}


async def flow(request: PageRequest) -> Answer:
    """Show some runs of a flow."""
    name = request.queue()
    page = await request.inspector.runs(name, request.param("cursor"))
    return "flow.html", {"page": page, "now": page.now}


async def run(request: PageRequest) -> Answer:
    """Show a run of a flow, or a child of one."""
    name, wanted = request.queue("flow"), request.param("id")
    found = await request.inspector.run(name, wanted)
    if found is None:
        raise NotThere(f"Nothing is known of run {wanted!r} of flow {name!r}.")
    page = await request.inspector.runs(name)
    show = request.inspector.views.showing.result_text
    results = {stage: show(name, wanted, data) for stage, data in found.results.items()}
    attributes = request.inspector.views.showing.attributes(name, found)
    return "run.html", {"run": found, "flow": name, "results": results, "attributes": attributes, "now": page.now}
