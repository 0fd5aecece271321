"""The queues and workers of a namespace, found by scanning a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import redis
from attrs import frozen

from headrace._api.sync.flow import Flow
from headrace._api.sync.queue import Queue
from headrace._core.flows import sharded
from headrace._model.flow import FlowState
from headrace._model.shards import Table, number_in
from headrace._model.state import WorkerState
from headrace._protocol.keys import Keys, pattern, queue_of, run_in, run_pattern
from headrace._protocol.limits import OPS_PER_TRIP
from headrace._protocol.replies import text

SIGNS = ("jobs", "stats", "delayed", "schedules", "dead")  # parts of which a queue has one at least
NO_STAGE = "-"  # stands for all stages where their results are not asked for


def queues(client: redis.Redis, *, namespace: str = "headrace") -> list[str]:
    """List the names of all queues of *namespace*, sorted. SCAN over the whole database, which is
    O(keys), in small steps.
    """
    return sorted(set(Discovery(client, namespace).names()))


def workers(client: redis.Redis, *, namespace: str = "headrace") -> list[WorkerState]:
    """List the registered workers of all queues of *namespace*, by queue and name. Like `queues`,
    and one script a queue.
    """
    found: list[WorkerState] = []
    for name in queues(client, namespace=namespace):
        queue = Queue(
            name, client=client, namespace=namespace, shards=shards_of(client, name, namespace)
        )
        try:
            found += sorted(queue.admin.workers(), key=lambda worker: worker.name)
        finally:
            queue.close()
    return found


def table_of(client: redis.Redis, name: str, namespace: str) -> Table | None:
    """Return the table of the shards of *name*'s group. Returns `None` if there is no readable
    table. HGETALL."""
    anything: Any = client  # hgetall is annotated for both colours
    keys = Keys.of(name, namespace)
    rows: dict[Any, Any] = anything.hgetall(keys.shards)
    return Table.parse(keys.group, {text(field): text(row) for field, row in rows.items()})


def shards_of(client: redis.Redis, name: str, namespace: str) -> int:
    """Return how many shards take the jobs of *name*'s group. HGETALL."""
    table = table_of(client, name, namespace)
    return 1 if table is None else len(table.takers)


@frozen(eq=False)
class Discovery:
    """The queues, and the runs of flows, of a namespace on a server, as its keys show them."""

    client: redis.Redis
    namespace: str = "headrace"

    def names(self, keys_at_most: int | None = None) -> Iterator[str]:
        """Yield the name of a queue for each key that shows one, as SCAN finds them, so perhaps
        several times.

        Raises `ConfigurationError` for a namespace that can't be.
        """
        anything: Any = self.client  # scan_iter is half annotated
        keys: Iterable[Any] = islice(
            anything.scan_iter(pattern(self.namespace), count=1000), keys_at_most
        )
        return (name for key in keys if (name := queue_of(text(key))))

    def has(self, name: str) -> bool:
        """Tell whether there is a queue of this name. EXISTS, and HGETALL if it has no key without
        a shard."""
        anything: Any = self.client  # exists is half annotated
        keys = Keys.of(name, self.namespace)
        if anything.exists(*map(keys.key, SIGNS)):
            return True
        table = table_of(self.client, name, self.namespace)
        shards = [keys.at(shard) for shard in table.shards] if table is not None else []
        return any(anything.exists(*map(shard.key, SIGNS)) for shard in shards)

    def shards(self, name: str) -> int:
        """Return how many shards take the jobs of *name*'s group. HGETALL."""
        return shards_of(self.client, name, self.namespace)

    def flow(self, name: str, stages: Iterable[str]) -> FoundFlow:
        return FoundFlow(name, self.client, self.namespace, stages)

    def runs(self, flow: str | None = None) -> Iterator[tuple[str, FlowState]]:
        """Yield the runs of a flow, or of all flows, with the flow's name, in no order."""
        for name, ids in self._runs(flow):
            with self.flow(name, [NO_STAGE]) as one:
                yield from ((name, run) for run in one.states_at(ids))

    def _runs(self, flow: str | None) -> Iterator[tuple[str, Mapping[int | None, Sequence[str]]]]:
        """Yield flows and the ids of some of their runs, by shard, as a scan of the server finds
        them."""
        Keys.of("any", self.namespace)
        anything: Any = self.client  # scan_iter is half annotated
        page: dict[str, list[tuple[int | None, str]]] = {}
        wanted = run_pattern("*" if flow is None else flow, self.namespace)
        for key in map(text, anything.scan_iter(wanted, count=1000)):
            if (run := run_in(key)) is None:
                continue
            name, run_id = run
            ids = page.setdefault(name, [])
            ids.append((number_in(key), run_id))
            if len(ids) == OPS_PER_TRIP:
                yield name, sharded.by_place(page.pop(name))
        for name, ids in page.items():
            yield name, sharded.by_place(ids)


class FoundFlow(Flow):
    """A flow on a server, to be read or cancelled. Only the names of its stages are known."""

    def __init__(
        self, name: str, client: redis.Redis, namespace: str, stages: Iterable[str]
    ) -> None:
        super().__init__(
            name, client=client, namespace=namespace, shards=shards_of(client, name, namespace)
        )
        for stage in stages:
            self.ops.declare(stage, (), (), {})

    def states(self, names: Sequence[str]) -> list[FlowState | None]:
        return self._drive(sharded.read(self.ops, names))

    def states_at(self, names: Mapping[int | None, Sequence[str]]) -> Iterator[FlowState]:
        known = self._drive(sharded.places(self.ops))
        for states in self._drive(sharded.read_at(known, names)).values():
            yield from states.values()
