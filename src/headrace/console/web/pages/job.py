"""The page of one job, and the search for a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from starlette.responses import RedirectResponse

from headrace.console.actions import PER_PAGE, is_internal
from headrace.console.texts import from_now, spelled, took
from headrace.console.timeline import begun_by, timeline, waits
from headrace.console.web.render import to
from headrace.console.web.request import Answer, NotThere, PageRequest, latest
from headrace.inspect import JobView, QueueView
from headrace.platform import HEADERS

TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")
COUNTED_AT_MOST = 1000  # jobs in front of one
Figure = tuple[str, str, str]  # its name, its value, and a remark


async def job(request: PageRequest) -> Answer:
    name = request.queue("queue")
    wanted = request.param("id")
    found = await request.inspector.job(name, wanted)
    if found is None:
        raise NotThere(
            f"Nothing is known of job {wanted!r} in queue {name!r}: it has ended, or never was."
        )
    page = await request.inspector.queue(name)
    now = latest(page.now, found)
    run = found.headers.get(HEADERS.flow, "").rpartition(":flow:")[2]
    flow = name.partition("/")[0] if run and "/" in name else ""
    traced = TRACE.match(found.headers.get("traceparent", ""))
    trace = request.trace_url.replace("{trace_id}", traced[1]) if traced else ""
    internal = {key: value for key, value in found.headers.items() if is_internal(key)}
    return "job.html", {
        "job": found,
        "now": now,
        "flow": flow,
        "run": run,
        "trace": trace,
        "headers": {key: value for key, value in found.headers.items() if key not in internal},
        "internal": internal,
        "key": found.headers.get(HEADERS.key, ""),
        "figures": list(_figures(found, page.queue, now)),
        "waits": waits(found),
        "drawn": timeline(found, now),
        "family": {
            place: its
            for place, its in (await request.inspector.descendants(found.steps)).items()
            if request.rights.sees(place[0])
        },
        "again": request.rights.may(name, "enqueue") and found.payload.size > 0 and not run,
        "acts": [action for action in _actions(found) if request.rights.may(name, action)],
    }


def _actions(job: JobView) -> Sequence[str]:
    if job.state == "dead":
        return ("redrive", "purge_dead")
    return () if job.ended else ("cancel", "expire", "signal", "reschedule")


def _figures(job: JobView, queue: QueueView, now: float) -> Iterator[Figure]:
    if job.state in ("waiting", "parked"):
        if job.position is not None:
            yield _position(job, queue)
            yield "Its turn", *_estimate(job, queue)
        yield (
            "Waiting for",
            spelled(max(0.0, now - job.enqueued_at)) if job.enqueued_at else "–",
            "since its first enqueue",
        )
    elif job.state == "leased":
        since = begun_by(job)
        at_least = f"≥ {took(max(0.0, now - since))}" if since is not None else "–"
        yield "Running for", at_least, "longer if its lease was renewed"
    elif job.suspended:
        if job.enqueued_at is not None:
            yield "Began", from_now(job.enqueued_at, now), "its first enqueue"
    elif job.state in ("delayed", "blocked"):
        yield (
            "Due",
            from_now(job.due, now) if job.due else "–",
            "" if job.due else "when its turn comes",
        )
    else:
        yield "Died" if job.state == "dead" else "Ended", from_now(job.finished, now) or "–", ""
        ran = "in all deliveries, without its suspensions" if job.is_run else ""
        yield (
            "Ran for",
            took(job.duration) or "–",
            ran if job.duration is not None else "not recorded",
        )
        yield "Waited", took(job.wait) or "–", "" if job.wait is not None else "not recorded"
    if job.is_run and job.deliveries:
        yield "Deliveries", str(job.deliveries), ""
    elif job.attempt:
        yield "Attempt", str(job.attempt), ""


def _position(job: JobView, queue: QueueView) -> Figure:
    part = next((one.counts for one in queue.shards if one.number == job.shard), queue.counts)
    waiting = part.waiting + part.parked
    before = job.position or 0
    where = f"in shard {job.shard}" if queue.shards else ""
    if before >= COUNTED_AT_MOST:
        return "Position", f"after {COUNTED_AT_MOST:,}", f"or more, of {waiting:,} {where}".rstrip()
    return "Position", f"{before + 1:,} of {max(waiting, before + 1):,}", where


def _estimate(job: JobView, queue: QueueView) -> tuple[str, str]:
    if queue.paused:
        return "not known", "the queue is paused"
    if not queue.alive:
        return "not known", "no worker runs"
    done = queue.rates.get("completed")
    if not done:
        return "not known", "nothing was completed of late" if done == 0 else "the pace is measured"
    pace = done / max(1, len(queue.shards))
    least = "≥ " if (job.position or 0) >= COUNTED_AT_MOST else ""
    return (
        f"in {least}{spelled(((job.position or 0) + 1) / pace)}",
        "at the pace of the last minute",
    )


async def find(request: PageRequest) -> Answer:
    typed = request.param("id")
    _, queues = await request.seen()
    wanted = typed
    names: list[str] = []
    for wanted in dict.fromkeys((typed, typed.strip())):
        names = (
            await request.inspector.find(wanted, [queue.name for queue in queues]) if wanted else []
        )
        if names:
            break
    if len(names) == 1:
        return RedirectResponse(to("job", queue=names[0], id=wanted), 303)
    return "find.html", {"id": wanted, "names": names[:PER_PAGE], "looked": len(queues)}
