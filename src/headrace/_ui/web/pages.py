"""The pages: each reads the inspector and fills a template. GET changes nothing."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from headrace._api.aio.inspector import AsyncInspector
from headrace._core.views.views import STATES
from headrace._model.event import ENDS
from headrace._model.state import Counts
from headrace._model.verbs import BULK, VERBS
from headrace._model.views import Overview, QueueView, one_line
from headrace._protocol.keys import FLOW
from headrace._ui.actions import BULK_TEXTS, BUTTONS, Button
from headrace._ui.texts import Refused, clock, from_now, rate, span
from headrace._ui.web.access import Rights
from headrace._ui.web.charts import HEIGHT, SMALL_HEIGHT, SMALL_WIDTH, SPANS, WIDTH, charts, points, rows

PER_PAGE = 50
TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")
ONWARD = ("action", "state", "cursor", "reason", "kind", "looked", "matched", "done", "confirm")  # of a bulk action
Answer = tuple[str, Mapping[str, Any]]  # a template, and its values


class NotThere(Refused):
    """Raised for pages of objects that do not exist, or that the user may not see."""


@frozen
class PageRequest:
    """One request for a page: its address, its rights, and the reader of queues."""

    request: Request
    rights: Rights
    inspector: AsyncInspector
    trace_url: str

    def param(self, name: str, default: str = "") -> str:
        """Return a query parameter."""
        return self.request.query_params.get(name, default)

    def queue(self, name: str = "name") -> str:
        """Return the queue of the request. Raises `NotThere` if the user may not see it."""
        queue = self.param(name)
        if not queue or not self.rights.sees(queue):
            raise NotThere(f"There is no queue {queue!r}.")
        return queue

    async def seen(self) -> tuple[Overview, list[QueueView]]:
        """Read the overview. Return it, and the queues that the user may see."""
        view = await self.inspector.overview()
        return view, [queue for queue in view.queues if self.rights.sees(queue.name)]


async def overview(request: PageRequest) -> Answer:
    """Show all queues."""
    view, queues = await request.seen()
    return "overview.html", {"view": view, "queues": queues, "now": view.now}


def _by_state(counts: Counts) -> dict[str, int]:
    """Return how many jobs the list of each state has."""
    numbers = (counts.waiting + counts.parked, counts.leased, counts.delayed, counts.blocked, counts.dead)
    return dict(zip(STATES, numbers, strict=True))


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
    chosen = {word: value or None for word, value in only.items()}
    jobs = await request.inspector.jobs(name, state, request.param("cursor"), PER_PAGE, **chosen)
    bulk = [action for action, states in BULK.items() if state in states and request.rights.may(name, action)]
    more = {"q": page.queue, "jobs": jobs, "first": not request.param("cursor"), "now": page.now}
    more |= {"bulk": bulk, "bulk_texts": BULK_TEXTS, "buttons": _buttons(request, "queue", name)}
    more |= {"only": only, "ends": ENDS}
    return "queue.html", {"page": page, "tabs": _by_state(counts), **more}


def _buttons(request: PageRequest, page: str, queue: str) -> dict[str, Button]:
    """Return the buttons of a page, by action, that the reader may press."""
    return {
        action: button
        for action, button in BUTTONS.items()
        if button.page == page and request.rights.may(queue, action)
    }


async def matching(request: PageRequest) -> Answer:
    """Show how far a bulk action has come, and let it go on."""
    name, fields = request.queue(), {name: request.param(name)[:1000] for name in ONWARD}
    if request.param("state") not in BULK.get(fields["action"], ()):
        raise NotThere("There is no such bulk action.")
    counts = (await request.inspector.queue(name)).queue.counts
    return "matching.html", {"queue": name, "fields": fields, "there": _by_state(counts)[request.param("state")]}


async def trends(request: PageRequest) -> Answer:
    """Show the past counts of a queue as charts."""
    name, span = request.queue(), request.param("span", "2h")
    if span not in SPANS:
        raise NotThere(f"There is no span {span!r}.")
    _, every, number = SPANS[span]
    found = await request.inspector.trends(name, every, number)
    more = {"charts": charts(found, number), "rows": rows(found, number), "size": (WIDTH, HEIGHT)}
    return "trends.html", {"trends": found, "spans": SPANS, "span": span, "now": found.now, **more}


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


async def workers(request: PageRequest) -> Answer:
    """Show the workers of all queues."""
    view, queues = await request.seen()
    all_workers = (worker for queue in queues for worker in queue.workers)
    found = sorted(all_workers, key=lambda worker: (worker.name, worker.queue))
    return "workers.html", {"workers": found, "now": view.now}


async def worker(request: PageRequest) -> Answer:
    """Show a worker, and its running jobs."""
    name, wanted = request.queue("queue"), request.param("name")
    found = await request.inspector.worker(name, wanted)
    if found is None:
        raise NotThere(f"There is no worker {wanted!r} in queue {name!r}.")
    now = (await request.inspector.queue(name)).now
    return "worker.html", {"view": found, "queue": name, "now": now, "buttons": _buttons(request, "worker", name)}


async def schedules(request: PageRequest) -> Answer:
    """Show the schedules of all queues."""
    view, queues = await request.seen()
    found = await request.inspector.schedules([queue.name for queue in queues])
    rows = [(name, schedule) for name, schedules in found.items() for schedule in schedules]
    rows.sort(key=lambda row: row[1].next_due)
    return "schedules.html", {"rows": rows[:1000], "now": view.now}


async def dead(request: PageRequest) -> Answer:
    """Show the dead letters of all queues, or of one queue by reason."""
    if not request.param("name"):
        view, queues = await request.seen()
        return "deaths.html", {"queues": [queue for queue in queues if queue.counts.dead], "now": view.now}
    name = request.queue()
    page = await request.inspector.dead(name)
    return "dead.html", {"page": page, "queue": name, "now": page.now}


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


PAGES: dict[str, Callable[[PageRequest], Awaitable[Answer]]] = {"": overview}
for _page in (queue, matching, trends, job, find, workers, worker, schedules, dead, flows, flow, run):
    PAGES[_page.__name__] = _page


def to(page: str, **query: object) -> str:
    """Make the address of a page, relative to the others: so it is right below any prefix."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{page or './'}?{urlencode(given, errors='surrogateescape')}" if given else page or "./"


@cache
def environment() -> Environment:
    """Make the templates' environment, once in a process: it keeps compiled templates. They escape all values."""
    loader = PackageLoader("headrace._ui.web", "templates")
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters: dict[str, Any] = {"span": span, "from_now": from_now, "clock": clock, "rate": rate, "points": points}
    values: dict[str, Any] = {"to": to, "verbs": VERBS, "chart": (SMALL_WIDTH, SMALL_HEIGHT)}
    templates.filters.update(filters, line=one_line)
    templates.globals.update(values)
    return templates


def render(template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """Render a page."""
    return HTMLResponse(environment().get_template(template).render(values), status)
