"""The verbs that read a queue, and change nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any, Generic

from attrs import define, evolve, field

from headrace._core.effects import Call, send, send_all
from headrace._core.fair.shares import shares, wanted
from headrace._core.queue import calls
from headrace._core.shards.map import OneShard, ShardMap, Shards
from headrace._core.verbs.asking import M, every, where
from headrace._core.verbs.runs import LISTINGS, RunPages
from headrace._model.shards import ShardRow
from headrace._model.state import Counts, JobState, WorkerState, summed
from headrace._model.terms import Share, Value
from headrace._protocol import admin_ops, view_ops
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.keys import Keys
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.transfer_ops import jobs_in_outbox


@define(eq=False)
class Pages:
    """The pages of a listing of all shards, merged by the jobs' times. The jobs of each shard keep
    their order."""

    map: OneShard | ShardMap
    state: str
    limit: int
    value: object = None
    _wanted: Sequence[Arg] = field(default=(), init=False)
    _shards: Sequence[Ops] = field(default=(), init=False)
    # cursors of the shards with more pages
    _cursors: dict[int, str] = field(factory=dict[int, str], init=False)
    _read: list[deque[JobState[Any]]] = field(factory=list[deque[JobState[Any]]], init=False)

    def more(self) -> Call[list[JobState[Any]] | None]:
        """Return the next page, which may be empty, or `None` at the end. Reads a page of each
        shard without one."""
        if not self._shards:
            yield from self.map.look()
            self._shards = self.map.ordered()
            self._wanted = yield from wanted(self._shards, self.value)
            self._cursors = dict.fromkeys(range(len(self._shards)), "")
            self._read = [deque() for _ in self._shards]
        unread = [at for at in self._cursors if not self._read[at]]
        pages = [
            view_ops.listing(
                self._shards[at], self.state, self._cursors[at], self.limit, wanted=self._wanted
            )
            for at in unread
        ]
        for at, page in zip(unread, (yield from send_all(pages)) if pages else (), strict=True):
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
        while all(self._read[at] for at in self._cursors) and (
            ahead := list(filter(None, self._read))
        ):
            merged.append(min(ahead, key=lambda some: _rank(some[0])).popleft())
        return merged


def _rank(one: JobState[Any]) -> tuple[bool, int, float]:
    """Return the sort key for jobs of several shards. Parked jobs come first, then the level
    decides, then the time."""
    time = next((at for at in (one.due, one.since, one.enqueued_at) if at is not None), 0.0)
    return one.state != "parked", one.job.priority if one.state == "waiting" else 0, time


@define(eq=False)
class ViewVerbs(Generic[M]):
    map: M

    def counts(self) -> Call[Counts]:
        return send(view_ops.counts(self.map.ops))

    def by_shard(self) -> Call[list[tuple[ShardRow, Keys, Counts]]]:
        yield from ()
        return []

    def paused(self) -> Call[bool]:
        return any((yield from every(self.map, admin_ops.paused)))

    def paused_values(self) -> Call[list[Value]]:
        found = yield from every(self.map, fair_ops.paused)
        return sorted(
            {value for some in found for value in some},
            key=lambda value: [part or "" for part in value],
        )

    def levels(self) -> Call[int]:
        return max((yield from every(self.map, view_ops.levels)))

    def workers(self) -> Call[list[WorkerState]]:
        return [*chain(*(yield from every(self.map, view_ops.workers)))]

    def shares(self) -> Call[list[Share]]:
        yield from self.map.look()
        return (yield from shares(self.map.ordered()))

    def find(self, id: str, key: str | None) -> Call[JobState[Any] | None]:
        name, tiers = yield from where(self.map, id, key)
        for tier in filter(None, tiers):
            answers = yield from send_all([view_ops.seek(ops, name, "") for ops in tier])
            for ops, (found, cursor) in zip(tier, answers, strict=True):
                job = found or (yield from calls.find_dead(ops, name, cursor))
                if job is not None:
                    return job
        return None

    def position(self, id: str, key: str | None) -> Call[int | None]:
        self.map.line(id, key)  # checks both
        yield from self.map.look()
        name, shards = self.map.line(id, key)
        for ops in shards:
            if (found := (yield from calls.position(ops, name))) is not None:
                return found
        return None

    def pages(self, state: str, limit: int, value: object = None) -> Pages:
        return Pages(self.map, state, limit, value)

    def runs(self, state: str | None = None) -> RunPages:
        if state is not None and state not in LISTINGS:
            raise ValueError(f"state={state!r:.100}: give one of {', '.join(LISTINGS)}")
        return RunPages(self.map) if state is None else RunPages(self.map, [state])


@define(eq=False)
class ShardedViews(ViewVerbs[ShardMap]):
    def counts(self) -> Call[Counts]:
        """Count the jobs in each state. The counts are sums over all shards, each at an instant of
        its own."""
        shards, counts = yield from self._counts()
        return summed([shards.table.gone(self.map.ops.keys.queue), *counts])

    def _counts(self) -> Call[tuple[Shards, list[Counts]]]:
        yield from self.map.look()
        now = self.map.now
        ops: list[Op[Any]] = [
            make(one)
            for one in now.by_number.values()
            for make in (view_ops.counts, jobs_in_outbox)
        ]
        found = yield from send_all(ops)
        return now, [
            evolve(counts, handing=away)
            for counts, away in zip(found[::2], found[1::2], strict=True)
        ]

    def by_shard(self) -> Call[list[tuple[ShardRow, Keys, Counts]]]:
        shards, counts = yield from self._counts()
        keys = [ops.keys for ops in shards.by_number.values()]
        return list(zip(shards.table.shards, keys, counts, strict=True))
