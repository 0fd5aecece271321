"""The role that follows the table of a queue's shards. It serves new shards, and leaves removed shards.

It also continues a change of the number of shards, if the client that began the change has stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace._core.effects import Join, Log, Now, Phase, Role, Sleep, Step, Wake, send
from headrace._core.shards.map import ShardMap
from headrace._core.shards.reshard import behind, seal, tidy
from headrace._core.shards.slots import ShardSlots, slots_of
from headrace._protocol.limits import POLL_S
from headrace._protocol.shards import ShardOps
from headrace.errors import HeadraceError, describe_error

if TYPE_CHECKING:
    from headrace._core.worker.consumer import Consumer
    from headrace._core.worker.lifecycle import Lifecycle

GO_ON_AFTER_S = 5.0  # seconds without progress, after which this worker continues a change
TIDY_EVERY_S = 60.0  # seconds between two looks for shards that have been empty for long enough


def follow(worker: Lifecycle, consumer: Consumer) -> Role:
    """Read the table again and again (write it if it is missing), and serve its shards.

    Raises `ShardsMismatch`, which ends the worker, if the queue never had the worker's number of shards.
    """
    shared = slots_of(consumer)
    if shared is None:
        return
    known, make = shared.map, shared.make
    changed_at = tidied_at = yield from Now()
    served = {ops.shard for ops in known.ordered()}
    while worker.phase is Phase.RUNNING:
        changed = yield from known.look()
        now = yield from Now()
        if changed:
            changed_at = now
        there = {ops.shard: ops for ops in known.ordered()}
        if new := [make(ops) for shard, ops in there.items() if shard not in served]:
            served |= there.keys()
            shared.members = [*shared.members, *new]
            yield Join(new)
        yield from _line_up(shared, known)
        for one in shared.members:
            if not one.leasing.shard_gone and one.ops.keys.shard not in there:
                yield from _leave(one)
        if known.table.changing and now - changed_at >= GO_ON_AFTER_S:
            changed_at = now
            yield from _attempt(seal, known)
        elif known.table.draining and now - tidied_at >= TIDY_EVERY_S:
            tidied_at = now
            yield from _attempt(tidy, known)
        yield Sleep(POLL_S)


def _line_up(shared: ShardSlots, known: ShardMap) -> Role:
    """Let the consumers of an ordered queue wait for older jobs in other shards, or let them go on."""
    if not known.ops.settings.ordered:
        return
    waiting = yield from behind(known, known.table)
    for one in shared.members:
        was, one.leasing.blocked_by_older = (
            one.leasing.blocked_by_older,
            isinstance(one.ops, ShardOps) and one.ops.shard.number in waiting,
        )
        if was and not one.leasing.blocked_by_older:
            one.leasing.available = True
            yield Wake(owner=one)


def _attempt(step: Callable[[ShardMap], Step[None]], known: ShardMap) -> Role:
    """Take a step of a change. After any error, another worker may take the step, or this one later."""
    try:
        yield from step(known)
    except Exception as error:
        if isinstance(error, HeadraceError):
            raise
        yield Log("reshard_failed", f"shards of queue {known.ops.keys.queue!r}: {describe_error(error)}")


def _leave(consumer: Consumer) -> Role:
    """End the registration in a removed shard, which has no jobs."""
    consumer.leasing.shard_gone, consumer.leasing.available, consumer.phase = (
        True,
        False,
        max(consumer.phase, Phase.DRAINING),
    )
    yield Wake(owner=consumer)
    while consumer.jobs.held or consumer.leasing.asking or consumer.unsettled():
        yield Sleep(0.05)
    if consumer.registered:
        consumer.registration.registered = False
        yield from send(consumer.ops.leave(consumer.name))
        if isinstance(consumer.ops, ShardOps):
            yield from send(consumer.ops.wipe())
