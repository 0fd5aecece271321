"""The view of all queues. It has their totals, the server, and the facts that need attention."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field

from headrace._core.effects import Call, Inform, Now, send_all, send_each
from headrace._core.views.attention import (
    HOUR_S,
    LAG_S,
    NONE,
    Look,
    admits,
    attention,
    usual_lag,
)
from headrace._core.views.catalogue import AGAIN_S
from headrace._core.views.queues import EVERY_OTHER, QueueViews
from headrace._model.terms import Tenants
from headrace._model.views.overview import Overview, ServerFacts
from headrace._model.views.queues import QueueView
from headrace._model.views.texts import one_line
from headrace._model.views.trends import Trends, sum_trends
from headrace._protocol import view_ops
from headrace._protocol.features import trends as trend_ops
from headrace._protocol.limits import OPS_PER_TRIP
from headrace._protocol.queue_ops import Ops

CLOSER_AT_ONCE = 25  # queues that are looked at closer at once, for 0.1 ms each
LETTERS = 100  # dead letters of the last hour that are counted, for 2 µs each


@define(eq=False)
class ServerLook:
    """The last facts of the server, and the counts of refused commands in the looks of five
    minutes."""

    place: Callable[[], str]
    facts: ServerFacts | None = None
    at: float | None = None
    counts: deque[int] = field(factory=lambda: deque[int](maxlen=30))

    @property
    def refused(self) -> int:
        return self.counts[-1] - self.counts[0] if self.counts else 0

    def read(self, refusals: tuple[type[Exception], ...]) -> Call[None]:
        """Ask the server again, if the last answer is old. If it refuses, nothing is known."""
        now = yield from Now()
        if self.at is not None and now - self.at < AGAIN_S:
            return
        try:
            texts = yield from Inform()
        except refusals:
            texts = []
        self.at = now
        self.facts = facts_of(texts, self.place()) if texts else None
        if self.facts is None or (self.counts and self.facts.refused < self.counts[-1]):
            self.counts.clear()  # it has been restarted
        if self.facts is not None:
            self.counts.append(self.facts.refused)


def facts_of(texts: Sequence[str], address: str) -> ServerFacts:
    """Return the facts in answers to INFO, of the fullest server, with the refusals of all."""
    some: list[ServerFacts] = []
    for text in texts:
        said = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        number = {name: int(said.get(name, "0") or 0) for name in ("used_memory", "maxmemory")}
        refused = int(
            said.get("errorstat_OOM", "count=0").removeprefix("count=").partition(",")[0] or 0
        )
        valkey = said.get("valkey_version")
        name, version = ("Valkey", valkey) if valkey else ("Redis", said.get("redis_version", ""))
        some.append(
            ServerFacts(name, version, address, number["used_memory"], number["maxmemory"], refused)
        )
    return evolve(max(some, key=lambda one: one.full), refused=sum(one.refused for one in some))


class OverviewViews(QueueViews):
    def __init__(self, *args: Any, place: Callable[[], str] = str) -> None:
        super().__init__(*args)
        self.server = ServerLook(place)
        # for the chart of throughput
        self._history: deque[tuple[float, Mapping[str, tuple[int, int]]]] = deque(maxlen=150)
        self._sums: dict[frozenset[str], tuple[float, Trends | None]] = {}
        self._looks: dict[str, tuple[float, Look]] = {}
        self._usual: dict[str, tuple[float, float | None]] = {}

    def overview(self) -> Call[Overview]:
        return (yield from self.kept(("overview",), self._overview))

    def _overview(self) -> Call[Overview]:
        names = yield from self._catalogue.refresh()
        known = set(names)
        began = yield from Now()
        due = self._due(names, began)
        broken: dict[str, str] = {}
        for start in range(0, len(due), OPS_PER_TRIP):
            some = due[start : start + OPS_PER_TRIP]
            read: list[QueueView] = []
            try:
                read = yield from self._queues(some)
            except self._refusals:  # of one of them: a key of another type, say
                for name in some:
                    try:
                        read += yield from self._queues([name])
                    except self._refusals as error:
                        broken[name] = one_line(str(error))
            self._views |= {view.name: (began, view) for view in read}
        self._views = {
            name: kept for name, kept in self._views.items() if name in known and name not in broken
        }
        views = [self._views[name][1] for name in names if name in self._views]
        self._ops_factory.keep(known)
        self._workers = {name: kept for name, kept in self._workers.items() if name in known}
        self._outboxes = {name: kept for name, kept in self._outboxes.items() if name in known}
        self._dead = {name: counted for name, counted in self._dead.items() if name in known}
        self._trails = {name: trail for name, trail in self._trails.items() if name in known}
        now = max((one.now for one in self._ops_factory.abouts.values()), default=0.0)
        if views and (not self._history or now - self._history[-1][0] >= 0.5):
            self._history.append(
                (now, {one.name: (one.counts.enqueued, one.counts.completed) for one in views})
            )
        elif not views or now < self._history[-1][0]:
            self._history.clear()  # the clock went back
        yield from self.server.read(self._refusals)
        yield from self._look_closer(views)
        looks = {name: look for name, (_, look) in self._looks.items()}
        facts = attention(views, looks, broken, self.server.facts, self.server.refused, now=now)
        whole = self._catalogue.whole
        history = tuple(self._history)
        return Overview(now, tuple(views), whole, broken, facts, self.server.facts, history)

    def _due(self, names: Sequence[str], now: float) -> list[str]:
        """Return the queues that are read now. Of many, half are read at a look, and the others at
        the next one.
        """
        never = -math.inf
        ages = {name: now - self._views.get(name, (never, None))[0] for name in names}
        oldest = sorted(names, key=lambda name: -ages[name])
        least = max(4 * CLOSER_AT_ONCE, (len(names) + 1) // 2)
        return [
            name
            for number, name in enumerate(oldest)
            if number < least or ages[name] >= EVERY_OTHER * self.fresh
        ]

    def throughput(self, names: Collection[str]) -> Call[Trends | None]:
        """Sum the trends of these queues in the last two hours. Return `None` if none of them keeps
        trends."""
        key = frozenset(names)
        now = yield from Now()
        self._sums = {
            name: kept for name, kept in self._sums.items() if now - kept[0] < 30.0
        }  # records come once a minute
        if key not in self._sums:
            queues = (yield from self.overview()).queues
            shards = yield from self._ops_factory.of(
                [one.name for one in queues if one.name in key and one.trends]
            )
            ops = [
                trend_ops.trends(part, "minute", 120) for parts in shards.values() for part in parts
            ]
            read = yield from send_each(ops)
            self._sums[key] = (now, sum_trends(read) if read else None)
        return self._sums[key][1]

    def tenants(self) -> Call[tuple[Tenants, ...]]:
        """Read the shares of the queues that have terms, 50 queues at most."""

        def build() -> Call[tuple[Tenants, ...]]:
            view = yield from self.overview()
            declared = yield from self._declared(view.queues)
            some = [one for one in view.queues if "terms" in declared[one.name]][:OPS_PER_TRIP]
            parts = yield from self._ops_factory.of([one.name for one in some])
            standing = yield from self._standing(parts, declared)
            return tuple(
                Tenants.of(
                    queue.name,
                    declared[queue.name],
                    standing[queue.name][0],
                    queue.counts.leased,
                    standing[queue.name][1],
                )
                for queue in some
            )

        return (yield from self.kept(("tenants",), build))

    def _declared(self, queues: Sequence[QueueView]) -> Call[dict[str, Mapping[str, str]]]:
        shards = yield from self._ops_factory.of([queue.name for queue in queues])
        abouts = {name: self._ops_factory.about(parts) for name, parts in shards.items()}
        return {
            name: max(some, key=lambda about: about.declaration).declared
            for name, some in abouts.items()
        }

    def _look_closer(self, views: Sequence[QueueView]) -> Call[None]:
        now = yield from Now()
        never = (-AGAIN_S, NONE)
        there = {view.name: view for view in views if view.counts.present > view.counts.leased}
        self._looks = {name: kept for name, kept in self._looks.items() if name in there}
        due = [name for name in there if now - self._looks.get(name, never)[0] >= AGAIN_S]
        due.sort(key=lambda name: self._looks.get(name, never)[0])
        shards = yield from self._ops_factory.of(due[:CLOSER_AT_ONCE])
        ops = [(name, part) for name, parts in shards.items() for part in parts]
        found: dict[str, list[view_ops.Signs]] = {name: [] for name in shards}
        for start in range(0, len(ops), OPS_PER_TRIP):
            some = ops[start : start + OPS_PER_TRIP]
            for (name, _), signs in zip(
                some, (yield from self._signs([part for _, part in some])), strict=True
            ):
                found[name].append(signs)
        usual = yield from self._usual_of(now, [there[name] for name in shards], shards)
        for name, several in found.items():
            declared = self._ops_factory.about(shards[name])[0].declared
            waits = {
                one.number for one in there[name].shards if one.counts.waiting + one.counts.parked
            }
            whole = all(
                admits(declared.get("rate", ""), signs.buckets, ops.share)
                for ops, signs in zip(shards[name], several, strict=True)
                if ops.keys.shard is None or ops.keys.shard.number in waits
            )
            self._looks[name] = (now, Look(joined(several), usual.get(name), whole))

    def _signs(self, parts: Sequence[Ops]) -> Call[Sequence[view_ops.Signs]]:
        try:
            return (yield from send_all([view_ops.signs(ops, HOUR_S, LETTERS) for ops in parts]))
        except self._refusals:
            if len(parts) == 1:
                return [view_ops.Signs()]
            found: list[view_ops.Signs] = []
            for ops in parts:
                found += yield from self._signs([ops])
            return found

    def _usual_of(
        self, now: float, views: Sequence[QueueView], shards: Mapping[str, Sequence[Ops]]
    ) -> Call[dict[str, float | None]]:
        """Return the usual waits of these queues, as far as it matters. It is read anew every five
        minutes."""
        late = {view.name for view in views if view.lag > LAG_S}
        # a usual wait is read again after five minutes
        self._usual = {name: kept for name, kept in self._usual.items() if now - kept[0] < 300.0}
        for name in sorted(late - self._usual.keys())[:10]:
            parts = [
                ops
                for ops in shards[name]
                if self._ops_factory.about([ops])[0].declared.get("trends") == "yes"
            ]
            try:
                read = yield from send_all(
                    [trend_ops.trends(ops, "minute", 12 * 60) for ops in parts]
                )
            except self._refusals:
                read = []
            self._usual[name] = (now, usual_lag(sum_trends(read).points) if read else None)
        return {name: self._usual[name][1] for name in late & self._usual.keys()}


def joined(signs: Sequence[view_ops.Signs]) -> view_ops.Signs:
    numbers = ((one.letters, one.unhandled, one.held) for one in signs)
    letters, unhandled, held = map(sum, zip((0, 0, 0), *numbers, strict=True))
    kinds = tuple(dict.fromkeys(kind for one in signs for kind in one.kinds))
    return view_ops.Signs(letters, unhandled, any(one.more for one in signs), held, kinds=kinds)
