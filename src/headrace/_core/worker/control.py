"""The role that learns from Pub/Sub of lost leases, of workers that start or leave idle mode, and
of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace._core.effects import Phase, Receive, Role, Sleep, Wake
from headrace._core.steps.away import fetch_ends
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.idle import note_activity
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.reclaimer import sweep
from headrace._core.worker.renewal import check, check_named, declare_again
from headrace._protocol.limits import BLOCK_S

RETRY_REFUSED_S = 30.0  # seconds between tries if the server refuses subscriptions
ACTIVE = b"active"  # a worker has started here, or has left idle mode
ASK = b"ask"  # an operator asks a worker for something
ENDED = b"ended "  # children in this queue of another slot have ended


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
        yield from _hear(worker, by_channel, received.messages)
        if received.state in ("cut", "refused"):
            yield Sleep(RETRY_REFUSED_S if received.state == "refused" else pause)
            pause = min(2 * pause, 2.0)


def _hear(
    worker: Lifecycle,
    by_channel: Mapping[str, Consumer],
    messages: Sequence[tuple[str, bytes]],
) -> Role:
    hurried: set[Consumer] = set()
    for channel, message in messages:
        if channel not in by_channel:
            continue
        consumer = by_channel[channel]
        if message == ASK:
            consumer.registration.asked = True
            yield Wake(everyone=True)
        elif message.startswith(ENDED):
            if consumer.jobs.homes.hurry(message.removeprefix(ENDED).decode("utf-8", "replace")):
                hurried.add(consumer)
        elif message != ACTIVE:
            yield from check_named(consumer, message)
        elif note_activity(consumer):
            # from this sweep on we know the live workers
            yield from sweep(worker, [consumer])
    for consumer in hurried:
        yield from fetch_ends(consumer.ops, consumer.jobs.homes)
    if hurried:
        yield Sleep(0.005)  # the ends of this time are fetched together
