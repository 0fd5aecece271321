"""The base of the subscriptions to all shards of a queue: the node to listen to for each shard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from attrs import define
from redis import exceptions as errors

from headrace._core.notices import Inbox, Received
from headrace._core.shards.map import ShardMap
from headrace._net.base.executor import BaseExecutor
from headrace._net.base.subscription import channels_of
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import WholeOps

LOOK_EVERY_S = 1.0  # seconds between two looks at the table of shards
CUT_PAUSE_S = 0.2  # seconds between two tries to reach a node


@define(eq=False)
class Ear:
    """A listener to the shards of one node."""

    subscription: Any = None
    shards: Sequence[Ops] = ()
    channels: Sequence[str] = ()

    def listened(self) -> Sequence[Ops]:
        """Return the shards."""
        return self.shards


class BaseListening:
    """The base of both colours: a connection for each node, and the table of shards, which it follows."""

    def __init__(self, ops: WholeOps, executor: BaseExecutor, kinds: Sequence[str]) -> None:
        self._map, self._executor, self._kinds = ShardMap(ops), executor, kinds
        self._inbox = Inbox(RETRY_BUDGET_S)
        self._ears: dict[str | None, Ear] = {}
        self._closed = False

    def abandon(self) -> None:
        """Read nothing more, so that everything ends by itself within seconds."""
        self._closed = True

    def _regroup(self) -> list[Ear]:
        """Listen to each shard at its node, if the node is known. Return the new ears."""
        groups: dict[str | None, list[Ops]] = {}
        for ops in self._map.ordered():
            groups.setdefault(self._executor.node(ops.keys), []).append(ops)
        for node in self._ears.keys() - groups.keys():
            gone = self._ears.pop(node)
            gone.shards = gone.channels = ()  # this ends the ear
            self._inbox.forget(gone)
        new: list[Ear] = []
        for node, shards in groups.items():
            ear = self._ears.get(node)
            if ear is None:
                ear = self._ears[node] = Ear()
                self._inbox.expect(ear, time.monotonic())
                new.append(ear)
            if ear.shards != shards:
                ear.shards, ear.channels = shards, channels_of(shards, self._kinds)
        return new

    def _took(self, ear: Ear, received: Received) -> bool:
        """Add the messages of a node; return whether to regroup."""
        self._inbox.take(ear, received, time.monotonic())
        if not ear.channels:
            self._inbox.forget(ear)
        return received.state in ("strayed", "cut")

    def _not_read(self, error: Exception) -> None:
        """Process the error of reading the table. While its node is out of reach, the known table serves."""
        if not (self._map.known and isinstance(error, (errors.RedisError, OSError))):
            self._inbox.error = error
