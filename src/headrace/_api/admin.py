"""The base of `Admin` and `AsyncAdmin`: arguments turned into calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from redis.exceptions import ClusterCrossSlotError

from headrace._core.effects import Step
from headrace._core.queue import calls
from headrace._core.shards.map import OneShard, ShardMap
from headrace._core.shards.verbs import QueueVerbs
from headrace._model import checks
from headrace._model.job import NewJob
from headrace._model.shards import Shard
from headrace._model.timing import Timing
from headrace._net.base.cluster import slot_of
from headrace.errors import ConfigurationError


class BaseAdmin:
    """The base of both: the queue, and arguments turned into calls."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._verbs: QueueVerbs[OneShard] | QueueVerbs[ShardMap] = queue._verbs  # noqa: SLF001 - we are a part of it

    def __repr__(self) -> str:
        return f"{self._queue!r}.admin"

    def _schedule(
        self, name: str, job: NewJob[Any], every: float | timedelta | None, cron: str | None,
        timezone: str | ZoneInfo | None, missed: str,
    ) -> Step[bool]:  # fmt: skip
        return self._verbs.schedule(name, Timing.of(every, cron, timezone), missed, job)

    def _payload(self, payload: Any) -> Step[int]:
        codec = self._queue.ops.codec
        if not getattr(codec, "repeatable", True):
            raise ConfigurationError(f"{codec!r:.200} encodes equal payloads differently: cancel jobs by id")
        return self._verbs.cancel_payload(self._queue.ops.bound.encode(payload))

    def _move(self, to: str, ids: Sequence[str]) -> Step[int]:
        try:
            return (yield from self._verbs.move(to, ids))
        except ClusterCrossSlotError:
            raise ConfigurationError(
                f"to={to!r}: on a cluster one script reaches one group only, and none was moved: "
                "name both queues '<group>/<part>'"
            ) from None

    def _shards(self) -> Step[list[Shard]]:
        node = self._queue._executor.node  # noqa: SLF001 - we are a part of it
        return [
            Shard(row.number, row.first, row.last, slot_of(keys.prefix), node(keys), counts, row.state)
            for row, keys, counts in (yield from self._verbs.by_shard())
        ]

    def _drain(self, timeout: float | timedelta | None) -> Step[bool]:
        return calls.drain(self._verbs.counts, checks.patience(timeout), apart=self._queue.ops.settings.shards > 1)
