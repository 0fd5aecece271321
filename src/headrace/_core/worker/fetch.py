"""The roles that lease and settle: `fetch` does both in one round trip, `wait` blocks while there is nothing.

A job is leased only if it can start soon. A lease is settled once. When the worker stops, jobs that have not started go
back to the front of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from headrace._core.effects import (
    Abort,
    Block,
    BlockThen,
    Bury,
    HeldJob,
    Log,
    Now,
    Phase,
    Role,
    Sleep,
    Start,
    Step,
    TakeBack,
    Wake,
    send,
    send_all,
)
from headrace._core.verdicts import Settlement, SettlementBatch, alike, undecoded
from headrace._core.worker.company import depart, joined
from headrace._core.worker.consumer import IDLE_S, Consumer
from headrace._core.worker.idle import AGAIN_S, ALL_IDLE, SLACK_S
from headrace._core.worker.renewal import check, died, lose
from headrace._protocol.limits import BLOCK_S, JOBS_PER_SCRIPT
from headrace._protocol.op import Op, TooLarge
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Grant, Verdicts

TAKE_BACK_AFTER_S = 1.0  # seconds without a free slot after which waiting batches go back to the queue
PAUSED_S = 1.0  # the same while the queue is paused: the queue may be resumed between two such reads


def fetch(consumer: Consumer) -> Role:
    """Lease and settle until everything is settled and the worker stops."""
    while True:
        if consumer.phase >= Phase.DRAINING:
            yield from _recall(consumer)
            busy = consumer.jobs.held or consumer.unsettled() or consumer.leasing.piggybacked
            if consumer.phase >= Phase.HALTING or not busy:
                break
        idle = yield from _exchange(consumer)
        if idle is not None:
            yield Sleep(idle)
    if consumer.shared is not None:
        consumer.shared.leave(consumer)  # this consumer leases no more, so no other consumer may wait behind it
    while (last := settlements(consumer)).ops:
        yield from _settled(consumer, last, last.ops)


def _exchange(consumer: Consumer) -> Step[float | None]:
    """Lease and settle once. If neither is possible, return the seconds to sleep, unless woken.

    A function of its own, as the role would keep leased and settled jobs in memory while it sleeps.
    """
    if consumer.company.suspect is not None:
        yield from depart(consumer)
    settling = settlements(consumer)
    if consumer.shared is not None:
        consumer.shared.now = yield from Now()
    room = _room(consumer)
    if not settling.ops and room <= 0:
        return (yield from _idle(consumer))
    ops: list[Op[Any]] = list(settling.ops)
    name, woken, losses_told = consumer.name, consumer.leasing.woken, consumer.leasing.losses_told
    if room > 0:
        consumer.leasing.woken = False
        ops += consumer.leave_idle()
        predecessor = consumer.registration.name_claim.predecessor
        ops.append(consumer.ops.lease(name, room, woken=woken, kind=HeldJob, predecessor=predecessor))
        consumer.leasing.asking += room
    asked = yield from Now()
    consumer.leasing.asked_at = asked
    try:
        replies = yield from _settled(consumer, settling, ops)
    finally:
        consumer.leasing.asking -= max(0, room)
    if not replies:
        consumer.leasing.woken = woken
    elif room > 0:
        yield from _granted(consumer, replies[-1], room, name, woken, losses_told, asked)
        if not consumer.leasing.available:
            yield Wake()  # `wait` may block now
    if consumer.timers.tend_soon:
        yield from consumer.tend()
    if (soonest := settling.next_due) is not None:
        consumer.expect((yield from Now()), soonest)
    yield from _gather(consumer)
    return None


def _settled(consumer: Consumer, settling: SettlementBatch, ops: Sequence[Op[Any]]) -> Step[list[Any]]:
    """Send settlements and the other *ops*. Return the replies; none if a value was too large."""
    consumer.jobs.under_way.append(settling)
    consumer.leasing.sending += 1
    if consumer.shared is not None and (other := consumer.shared.next()) is not None:
        yield Wake(whose=other)  # slots may be left for this consumer
    try:
        replies = yield from send_all(ops)
    except TooLarge as error:
        if all(verdict.largest <= error.limit for verdict in settling.verdicts):
            raise
        consumer.jobs.under_way.remove(settling)
        consumer.refused(settling, error)
        return []
    finally:
        consumer.leasing.sending -= 1
    consumer.jobs.under_way.remove(settling)
    for op, verdicts in zip(settling.ops, replies, strict=False):
        consumer.jobs.lost += verdicts.count(False)
        rest = op.items[len(verdicts) :]  # the script had no room for these settlements
        consumer.jobs.done.extendleft(reversed(rest))
        if isinstance(verdicts, Verdicts) and (others := consumer.answered(op.items, verdicts)):
            yield Bury(others)
    return replies


def settlements(consumer: Consumer) -> SettlementBatch:
    """Take the settlements to send, and make operations of them."""
    plain = [consumer.jobs.completed.popleft() for _ in range(min(len(consumer.jobs.completed), JOBS_PER_SCRIPT))]
    ops = [consumer.ops.complete(list(some)) for _, some in groupby(plain, key=attrgetter("worker"))]
    verdicts = [consumer.jobs.done.popleft() for _ in range(min(len(consumer.jobs.done), JOBS_PER_SCRIPT))]
    groups: dict[Any, list[Settlement]] = {}
    for verdict in verdicts:
        groups.setdefault(alike(verdict), []).append(verdict)
    for some in groups.values():
        ops += consumer.operations(some)
    if ops and consumer.ops.settings.ordered and not consumer.leasing.paused:
        consumer.leasing.available = True  # the next job of a key can be leased in the same round trip
    return SettlementBatch(plain, verdicts, ops)


def wait(consumer: Consumer) -> Role:
    """Block until a job arrives, as long as slots are free; then lease it."""
    while consumer.phase is Phase.RUNNING:
        if not consumer.waits():
            yield Sleep(1.0)
            if consumer.shared is not None:
                consumer.shared.now = yield from Now()
            continue
        if limit := consumer.piggyback_limit():
            woken = yield from _piggyback(consumer, limit)
        else:
            paused = consumer.leasing.paused
            woken = (yield from Block(consumer.ops.wait(PAUSED_S if paused else BLOCK_S, paused=paused))) or paused
        if woken and not consumer.leasing.left:  # or the queue may have been resumed
            consumer.leasing.woken = consumer.leasing.available = True
            yield Wake()
    yield Wake()


def blocks(consumer: Consumer) -> bool:
    """Tell whether `wait` may block, or end. A lease call with fewer jobs than it asked for leads to this."""
    return not consumer.leasing.available or consumer.phase is not Phase.RUNNING


def _piggyback(consumer: Consumer, limit: int) -> Step[bool]:
    """Block, with a lease call behind the read. Return true if the read found something, but no job was leased."""
    name, losses_told = consumer.name, consumer.leasing.losses_told
    consumer.leasing.piggybacked = limit
    try:
        woken, grant = yield from _piggyback_op(consumer, limit)
        if grant is None or not (grant.claims or grant.undecodable):  # `fetch` receives the rest of this answer, too
            return woken
        consumer.leasing.available = True  # undone if the answer has fewer jobs than asked for
        yield from _granted(consumer, grant, limit, name, True, losses_told)
        if consumer.leasing.stuck:  # the slots became stuck while this call waited
            yield from _unburden(consumer)
    finally:
        consumer.leasing.piggybacked = 0
    ahead = len(consumer.jobs.held) > consumer.slots()  # ahead of a slot: `fetch` checks whether a slot becomes free
    if ahead or consumer.leasing.available or consumer.unsettled() or grant.next_due is not None:
        yield Wake()
    return False


def _piggyback_op(consumer: Consumer, limit: int) -> BlockThen:
    """Return the operation that `_piggyback` sends, the last one if possible: this saves time for an arriving job."""
    made = consumer.leasing.last_piggyback.get((consumer.name, limit))
    if made is None:
        op, again = (consumer.ops.lease(consumer.name, most, woken=2, kind=HeldJob) for most in (limit, 1))
        made = BlockThen(consumer.ops.wait(BLOCK_S), op, again, partial(_untaken, consumer.ops))
        consumer.leasing.last_piggyback = {(consumer.name, limit): made}
    return made


def _untaken(ops: Ops, grant: Grant | None) -> Op[Any] | None:
    """Return the operation that releases granted jobs that were not taken; `None` if all were taken."""
    claims = [] if grant is None else [*grant.claims, *(claim for claim, _ in grant.undecodable)]
    return ops.release(claims) if claims else None


def _rest(consumer: Consumer) -> Role:
    """Register an idle queue for a long time. No lease call is under way, as only this role sends them."""
    idle, name = consumer.idle, consumer.name
    seconds, idle.asked = idle.asked, 0.0
    if not consumer.may_idle():
        idle.try_at = 0.0
        return
    began, idle.on = idle.on, True  # set this before the check for a beat under way: the beat would undo it
    if idle.beating and not began:
        idle.on, idle.try_at, consumer.timers.sweep_at = False, 0.0, 0.0  # the next sweep, a tick from now, asks again
        return
    activity = idle.activity
    verdict = yield from send(consumer.ops.rest(name, seconds + SLACK_S))
    now = yield from Now()
    if consumer.name != name:
        return
    idle.try_at = now + AGAIN_S
    if verdict < 0:
        yield from died(consumer)
    elif verdict == 0:
        idle.on = idle.all_idle = False
        consumer.timers.sweep_at = 0.0
    elif verdict == ALL_IDLE:
        idle.all_idle, consumer.timers.sweep_at = True, now + seconds
        if idle.activity != activity:
            consumer.note_activity()


def _room(consumer: Consumer) -> int:
    """Return how many jobs to lease now."""
    shared = consumer.shared
    if consumer.alone and not (consumer.jobs.held or consumer.jobs.under_way):
        consumer.company.waiting.discard(id(consumer))
        consumer.leasing.available = True
    if consumer.alone or not (consumer.leasing.available and consumer.may_lease()):
        if shared is not None:
            shared.leave(consumer)
        return 0
    if (consumer.leasing.asking or consumer.leasing.piggybacked) and consumer.handler.concurrency == 1:
        return 0  # two lease calls at a time may be answered in either order, and one slot promises order
    return consumer.room() if shared is None else min(consumer.room(), shared.share(consumer, consumer.free()))


def _idle(consumer: Consumer) -> Step[float]:
    """Do the other work of the role while it has nothing to send. Return the seconds to sleep, unless woken."""
    if consumer.idle.asked:
        yield from _rest(consumer)
    soon = consumer.jobs.held or consumer.company.suspect is not None
    left = (yield from _gather(consumer)) or (1.0 if soon else IDLE_S)
    now = yield from Now()
    if consumer.shared is not None:
        left = min(left, consumer.shared.look(consumer, now))
        if (other := consumer.shared.next()) not in (None, consumer):
            yield Wake(whose=other)  # the other consumer waits for slots that this one does not need
    if consumer.timers.due_at is not None:
        if consumer.timers.due_at <= now:
            consumer.timers.due_at, consumer.leasing.available = None, True
            consumer.company.waiting.discard(id(consumer))
            if consumer.shared is not None or consumer.room() > 0:  # for a shared slot it waits for its turn
                return 0.0
        else:
            left = min(left, consumer.timers.due_at - now)
    slow = not consumer.leasing.stuck and consumer.jobs.held and now - consumer.jobs.slot_moved_at >= TAKE_BACK_AFTER_S
    return 0.0 if slow and (yield from _unburden(consumer)) else left


def _unburden(consumer: Consumer) -> Step[bool]:
    """Give back jobs that wait for a slot, if any: slow handlers hold all slots, and other workers may have free ones.
    Lease nothing until a slot is freed; lease at once if no slot is taken, as a busy machine has started no handler.
    True if jobs were returned.
    """
    consumer.stick()  # first: a slot that becomes free from here on undoes this
    units, others = yield from TakeBack()
    consumer.give_back(units)
    if not (units and others):
        consumer.slot_freed()
    return bool(units)


def _granted(
    consumer: Consumer, grant: Grant | None, asked: int, name: str, woken: bool, losses_told: int,
    since: float | None = None,
) -> Role:  # fmt: skip
    """Process the answer to a lease call. The call was sent at *since* (`None`: it ran just now), under *name*, when
    *losses_told* messages had told of lost leases.
    """
    if grant is None:
        if name == consumer.name:  # otherwise the consumer has been renamed already
            yield from died(consumer)
        return
    yield from consumer.prepare(grant.claims)
    now = yield from Now()
    fresh = cast("Sequence[HeldJob]", grant.claims)
    if over := _hold(consumer, fresh, now):
        yield from lose(consumer, over)
    if name != consumer.name:  # we were declared dead while the answer was on its way: peers have put these jobs back
        yield from lose(consumer, fresh)
        return
    if consumer.leasing.losses_told != losses_told:  # the lost leases may be of these jobs
        yield from check(consumer, fresh)
    for claim, reason in grant.undecodable:
        held = cast("HeldJob", claim)
        consumer.settle(held, undecoded(held, reason))
    if grant.levels is not None and grant.levels != consumer.leasing.levels_told:
        consumer.leasing.levels_told = grant.levels
        yield Log("levels_unknown", _unknown(consumer.ops, grant.levels))
    consumer.company.note(consumer, grant)
    # If the server says that we hold a job, and we do not, its answer to an earlier call was lost.
    consumer.leasing.paused = grant.paused or grant.alone > consumer.alone
    if not grant.paused or grant.claims:
        consumer.registration.name_claim.predecessor = ""
    if grant.next_due is not None:  # counted from the moment of sending: the next call takes as long
        consumer.expect(now if since is None else since, grant.next_due)
    consumer.leasing.backlog = not grant.alone and (len(grant.claims) + len(grant.undecodable) >= asked or grant.more)
    if not consumer.leasing.backlog:
        consumer.leasing.available = False
        if woken and not grant.claims:
            consumer.timers.tick_at = 0.0  # a new schedule may have woken us
    yield from _share(consumer, (yield from joined(consumer, consumer.admit(fresh), grant.alone_for)), now)


def _unknown(ops: Ops, levels: int) -> str:
    known = ops.settings.priorities
    return (
        f"queue {ops.keys.queue!r} has {levels} priority levels, and this worker knows {known}: jobs of others wait "
        f"for a worker with priorities={levels}"
    )


def _hold(consumer: Consumer, fresh: Sequence[HeldJob], now: float) -> list[HeldJob]:
    """Hold leased jobs. Return earlier deliveries of the same jobs: these lost their leases, and were leased again."""
    over: list[HeldJob] = []
    for held in fresh:
        held.since = now
        if (other := consumer.jobs.held.get(held.entry)) is None:
            consumer.jobs.held[held.entry] = held
        else:
            earlier, consumer.jobs.held[held.entry] = sorted((other, held), key=attrgetter("token"))
            over.append(earlier)
    return over


def _share(consumer: Consumer, fresh: Sequence[HeldJob], now: float) -> Role:
    """Give jobs to slots, or gather them for a batch."""
    if consumer.handler.batch:
        if not consumer.jobs.gathered:
            consumer.timers.full_at = now + consumer.handler.max_wait
        consumer.jobs.gathered += fresh
    elif fresh:
        consumer.jobs.slot_moved_at = now
        yield Start([[held] for held in fresh])


def _gather(consumer: Consumer) -> Step[float | None]:
    """Start the batches that are full, or old enough. Return the seconds until the next batch is old enough."""
    if not consumer.jobs.gathered:
        return None
    now = yield from Now()
    size = consumer.handler.max_size
    units: list[list[HeldJob]] = []
    consumer.jobs.gathered = [held for held in consumer.jobs.gathered if not held.ended]
    while len(consumer.jobs.gathered) >= size:
        units.append(consumer.jobs.gathered[:size])
        consumer.jobs.gathered = consumer.jobs.gathered[size:]
    if units:
        consumer.timers.full_at = now + consumer.handler.max_wait  # the remaining jobs came just now
    left: float | None = None
    if consumer.jobs.gathered:
        left = consumer.timers.full_at - now
        if left <= 0:
            units.append(consumer.jobs.gathered)
            consumer.jobs.gathered, left = [], None
    if units:
        consumer.jobs.slot_moved_at = now
        yield Start(units)
    return None if left is None else max(left, 0.001)


def _recall(consumer: Consumer) -> Role:
    """Give back the jobs that have not started, and tell persistent ones that the worker stops."""
    units, _ = yield from TakeBack()
    consumer.give_back([*units, consumer.jobs.gathered])
    consumer.jobs.gathered = []
    if running := consumer.endless():
        yield Abort(running)
