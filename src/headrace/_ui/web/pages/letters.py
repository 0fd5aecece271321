"""The pages of dead letters."""

from __future__ import annotations

from headrace._ui.web.request import Answer, PageRequest


async def dead(request: PageRequest) -> Answer:
    """Show the dead letters of all queues, or of one queue by reason."""
    if not request.param("name"):
        view, queues = await request.seen()
        return "deaths.html", {"queues": [queue for queue in queues if queue.counts.dead], "now": view.now}
    name = request.queue()
    page = await request.inspector.dead(name)
    return "dead.html", {"page": page, "queue": name, "now": page.now}
