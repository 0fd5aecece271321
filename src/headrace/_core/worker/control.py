"""The role that learns from Pub/Sub of lost leases, of workers that start or leave idle mode, and
of operators."""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Phase, Receive, Role, Sleep, Wake
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.idle import note_activity
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.reclaimer import sweep
from headrace._core.worker.renewal import check, check_named, declare_again
from headrace._protocol.limits import BLOCK_S

RETRY_REFUSED_S = 30.0  # seconds between tries if the server refuses subscriptions
ACTIVE = b"active"  # a worker has started here, or has left idle mode
ASK = b"ask"  # an operator asks a worker for something


def listen(worker: Lifecycle, members: Sequence[Consumer] | None = None) -> Role:
    """Learn at once which leases this worker lost, and where other workers are active. The next
    renewal, or the next call of idle mode, makes up for a missed message.
    """
    consumers = worker.consumers if members is None else members
    by_channel = {consumer.ops.keys.key("control"): consumer for consumer in consumers}
    pause = 0.05
    while worker.phase < Phase.HALTING:
        received = yield from Receive(tuple(by_channel), BLOCK_S)
        if received.state != "on":
            for consumer in consumers:
                note_activity(consumer)
                consumer.idle.subscribed = received.state == "anew"
        if received.state == "anew":
            pause = 0.05
            for consumer in consumers:
                declare_again(consumer)  # the queue may have been deleted before
                yield from check(consumer)
        for channel, message in received.messages:
            if channel not in by_channel:
                continue
            if message == ASK:
                by_channel[channel].registration.asked = True
                yield Wake(everyone=True)
            elif message != ACTIVE:
                yield from check_named(by_channel[channel], message)
            elif note_activity(by_channel[channel]):
                # from this sweep on we know the live workers
                yield from sweep(worker, [by_channel[channel]])
        if received.state in ("cut", "refused"):
            yield Sleep(RETRY_REFUSED_S if received.state == "refused" else pause)
            pause = min(2 * pause, 2.0)
