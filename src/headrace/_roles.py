"""What a worker does, as generators of effects: no thread, no task, no clock, no socket.

One `Feed` per handler: `fetch` leases and settles, in one round trip; `listen` blocks on the server while
there is nothing; both end by `phase`. `keep` renews, reclaims and promotes for all feeds; `beat` says
that the worker lives. An engine performs the effects, runs handlers, and calls `finish`.

Rules: nothing is leased that can't start soon. A lease is settled once. What has not started goes back to the
front when the worker stops. Leases are renewed only for jobs that have had theirs for a third of it.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Generator, Sequence
from enum import IntEnum
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from attrs import define, field, frozen

from headrace._entry import Entry
from headrace._job import Claim, Entered, Grant, Job, Reclaimed
from headrace._judge import Verdict, judge, meant, overran
from headrace._op import Arg, Op
from headrace._ops import BATCH, Ops
from headrace._settings import FOREVER, HandlerSettings, Retry, WorkerSettings
from headrace.errors import Release, said

SOON = 0.05  # seconds: what is leased ahead of a free slot should start within this
LATE = 1.0  # seconds without a free slot after which what waits for one goes back
TAKE = 250  # jobs in one lease call: an answer over 64 KiB is sent in pieces, and the server serves others in between
BLOCK = 1.0  # seconds a blocked read lasts at most
LOOK = 0.75  # of a heartbeat: how often to look for the dead; the rest of it is for what happens then


class Phase(IntEnum):
    """A worker's life. It only ever goes up."""

    RUNNING = 0
    DRAINING = 1  # take nothing new, let handlers finish
    HALTING = 2  # let go of everything now
    STOPPED = 3


@frozen
class Send:
    """Send these operations in one round trip; answered with their replies."""

    ops: Sequence[Op[Any]]


@frozen
class Listen:
    """Block on the server; answered with whether there was something."""

    command: tuple[Arg, ...]


@frozen
class Pause:
    """Wait until poked, or so many seconds."""

    seconds: float


@frozen
class Now:
    """The time of a clock that never goes back."""


@frozen
class Start:
    """Run the handler of *feed* on each of these units, as slots become free."""

    units: Sequence[list[Held]]


@frozen
class Recall:
    """Answered with the units that have not started; they no longer will."""


@frozen
class Abort:
    """Tell these handlers that their job is lost; an async one is cancelled."""

    held: Sequence[Held]


@frozen
class Poke:
    """Wake the roles of this feed, of *whose*, or of the whole worker."""

    everyone: bool = False
    whose: Feed | None = None


@frozen
class Say:
    """Tell the user, in the log, of something that goes wrong without us."""

    text: str


Effect = Send | Listen | Pause | Now | Start | Recall | Abort | Poke | Say
Role = Generator[Effect, Any, None]


@define(eq=False)
class Held(Claim):
    """A claim between lease and settlement."""

    since: float = 0.0  # of the lease, or its last renewal
    started: float = 0.0  # 0: not yet
    ended: bool = False  # settled or given up: what the handler still says does not count


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
    lost: int = 0  # settlements that came too late
    stirred: bool = False  # there is something to `tend` to at once
    paused: bool = False
    named: bool = False  # `worker` is a name that nobody else may live under
    entry: Entry = field(init=False)
    beaten: float = 0.0  # when the last beat was sent that the server has answered

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
        self.settle(held, self.verdict(held, error, result))

    def settle(self, held: Held, verdict: Verdict) -> None:
        """One job's verdict."""
        held.ended = True
        if verdict.kind == "complete" or self.phase < Phase.HALTING:
            self.done.append(verdict)
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
            name, woken = self.name, self.woken
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
                yield from self.granted(replies[-1], room, name, woken)
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

    def granted(self, grant: Grant | None, asked: int, name: str, woken: bool) -> Role:
        """Take in what a lease call under *name* brought."""
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
        for claim, reason in grant.undecodable:
            self.done.append(Verdict("dead", claim, reason=reason))
        self.paused = grant.paused
        if not grant.paused:
            self.entry.heir_of = ""
        if grant.next_due is not None:
            self.expect(now, grant.next_due)
        if len(fresh) + len(grant.undecodable) < asked:
            self.available = False
            if woken and not fresh:
                self.tick = 0.0  # it may have been a new schedule that rang
            yield Poke()  # `listen` may block now
        fresh = self.admit(fresh)
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
        yield from self.lose([held for held in list(self.held.values()) if held.worker != self.name])
        self.available = True
        yield Poke(everyone=True)  # the new name wants registering

    def lose(self, gone: Sequence[Held]) -> Role:
        """These jobs are no longer ours; their handlers are told. One that then returns has given up, not finished."""
        for held in gone:
            self.forget(held)
            held.ended = True
        yield Abort([held for held in gone if held.started])

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


@define(eq=False)
class Roles:
    """The roles of a whole worker."""

    settings: WorkerSettings
    feeds: Sequence[Feed]
    phase: Phase = Phase.RUNNING

    def turn(self, phase: Phase) -> None:
        """Go on to *phase*, never back."""
        self.phase = max(self.phase, phase)
        for feed in self.feeds:
            feed.phase = self.phase

    def beat(self) -> Role:
        """Say that we live, every heartbeat; learn it when our peers think otherwise."""
        while self.phase < Phase.STOPPED:
            feeds = list(self.feeds)
            fresh = [not feed.registered for feed in feeds]
            names = [feed.name for feed in feeds]
            now = cast(float, (yield Now()))
            alive = cast("list[bool | Entered]", (yield Send([feed.sign(self.settings, now) for feed in feeds])))
            wait = self.settings.heartbeat
            if cast(float, (yield Now())) - now >= wait:
                wait = 0.0  # what took so long is old news
            for feed, new, name, yes in zip(feeds, fresh, names, alive, strict=True):
                if feed.name != name:
                    wait = 0.0  # it died and was renamed while we asked
                elif isinstance(yes, Entered) and not feed.entry.admits(yes, now):
                    wait = min(wait, self.settings.heartbeat / 4)
                    continue
                elif yes:
                    feed.beaten, feed.registered = now, True
                else:
                    yield from feed.died()
                    wait = 0.0
                if new:
                    yield Poke()
            yield Pause(wait)

    def keep(self) -> Role:
        """Renew our leases; put back the jobs of the dead and of expired leases; promote what is due."""
        spans = [LOOK * self.settings.heartbeat]
        for feed in self.feeds:
            spans += (feed.ops.settings.lease / 6, (feed.handler.deadline or 60.0) / 4)
        tick = min(spans)
        while self.phase < Phase.HALTING:
            now = cast(float, (yield Now()))
            hurry = further = False
            for feed in self.feeds:
                for held in feed.overdue(now):
                    feed.end(held, TimeoutError(overran(feed.of(held).deadline)))
                    yield Abort([held])
                    yield Poke()
                renew = [held for held in feed.renewals(now) if held.worker == feed.name]
                ops: list[Op[Any]] = [feed.ops.renew(renew)] if renew else []
                if feed.registered:
                    ops.append(feed.ops.reclaim(feed.name, self.settings.timeout, feed.cursor))
                yield from feed.tend()
                if not ops:
                    continue
                replies = cast("list[Any]", (yield Send(ops)))
                if renew:
                    now = cast(float, (yield Now()))
                    for held, kept in zip(renew, replies[0], strict=True):
                        held.since = now if kept else held.since
                    lost = [h for h, kept in zip(renew, replies[0], strict=True) if not kept and not h.ended]
                    if lost:
                        yield from feed.lose(lost)
                if feed.registered and isinstance(replies[-1], Reclaimed):
                    if feed.heard(cast(float, (yield Now())), replies[-1]):
                        yield Poke(whose=feed)
                    hurry = hurry or replies[-1].more
                    further = further or feed.cursor != "-"
            yield Pause(0.01 if hurry else min(tick, 0.25) if further else tick)
