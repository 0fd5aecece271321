"""The pages of one queue: its jobs by state, its trends, and a bulk action that goes on."""

from __future__ import annotations

from typing import Any

from headrace._core.views.reader import STATES
from headrace._model.event import ENDS
from headrace._model.verbs import BULK
from headrace._ui.actions import BULK_TEXTS
from headrace._ui.web.charts import HEIGHT, SPANS, WIDTH, charts, rows
from headrace._ui.web.request import PER_PAGE, Answer, NotThere, PageRequest, buttons, by_state

ONWARD = ("action", "state", "cursor", "reason", "kind", "looked", "matched", "done", "confirm")  # of a bulk action


async def queue(request: PageRequest) -> Answer:
    """Show one queue, and a page of its jobs in one state."""
    name, state = request.queue(), request.param("state", "waiting")
    only = {"kind": request.param("kind")[:500], "end": request.param("end")} if state == "ended" else {}
    if state not in (*STATES, "ended") or only.get("end", "") not in ("", *ENDS):
        raise NotThere(f"There is no state {state!r}.")
    page = await request.inspector.queue(name)
    counts = page.queue.counts
    if not (counts.enqueued or counts.present or page.queue.workers or page.schedules or page.declaration):
        raise NotThere(f"There is no queue {name!r}.")
    chosen: dict[str, Any] = {word: value or None for word, value in only.items()}
    jobs = await request.inspector.jobs(name, state, request.param("cursor"), PER_PAGE, **chosen)
    bulk = [action for action, states in BULK.items() if state in states and request.rights.may(name, action)]
    more = {"q": page.queue, "jobs": jobs, "first": not request.param("cursor"), "now": page.now}
    more |= {"bulk": bulk, "bulk_texts": BULK_TEXTS, "buttons": buttons(request, "queue", name)}
    more |= {"only": only, "ends": ENDS}
    return "queue.html", {"page": page, "tabs": by_state(counts), **more}


async def matching(request: PageRequest) -> Answer:
    """Show how far a bulk action has come, and let it go on."""
    name, fields = request.queue(), {name: request.param(name)[:1000] for name in ONWARD}
    if request.param("state") not in BULK.get(fields["action"], ()):
        raise NotThere("There is no such bulk action.")
    counts = (await request.inspector.queue(name)).queue.counts
    return "matching.html", {"queue": name, "fields": fields, "there": by_state(counts)[request.param("state")]}


async def trends(request: PageRequest) -> Answer:
    """Show the past counts of a queue as charts."""
    name, span = request.queue(), request.param("span", "2h")
    if span not in SPANS:
        raise NotThere(f"There is no span {span!r}.")
    _, every, number = SPANS[span]
    found = await request.inspector.trends(name, every, number)
    more = {"charts": charts(found, number), "rows": rows(found, number), "size": (WIDTH, HEIGHT)}
    return "trends.html", {"trends": found, "spans": SPANS, "span": span, "now": found.now, **more}
