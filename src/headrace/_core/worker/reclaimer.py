"""The role `reclaim`. It ends runs past their deadline, reclaims jobs, and promotes due jobs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Abort, Call, Now, Phase, Role, Sleep, Wake, send, send_all
from headrace._core.steps.away import fetch_ends
from headrace._core.verdicts import overran
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.declaring import declare
from headrace._core.worker.idle import AGAIN_S, ask_for_idle
from headrace._core.worker.lifecycle import Lifecycle, many
from headrace._model.builds import continues
from headrace._model.checks import FOREVER_S
from headrace._protocol import view_ops
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.limits import POLL_S
from headrace._protocol.replies import Reclaimed

SWEEPS_AT_ONCE = 50  # sweeps in one round trip, each a script of its own


def reclaim(worker: Lifecycle, members: Sequence[Consumer] | None = None) -> Role:
    consumers = worker.consumers if members is None else members
    spans = [
        0.75 * worker.settings.heartbeat,
        worker.settings.timeout / 5,
        POLL_S,
    ]
    for consumer in consumers:
        spans += (consumer.ops.settings.lease / 6, (consumer.handler.deadline or 60.0) / 4)
    tick = min(spans)
    while worker.phase < Phase.HALTING:
        began = yield from Now()
        again = tick
        due = [consumer for consumer in consumers if _due(consumer, began) or not many(worker)]
        for consumer in consumers:
            if consumer.idle.all_idle:
                yield from _measure(consumer)
        for start in range(0, len(due), SWEEPS_AT_ONCE):
            again = min(
                again, (yield from sweep(worker, due[start : start + SWEEPS_AT_ONCE], tick))
            )
        if len(due) > SWEEPS_AT_ONCE:  # the sweeps took some time
            again = max(0.01, again - ((yield from Now()) - began))
        yield Sleep(again)


def _due(consumer: Consumer, now: float) -> bool:
    return bool(consumer.jobs.held) or consumer.timers.sweep_at <= now


def sweep(worker: Lifecycle, consumers: Sequence[Consumer], tick: float = POLL_S) -> Call[float]:
    """Do the upkeep of these consumers, all sweeps in one round trip. Return the seconds until the
    next time."""
    now = yield from Now()
    swept: list[Consumer] = []
    # again: a queue was deleted
    yield from declare([consumer for consumer in consumers if consumer.registered])
    for consumer in consumers:
        for held in consumer.overdue(now):
            consumer.ended(held, TimeoutError(overran(consumer.of(held).deadline)))
            yield Abort([held])
            yield Wake(owner=consumer)
        yield from consumer.housekeep()
        yield from _measure(consumer)
        if consumer.registered and _due(consumer, now):
            if consumer.idle.all_idle:
                consumer.timers.sweep_at = now + AGAIN_S
                yield from ask_for_idle(worker, consumer, now)
            else:
                swept.append(consumer)
    again = tick
    for consumer in consumers:
        if consumer.jobs.homes.known:
            again = min(again, (yield from fetch_ends(consumer.ops, consumer.jobs.homes)))
        if consumer.registered and not _due(consumer, now):
            again = min(again, consumer.timers.sweep_at - now)
    if not swept:
        return again
    ops = [consumer.ops.reclaim(consumer.name, worker.settings.timeout) for consumer in swept]
    for consumer, found in zip(swept, (yield from send_all(ops)), strict=True):
        if consumer.registered:
            again = min(again, 0.01 if found.more else tick, found.again or tick)
            yield from _swept(worker, consumer, found)
            consumer.jobs.homes.learn(found.homes, now)
            if found.builds and (yield from _continue_held(consumer, found.builds)):
                again = min(again, POLL_S / 5)
    return again


def _swept(worker: Lifecycle, consumer: Consumer, found: Reclaimed) -> Role:
    now = yield from Now()
    if consumer.note_due(now, found):
        yield Wake(owner=consumer)
    if consumer.idle.all_idle:
        return  # idle mode began while the sweep was under way
    consumer.timers.sweep_at = now + _unswept_for(
        consumer,
        found,
        FOREVER_S if many(worker) else 5.0,  # the longest pause of an idle queue
    )
    if not (found.rests or consumer.idle.on):
        consumer.idle.try_at = now + worker.settings.timeout
    elif many(worker) and consumer.idle.try_at <= now:
        yield from ask_for_idle(worker, consumer, now)


# runs that were held back for other builds; answers whether there may be more than it has room for
def _continue_held(consumer: Consumer, builds: Sequence[str]) -> Call[bool]:
    own = consumer.handler
    rules = {one.runs for one in own.kinds.values() or [own]}
    mine = [it for it in builds if all(continues(rule, own.build, it) for rule in rules)]
    may = mine and consumer.may_lease() and not consumer.leasing.paused
    if not may or (room := consumer.room()) <= 0:
        return False
    number = yield from send(step_ops.unpin(consumer.ops, room, mine))
    consumer.leasing.available = True
    yield Wake(owner=consumer)
    return number == room


def _unswept_for(consumer: Consumer, found: Reclaimed, most: float) -> float:
    """Return how many seconds the queue can be left unswept while this worker holds no job of it.
    The next sweep comes before a job leased meanwhile reaches the end of its lease or its deadline.
    """
    if not found.rests or found.again is None:
        return 0.0
    return min(
        found.again,
        most,
        consumer.ops.settings.lease / 2,
        (consumer.handler.deadline or FOREVER_S) * 0.75,
    )


def _measure(consumer: Consumer) -> Role:
    if consumer.gauge is None or not consumer.gauge.due():
        return
    shares = (
        []
        if not consumer.leasing.lines
        else (yield from send(fair_ops.shares(consumer.ops, "")))[0]
    )
    consumer.gauge.read(*(yield from send(view_ops.measure(consumer.ops))), shares)
