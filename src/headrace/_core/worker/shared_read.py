"""The roles that block for many consumers in one read. They replace the `wait` role of each
consumer.

A long read waits for all consumers that have nothing to lease, in one part or a few, and is sent
again when it ends. If a consumer runs out of jobs meanwhile, a short read waits for it until the
next long read includes it. A read under way is never cancelled, as the server may just have
delivered a job to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

from attrs import define, field

from headrace._core.effects import BlockAmong, Call, Now, Phase, Role, Sleep, Wake
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import ALONE_AT_MOST
from headrace._protocol.op import Arg
from headrace._protocol.queue_ops import blocked_read, forgotten_read

# queues in one read: it occupies the server for 1 to 3 ms, mostly when it begins
READ_AT_MOST = 1250
# queues in one read that takes half as long; more queues have at least this many reads:
READ_WELL = 500
READS_AT_REST = 2  # besides the connections for calls, heartbeats and Pub/Sub
# seconds that each queue costs, about: 0.8 us, or 2.4 if the server did other work meanwhile
READ_EACH_S = 2e-6
LEAST_S = 0.0005  # seconds between two reads at least: the job that ended a read is leased first
LONG_S = 1.0  # seconds that a long read lasts at most
# seconds that a short read lasts at most, and between two checks whether a consumer waits
SHORT_S = 0.05
# seconds between two searches for jobs that other readers received, and that nobody leased
ORPHANS_EVERY_S = 2.0
LEASED_CHECKS = 10  # pauses at most until the job that ended a read is leased
# longest pause between two reads that end soon after each other, in `READ_EACH_S` of each queue
PAUSE_AT_MOST = 5


@define(eq=False)
class SharedRead:
    consumers: Sequence[Consumer]
    woken: deque[Consumer] = field(factory=deque[Consumer])  # consumers that may wait now
    in_read: set[int] = field(factory=set[int])  # consumers in long reads, by identity

    @property
    def running(self) -> bool:
        return (
            next(
                (one for one in self.consumers if not one.leasing.shard_gone), self.consumers[0]
            ).phase
            is Phase.RUNNING
        )

    def take_in(self, consumer: Consumer) -> bool:
        """Record that a consumer was woken. Return true if the short read should wait for it. Any
        thread may call this.
        """
        if consumer.leasing.available or not consumer.registered:
            return False
        self.woken.append(consumer)
        return True

    def chunks(self) -> Iterator[Sequence[Consumer]]:
        """Yield the consumers of each long read, in as few parts as possible, of about the same
        size."""
        number = len(self.consumers)
        parts = max(-(-number // READ_AT_MOST), min(-(-number // READ_WELL), READS_AT_REST))
        size = -(-number // parts)
        for at in range(0, len(self.consumers), size):
            yield self.consumers[at : at + size]

    def fresh(self) -> list[Consumer]:
        """List the consumers that began to wait after the long reads began, as many as fit into one
        read."""
        found: dict[int, Consumer] = {}
        for _ in range(len(self.woken)):
            if len(found) == READ_AT_MOST:
                break
            consumer = self.woken.popleft()
            if (
                id(consumer) not in self.in_read
                and not consumer.leasing.paused
                and consumer.waits()
            ):
                found[id(consumer)] = consumer
        return list(found.values())


Place = Callable[[Consumer], Hashable]


def everywhere(_consumer: Consumer) -> None:
    """Return one place for all consumers."""


def by_place(consumers: Sequence[Consumer], place: Place) -> list[list[Consumer]]:
    places: dict[Hashable, list[Consumer]] = {}
    for consumer in consumers:
        places.setdefault(place(consumer), []).append(consumer)
    return list(places.values())


def groups(
    consumers: Sequence[Consumer], place: Place = everywhere
) -> Iterator[SharedRead | Consumer]:
    """Yield consumers. Many consumers of one *place*, such as a primary, share reads, and come as
    one `SharedRead`."""
    for some in by_place(consumers, place):
        if len(some) <= ALONE_AT_MOST:
            yield from some
        else:
            yield SharedRead(some)


def idle(members: Sequence[Consumer]) -> list[Consumer]:
    return [consumer for consumer in members if not consumer.leasing.paused and consumer.waits()]


def wait_for_all(shared: SharedRead, members: Sequence[Consumer]) -> Role:
    pause = 0.0
    searched_at = float("-inf")
    while shared.running:
        now = yield from Now()
        if now - searched_at >= ORPHANS_EVERY_S:
            searched_at = now
            # As all workers are idle, nobody sweeps for jobs that another reader received and did
            # not lease.
            if unswept := [consumer for consumer in idle(members) if consumer.idle.all_idle]:
                yield from _lease_from(
                    unswept, forgotten_read([consumer.ops.keys for consumer in unswept])
                )
        some = idle(members)
        if not some:
            yield Sleep(SHORT_S)
            continue
        began = yield from Now()
        ids = set(map(id, some))
        shared.in_read |= ids
        try:
            found = yield from _read(some, LONG_S)
        finally:
            shared.in_read -= ids
        # During the pause, the job that ended the read is leased. If reads end often, they must not
        # take all the time.
        least = LEAST_S + READ_EACH_S * len(some)
        most = max(least, PAUSE_AT_MOST * READ_EACH_S * len(some))
        soon = (yield from Now()) - began < 2 * most
        pause = min(most, 2 * pause) if soon and pause else least
        yield Sleep(pause)
        # the server would run the read before the lease call, which takes longer
        for _ in range(LEASED_CHECKS):
            if not any(one.leasing.woken or one.leasing.asking for one in found):
                break
            yield Sleep(least)
    yield Wake()


def wait_new(shared: SharedRead) -> Role:
    while shared.running:
        if some := shared.fresh():
            yield from _read(some, SHORT_S)
            shared.woken.extend(some)
        else:
            yield Sleep(LONG_S)


def wait_for_resumed(shared: SharedRead, members: Sequence[Consumer]) -> Role:
    """Block for consumers of *members* whose queue is paused, until a queue is resumed. Check all
    each second."""
    while shared.running:
        some = [consumer for consumer in members if consumer.leasing.paused and consumer.waits()]
        if some:
            yield from _read(some, LONG_S, paused=True)
        else:
            yield Sleep(LONG_S / 2)


def _read(
    some: Sequence[Consumer], seconds: float, *, paused: bool = False
) -> Call[Collection[Consumer]]:
    """Block until one of these queues has something. Wake its consumer to lease it. Return the
    woken consumers. If the queues are *paused*, wake all their consumers in any case.
    """
    command = blocked_read([consumer.ops.keys for consumer in some], seconds, paused=paused)
    return (yield from _lease_from(some, command, everything=paused))


def _lease_from(
    some: Sequence[Consumer], command: tuple[Arg, ...], *, everything: bool = False
) -> Call[Collection[Consumer]]:
    whose = {
        consumer.ops.keys.key(name): consumer for consumer in some for name in ("jobs", "wake")
    }
    found = yield from BlockAmong(command, whose)
    theirs = some if everything else {id(whose[key]): whose[key] for key in found}.values()
    for consumer in theirs:
        consumer.leasing.woken = consumer.leasing.available = True
        yield Wake(owner=consumer)
    return theirs
