"""The role that transfers jobs from outboxes to other shards, whichever worker or caller wrote them there."""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Log, Now, Phase, Role, Sleep
from headrace._core.shards.slots import ShardSlots, slots_of
from headrace._core.shards.transfer import Targets, hand_over
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.idle import AGAIN_S
from headrace._core.worker.lifecycle import Lifecycle
from headrace._protocol.limits import LOG_AGAIN_S
from headrace._protocol.shards import ShardOps


def hand(worker: Lifecycle, consumers: Sequence[Consumer]) -> Role:
    """Send the jobs in the outboxes of these shards, once a heartbeat. Poll less often in idle mode, as workers give
    notice before they complete jobs.
    """
    queues: dict[int, tuple[ShardSlots, list[Consumer], Targets]] = {}
    for consumer in consumers:
        if (shared := slots_of(consumer)) is not None:
            queues.setdefault(id(shared), (shared, [], Targets()))[1].append(consumer)
    said_at = all_at = looked_at = float("-inf")
    while worker.phase < Phase.HALTING:
        wrong: list[str] = []
        now = yield from Now()
        if (left := looked_at + worker.settings.heartbeat - now) > 0:  # the role was woken early, as all roles were
            yield Sleep(left)
            continue
        looked_at = now
        every = now - all_at >= AGAIN_S
        all_at = now if every else all_at
        for shared, some, targets in queues.values():
            there = [one for one in some if not one.leasing.shard_gone and (every or not one.idle.all_idle)]
            outboxes = [one.ops for one in there if isinstance(one.ops, ShardOps)]
            if outboxes:
                wrong += yield from hand_over(shared.map, outboxes, targets)
        if wrong and now - said_at >= LOG_AGAIN_S:
            said_at = now
            yield Log("handing_failed", f"jobs wait in the outbox of their shard: {wrong[0]}")
        yield Sleep(worker.settings.heartbeat)
