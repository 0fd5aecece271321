"""The roles that lease and settle. `fetch` does both in one round trip, and `wait` blocks while the
queue is empty.

Start reading a worker here. `fetch` repeats one exchange. It settles the jobs that have ended, and
leases as many jobs as can start soon. The engine runs their handlers (`Start`), and reports each
end to `Consumer.finished`, which records a settlement. The engine then wakes `fetch`. Each lease is
settled once. When the worker stops, jobs that have not started go back to the front of the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from attrs import define

from headrace._core.effects import (
    Abort,
    Block,
    BlockThen,
    Call,
    HeldJob,
    Log,
    NoteDead,
    Now,
    Phase,
    Role,
    Sleep,
    Start,
    TakeBack,
    Wake,
    on_behalf,
    send_all,
)
from headrace._core.queue.leasing import untaken
from headrace._core.verdicts import Settlement, SettlementBatch, alike, undecoded
from headrace._core.worker.ahead import spread, with_waiting
from headrace._core.worker.consumer import IDLE_S, Consumer
from headrace._core.worker.idle import enter_idle, leave_idle
from headrace._core.worker.renewal import check, died, lose
from headrace._core.worker.suspects import admitted, let_go_on
from headrace._core.worker.tally import DIED
from headrace._core.worker.terms import note_terms
from headrace._protocol.limits import BLOCK_S, JOBS_PER_SCRIPT, POLL_S
from headrace._protocol.op import Op, TooLarge
from headrace._protocol.replies import Grant, Verdicts

# seconds without a free slot after which waiting batches go back to the queue
TAKE_BACK_AFTER_S = 1.0


@define(eq=False)
class _LeaseCall:
    name: str  # the consumer's; it may have another one when the answer comes
    limit: int  # jobs that the call asks for
    woken: bool  # a blocked read has found something
    loss_notices: int
    sent_at: float | None = None  # `None`: it ran behind a blocked read, just before its answer

    @classmethod
    def of(cls, consumer: Consumer, limit: int, woken: bool) -> _LeaseCall:
        return cls(consumer.name, limit, woken, consumer.leasing.loss_notices)


def fetch(consumer: Consumer) -> Role:
    while True:
        if consumer.phase >= Phase.DRAINING:
            yield from _return_unstarted(consumer)
            busy = consumer.jobs.held or consumer.unsettled() or consumer.leasing.piggybacked
            if consumer.phase >= Phase.HALTING or not busy:
                break
        elif consumer.leasing.quiet:
            yield from _return_waiting(consumer)
        pause = yield from _exchange(consumer)
        if pause is not None:
            yield Sleep(pause)
    if consumer.shared is not None:
        # this consumer leases no more, so no other consumer may wait behind it
        consumer.shared.leave(consumer)
    while (last := settlements(consumer)).ops:
        yield from _send(consumer, last, last.ops)


def _exchange(consumer: Consumer) -> Call[float | None]:
    """Lease and settle in one round trip. If neither is possible, return the seconds to sleep,
    unless woken.

    This is a separate function, because the role would otherwise keep leased and settled jobs in
    memory while it sleeps.
    """
    if consumer.suspects.holder is not None:
        yield from let_go_on(consumer)
    batch = settlements(consumer)
    if consumer.shared is not None:
        consumer.shared.now = yield from Now()
    room = _room(consumer)
    if room > 0 and consumer.leasing.lines:
        room = yield from spread(consumer, room)
    if not batch.ops and room <= 0:
        return (yield from _pause(consumer))
    leasing = consumer.leasing
    ops = list[Op[Any]](batch.ops)
    call = _LeaseCall.of(consumer, room, leasing.woken)
    if room > 0:
        leasing.woken = False
        ops += leave_idle(consumer)
        predecessor = consumer.registration.name_claim.predecessor
        ops.append(consumer.lease(call.name, room, call.woken, predecessor))
        leasing.asking += room
    leasing.asked_at = call.sent_at = yield from Now()
    try:
        replies = yield from _send(consumer, batch, ops)
    finally:
        leasing.asking -= max(0, room)
    if not replies:
        leasing.woken = call.woken
    elif room > 0:
        yield from _granted(consumer, call, replies[-1])
        if not leasing.available:
            yield Wake()  # `wait` may block now
    if consumer.timers.housekeep_soon:
        yield from consumer.housekeep()
    if (soonest := batch.next_due) is not None:
        consumer.expect((yield from Now()), soonest)
    yield from _gather(consumer)
    return None


def _send(consumer: Consumer, batch: SettlementBatch, ops: Sequence[Op[Any]]) -> Call[list[Any]]:
    """Send *ops*, which begin with a batch of settlements. Return the replies, or none if a value
    was too large."""
    consumer.jobs.under_way.append(batch)
    consumer.leasing.sending += 1
    if consumer.shared is not None and (other := consumer.shared.next()) is not None:
        yield Wake(owner=other)  # slots may be left for this consumer
    try:
        replies = yield from send_all(ops)
    except TooLarge as error:
        if all(verdict.largest <= error.limit for verdict in batch.verdicts):
            raise
        consumer.jobs.under_way.remove(batch)
        consumer.refused(batch, error)
        return []
    finally:
        consumer.leasing.sending -= 1
    consumer.jobs.under_way.remove(batch)
    for op, verdicts in zip(batch.ops, replies, strict=False):
        lost = verdicts.count(False)
        consumer.jobs.lost += lost
        fair = consumer.leasing.fair
        path = () if fair is None else fair.queues.path
        consumer.jobs.tally.settled(op.items, verdicts, lost, path)
        # the script had no room for these settlements
        consumer.jobs.done.extendleft(reversed(op.items[len(verdicts) :]))
        if isinstance(verdicts, Verdicts) and (others := consumer.answered(op.items, verdicts)):
            yield NoteDead(others)
    return replies


def settlements(consumer: Consumer) -> SettlementBatch:
    plain = [
        consumer.jobs.completed.popleft()
        for _ in range(min(len(consumer.jobs.completed), JOBS_PER_SCRIPT))
    ]
    ops = [
        consumer.ops.complete(list(some)) for _, some in groupby(plain, key=attrgetter("worker"))
    ]
    verdicts = [
        consumer.jobs.done.popleft() for _ in range(min(len(consumer.jobs.done), JOBS_PER_SCRIPT))
    ]
    groups: dict[Any, list[Settlement]] = {}
    for verdict in verdicts:
        groups.setdefault(alike(verdict), []).append(verdict)
    for some in groups.values():
        ops += consumer.operations(some)
    if ops and consumer.ops.settings.ordered and not consumer.leasing.paused:
        # the next job of a key can be leased in the same round trip
        consumer.leasing.available = True
    return SettlementBatch(plain, verdicts, ops)


def wait(consumer: Consumer) -> Role:
    """Block until a job arrives, as long as slots are free. Then lease it."""
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
            woken = (
                yield from Block(consumer.ops.wait(POLL_S if paused else BLOCK_S, paused=paused))
            ) or paused
        if woken and not consumer.leasing.shard_gone:  # or the queue may have been resumed
            consumer.leasing.woken = consumer.leasing.available = True
            yield Wake()
    yield Wake()


def blocks(consumer: Consumer) -> bool:
    """Tell whether `wait` may block, or end. A lease call with fewer jobs than it asked for leads
    to this."""
    return not consumer.leasing.available or consumer.phase is not Phase.RUNNING


def lines_up(consumer: Consumer) -> bool:
    """Tell whether the role `line_up` has terms to declare, or new jobs to look at, or the worker
    stops."""
    fair = consumer.leasing.fair
    return fair is not None and (
        fair.undeclared or fair.unread or consumer.phase is not Phase.RUNNING
    )


def _piggyback(consumer: Consumer, limit: int) -> Call[bool]:
    """Block, with a lease call behind the read. Return true if the read found something, but no job
    was leased."""
    call = _LeaseCall.of(consumer, limit, woken=True)
    consumer.leasing.piggybacked = limit
    try:
        woken, grant = yield from _piggyback_op(consumer, limit)
        # `fetch` receives the rest of this answer, too
        if grant is None or not (grant.claims or grant.undecodable):
            return woken
        yield from _received(consumer, call, grant)
    finally:
        consumer.leasing.piggybacked = 0
    return False


def _received(consumer: Consumer, call: _LeaseCall, grant: Grant | None) -> Role:
    consumer.leasing.available = True  # undone if the answer has fewer jobs than asked for
    yield from _granted(consumer, call, grant)
    if consumer.leasing.saturated:  # since this call was sent
        yield from _return_surplus(consumer)
    consumer.leasing.piggybacked = 0
    # ahead of a slot: `fetch` checks whether a slot becomes free
    ahead = len(consumer.jobs.held) > consumer.slots()
    nothing = grant is None or not grant.claims or grant.next_due is not None
    if ahead or consumer.leasing.available or consumer.unsettled() or nothing:
        yield Wake()


def lease_found(found: Iterable[Consumer]) -> Call[list[Consumer]]:
    """Lease what a read of several queues has found, in one round trip. Return the consumers whose
    `fetch` must lease instead.
    """
    # A batch, shards that share slots, terms and the end of idle mode take more than one call. So
    # `fetch` alone leases for these, and for a consumer that has another call under way.
    others: list[Consumer] = []
    calls: list[tuple[Consumer, _LeaseCall]] = []
    now = yield from Now()
    for consumer in found:
        leasing = consumer.leasing
        # no room for jobs that become due, unlike behind a blocked read: the call is a short one
        limit = consumer.room() if consumer.waits() and consumer.piggyback_limit() else 0
        # Before the checks: `fetch` checks the other way round, so in threads they never lease at
        # the same time.
        leasing.piggybacked = limit
        if limit > 0 and not (
            leasing.available or leasing.asking or leasing.lines or consumer.idle.on
        ):
            call = _LeaseCall(consumer.name, limit, True, leasing.loss_notices, now)
            calls.append((consumer, call))
        else:
            leasing.piggybacked = 0
            others.append(consumer)
    try:
        if calls:
            ops = [one.lease(call.name, call.limit, woken=True) for one, call in calls]
            for (one, call), grant in zip(calls, (yield from send_all(ops)), strict=True):
                yield from on_behalf(one, _received(one, call, grant))
    finally:
        # also those whose answer never came
        for one, _ in calls:
            one.leasing.piggybacked = 0
    return others


def _piggyback_op(consumer: Consumer, limit: int) -> BlockThen:
    last = consumer.leasing.last_piggyback
    key = (consumer.name, limit, consumer.suspects.may_come(consumer))
    if key not in last:
        op, again = (consumer.lease(consumer.name, most, 2) for most in (limit, 1))
        last.clear()
        last[key] = BlockThen(consumer.ops.wait(BLOCK_S), op, again, partial(untaken, consumer.ops))
    return last[key]


def _room(consumer: Consumer) -> int:
    shared = consumer.shared
    if not (consumer.leasing.available and consumer.may_lease()):
        if shared is not None:
            shared.leave(consumer)
        return 0
    if (consumer.leasing.asking or consumer.leasing.piggybacked) and consumer.concurrency == 1:
        # two lease calls at a time may be answered in either order, and one slot promises order
        return 0
    return (
        consumer.room()
        if shared is None
        else min(consumer.room(), shared.share(consumer, consumer.free()))
    )


def _pause(consumer: Consumer) -> Call[float]:
    """Do the other work of the role while it has nothing to send. Return the seconds to sleep,
    unless woken."""
    shared = consumer.shared
    timers = consumer.timers
    if consumer.idle.asked:
        yield from enter_idle(consumer)
    left = (yield from _gather(consumer)) or (1.0 if consumer.jobs.held else IDLE_S)
    now = yield from Now()
    fair = consumer.leasing.fair
    if fair is not None and (pause := fair.spread.pause(now)) is not None:
        left = min(left, pause)
    if consumer.suspects.until and consumer.suspects.holder is consumer:
        left = min(left, max(0.001, consumer.suspects.until - now))
    if shared is not None:
        left = min(left, shared.recheck_after(consumer, now))
        if (other := shared.next()) not in (None, consumer):
            # the other consumer waits for slots that this one does not need
            yield Wake(owner=other)
    if timers.due_at is not None and timers.due_at > now:
        left = min(left, timers.due_at - now)
    elif timers.due_at is not None:
        timers.due_at = None
        consumer.leasing.available = True
        if shared is not None or consumer.room() > 0:  # for a shared slot it waits for its turn
            return 0.0
    slots_busy = consumer.jobs.held and not consumer.leasing.saturated
    slow = slots_busy and now - consumer.jobs.slot_moved_at >= TAKE_BACK_AFTER_S
    return 0.0 if slow and (yield from _return_surplus(consumer)) else left


def _return_surplus(consumer: Consumer) -> Call[bool]:
    """Give back jobs that wait for a slot, if any. Slow handlers hold all slots, and other workers
    may have free ones. Lease nothing until a slot is freed. Lease at once if no slot is taken, as a
    busy machine has started no handler. Return true if jobs were returned.
    """
    consumer.wait_for_slot()  # first: a slot that becomes free from here on undoes this
    units, others_started = yield from TakeBack()
    consumer.give_back(units)
    if not (units and others_started):
        consumer.slot_freed()
    return bool(units)


def _granted(consumer: Consumer, call: _LeaseCall, grant: Grant | None) -> Role:
    if grant is None:
        if call.name == consumer.name:  # otherwise the consumer has been renamed already
            yield from died(consumer)
        return
    yield from consumer.prepare(grant.claims)
    now = yield from Now()
    leased = cast("Sequence[HeldJob]", grant.claims)
    if earlier := _hold(consumer, leased, now):
        yield from lose(consumer, earlier)
    # we were declared dead meanwhile, and peers have put these jobs back
    if call.name != consumer.name:
        yield from lose(consumer, leased)
        return
    if consumer.leasing.loss_notices != call.loss_notices:  # the lost leases may be of these jobs
        yield from check(consumer, leased)
    for letter in grant.died:
        consumer.jobs.tally.row(letter.kind)[DIED] += 1
    for claim, reason in grant.undecodable:
        held = cast("HeldJob", claim)
        consumer.settle(held, undecoded(held, reason))
    if (fair := consumer.leasing.fair) is not None and call.sent_at is not None:
        fair.call_s += 0.2 * (now - call.sent_at - fair.call_s)
    if grant.structure is not None or grant.unread:
        yield from note_terms(consumer, grant)
        if grant.elsewhere:  # the next call is for the other script
            return
    if grant.levels is not None and grant.levels != consumer.leasing.levels_logged:
        consumer.leasing.levels_logged = grant.levels
        yield Log(
            "levels_unknown",
            f"queue {consumer.ops.keys.queue!r} has {grant.levels} priority levels, and this worker knows "
            f"{consumer.ops.settings.priorities}: jobs of others wait for a worker with priorities={grant.levels}",
        )
    _note_queue(consumer, call, grant, now)
    yield from _start(consumer, leased, now)


def _note_queue(consumer: Consumer, call: _LeaseCall, grant: Grant, now: float) -> None:
    consumer.leasing.paused = grant.paused
    if not grant.paused or grant.claims:
        consumer.registration.name_claim.predecessor = ""
    # counted from the moment of sending: the next call takes as long
    if grant.next_due is not None:
        consumer.expect(now if call.sent_at is None else call.sent_at, grant.next_due)
    number = len(grant.claims) + len(grant.undecodable)
    consumer.leasing.backlog = number >= call.limit or grant.more
    if not consumer.leasing.backlog:
        # a read may have found a job since this call was sent
        consumer.leasing.available = consumer.leasing.woken
        if call.woken and not grant.claims:
            consumer.timers.tick_at = 0.0  # a new schedule may have woken us


def _hold(consumer: Consumer, fresh: Sequence[HeldJob], now: float) -> list[HeldJob]:
    """Hold leased jobs. Return earlier deliveries of the same jobs, which lost their leases, and
    were leased again.

    Answers of two calls may come in either order, so the server's time decides. A token alone does
    not. It goes back if a foreign command destroys the consumer group, and the same entries are
    delivered again.
    """
    over: list[HeldJob] = []
    for held in fresh:
        held.since = now
        if (other := consumer.jobs.held.get(held.entry)) is None:
            consumer.jobs.held[held.entry] = held
        else:
            earlier, consumer.jobs.held[held.entry] = sorted(
                (other, held), key=attrgetter("leased_at", "token")
            )
            over.append(earlier)
    return over


def _start(consumer: Consumer, leased: Sequence[HeldJob], now: float) -> Role:
    fresh = consumer.admit(leased)
    for admission in consumer.leasing.admissions:
        fresh = yield from admission(fresh)
    fresh = yield from admitted(consumer, fresh)
    if consumer.leasing.quiet:  # since this call was sent
        consumer.give_back([fresh])
    elif consumer.handler.batch:
        if not consumer.jobs.gathered:
            consumer.timers.full_at = now + consumer.handler.max_wait
        consumer.jobs.gathered += fresh
    elif fresh:
        consumer.jobs.slot_moved_at = now
        yield Start((yield from with_waiting(consumer, [[held] for held in fresh])))


def _gather(consumer: Consumer) -> Call[float | None]:
    """Start the batches that are full, or old enough. Return the seconds until the next batch is
    old enough."""
    if not consumer.jobs.gathered:
        return None
    now = yield from Now()
    batches = _batches(consumer, [held for held in consumer.jobs.gathered if not held.ended])
    units = [batch for batch in batches if len(batch) == consumer.handler.max_size]
    others = [batch for batch in batches if len(batch) < consumer.handler.max_size]
    if units and not (consumer.handler.same and others):  # the other values wait for longer
        # the remaining jobs came just now
        consumer.timers.full_at = now + consumer.handler.max_wait
    left = consumer.timers.full_at - now
    if left <= 0:
        units = [*units, *others]
        others = []
    consumer.jobs.gathered = [held for batch in others for held in batch]
    if units:
        consumer.jobs.slot_moved_at = now
        yield Start(units)
    return max(left, 0.001) if others else None


def _batches(consumer: Consumer, gathered: list[HeldJob]) -> list[list[HeldJob]]:
    """Divide jobs into batches, in their order, each with jobs of one value if the handler asks for
    that."""
    handler = consumer.handler
    size = handler.max_size
    values: dict[object, list[HeldJob]] = {} if handler.same else {None: gathered}
    for held in gathered if handler.same else ():
        values.setdefault(handler.fair_value(held.job), []).append(held)
    return [some[at : at + size] for some in values.values() for at in range(0, len(some), size)]


def _return_waiting(consumer: Consumer) -> Role:
    units, _ = yield from TakeBack()
    consumer.give_back([*units, consumer.jobs.gathered])
    consumer.jobs.gathered = []


def _return_unstarted(consumer: Consumer) -> Role:
    yield from _return_waiting(consumer)
    if running := consumer.endless():
        yield Abort(running)
