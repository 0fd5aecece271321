"""The page of the counts of workers, of all queues, of one, or of a kind."""

from __future__ import annotations

from headrace.console.web.activity import STEPS, shown
from headrace.console.web.request import Answer, NotThere, PageRequest


async def activity(request: PageRequest) -> Answer:
    span = request.param("span", "2h")
    if span not in STEPS:
        raise NotThere(f"There is no span {span!r}.")
    name = request.queue() if request.param("name") else ""
    names = [name] if name else [queue.name for queue in (await request.seen())[1]]
    found = await request.inspector.activity(names, STEPS[span][1])
    kind = request.request.query_params.get("kind")
    return "activity.html", {
        "queue": name,
        "kind": kind,
        "spans": {key: text for key, (text, _) in STEPS.items()},
        "span": span,
        "shown": shown(found, kind),
        "now": found.now,
    }
