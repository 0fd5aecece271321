"""Listings of a queue: the pages of its shards, merged."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Step, send_all
from headrace._core.shards.map import OneShard, ShardMap
from headrace._model.state import JobState
from headrace._protocol.queue_ops import Ops


@define(eq=False)
class Pages:
    """The pages of a listing of all shards, merged by the jobs' times. The jobs of each shard keep their order."""

    map: OneShard | ShardMap
    state: str
    limit: int
    _shards: Sequence[Ops] = field(default=(), init=False)
    _cursors: dict[int, str] = field(factory=dict[int, str], init=False)  # cursors of the shards with more pages
    _read: list[deque[JobState[Any]]] = field(factory=list[deque[JobState[Any]]], init=False)

    def more(self) -> Step[list[JobState[Any]] | None]:
        """Return the next page, which may be empty; `None` at the end. Reads a page of each shard without one."""
        if not self._shards:
            yield from self.map.look()
            self._shards = self.map.ordered()
            self._cursors = dict.fromkeys(range(len(self._shards)), "")
            self._read = [deque() for _ in self._shards]
        wanted = [at for at in self._cursors if not self._read[at]]
        pages = [self._shards[at].listing(self.state, self._cursors[at], self.limit) for at in wanted]
        for at, page in zip(wanted, (yield from send_all(pages)) if pages else (), strict=True):
            self._read[at] += page
            if page.cursor:
                self._cursors[at] = page.cursor
            else:
                del self._cursors[at]
        if len(self._read) == 1:
            merged = list(self._read[0])
            self._read[0].clear()
        else:
            merged = self._merged()
        return merged if merged or self._cursors else None

    def _merged(self) -> list[JobState[Any]]:
        merged: list[JobState[Any]] = []
        while all(self._read[at] for at in self._cursors) and (ahead := list(filter(None, self._read))):
            merged.append(min(ahead, key=lambda some: _rank(some[0])).popleft())
        return merged


def _rank(one: JobState[Any]) -> tuple[bool, int, float]:
    """Return the sort key for jobs of several shards: parked jobs first, then by level, then by time."""
    time = next((at for at in (one.due, one.since, one.enqueued_at) if at is not None), 0.0)
    return one.state != "parked", one.job.priority if one.state == "waiting" else 0, time
