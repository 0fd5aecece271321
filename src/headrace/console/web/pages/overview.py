"""The page of all queues, with totals, throughput, the list of attention, and the queues in a
chosen order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.console.actions import PER_PAGE
from headrace.console.texts import rate
from headrace.console.web.charts import Chart, charts, draw
from headrace.console.web.render import to
from headrace.console.web.request import Answer, NotThere, PageRequest
from headrace.inspect import Attention, Overview, QueueView, Totals

Key = Callable[[QueueView], Any]
COLUMNS: Mapping[str, tuple[str, Key]] = {
    "name": ("Queue", lambda q: q.name),
    "waiting": ("Waiting", lambda q: q.counts.waiting + q.counts.parked),
    "running": ("Running", lambda q: q.counts.leased),
    "later": ("Later", lambda q: q.counts.later),
    "dead": ("Dead", lambda q: q.counts.dead),
    "completed": ("Completed", lambda q: q.counts.completed),
    "oldest": ("Oldest waiting", lambda q: q.lag),
    "in": ("In/s", lambda q: q.rates.get("enqueued", 0.0)),
    "done": ("Done/s", lambda q: q.rates.get("completed", 0.0)),
    "workers": ("Workers", lambda q: q.alive),
}
ORDERS = ("asc", "desc")
SPANS = {"": "last minutes", "2h": "2 hours"}  # of the chart
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
    span = request.param("span")
    if span not in SPANS:
        raise NotThere(f"There is no span {span!r}.")
    kept = sum(queue.trends for queue in queues)
    sums = (
        await request.inspector.throughput([queue.name for queue in queues])
        if span and kept
        else None
    )
    order = order or _usual(sort)
    queues.sort(key=COLUMNS[sort][1], reverse=order == "desc")
    facts = [one for one in view.attention if request.rights.sees(one.queue or "*")]
    heads = [
        (text, to("", span=span, **_turned(key, sort, order)), order if key == sort else "")
        for key, (text, _) in COLUMNS.items()
    ]
    chosen = {"sort": request.param("sort"), "order": request.param("order")}
    spans = {key: (text, to("", span=key, **chosen)) for key, text in SPANS.items()}
    return "overview.html", {
        "view": view,
        "queues": queues,
        "now": view.now,
        "columns": heads,
        "facts": [(one, place(one)) for one in facts[:PER_PAGE]],
        "number": len(facts),
        "totals": Totals.of(queues),
        "oldest": max(
            (queue for queue in queues if queue.lag), key=lambda queue: queue.lag, default=None
        ),
        "chart": throughput(view, queues) if sums is None else next(iter(charts(sums, 120)), None),
        "spans": spans if kept else {},
        "span": span,
        "kept": kept,
    }


def _usual(sort: str) -> str:
    return "asc" if sort == "name" else "desc"


def _turned(key: str, sort: str, order: str) -> dict[str, str]:
    """Return the query that sorts by *key*, the other way round if the queues are sorted by it
    already.
    """
    turned = order == _usual(key) and key == sort
    return {
        "sort": key,
        "order": next(one for one in ORDERS if one != _usual(key)) if turned else _usual(key),
    }


def place(fact: Attention) -> str:
    """Return the address of the page on which a fact is seen, or ''."""
    if not fact.queue or fact.kind == "unreadable":
        return ""
    page, state = PLACES.get(fact.kind, ("queue", ""))
    return to(page, name=fact.queue, state=state)


def throughput(view: Overview, queues: Sequence[QueueView]) -> Chart | None:
    """Draw the jobs a second of these queues in the last looks. Before the third look there is no
    chart.
    """
    rows = view.throughput([queue.name for queue in queues])
    if len(rows) < 2:
        return None
    times, came, done = zip(*rows, strict=True)
    return draw(
        "Jobs a second", times, [("in", "accent", came), ("done", "good", done)], rate, step=30.0
    )
