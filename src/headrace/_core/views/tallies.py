"""The reader of the tallies of workers. Records of the past do not change, and are read once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import add
from typing import Any

from attrs import define, evolve, field

from headrace._core.effects import Call, Now, send_all
from headrace._core.views.catalogue import AGAIN_S
from headrace._core.views.reader import Reader
from headrace._model.terms import Share
from headrace._model.views.activity import value_name
from headrace._protocol.features import trends as trend_ops
from headrace._protocol.features.trends import RINGS, Ring, Rows
from headrace._protocol.limits import OPS_PER_TRIP
from headrace._protocol.queue_ops import Ops

FORGET_S = 600.0  # seconds for which records are kept that nobody asks for


@define(eq=False)
class KeptRecords:
    """The records of one queue that have been read."""

    at: float
    newest: int = 0
    rows: dict[int, Rows] = field(factory=dict[int, Rows])


class TallyReader(Reader):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tallies: dict[tuple[str, Ring], KeptRecords] = {}

    def read_tallies(self, names: Collection[str], ring: Ring, began: float) -> Call[float]:
        """Read the records that may have changed. Return the server's time."""
        shards = yield from self._ops_factory.of(sorted(names))
        asked = [(name, ops) for name, parts in shards.items() for ops in parts]
        now = 0.0
        found: dict[str, dict[int, Rows]] = {name: {} for name in shards}
        for start in range(0, len(asked), OPS_PER_TRIP):
            some = asked[start : start + OPS_PER_TRIP]
            for (name, _), (at, records) in zip(
                some, (yield from self._tallies_of(some, ring)), strict=True
            ):
                now = max(now, at)
                for number, rows in records.items():
                    earlier = found[name].get(number)
                    found[name][number] = rows if earlier is None else added([earlier, rows])
        _, seconds, records_at_most = RINGS[ring]
        newest = int(now) // seconds
        for name, records in found.items():
            kept = self.tallies.setdefault((name, ring), KeptRecords(began))
            kept.at = began
            kept.newest = newest
            kept.rows |= records
            for number in [one for one in kept.rows if one <= newest - records_at_most]:
                del kept.rows[number]
        self.tallies = {key: one for key, one in self.tallies.items() if began - one.at < FORGET_S}
        return now

    def _tallies_of(
        self, some: Sequence[tuple[str, Ops]], ring: Ring
    ) -> Call[Sequence[tuple[float, Mapping[int, Rows]]]]:
        ops = [
            trend_ops.tallies(
                one, ring, kept.newest - 2 if (kept := self.tallies.get((name, ring))) else 0
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
                found += yield from self._tallies_of([one], ring)
            return found

    def read_hours(self, names: Collection[str]) -> Call[None]:
        now = yield from Now()
        old = [
            name
            for name in names
            if (kept := self.tallies.get((name, "value"))) is None or now - kept.at >= AGAIN_S
        ]
        if old:
            yield from self.read_tallies(old, "value", now)

    def with_hours(self, name: str, shares: Sequence[Share]) -> list[Share]:
        kept = self.tallies.get((name, "value"))
        if kept is None or not kept.rows:
            return list(shares)
        _, _, records = RINGS["value"]
        minutes = range(kept.newest - records + 1, kept.newest + 1)
        found: list[Share] = []
        for share in shares:
            row = f"v{value_name(share.value)}"
            hour = [kept.rows.get(minute, {}).get(row, (0, 0)) for minute in minutes]
            some = tuple((sums[0], sums[-1]) for sums in hour)
            found.append(evolve(share, hour=some if any(map(any, some)) else ()))
        return found


def added(some: Sequence[Rows]) -> Rows:
    whole = dict(some[0])
    for rows in some[1:]:
        for name, sums in rows.items():
            there = whole.get(name)
            whole[name] = sums if there is None else tuple(map(add, there, sums))
    return whole
