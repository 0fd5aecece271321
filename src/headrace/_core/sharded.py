"""The verbs of a sharded queue, which is several queues that share a table: each call goes to the shard of its job, or
to all of them.

A shard is a queue, and keeps every promise of one. What is said of several is said of each at its own instant.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from attrs import astuple, define, evolve, field

from headrace._core import calls, results
from headrace._core.bulk import bulk
from headrace._core.effects import Sleep, Step, current_time, overlap, send, send_all
from headrace._core.handing import Shores, hand_over
from headrace._core.leasing import Peer, new_name
from headrace._core.results import UNKNOWN, End
from headrace._core.sharded_leasing import ShardedPeer
from headrace._core.sharded_pages import ShardedPages
from headrace._core.whole import EXPIRED_PER_SCRIPT, MOVED_PER_SCRIPT
from headrace._model import checks
from headrace._model.bulk import Bulk
from headrace._model.checks import Context
from headrace._model.durability import Durability
from headrace._model.job import Claim, NewJob, is_new
from headrace._model.receipt import Receipt
from headrace._model.shards import Table, apart
from headrace._model.state import Counts, JobState, Repairs, Schedule, WorkerState
from headrace._model.timing import Timing
from headrace._protocol.handing import handing
from headrace._protocol.keys import Keys, job_id, job_key
from headrace._protocol.lasting import lasts
from headrace._protocol.limits import JOBS_PER_SCRIPT
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Delay, Ops
from headrace._protocol.shards import PartOps, WholeOps, parts_of
from headrace.errors import ConfigurationError, NotDurable

R = TypeVar("R")
ASK_AFTER_S, ASK_EVERY_S = 0.01, 0.25  # seconds between two looks of a call that waits: at first, and in the end


def anywhere(keys: Keys) -> bool:  # noqa: ARG001 - all alike
    """Tell that the node of *keys* is sound, as far as is known."""
    return True


@define(eq=False)
class Sharded:
    """A queue of several shards. *sound* tells whether the node of these keys has answered lately."""

    ops: WholeOps
    sound: Callable[[Keys], bool] = anywhere
    known: bool = field(default=False, init=False)
    table: Table = field(init=False)
    _parts: list[PartOps] = field(init=False)
    _turn: int = field(init=False)
    _shores: Shores = field(factory=Shores, init=False)

    def __attrs_post_init__(self) -> None:
        ops = self.ops
        self.table = Table.of(ops.keys.group, ops.shards)
        self._parts = parts_of(ops)
        self._turn = random.randrange(ops.shards)

    def ready(self) -> Step[None]:
        """Write the table, or compare it with ours. Raises `ShardsMismatch`."""
        if not self.known:
            yield from calls.agree(self.ops.keys, self.table)
            self.known = True

    def parts(self) -> Sequence[PartOps]:
        """Return the makers of operations of each shard."""
        return self._parts

    # -- which shard -------------------------------------------------------------------------------

    def of(self, job: NewJob[Any]) -> PartOps:
        """Return the maker of the operation that adds a job: the shard of its key, or of its id, or any."""
        named = job.id if job.key is None else job.key
        return self._any() if named is None else self._parts[self.table.part_of(named)]

    def at(self, claim: Claim) -> PartOps:
        """Return the maker of the operations that settle a claim."""
        return self._parts[claim.job.shard]

    def _any(self) -> PartOps:
        """Return the next shard in turn, whose node has answered lately, if there is one."""
        for _ in self._parts:
            self._turn = (self._turn + 1) % len(self._parts)
            if self.sound(self._parts[self._turn].keys):
                break
        return self._parts[self._turn]

    def _where(self, id: str, key: str | None = None) -> tuple[str, list[list[PartOps]]]:
        """Return a job's id as its shard knows it, and the shards to ask: those of the first list, then the others."""
        name, number = apart(job_id(id))
        if number is not None:
            return name, [self._parts[number : number + 1]]
        own = self._parts[self.table.part_of(name if key is None else job_key(key))]
        return name, [[own]] if key is not None else [[own], [part for part in self._parts if part is not own]]

    def _each(self, id: str, key: str | None, op: Callable[[Ops, str], Op[bool]]) -> Step[bool]:
        """Send an operation about jobs of an id to the shards where there may be one; true if there was."""
        name, tiers = self._where(id, key)
        ops = [op(part, name) for tier in tiers for part in tier]
        yield from self.ready()
        return any((yield from send_all(ops)) if ops else ())

    def _all(self, op: Callable[[Ops], Op[R]]) -> Step[list[R]]:
        """Send an operation to all shards, in one round trip to each node."""
        yield from self.ready()
        return (yield from send_all([op(ops) for ops in self._parts]))

    def _sum(self, call: Callable[[Ops], Step[int]], parts: Iterable[Ops] | None = None) -> Step[int]:
        """Make a call to one shard after the other; return the number of jobs it changed."""
        yield from self.ready()
        done = 0
        for ops in self._parts if parts is None else parts:
            done += yield from call(ops)
        return done

    def _by_ids(self, call: Callable[[Ops, Sequence[str]], Step[int]], ids: Sequence[str]) -> Step[int]:
        """Make a call about jobs to one shard after the other, or about all."""
        if not ids:
            return (yield from self._sum(lambda ops: call(ops, ())))
        there: dict[int, list[str]] = defaultdict(list)
        for one in ids:
            name, tiers = self._where(one)
            for ops in (ops for tier in tiers for ops in tier):
                there[ops.shard.number].append(name)
        return (
            yield from self._sum(
                lambda ops: call(ops, there[ops.keys.shard.number if ops.keys.shard else 0]),
                [self._parts[number] for number in sorted(there)],
            )
        )

    # -- producing, leasing, settling --------------------------------------------------------------

    def enqueue_many(
        self, jobs: Iterable[Any], context: Context | None, bind: Callable[[list[Receipt]], object],
        durable: Durability | None,
    ) -> Step[list[Receipt]]:  # fmt: skip
        """Add all jobs, part by part, each to one shard; return their receipts. If a part fails, the error's `receipts`
        are those of all jobs in their order, `None` for each that is not known to be in.
        """
        jobs = checks.listed(jobs)
        parts = list(self._divided(jobs, context))  # all are checked
        receipts: list[Receipt | None] = [None] * len(jobs)
        late: NotDurable | None = None
        yield from self.ready()
        try:
            for at, (places, op) in enumerate(parts):
                ahead = parts[at + 1 : at + 2]
                try:
                    made = yield from overlap(lasts(op, durable), partial(_pack, ahead))
                except NotDurable as error:
                    late, (made,) = error, error.answers
                bind(made)
                for place, receipt in zip(places, made, strict=True):
                    receipts[place] = receipt
        except Exception as error:
            there = sum(receipt is not None for receipt in receipts)
            error.add_note(f"headrace: {there} jobs of this enqueue_many are in the queue: error.receipts")
            error.receipts = receipts  # type: ignore[attr-defined]  # carried by whatever error it is
            raise
        found = [receipt for receipt in receipts if receipt is not None]
        if late is not None:
            late.receipts = found
            raise late
        return found

    def _divided(self, jobs: Sequence[Any], context: Context | None) -> Iterator[tuple[Sequence[int], Op[Any]]]:
        """Yield the positions of some jobs, and the operation that adds them to their shard: jobs without id and key
        in whole parts, in turn.
        """
        bins: dict[int, list[int]] = defaultdict(list)
        free: list[int] = []
        for place, job in enumerate(jobs):
            named = (job.id if job.key is None else job.key) if is_new(job) else None
            if named is None:
                free.append(place)
            else:
                bins[self.table.part_of(job_key(named))].append(place)
        for number, places in bins.items():
            yield from self._batches(self._parts[number], jobs, places, context)
        for start in range(0, len(free), JOBS_PER_SCRIPT):
            yield from self._batches(self._any(), jobs, free[start : start + JOBS_PER_SCRIPT], context)

    def _batches(
        self, ops: PartOps, jobs: Sequence[Any], places: Sequence[int], context: Context | None
    ) -> Iterator[tuple[Sequence[int], Op[Any]]]:
        done = 0
        for op in ops.batches([jobs[place] for place in places], context):
            yield places[done : done + len(op.items)], op
            done += len(op.items)

    def peer(self) -> ShardedPeer:
        """Make what leases without a worker."""

        def look() -> Step[list[str]]:
            return hand_over(self._parts, self._shores)

        return ShardedPeer([Peer(ops, new_name()) for ops in self._parts], self.ready, look)

    def complete_many(
        self, claims: Sequence[Claim], fenced: bool | None, durable: Durability | None
    ) -> Step[list[bool]]:
        """Complete all claims, shard by shard."""
        there: dict[int, list[int]] = defaultdict(list)
        for place, claim in enumerate(claims):
            there[claim.job.shard].append(place)
        verdicts, late = [False] * len(claims), None
        for number, places in there.items():
            build = partial(self._parts[number].complete, fenced=fenced)
            try:
                some = yield from calls.each(build, [claims[place] for place in places], durable)
            except NotDurable as error:
                some, late = error.answers, error
            for place, verdict in zip(places, some, strict=True):
                verdicts[place] = verdict
        if late is not None:
            late.answers = verdicts
            raise late
        return verdicts

    # -- one job -----------------------------------------------------------------------------------

    def find(self, id: str, key: str | None) -> Step[JobState[Any] | None]:
        """Find a job: in its own shard, then in all others."""
        name, tiers = self._where(id, key)
        yield from self.ready()
        for tier in filter(None, tiers):
            looked = yield from send_all([ops.seek(name, "") for ops in tier])
            for ops, (found, cursor) in zip(tier, looked, strict=True):
                if found is None and cursor:
                    found = yield from calls.find(ops, name)  # noqa: PLW2901 - page by page
                if found is not None:
                    return found
        return None

    def cancel(self, id: str, key: str | None) -> Step[bool]:
        """Remove a job, or those of this id in all shards."""
        return self._each(id, key, lambda ops, name: ops.cancel(name))

    def reschedule(self, id: str, delay: Delay) -> Step[bool]:
        """Give a delayed job another delay."""
        return self._each(id, None, lambda ops, name: ops.reschedule(name, delay))

    def position(self, id: str, key: str | None) -> Step[int | None]:
        """Count the jobs in front of one, in its shard. Raises `ConfigurationError` if the shard is not known."""
        name, number = apart(job_id(id))
        if number is None and key is None:
            raise ConfigurationError(
                f"position of {id!r}: there is no order between shards; give key=, for its position in the key's shard"
            )
        _, tiers = self._where(id, key)
        yield from self.ready()
        return (yield from calls.position(tiers[0][0], name)) if tiers[0] else None

    def end_of(self, id: str, timeout: float, *, own: bool) -> Step[End]:
        """Wait for the end of a job, *timeout* seconds at most. Raises `TimeoutError`."""
        job_id(id)
        start, looks = (yield from current_time()), calls.pauses(ASK_AFTER_S, ASK_EVERY_S)
        while True:
            end = (yield from self._ends([id], own=own)).get(id)
            rest = start + timeout - (yield from current_time())
            if end is not None and (own or end is not UNKNOWN or rest <= 0):
                return end
            if rest <= 0:
                waited = f" within {timeout:g} s" if timeout else ""
                raise TimeoutError(f"job {id!r} has not ended{waited}; it goes on")
            yield Sleep(min(next(looks), rest))

    def results(self, ids: Sequence[str], timeout: float | None) -> Step[dict[str, bytes]]:
        """Fetch kept results; wait up to *timeout* seconds for those that are missing and may still come."""
        start, looks = (yield from current_time()), calls.pauses(ASK_AFTER_S, ASK_EVERY_S)
        left, found = list(dict.fromkeys(ids)), dict[str, bytes]()
        while True:
            ends = yield from self._ends(left, own=False)
            found |= {one: end.result for one, end in ends.items() if end.result is not None}
            left = [one for one in left if ends.get(one, UNKNOWN) is UNKNOWN]
            rest = start + (timeout or 0.0) - (yield from current_time())
            if not left or rest <= 0:
                return found
            yield Sleep(min(next(looks), rest))

    def _ends(self, ids: Sequence[str], *, own: bool) -> Step[dict[str, End]]:
        """Read what became of jobs; those that have not ended are not in the answer."""
        yield from self.ready()
        ends: dict[str, End] = dict.fromkeys(ids, UNKNOWN)
        asked = {one: self._where(one) for one in ids}
        for tier in (0, 1):
            there: dict[int, list[str]] = defaultdict(list)
            for one, (_, tiers) in asked.items():
                for ops in tiers[tier] if tier < len(tiers) and ends.get(one) is UNKNOWN else ():
                    there[ops.shard.number].append(one)
            for number, some in there.items():
                looked = yield from results.look(self._parts[number], [asked[one][0] for one in some], own=own)
                for one in some:
                    end = looked.get(asked[one][0])
                    if end is None:
                        ends.pop(one, None)  # it is there
                    elif end is not UNKNOWN:
                        ends[one] = end
        return ends

    # -- all jobs ----------------------------------------------------------------------------------

    def counts(self) -> Step[Counts]:
        """Count the jobs in each state: the sum over all shards, each at an instant of its own."""
        counts = yield from self.part_counts()
        return Counts(*map(sum, zip(*map(astuple, counts), strict=True)))

    def part_counts(self) -> Step[list[Counts]]:
        """Count the jobs of each shard, and those in its outbox."""
        yield from self.ready()
        ops: list[Op[Any]] = [make(part) for part in self._parts for make in (PartOps.counts, handing)]
        found = yield from send_all(ops)
        return [evolve(counts, handing=away) for counts, away in zip(found[::2], found[1::2], strict=True)]

    def hands_over(self, claim: Claim, then: Sequence[NewJob[Any]]) -> bool:
        """Tell whether one of these follow-ups is for another shard than that of the job that ends."""
        return any(self.at(claim).away(job) for job in then)

    def hand_over(self, claim: Claim) -> Step[list[str]]:
        """Send what is in the outbox of a job's shard on its way; what fails is sent by the next that looks."""
        return hand_over([self.at(claim)], self._shores, pages=1)

    def pages(self, state: str, limit: int) -> ShardedPages:
        """List the jobs in *state*."""
        return ShardedPages(self.ready, self._parts, state, limit)

    def cancel_payload(self, payload: bytes) -> Step[int]:
        """Remove the jobs of a payload."""
        return self._sum(lambda ops: calls.cancel_payload(ops, payload))

    def redrive(self, ids: Sequence[str]) -> Step[int]:
        """Send dead letters back to their shards."""
        return self._by_ids(lambda ops, some: calls.by_ids(ops.redrive, some, JOBS_PER_SCRIPT), ids)

    def purge_dead(self, ids: Sequence[str]) -> Step[int]:
        """Remove dead letters."""
        return self._by_ids(lambda ops, some: calls.by_ids(ops.purge_dead, some, JOBS_PER_SCRIPT), ids)

    def expire(self, ids: Sequence[str]) -> Step[int]:
        """End leases."""
        return self._by_ids(lambda ops, some: calls.by_ids(ops.expire, some, EXPIRED_PER_SCRIPT), ids)

    def move(self, to: str, ids: Sequence[str]) -> Step[int]:
        """Move waiting jobs to another queue of the group, each to the shard of the same number."""
        return self._by_ids(lambda ops, some: calls.by_ids(partial(ops.move, to), some, MOVED_PER_SCRIPT), ids)

    def bulk(self, action: str, state: str, reason: str, kind: str, cursor: str) -> Step[Bulk]:
        """Take one step of a bulk action: in one shard after the other."""
        number, _, inner = cursor.partition(":") if cursor else ("0", "", "")
        if not number.isdigit() or int(number) >= len(self._parts):
            raise ValueError(f"cursor {cursor!r:.100}: give that of the step before")
        at = int(number)
        yield from self.ready()
        step = yield from bulk(self._parts[at], action, state, reason, kind, inner)
        after = f"{at}:{step.cursor}" if step.cursor else f"{at + 1}:" if at + 1 < len(self._parts) else ""
        return Bulk(step.looked, step.matched, step.done, after)

    def purge(self) -> Step[int]:
        """Remove the jobs that wait."""
        return self._sum(calls.purge)

    def delete(self) -> Step[int]:
        """Remove everything but the table."""
        return self._sum(lambda ops: calls.until_done(ops.delete))

    def pause(self, pause: bool) -> Step[bool]:
        """Pause or resume all shards; false if they were so already."""
        return any((yield from self._all(lambda ops: ops.pause(pause))))

    def paused(self) -> Step[bool]:
        """Tell whether a shard is paused."""
        return any((yield from self._all(lambda ops: ops.paused())))

    def levels(self) -> Step[int]:
        """Return the number of priority levels."""
        return max((yield from self._all(lambda ops: ops.levels())))

    def fail_worker(self, name: str) -> Step[int]:
        """Declare a worker dead, in all shards."""
        return self._sum(lambda ops: calls.until_done(lambda: ops.fail_worker(name)))

    def repair(self) -> Step[Repairs]:
        """Mend what foreign commands broke."""
        yield from self.ready()
        found = Repairs()
        for ops in self._parts:
            found += yield from calls.repair(ops)
        return found

    def workers(self) -> Step[list[WorkerState]]:
        """List the registrations of workers, one for each shard."""
        return [worker for some in (yield from self._all(lambda ops: ops.workers())) for worker in some]

    def schedule(self, name: str, timing: Timing, missed: str, job: NewJob[Any]) -> Step[bool]:
        """Make a job recur, in the shard of the schedule's name."""
        ops = self._parts[self.table.part_of(job_id(name))]
        build = ops.schedule(name, timing, missed, job)
        yield from self.ready()
        return (yield from calls.schedule(ops, build))

    def unschedule(self, name: str) -> Step[bool]:
        """End a schedule."""
        op = self._parts[self.table.part_of(job_id(name))].unschedule(name)
        yield from self.ready()
        return (yield from send(op))

    def schedules(self) -> Step[list[Schedule]]:
        """List the schedules of all shards, the next due first."""
        yield from self.ready()
        found: list[Schedule] = []
        for ops in self._parts:
            found += yield from calls.schedules(ops)
        return sorted(found, key=lambda one: one.next_due)

    def declarations(self) -> list[Op[Any]]:
        """Make the operations that say how the queue is meant to be used, one for each shard."""
        return [ops.declare(serving=False) for ops in self._parts]


def _pack(parts: Sequence[tuple[Sequence[int], Op[Any]]]) -> None:
    for _, op in parts:
        _ = op.body
