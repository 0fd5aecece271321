"""The pages, each a view of the inspector. GET changes nothing."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen
from starlette.requests import Request

from headrace._api.aio.inspector import AsyncInspector
from headrace._core.views.views import STATES
from headrace._model.state import Counts
from headrace._model.verbs import BULK
from headrace._model.views import JobView, Overview, QueueView
from headrace._protocol.keys import FLOW
from headrace._ui.web.access import Rights
from headrace._ui.web.charts import HEIGHT, SPANS, WIDTH, charts, rows

if TYPE_CHECKING:
    from headrace._ui.web.app import Pages

PER_PAGE = 50
FOUND_AT_MOST = 50  # queues in which one id is shown
TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")
ONWARD = ("action", "state", "cursor", "reason", "kind", "looked", "matched", "done", "confirm")  # of a bulk action
Answer = tuple[str, Mapping[str, Any]]  # a template, and its values


class NotThere(LookupError):
    """Raised for pages of objects that are not there, or may not be seen."""


@frozen
class PageRequest:
    """One request for a page: its address, its rights, and the reader."""

    request: Request
    rights: Rights
    look: AsyncInspector
    pages: Pages

    def param(self, name: str, default: str = "") -> str:
        """Return a query parameter."""
        return self.request.query_params.get(name, default)

    def queue(self, name: str = "name") -> str:
        """Return the queue that is asked for. Raises `NotThere` if it may not be seen."""
        queue = self.param(name)
        if not queue or not self.rights.sees(queue):
            raise NotThere(f"There is no queue {queue!r}.")
        return queue

    async def seen(self) -> tuple[Overview, list[QueueView]]:
        """Read the overview, and which of its queues may be seen."""
        view = await self.look.overview()
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
    if state not in STATES:
        raise NotThere(f"There is no state {state!r}.")
    page = await request.look.queue(name)
    counts = page.queue.counts
    if not (counts.enqueued or counts.present or page.queue.workers or page.schedules or page.declaration):
        raise NotThere(f"There is no queue {name!r}.")
    jobs = await request.look.jobs(name, state, request.param("cursor"), PER_PAGE)
    more = {
        "page": page,
        "bulk": [action for action, states in BULK.items() if state in states and request.rights.may(name, action)],
        "q": page.queue,
        "jobs": jobs,
        "tabs": _by_state(counts),
        "now": page.now,
        "first": not request.param("cursor"),
    }
    return "queue.html", more


async def matching(request: PageRequest) -> Answer:
    """Show how far a bulk action has come, and let it go on."""
    name, fields = request.queue(), {name: request.param(name)[:1000] for name in ONWARD}
    if request.param("state") not in BULK.get(fields["action"], ()):
        raise NotThere("There is no such bulk action.")
    counts = (await request.look.queue(name)).queue.counts
    return "matching.html", {"queue": name, "fields": fields, "there": _by_state(counts)[request.param("state")]}


async def trends(request: PageRequest) -> Answer:
    """Show the past counts of a queue as charts."""
    name, span = request.queue(), request.param("span", "2h")
    if span not in SPANS:
        raise NotThere(f"There is no span {span!r}.")
    _, every, number = SPANS[span]
    found = await request.look.trends(name, every, number)
    more = {"charts": charts(found, number), "rows": rows(found, number), "size": (WIDTH, HEIGHT)}
    return "trends.html", {"trends": found, "spans": SPANS, "span": span, "now": found.now, **more}


async def job(request: PageRequest) -> Answer:
    """Show one job."""
    name, called = request.queue("queue"), request.param("id")
    found = await request.look.job(name, called)
    if found is None:
        raise NotThere(f"Nothing is known of job {called!r} in queue {name!r}: it has ended, or never was.")
    now = (await request.look.queue(name)).now
    run = found.headers.get(FLOW, "").rpartition(":flow:")[2]
    flow = name.partition("/")[0] if run and "/" in name else ""
    return "job.html", {"job": found, "now": now, "flow": flow, "run": run, "trace": _trace(request, found)}


def _trace(request: PageRequest, job: JobView) -> str:
    match = TRACE.match(job.headers.get("traceparent", ""))
    template = request.pages.trace_url
    return template.replace("{trace_id}", match[1]) if match and template else ""


async def find(request: PageRequest) -> Answer:
    """Find a job by its id in whichever queue."""
    called = request.param("id").strip()
    _, queues = await request.seen()
    names = await request.look.find(called, [one.name for one in queues]) if called else []
    return "find.html", {"id": called, "names": names[:FOUND_AT_MOST], "looked": len(queues)}


async def workers(request: PageRequest) -> Answer:
    """Show the workers of all queues."""
    view, queues = await request.seen()
    found = sorted((one for queue in queues for one in queue.workers), key=lambda one: (one.name, one.queue))
    return "workers.html", {"workers": found, "now": view.now}


async def worker(request: PageRequest) -> Answer:
    """Show a worker, and its running jobs."""
    name, called = request.queue("queue"), request.param("name")
    found = await request.look.worker(name, called)
    if found is None:
        raise NotThere(f"There is no worker {called!r} in queue {name!r}.")
    return "worker.html", {"view": found, "queue": name, "now": (await request.look.queue(name)).now}


async def schedules(request: PageRequest) -> Answer:
    """Show the schedules of all queues."""
    view, queues = await request.seen()
    found = await request.look.schedules([one.name for one in queues])
    rows = sorted(((name, one) for name, some in found.items() for one in some), key=lambda row: row[1].next_due)
    return "schedules.html", {"rows": rows[:1000], "now": view.now}


async def dead(request: PageRequest) -> Answer:
    """Show the dead letters of all queues, or of one queue by reason."""
    if not request.param("name"):
        view, queues = await request.seen()
        return "deaths.html", {"queues": [one for one in queues if one.counts.dead], "now": view.now}
    name = request.queue()
    page = await request.look.dead(name)
    return "dead.html", {"page": page, "queue": name, "now": page.now}


async def flows(request: PageRequest) -> Answer:
    """Show the groups of queues that may be flows."""
    view, queues = await request.seen()
    groups: dict[str, list[QueueView]] = {}
    for one in queues:
        group, _, stage = one.name.partition("/")
        if stage:
            groups.setdefault(group, []).append(one)
    return "flows.html", {"groups": groups, "now": view.now}


async def flow(request: PageRequest) -> Answer:
    """Show some runs of a flow."""
    name = request.queue()
    page = await request.look.runs(name, request.param("cursor"))
    return "flow.html", {"page": page, "now": page.now}


async def run(request: PageRequest) -> Answer:
    """Show a run of a flow, or a child of one."""
    name, called = request.queue("flow"), request.param("id")
    found = await request.look.run(name, called)
    if found is None:
        raise NotThere(f"Nothing is known of run {called!r} of flow {name!r}.")
    page = await request.look.runs(name)
    show = request.look.views.showing.result_text
    results = {stage: show(name, called, data) for stage, data in found.results.items()}
    attributes = request.look.views.showing.attributes(name, found)
    return "run.html", {"run": found, "flow": name, "results": results, "attributes": attributes, "now": page.now}


PAGES: dict[str, Callable[[PageRequest], Awaitable[Answer]]] = {
    "": overview, "queue": queue, "matching": matching, "trends": trends, "job": job, "find": find,
    "workers": workers, "worker": worker, "schedules": schedules, "dead": dead, "flows": flows, "flow": flow,
    "run": run,
}  # fmt: skip
