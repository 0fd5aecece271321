"""When the jobs that a worker leases begin, in queues with `fair=`.

The server picks fairly, but a job of a quiet value would wait here behind the jobs that were leased
before it came. So the values take turns. It would also wait for all handlers, if they end at the
same moment. So they are spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headrace._core.effects import Call, HeldJob, Now, TakeBack
from headrace._core.worker.consumer import FAIR_START_WITHIN_S, START_WITHIN_S, Consumer
from headrace._core.worker.state import Spread
from headrace._model.terms import Value, value_of


def by_turns(
    path: Sequence[str], weights: Mapping[Value, float], units: Sequence[list[HeldJob]]
) -> list[list[HeldJob]]:
    """Order units of one job each. The first of each value comes first, then the second, by weight.
    With two levels each organisation orders its own values first. Jobs of one value keep their
    order, and lower priorities stay behind.
    """
    rows = [(value_of(path, unit[0].job.headers), unit) for unit in units]
    for depth in range(len(path), 0, -1):
        counts: Counter[Value] = Counter()
        turns: list[tuple[float, int]] = []
        for number, (value, _) in enumerate(rows):
            counts[value[:depth]] += 1
            turns.append((counts[value[:depth]] / weights.get(value[:depth], 1.0), number))
        rows = [rows[number] for _, number in sorted(turns)]
    return sorted((unit for _, unit in rows), key=lambda unit: unit[0].job.priority)


def with_waiting(consumer: Consumer, fresh: list[list[HeldJob]]) -> Call[list[list[HeldJob]]]:
    """Take back the units that wait for a handler, and return them with the *fresh* ones, by turns.
    One handler runs jobs in the order of their leases.
    """
    fair = consumer.leasing.fair
    if fair is None or not fair.queues.path or consumer.concurrency == 1:
        return fresh
    waiting = len(consumer.jobs.held) - consumer.slots()
    soon = consumer.starts_within(FAIR_START_WITHIN_S / 5)  # jobs that start at once, in any order
    if waiting <= max(len(fresh), soon):
        return fresh
    units, _ = yield from TakeBack()
    return by_turns(fair.queues.path, {} if fair.differs else fair.weights, [*units, *fresh])


def spread(consumer: Consumer, room: int) -> Call[int]:
    """Return how many jobs to lease now, if there is *room* for so many. If half of the handlers
    are free at once while jobs wait, one begins after another, within their mean time.
    """
    fair = consumer.leasing.fair
    mean = consumer.jobs.mean
    slots = consumer.slots()
    several = (
        consumer.leasing.backlog
        and consumer.shared is None
        and not consumer.handler.batch
        and slots > 1
    )
    if (
        fair is None
        or mean is None
        or not (fair.queues.path and several and mean >= 2 * fair.call_s)
    ):
        return room
    now = yield from Now()
    free = slots - consumer.used()
    if not fair.spread.left and 2 * free >= slots and now >= fair.spread.again_at:
        gap = min(mean, START_WITHIN_S) / slots
        # so it takes a twentieth of the time
        fair.spread = Spread(free, now, gap, now + 20 * free * gap)
    return fair.spread.take(room, now) if fair.spread.left else room
