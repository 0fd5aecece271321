"""The page of all schedules, and the page of one."""

from __future__ import annotations

from headrace.console.actions import PER_PAGE
from headrace.console.web.request import Answer, NotThere, PageRequest
from headrace.platform import WORDS


async def schedules(request: PageRequest) -> Answer:
    view, queues = await request.seen()
    found = await request.inspector.schedules([queue.name for queue in queues])
    rows = [(name, schedule) for name, schedules in found.items() for schedule in schedules]
    rows.sort(key=lambda row: (row[1].paused, row[1].next_due))
    return "schedules.html", {"rows": rows[: 10 * PER_PAGE], "all": len(rows), "now": view.now}


async def schedule(request: PageRequest) -> Answer:
    queue = request.queue("queue")
    name = request.param("name")
    found = await request.inspector.schedule(queue, name)
    if found is None:
        raise NotThere(f"There is no schedule {name!r} in queue {queue!r}.")
    now = (await request.inspector.queue(queue)).now
    return "schedule.html", {
        "queue": queue,
        "found": found,
        "one": found.schedule,
        "missed": WORDS.missed,
        "now": now,
    }
