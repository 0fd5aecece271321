"""The pages of one queue, for its jobs by state, for its trends, and for a bulk action that goes
on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.console.actions import BULK, BULK_TEXTS, PER_PAGE
from headrace.console.texts import moment, rate
from headrace.console.web.activity import SPANS, links, read, span_of
from headrace.console.web.charts import SPANS as TREND_SPANS, Chart, charts, draw, rows
from headrace.console.web.render import to
from headrace.console.web.request import Answer, NotThere, PageRequest, buttons, by_state, ticks
from headrace.inspect import JobsPage, KindsPage, QueuePage, QueueView
from headrace.platform import WORDS

ONWARD = (  # the fields of a bulk action
    "action",
    "state",
    "cursor",
    "reason",
    "kind",
    "group",
    "looked",
    "matched",
    "done",
    "confirm",
    "rest",
    "within",
    "total",
)
FILTERS = ("kind", "end", "header", "reason", "payload", "since", "until", "order")
SORTED = {
    "waiting": "The next one first.",
    "running": "The first enqueued first.",
    "delayed": "The next one due first.",
    "blocked": "Jobs that wait for their children, then runs that wait for a signal.",
}


async def queue(request: PageRequest) -> Answer:
    name = request.queue()
    state = request.param("state")
    asked = {word: request.param(word)[:1000] for word in FILTERS}
    if state not in ("", *WORDS.states, "ended") or asked["end"] not in ("", *WORDS.ends):
        raise NotThere(f"There is no state {state!r}.")
    page = await request.inspector.queue(name)
    counts = page.queue.counts
    if not (
        counts.enqueued
        or counts.present
        or page.queue.workers
        or page.schedules
        or page.declaration
    ):
        raise NotThere(f"There is no queue {name!r}.")
    history = "history" in page.declared
    tabs = by_state(counts)
    usual = "ended" if history else "waiting"
    state = state or next((one for one, number in tabs.items() if number), usual)
    jobs, narrow = await _jobs(request, name, state, asked, page.now)
    kinds = (
        await request.inspector.kinds(name) if history else KindsPage(page.now, name, kept=False)
    )
    bulk = [
        action
        for action, states in BULK.items()
        if state in states and request.rights.may(name, action)
    ]
    known = {
        kind
        for kind in (
            *(one.kind for one in kinds.kinds[:PER_PAGE]),
            *(one.kind for one in jobs.jobs),
        )
        if kind
    }
    first = asked["order"] or "newest"
    return "queue.html", {
        "page": page,
        # the tab stays, even when its last job leaves
        "address": to("queue", **{**without(request), "state": state}),
        "redacts": request.inspector.views.showing.redacts,
        "tabs": tabs,
        "q": page.queue,
        "jobs": jobs,
        "first": not request.param("cursor"),
        "now": page.now,
        "bulk": bulk,
        "bulk_texts": BULK_TEXTS,
        "buttons": buttons(request, "queue", name),
        "mend": request.param("mend"),
        "asked": asked,
        "narrow": narrow,
        "known": {
            "kind": sorted(known),
            "reason": list(
                dict.fromkeys(
                    one.reason.partition("\n")[0][:200] for one in jobs.jobs if one.reason
                )
            ),
        },
        "ticks": ticks(request, state, name) if jobs.jobs else [],
        "place": {
            **asked,
            "state": state,
            "cursor": request.param("cursor"),
        },
        "kept": {word: value for word, value in asked.items() if value},
        "ends": WORDS.ends,
        "kinds": kinds,
        "states": _states(page.queue, tabs, history=history or state == "ended"),
        "sorted": SORTED.get(state) or f"The {first} first.",
        **await _story(request, page),
    }


def without(request: PageRequest, *names: str) -> dict[str, str]:
    query = request.request.query_params
    return {name: value for name, value in query.items() if name not in names}


def _states(
    queue: QueueView, tabs: Mapping[str, int], *, history: bool
) -> list[tuple[str, str, int | None, str]]:
    shown: list[tuple[str, str, int | None]] = [
        (state, state.capitalize(), number) for state, number in tabs.items()
    ]
    if history:
        shown.insert(-1, ("ended", "Completed", None))
    return [
        (state, text, number, to("queue", name=queue.name, state=state))
        for state, text, number in shown
    ]


async def _jobs(
    request: PageRequest, name: str, state: str, asked: Mapping[str, str], now: float
) -> tuple[JobsPage, bool]:
    chosen: dict[str, Any] = {
        word: asked[word] or None for word in ("kind", "end", "header", "reason", "payload")
    }
    chosen |= {word: moment(word, asked[word], now) for word in ("since", "until")}
    narrow = any(value is not None for value in chosen.values())
    if state in WORDS.dated:
        chosen["order"] = asked["order"] or WORDS.orders[1]
    return await request.inspector.jobs(
        name, state, request.param("cursor"), PER_PAGE, **chosen
    ), narrow


async def _story(request: PageRequest, page: QueuePage) -> Mapping[str, Any]:
    name = page.queue.name
    span = span_of(request)
    activity = await read(request, [name], span)
    kept = page.declared.get("trends") == "yes"
    minutes = SPANS[span][2] // 60 if activity is None else activity.minutes
    trends: list[Chart] = []
    if kept:
        trends = charts(await request.inspector.trends(name, "minute", minutes), minutes)
    if activity is None:
        drawn = trends[:2] or _latest(page.queue)
    else:
        some = (activity.ends, *trends[1:2], activity.waits, activity.runs)
        drawn = [chart for chart in some if chart]
    return {
        "charts": drawn,
        "activity": activity,
        "kept_trends": kept,
        "span": span,
        "spans": links("queue", **without(request, "ask", "outcome", "cursor")),
    }


def _latest(queue: QueueView) -> list[Chart]:
    if len(queue.trail) < 2:
        return []
    enqueued, completed = zip(*queue.trail, strict=True)
    return [
        draw(
            "Jobs a second",
            queue.looks,
            [("in", "accent", enqueued), ("done", "good", completed)],
            rate,
        )
    ]


async def matching(request: PageRequest) -> Answer:
    name = request.queue()
    fields = {word: request.param(word)[:1000] for word in ONWARD}
    if request.param("state") not in BULK.get(fields["action"], ()):
        raise NotThere("There is no such bulk action.")
    counts = (await request.inspector.queue(name)).queue.counts
    done, total = (int(fields[one]) if fields[one].isdecimal() else 0 for one in ("done", "total"))
    more = {
        "there": by_state(counts)[request.param("state")],
        "done": min(done, total),
        "total": total,
    }
    return "matching.html", {"queue": name, "fields": fields, **more}


async def trends(request: PageRequest) -> Answer:
    name = request.queue()
    span = request.param("span", "2h")
    if span not in TREND_SPANS:
        raise NotThere(f"There is no span {span!r}.")
    _, every, number = TREND_SPANS[span]
    found = await request.inspector.trends(name, every, number)
    more = {"charts": charts(found, number), "rows": rows(found, number)}
    return "trends.html", {
        "trends": found,
        "spans": TREND_SPANS,
        "span": span,
        "now": found.now,
        **more,
    }
