"""The verbs of a queue of one or more shards, as generators of effects.

A shard is a queue, and keeps every promise of a queue. A call goes to the shard of its job, or to all shards. An answer
about several shards sees each at its own instant.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

from attrs import define, evolve, field

from headrace._core.effects import Call, Now, Sleep, hurried, send, send_all
from headrace._core.fair.declaring import redeclare
from headrace._core.fair.leasing import leaser
from headrace._core.fair.shares import shares, wanted
from headrace._core.queue import calls, results
from headrace._core.queue.bulk import Choose, Match, bulk
from headrace._core.queue.conditional import admit, admit_many
from headrace._core.queue.leasing import DirectLeaser
from headrace._core.queue.results import UNKNOWN, End
from headrace._core.shards.enqueue import AsRoomIs, Freely, admit_anywhere, enqueue_many
from headrace._core.shards.leasing import ShardedLeaser
from headrace._core.shards.map import OneShard, ShardMap, Shards, named
from headrace._core.shards.reshard import checked, gather_schedule, reshard
from headrace._core.shards.transfer import Targets, hand_over
from headrace._core.steps.run import refused
from headrace._model.checks import Context
from headrace._model.event import Event
from headrace._model.job import Claim, NewJob
from headrace._model.policy import Durability
from headrace._model.receipt import Receipt
from headrace._model.settings import QueueSettings
from headrace._model.shards import Resharding, Sealed, ShardRow, apart, shard_count
from headrace._model.state import Counts, JobState, Repairs, Schedule, WorkerState, summed
from headrace._model.steps import step_name
from headrace._model.terms import Share
from headrace._model.timing import Timing
from headrace._model.verbs import Bulk
from headrace._protocol import admin_ops, presence_ops, step_ops, view_ops
from headrace._protocol.conditional_ops import Admission, Item
from headrace._protocol.features import schedules as schedule_ops
from headrace._protocol.keys import Keys, job_id
from headrace._protocol.limits import COURTESY_S, JOBS_PER_SCRIPT, LOOKS_PER_SCRIPT, REWRITES_PER_SCRIPT
from headrace._protocol.op import Arg, Op
from headrace._protocol.presence_ops import Request
from headrace._protocol.queue_ops import Delay, Ops
from headrace._protocol.replies import Declaration
from headrace._protocol.transfer_ops import handing
from headrace.errors import ConfigurationError, HeadraceError, NotDurable

R = TypeVar("R")
M = TypeVar("M", bound=OneShard | ShardMap)
Add = Callable[[Ops], Call[list[Receipt]]]  # adds a job to a shard
Bind = Callable[[list[Receipt]], object]  # lets receipts ask their queue for results
ASK_AFTER_S, ASK_EVERY_S = 0.01, 0.25  # seconds between two looks of a call that waits: at first, and later


@define(eq=False)
class Pages:
    """The pages of a listing of all shards, merged by the jobs' times. The jobs of each shard keep their order."""

    map: OneShard | ShardMap
    state: str
    limit: int
    value: object = None
    _wanted: Sequence[Arg] = field(default=(), init=False)
    _shards: Sequence[Ops] = field(default=(), init=False)
    _cursors: dict[int, str] = field(factory=dict[int, str], init=False)  # cursors of the shards with more pages
    _read: list[deque[JobState[Any]]] = field(factory=list[deque[JobState[Any]]], init=False)

    def more(self) -> Call[list[JobState[Any]] | None]:
        """Return the next page, which may be empty, or `None` at the end. Reads a page of each shard without one."""
        if not self._shards:
            yield from self.map.look()
            self._shards = self.map.ordered()
            self._wanted = yield from wanted(self._shards, self.value)
            self._cursors = dict.fromkeys(range(len(self._shards)), "")
            self._read = [deque() for _ in self._shards]
        unread = [at for at in self._cursors if not self._read[at]]
        pages = [
            view_ops.listing(self._shards[at], self.state, self._cursors[at], self.limit, wanted=self._wanted)
            for at in unread
        ]
        for at, page in zip(unread, (yield from send_all(pages)) if pages else (), strict=True):
            self._read[at] += page
            if page.cursor:
                self._cursors[at] = page.cursor
            else:
                del self._cursors[at]
        if len(self._read) == 1:
            merged = list(self._read[0])
            self._read[0].clear()
        else:
            merged = self._merged()
        return merged if merged or self._cursors else None

    def _merged(self) -> list[JobState[Any]]:
        merged: list[JobState[Any]] = []
        while all(self._read[at] for at in self._cursors) and (ahead := list(filter(None, self._read))):
            merged.append(min(ahead, key=lambda some: _rank(some[0])).popleft())
        return merged


def _rank(one: JobState[Any]) -> tuple[bool, int, float]:
    """Return the sort key for jobs of several shards. Parked jobs come first, then the level decides, then the time."""
    time = next((at for at in (one.due, one.since, one.enqueued_at) if at is not None), 0.0)
    return one.state != "parked", one.job.priority if one.state == "waiting" else 0, time


@define(eq=False)
class QueueVerbs(Generic[M]):
    """The verbs of a queue. `ShardedQueue` replaces the few that several shards do in another way."""

    map: M
    notified: ClassVar[bool] = True
    """Whether messages report the ends of jobs."""

    def at(self, claim: Claim) -> Ops:
        """Return the maker of the operations that settle a claim."""
        return self.map.at(claim.job.shard)

    # -- which shards ------------------------------------------------------------------------------

    def _where(self, id: str, key: str | None) -> Call[tuple[str, Sequence[Sequence[Ops]]]]:
        """Return a job's id as its shard knows it, and two lists of shards to ask, the likely ones first."""
        table = self.map.table
        found = self.map.where(id, key)  # checks both
        return self.map.where(id, key) if (yield from self.map.look(table)) else found

    def _each(self, id: str, key: str | None, op: Callable[[Ops, str], Op[bool]]) -> Call[bool]:
        """Send an operation about jobs of an id to the shards that may have one. Return true if one did."""
        name, tiers = yield from self._where(id, key)
        ops = [op(shard, name) for shard in chain(*tiers)]
        return any((yield from send_all(ops)) if ops else ())

    def _first(self, name: str, op: Callable[[Ops, str], Op[R | None]]) -> Call[R | None]:
        """Ask the shards that may have a schedule, one after another. Return the first answer."""
        own, tiers = yield from self._where(name, name)
        for ops in chain(*tiers):
            if found := (yield from send(op(ops, own))):
                return found
        return None

    def _all(self, op: Callable[[Ops], Op[R]]) -> Call[list[R]]:
        """Send an operation to all shards, in one round trip to each node."""
        yield from self.map.look()
        return (yield from send_all([op(ops) for ops in self.map.ordered()]))

    def _sum(self, call: Callable[[Ops, Sequence[str]], Call[int]], ids: Sequence[str] = ()) -> Call[int]:
        """Make a call about the jobs *ids*, or about all jobs, to one shard after the other. Return the number of
        changed jobs.
        """
        for one in ids:
            job_id(one)
        yield from self.map.look()
        done = 0
        for ops, names in self.map.holders(ids):
            done += yield from call(ops, names)
        return done

    # -- producing, leasing, settling --------------------------------------------------------------

    def enqueue(self, job: NewJob[Any], add: Add, *, asks: bool) -> Call[list[Receipt]]:  # noqa: ARG002 - to one shard
        """Add one job to its shard, by *add*, unless another shard has its id. *asks*: `add` itself finds that out."""
        return add(self.map.ops)

    def admit(
        self,
        job: NewJob[Any],  # noqa: ARG002 - to one shard
        admission: Admission,
        item: Item,
        limit: float | None,
        *,
        asks: bool,  # noqa: ARG002 - to one shard
    ) -> Call[list[Receipt]]:
        """Add one job under conditions, as `enqueue`. A job for any shard goes to a shard that has room."""
        return admit(admission, [item], limit, together=False)

    def enqueue_many(
        self, jobs: Iterable[Any], context: Context | None, bind: Bind, durable: Durability | None
    ) -> Call[list[Receipt]]:
        return calls.enqueue_many(self.map.ops, jobs, context, bind, durable)

    def admit_many(
        self,
        admission: Admission,
        jobs: Iterable[Any],
        limit: float | None,
        *,
        whole: bool,
        context: Context | None,
        bind: Bind,
    ) -> Call[list[Receipt]]:
        """Add all jobs as `enqueue_many`, if there is room. *limit* is for each part, or for the *whole* call."""
        return admit_many(admission, jobs, limit, whole=whole, context=context, bind=bind)

    def leaser(self) -> DirectLeaser | ShardedLeaser:
        return leaser(self.map.ops)

    def complete_many(
        self, claims: Sequence[Claim], fenced: bool | None, results: calls.Results, durable: Durability | None
    ) -> Call[list[bool]]:
        return calls.complete(self.map.ops, claims, fenced, results, durable)

    def hands_over(self, claim: Claim, then: Sequence[NewJob[Any]]) -> bool:
        """Tell whether one of these follow-ups belongs to another shard than the ending job."""
        return any(self.at(claim).away(job) for job in then)

    def hand_over(self, claim: Claim) -> Call[list[str]]:
        """Send the jobs in the outbox of a job's shard."""
        raise NotImplementedError

    # -- one job -----------------------------------------------------------------------------------

    def find(self, id: str, key: str | None) -> Call[JobState[Any] | None]:
        """Find a job, first in its own shard, then in all others."""
        name, tiers = yield from self._where(id, key)
        for tier in filter(None, tiers):
            answers = yield from send_all([view_ops.seek(ops, name, "") for ops in tier])
            for ops, (found, cursor) in zip(tier, answers, strict=True):
                job = found or (yield from calls.find_dead(ops, name, cursor))
                if job is not None:
                    return job
        return None

    def signal(self, id: str, key: str | None, name: str, by: str, value: bytes | None) -> Call[str]:
        """Send a signal to a job. Its own shard is asked first, then all others, until one has it. Return the
        outcome.
        """
        own, tiers = yield from self._where(id, key)
        outcome = 0
        for ops in chain(*tiers):
            outcome = yield from send(step_ops.signal(ops, own, name, by, value))
            if outcome:
                break
        if outcome < 0:
            raise refused(f"signal {name!r}", outcome)
        return step_ops.SIGNAL_OUTCOMES[outcome]

    def cancel(self, id: str, key: str | None) -> Call[bool]:
        """Remove a job, or all jobs of this id in all shards."""
        return self._each(id, key, admin_ops.cancel)

    def reschedule(self, id: str, delay: Delay) -> Call[bool]:
        return self._each(id, None, lambda ops, name: admin_ops.reschedule(ops, name, delay))

    def position(self, id: str, key: str | None) -> Call[int | None]:
        """Count the jobs in front of one, in its shard. Raises `ConfigurationError` if the shard is not known."""
        self.map.line(id, key)  # checks both
        yield from self.map.look()
        name, shards = self.map.line(id, key)
        for ops in shards:
            if (found := (yield from calls.position(ops, name))) is not None:
                return found
        return None

    def end_of(self, id: str, timeout: float, *, own: bool) -> Call[End]:
        """Wait for the end of a job, *timeout* seconds at most. Raises `TimeoutError`."""
        return results.end_of(self.map.ops, job_id(id), timeout, own=own)

    def results(self, ids: Sequence[str], timeout: float) -> Call[dict[str, bytes]]:
        """Fetch kept results. Wait up to *timeout* seconds for missing results that may still come."""
        return results.results(self.map.ops, ids, timeout)

    def ends(self, ids: Sequence[str], told: Mapping[str, Event]) -> Call[dict[str, End]]:
        """Read the ends of enqueued jobs. Jobs that have not ended are not in the answer."""
        return results.read_ends(self.map.ops, ids, told, own=True)

    # -- all jobs ----------------------------------------------------------------------------------

    def counts(self) -> Call[Counts]:
        return send(view_ops.counts(self.map.ops))

    def by_shard(self) -> Call[list[tuple[ShardRow, Keys, Counts]]]:
        """List the shards, each with its keys and its counts. There are none if the queue has no table."""
        yield from ()
        return []

    def reshard(self, shards: int | None) -> Call[Resharding]:  # noqa: ARG002 - it refuses
        """Change the number of shards, or continue a change. Return the progress. Raises `ConfigurationError`."""
        raise ConfigurationError(
            f"queue {self.map.ops.keys.queue!r} has no shards, and can't get any: use another, with shards="
        )

    def pages(self, state: str, limit: int, value: object = None) -> Pages:
        return Pages(self.map, state, limit, value)

    def cancel_payload(self, payload: bytes) -> Call[int]:
        return self._sum(lambda ops, _: calls.cancel_payload(ops, payload))

    def redrive(self, ids: Sequence[str], from_step: str | None = None, payload: Any = ...) -> Call[int]:
        """Send dead letters back to their shards, except if their ids are taken in a shard of the same range. With
        *from_step*, a single run does that step, and all after it, again. *payload*: of a single job, instead of its
        own; `...` for its own.
        """
        if from_step is None and payload is ...:
            return self._sum(self._redrive, ids)
        name = "" if from_step is None else step_name(from_step)
        if len(ids) != 1:
            option = f"from_step={name!r}" if name else "payload="
            raise ValueError(f"{option} with {len(ids)} ids: give the id of one job")
        mended = None if payload is ... else admin_ops.payload_of(self.map.ops, job_id(ids[0]), payload)
        return self._sum(lambda ops, some: self._redrive_one(ops, some, name, mended), ids)

    def _redrive_one(self, ops: Ops, some: Sequence[str], name: str, payload: bytes | None) -> Call[int]:
        choose = self._chooser(ops, "redrive", some)
        if choose is not None:
            found = yield from calls.find(ops, some[0])
            if found is None or not all((yield from choose([found]))):
                return 0
        ticket = None if payload is None else (yield from calls.replaced(ops, some[0]))
        one = partial(admin_ops.redrive, ops, from_step=name, payload=payload, ticket=ticket)
        return (yield from calls.by_ids(one, some, 1))

    def _redrive(self, ops: Ops, some: Sequence[str]) -> Call[int]:
        return calls.by_ids(partial(admin_ops.redrive, ops), some, JOBS_PER_SCRIPT)

    def _chooser(self, ops: Ops, action: str, some: Sequence[str] = ()) -> Choose | None:  # noqa: ARG002 - to one shard
        """Return the function that chooses which dead letters, of *some* ids or all, may be redriven. It is `None`, as
        all may, unless other shards share the range of this shard.
        """
        return None

    def purge_dead(self, ids: Sequence[str]) -> Call[int]:
        return self._sum(lambda ops, some: calls.by_ids(partial(admin_ops.purge_dead, ops), some, JOBS_PER_SCRIPT), ids)

    def expire(self, ids: Sequence[str]) -> Call[int]:
        return self._sum(lambda ops, some: calls.by_ids(partial(admin_ops.expire, ops), some, LOOKS_PER_SCRIPT), ids)

    def move(self, to: str, ids: Sequence[str]) -> Call[int]:
        """Move waiting jobs to another queue. A job of a sharded queue goes to the shard of the same number."""
        return self._sum(
            lambda ops, some: calls.by_ids(partial(admin_ops.move, ops, to), some, 2 * REWRITES_PER_SCRIPT), ids
        )

    def bulk(self, action: str, state: str, match: Match, cursor: str) -> Call[Bulk]:
        """Take one step of a bulk action, in one shard after the other."""
        number, _, inner = str(cursor).partition(":") if cursor else ("0", "", "")
        if not number.isdigit():
            raise ValueError(f"cursor {cursor!r:.100}: give that of the step before")
        yield from self.map.look()
        shards = [ops for ops in self.map.ordered() if ops.number >= int(number)]
        if not shards:
            raise ValueError(f"cursor {cursor!r:.100}: give that of the step before")
        ops = shards[0]
        inner = inner if shards[0].number == int(number) else ""
        step = yield from bulk(ops, action, state, match, inner, self._chooser(ops, action))
        next_shard = f"{shards[1].number}:" if shards[1:] else ""
        after = f"{ops.number}:{step.cursor}" if step.cursor else next_shard
        return Bulk(step.looked, step.matched, step.done, after)

    def purge(self, value: object = None) -> Call[int]:
        """Remove the jobs that wait, or the jobs of a *value*."""
        some: Sequence[Arg] = ()
        if value is not None:
            yield from self.map.look()
            some = yield from wanted(self.map.ordered(), value)
        return (yield from self._sum(lambda ops, _: calls.purge(ops, some)))

    def delete(self) -> Call[int]:
        """Remove everything but the table."""
        return self._sum(lambda ops, _: calls.until_done(partial(admin_ops.delete, ops)))

    def pause(self, pause: bool) -> Call[bool]:
        """Pause or resume all shards. Return false if all of them were in that state already."""
        changed = False
        yield from self.map.look()
        while True:
            table = self.map.table
            changed |= any((yield from send_all([admin_ops.pause(ops, pause) for ops in self.map.ordered()])))
            if not (yield from self.map.look(table)):  # otherwise some shards were not reached
                return changed

    def paused(self) -> Call[bool]:
        return any((yield from self._all(admin_ops.paused)))

    def levels(self) -> Call[int]:
        return max((yield from self._all(view_ops.levels)))

    def fail_worker(self, name: str) -> Call[int]:
        return self._sum(lambda ops, _: calls.until_done(lambda: admin_ops.fail_worker(ops, name)))

    def ask_worker(self, name: str, request: Request) -> Call[bool]:
        """Ask workers of this name for something, in all shards. Raises `HeadraceError` if none can be asked."""
        answers = yield from self._all(lambda ops: presence_ops.ask(ops, name, request))
        asked = sum(one for one, _ in answers)
        unable = sum(one for _, one in answers)
        if unable and not asked:
            raise HeadraceError(
                f"worker {name} has reported nothing, so it cannot be asked: it has started a moment ago, or runs an "
                "older version of headrace; end its process by a signal"
            )
        return asked > 0

    def repair(self, *, dry: bool = False) -> Call[Repairs]:
        """Repair damage by foreign commands. If *dry*, only count it."""
        yield from self.map.look()
        found = Repairs()
        for ops in self.map.ordered():
            found += yield from calls.repair(ops, dry=dry)
        return found

    def workers(self) -> Call[list[WorkerState]]:
        """List the registrations of workers, one for each shard."""
        return [*chain(*(yield from self._all(view_ops.workers)))]

    def redeclare(self, settings: QueueSettings) -> Call[None]:
        """Change the terms, in all shards, whatever workers declare."""
        yield from self.map.look()
        yield from redeclare(self.map.ordered(), settings)

    def shares(self) -> Call[list[Share]]:
        yield from self.map.look()
        return (yield from shares(self.map.ordered()))

    def schedule(self, name: str, timing: Timing, missed: str, job: NewJob[Any]) -> Call[bool]:
        """Make a job recur, in the shard of the schedule's name."""
        schedule_ops.schedule(self.map.of(job_id(name)), name, timing, missed, job)  # checks all arguments
        yield from self.map.look()
        ops = self.map.of(name)
        known = yield from self._gather_schedule(ops, name)
        return (yield from calls.schedule(ops, schedule_ops.schedule(ops, name, timing, missed, job))) and not known

    def _gather_schedule(self, ops: Ops, name: str) -> Call[bool]:  # noqa: ARG002 - there is no other shard
        """Move a schedule to its shard. Return true if an older shard had it."""
        yield from ()
        return False

    def unschedule(self, name: str) -> Call[bool]:
        return self._each(name, name, schedule_ops.unschedule)

    def schedules(self) -> Call[list[Schedule]]:
        """List the schedules of all shards, the next due first."""
        yield from self.map.look()
        found: list[Schedule] = []
        for ops in self.map.ordered():
            found += yield from calls.schedules(ops)
        return sorted(found, key=lambda one: (one.paused, one.next_due))

    def schedule_of(self, name: str) -> Call[tuple[Schedule, JobState[Any]] | None]:
        """Read a schedule, and its next job; `None` without such a schedule."""
        return self._first(name, schedule_ops.schedule_of)

    def pause_schedule(self, name: str, pause: bool) -> Call[bool]:
        """Pause or resume a schedule. Return false if there is none, or it was in that state already."""
        return self._each(name, name, lambda ops, name: schedule_ops.pause_schedule(ops, name, pause))

    def run_schedule(self, name: str) -> Call[str | None]:
        """Enqueue the job of a schedule now; return its id, `None` without such a schedule."""
        return self._first(name, schedule_ops.run_schedule)

    def declarations(self) -> list[Op[Any]]:
        """Make the operations that declare how the queue is meant to be used, one for each shard."""
        return [ops.declare(serving=False) for ops in self.map.ordered()]

    def declare(self) -> Call[tuple[list[Declaration], bool]]:
        """Declare how the queue is meant to be used. Return the answers, and whether each shard has given one."""
        return (yield from send_all(self.declarations())), True


@define(eq=False)
class ShardedQueue(QueueVerbs[ShardMap]):
    """The verbs of a queue of several shards."""

    notified = False
    _targets: Targets = field(factory=Targets, init=False)

    def declare(self) -> Call[tuple[list[Declaration], bool]]:
        if not self.map.known:
            yield from self.map.look()
        answers = list[Declaration]()
        shards = self.map.ordered()
        for ops in shards:
            if self.map.sound(ops.keys):  # jobs go to other shards while a node is silent
                with suppress(Exception):
                    answers.append((yield from hurried(send(ops.declare(serving=False)), COURTESY_S)))
        return answers, len(answers) == len(shards)

    def enqueue(self, job: NewJob[Any], add: Add, *, asks: bool) -> Call[list[Receipt]]:
        if not self.map.known:
            yield from self.map.look()
        while True:
            ops = self.map.of(named(job))
            for older in self.map.before(job, ops):
                if asks:
                    with suppress(Sealed):  # the shard lacks the id
                        return (yield from add(older))
                elif (yield from send(older.present([job_id(job.id)])))[0]:
                    return [Receipt(job_id(job.id), False)]
            try:
                return (yield from add(ops))
            except Sealed as error:
                yield from self.map.refused(ops, error)

    def admit(
        self, job: NewJob[Any], admission: Admission, item: Item, limit: float | None, *, asks: bool
    ) -> Call[list[Receipt]]:
        if self.map.ops.settings.max_waiting and named(job) is None:
            return admit_anywhere(self.map, admission, [item], limit, together=False)
        return self._admit_named(job, admission, item, limit, asks=asks)

    def _admit_named(
        self, job: NewJob[Any], admission: Admission, item: Item, limit: float | None, *, asks: bool
    ) -> Call[list[Receipt]]:
        since = yield from Now()

        def add(ops: Ops) -> Call[list[Receipt]]:
            return admit(admission.at(ops), [item], limit, since=since, together=False)

        return (yield from self.enqueue(job, add, asks=asks))

    def enqueue_many(
        self, jobs: Iterable[Any], context: Context | None, bind: Bind, durable: Durability | None
    ) -> Call[list[Receipt]]:
        """Add all jobs, part by part, each part to one shard; return their receipts. If a part fails, the error has
        `receipts` for all jobs in their order, `None` for each job that may be missing from the queue.
        """
        return enqueue_many(self.map, jobs, Freely(context, durable), bind)

    def admit_many(
        self,
        admission: Admission,
        jobs: Iterable[Any],
        limit: float | None,
        *,
        whole: bool,
        context: Context | None,
        bind: Bind,
    ) -> Call[list[Receipt]]:
        since = (yield from Now()) if whole else None
        return (yield from enqueue_many(self.map, jobs, AsRoomIs(context, admission, limit, since), bind))

    def leaser(self) -> ShardedLeaser:
        return ShardedLeaser(self.map, self._targets)

    def complete_many(
        self, claims: Sequence[Claim], fenced: bool | None, results: calls.Results, durable: Durability | None
    ) -> Call[list[bool]]:
        by_shard: dict[int, list[int]] = defaultdict(list)
        for place, claim in enumerate(claims):
            by_shard[claim.job.shard].append(place)
        verdicts = [False] * len(claims)
        late = None
        for number, places in by_shard.items():
            mine = [claims[place] for place in places]
            try:
                some = yield from calls.complete(self.map.at(number), mine, fenced, results, durable)
            except NotDurable as error:
                some = error.answers
                late = error
            for place, verdict in zip(places, some, strict=True):
                verdicts[place] = verdict
        if late is not None:
            late.answers = verdicts
            raise late
        return verdicts

    def hand_over(self, claim: Claim) -> Call[list[str]]:
        """Send the jobs in the outbox of a job's shard. A job that fails is sent by the next look."""
        return hand_over(self.map, [self.map.at(claim.job.shard)], self._targets, pages=1)

    def end_of(self, id: str, timeout: float, *, own: bool) -> Call[End]:
        """Wait for the end of a job, *timeout* seconds at most. Raises `TimeoutError`.

        A job that was found before, and is unknown now, has ended.
        """
        job_id(id)
        start = yield from Now()
        looks = calls.pauses(ASK_AFTER_S, ASK_EVERY_S)
        while True:
            end = (yield from self._ends([id], own=own)).get(id)
            own = own or end is None
            rest = start + timeout - (yield from Now())
            if end is not None and (own or end is not UNKNOWN or rest <= 0):
                return end
            if rest <= 0:
                raise results.not_ended(id, timeout)
            yield Sleep(min(next(looks), rest))

    def results(self, ids: Sequence[str], timeout: float) -> Call[dict[str, bytes]]:
        """Fetch kept results; wait up to *timeout* seconds for missing results that may still come."""
        start = yield from Now()
        looks = calls.pauses(ASK_AFTER_S, ASK_EVERY_S)
        left = list(dict.fromkeys(ids))
        found = dict[str, bytes]()
        unended = set[str]()
        while True:
            ends = yield from self._ends(left, own=False)
            found |= {one: end.result for one, end in ends.items() if end.result is not None}
            unended.update(one for one in left if one not in ends)
            left = [one for one in left if one not in ends or (ends[one] is UNKNOWN and one not in unended)]
            rest = start + timeout - (yield from Now())
            if not left or rest <= 0:
                return found
            yield Sleep(min(next(looks), rest))

    def ends(self, ids: Sequence[str], told: Mapping[str, Event]) -> Call[dict[str, End]]:  # noqa: ARG002 - no event is used
        """Read the ends of enqueued jobs; jobs that have not ended are not in the answer."""
        return self._ends(ids, own=True)

    def _ends(self, ids: Sequence[str], *, own: bool) -> Call[dict[str, End]]:
        """Read the ends of jobs. Jobs that have not ended are not in the answer."""
        yield from self.map.look()
        ends: dict[str, End] = dict.fromkeys(ids, UNKNOWN)
        asked = {one: self.map.where(one) for one in ids}
        for tier in (0, 1):
            by_shard: dict[int, list[str]] = defaultdict(list)
            for one, (_, tiers) in asked.items():
                for ops in tiers[tier] if tier < len(tiers) and ends.get(one) is UNKNOWN else ():
                    by_shard[ops.number].append(one)
            for number, some in by_shard.items():
                looked = yield from results.read_ends(self.map.at(number), [asked[one][0] for one in some], own=own)
                for one in some:
                    end = looked.get(asked[one][0])
                    if end is None:
                        ends.pop(one, None)  # the job has not ended
                    elif end is not UNKNOWN:
                        ends[one] = end
        return ends

    def counts(self) -> Call[Counts]:
        """Count the jobs in each state: the sum over all shards, each at an instant of its own."""
        shards, counts = yield from self._counts()
        return summed([shards.table.gone(self.map.ops.keys.queue), *counts])

    def _counts(self) -> Call[tuple[Shards, list[Counts]]]:
        """Return the shards, and for each the number of its jobs, and of the jobs in its outbox."""
        yield from self.map.look()
        now = self.map.now
        ops: list[Op[Any]] = [make(one) for one in now.by_number.values() for make in (view_ops.counts, handing)]
        found = yield from send_all(ops)
        return now, [evolve(counts, handing=away) for counts, away in zip(found[::2], found[1::2], strict=True)]

    def by_shard(self) -> Call[list[tuple[ShardRow, Keys, Counts]]]:
        """List the shards, each with its keys and its counts."""
        shards, counts = yield from self._counts()
        keys = [ops.keys for ops in shards.by_number.values()]
        return list(zip(shards.table.shards, keys, counts, strict=True))

    def _gather_schedule(self, ops: Ops, name: str) -> Call[bool]:
        return gather_schedule(self.map, self.map.at(ops.number), name)

    def _redrive(self, ops: Ops, some: Sequence[str]) -> Call[int]:
        choose = self._chooser(ops, "redrive", some)
        cursor = ""
        done = 0
        if choose is None:
            return (yield from super()._redrive(ops, some))
        while True:
            step = yield from bulk(ops, "redrive", "dead", Match(), cursor, choose)
            done = done + step.done
            cursor = step.cursor
            if not cursor:
                return done

    def _chooser(self, ops: Ops, action: str, some: Sequence[str] = ()) -> Choose | None:
        return partial(self._free, ops, frozenset(some)) if action == "redrive" and self.map.overlaps else None

    def _free(self, ops: Ops, some: frozenset[str], found: Sequence[JobState[Any]]) -> Call[Sequence[bool]]:
        """Tell for each *found* job whether its id is one of *some*, if any are given, and in no other shard."""
        names = [apart(one.job.id) for one in found]
        free = [not some or name in some for name, _ in names]
        asked: dict[int, dict[int, str]] = defaultdict(dict)
        for place, one in enumerate(found):
            if free[place] and names[place][1] is None:  # one that was given no id is nowhere else
                for other in self.map.sharing(one.job.key or one.job.id, ops):
                    asked[other.number][place] = names[place][0]
        taken = yield from self.map.present(asked)
        return [one and place not in taken for place, one in enumerate(free)]

    def reshard(self, shards: int | None) -> Call[Resharding]:
        """Change the number of shards, or continue a change; return the progress."""
        return reshard(self.map, None if shards is None else checked(shard_count(shards)))
