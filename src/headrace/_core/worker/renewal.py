"""The leases of held jobs. The role `renew` keeps them, and other roles check them or give them up.

A lease is renewed after a third of its duration. The role shares only the consumers' state with the
handlers, so an engine may run it where handlers can't block it. A bound ensures that a worker whose
handlers hang for ever does not keep their jobs for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Abort, HeldJob, Now, Phase, Role, Sleep, Wake, send
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle
from headrace._protocol.limits import CLAIMS_PER_SCRIPT, POLL_S


def renew(worker: Lifecycle, members: Sequence[Consumer] | None = None) -> Role:
    """Renew leases in time. Give up a consumer's jobs if the engine of its handlers has hung for
    too long."""
    consumers = worker.consumers if members is None else members
    tick = min(POLL_S, *(consumer.ops.settings.lease / 6 for consumer in consumers))
    while worker.phase < Phase.HALTING:
        now = yield from Now()
        for consumer in consumers:
            if consumer.jobs.held and worker.stalled(now) >= consumer.stalls_at_most:
                yield from died(consumer)
            # in bounded scripts, each in a round trip of its own
            yield from check(consumer, consumer.renewals(now))
        yield Sleep(tick)


def check(consumer: Consumer, some: Sequence[HeldJob] | None = None) -> Role:
    """Renew *some* or all leases now, to learn which are still ours."""
    mine = [
        held
        for held in (list(consumer.jobs.held.values()) if some is None else some)
        if held.worker == consumer.name and not held.ended
    ]
    for start in range(0, len(mine), CLAIMS_PER_SCRIPT):
        part = mine[start : start + CLAIMS_PER_SCRIPT]
        yield from renewed(consumer, part, (yield from send(consumer.ops.renew(part))))


def renewed(consumer: Consumer, part: Sequence[HeldJob], verdicts: Sequence[bool]) -> Role:
    now = yield from Now()
    for held, kept in zip(part, verdicts, strict=True):
        held.since = now if kept else held.since
    lost = [held for held, kept in zip(part, verdicts, strict=True) if not kept and not held.ended]
    if lost:
        yield from lose(consumer, lost)


def check_named(consumer: Consumer, message: bytes) -> Role:
    """Check the leases that a message names, or all leases for `*`. The message may be wrong, as
    only the server knows.
    """
    consumer.leasing.loss_notices += (
        1  # before the check: jobs that are on their way to us are checked when they arrive
    )
    entries = message.decode("utf-8", "replace").split()
    if "*" in entries:  # the queue was deleted, with its declarations
        declare_again(consumer)
    named = [held for entry in entries if (held := consumer.jobs.held.get(entry))]
    yield from check(consumer, None if "*" in entries else named)


def declare_again(consumer: Consumer) -> None:
    consumer.registration.declared = False
    consumer.timers.sweep_at = 0.0


def lose(consumer: Consumer, gone: Sequence[HeldJob]) -> Role:
    gone = [held for held in gone if not consumer.parts(held)]
    for held in gone:
        consumer.forget(held)
        held.ended = True
        consumer.note("lease_lost", held, None, None)
    yield Abort([held for held in gone if held.started])


def died(consumer: Consumer) -> Role:
    """Start again under a new name, as peers declared the old one dead. Stop its jobs, which run
    elsewhere now."""
    # first: jobs that a call under the old name still brings are then known to be lost
    consumer.rename()
    consumer.note("worker_declared_dead", None, None, None)
    yield from lose(
        consumer,
        [held for held in list(consumer.jobs.held.values()) if held.worker != consumer.name],
    )
    consumer.leasing.available = True
    yield Wake(everyone=True)  # the new name must be registered
