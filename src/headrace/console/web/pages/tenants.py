"""The page of tenants, the values between which queues are fair, and their limits."""

from __future__ import annotations

from headrace.console.web.request import Answer, PageRequest


async def tenants(request: PageRequest) -> Answer:
    view, _ = await request.seen()
    found = await request.inspector.tenants()
    return "tenants.html", {
        "found": [one for one in found if request.rights.sees(one.queue)],
        "now": view.now,
        "redacts": request.inspector.views.showing.redacts,
    }
