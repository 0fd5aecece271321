"""The pages of workers, with a row for each program, and with the queues that it serves."""

from __future__ import annotations

from headrace.console.programs import Program, programs, versions_of
from headrace.console.web.request import Answer, NotThere, PageRequest, buttons, latest
from headrace.inspect import JobView


async def workers(request: PageRequest) -> Answer:
    view, queues = await request.seen()
    found = programs(worker for queue in queues for worker in queue.workers)
    return "workers.html", {"programs": found, "versions": versions_of(found), "now": view.now}


async def worker(request: PageRequest) -> Answer:
    name = request.queue("queue")
    wanted = request.param("name")
    found = await request.inspector.worker(name, wanted)
    if found is None:
        raise NotThere(f"There is no worker {wanted!r} in queue {name!r}.")
    view, queues = await request.seen()
    everywhere = programs(worker for queue in queues for worker in queue.workers)
    program = next(
        (one for one in everywhere if found.worker.name in {two.name for two in one.members}), None
    )
    program = program or Program(found.worker.name, [found.worker])
    jobs: list[JobView] = []
    for one in program.members[:20]:  # queues whose running jobs are read
        its = await request.inspector.worker(one.queue, one.name)
        jobs += its.jobs if its is not None else ()
    more = {"buttons": buttons(request, "worker", name), "now": latest(view.now, *jobs)}
    return "worker.html", {
        "program": program,
        "worker": found.worker,
        "queue": name,
        "jobs": jobs,
        **more,
    }
