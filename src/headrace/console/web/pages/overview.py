"""The page of all queues, with totals, throughput, the list of attention, and the queues in a
chosen order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from headrace.console.actions import PER_PAGE
from headrace.console.groups import LISTED, Group, grouped, prefix
from headrace.console.texts import rate
from headrace.console.web.activity import links, read, span_of
from headrace.console.web.charts import Chart, charts, draw
from headrace.console.web.render import to
from headrace.console.web.request import Answer, NotThere, PageRequest
from headrace.inspect import Attention, Overview, QueueView, Totals

Key = Callable[[Group], Any]
COLUMNS: Mapping[str, tuple[str, Key]] = {
    "name": ("Queue", lambda row: row.name),
    "waiting": ("Waiting", lambda row: row.totals.waiting),
    "running": ("Running", lambda row: row.totals.running),
    "later": ("Later", lambda row: row.totals.later),
    "dead": ("Dead", lambda row: row.totals.dead),
    "completed": ("Completed", lambda row: row.totals.completed),
    "oldest": ("Oldest waiting", lambda row: row.totals.lag),
    "in": ("In/s", lambda row: row.totals.enqueued_rate or 0.0),
    "done": ("Done/s", lambda row: row.totals.completed_rate or 0.0),
    "workers": ("Workers", lambda row: row.workers),
}
ORDERS = ("asc", "desc")
PLACES: Mapping[str, tuple[str, str]] = {  # by the kind of a fact: a page, and a state
    "dead": ("dead", ""),
    "oldest": ("queue", "waiting"),
    "no worker": ("queue", "waiting"),
    "unknown kind": ("queue", "waiting"),
    "rate": ("queue", "delayed"),
}


async def overview(request: PageRequest) -> Answer:
    view, queues = await request.seen()
    sort = request.param("sort", "name")
    order = request.param("order")
    if sort not in COLUMNS or order not in ("", *ORDERS):
        raise NotThere(
            f"Queues can't be sorted by {sort!r}: give sort= one of {', '.join(COLUMNS)}; order= asc or desc."
        )
    group, text = request.param("group"), request.param("filter")[:200]
    only = request.param("only")
    facts = [one for one in view.attention if request.rights.sees(one.queue or "*")]
    chosen = [
        queue
        for queue in queues
        if text.casefold() in queue.name.casefold()
        and group in ("", prefix(queue.name))
        and (only != "attention" or any(one.queue == queue.name for one in facts))
    ]
    rows = grouped(chosen, whole=bool(group or text or only))
    names = [queue.name for queue in queues]
    span = span_of(request)
    activity = await read(request, names, span)
    sums = None if activity else await request.inspector.throughput(names)
    order = order or _usual(sort)
    rows.sort(key=COLUMNS[sort][1], reverse=order == "desc")
    asked = {"group": group, "filter": text, "only": only, "span": request.param("span")}
    dull = {key for key in ("later", "dead") if not any(COLUMNS[key][1](row) for row in rows)}
    heads = {
        key: (
            name,
            to("", **asked, **_turned(key, sort, order)),
            order if key == sort else "",
        )
        for key, (name, _) in COLUMNS.items()
        if key not in dull
    }
    sorting = {"sort": request.param("sort"), "order": request.param("order")}
    return "overview.html", {
        "view": view,
        "queues": queues,
        "chosen": chosen,
        "rows": rows,
        "asked": {**asked, **sorting},
        "now": view.now,
        "columns": heads,
        "causes": causes(facts),
        "number": len(facts),
        "totals": Totals.of(queues),
        "oldest": max(
            (queue for queue in queues if queue.lag), key=lambda queue: queue.lag, default=None
        ),
        "activity": activity,
        "span": span,
        "spans": links("", **asked, **sorting),
        "chart": next(iter(charts(sums, 120)), None) if sums else throughput(view, queues),
        "kept": sum(queue.trends for queue in queues) if sums else len(queues),
    }


@frozen
class Cause:
    kind: str
    bad: bool
    facts: Sequence[tuple[Attention, str]]
    number: int

    @property
    def folded(self) -> bool:
        return self.number > LISTED


def causes(facts: Sequence[Attention]) -> list[Cause]:
    kinds: dict[tuple[str, bool], list[Attention]] = {}
    for one in facts:
        kinds.setdefault((one.kind, one.bad), []).append(one)
    return [
        Cause(kind, bad, [(one, place(one)) for one in some[: 4 * PER_PAGE]], len(some))
        for (kind, bad), some in kinds.items()
    ]


def _usual(sort: str) -> str:
    return "asc" if sort == "name" else "desc"


def _turned(key: str, sort: str, order: str) -> dict[str, str]:
    turned = order == _usual(key) and key == sort
    return {
        "sort": key,
        "order": next(one for one in ORDERS if one != _usual(key)) if turned else _usual(key),
    }


def place(fact: Attention) -> str:
    if not fact.queue or fact.kind == "unreadable":
        return ""
    page, state = PLACES.get(fact.kind, ("queue", ""))
    return to(page, name=fact.queue, state=state)


def throughput(view: Overview, queues: Sequence[QueueView]) -> Chart | None:
    rows = view.throughput([queue.name for queue in queues])
    if len(rows) < 2:
        return None
    times, came, done = zip(*rows, strict=True)
    return draw(
        "Jobs a second", times, [("in", "accent", came), ("done", "good", done)], rate, step=30.0
    )
