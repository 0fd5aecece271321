"""The page of one job, and the search for a job."""

from __future__ import annotations

import re

from headrace._protocol.keys import FLOW
from headrace._ui.web.request import PER_PAGE, Answer, NotThere, PageRequest

TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


async def job(request: PageRequest) -> Answer:
    """Show one job."""
    name, wanted = request.queue("queue"), request.param("id")
    found = await request.inspector.job(name, wanted)
    if found is None:
        raise NotThere(f"Nothing is known of job {wanted!r} in queue {name!r}: it has ended, or never was.")
    now = (await request.inspector.queue(name)).now
    run = found.headers.get(FLOW, "").rpartition(":flow:")[2]
    flow = name.partition("/")[0] if run and "/" in name else ""
    traced = TRACE.match(found.headers.get("traceparent", ""))
    trace = request.trace_url.replace("{trace_id}", traced[1]) if traced else ""
    return "job.html", {"job": found, "now": now, "flow": flow, "run": run, "trace": trace}


async def find(request: PageRequest) -> Answer:
    """Find a job by its id in whichever queue."""
    wanted = request.param("id").strip()
    _, queues = await request.seen()
    names = await request.inspector.find(wanted, [queue.name for queue in queues]) if wanted else []
    return "find.html", {"id": wanted, "names": names[:PER_PAGE], "looked": len(queues)}
