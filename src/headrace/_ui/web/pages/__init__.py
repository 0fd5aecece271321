"""The pages: each reads the inspector and fills a template. GET changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace._ui.web.pages.flows import flow, flows, run
from headrace._ui.web.pages.job import find, job
from headrace._ui.web.pages.letters import dead
from headrace._ui.web.pages.overview import overview
from headrace._ui.web.pages.queue import matching, queue, trends
from headrace._ui.web.pages.schedules import schedule, schedules
from headrace._ui.web.pages.tenants import tenants
from headrace._ui.web.pages.workers import worker, workers
from headrace._ui.web.request import Answer, PageRequest

PAGES: dict[str, Callable[[PageRequest], Awaitable[Answer]]] = {"": overview}
_OF_QUEUES = (queue, matching, trends, job, find, schedules, schedule, dead, tenants)
for _page in (*_OF_QUEUES, workers, worker, flows, flow, run):
    PAGES[_page.__name__] = _page
