"""Listings of a sharded queue: the pages of its shards, merged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Step, send_all
from headrace._model.state import JobState
from headrace._protocol.queue_ops import Ops


@define(eq=False)
class ShardedPages:
    """The pages of a listing of all shards, merged by the jobs' times. The jobs of each shard keep their order."""

    fresh: Callable[[], Step[None]]
    shard_ops: Callable[[], Sequence[Ops]]
    state: str
    limit: int
    _parts: Sequence[Ops] | None = field(default=None, init=False)
    _cursors: dict[int, str] = field(factory=dict[int, str], init=False)  # cursors of the shards with more pages
    _read: list[deque[JobState[Any]]] = field(factory=list[deque[JobState[Any]]], init=False)

    def more(self) -> Step[list[JobState[Any]] | None]:
        """Return the next page, which may be empty; `None` at the end. Reads a page of each shard without one."""
        if self._parts is None:
            yield from self.fresh()
            self._parts = self.shard_ops()
            self._cursors = dict.fromkeys(range(len(self._parts)), "")
            self._read = [deque() for _ in self._parts]
        wanted = [number for number in self._cursors if not self._read[number]]
        pages = [self._parts[number].listing(self.state, self._cursors[number], self.limit) for number in wanted]
        for number, page in zip(wanted, (yield from send_all(pages)) if pages else (), strict=True):
            self._read[number] += page
            if page.cursor:
                self._cursors[number] = page.cursor
            else:
                del self._cursors[number]
        merged: list[JobState[Any]] = []
        while all(self._read[number] for number in self._cursors) and (ahead := list(filter(None, self._read))):
            merged.append(min(ahead, key=lambda some: _rank(some[0])).popleft())
        return merged if merged or self._cursors else None


def _rank(one: JobState[Any]) -> tuple[bool, int, float]:
    """Return the sort key for jobs of several shards: parked jobs first, then by level, then by time."""
    time = next((at for at in (one.due, one.since, one.enqueued_at) if at is not None), 0.0)
    return one.state != "parked", one.job.priority if one.state == "waiting" else 0, time
