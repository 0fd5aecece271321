"""The consumer of one queue in a worker. It has the state of its jobs, from lease to settlement.

The roles work on consumers, in files named after them. A consumer decides how a job ends and how
many jobs may be leased, and lists the jobs that need attention. It sends nothing. Its subclasses in
`variants.py` and `_core/flows/consumer.py` override the hooks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import iscoroutinefunction
from itertools import chain
from typing import Any, ClassVar, Literal, cast

from attrs import define, evolve, field

from headrace._core.effects import HeldJob, Phase, Role
from headrace._core.verdicts import Settlement, SettlementBatch, judge, meant, operations
from headrace._core.worker.slots import SharedSlots
from headrace._core.worker.state import (
    ActiveJobs,
    FairLeasing,
    IdleMode,
    Leasing,
    NameClaim,
    Registration,
    Timers,
)
from headrace._core.worker.suspects import Suspects
from headrace._model.checks import FOREVER_S
from headrace._model.job import Claim, Job
from headrace._model.policy import Retry
from headrace._model.settings import HandlerSettings, WorkerSettings
from headrace._model.state import CHILDREN_TOLD
from headrace._model.timing import Declared
from headrace._protocol.features import results as result_ops
from headrace._protocol.limits import CLAIMS_PER_SCRIPT, JOBS_PER_SCRIPT, LEASED_PER_SCRIPT
from headrace._protocol.op import Op, TooLarge
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Died, Grant, Reclaimed, Verdicts
from headrace.errors import class_path, describe_error, traced

START_WITHIN_S = 0.05  # seconds in which a job that is leased ahead of a free slot should start
# the same with `fair`, at most: a quiet value waits behind jobs that are leased ahead
FAIR_START_WITHIN_S = 0.005
IDLE_S = 30.0  # seconds for which an idle role sleeps at most: events wake it earlier
# seconds past its deadline in which a coroutine should have ended: the event loop cuts it off
CUT_OFF_S = 1.0


def unobserved(*_: object) -> None:
    """Ignore an event. This is the default of `Consumer.note`."""


@define(eq=False)
class Consumer:
    """The state that the roles of one queue share. The engine may call `begin` and `finished` from
    any thread."""

    ops: Ops
    handler: HandlerSettings
    worker: str
    default_wait: Callable[[Any], float]
    # the user chose the name: no other worker may live under it
    named: bool = field(default=False, kw_only=True)
    phase: Phase = Phase.RUNNING
    # with the consumers of the other shards, if its queue has several
    shared: SharedSlots | None = None
    suspects: Suspects = field(factory=Suspects)  # of its worker
    leasing: Leasing = field(factory=Leasing)
    jobs: ActiveJobs = field(factory=ActiveJobs)
    registration: Registration = field(init=False)
    timers: Timers = field(factory=Timers)
    idle: IdleMode = field(factory=IdleMode)
    # the schedules that the code declares, if this queue has tasks
    recurring: Declared | None = None
    note: Callable[[str, HeldJob | None, Settlement | None, BaseException | None], object] = (
        unobserved
    )
    gauge: Any = None  # the telemetry that reads the counts
    concurrency: int = field(init=False)  # handlers at once; of all shards

    def __attrs_post_init__(self) -> None:
        others: Sequence[Consumer] = () if self.shared is None else self.shared.members
        self.concurrency = others[0].concurrency if others else self.handler.concurrency
        self.registration = Registration(self.new_name(), NameClaim(self.ops, self.worker))
        if (terms := self.ops.settings.terms) is not None:
            self.leasing.fair = FairLeasing(
                terms.structure, undeclared=True, weights=dict(terms.weights)
            )

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def registered(self) -> bool:
        return self.registration.registered

    def new_name(self) -> str:
        return f"{self.worker}.{secrets.token_hex(6)}"

    def rename(self) -> None:
        registration = self.registration
        registration.name = self.new_name()
        registration.name_claim = NameClaim(self.ops, self.worker)
        registration.registered = self.idle.on = self.idle.all_idle = False
        if (fair := self.leasing.fair) is not None:
            fair.undeclared = fair.own != ""
            fair.said = False

    @property
    def stalls_at_most(self) -> float:
        """Seconds for which jobs are kept while the engine of the handlers stands still. They are a
        lease, or a longer deadline.
        """
        handlers = list(self.handler.kinds.values()) or [self.handler]
        return max(self.ops.settings.lease, *(handler.deadline or 0.0 for handler in handlers))

    # -- hooks that subclasses override ------------------------------------------------------------

    def of(self, held: HeldJob) -> HandlerSettings:  # noqa: ARG002 - one for all, unless they are of several kinds
        return self.handler

    def prepare(self, claims: Sequence[Claim]) -> Role:  # noqa: ARG002 - nothing here
        yield from ()

    def admit(self, fresh: Sequence[HeldJob]) -> Sequence[HeldJob]:
        return fresh

    completes_at_once: ClassVar[bool] = True
    """Whether `completes` records nothing but that a job without a result is done."""

    def completes(self, held: HeldJob, result: Any) -> bool:
        """Record that a job is done by its result. Return false if that is still to be judged."""
        if result is None:
            self.jobs.completed.append(held)
        return result is None

    def operations(self, some: Sequence[Settlement]) -> Iterator[Op[list[bool]]]:
        return operations(self.ops, some)

    def declares(self) -> dict[str, str]:
        return {}

    def housekeep(self) -> Role:
        yield from ()

    def endless(self) -> list[HeldJob]:
        return []

    # -- called by the engine ----------------------------------------------------------------------

    def begin(self, unit: Sequence[HeldJob], now: float) -> list[Job]:
        """Start a handler on *unit*. Return its jobs that are still ours, or none if the worker
        stops."""
        self.jobs.slot_moved_at = now
        stopping = self.phase is not Phase.RUNNING
        if len(unit) == 1 and not stopping:  # nearly always
            held = unit[0]
            held.started = now
            return [] if held.ended else [held.job]
        for held in unit:
            held.started = now
            if stopping and not held.ended:
                self.settle(held, Settlement("release", held))
        return [held.job for held in unit if not held.ended]

    def finished(
        self, unit: Sequence[HeldJob], now: float, error: BaseException | None, result: Any = None
    ) -> None:
        jobs = self.jobs
        took = now - unit[0].started
        jobs.unsampled += 1
        if jobs.unsampled >= jobs.tally.gap:
            jobs.tally.sample(unit, now, jobs.unsampled, self.ops.settings.priorities)
            jobs.unsampled = 0
        if self.ops.settings.history:
            for held in unit:
                cast("Any", held).ran = took  # mypy knows no attribute of the base's slots
        jobs.mean = took if jobs.mean is None else jobs.mean + 0.2 * (took - jobs.mean)
        if self.shared is not None:
            self.shared.mean = jobs.mean
            self.shared.now = now
        # the handler was told to give up: its return is no completion
        if self.phase >= Phase.HALTING:
            jobs.dropped += [held for held in unit if not held.ended]
            for held in unit:
                held.ended = True
                self.forget(held)
            return
        if jobs.runs and (run := jobs.runs.pop(unit[0], None)) is not None:
            run.close(completed=error is None and not unit[0].ended)
        plain = error is None and result is None  # nearly every job
        for held in unit:
            if held.ended:
                continue
            if plain and self.completes_at_once:  # the same as `ended`, but faster
                held.ended = True
                jobs.completed.append(held)
                self.forget(held)
                continue
            try:
                ended = meant(held.job.id, error, result, batch=self.handler.batch)
            except BaseException as wrong:  # to inspect an exception or a result may run any code
                ended = wrong, None
            self.ended(held, *ended)

    def depart(self, held: Claim) -> None:
        """Forget a job that was suspended, or taken from us, while its handler runs. Its end does
        not count."""
        cast("HeldJob", held).ended = True
        self.forget(cast("HeldJob", held))

    def parts(self, held: HeldJob) -> bool:
        """Tell whether the call that suspends a run is under way. Its answer says whether the job
        was ours. By now the job may be here again.
        """
        run = self.jobs.runs.get(held)
        return run is not None and run.parting

    def slot_freed(self) -> None:
        """Record that a slot is free. Jobs that were returned for lack of a slot may be leased
        again."""
        self.leasing.saturated = False
        if self.shared is not None and self.shared.saturated:
            self.shared.moved()

    # -- how jobs end ------------------------------------------------------------------------------

    def ended(self, held: HeldJob, error: BaseException | None, result: Any = None) -> None:
        held.ended = True
        if error is None:
            try:
                if self.completes(held, result):
                    self.forget(held)
                    return
            except BaseException as wrong:  # any error from the result is the job's failure
                error = wrong
        self.settle(held, self.judge(held, error, result), error)

    def settle(
        self, held: HeldJob, verdict: Settlement, error: BaseException | None = None
    ) -> None:
        held.ended = True
        settings = self.ops.settings
        if error is not None and verdict.kind in ("retry", "dead"):
            if settings.tracebacks:
                verdict = evolve(verdict, traceback=traced(error))
            if settings.history:
                verdict = evolve(verdict, raised=class_path(error))
        if verdict.may_bury:
            verdict = evolve(verdict, error=error)
        if verdict.kind == "complete" or self.phase < Phase.HALTING:
            self.jobs.done.append(verdict)
            if verdict.kind == "release" and self.phase is not Phase.RUNNING:
                self.jobs.given_back += 1
            if verdict.kind != "complete" and not verdict.may_bury:
                self.note("settled", held, verdict, error)
        else:
            self.jobs.dropped.append(held)
        self.forget(held)  # after the settlement: if both were missing, all jobs would look settled

    def judge(
        self,
        held: HeldJob,
        error: BaseException | None,
        result: Any = None,
        retry: Retry | None = None,
        anew: bool = False,
    ) -> Settlement:
        """Decide how a job ends. *retry* replaces its handler's own. With *anew*, earlier failures
        do not count any more.
        """
        if error is None:
            return Settlement(
                "complete", held, None if result is None else self.encoded(held, result)
            )
        age = max(0.0, held.leased_at - held.job.enqueued_at)  # both by the server's clock
        policy = retry or self.of(held).retry
        stopping = self.phase is not Phase.RUNNING
        keep = partial(self.encoded, held)
        try:
            verdict = judge(
                policy, held, error, age, self.default_wait, keep, anew=anew, stopping=stopping
            )
        except BaseException as wrong:  # a broken strategy object must not lose the job
            reason = (
                f"{describe_error(error)}; and what should judge it raised {describe_error(wrong)}"
            )
            return Settlement(
                "retry", held, delay=60.0, reason=reason, attempts=policy.attempts or 0
            )
        if verdict.kind == "release" and stopping:
            # the worker stops: other workers may have the job at once
            return Settlement("release", held)
        return verdict

    def dies(
        self, held: HeldJob, error: BaseException | None, result: Any, *, anew: bool
    ) -> str | None:
        """Return why a job would be a dead letter, if its handler ended so. Return `None` if it
        would not. *anew* as in `judge`: its attempts start again.
        """
        try:
            error, _ = meant(held.job.id, error, result, batch=False)
        except BaseException as wrong:
            error = wrong
        if error is None:
            return None
        verdict = self.judge(held, error, anew=anew)
        last = verdict.attempts == 1 if anew else verdict.may_bury
        dead = verdict.kind == "dead" or (verdict.kind == "retry" and verdict.spend == 1 and last)
        return verdict.reason if dead else None

    def answered(self, sent: Sequence[Settlement], verdicts: Verdicts) -> list[tuple[str, Died]]:
        """Note which of these jobs are dead letters now. Return all other new dead letters, each
        with its queue."""
        for number, (verdict, settled) in enumerate(zip(sent, verdicts, strict=False)):
            if settled and verdict.may_bury:
                kind = "dead" if number in verdicts.letters else "retry"
                self.note(
                    "settled",
                    cast("HeldJob", verdict.claim),
                    evolve(verdict, kind=kind),
                    verdict.error,
                )
        return [letter for number, letter in verdicts.letters.items() if number < 0]

    def encoded(self, held: HeldJob, result: Any) -> bytes | None:
        """Encode a result. Log a failure, and return `None`, as the handler succeeded, and does not
        run again."""
        try:
            encode = self.of(held).encode
            return result_ops.result_bytes(self.ops, result if encode is None else encode(result))
        except BaseException as wrong:  # whatever the user's codec raises
            self.note("result_dropped", held, None, wrong)
            return None

    def refused(self, settling: SettlementBatch, error: TooLarge) -> None:
        """Drop the results of *settling* that the server refused as too large, and queue all
        settlements again. If another value is too large, its job fails.
        """
        self.jobs.completed.extendleft(reversed(settling.plain))
        for verdict in settling.verdicts:
            held = cast("HeldJob", verdict.claim)
            if (
                verdict.largest > error.limit
                and (less := verdict.without_result()).largest <= error.limit
            ):
                self.note("result_dropped", held, None, error)
                self.jobs.done.append(less)
            elif verdict.largest > error.limit:
                self.settle(held, self.judge(held, error), error)
            else:
                self.jobs.done.append(verdict)

    def give_back(self, units: Sequence[Sequence[HeldJob]]) -> None:
        for unit in units:
            for held in unit:
                if not held.ended:
                    self.settle(held, Settlement("release", held))

    def forget(self, held: HeldJob) -> None:
        """Stop counting a job as held. Other threads may do so at the same time."""
        if self.jobs.held.get(held.entry) is held:
            self.jobs.held.pop(held.entry, None)

    # -- called by the roles -----------------------------------------------------------------------

    def lease(
        self, name: str, limit: int, woken: bool | Literal[2], predecessor: str = ""
    ) -> Op[Grant | None]:
        # under a name that is ours, or was when the call was decided
        handler = self.handler
        return self.ops.lease(
            name,
            limit,
            woken=woken,
            kind=HeldJob,
            predecessor=predecessor,
            batch=handler.max_size if handler.batch else 1,
            same=handler.same,
            apart=self.suspects.may_come(self),
            fair=self.leasing.lines,
        )

    def sign(self, settings: WorkerSettings, now: float) -> Op[Any]:
        if self.named and not self.registered:
            return self.registration.name_claim.op(
                self.name, settings, now, self.handler.announced_kinds()
            )
        if self.registered:
            return self.ops.beat(self.name, settings.timeout)
        return self.ops.beat(
            self.name, settings.timeout, register=True, kinds=self.handler.announced_kinds()
        )

    def facts(self) -> dict[str, Any]:
        """Return what the worker reports about this queue."""
        known: dict[str, Any] = {"slots": self.slots()}
        if self.concurrency != self.handler.concurrency:
            known["own"] = self.slots() // self.concurrency * self.handler.concurrency
        if self.handler.children is not None:
            known["children"] = self.handler.children()[:CHILDREN_TOLD]
        if self.handler.build:
            known["build"] = self.handler.build
        if missing := self.jobs.missing.report():
            known["missing"] = missing
        return known

    def slots(self) -> int:
        return self.concurrency * (self.handler.max_size if self.handler.batch else 1)

    def ahead(self) -> int:
        """Return how many jobs may be leased ahead of free slots, as they will start within
        `START_WITHIN_S`. With `fair` they start while two lease calls are under way.

        With limits no job is leased ahead, because a job that waits for a handler here would take a
        slot that others could use.
        """
        fair = self.leasing.fair
        if fair is not None and fair.queues.limits:
            return 0
        within = (
            START_WITHIN_S
            if fair is None or not fair.queues.path
            else min(2 * fair.call_s, FAIR_START_WITHIN_S)
        )
        return min(self.starts_within(within), max(JOBS_PER_SCRIPT, self.slots()))

    def starts_within(self, seconds: float) -> int:
        """Return how many jobs will start within *seconds*, judged by earlier handlers. It is 0 if
        none has ended."""
        mean = self.jobs.mean if self.shared is None else self.shared.mean
        return 0 if mean is None else int(self.slots() * seconds / max(mean, 1e-6))

    def counted(self, now: float, host: str) -> str:
        """Return the counts since the last call, for the script `tally`. It is '' without
        anything, or if the queue is to keep no trends.
        """
        members = 1 if self.shared is None else len(self.shared.members)
        running = [one for one in list(self.jobs.held.values()) if one.started and not one.ended]
        batch = self.handler.max_size if self.handler.batch else 1
        said = self.jobs.tally.taken(now, host, self.concurrency / max(1, members), running, batch)
        return "" if self.ops.settings.trends is False else said

    def free(self) -> int:
        if self.leasing.saturated:
            return 0
        most = self.slots() + self.ahead()
        return most - (self.used() if self.shared is None else self.shared.used())

    def used(self) -> int:
        return len(self.jobs.held) + self.leasing.asking + self.leasing.piggybacked

    def room(self) -> int:
        return min(CLAIMS_PER_SCRIPT if self.handler.batch else LEASED_PER_SCRIPT, self.free())

    def wait_for_slot(self) -> None:
        self.leasing.saturated = True
        if self.shared is not None:
            self.shared.saturated = True

    def waits(self) -> bool:
        """Tell whether to block on the server. It must know no available job, have free slots, and
        may lease."""
        if self.leasing.available or not self.may_lease():
            return False
        # room() takes longer, and most of many queues are idle
        return self.untouched() or self.room() > 0

    def untouched(self) -> bool:
        return self.shared is None and not self.leasing.saturated and not self.used()

    def may_lease(self) -> bool:
        return (
            self.phase is Phase.RUNNING
            and self.registered
            and not self.leasing.barred
            and not self.suspects.bar(self)
        )

    def may_idle(self) -> bool:
        """Tell whether the queue is idle for this worker, and the worker is subscribed to activity
        notices."""
        idle = self.registered and self.phase is Phase.RUNNING
        idle = idle and not (self.used() or self.jobs.under_way or self.unsettled())
        # it asks whether the terms change
        if (fair := self.leasing.fair) is not None and fair.differs:
            return False
        return (
            idle
            and self.idle.subscribed
            and not (self.named or self.leasing.paused or self.handler.persistent)
        )

    def piggyback_limit(self) -> int:
        """Return how many jobs a lease call behind a blocked read may ask for. If it is 0, only
        `fetch` leases.

        The number leaves room for jobs that become due meanwhile. With one slot, one lease call is
        sent at a time. Only `fetch` gathers batches.
        """
        room = self.room()
        if (
            self.handler.batch
            or self.leasing.paused
            or self.registration.name_claim.predecessor
            or self.shared is not None
        ):
            return 0
        if self.timers.due_at is None:
            return max(1, room // 2)
        return room // 2 if self.concurrency > 1 else 0

    def unsettled(self) -> bool:
        return bool(self.jobs.completed or self.jobs.done)

    def running(self, now: float) -> list[HeldJob]:
        late = self.overdue(now)
        return [
            held
            for held in list(self.jobs.held.values())
            if held.started and not held.ended and held not in late
        ]

    def kept(self) -> list[Claim]:
        """List the claims whose settlement, if any, was not answered."""
        verdicts = [verdict.claim for verdict in list(self.jobs.done)]
        under_way = chain(*(settling.claims for settling in self.jobs.under_way))
        return [
            *list(self.jobs.held.values()),
            *self.jobs.dropped,
            *list(self.jobs.completed),
            *verdicts,
            *under_way,
        ]

    def renewals(self, now: float) -> list[HeldJob]:
        third = self.ops.settings.lease / 3
        return [
            held
            for held in list(self.jobs.held.values())
            if now - held.since >= third and not held.ended
        ]

    def overdue(self, now: float) -> list[HeldJob]:
        """List the jobs that have run past their deadlines, except coroutines that the event loop
        is cutting off."""
        if self.handler.deadline is None:
            return []
        running = [
            held for held in list(self.jobs.held.values()) if held.started and not held.ended
        ]
        return [held for held in running if now - held.started >= self._ends_within(self.of(held))]

    @staticmethod
    def _ends_within(handler: HandlerSettings) -> float:
        if handler.deadline is None or handler.isolation is not None:
            return FOREVER_S  # the child of an isolated handler is killed in time
        return handler.deadline + (CUT_OFF_S if iscoroutinefunction(handler.function) else 0.0)

    def expect(self, now: float, after: float) -> None:
        """Wait for a job due in *after* seconds, by the worker's clock. A blocked read may end 0.1
        s late."""
        self.timers.due_at = (
            now + after if self.timers.due_at is None else min(now + after, self.timers.due_at)
        )

    def note_due(self, now: float, swept: Reclaimed) -> bool:
        """Record when delayed jobs and schedules are due, from a reclaim. Return true if roles must
        wake for it."""
        self.timers.tick_at = None if swept.next_tick is None else now + swept.next_tick
        if swept.next_due is not None:
            self.expect(now, swept.next_due)
        return any(
            at is not None and at < now + IDLE_S for at in (self.timers.due_at, self.timers.tick_at)
        )
