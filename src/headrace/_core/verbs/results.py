"""The calls that wait for results and ends of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic

from attrs import define

from headrace._core.effects import Call, Now, Sleep
from headrace._core.queue import calls, results
from headrace._core.queue.results import UNKNOWN, End
from headrace._core.shards.map import ShardMap
from headrace._core.verbs.asking import M
from headrace._model.event import Event
from headrace._protocol.keys import job_id

# seconds between two looks of a call that waits: at first, and later
ASK_AFTER_S, ASK_EVERY_S = 0.01, 0.25


@define(eq=False)
class ResultVerbs(Generic[M]):
    map: M
    notified: ClassVar[bool] = True
    """Whether messages report the ends of jobs."""

    def end_of(self, id: str, timeout: float, *, own: bool) -> Call[End]:
        return results.end_of(self.map.ops, job_id(id), timeout, own=own)

    def of(self, ids: Sequence[str], timeout: float) -> Call[dict[str, bytes]]:
        return results.results(self.map.ops, ids, timeout)

    def ends(self, ids: Sequence[str], told: Mapping[str, Event]) -> Call[dict[str, End]]:
        return results.read_ends(self.map.ops, ids, told, own=True)


@define(eq=False)
class ShardedResults(ResultVerbs[ShardMap]):
    notified = False

    def end_of(self, id: str, timeout: float, *, own: bool) -> Call[End]:
        """Wait for the end of a job, *timeout* seconds at most. Raises `TimeoutError`.

        A job that was found before, and is unknown now, has ended.
        """
        job_id(id)
        start = yield from Now()
        looks = calls.pauses(ASK_AFTER_S, ASK_EVERY_S)
        while True:
            end = (yield from self._ends([id], own=own)).get(id)
            own = own or end is None
            rest = start + timeout - (yield from Now())
            if end is not None and (own or end is not UNKNOWN or rest <= 0):
                return end
            if rest <= 0:
                raise results.not_ended(id, timeout)
            yield Sleep(min(next(looks), rest))

    def of(self, ids: Sequence[str], timeout: float) -> Call[dict[str, bytes]]:
        start = yield from Now()
        looks = calls.pauses(ASK_AFTER_S, ASK_EVERY_S)
        left = list(dict.fromkeys(ids))
        found = dict[str, bytes]()
        unended = set[str]()
        while True:
            ends = yield from self._ends(left, own=False)
            found |= {one: end.result for one, end in ends.items() if end.result is not None}
            unended.update(one for one in left if one not in ends)
            left = [
                one
                for one in left
                if one not in ends or (ends[one] is UNKNOWN and one not in unended)
            ]
            rest = start + timeout - (yield from Now())
            if not left or rest <= 0:
                return found
            yield Sleep(min(next(looks), rest))

    def ends(self, ids: Sequence[str], told: Mapping[str, Event]) -> Call[dict[str, End]]:  # noqa: ARG002 - of no use
        return self._ends(ids, own=True)

    def _ends(self, ids: Sequence[str], *, own: bool) -> Call[dict[str, End]]:
        yield from self.map.look()
        ends: dict[str, End] = dict.fromkeys(ids, UNKNOWN)
        asked = {one: self.map.where(one) for one in ids}
        for tier in (0, 1):
            by_shard: dict[int, list[str]] = defaultdict(list)
            for one, (_, tiers) in asked.items():
                for ops in tiers[tier] if tier < len(tiers) and ends.get(one) is UNKNOWN else ():
                    by_shard[ops.number].append(one)
            for number, some in by_shard.items():
                looked = yield from results.read_ends(
                    self.map.at(number), [asked[one][0] for one in some], own=own
                )
                for one in some:
                    end = looked.get(asked[one][0])
                    if end is None:
                        ends.pop(one, None)  # the job has not ended
                    elif end is not UNKNOWN:
                        ends[one] = end
        return ends
