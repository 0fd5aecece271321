"""The pages. Each reads the inspector and fills a template. GET changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.console.web.pages.activity import activity
from headrace.console.web.pages.flows import flow, flows, run
from headrace.console.web.pages.job import find, job
from headrace.console.web.pages.letters import dead
from headrace.console.web.pages.overview import overview
from headrace.console.web.pages.queue import matching, queue, trends
from headrace.console.web.pages.schedules import schedule, schedules
from headrace.console.web.pages.tenants import tenants
from headrace.console.web.pages.workers import worker, workers
from headrace.console.web.request import Answer, PageRequest

PAGES: dict[str, Callable[[PageRequest], Awaitable[Answer]]] = {"": overview}
_OF_QUEUES = (queue, matching, trends, job, find, schedules, schedule, dead, tenants)
for _page in (*_OF_QUEUES, activity, workers, worker, flows, flow, run):
    PAGES[_page.__name__] = _page
