"""The queues and workers of a namespace, found by scanning a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import redis

from headrace._api.sync.queue import Queue
from headrace._model.shards import Table
from headrace._model.state import WorkerState
from headrace._protocol.keys import Keys, pattern, queue_of
from headrace._protocol.replies import text


def queues(client: redis.Redis, *, namespace: str = "headrace") -> list[str]:
    """List the names of all queues of *namespace*, sorted. SCAN over the whole database: O(keys), in small steps."""
    anything: Any = client  # scan_iter is half annotated
    keys: Iterable[Any] = anything.scan_iter(pattern(namespace), count=1000)
    found = (queue_of(text(key)) for key in keys)
    return sorted({name for name in found if name})


def workers(client: redis.Redis, *, namespace: str = "headrace") -> list[WorkerState]:
    """List the registered workers of all queues of *namespace*, by queue and name. Like `queues`, and one script a
    queue.
    """
    found: list[WorkerState] = []
    for name in queues(client, namespace=namespace):
        queue = Queue(name, client=client, namespace=namespace, shards=shards_of(client, name, namespace))
        try:
            found += sorted(queue.admin.workers(), key=lambda worker: worker.name)
        finally:
            queue.close()
    return found


def table_of(client: redis.Redis, name: str, namespace: str) -> Table | None:
    """Return the table of the shards of *name*'s group; `None` if there is none that can be read. HGETALL."""
    anything: Any = client  # hgetall is annotated for both colours
    keys = Keys.of(name, namespace)
    rows: dict[Any, Any] = anything.hgetall(keys.shards)
    return Table.parse(keys.group, {text(field): text(row) for field, row in rows.items()})


def shards_of(client: redis.Redis, name: str, namespace: str) -> int:
    """Return how many shards take the jobs of *name*'s group. HGETALL."""
    table = table_of(client, name, namespace)
    return 1 if table is None else len(table.takers)
