"""Worker programs. A program has a registration in each of its queues, or shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from headrace.inspect import OtherTerms, WorkerFacts, WorkerState


@frozen
class Program:
    name: str
    members: Sequence[WorkerState]

    @property
    def facts(self) -> WorkerFacts | None:
        known = [one.facts for one in self.members if one.facts is not None]
        return max(known, key=lambda facts: facts.at, default=None)

    @property
    def queues(self) -> dict[str, WorkerState]:
        """Its registration in each queue. If it serves several shards of a queue, one of them
        stands for all.
        """
        return {one.queue: one for one in self.members}

    @property
    def differing(self) -> dict[str, OtherTerms]:
        return {
            one.queue: one.differs for one in self.members if one.alive and one.differs is not None
        }

    @property
    def running(self) -> int:
        return sum(one.leased for one in self.members)

    @property
    def slots(self) -> int:
        """The number of jobs that it runs at a time in all queues, or 0 if it is not known. Shards
        share their slots.
        """
        return sum(one.facts.slots for one in self.queues.values() if one.facts is not None)

    @property
    def since(self) -> float:
        return min(one.since for one in self.members)

    @property
    def alive(self) -> bool:
        return any(one.alive for one in self.members)

    @property
    def states(self) -> Sequence[WorkerState]:
        live: dict[str, WorkerState] = {}
        for one in self.members:
            if one.alive:
                live.setdefault(one.asked, one)
        return list(live.values()) or self.members[:1]


def programs(workers: Iterable[WorkerState]) -> list[Program]:
    groups: dict[tuple[str, str, int], list[WorkerState]] = {}
    for one in sorted(workers, key=lambda one: (one.queue, one.name)):
        name = one.name.rpartition(".")[0] or one.name  # without the part that is of one process
        host, pid = (one.facts.host, one.facts.pid) if one.facts else (one.name, 0)
        groups.setdefault((name, host, pid), []).append(one)
    return [Program(name, members) for (name, *_), members in sorted(groups.items())]


def versions_of(found: Iterable[Program]) -> list[str]:
    return sorted({one.facts.version for one in found if one.alive and one.facts is not None})
