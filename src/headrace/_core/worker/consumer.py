"""The jobs of one handler, from lease to settlement: what of a worker is done per queue. See `_roles`."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Generator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from attrs import define, field

from headrace._effects import Abort, Effect, Held, Listen, Now, Pause, Phase, Poke, Recall, Role, Send, Start
from headrace._entry import Entry
from headrace._job import Claim, Counts, Grant, Job, Reclaimed
from headrace._judge import Verdict, judge, meant
from headrace._op import Op
from headrace._ops import BATCH, Ops
from headrace._settings import FOREVER, HandlerSettings, Retry, WorkerSettings
from headrace.errors import Release, said

SOON = 0.05  # seconds: what is leased ahead of a free slot should start within this
LATE = 1.0  # seconds without a free slot after which what waits for one goes back
TAKE = 250  # jobs in one lease call: an answer over 64 KiB is sent in pieces, and the server serves others in between
BLOCK = 1.0  # seconds a blocked read lasts at most


def unheard(*_: object) -> None:
    """Nobody wants to know."""


@define(eq=False)
class Feed:
    """The jobs of one handler, from lease to settlement. The engine may call `begin` and `finish` from any thread."""

    ops: Ops
    handler: HandlerSettings
    worker: str
    default_wait: Callable[[Any], float]
    name: str = ""
    phase: Phase = Phase.RUNNING
    asking: int = 0  # jobs that lease calls under way ask for
    held: dict[str, Held] = field(factory=dict[str, Held])
    completed: deque[Claim] = field(factory=deque[Claim])  # with no result to keep
    done: deque[Verdict] = field(factory=deque[Verdict])  # all others
    registered: bool = False
    available: bool = True
    woken: bool = False
    gathered: list[Held] = field(factory=list[Held])
    mean: float | None = None  # seconds a unit takes
    moved: float = 0.0  # when a unit last got a slot, or began to wait for one
    stuck: bool = False  # no slot becomes free: lease nothing until a handler ends
    full_at: float = 0.0  # when what is gathered makes a batch, full or not
    again: float | None = None  # when a delayed job is due
    tick: float | None = None  # when a schedule is
    cursor: str = "-"
    news: int = 0  # how often we were told that leases are gone
    lost: int = 0  # settlements that came too late
    stirred: bool = False  # there is something to `tend` to at once
    paused: bool = False
    named: bool = False  # `worker` is a name that nobody else may live under
    entry: Entry = field(init=False)
    beaten: float = 0.0  # when the last beat was sent that the server has answered
    note: Callable[[str, Held | None, Verdict | None, BaseException | None], object] = unheard  # what becomes of jobs
    gauge: Any = None  # who wants to know what is in the queue, and when

    def __attrs_post_init__(self) -> None:
        self.rename()

    def rename(self) -> None:
        """A new incarnation: nobody else, and no earlier self, ever had this name."""
        self.name = f"{self.worker}.{secrets.token_hex(6)}"
        self.registered = False
        self.entry = Entry(self.ops, self.worker)

    def sign(self, settings: WorkerSettings, now: float) -> Op[Any]:
        """A beat; or what registers us."""
        if self.named and not self.registered:
            return self.entry.op(self.name, settings, now)
        return self.ops.beat(self.name, settings.timeout, register=not self.registered)

    # -- what the engine tells us -----------------------------------------------------------------

    def begin(self, unit: Sequence[Held], now: float) -> list[Job]:
        """A handler starts on *unit*: the jobs of it that are still ours; none when the worker stops."""
        self.moved = now
        stopping = self.phase is not Phase.RUNNING
        for held in unit:
            held.started = now
            if stopping and not held.ended:
                self.end(held, Release())
        return [held.job for held in unit if not held.ended]

    def finish(self, unit: Sequence[Held], now: float, error: BaseException | None, result: Any = None) -> None:
        """A handler ended."""
        took = now - unit[0].started
        self.mean = took if self.mean is None else self.mean + 0.2 * (took - self.mean)
        self.stuck = False
        if self.phase >= Phase.HALTING:  # it was told to give up: returning is no completion
            for held in unit:
                held.ended = True
                self.forget(held)
            return
        if error is None and result is None:  # nearly every job
            for held in unit:
                if not held.ended:
                    held.ended = True
                    self.completed.append(held)
                    self.forget(held)
            return
        for held in unit:
            if not held.ended:
                self.end(held, *meant(held.job.id, error, result, batch=self.handler.batch))

    def end(self, held: Held, error: BaseException | None, result: Any = None) -> None:
        """How one job ended."""
        held.ended = True
        self.settle(held, self.verdict(held, error, result), error)

    def settle(self, held: Held, verdict: Verdict, error: BaseException | None = None) -> None:
        """One job's verdict."""
        held.ended = True
        if verdict.kind == "complete" or self.phase < Phase.HALTING:
            self.done.append(verdict)
            if verdict.kind != "complete":
                self.note("settled", held, verdict, error)
        self.forget(held)  # after its verdict: who finds neither takes everything for settled

    def verdict(
        self,
        held: Held,
        error: BaseException | None,
        result: Any = None,
        retry: Retry | None = None,
        anew: bool = False,
    ) -> Verdict:
        """What becomes of a job. *retry* instead of its handler's; *anew*: earlier failures don't count any more."""
        if error is None:
            try:
                return Verdict("complete", held, None if result is None else self.ops.result_bytes(result))
            except Exception as wrong:  # whatever the user's codec raises is the job's failure
                error = wrong
        age = max(0.0, held.leased_at - held.job.enqueued_at)  # both of the server's clock
        policy = retry or self.of(held).retry
        try:
            return judge(policy, held, error, age, self.default_wait, self.ops.result_bytes, anew=anew)
        except Exception as wrong:  # a broken strategy object must not lose the job
            reason = f"{said(error)}; and what should judge it raised {said(wrong)}"
            return Verdict("retry", held, delay=60.0, reason=reason, attempts=policy.attempts)

    def of(self, held: Held) -> HandlerSettings:  # noqa: ARG002 - one for all, unless they are of several kinds
        """The handler of this job."""
        return self.handler

    def admit(self, fresh: Sequence[Held]) -> Sequence[Held]:
        """Those of the jobs just leased that there is a handler for."""
        return fresh

    def forget(self, held: Held) -> None:
        """No longer held; other threads may say so at the same time."""
        if self.held.get(held.entry) is held:
            self.held.pop(held.entry, None)

    # -- fetch: lease and settle --------------------------------------------------------------------

    def room(self) -> int:
        """How many more jobs may be leased: free slots, and what will start within `SOON`."""
        if self.stuck:
            return 0
        slots = self.handler.concurrency * (self.handler.max_size if self.handler.batch else 1)
        ahead = 0.0 if self.mean is None else slots * SOON / max(self.mean, 1e-6)
        most = slots + min(int(ahead), max(BATCH, slots))
        return min(TAKE, most - len(self.held) - self.asking)

    def settlements(self) -> tuple[list[Op[list[bool]]], float | None]:
        """Operations for the verdicts there are, in bounded scripts, and the shortest delay of a retry among them."""
        ops: list[Op[list[bool]]] = []
        soonest: float | None = None
        plain = [self.completed.popleft() for _ in range(min(len(self.completed), BATCH))]
        ops += [self.ops.complete(list(some)) for _, some in groupby(plain, key=attrgetter("worker"))]
        groups: dict[tuple[str, str, int | None], list[Verdict]] = {}
        for _ in range(min(len(self.done), BATCH)):
            verdict = self.done.popleft()
            groups.setdefault((verdict.kind, verdict.claim.worker, verdict.attempts), []).append(verdict)
        for (kind, _, attempts), some in groups.items():
            claims = [v.claim for v in some]
            if kind == "complete":
                results = {v.claim.entry: v.result for v in some if v.result is not None}
                ops.append(self.ops.complete(claims, results=results))
            elif kind == "release":
                ops.append(self.ops.release(claims))
            elif kind == "dead":
                ops.append(self.ops.dead_letter([(v.claim, v.reason) for v in some]))
            else:
                items = [(v.claim, v.delay, v.spend, v.reason) for v in some]
                delays = [v.delay for v in some if isinstance(v.delay, float)]
                soonest = min(delays if soonest is None else [*delays, soonest], default=None)
                ops.append(self.ops.retry(items, max_attempts=attempts))
        return ops, soonest

    def unsettled(self) -> bool:
        """Whether there is a verdict to send."""
        return bool(self.completed or self.done)

    def tend(self) -> Role:
        """What else wants looking after, now and then: nothing here."""
        yield from ()

    def measure(self) -> Role:
        """Read what is in the queue, if somebody wants to know it by now."""
        if self.gauge is None or not self.gauge.due():
            return
        counts, age = cast("list[tuple[Counts, float]]", (yield Send([self.ops.measure()])))[0]
        self.gauge.read(counts, age)

    def fetch(self) -> Role:
        """Lease and settle until everything is settled and the worker stops."""
        while True:
            if self.phase >= Phase.DRAINING:
                yield from self.recall()
                if self.phase >= Phase.HALTING or not (self.held or self.unsettled()):
                    break
            settles, soonest = self.settlements()
            room = self.room() if self.phase is Phase.RUNNING and self.registered and self.available else 0
            if self.asking and self.handler.concurrency == 1:
                room = 0  # two lease calls at a time may be answered in either order, and one slot promises order
            if not settles and room <= 0:
                yield Pause((yield from self.idle()))
                continue
            ops: list[Op[Any]] = list(settles)
            name, woken, news = self.name, self.woken, self.news
            if room > 0:
                self.woken = False
                ops.append(self.ops.lease(name, room, woken=woken, kind=Held, heir_of=self.entry.heir_of))
                self.asking += room
            try:
                replies = cast("list[Any]", (yield Send(ops)))
            finally:
                self.asking -= max(0, room)
            for verdicts in replies[: len(settles)]:
                self.lost += verdicts.count(False)
            if room > 0:
                yield from self.granted(replies[-1], room, name, woken, news)
            if self.stirred:
                yield from self.tend()
            if soonest is not None:
                self.expect(cast(float, (yield Now())), soonest)
            yield from self.gather()
        while settles := self.settlements()[0]:
            yield Send(settles)

    def expect(self, now: float, after: float) -> None:
        """A delayed job is due *after* seconds. Waited for here: a server may end a blocked read 0.1 s late."""
        self.again = now + after if self.again is None else min(now + after, self.again)

    def heard(self, now: float, swept: Reclaimed) -> bool:
        """What a look has told of what is to come, whoever made it so; whether it comes soon."""
        self.cursor = swept.cursor
        self.tick = None if swept.next_tick is None else now + swept.next_tick
        if swept.next_due is not None:
            self.expect(now, swept.next_due)
        return any(at is not None and at < now + 1.0 for at in (self.again, self.tick))

    def idle(self) -> Generator[Effect, Any, float]:
        """There is nothing to send; the seconds until there may be, if nobody pokes."""
        left = (yield from self.gather()) or 1.0
        now = cast(float, (yield Now()))
        if self.again is not None:
            if self.again <= now:
                self.again, self.available = None, True
                if self.room() > 0:
                    return 0.0
            else:
                left = min(left, self.again - now)
        if not self.stuck and self.held and now - self.moved >= LATE:
            units = cast("list[list[Held]]", (yield Recall()))
            if units:  # every slot is taken by something slow: others may be free
                self.stuck = True
                self.give_back(units)
                return 0.0
        return left

    def granted(self, grant: Grant | None, asked: int, name: str, woken: bool, news: int) -> Role:
        """Take in what a lease call under *name* brought; *news* were known when it was sent."""
        if grant is None:
            if name == self.name:  # else we know already
                yield from self.died()
            return
        now = cast(float, (yield Now()))
        fresh = cast("Sequence[Held]", grant.claims)
        for held in fresh:
            held.since = now
            self.held[held.entry] = held
        if name != self.name:  # declared dead while this came: our peers have put these back
            yield from self.lose(fresh)
            return
        if self.news != news:  # they may have been of these
            yield from self.check(fresh)
        for claim, reason in grant.undecodable:
            self.done.append(Verdict("dead", claim, reason=reason))
        self.learn(grant, now)
        if len(grant.claims) + len(grant.undecodable) < asked:
            self.available = False
            if woken and not grant.claims:
                self.tick = 0.0  # it may have been a new schedule that rang
            yield Poke()  # `listen` may block now
        yield from self.share(self.admit(fresh), now)

    def learn(self, grant: Grant, now: float) -> None:
        """What a lease call tells besides jobs."""
        self.paused = grant.paused
        if not grant.paused:
            self.entry.heir_of = ""
        if grant.next_due is not None:
            self.expect(now, grant.next_due)

    def share(self, fresh: Sequence[Held], now: float) -> Role:
        """Jobs that are ours go to slots, or wait for their batch."""
        if self.handler.batch:
            if not self.gathered:
                self.full_at = now + self.handler.max_wait
            self.gathered += fresh
        elif fresh:
            self.moved = now
            yield Start([[held] for held in fresh])

    def gather(self) -> Generator[Effect, Any, float | None]:
        """Start the batches that are full, or old enough; the seconds until the next is."""
        if not self.gathered:
            return None
        now = cast(float, (yield Now()))
        size = self.handler.max_size
        units: list[list[Held]] = []
        self.gathered = [held for held in self.gathered if not held.ended]
        while len(self.gathered) >= size:
            units.append(self.gathered[:size])
            self.gathered = self.gathered[size:]
        if units:
            self.full_at = now + self.handler.max_wait  # what is left of it came just now
        left: float | None = None
        if self.gathered:
            left = self.full_at - now
            if left <= 0:
                units.append(self.gathered)
                self.gathered, left = [], None
        if units:
            self.moved = now
            yield Start(units)
        return None if left is None else max(left, 0.001)

    def recall(self) -> Role:
        """What has not started goes back to the front."""
        units = cast("list[list[Held]]", (yield Recall()))
        self.give_back([*units, self.gathered])
        self.gathered = []

    def give_back(self, units: Sequence[Sequence[Held]]) -> None:
        """To the front, untouched."""
        for unit in units:
            for held in unit:
                if not held.ended:
                    self.end(held, Release())

    def listen(self) -> Role:
        """Block on the server while there is nothing to lease and room for more."""
        while self.phase is Phase.RUNNING:
            if self.available or not self.registered or self.room() <= 0:
                yield Pause(1.0)
                continue
            rung = cast(bool, (yield Listen(self.ops.wait(BLOCK, paused=self.paused))))
            if rung or self.paused:  # it may go on by now
                self.woken = self.available = True
                yield Poke()

    # -- what becomes of leases ------------------------------------------------------------------------

    def died(self) -> Role:
        """Our peers declared us dead: what we hold runs elsewhere. Stop it, come back under a new name."""
        self.rename()  # first: what a call under the old name still brings is then known to be lost
        self.note("worker_declared_dead", None, None, None)
        yield from self.lose([held for held in list(self.held.values()) if held.worker != self.name])
        self.available = True
        yield Poke(everyone=True)  # the new name wants registering

    def lose(self, gone: Sequence[Held]) -> Role:
        """These jobs are no longer ours; their handlers are told. One that then returns has given up, not finished."""
        for held in gone:
            self.forget(held)
            held.ended = True
            self.note("lease_lost", held, None, None)
        yield Abort([held for held in gone if held.started])

    def told(self, message: bytes) -> Role:
        """Somebody has removed these entries, or (`*`) perhaps all: it says so, the server knows."""
        self.news += 1  # before we look: what is on its way to us is looked at when it comes
        entries = message.decode("utf-8", "replace").split()
        named = [held for entry in entries if (held := self.held.get(entry))]
        yield from self.check(None if "*" in entries else named)

    def check(self, some: Sequence[Held] | None = None) -> Role:
        """Renew *some* or all leases now, to learn which are still ours."""
        mine = [
            h for h in (list(self.held.values()) if some is None else some) if h.worker == self.name and not h.ended
        ]
        for start in range(0, len(mine), BATCH):
            part = mine[start : start + BATCH]
            replies = cast("list[Any]", (yield Send([self.ops.renew(part)])))
            yield from self.renewed(part, replies[0])

    def renewed(self, part: Sequence[Held], verdicts: Sequence[bool]) -> Role:
        """What came of renewing."""
        now = cast(float, (yield Now()))
        for held, kept in zip(part, verdicts, strict=True):
            held.since = now if kept else held.since
        lost = [held for held, kept in zip(part, verdicts, strict=True) if not kept and not held.ended]
        if lost:
            yield from self.lose(lost)

    def renewals(self, now: float) -> list[Held]:
        """What has had its lease for a third of it."""
        third = self.ops.settings.lease / 3
        return [held for held in list(self.held.values()) if now - held.since >= third and not held.ended][:BATCH]

    def overdue(self, now: float) -> list[Held]:
        """What has run past the handler's deadline."""
        if self.handler.deadline is None:
            return []
        running = [held for held in list(self.held.values()) if held.started and not held.ended]
        return [held for held in running if now - held.started >= (self.of(held).deadline or FOREVER)]
