"""The roles that block for many consumers in one read. They replace the `wait` role of each
consumer.

A long read waits for all consumers that have nothing to lease, in one part or a few. Its role
leases what it has found, for all its queues in one round trip, and then sends it again. If a
consumer runs out of jobs meanwhile, a short read waits for it until the next long read includes it.
A read under way is never cancelled, as the server may just have delivered a job to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

from attrs import define, field

from headrace._core.effects import BlockAmong, Call, Now, Phase, Role, Sleep, Wake
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.fetch import lease_found
from headrace._core.worker.lifecycle import ALONE_AT_MOST
from headrace._protocol.op import Arg
from headrace._protocol.queue_ops import blocked_read, forgotten_read

# queues in one read: it occupies the server for 1 to 3 ms, mostly when it begins
READ_AT_MOST = 1250
# queues in one read that costs little beside the job that ends it: the server looks at all its
# queues when it begins and when it ends, and then begins it anew
READ_WELL = 25
# reads that more queues have until each is full, besides the connections for calls, heartbeats and
# Pub/Sub
READS_AT_REST = 4
# seconds that each queue costs, about: 0.8 us, or 2.4 if the server did other work meanwhile
READ_EACH_S = 2e-6
LONG_S = 1.0  # seconds that a long read lasts at most
# seconds that a short read lasts at most, and between two checks whether a consumer waits
SHORT_S = 0.05
# seconds between two searches for jobs that other readers received, and that nobody leased
ORPHANS_EVERY_S = 2.0


@define(eq=False)
class SharedRead:
    consumers: Sequence[Consumer]
    woken: deque[Consumer] = field(factory=deque[Consumer])  # consumers that may wait now
    # consumers in long reads, by identity, until the next long reads look which are idle
    in_read: set[int] = field(factory=set[int])

    @property
    def running(self) -> bool:
        return (
            next(
                (one for one in self.consumers if not one.leasing.shard_gone), self.consumers[0]
            ).phase
            is Phase.RUNNING
        )

    def take_in(self, consumer: Consumer) -> bool:
        """Record that a consumer was woken. Return true if the short read should wait for it, as
        long reads have begun without it. Any thread may call this.
        """
        leasing = consumer.leasing
        if leasing.available or not consumer.registered or id(consumer) in self.in_read:
            return False
        self.woken.append(consumer)
        return True

    def chunks(self) -> Iterator[Sequence[Consumer]]:
        """Yield the consumers of each long read, in a few parts of about the same size."""
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
    ids = set[int]()
    searched_at = float("-inf")
    while shared.running:
        now = yield from Now()
        if now - searched_at >= ORPHANS_EVERY_S:
            searched_at = now
            # As all workers are idle, nobody sweeps for jobs that another reader received and did
            # not lease.
            if unswept := [consumer for consumer in idle(members) if consumer.idle.all_idle]:
                command = forgotten_read([consumer.ops.keys for consumer in unswept])
                yield from _wake((yield from _found(unswept, command)))
        shared.in_read -= ids  # first: then consumers that become idle from here on are woken
        some = idle(members)
        ids = set(map(id, some))
        shared.in_read |= ids
        if not some:
            yield Sleep(SHORT_S)
            continue
        began = yield from Now()
        found = yield from _read(some, LONG_S)
        ended = yield from Now()
        yield from _wake((yield from lease_found(found)))
        # If reads end often, they must not take all the time. With few queues, the lease calls take
        # longer than the pause.
        most = 3 * READ_EACH_S * len(shared.consumers)  # the longest pause between two reads
        soon = ended - began < 2 * most
        pause = min(most, 2 * pause) if soon and pause else READ_EACH_S * len(some)
        if (left := ended + pause - (yield from Now())) > 0:
            yield Sleep(left)
    yield Wake()


def wait_new(shared: SharedRead) -> Role:
    while shared.running:
        if some := shared.fresh():
            yield from _wake((yield from _read(some, SHORT_S)))
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
            yield from _wake(some)
        else:
            yield Sleep(LONG_S / 2)


def _read(
    some: Sequence[Consumer], seconds: float, *, paused: bool = False
) -> Call[Collection[Consumer]]:
    """Block until one of these queues has something, or is resumed if they are *paused*. Return
    their consumers."""
    command = blocked_read([consumer.ops.keys for consumer in some], seconds, paused=paused)
    return (yield from _found(some, command))


def _found(some: Sequence[Consumer], command: tuple[Arg, ...]) -> Call[Collection[Consumer]]:
    whose = {
        consumer.ops.keys.key(name): consumer for consumer in some for name in ("jobs", "wake")
    }
    found = yield from BlockAmong(command, whose)
    return {id(whose[key]): whose[key] for key in found}.values()


def _wake(consumers: Collection[Consumer]) -> Role:
    for consumer in consumers:
        consumer.leasing.woken = consumer.leasing.available = True
        yield Wake(owner=consumer)
