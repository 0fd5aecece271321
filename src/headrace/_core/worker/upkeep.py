"""The upkeep role: ends what runs past its deadline, reclaims jobs and promotes those that are due."""

from __future__ import annotations

from headrace._core.effects import Abort, Log, Phase, Role, Sleep, Wake, current_time, send
from headrace._core.verdicts import overran
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._protocol.declaring import declaration, differing

SWEEP_EVERY_HEARTBEATS = 0.75  # heartbeats between two looks for dead workers, at most
SWEEP_EVERY_S = 1.0  # seconds between two looks at most: an expired lease is found as soon


def keep(worker: Lifecycle) -> Role:
    """Put back the jobs of dead workers and of expired leases; promote those that are due."""
    spans = [SWEEP_EVERY_HEARTBEATS * worker.settings.heartbeat, worker.settings.timeout / 5, SWEEP_EVERY_S]
    for consumer in worker.consumers:
        spans += (consumer.ops.settings.lease / 6, (consumer.handler.deadline or 60.0) / 4)
    tick = min(spans)
    while worker.phase < Phase.HALTING:
        now = yield from current_time()
        again = tick
        for consumer in worker.consumers:
            for held in consumer.overdue(now):
                consumer.ended(held, TimeoutError(overran(consumer.of(held).deadline)))
                yield Abort([held])
                yield Wake()
            yield from consumer.tend()
            yield from _measure(consumer)
            yield from _declare(consumer)
            if not consumer.registered:
                continue
            swept = yield from send(consumer.ops.reclaim(consumer.name, worker.settings.timeout))
            if consumer.registered:
                if consumer.note_due((yield from current_time()), swept):
                    yield Wake(whose=consumer)
                again = min(again, 0.01 if swept.more else tick, swept.again or tick)
        yield Sleep(again)


def _declare(consumer: Consumer) -> Role:
    """Declare how the queue is meant to be used, once; log where others have declared otherwise."""
    if consumer.declared or not consumer.registered:
        return
    consumer.declared = True
    ops = consumer.ops
    answer = yield from send(ops.declare(serving=True))
    for text in differing(ops.keys.queue, declaration(ops.codec, ops.settings), answer, serving=True):
        yield Log("declaration_differs", text)


def _measure(consumer: Consumer) -> Role:
    """Read the queue's counts, if telemetry asks for them now."""
    if consumer.gauge is None or not consumer.gauge.due():
        return
    counts, age = yield from send(consumer.ops.measure())
    consumer.gauge.read(counts, age)
