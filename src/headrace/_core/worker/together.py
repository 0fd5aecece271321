"""The roles that block for many consumers in one read, in place of a `wait` for each.

One read, or one for each of few parts, waits for all that have nothing to lease, and is sent again as it ends. A
consumer that comes to have nothing to lease meanwhile is waited for by another read, which is short, until the long one
takes it in: no read that is under way is ever broken off, as it may just have been given what another worker could have
had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

from attrs import define, field

from headrace._core.effects import Phase, Role, Sleep, Step, Wake, block_among, current_time
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import ALONE_AT_MOST
from headrace._protocol.op import Arg
from headrace._protocol.waiting import blocked_read, forgotten_read

READ_AT_MOST = 1250  # queues in one read: it keeps the server for 1 to 3 ms, most of them as it begins
READ_WELL = 500  # queues in one read that take half as long; for more there are so many reads at least:
READS_AT_REST = 2  # beside the connections for calls, beats and Pub/Sub
READ_EACH_S = 2e-6  # seconds that each costs, about: 0.8 us, or 2.4 where the server has done other things meanwhile
LEAST_S = 0.0005  # seconds between two reads at least: what has ended one is leased first
LONG_S = 1.0  # seconds that the long read lasts at most
SHORT_S = 0.05  # the same of the short one
LOOK_S = 0.05  # seconds between two looks whether there is one to wait for
FORGOTTEN_EVERY_S = 2.0  # seconds between two looks for what other readers were given, and have not had leased
LEASED_LOOKS = 10  # pauses at most until what has ended a read is leased
PAUSE_AT_MOST = 4  # times about what a read costs the server, between two: more where one ends soon after the other


@define(eq=False)
class Together:
    """The consumers that share blocked reads."""

    consumers: Sequence[Consumer]
    woken: deque[Consumer] = field(factory=deque[Consumer])  # those that may have come to wait
    covered: set[int] = field(factory=set[int])  # those in long reads, by identity

    @property
    def running(self) -> bool:
        """Whether there is anything to wait for."""
        return next((one for one in self.consumers if not one.leasing.left), self.consumers[0]).phase is Phase.RUNNING

    def take_in(self, consumer: Consumer) -> bool:
        """Take in that a consumer was woken; true if the short read should see to it. From any thread."""
        if consumer.leasing.available or not consumer.registered:
            return False
        self.woken.append(consumer)
        return True

    def parts(self) -> Iterator[Sequence[Consumer]]:
        """Yield the consumers of each long read: as few parts as may be, of about one size."""
        number = len(self.consumers)
        parts = max(-(-number // READ_AT_MOST), min(-(-number // READ_WELL), READS_AT_REST))
        size = -(-number // parts)
        for at in range(0, len(self.consumers), size):
            yield self.consumers[at : at + size]

    def fresh(self) -> list[Consumer]:
        """List the consumers that have come to wait since the long reads began, as many as fit into one."""
        found: dict[int, Consumer] = {}
        for _ in range(len(self.woken)):
            if len(found) == READ_AT_MOST:
                break
            consumer = self.woken.popleft()
            if id(consumer) not in self.covered and not consumer.leasing.paused and consumer.waits():
                found[id(consumer)] = consumer
        return list(found.values())


Place = Callable[[Consumer], Hashable]


def everywhere(_consumer: Consumer) -> None:
    """Return the one place that there is."""


def by_place(consumers: Sequence[Consumer], place: Place) -> list[list[Consumer]]:
    """Return the consumers of each place."""
    places: dict[Hashable, list[Consumer]] = {}
    for consumer in consumers:
        places.setdefault(place(consumer), []).append(consumer)
    return list(places.values())


def groups(consumers: Sequence[Consumer], place: Place = everywhere) -> Iterator[Together | Consumer]:
    """Yield the consumers, those together that share reads: if they are many, and of one *place*, such as a primary."""
    for some in by_place(consumers, place):
        if len(some) <= ALONE_AT_MOST:
            yield from some
        else:
            yield Together(some)


def idle(part: Sequence[Consumer]) -> list[Consumer]:
    """List the consumers that wait."""
    return [consumer for consumer in part if not consumer.leasing.paused and consumer.waits()]


def wait_for_all(together: Together, part: Sequence[Consumer]) -> Role:
    """Block for all of *part* that wait, again and again."""
    pause, looked = 0.0, float("-inf")
    while together.running:
        now = yield from current_time()
        if now - looked >= FORGOTTEN_EVERY_S:
            looked = now
            yield from _look_for_forgotten([consumer for consumer in idle(part) if consumer.rest.calm])
        some = idle(part)
        if not some:
            yield Sleep(LOOK_S)
            continue
        began = yield from current_time()
        covered = set(map(id, some))
        together.covered |= covered
        try:
            found = yield from _read(some, LONG_S)
        finally:
            together.covered -= covered
        # What ended it is leased meanwhile, and in the next again. If many do, the reads must not take all the time.
        least = LEAST_S + READ_EACH_S * len(some)
        soon = (yield from current_time()) - began < 2 * PAUSE_AT_MOST * least
        pause = min(PAUSE_AT_MOST * least, 2 * pause) if soon and pause else least
        yield Sleep(pause)
        for _ in range(LEASED_LOOKS):  # the server would begin the read first, which takes longer
            if not any(one.leasing.woken or one.leasing.asking for one in found):
                break
            yield Sleep(least)
    yield Wake()


def wait_for_fresh(together: Together) -> Role:
    """Block for consumers that began to wait since the long read began."""
    while together.running:
        some = together.fresh()
        if not some:
            yield Sleep(LONG_S)
            continue
        yield from _read(some, SHORT_S)
        together.woken.extend(some)


def wait_for_resumed(together: Together, part: Sequence[Consumer]) -> Role:
    """Block for consumers of *part* whose queue is paused, until one is resumed; check all of them now and then."""
    while together.running:
        some = [consumer for consumer in part if consumer.leasing.paused and consumer.waits()]
        if not some:
            yield Sleep(LONG_S / 2)
            continue
        yield from _read(some, LONG_S, paused=True)


def _look_for_forgotten(some: Sequence[Consumer]) -> Step[None]:
    """Have leased what others were given and left, in queues that are not looked after, as all rest there."""
    if some:
        yield from _lease_from(some, forgotten_read([consumer.ops.keys for consumer in some]))


def _read(some: Sequence[Consumer], seconds: float, *, paused: bool = False) -> Step[Collection[Consumer]]:
    """Block until there is something in one of these queues; have it leased, and return whose it is. What is *paused*
    is leased from anyway.
    """
    command = blocked_read([consumer.ops.keys for consumer in some], seconds, paused=paused)
    return (yield from _lease_from(some, command, everything=paused))


def _lease_from(
    some: Sequence[Consumer], command: tuple[Arg, ...], *, everything: bool = False
) -> Step[Collection[Consumer]]:
    whose = {consumer.ops.keys.part(part): consumer for consumer in some for part in ("jobs", "wake")}
    found = yield from block_among(command, whose)
    theirs = some if everything else {id(whose[key]): whose[key] for key in found}.values()
    for consumer in theirs:
        consumer.leasing.woken = consumer.leasing.available = True
        yield Wake(whose=consumer)
    return theirs
