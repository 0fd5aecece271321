"""The page of the counts of workers, of all queues, of one, or of a kind."""

from __future__ import annotations

from headrace.console.web.activity import SPANS, read, span_of
from headrace.console.web.request import Answer, PageRequest


async def activity(request: PageRequest) -> Answer:
    span = span_of(request)
    name = request.queue() if request.param("name") else ""
    view, queues = await request.seen()
    names = [name] if name else [queue.name for queue in queues]
    kind = request.request.query_params.get("kind")
    return "activity.html", {
        "queue": name,
        "kind": kind,
        "spans": {key: text for key, (text, *_) in SPANS.items()},
        "span": span,
        "shown": await read(request, names, span, kind),
        "now": view.now,
    }
