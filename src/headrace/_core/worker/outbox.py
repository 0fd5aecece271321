"""The role that hands jobs over to other shards, whichever worker, or caller, left them on their way."""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Log, Phase, Role, Sleep, current_time
from headrace._core.handing import Shores, hand_over
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._protocol.shards import PartOps

SAID_EVERY_S = 60.0  # seconds between two messages that something does not come to its shard


def hand(worker: Lifecycle, consumers: Sequence[Consumer]) -> Role:
    """Look into the outboxes of these shards, once a heartbeat, and send what is there."""
    outboxes = [consumer.ops for consumer in consumers if isinstance(consumer.ops, PartOps)]
    shores, said_at = Shores(), float("-inf")
    while worker.phase < Phase.HALTING:
        wrong = yield from hand_over(outboxes, shores)
        now = yield from current_time()
        if wrong and now - said_at >= SAID_EVERY_S:
            said_at = now
            yield Log("handing_failed", f"jobs wait in the outbox of their shard: {wrong[0]}")
        yield Sleep(worker.settings.heartbeat)
