"""The roles that a worker has for sharded queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace._core.shards.follow import follow
from headrace._core.shards.outbox import hand
from headrace._core.shards.slots import slots_of
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.roles import NamedRole
from headrace._core.worker.shared_read import Place, by_place
from headrace._core.worker.slots import leads


def shard_roles(worker: Lifecycle, consumers: Sequence[Consumer], place: Place) -> Iterator[NamedRole]:
    """Yield the roles of consumers whose queues are sharded."""
    sharded = [consumer for consumer in consumers if slots_of(consumer) is not None]
    for group in by_place(sharded, place):
        yield "hand", hand(worker, group), None, "work"
    for consumer in sharded:
        if leads(consumer):
            yield "table", follow(worker, consumer), None, "work"
