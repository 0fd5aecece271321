"""The jobs of one handler, from lease to settlement: what of a worker is done per queue. See `_roles`."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, cast

from attrs import define, field

from headrace._core.effects import (
    Abort,
    Held,
    Phase,
    Role,
    Send,
    Sleep,
    Start,
    Step,
    Wake,
    block,
    current_time,
    send,
    send_all,
    take_back,
)
from headrace._core.verdicts import Settlement, judge, meant
from headrace._core.worker.naming import NameClaim
from headrace._model.checks import FOREVER
from headrace._model.job import Claim, Job
from headrace._model.policy import Retry
from headrace._model.settings import HandlerSettings, WorkerSettings
from headrace._protocol.answers import Grant, Reclaimed
from headrace._protocol.limits import BYTES_PER_SCRIPT, JOBS_PER_SCRIPT
from headrace._protocol.op import Op, parts
from headrace._protocol.queue_ops import SOME, Ops
from headrace.errors import said

START_WITHIN_S = 0.05  # seconds: what is leased ahead of a free slot should start within this
TAKE_BACK_AFTER_S = 1.0  # seconds without a free slot after which what waits for one goes back
LEASE_AT_MOST = (
    250  # jobs in one lease call: an answer over 64 KiB is sent in pieces, and the server serves others in between
)
BLOCK_S = 1.0  # seconds a blocked read lasts at most


def unobserved(*_: object) -> None:
    """Nobody wants to know."""


@define(eq=False)
class Consumer:
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
    done: deque[Settlement] = field(factory=deque[Settlement])  # all others
    under_way: list[list[Claim]] = field(factory=list[list[Claim]])  # whose verdicts were sent, and are not answered
    dropped: list[Held] = field(factory=list[Held])  # not settled, as the worker leaves
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
    news: int = 0  # how often we were told that leases are gone
    lost: int = 0  # settlements that came too late
    stirred: bool = False  # there is something to `tend` to at once
    paused: bool = False
    named: bool = False  # `worker` is a name that nobody else may live under
    entry: NameClaim = field(init=False)
    beaten: float = 0.0  # when the last beat was sent that the server has answered
    note: Callable[[str, Held | None, Settlement | None, BaseException | None], object] = (
        unobserved  # what becomes of jobs
    )
    gauge: Any = None  # who wants to know what is in the queue, and when

    def __attrs_post_init__(self) -> None:
        self.rename()

    def rename(self) -> None:
        """A new incarnation: nobody else, and no earlier self, ever had this name."""
        self.name = f"{self.worker}.{secrets.token_hex(6)}"
        self.registered = False
        self.entry = NameClaim(self.ops, self.worker)

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
                self.settle(held, Settlement("release", held))
        return [held.job for held in unit if not held.ended]

    def finish(self, unit: Sequence[Held], now: float, error: BaseException | None, result: Any = None) -> None:
        """A handler ended."""
        took = now - unit[0].started
        self.mean = took if self.mean is None else self.mean + 0.2 * (took - self.mean)
        self.stuck = False
        if self.phase >= Phase.HALTING:  # it was told to give up: returning is no completion
            self.dropped += [held for held in unit if not held.ended]
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
                try:
                    ended = meant(held.job.id, error, result, batch=self.handler.batch)
                except BaseException as wrong:  # what a handler raises or returns may do anything when it is looked at
                    ended = wrong, None
                self.end(held, *ended)

    def end(self, held: Held, error: BaseException | None, result: Any = None) -> None:
        """How one job ended."""
        held.ended = True
        self.settle(held, self.verdict(held, error, result), error)

    def settle(self, held: Held, verdict: Settlement, error: BaseException | None = None) -> None:
        """One job's verdict."""
        held.ended = True
        if verdict.kind == "complete" or self.phase < Phase.HALTING:
            self.done.append(verdict)
            if verdict.kind != "complete":
                self.note("settled", held, verdict, error)
        else:
            self.dropped.append(held)
        self.forget(held)  # after its verdict: who finds neither takes everything for settled

    def verdict(
        self,
        held: Held,
        error: BaseException | None,
        result: Any = None,
        retry: Retry | None = None,
        anew: bool = False,
    ) -> Settlement:
        """What becomes of a job. *retry* instead of its handler's; *anew*: earlier failures don't count any more."""
        if error is None:
            try:
                return Settlement("complete", held, None if result is None else self.ops.result_bytes(result))
            except BaseException as wrong:  # whatever the user's codec raises is the job's failure
                error = wrong
        age = max(0.0, held.leased_at - held.job.enqueued_at)  # both of the server's clock
        policy = retry or self.of(held).retry
        try:
            verdict = judge(policy, held, error, age, self.default_wait, self.ops.result_bytes, anew=anew)
        except BaseException as wrong:  # a broken strategy object must not lose the job
            reason = f"{said(error)}; and what should judge it raised {said(wrong)}"
            return Settlement("retry", held, delay=60.0, reason=reason, attempts=policy.attempts)
        if verdict.kind == "release" and self.phase is not Phase.RUNNING:
            return Settlement("release", held)  # the worker stops: others may have it at once
        return verdict

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
        """How many more jobs may be leased: free slots, and what will start within `START_WITHIN_S`."""
        if self.stuck:
            return 0
        slots = self.handler.concurrency * (self.handler.max_size if self.handler.batch else 1)
        ahead = 0.0 if self.mean is None else slots * START_WITHIN_S / max(self.mean, 1e-6)
        most = slots + min(int(ahead), max(JOBS_PER_SCRIPT, slots))
        return min(LEASE_AT_MOST, most - len(self.held) - self.asking)

    def settlements(self) -> tuple[list[Op[list[bool]]], float | None, list[Claim]]:
        """Operations for the verdicts there are, in bounded scripts, the shortest delay of a retry among them, and the
        claims that they are about."""
        ops: list[Op[list[bool]]] = []
        soonest: float | None = None
        plain = [self.completed.popleft() for _ in range(min(len(self.completed), JOBS_PER_SCRIPT))]
        ops += [self.ops.complete(list(some)) for _, some in groupby(plain, key=attrgetter("worker"))]
        settled = plain.copy()
        groups: dict[tuple[Any, ...], list[Settlement]] = {}
        for _ in range(min(len(self.done), JOBS_PER_SCRIPT)):
            verdict = self.done.popleft()
            settled.append(verdict.claim)
            pause = verdict.delay if verdict.kind == "release" else None
            groups.setdefault((verdict.kind, verdict.claim.worker, verdict.attempts, pause), []).append(verdict)
        for (kind, _, attempts, pause), some in groups.items():
            claims = [v.claim for v in some]
            if kind == "complete":
                for part in parts(some, lambda v: len(v.result or b""), JOBS_PER_SCRIPT, BYTES_PER_SCRIPT):
                    results = {v.claim.entry: v.result for v in part if v.result is not None}
                    ops.append(self.ops.complete([v.claim for v in part], results=results))
            elif kind == "release":
                for few in parts(claims, lambda claim: claim.size, JOBS_PER_SCRIPT, BYTES_PER_SCRIPT):
                    ops.append(self.ops.release(few, pause=pause))
                if pause:
                    soonest = pause if soonest is None else min(pause, soonest)
            elif kind == "dead":
                dead = [(v.claim, v.reason) for v in some]
                ops += [
                    self.ops.dead_letter(part)
                    for part in parts(dead, lambda item: item[0].size, SOME, BYTES_PER_SCRIPT)
                ]
            else:
                items = [(v.claim, v.delay, v.spend, v.reason) for v in some]
                delays = [v.delay for v in some if isinstance(v.delay, float)]
                soonest = min(delays if soonest is None else [*delays, soonest], default=None)
                for again in parts(items, lambda item: item[0].size, SOME, BYTES_PER_SCRIPT):
                    ops.append(self.ops.retry(again, max_attempts=attempts))
        return ops, soonest, settled

    def unsettled(self) -> bool:
        """Whether there is a verdict to send."""
        return bool(self.completed or self.done)

    def running(self, now: float) -> list[Held]:
        """What a handler still works on, and may."""
        late = self.overdue(now)
        return [held for held in list(self.held.values()) if held.started and not held.ended and held not in late]

    def endless(self) -> list[Held]:
        """What runs and does not end by itself: nothing here."""
        return []

    def kept(self) -> list[Claim]:
        """What was leased and has not gone back: nobody has answered what became of it."""
        verdicts = [verdict.claim for verdict in list(self.done)]
        return [*list(self.held.values()), *self.dropped, *list(self.completed), *verdicts, *chain(*self.under_way)]

    def tend(self) -> Role:
        """What else wants looking after, now and then: nothing here."""
        yield from ()

    def measure(self) -> Role:
        """Read what is in the queue, if somebody wants to know it by now."""
        if self.gauge is None or not self.gauge.due():
            return
        counts, age = yield from send(self.ops.measure())
        self.gauge.read(counts, age)

    def fetch(self) -> Role:
        """Lease and settle until everything is settled and the worker stops."""
        while True:
            if self.phase >= Phase.DRAINING:
                yield from self.recall()
                if self.phase >= Phase.HALTING or not (self.held or self.unsettled()):
                    break
            settles, soonest, settled = self.settlements()
            room = self.room() if self.phase is Phase.RUNNING and self.registered and self.available else 0
            if self.asking and self.handler.concurrency == 1:
                room = 0  # two lease calls at a time may be answered in either order, and one slot promises order
            if not settles and room <= 0:
                yield Sleep((yield from self.idle()))
                continue
            ops: list[Op[Any]] = list(settles)
            name, woken, news = self.name, self.woken, self.news
            if room > 0:
                self.woken = False
                ops.append(self.ops.lease(name, room, woken=woken, kind=Held, heir_of=self.entry.heir_of))
                self.asking += room
            asked = yield from current_time()
            self.under_way.append(settled)
            try:
                replies = yield from send_all(ops)
            finally:
                self.asking -= max(0, room)
            self.under_way.remove(settled)
            for verdicts in replies[: len(settles)]:
                self.lost += verdicts.count(False)
            if room > 0:
                yield from self.granted(replies[-1], room, name, woken, news, asked)
            if self.stirred:
                yield from self.tend()
            if soonest is not None:
                self.expect((yield from current_time()), soonest)
            yield from self.gather()
        while (last := self.settlements())[0]:
            self.under_way.append(last[2])
            yield Send(last[0])
            self.under_way.remove(last[2])

    def expect(self, now: float, after: float) -> None:
        """A delayed job is due *after* seconds. Waited for here: a server may end a blocked read 0.1 s late."""
        self.again = now + after if self.again is None else min(now + after, self.again)

    def heard(self, now: float, swept: Reclaimed) -> bool:
        """What a look has told of what is to come, whoever made it so; whether it comes soon."""
        self.tick = None if swept.next_tick is None else now + swept.next_tick
        if swept.next_due is not None:
            self.expect(now, swept.next_due)
        return any(at is not None and at < now + 1.0 for at in (self.again, self.tick))

    def idle(self) -> Step[float]:
        """There is nothing to send; the seconds until there may be, if nobody pokes."""
        left = (yield from self.gather()) or 1.0
        now = yield from current_time()
        if self.again is not None:
            if self.again <= now:
                self.again, self.available = None, True
                if self.room() > 0:
                    return 0.0
            else:
                left = min(left, self.again - now)
        if not self.stuck and self.held and now - self.moved >= TAKE_BACK_AFTER_S:
            units = yield from take_back()
            if units:  # every slot is taken by something slow: others may be free
                self.stuck = True
                self.give_back(units)
                return 0.0
        return left

    def granted(self, grant: Grant | None, asked: int, name: str, woken: bool, news: int, since: float) -> Role:
        """Take in what a lease call under *name* brought; *news* were known when it was sent, at *since*."""
        if grant is None:
            if name == self.name:  # else we know already
                yield from self.died()
            return
        now = yield from current_time()
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
            self.done.append(Settlement("dead", claim, reason=reason))
        self.learn(grant, since)
        if len(grant.claims) + len(grant.undecodable) < asked and not grant.more:
            self.available = False
            if woken and not grant.claims:
                self.tick = 0.0  # it may have been a new schedule that rang
            yield Wake()  # `listen` may block now
        yield from self.share(self.admit(fresh), now)

    def learn(self, grant: Grant, since: float) -> None:
        """What a lease call tells besides jobs. Its times count from when it was sent: the next takes as long."""
        self.paused = grant.paused
        if not grant.paused or grant.claims:
            self.entry.heir_of = ""
        if grant.next_due is not None:
            self.expect(since, grant.next_due)

    def share(self, fresh: Sequence[Held], now: float) -> Role:
        """Jobs that are ours go to slots, or wait for their batch."""
        if self.handler.batch:
            if not self.gathered:
                self.full_at = now + self.handler.max_wait
            self.gathered += fresh
        elif fresh:
            self.moved = now
            yield Start([[held] for held in fresh])

    def gather(self) -> Step[float | None]:
        """Start the batches that are full, or old enough; the seconds until the next is."""
        if not self.gathered:
            return None
        now = yield from current_time()
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
        units = yield from take_back()
        self.give_back([*units, self.gathered])
        self.gathered = []

    def give_back(self, units: Sequence[Sequence[Held]]) -> None:
        """To the front, untouched."""
        for unit in units:
            for held in unit:
                if not held.ended:
                    self.settle(held, Settlement("release", held))

    def listen(self) -> Role:
        """Block on the server while there is nothing to lease and room for more."""
        while self.phase is Phase.RUNNING:
            if self.available or not self.registered or self.room() <= 0:
                yield Sleep(1.0)
                continue
            rung = yield from block(self.ops.wait(BLOCK_S, paused=self.paused))
            if rung or self.paused:  # it may go on by now
                self.woken = self.available = True
                yield Wake()

    # -- what becomes of leases ------------------------------------------------------------------------

    def died(self) -> Role:
        """Our peers declared us dead: what we hold runs elsewhere. Stop it, come back under a new name."""
        self.rename()  # first: what a call under the old name still brings is then known to be lost
        self.note("worker_declared_dead", None, None, None)
        yield from self.lose([held for held in list(self.held.values()) if held.worker != self.name])
        self.available = True
        yield Wake(everyone=True)  # the new name wants registering

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
        for start in range(0, len(mine), JOBS_PER_SCRIPT):
            part = mine[start : start + JOBS_PER_SCRIPT]
            yield from self.renewed(part, (yield from send(self.ops.renew(part))))

    def renewed(self, part: Sequence[Held], verdicts: Sequence[bool]) -> Role:
        """What came of renewing."""
        now = yield from current_time()
        for held, kept in zip(part, verdicts, strict=True):
            held.since = now if kept else held.since
        lost = [held for held, kept in zip(part, verdicts, strict=True) if not kept and not held.ended]
        if lost:
            yield from self.lose(lost)

    def renewals(self, now: float) -> list[Held]:
        """What has had its lease for a third of it."""
        third = self.ops.settings.lease / 3
        return [held for held in list(self.held.values()) if now - held.since >= third and not held.ended]

    def overdue(self, now: float) -> list[Held]:
        """What has run past the handler's deadline."""
        if self.handler.deadline is None:
            return []
        running = [held for held in list(self.held.values()) if held.started and not held.ended]
        return [held for held in running if now - held.started >= (self.of(held).deadline or FOREVER)]
