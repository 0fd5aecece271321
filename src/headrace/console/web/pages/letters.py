"""The pages of dead letters in groups, and of the letters of one group."""

from __future__ import annotations

from headrace.console.actions import PER_PAGE
from headrace.console.web.request import Answer, NotThere, PageRequest, ticks


async def dead(request: PageRequest) -> Answer:
    name = request.param("name")
    key = request.param("group")
    view, queues = await request.seen()
    if name:
        request.queue()
    numbers = {queue.name: queue.counts.dead for queue in queues if queue.counts.dead}
    page = await request.inspector.deaths([name] if name else list(numbers), key)
    tried = None
    its = request.param("tried")  # a letter that was sent again
    if its and request.rights.sees(request.param("queue")):
        tried = await request.inspector.job(request.param("queue"), its)
    values = {
        "page": page,
        "queue": name,
        "numbers": numbers,
        "now": page.now or view.now,
        "its": its,
        "tried": tried,
    }
    if not key:
        most = sorted(numbers, key=lambda one: -numbers[one])[:PER_PAGE]
        shown = {one: numbers[one] for one in numbers if one in most or one == name}
        return "dead.html", {**values, "groups": page.groups[: 4 * PER_PAGE], "shown": shown}
    if not page.groups and not its and not request.param("outcome"):
        raise NotThere("There are no such dead letters any more.")
    group = page.groups[0] if page.groups else None
    of = [one for one, _ in group.queues] if group else []
    may = {
        action: [one for one in of if request.rights.may(one, action)]
        for action in ("redrive", "purge_dead")
    }
    ticked = ticks(request, "dead", of[0]) if len(of) == 1 else []
    first = next((job for job in page.jobs if job.queue in may["redrive"]), None)
    return "letters.html", {
        **values,
        "group": group,
        "chosen": may,
        "first": first,
        "ticks": ticked,
    }
