"""The page of all queues."""

from __future__ import annotations

from headrace._ui.web.request import Answer, PageRequest


async def overview(request: PageRequest) -> Answer:
    """Show all queues."""
    view, queues = await request.seen()
    return "overview.html", {"view": view, "queues": queues, "now": view.now}
