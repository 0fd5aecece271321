"""The page of schedules."""

from __future__ import annotations

from headrace._ui.web.request import Answer, PageRequest


async def schedules(request: PageRequest) -> Answer:
    """Show the schedules of all queues."""
    view, queues = await request.seen()
    found = await request.inspector.schedules([queue.name for queue in queues])
    rows = [(name, schedule) for name, schedules in found.items() for schedule in schedules]
    rows.sort(key=lambda row: row[1].next_due)
    return "schedules.html", {"rows": rows[:1000], "now": view.now}
