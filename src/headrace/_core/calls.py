"""Calls that take more than one round trip, as generators of effects: written once for both colours.

A call yields an `Op` (answered with its decoded reply), a `Wait` (block on the server), a `Clock` (answered with a
monotonic time) or another effect below, and returns its value. No IO here, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from attrs import define, evolve, field, frozen

from headrace._event import Watch
from headrace._job import Claim, Grant, Receipt, Repairs
from headrace._keys import job_id
from headrace._op import Arg, Op
from headrace._ops import BATCH, Ops
from headrace._schedule import LIMIT
from headrace._settings import Context
from headrace.errors import ConfigurationError, WorkerLost

R = TypeVar("R")
LEVELLED = 250  # jobs leased in one script where there are levels: those behind the first take it 15 µs each
RESULTS = 99  # in one script: as many as may join the calls of others
CLOSE = 0.1  # seconds before something is due in which we wait ourselves: a server may end a blocked read so late


@frozen
class Wait:
    """Block on the server, with this command."""

    command: tuple[Arg, ...]


@frozen
class Nap:
    """Wait on the client for so many seconds."""

    seconds: float


@frozen
class Clock:
    """What time is it, on a clock that never goes back?"""


@frozen
class Ahead:
    """Send an operation, and do *meanwhile* while the server works on it; it may be asked for again."""

    op: Op[Any]
    meanwhile: Callable[[], None]


@frozen
class Whole:
    """Send an operation; who is cancelled before the answer leaves it to *undo*, an operation made of that."""

    op: Op[Any]
    undo: Callable[[Any], Op[Any] | None]


@frozen
class Observe:
    """From now on notice the ends of these jobs; answered with a `Watch`, after so many seconds at most."""

    names: Sequence[str]
    seconds: float


@frozen
class Hark:
    """Wait so many seconds at most: answered with the jobs that have ended, and whether to look for all others, too."""

    watch: Watch
    seconds: float


@frozen
class Ignore:
    """Notice them no more."""

    watch: Watch


Effect = Op[Any] | Ahead | Whole | Wait | Nap | Clock | Observe | Hark | Ignore
Call = Generator[Effect, Any, R]


def send(op: Op[R]) -> Call[R]:
    """Send *op*, get its decoded reply: the typed `await` of this module."""
    return cast(R, (yield op))


@define
class Peer:
    """What a queue without a worker does for the others: it leases under a name of its own, and tidies up."""

    ops: Ops
    name: str
    tidied: float = float("-inf")
    cursor: str = "-"
    tick: float | None = None  # when a schedule is due

    def ttl(self, duration: float | None) -> float:
        """How long it counts as alive: nobody beats for it, so as long as its leases last."""
        return max(self.ops.settings.lease, duration or 0.0) + 10.0

    def lease(self, limit: int, block: float | None, duration: float | None, at_most_once: bool) -> Call[list[Claim]]:
        """Up to *limit* claims; waits up to *block* seconds (`None`: for ever) for the first."""
        start = cast(float, (yield Clock()))
        claims: list[Claim] = []
        woken = False
        while True:
            now = cast(float, (yield Clock()))
            if now - self.tidied >= 1.0:
                self.tidied = now
                swept = yield from send(self.ops.reclaim(self.name, 10.0, self.cursor))
                self.cursor = swept.cursor
                self.tick = None if swept.next_tick is None else now + swept.next_tick
            if self.tick is not None and self.tick <= now:
                yield from self.turn()
            want = min(limit - len(claims), BATCH if self.ops.settings.priorities == 1 else LEVELLED)
            op = self.ops.lease(self.name, want, duration=duration, ttl=self.ttl(duration), woken=woken)
            grant = cast("Grant | None", (yield Whole(op, self.give_back)))
            if grant is None:
                raise WorkerLost(f"{self.name} was declared dead; lease again")
            good = list(grant.claims)
            if at_most_once and good:  # completed before anybody sees them; what can't be read is not
                won = yield from send(self.ops.complete(good, fenced=True))
                good = [claim for claim, ours in zip(good, won, strict=True) if ours]
            claims += good
            if grant.undecodable:
                yield from self.quarantine(grant)
            got = len(grant.claims) + len(grant.undecodable)
            if len(claims) >= limit or (claims and got < want):
                return claims
            if got or grant.next_due == 0:
                continue  # there may be more than one script hands out, or passes
            now = cast(float, (yield Clock()))
            left = 1.0 if block is None else start + block - now
            if left <= 0:
                return claims
            pause = min(left, 1.0)
            dues = [due for due in (grant.next_due, None if self.tick is None else self.tick - now) if due is not None]
            due = min(dues, default=pause)
            if due < pause and due <= CLOSE:
                yield Nap(max(due, 0.001))
                continue
            yield Wait(self.ops.wait(due - CLOSE if due < pause else pause, paused=grant.paused))
            woken = True

    def turn(self) -> Call[None]:
        """Put in the jobs of schedules that are due."""
        turn = self.ops.turn((yield from send(self.ops.ticking())))
        for op in turn.ops:
            yield from send(op)
        now = cast(float, (yield Clock()))
        self.tick = None if turn.wait is None else now + turn.wait

    def give_back(self, grant: Grant | None) -> Op[list[bool]] | None:
        """What a cancelled call was granted goes to the front again, untouched."""
        claims = [*grant.claims, *(claim for claim, _ in grant.undecodable)] if grant is not None else []
        return self.ops.release(claims) if claims else None

    def quarantine(self, grant: Grant) -> Call[None]:
        """Jobs that do not decode go to the dead letters with their bytes: none stops the queue."""
        yield from send(self.ops.dead_letter([(claim, reason) for claim, reason in grant.undecodable]))


@define
class _Parts:
    """The parts of an `enqueue_many`: the one to send next, and an answer that nobody has read yet."""

    parts: Iterator[Op[list[Receipt]]]
    next: Op[Callable[[], list[Receipt]]] | None = None
    unread: Callable[[], list[Receipt]] | None = None
    receipts: list[Receipt] = field(factory=list[Receipt])

    def read(self) -> None:
        """Read the last answer."""
        if self.unread is not None:
            self.receipts += self.unread()
            self.unread = None

    def prepare(self) -> None:
        """Make the next part and read the last answer, which takes as long as the server does."""
        if self.next is None:
            part = next(self.parts, None)
            if part is not None:
                op: Op[Any] = part
                self.next = evolve(op, decode=partial(partial, part.decode))  # decoded when it is called
                _ = self.next.body  # packed
        self.read()


def enqueue_many(ops: Ops, jobs: Iterable[Any], context: Context | None = None) -> Call[list[Receipt]]:
    """All receipts. If a later part fails, the error's `receipts` are those of the parts that are in."""
    parts = _Parts(iter(ops.batches(jobs, context)))
    parts.prepare()
    try:
        while (part := parts.next) is not None:
            parts.next = None
            parts.unread = yield Ahead(part, parts.prepare)
            if parts.next is None:
                parts.prepare()
        parts.read()
    except Exception as error:
        parts.read()
        receipts = parts.receipts
        error.add_note(f"headrace: {len(receipts)} jobs of this enqueue_many are in the queue: error.receipts")
        error.receipts = receipts  # type: ignore[attr-defined]  # carried by whatever error it is
        raise
    return parts.receipts


def each(build: Callable[[Sequence[Claim]], Op[list[bool]]], claims: Sequence[Claim]) -> Call[list[bool]]:
    """Settle *claims* in bounded scripts, each of one worker's, in their order."""
    verdicts: list[bool] = []
    start = 0
    for at in range(1, len(claims) + 1):
        if at == len(claims) or at - start == BATCH or claims[at].worker != claims[start].worker:
            verdicts += yield from send(build(claims[start:at]))
            start = at
    return verdicts


def cancel_payload(ops: Ops, payload: bytes) -> Call[int]:
    """Page by page over the whole queue."""
    gone, place, cursor = 0, "jobs", "-"
    while place:
        more, place, cursor = yield from send(ops.cancel_payload(payload, place, cursor))
        gone += more
    return gone


def purge(ops: Ops) -> Call[int]:
    """Until nothing waits."""
    gone = 0
    while more := (yield from send(ops.purge())):
        gone += more
    return gone


def repair(ops: Ops) -> Call[Repairs]:
    """Page by page over everything that the queue has."""
    found, place, cursor = Repairs(), "jobs", "-"
    while place:
        more, place, cursor = yield from send(ops.repair(place, cursor))
        found += more
    return found


def through(build: Callable[[str, Sequence[str]], Op[tuple[int, str]]], wanted: Sequence[str]) -> Call[int]:
    """Page by page with *build*; how many it moved."""
    done, cursor = 0, "-"
    while cursor:
        more, cursor = yield from send(build(cursor, wanted))
        done += more
    return done


def by_ids(build: Callable[[str, Sequence[str]], Op[tuple[int, str]]], ids: Sequence[str], size: int) -> Call[int]:
    """Like `through`, for scripts that look jobs up by their ids: *size* at a time, or page by page without any."""
    wanted = [*map(job_id, ids)]
    done = 0
    for start in range(0, max(1, len(wanted)), size):
        done += yield from through(build, wanted[start : start + size])
    return done


def fail_worker(ops: Ops, name: str) -> Call[int]:
    """Until it holds nothing."""
    done, more = 0, "1"
    while more == "1":
        moved, more = yield from send(ops.fail_worker(name))
        done += moved
    return done


def drain(ops: Ops, timeout: float | None) -> Call[bool]:
    """Until no job is there but dead ones; asks twice a second in the end, and more often in the beginning."""
    start, pause = cast(float, (yield Clock())), 0.02
    while True:
        counts = yield from send(ops.counts())
        if counts.present == counts.dead:
            return True
        left = pause if timeout is None else start + timeout - cast(float, (yield Clock()))
        if left <= 0:
            return False
        yield Nap(min(pause, left))
        pause = min(0.5, 1.5 * pause)


def kept(ops: Ops, names: Sequence[str]) -> Call[dict[str, bytes]]:
    """The results that are there, of so many jobs."""
    found: dict[str, bytes] = {}
    for start in range(0, len(names), RESULTS):
        some = names[start : start + RESULTS]
        answers = yield from send(ops.results(some))
        found |= {name: result for name, result in zip(some, answers, strict=True) if result is not None}
    return found


def results(ops: Ops, names: Iterable[str], timeout: float | None) -> Call[dict[str, bytes]]:
    """The kept results; waits up to *timeout* seconds for those that are missing and may still come."""
    start = cast(float, (yield Clock()))
    left = list(dict.fromkeys(names))
    found = yield from kept(ops, left)
    left = [name for name in left if name not in found]
    if not left or not timeout:
        return found
    watch = cast(Watch, (yield Observe(left, timeout)))
    try:
        ended, look = set[str](), True  # what came between
        while True:
            found |= yield from kept(ops, left if look else [name for name in left if name in ended])
            gone = yield from without(ops, [name for name in left if name in ended and name not in found])
            found |= yield from kept(ops, gone)  # one may have come just before
            left = [name for name in left if name not in found and name not in gone]
            rest = start + timeout - cast(float, (yield Clock()))
            if not left or rest <= 0:
                return found
            ended, look = cast("tuple[set[str], bool]", (yield Hark(watch, rest)))
    finally:
        yield Ignore(watch)


def without(ops: Ops, names: Sequence[str]) -> Call[list[str]]:
    """Those of *names* that are really gone, or dead: what was told may be of a former job, or of another database."""
    gone: list[str] = []
    for name in names:
        state = yield from send(ops.find(name))
        if state is None or state.state == "dead":
            gone.append(name)
    return gone


def result(ops: Ops, name: str, timeout: float | None) -> Call[bytes | None]:
    """The kept result of one job."""
    return (yield from results(ops, [name], timeout)).get(name)


def schedule(ops: Ops, build: Callable[[int], Op[int]]) -> Call[bool]:
    """By the server's clock; whether the schedule is new."""
    now = (yield from send(ops.ticking("none"))).now
    answer = yield from send(build(now))
    if answer < 0:
        raise ConfigurationError(f"this queue has {LIMIT} schedules: unschedule some, or use another queue")
    return answer > 0
