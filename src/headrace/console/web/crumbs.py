"""The way from the navigation to a page, and a page's address without the form that it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request

from headrace.console.web.render import to

QUEUES = ("Queues", "./#queues")
SECTIONS = {
    "worker": ("Workers", "workers"),
    "schedule": ("Schedules", "schedules"),
    "flow": ("Flows", "flows"),
    "run": ("Flows", "flows"),
    "dead": ("Dead letters", "dead"),
}
OF_A_QUEUE = {"job": "queue", "trends": "name", "matching": "name"}  # the parameter that names it


def crumbs(page: str, asked: Callable[[str], str]) -> Sequence[tuple[str, str]]:
    # each page above it, with its text and its address
    if page in OF_A_QUEUE:
        name = asked(OF_A_QUEUE[page])
        return (QUEUES, (name, to("queue", name=name)))
    if page == "queue":
        return (QUEUES,)
    if page == "run":
        return (SECTIONS[page], (asked("flow"), to("flow", name=asked("flow"))))
    if page == "dead":
        name = asked("name")
        above = [SECTIONS[page]] if name or asked("group") else []
        return above + ([(name, to("dead", name=name))] if name and asked("group") else [])
    return (SECTIONS[page],) if page in SECTIONS else ()


def without_ask(page: str, request: Request) -> str:
    kept = {
        key: value for key, value in request.query_params.items() if key not in ("ask", "outcome")
    }
    return to(page, **kept)
