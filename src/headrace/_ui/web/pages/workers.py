"""The pages of workers: a row for each program, with the queues that it serves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from headrace._model.state import WorkerFacts, WorkerState
from headrace._model.views import JobView
from headrace._ui.web.request import Answer, NotThere, PageRequest, buttons, latest

QUEUES_SHOWN = 20  # of a program, whose running jobs are read


@frozen
class Program:
    """A worker program: its registrations, one a queue, or one a shard."""

    name: str
    members: Sequence[WorkerState]

    @property
    def facts(self) -> WorkerFacts | None:
        """Its newest facts."""
        known = [one.facts for one in self.members if one.facts is not None]
        return max(known, key=lambda facts: facts.at, default=None)

    @property
    def queues(self) -> dict[str, WorkerState]:
        """Its registration in each queue: that of one shard, if there are several."""
        return {one.queue: one for one in self.members}

    @property
    def running(self) -> int:
        """The number of jobs that it has leased."""
        return sum(one.leased for one in self.members)

    @property
    def slots(self) -> int:
        """The number of jobs that it runs at a time in all queues; 0 if it is not known. Shards share their slots."""
        return sum(one.facts.slots for one in self.queues.values() if one.facts is not None)

    @property
    def since(self) -> float:
        """The server's time of its first registration."""
        return min(one.since for one in self.members)

    @property
    def alive(self) -> bool:
        """Whether a registration is alive."""
        return any(one.alive for one in self.members)


def programs(workers: Iterable[WorkerState]) -> list[Program]:
    """Group registrations by their machine and process; without facts, by their names."""
    groups: dict[tuple[str, str, int], list[WorkerState]] = {}
    for one in workers:
        name = one.name.rpartition(".")[0] or one.name
        host, pid = (one.facts.host, one.facts.pid) if one.facts else (one.name, 0)
        groups.setdefault((name, host, pid), []).append(one)
    return [Program(name, members) for (name, *_), members in sorted(groups.items())]


async def workers(request: PageRequest) -> Answer:
    """Show the workers of all queues."""
    view, queues = await request.seen()
    found = programs(worker for queue in queues for worker in queue.workers)
    versions = {one.facts.version for one in found if one.alive and one.facts is not None}
    return "workers.html", {"programs": found, "versions": versions, "now": view.now}


async def worker(request: PageRequest) -> Answer:
    """Show a worker program, and its running jobs."""
    name, wanted = request.queue("queue"), request.param("name")
    found = await request.inspector.worker(name, wanted)
    if found is None:
        raise NotThere(f"There is no worker {wanted!r} in queue {name!r}.")
    view, queues = await request.seen()
    everywhere = programs(worker for queue in queues for worker in queue.workers)
    program = next((one for one in everywhere if found.worker.name in {two.name for two in one.members}), None)
    program = program or Program(found.worker.name, [found.worker])
    jobs: list[JobView] = []
    for one in program.members[:QUEUES_SHOWN]:
        its = await request.inspector.worker(one.queue, one.name)
        jobs += its.jobs if its is not None else ()
    more = {"buttons": buttons(request, "worker", name), "now": latest(view.now, *jobs)}
    return "worker.html", {"program": program, "worker": found.worker, "queue": name, "jobs": jobs, **more}
