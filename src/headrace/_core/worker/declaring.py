"""The declaration of a worker's queues. It comes before the first lease call, as a history begins
with it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Log, Role, send_all
from headrace._core.worker.consumer import Consumer


def declare(consumers: Sequence[Consumer]) -> Role:
    """Declare once how each queue is meant to be used, all in one round trip. Log each declaration
    of another client that differs.
    """
    new = [consumer for consumer in consumers if not consumer.registration.declared]
    if not new:
        return
    for consumer in new:
        consumer.registration.declared = True
    try:
        answers = yield from send_all(
            [one.ops.declare(serving=True, more=one.declares()) for one in new]
        )
    except BaseException:
        for consumer in new:
            consumer.registration.declared = False
        raise
    for consumer, answer in zip(new, answers, strict=True):
        ours = {**consumer.ops.declaration(), **consumer.declares()}
        for text in answer.differences(consumer.ops.keys.queue, ours, serving=True):
            yield Log("declaration_differs", text)
