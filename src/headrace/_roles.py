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
from typing import Any, cast

from attrs import define, field, frozen

from headrace._job import Claim, Grant, Job, Reclaimed
from headrace._op import Arg, Op
from headrace._ops import BATCH, Ops
from headrace._settings import HandlerSettings, Retry, WorkerSettings
from headrace.errors import BatchError, DeadLetter, Release, RetryLater

SOON = 0.05  # seconds: what is leased ahead of a free slot should start within this
BLOCK = 1.0  # seconds a blocked read lasts at most


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
    """Wake the roles of this feed, or of the whole worker."""

    everyone: bool = False


Effect = Send | Listen | Pause | Now | Start | Recall | Abort | Poke
Role = Generator[Effect, Any, None]


@define(eq=False)
class Held:
    """A delivered job between lease and settlement."""

    claim: Claim
    since: float  # of the lease, or its last renewal
    started: float = 0.0  # 0: not yet
    ended: bool = False  # settled or given up: what the handler still says does not count
    run: Any = None  # the engine's own handle on the running handler


@frozen
class Verdict:
    """How a delivered job is settled: complete, release, retry or dead."""

    kind: str
    claim: Claim
    result: bytes | None = None
    delay: float = 0.0
    spend: bool = True
    reason: str = ""


@frozen
class Outcome:
    """What tenacity's `retry_*`, `stop_*` and `wait_*` objects ask of a future."""

    error: BaseException
    failed: bool = True

    def exception(self) -> BaseException:
        """What the handler raised."""
        return self.error

    def result(self) -> Any:
        """Raises it."""
        raise self.error


@frozen
class Attempt:
    """The part of tenacity's `RetryCallState` that its strategy objects read."""

    attempt_number: int
    outcome: Outcome
    seconds_since_start: float
    idle_for: float = 0.0
    upcoming_sleep: float = 0.0
    next_action: Any = None
    fn: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(factory=dict[str, Any])
    retry_object: Any = None


def judge(policy: Retry, claim: Claim, error: BaseException, age: float, wait: Callable[[Any], float]) -> Verdict:
    """How a job ends whose handler raised *error*. *wait* is the default strategy."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, RetryLater):
        return Verdict("retry", claim, delay=error.delay, spend=error.spend, reason=error.reason or reason)
    if isinstance(error, DeadLetter):
        return Verdict("dead", claim, reason=error.reason)
    if isinstance(error, Release) or not isinstance(error, Exception):
        return Verdict("release", claim)  # cancelled or interrupted: not the job's fault
    state = Attempt(claim.job.attempt, Outcome(error), age)
    if policy.retry is not None and not policy.retry(state):
        return Verdict("dead", claim, reason=reason)
    if policy.stop is not None and policy.stop(state):
        return Verdict("dead", claim, reason=reason)
    strategy: Any = policy.wait if policy.wait is not None else wait
    delay = float(cast(Any, strategy(state) if callable(strategy) else strategy))
    return Verdict("retry", claim, delay=max(0.0, delay), reason=reason)


@define(eq=False)
class Feed:
    """The jobs of one handler, from lease to settlement. The engine may call `begin` and `finish` from any thread."""

    ops: Ops
    handler: HandlerSettings
    worker: str
    default_wait: Callable[[Any], float]
    name: str = ""
    phase: Phase = Phase.RUNNING
    held: dict[str, Held] = field(factory=dict[str, Held])
    done: deque[Verdict] = field(factory=deque[Verdict])
    registered: bool = False
    available: bool = True
    woken: bool = False
    gathered: list[Held] = field(factory=list[Held])
    mean: float | None = None  # seconds a unit takes
    next_due: float | None = None
    cursor: str = "-"
    lost: int = 0  # settlements that came too late

    def __attrs_post_init__(self) -> None:
        self.rename()

    def rename(self) -> None:
        """A new incarnation: nobody else, and no earlier self, ever had this name."""
        self.name = f"{self.worker}.{secrets.token_hex(6)}"
        self.registered = False

    # -- what the engine tells us -----------------------------------------------------------------

    def begin(self, unit: Sequence[Held], now: float) -> list[Job]:
        """A handler starts on *unit*: the jobs of it that are still ours."""
        for held in unit:
            held.started = now
        return [held.claim.job for held in unit if not held.ended]

    def finish(self, unit: Sequence[Held], now: float, error: BaseException | None, result: Any = None) -> None:
        """A handler ended."""
        took = now - unit[0].started
        self.mean = took if self.mean is None else self.mean + 0.2 * (took - self.mean)
        failures: dict[str, BaseException] = {}
        if isinstance(error, BatchError) and self.handler.batch:
            failures, error = error.failures, None
        for held in unit:
            if not held.ended:
                self.end(held, error or failures.get(held.claim.job.id), result)

    def end(self, held: Held, error: BaseException | None, result: Any = None) -> None:
        """One job's verdict; what was lost is not settled, but a completion may still win."""
        held.ended = True
        claim = held.claim
        if self.held.get(claim.entry) is held:
            del self.held[claim.entry]
        if error is None:
            try:
                kept = None if result is None else self.ops.result_bytes(result)
            except Exception as wrong:  # whatever the user's codec raises is the job's failure
                error = wrong
            else:
                self.done.append(Verdict("complete", claim, kept))
                return
        if not claim.job.lost and self.phase < Phase.HALTING:
            age = claim.leased_at - claim.job.enqueued_at  # both of the server's clock
            try:
                verdict = judge(self.handler.retry, claim, error, max(0.0, age), self.default_wait)
            except Exception as wrong:  # a broken strategy object must not lose the job
                verdict = Verdict("retry", claim, delay=60.0, reason=f"{error!r}; and its Retry raised {wrong!r}")
            self.done.append(verdict)

    # -- fetch: lease and settle --------------------------------------------------------------------

    def room(self) -> int:
        """How many more jobs may be leased: free slots, and what will start within `SOON`."""
        slots = self.handler.concurrency * (self.handler.max_size if self.handler.batch else 1)
        ahead = 0.0 if self.mean is None else slots * SOON / max(self.mean, 1e-6)
        most = slots + min(int(ahead), max(BATCH, slots))
        return min(BATCH, most - len(self.held))

    def settlements(self) -> list[Op[list[bool]]]:
        """Operations for the verdicts there are, in bounded scripts."""
        groups: dict[tuple[str, str], list[Verdict]] = {}
        for _ in range(min(len(self.done), BATCH)):
            verdict = self.done.popleft()
            groups.setdefault((verdict.kind, verdict.claim.worker), []).append(verdict)
        ops: list[Op[list[bool]]] = []
        for (kind, _), some in groups.items():
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
                ops.append(self.ops.retry(items, max_attempts=self.handler.retry.attempts))
        return ops

    def fetch(self) -> Role:
        """Lease and settle until everything is settled and the worker stops."""
        while True:
            if self.phase >= Phase.DRAINING:
                yield from self.recall()
                if self.phase >= Phase.HALTING or not (self.held or self.done):
                    break
            settles = self.settlements()
            room = self.room() if self.phase is Phase.RUNNING and self.registered and self.available else 0
            if not settles and room <= 0:
                yield Pause((yield from self.gather()) or 1.0)
                continue
            ops: list[Op[Any]] = list(settles)
            if room > 0:
                ops.append(self.ops.lease(self.name, room, woken=self.woken))
                self.woken = False
            replies = cast("list[Any]", (yield Send(ops)))
            for verdicts in replies[: len(settles)]:
                self.lost += verdicts.count(False)
            if room > 0:
                yield from self.granted(replies[-1], room)
            yield from self.gather()
        if settles := self.settlements():
            yield Send(settles)

    def granted(self, grant: Grant | None, asked: int) -> Role:
        """Take in what a lease call brought."""
        if grant is None:
            yield from self.died()
            return
        now = cast(float, (yield Now()))
        fresh = [Held(claim, now) for claim in grant.claims]
        for held in fresh:
            self.held[held.claim.entry] = held
        for claim, reason in grant.undecodable:
            self.done.append(Verdict("dead", claim, reason=reason))
        self.next_due = grant.next_due
        if len(fresh) + len(grant.undecodable) < asked:
            self.available = False
            yield Poke()  # `listen` may block now
        if self.handler.batch:
            self.gathered += fresh
        elif fresh:
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
        left: float | None = None
        if self.gathered:
            left = self.gathered[0].since + self.handler.max_wait - now
            if left <= 0:
                units.append(self.gathered)
                self.gathered, left = [], None
        if units:
            yield Start(units)
        return None if left is None else max(left, 0.001)

    def recall(self) -> Role:
        """What has not started goes back to the front."""
        units = cast("list[list[Held]]", (yield Recall()))
        for unit in [*units, self.gathered]:
            for held in unit:
                if not held.ended:
                    self.end(held, Release())
        self.gathered = []

    def listen(self) -> Role:
        """Block on the server while there is nothing to lease and room for more."""
        while self.phase is Phase.RUNNING:
            if self.available or not self.registered or self.room() <= 0:
                yield Pause(1.0)
                continue
            due = self.next_due
            rung = cast(
                bool,
                (yield Listen(self.ops.wait(BLOCK if due is None else min(BLOCK, max(due, 0.001))))),
            )
            if rung or due is not None:
                self.woken = self.available = True
                yield Poke()

    # -- what becomes of leases ------------------------------------------------------------------------

    def died(self) -> Role:
        """Our peers declared us dead: what we hold runs elsewhere. Stop it, come back under a new name."""
        gone = list(self.held.values())
        yield from self.lose(gone)
        self.rename()
        self.available = True
        yield Poke(everyone=True)  # the new name wants registering

    def lose(self, gone: Sequence[Held]) -> Role:
        """These jobs are no longer ours; their handlers are told."""
        for held in gone:
            if self.held.get(held.claim.entry) is held:
                del self.held[held.claim.entry]
            if not held.started:
                held.ended = True
        yield Abort([held for held in gone if held.started])

    def renewals(self, now: float) -> list[Held]:
        """What has had its lease for a third of it."""
        third = self.ops.settings.lease / 3
        return [held for held in list(self.held.values()) if now - held.since >= third and not held.ended][:BATCH]

    def overdue(self, now: float) -> list[Held]:
        """What has run past the handler's deadline."""
        limit = self.handler.deadline
        if limit is None:
            return []
        return [h for h in list(self.held.values()) if h.started and not h.ended and now - h.started >= limit]


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
            alive = cast(
                "list[bool]",
                (
                    yield Send(
                        [
                            feed.ops.beat(feed.name, self.settings.timeout, register=new)
                            for feed, new in zip(feeds, fresh, strict=True)
                        ]
                    )
                ),
            )
            again = False
            for feed, new, name, yes in zip(feeds, fresh, names, alive, strict=True):
                if feed.name != name:
                    again = True  # it died and was renamed while we asked
                elif yes:
                    feed.registered = True
                else:
                    yield from feed.died()
                    again = True
                if new:
                    yield Poke()
            yield Pause(0.0 if again else self.settings.heartbeat)

    def keep(self) -> Role:
        """Renew our leases; put back the jobs of the dead and of expired leases; promote what is due."""
        spans = [self.settings.heartbeat]
        for feed in self.feeds:
            spans += (feed.ops.settings.lease / 6, (feed.handler.deadline or 60.0) / 4)
        tick = min(spans)
        while self.phase < Phase.HALTING:
            now = cast(float, (yield Now()))
            hurry = further = False
            for feed in self.feeds:
                for held in feed.overdue(now):
                    feed.end(
                        held,
                        TimeoutError(f"the handler ran past its deadline of {feed.handler.deadline:g} s"),
                    )
                    yield Abort([held])
                    yield Poke()
                renew = [held for held in feed.renewals(now) if held.claim.worker == feed.name]
                ops: list[Op[Any]] = [feed.ops.renew([held.claim for held in renew])] if renew else []
                if feed.registered:
                    ops.append(feed.ops.reclaim(feed.name, self.settings.timeout, feed.cursor))
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
                    feed.cursor = replies[-1].cursor
                    hurry = hurry or replies[-1].more
                    further = further or feed.cursor != "-"
            yield Pause(0.01 if hurry else min(tick, 0.25) if further else tick)
