"""Views of queues. They read counts, one queue, schedules and trends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from attrs import evolve

from headrace._core.effects import Call, Now, send_all
from headrace._core.fair.shares import standing
from headrace._core.queue import schedules as schedule_calls
from headrace._core.views.reader import SEARCH_KEPT, Reader
from headrace._model.checks import count
from headrace._model.state import Counts, Schedule, summed
from headrace._model.terms import LimitView, Share, fair_by
from headrace._model.views.outbox import OutboxView
from headrace._model.views.queues import QueuePage, QueueView, ShardView
from headrace._model.views.trends import KEPT, Every, Trends, sum_trends
from headrace._protocol import view_ops
from headrace._protocol.features import outbox as outbox_ops
from headrace._protocol.features import schedules as schedule_ops
from headrace._protocol.features import trends as trend_ops
from headrace._protocol.limits import OPS_PER_TRIP
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops

TRAIL = 60  # earlier counts that are kept of each queue, for rates
RATE_S = 60.0  # seconds over which rates are measured
EVERY_OTHER = 1.9  # times the age for which a view is shown again, at which workers are read again
OUTBOX_S = 10.0  # seconds between two readings of an outbox, for the overview
NO_OUTBOX: tuple[float, OutboxView | None] = (-OUTBOX_S, None)


class QueueViews(Reader):
    def _queues(self, names: Sequence[str]) -> Call[list[QueueView]]:
        """Read some queues in two round trips. The first reads the number of levels, as the scripts
        take the streams of all.

        The reports of relays, which come every 15 seconds, are read every ten, and workers with
        every other look.
        """
        parts = yield from self._ops_factory.levelled(names)
        now = yield from Now()
        late = [name for name in names if now - self._outboxes.get(name, NO_OUTBOX)[0] >= OUTBOX_S]
        every = EVERY_OTHER * self.fresh
        due = [
            name
            for name in names
            if name not in self._workers or now - self._workers[name][0] >= every
        ]
        return (yield from self._read(parts, late, due))

    def _read(
        self, parts: Mapping[str, Sequence[Ops]], late: Sequence[str], due: Sequence[str]
    ) -> Call[list[QueueView]]:
        ops: list[Op[Any]] = [outbox_ops.relayed(self._ops_factory.whole(name)) for name in late]
        ops += (view_ops.measure(one) for some in parts.values() for one in some)
        ops += (view_ops.workers(one) for name in due for one in parts[name])
        read = yield from send_all(ops)
        replies: Iterator[Any] = iter(read)
        now = yield from Now()
        self._outboxes.update((name, (now, next(replies))) for name in late)
        measures = {name: [next(replies) for _ in some] for name, some in parts.items()}
        for name in due:
            workers = (one for _ in parts[name] for one in next(replies))
            self._workers[name] = (now, tuple(sorted(workers, key=lambda one: one.name)))
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
        trail = self._trails.setdefault(name, deque(maxlen=TRAIL))
        if trail and (counts.enqueued < trail[-1][1] or now < trail[-1][0]):
            trail.clear()  # another queue of this name, or the clock went back
        if not trail or now - trail[-1][0] >= 0.5:
            trail.append((now, counts.enqueued, counts.completed))
        recent = [one for one in trail if now - one[0] <= RATE_S]
        rates: dict[str, float] = {}
        if len(recent) > 1:
            (start, *before) = recent[0]
            (end, *after) = recent[-1]
            rates = dict(
                zip(("enqueued", "completed"), _rates(start, end, before, after), strict=True)
            )
        steps = list(trail)
        line = tuple(_rates(a[0], b[0], a[1:], b[1:]) for a, b in pairwise(steps))
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
            line,
            shards,
            looks=tuple(at for at, _, _ in steps[1:]),
            terms=max(abouts, key=lambda about: about.declaration).declared.get("terms", ""),
        )

    def queue(self, name: str) -> Call[QueuePage]:
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[QueuePage]:
            parts = yield from self._of(name)
            (view,) = yield from self._read({name: parts}, [name], [name])
            abouts = self._ops_factory.about(parts)
            schedules: list[Schedule] = []
            for ops in parts:
                schedules += yield from schedule_calls.schedules(ops)
            schedules.sort(key=lambda one: (one.paused, one.next_due))
            declared = max(abouts, key=lambda about: about.declaration)
            found, slots = yield from self._standing(name, parts, declared.declared)
            about = (abouts[0].now, view, declared.declared, declared.declaration)
            return QueuePage(*about, tuple(schedules), tuple(found), tuple(slots))

        return (yield from self.kept(("queue", name), build))

    def _standing(
        self, name: str, parts: Sequence[Ops], declared: Mapping[str, str]
    ) -> Call[tuple[list[Share], list[LimitView]]]:
        if "terms" not in declared:
            return [], []
        shares, slots = yield from standing(parts)
        fair = fair_by(declared)
        return [self.showing.share(name, fair, one) for one in shares], [
            self.showing.slots(name, one) for one in slots
        ]

    def schedules(self, names: Sequence[str]) -> Call[dict[str, list[Schedule]]]:
        """Read the schedules of these queues, by queue, at most 500 of each."""
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[dict[str, list[Schedule]]]:
            found: dict[str, list[Schedule]] = {}
            for start in range(0, len(names), OPS_PER_TRIP):
                some = names[start : start + OPS_PER_TRIP]
                parts = yield from self._ops_factory.of(some)
                replies = iter(
                    (
                        yield from send_all(
                            [schedule_ops.schedules(ops) for name in some for ops in parts[name]]
                        )
                    )
                )
                found |= {
                    name: [one for _ in parts[name] for one in next(replies)] for name in some
                }
            return found

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


def _rates(start: float, end: float, before: Any, after: Any) -> tuple[float, float]:
    took = max(end - start, 0.001)
    enqueued, completed = ((b - a) / took for a, b in zip(before, after, strict=True))
    return enqueued, completed
