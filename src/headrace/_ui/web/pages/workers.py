"""The pages of workers."""

from __future__ import annotations

from headrace._ui.web.request import Answer, NotThere, PageRequest, buttons


async def workers(request: PageRequest) -> Answer:
    """Show the workers of all queues."""
    view, queues = await request.seen()
    all_workers = (worker for queue in queues for worker in queue.workers)
    found = sorted(all_workers, key=lambda worker: (worker.name, worker.queue))
    return "workers.html", {"workers": found, "now": view.now}


async def worker(request: PageRequest) -> Answer:
    """Show a worker, and its running jobs."""
    name, wanted = request.queue("queue"), request.param("name")
    found = await request.inspector.worker(name, wanted)
    if found is None:
        raise NotThere(f"There is no worker {wanted!r} in queue {name!r}.")
    now = (await request.inspector.queue(name)).now
    return "worker.html", {"view": found, "queue": name, "now": now, "buttons": buttons(request, "worker", name)}
