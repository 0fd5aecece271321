"""The heartbeat role. It tells the server that the worker is alive, and learns if its peers
declared it dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace._core.effects import Call, Now, Phase, Role, Sleep, Wake, send_all
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.declaring import declare
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.renewal import died
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.op import Op
from headrace._protocol.replies import Entered

# heartbeats in one round trip: they occupy the server for one or two milliseconds
BEATS_AT_ONCE = 250


def beat(worker: Lifecycle, members: Sequence[Consumer] | None = None) -> Role:
    """Send heartbeats of all consumers, or *members*. Rename a consumer that was declared dead, and
    start it again."""
    consumers = worker.consumers if members is None else members
    while worker.phase < Phase.STOPPED:
        began = yield from Now()
        wait = worker.settings.heartbeat
        due = [
            consumer
            for consumer in consumers
            if not (consumer.idle.on or consumer.leasing.shard_gone)
        ]
        if worker.phase is not Phase.RUNNING:  # each step of a stop wakes this role
            wait /= 2
            due = [
                one
                for one in due
                if not (one.registered and began - one.registration.beaten < wait)
            ]
        for start in range(0, len(due), BEATS_AT_ONCE):
            wait = min(wait, (yield from _beat(worker, due[start : start + BEATS_AT_ONCE])))
        late = (yield from Now()) - began
        yield Sleep(wait if len(due) <= BEATS_AT_ONCE else max(0.0, wait - late))


def _beat(worker: Lifecycle, consumers: Sequence[Consumer]) -> Call[float]:
    for consumer in consumers:
        # before the check for idle mode: that role checks the other way round
        consumer.idle.beating = True
    try:
        return (
            yield from _beat_for(
                worker, [consumer for consumer in consumers if not consumer.idle.on]
            )
        )
    finally:
        for consumer in consumers:
            consumer.idle.beating = False


def _beat_for(worker: Lifecycle, consumers: Sequence[Consumer]) -> Call[float]:
    fresh = [not consumer.registered for consumer in consumers]
    names = [consumer.name for consumer in consumers]
    now = yield from Now()
    # A worker that lives and has said nothing counts as one without terms, so it says which it has
    # before.
    tells = [
        one
        for one, new in zip(consumers, fresh, strict=True)
        if new and one.leasing.fair and one.leasing.fair.own
    ]
    ops: list[Op[Any]] = [fair_ops.tell(one.ops, one.name) for one in tells]
    ops += [consumer.sign(worker.settings, now) for consumer in consumers]
    alive = (yield from send_all(ops))[len(tells) :]
    wait = worker.settings.heartbeat
    if (yield from Now()) - now >= wait:
        wait = 0.0  # the answer took longer than a heartbeat: beat again at once
    entered = list[tuple[Consumer, str]]()
    for consumer, new, name, yes in zip(consumers, fresh, names, alive, strict=True):
        if consumer.name != name:
            wait = 0.0  # the consumer was declared dead and renamed while we asked
        elif isinstance(yes, Entered) and not consumer.registration.name_claim.admits(yes, now):
            wait = min(wait, worker.settings.heartbeat / 4)
            continue
        elif yes and new:
            entered.append((consumer, name))
            continue
        elif yes:
            consumer.registration.beaten = now
        else:
            yield from died(consumer)
            wait = 0.0
        if new:
            yield Wake(owner=consumer)
    yield from declare([consumer for consumer, _ in entered])
    for consumer, name in entered:
        if consumer.name == name:
            consumer.registration.beaten = now
            consumer.registration.registered = True
        yield Wake(owner=consumer)
    return wait
