"""The roles that a worker has for sharded queues, and the slots that its shards share.

`follow` follows the table of a queue's shards. It serves new shards, and leaves removed shards. It
also continues a change of the number of shards, if the client that began the change has stopped.
`hand` sends the jobs in outboxes to other shards, whichever worker or caller left them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from attrs import define, field

from headrace._core.effects import Call, Join, Log, Now, Phase, Role, Sleep, Wake, send
from headrace._core.shards.map import ShardMap
from headrace._core.shards.reshard import behind, gather_schedule, seal, tidy
from headrace._core.shards.transfer import Targets, hand_over
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.idle import AGAIN_S
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.roles import NamedRole
from headrace._core.worker.shared_read import Place, by_place
from headrace._core.worker.slots import SharedSlots, leads
from headrace._protocol.limits import LOG_AGAIN_S, POLL_S
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps
from headrace.errors import HeadraceError, describe_error

GO_ON_AFTER_S = 5.0  # seconds without progress, after which this worker continues a change


@define(eq=False)
class ShardSlots(SharedSlots):
    map: ShardMap = field(kw_only=True)  # its members are the consumers of these shards
    make: Callable[[Ops], Consumer] = field(kw_only=True)  # makes the consumer of another shard

    def takes_schedules(self, ops: Ops) -> bool | None:
        state = self.map.state_of(ops.shard) if isinstance(ops, ShardOps) else "open"
        return None if state in {None, "opening"} else state != "draining"

    def gather_schedule(self, ops: Ops, name: str) -> Call[None]:
        if isinstance(ops, ShardOps):
            yield from gather_schedule(self.map, ops, name)


def slots_of(consumer: Consumer) -> ShardSlots | None:
    return consumer.shared if isinstance(consumer.shared, ShardSlots) else None


def follow(worker: Lifecycle, consumer: Consumer) -> Role:
    """Read the table again and again (write it if it is missing), and serve its shards.

    Raises `ShardsMismatch`, which ends the worker, if the queue never had the worker's number of
    shards.
    """
    shared = slots_of(consumer)
    if shared is None:
        return
    known = shared.map
    make = shared.make
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
        elif known.table.draining and now - tidied_at >= 60.0:  # looks for empty shards
            tidied_at = now
            yield from _attempt(tidy, known)
        yield Sleep(POLL_S)


def _line_up(shared: ShardSlots, known: ShardMap) -> Role:
    if not known.ops.settings.ordered:
        return
    waiting = yield from behind(known, known.table)
    for one in shared.members:
        was = one.leasing.blocked_by_older
        one.leasing.blocked_by_older = (
            isinstance(one.ops, ShardOps) and one.ops.shard.number in waiting
        )
        if was and not one.leasing.blocked_by_older:
            one.leasing.available = True
            yield Wake(owner=one)


def _attempt(step: Callable[[ShardMap], Call[None]], known: ShardMap) -> Role:
    try:
        yield from step(known)
    except Exception as error:
        if isinstance(error, HeadraceError):
            raise
        yield Log(
            "reshard_failed", f"shards of queue {known.ops.keys.queue!r}: {describe_error(error)}"
        )


def _leave(consumer: Consumer) -> Role:
    consumer.leasing.shard_gone = True
    consumer.leasing.available = False
    consumer.phase = max(consumer.phase, Phase.DRAINING)
    yield Wake(owner=consumer)
    while consumer.jobs.held or consumer.leasing.asking or consumer.unsettled():
        yield Sleep(0.05)
    if consumer.registered:
        consumer.registration.registered = False
        yield from send(consumer.ops.leave(consumer.name))
        if isinstance(consumer.ops, ShardOps):
            yield from send(consumer.ops.wipe())


def hand(worker: Lifecycle, consumers: Sequence[Consumer]) -> Role:
    """Send the jobs in the outboxes of these shards, once a heartbeat. Poll less often in idle
    mode, as workers give notice before they complete jobs.
    """
    queues: dict[int, tuple[ShardSlots, list[Consumer], Targets]] = {}
    for consumer in consumers:
        if (shared := slots_of(consumer)) is not None:
            queues.setdefault(id(shared), (shared, [], Targets()))[1].append(consumer)
    said_at = all_at = looked_at = float("-inf")
    while worker.phase < Phase.HALTING:
        wrong: list[str] = []
        now = yield from Now()
        # the role was woken early, as all roles were
        if (left := looked_at + worker.settings.heartbeat - now) > 0:
            yield Sleep(left)
            continue
        looked_at = now
        every = now - all_at >= AGAIN_S
        all_at = now if every else all_at
        for shared, some, targets in queues.values():
            there = [
                one
                for one in some
                if not one.leasing.shard_gone and (every or not one.idle.all_idle)
            ]
            outboxes = [one.ops for one in there if isinstance(one.ops, ShardOps)]
            if outboxes:
                wrong += yield from hand_over(shared.map, outboxes, targets)
        if wrong and now - said_at >= LOG_AGAIN_S:
            said_at = now
            yield Log("handing_failed", f"jobs wait in the outbox of their shard: {wrong[0]}")
        yield Sleep(worker.settings.heartbeat)


def shard_roles(
    worker: Lifecycle, consumers: Sequence[Consumer], place: Place
) -> Iterator[NamedRole]:
    sharded = [consumer for consumer in consumers if slots_of(consumer) is not None]
    for group in by_place(sharded, place):
        yield "hand", hand(worker, group), None, "work"
    for consumer in sharded:
        if leads(consumer):
            yield "table", follow(worker, consumer), None, "work"
