"""The state of a consumer, in four parts, and the claim of its name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import BlockThen, Call, HeldJob
from headrace._core.steps.away import Homes
from headrace._core.verdicts import Settlement, SettlementBatch
from headrace._core.worker.tally import Tally
from headrace._model.job import Claim
from headrace._model.settings import WorkerSettings
from headrace._model.terms import Structure
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Entered
from headrace.errors import NameTaken


@define(eq=False)
class NameClaim:
    ops: Ops
    name: str  # the name without its random part
    seen: str = ""  # the worker that may live under it, in the server's words
    since: float = 0.0  # when we saw that worker
    predecessor: str = ""  # the worker that had this name before; jobs that it still holds are ours

    def op(
        self, worker: str, settings: WorkerSettings, now: float, kinds: Sequence[str]
    ) -> Op[Entered]:
        # the worker that had our name is dead, if it gave no sign of life in this time
        decide = bool(self.seen) and now - self.since >= 1.5 * settings.heartbeat
        return self.ops.register(
            worker, self.name, settings.timeout, self.seen, decide=decide, kinds=kinds
        )

    def admits(self, answer: Entered, now: float) -> bool:
        """Tell whether the name is ours. If not, ask again. Raises `NameTaken` if another live
        worker has the name."""
        if answer.verdict < 0:
            raise NameTaken(
                f"name={self.name!r}: {answer.other} lives under this name, on queue {self.ops.keys.queue!r}; give "
                "each process a name of its own, or none, or stop the other; one that was killed is forgotten in a "
                "moment"
            )
        if answer.verdict > 0:
            self.predecessor = answer.other
        elif not self.seen:
            self.seen = answer.other
            self.since = now
        return answer.verdict > 0


@define(eq=False)
class Spread:
    """Handlers that were free at once, and begin one after another, so that they do not end in
    step."""

    left: int = 0  # handlers that wait for their moment
    next_at: float = 0.0  # when the next of them may begin
    gap: float = 0.0  # seconds between two of them
    again_at: float = 0.0  # handlers may wait again from this moment on

    def take(self, most: int, now: float) -> int:
        if now < self.next_at:
            return 0
        taken = min(most, self.left, 1 + int((now - self.next_at) / self.gap))
        self.left -= taken
        self.next_at += taken * self.gap
        return taken

    def pause(self, now: float) -> float | None:
        return self.next_at - now if self.left and self.next_at > now else None


@define(eq=False)
class FairLeasing:
    """The terms by which a consumer leases. `_core/worker/terms` and `_core/fair/roles` write
    it."""

    own: str  # the structure of the terms that this worker declares, '' for none
    undeclared: bool  # the server is to be told, or asked, before anything is leased
    said: bool = False  # the server has been told under this name
    queues: Structure = field(init=False)  # the structure of the terms that the queue has
    # that this worker declares, by value
    weights: dict[Any, float] = field(factory=dict[Any, float])
    known: bool = False  # the server has said which terms the queue has
    logged: bool = False  # the log says that these are not the worker's own
    unread: bool = False  # the last look at new jobs did not reach their end
    looked_at: float = 0.0  # when a call has looked last
    asked_at: float = 0.0  # when the server was asked last whether the terms change
    jobs: int = 0  # jobs leased under these terms
    absent: set[str] = field(factory=set[str])  # the headers of the terms that none of these had
    call_s: float = 0.0025  # seconds that a lease call takes
    spread: Spread = field(factory=Spread)

    def __attrs_post_init__(self) -> None:
        self.obey(self.own)

    @property
    def differs(self) -> bool:
        return self.own != self.queues.text

    def obey(self, structure: str) -> None:
        self.queues = Structure.read(structure)
        self.jobs = 0
        self.absent = set(self.queues.headers)
        self.unread = self.unread and bool(structure)


@define(eq=False)
class Leasing:
    """The lease calls of a consumer that are under way, and whether another may follow. `fetch` and
    `wait` write it. `control` wakes these roles through it.
    """

    asking: int = 0  # jobs that the lease calls under way ask for
    asked_at: float = 0.0  # when the last lease call was sent
    sending: int = 0  # round trips of `fetch` that are under way
    # jobs that the lease call behind a blocked read asks for; set by the role `wait` alone
    piggybacked: int = 0
    last_piggyback: dict[tuple[Any, ...], BlockThen] = field(
        factory=dict[tuple[Any, ...], BlockThen]
    )
    """The last lease calls behind blocked reads, by name, number, and whether a suspect may
    come."""
    available: bool = True  # the queue may have jobs to lease
    backlog: bool = False  # the last lease call brought as many jobs as it asked for
    woken: bool = False
    saturated: bool = False  # no slot becomes free: lease nothing until a slot is freed
    # the queue is ordered, and older jobs of these keys are in other shards
    blocked_by_older: bool = False
    paused: bool = False
    quiet: bool = False  # an operator asks this worker to lease nothing
    # handlers that an operator wants at once, 0 for the number in the code
    wanted: int = 0
    shard_gone: bool = False  # its shard is gone
    # the queue's number of levels that was logged, as this worker knows fewer
    levels_logged: int = 0
    loss_notices: int = 0  # number of messages that leases were taken from us
    admissions: Sequence[Callable[[Sequence[HeldJob]], Call[Sequence[HeldJob]]]] = ()
    """The features that decide which leased jobs start now. Each returns these, and has settled the
    others. Its line in the engine's `FEATURES` adds it."""
    fair: FairLeasing | None = None  # if the queue had terms, or the worker declares some

    @property
    def barred(self) -> bool:
        """Whether nothing may be leased for now. An operator asks for that, older jobs are in other
        shards, or the worker has not declared its terms.
        """
        return (
            self.quiet or self.blocked_by_older or (self.fair is not None and self.fair.undeclared)
        )

    @property
    def lines(self) -> bool:
        return self.fair is not None and self.fair.queues.text != ""


@define(eq=False)
class MissingBuilds:
    """Builds that runs wait for, and that no living worker has."""

    said: dict[str, float] = field(factory=dict[str, float])  # when each was logged
    lately: set[str] = field(factory=set[str])  # since the last report, and before it
    before: set[str] = field(factory=set[str])

    def note(self, builds: str, now: float) -> bool:
        """Note builds, and tell whether to log them, which is once an hour."""
        self.lately.add(builds)
        if now - self.said.get(builds, float("-inf")) < 3600.0:  # between two warnings
            return False
        self.said[builds] = now
        return True

    def report(self) -> str:
        """Name the builds that were noted since the report before the last one."""
        named = sorted(self.lately | self.before)
        self.before = self.lately
        self.lately = set()
        return ", ".join(named)


@define(eq=False)
class ActiveJobs:
    """The jobs of a consumer, from lease to settlement. The engine's threads write it, too."""

    held: dict[str, HeldJob] = field(factory=dict[str, HeldJob])
    gathered: list[HeldJob] = field(factory=list[HeldJob])  # jobs of the next batch
    completed: deque[Claim] = field(factory=deque[Claim])  # completed, without a result to keep
    done: deque[Settlement] = field(factory=deque[Settlement])  # all other settlements
    # sent and not answered yet
    under_way: list[SettlementBatch] = field(factory=list[SettlementBatch])
    dropped: list[HeldJob] = field(factory=list[HeldJob])  # not settled, as the worker leaves
    missing: MissingBuilds = field(factory=MissingBuilds)
    homes: Homes = field(factory=Homes)  # of children in other slots
    mean: float | None = None  # seconds that a batch takes
    slot_moved_at: float = 0.0  # when a batch last got a slot, or began to wait for a slot
    lost: int = 0  # settlements that came too late
    given_back: int = 0  # jobs given back while the worker stops
    # the steps of jobs whose handlers take some
    runs: dict[HeldJob, Any] = field(factory=dict[HeldJob, Any])
    tally: Tally = field(factory=Tally)
    unsampled: int = 0  # handlers that ended since the last sample for the tally


@define(eq=False)
class Registration:
    """The name under which a consumer lives on the server. `heartbeat` and `lifecycle` write it."""

    name: str
    name_claim: NameClaim
    registered: bool = False
    declared: bool = False
    beaten: float = 0.0  # when the last answered beat was sent
    # an operator asks for something: the role `report` learns of it. `listen` sets it
    asked: bool = False


@define(eq=False)
class Timers:
    full_at: float = 0.0  # when the gathered jobs make a batch, full or not
    due_at: float | None = None  # when a delayed job is due
    tick_at: float | None = None  # when a schedule is due
    sweep_at: float = 0.0  # when the role `reclaim` must sweep the queue again, if no job is held
    housekeep_soon: bool = False  # call `housekeep` at once


@define(eq=False)
class IdleMode:
    """The idle mode of one consumer. The role `fetch` sets its fields, unless a comment names
    another."""

    # registered for long, or about to be: no heartbeats, except one before the next lease call
    on: bool = False
    # all other workers are idle, too: the queue needs no sweeps. `listen` resets it
    all_idle: bool = False
    beating: bool = False  # a heartbeat is under way; set by the role `beat`
    subscribed: bool = False  # subscribed to activity notices; set by `listen`
    activity: int = 0  # number of activity notices, received or possibly missed; set by `listen`
    asked: float = 0.0  # seconds for which to be idle, once the queue has no work; set by `reclaim`
    timeout: float = 0.0  # seconds of the worker's usual registration; set by `reclaim`
    try_at: float = 0.0  # when `reclaim` may ask again
