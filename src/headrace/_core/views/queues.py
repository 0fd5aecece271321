"""Views of queues. They read counts, one queue, schedules and trends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from headrace._core.effects import Call, Now, send_all, send_each
from headrace._core.fair.shares import standing
from headrace._core.queue import schedules as schedule_calls
from headrace._core.views.catalogue import AGAIN_S
from headrace._core.views.reader import SEARCH_KEPT, QueueLook
from headrace._core.views.tallies import TallyReader
from headrace._model.checks import count
from headrace._model.state import Counts, Schedule, summed
from headrace._model.terms import LimitView, Share, fair_by
from headrace._model.views.outbox import OutboxView
from headrace._model.views.queues import QueuePage, QueueView, ShardView
from headrace._model.views.trends import KEPT, Every, Trends, sum_trends
from headrace._protocol import view_ops
from headrace._protocol.features import (
    outbox as outbox_ops,
    schedules as schedule_ops,
    trends as trend_ops,
)
from headrace._protocol.limits import OPS_PER_TRIP
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops

EVERY_OTHER = 1.9  # times the age for which a view is shown again, at which workers are read again
NO_OUTBOX: tuple[float, OutboxView | None] = (-AGAIN_S, None)


class QueueViews(TallyReader):
    def _queues(self, names: Sequence[str]) -> Call[list[QueueView]]:
        """Read some queues in one round trip, or two if one has more levels than before.

        The reports of relays, which come every 15 seconds, are read every ten, and workers with
        every other look.
        """
        parts = yield from self._ops_factory.of(names)
        now = yield from Now()
        late = [name for name in names if now - self._outboxes.get(name, NO_OUTBOX)[0] >= AGAIN_S]
        every = EVERY_OTHER * self.fresh
        due = [
            name
            for name in names
            if name not in self._workers or now - self._workers[name][0] >= every
        ]
        return (yield from self._read(parts, late, due))

    def _read(
        self, parts: Mapping[str, list[Ops]], late: Sequence[str], due: Sequence[str]
    ) -> Call[list[QueueView]]:
        """Read the queues. The operations of deeper queues become the ones for all levels."""
        ops: list[Op[Any]] = [outbox_ops.relayed(self._ops_factory.whole(name)) for name in late]
        ops += (view_ops.look(one) for some in parts.values() for one in some)
        ops += (view_ops.workers(one) for name in due for one in parts[name])
        read = yield from send_all(ops)
        replies: Iterator[Any] = iter(read)
        now = yield from Now()
        self._outboxes.update((name, (now, next(replies))) for name in late)
        measures: dict[str, list[tuple[Counts, float, float]]] = {name: [] for name in parts}
        for name, some in parts.items():
            for one in some:
                self._ops_factory.abouts[one.keys.prefix], measured = next(replies)
                measures[name].append(measured)
        for name in due:
            workers = (one for _ in parts[name] for one in next(replies))
            self._workers[name] = (now, tuple(sorted(workers, key=lambda one: one.name)))
        deeper = [
            (name, number, more)
            for name, some in parts.items()
            for number, one in enumerate(some)
            if (more := self._ops_factory.deeper(one)) is not None
        ]
        again = (
            (yield from send_all([view_ops.measure(one) for *_, one in deeper])) if deeper else ()
        )
        for (name, number, more), measured in zip(deeper, again, strict=True):
            parts[name][number] = more
            measures[name][number] = measured
        views = [self._view(name, some, measures[name]) for name, some in parts.items()]
        self._dead |= {
            view.name: (now, (view.counts.dead, view.counts.dead_trimmed)) for view in views
        }
        kept = {
            name: any(
                about.declared.get("trends") == "yes" for about in self._ops_factory.about(some)
            )
            for name, some in parts.items()
        }
        outboxes = {name: self._outboxes.get(name, NO_OUTBOX)[1] for name in parts}
        return [evolve(view, outbox=outboxes[view.name], trends=kept[view.name]) for view in views]

    def _view(
        self, name: str, parts: Sequence[Ops], read: Sequence[tuple[Counts, float, float]]
    ) -> QueueView:
        abouts = self._ops_factory.about(parts)
        counts = summed(
            [self._ops_factory.past.get(name, Counts()), *(counts for counts, _, _ in read)]
        )
        now = max(about.now for about in abouts)
        # earlier counts of a queue, for rates
        trail = self._trails.setdefault(name, deque(maxlen=60))
        if trail and (counts.enqueued < trail[-1].enqueued or now < trail[-1].at):
            trail.clear()  # another queue of this name, or the clock went back
        if not trail or now - trail[-1].at >= 0.5:
            look = QueueLook(now, counts.enqueued, counts.completed)
            trail.append(evolve(look, since=_rates(trail[-1], look)) if trail else look)
        # rates are of a minute
        first = next((one for one in trail if now - one.at <= 60.0), trail[-1])
        rates: dict[str, float] = {}
        if first is not trail[-1]:
            enqueued, completed = _rates(first, trail[-1])
            rates = {"enqueued": enqueued, "completed": completed}
        steps = list(trail)[1:]
        shards = tuple(
            ShardView(ops.keys.shard.number, counts, lag, about.paused)
            for ops, about, (counts, lag, _) in zip(parts, abouts, read, strict=True)
            if ops.keys.shard is not None
        )
        return QueueView(
            name,
            counts,
            max(lag for _, lag, _ in read),
            any(about.paused for about in abouts),
            max(about.levels for about in abouts),
            self._workers[name][1],
            rates,
            tuple(one.since for one in steps),
            shards,
            looks=tuple(one.at for one in steps),
            terms=max(abouts, key=lambda about: about.declaration).declared.get("terms", ""),
        )

    def queue(self, name: str) -> Call[QueuePage]:
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[QueuePage]:
            parts = (yield from self._ops_factory.of([name]))[name]
            (view,) = yield from self._read({name: parts}, [name], [name])
            abouts = self._ops_factory.about(parts)
            schedules: list[Schedule] = []
            for ops in parts:
                schedules += yield from schedule_calls.schedules(ops)
            schedules.sort(key=lambda one: (one.paused, one.next_due))
            declared = max(abouts, key=lambda about: about.declaration)
            fair = {name: declared.declared}
            ((found, slots),) = (yield from self._standing({name: parts}, fair)).values()
            about = (abouts[0].now, view, declared.declared, declared.declaration)
            return QueuePage(*about, tuple(schedules), tuple(found), tuple(slots))

        return (yield from self.kept(("queue", name), build))

    def _standing(
        self, parts: Mapping[str, Sequence[Ops]], declared: Mapping[str, Mapping[str, str]]
    ) -> Call[dict[str, tuple[list[Share], list[LimitView]]]]:
        some = {name: shards for name, shards in parts.items() if "terms" in declared[name]}
        paths = {name: fair_by(declared[name]) for name in some}
        yield from self.read_hours([name for name, path in paths.items() if path])
        read = yield from standing(list(some.values()))
        found: dict[str, tuple[list[Share], list[LimitView]]] = {name: ([], []) for name in parts}
        for name, (shares, slots) in zip(some, read, strict=True):
            found[name] = (
                [
                    self.showing.share(name, paths[name], one)
                    for one in self.with_hours(name, shares)
                ],
                [self.showing.slots(name, one) for one in slots],
            )
        return found

    def schedules(self, names: Sequence[str]) -> Call[dict[str, list[Schedule]]]:
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[dict[str, list[Schedule]]]:
            parts = yield from self._ops_factory.of(names)
            ops = [schedule_ops.schedules(one) for some in parts.values() for one in some]
            replies = iter((yield from send_each(ops)))
            return {
                name: [one for _ in some for one in next(replies)] for name, some in parts.items()
            }

        fresh = self.fresh * SEARCH_KEPT if len(names) > OPS_PER_TRIP else self.fresh
        return (yield from self.kept(("schedules", *names), build, fresh))

    def trends(self, name: str, every: Every, number: int | None) -> Call[Trends]:
        if every not in KEPT:
            raise ValueError(f"every {every!r}: give 'minute' or 'hour'")
        if number is not None:
            count("number", number, most=KEPT[every])
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[Trends]:
            parts = (yield from self._ops_factory.of([name]))[name]
            return sum_trends(
                (
                    yield from send_all(
                        [trend_ops.trends(ops, every, number or KEPT[every]) for ops in parts]
                    )
                )
            )

        return (yield from self.kept(("trends", name, every, number), build))


def _rates(before: QueueLook, after: QueueLook) -> tuple[float, float]:
    took = max(after.at - before.at, 0.001)
    enqueued = after.enqueued - before.enqueued
    completed = after.completed - before.completed
    return enqueued / took, completed / took
