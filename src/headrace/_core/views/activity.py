"""The view of the tallies of workers. Records of the past do not change, so they are read once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import add
from typing import Any

from attrs import define, field

from headrace._core.effects import Call, Now, send_all
from headrace._core.views.reader import Reader
from headrace._model.views.activity import (
    RANGES,
    STEP_S,
    STEPS,
    Activity,
    ActivityPoint,
    Ends,
    MachineWork,
    Step,
)
from headrace._protocol.features import trends as trend_ops
from headrace._protocol.features.trends import Rows
from headrace._protocol.limits import OPS_PER_TRIP
from headrace._protocol.queue_ops import Ops

AGAIN_S = 10.0  # seconds between two readings of a queue, as between two reports of workers
NEW_AT_ONCE = 25  # queues of which all records are read at once, for 1 ms each
FORGET_S = 600.0  # seconds for which records are kept that nobody asks for
SUMS_AT_MOST = 64  # sets of queues whose sums are kept
OTHERS = {"ok": "k", "oh": "h"}


@define(eq=False)
class KeptRecords:
    """The records of one queue that have been read."""

    at: float
    newest: int = 0
    rows: dict[int, Rows] = field(factory=dict[int, Rows])


@define(eq=False)
class KeptSum:
    """The sums of a set of queues, of which *names* have been read. Records before `settled` do not
    change any more.
    """

    at: float
    settled: int = 0
    names: frozenset[str] = frozenset()
    rows: dict[int, Rows] = field(factory=dict[int, Rows])


class ActivityViews(Reader):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tallies: dict[tuple[str, Step], KeptRecords] = {}
        self._activities: dict[tuple[frozenset[str], Step], KeptSum] = {}

    def activity(self, names: Collection[str], step: Step) -> Call[Activity]:
        if step not in STEPS:
            raise ValueError(f"step {step!r}: give 'minute' or 'ten minutes'")
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent
        key = frozenset(names)

        def build() -> Call[Activity]:
            return (yield from self._activity(key, step))

        new = any((name, step) not in self._tallies for name in names)
        fresh = 0.0 if new else max(self.fresh, AGAIN_S)
        return (yield from self.kept(("activity", key, step), build, fresh))

    def _activity(self, names: frozenset[str], step: Step) -> Call[Activity]:
        began = yield from Now()
        new = sorted(name for name in names if (name, step) not in self._tallies)
        late = new[NEW_AT_ONCE:]
        there = names.difference(late)
        now = yield from self._read_tallies(there, step, began)
        newest = int(now) // STEP_S[step]
        self._activities = {
            key: one
            for key, one in self._activities.items()
            if began - one.at < FORGET_S and len(self._activities) <= SUMS_AT_MOST
        }
        kept = self._activities.setdefault((names, step), KeptSum(began))
        kept.at = began
        came = [self._tallies[name, step].rows for name in there - kept.names]
        every = [self._tallies[name, step].rows for name in there]
        sums: dict[int, Rows] = {}
        for number in range(newest - STEPS[step] + 1, newest + 1):
            past = number < kept.settled
            some = [rows[number] for rows in (came if past else every) if number in rows]
            if past and number in kept.rows:
                some.append(kept.rows[number])
            if some:
                sums[number] = some[0] if len(some) == 1 else _added(some)
        kept.rows = sums
        kept.names = there
        kept.settled = newest - 1  # a worker may still write to the record before
        points = [_point(number * STEP_S[step], rows) for number, rows in sums.items()]
        return Activity(now, step, tuple(points), len(late))

    def _read_tallies(self, names: Collection[str], step: Step, began: float) -> Call[float]:
        """Read the records that may have changed. Return the server's time."""
        shards = yield from self._ops_factory.of(sorted(names))
        asked = [(name, ops) for name, parts in shards.items() for ops in parts]
        now = 0.0
        found: dict[str, dict[int, Rows]] = {name: {} for name in shards}
        for start in range(0, len(asked), OPS_PER_TRIP):
            some = asked[start : start + OPS_PER_TRIP]
            for (name, _), (at, records) in zip(
                some, (yield from self._tallies_of(some, step)), strict=True
            ):
                now = max(now, at)
                for number, rows in records.items():
                    earlier = found[name].get(number)
                    found[name][number] = rows if earlier is None else _added([earlier, rows])
        newest = int(now) // STEP_S[step]
        for name, records in found.items():
            kept = self._tallies.setdefault((name, step), KeptRecords(began))
            kept.at = began
            kept.newest = newest
            kept.rows |= records
            for number in [one for one in kept.rows if one <= newest - STEPS[step]]:
                del kept.rows[number]
        self._tallies = {
            key: one for key, one in self._tallies.items() if began - one.at < FORGET_S
        }
        return now

    def _tallies_of(
        self, some: Sequence[tuple[str, Ops]], step: Step
    ) -> Call[Sequence[tuple[float, Mapping[int, Rows]]]]:
        """Read the tallies of some queues. A queue that refuses has none."""
        ops = [
            trend_ops.tallies(
                one, step, kept.newest - 2 if (kept := self._tallies.get((name, step))) else 0
            )
            for name, one in some
        ]
        try:
            return (yield from send_all(ops))
        except self._refusals:
            if len(some) == 1:
                return [(0.0, {})]
            found: list[tuple[float, Mapping[int, Rows]]] = []
            for one in some:
                found += yield from self._tallies_of([one], step)
            return found


def _added(some: Sequence[Rows]) -> Rows:
    whole = dict(some[0])
    for rows in some[1:]:
        for name, sums in rows.items():
            there = whole.get(name)
            whole[name] = sums if there is None else tuple(map(add, there, sums))
    return whole


def _point(at: float, rows: Rows) -> ActivityPoint:
    kinds: dict[str | None, Ends] = {}
    machines: dict[str | None, MachineWork] = {}
    for name, sums in rows.items():
        what = OTHERS.get(name)
        called = None if what else name[1:]
        if (what or name[:1]) == "k" and len(sums) == 3 + 2 * RANGES:
            done, retried, died, *times = sums
            kinds[called] = Ends(done, retried, died, times[:RANGES], times[RANGES:])
        elif (what or name[:1]) == "h" and len(sums) == 5:
            done, retried, died, busy, slots = sums
            machines[called] = MachineWork(done, retried, died, busy / 1000, slots / 1000)
    return ActivityPoint(at, kinds, machines)
