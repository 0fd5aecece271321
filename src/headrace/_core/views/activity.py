"""The view of the tallies of workers, by kind and by machine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from attrs import define, field

from headrace._core.effects import Call, Now
from headrace._core.views.catalogue import AGAIN_S
from headrace._core.views.tallies import FORGET_S, TallyReader, added
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
from headrace._protocol.features.trends import Rows

OTHERS = {"ok": "k", "oh": "h"}


@define(eq=False)
class KeptSum:
    """The sums of a set of queues, of which *names* have been read. Records before `settled` do not
    change any more.
    """

    at: float
    settled: int = 0
    names: frozenset[str] = frozenset()
    rows: dict[int, Rows] = field(factory=dict[int, Rows])


class ActivityViews(TallyReader):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._activities: dict[tuple[frozenset[str], Step], KeptSum] = {}

    def activity(self, names: Collection[str], step: Step) -> Call[Activity]:
        if step not in STEPS:
            raise ValueError(f"step {step!r}: give 'minute' or 'ten minutes'")
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent
        key = frozenset(names)

        def build() -> Call[Activity]:
            return (yield from self._activity(key, step))

        new = any((name, step) not in self.tallies for name in names)
        fresh = 0.0 if new else max(self.fresh, AGAIN_S)
        return (yield from self.kept(("activity", key, step), build, fresh))

    def _activity(self, names: frozenset[str], step: Step) -> Call[Activity]:
        began = yield from Now()
        new = sorted(name for name in names if (name, step) not in self.tallies)
        late = new[25:]  # all records of a queue take 1 ms
        there = names.difference(late)
        now = yield from self.read_tallies(there, step, began)
        newest = int(now) // STEP_S[step]
        self._activities = {
            key: one
            for key, one in self._activities.items()
            # sets of queues whose sums are kept
            if began - one.at < FORGET_S and len(self._activities) <= 64
        }
        kept = self._activities.setdefault((names, step), KeptSum(began))
        kept.at = began
        came = [self.tallies[name, step].rows for name in there - kept.names]
        every = [self.tallies[name, step].rows for name in there]
        sums: dict[int, Rows] = {}
        for number in range(newest - STEPS[step] + 1, newest + 1):
            past = number < kept.settled
            some = [rows[number] for rows in (came if past else every) if number in rows]
            if past and number in kept.rows:
                some.append(kept.rows[number])
            if some:
                sums[number] = some[0] if len(some) == 1 else added(some)
        kept.rows = sums
        kept.names = there
        kept.settled = newest - 1  # a worker may still write to the record before
        points = [_point(number * STEP_S[step], rows) for number, rows in sums.items()]
        return Activity(now, step, tuple(points), len(late))


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
