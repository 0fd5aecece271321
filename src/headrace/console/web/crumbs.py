"""The way from the navigation to a page, and a page's address without the form that it asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starlette.requests import Request

from headrace.console.web.render import to

QUEUES, FLOWS = ("Queues", "./#queues", ""), ("Flows", "flows", "")
LETTERS = ("Dead letters", "dead", "")
# of each page the pages above it: a text, an address, and the parameter that names what is there
ABOVE: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "queue": [QUEUES],
    "trends": [QUEUES, ("", "queue", "name")],
    "matching": [QUEUES, ("", "queue", "name")],
    "job": [QUEUES, ("", "queue", "queue")],
    "worker": [("Workers", "workers", "")],
    "schedule": [("Schedules", "schedules", "")],
    "flow": [FLOWS],
    "run": [FLOWS, ("", "flow", "flow")],
}


def crumbs(page: str, asked: Callable[[str], str]) -> Sequence[tuple[str, str]]:
    above = ABOVE.get(page, ())
    if page == "activity" and asked("name"):
        above = [QUEUES, ("", "queue", "name")]
    if page == "dead" and (asked("name") or asked("group")):
        above = [LETTERS, ("", "dead", "name")] if asked("name") and asked("group") else [LETTERS]
    return [
        (text or asked(named), to(address, name=asked(named) if named else ""))
        for text, address, named in above
    ]


def without_ask(page: str, request: Request) -> str:
    kept = {
        key: value for key, value in request.query_params.items() if key not in ("ask", "outcome")
    }
    return to(page, **kept)
