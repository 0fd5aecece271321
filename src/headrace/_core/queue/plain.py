"""The verbs of a plain queue, as generators of effects. `verbs.ShardedQueue` has the same, for a queue of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Step, send
from headrace._core.queue import calls, results
from headrace._core.queue.bulk import bulk
from headrace._core.queue.conditional import admit, admit_many
from headrace._core.queue.leasing import DirectLeaser, new_name
from headrace._core.queue.results import End
from headrace._model.checks import Context
from headrace._model.event import Event
from headrace._model.job import Claim, NewJob
from headrace._model.policy import Durability
from headrace._model.receipt import Receipt
from headrace._model.shards import Resharding, ShardRow
from headrace._model.state import Counts, JobState, Repairs, Schedule, WorkerState
from headrace._model.timing import Timing
from headrace._model.verbs import Bulk
from headrace._protocol.conditional_ops import Admission, Item
from headrace._protocol.keys import Keys, job_id, job_key
from headrace._protocol.limits import JOBS_PER_SCRIPT
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Delay, Ops
from headrace.errors import ConfigurationError

EXPIRED_PER_SCRIPT = 500  # leases
MOVED_PER_SCRIPT = 200  # jobs

Add = Callable[[Ops], Step[list[Receipt]]]  # adds a job to a stream


@define(eq=False)
class Pages:
    """The pages of a listing."""

    ops: Ops
    state: str
    limit: int
    cursor: str = ""
    over: bool = False

    def more(self) -> Step[list[JobState[Any]] | None]:
        """Return the next page, which may be empty; `None` at the end."""
        if self.over:
            return None
        page = yield from send(self.ops.listing(self.state, self.cursor, self.limit))
        self.cursor, self.over = page.cursor, not page.cursor
        return list(page)


@define(eq=False)
class PlainQueue:
    """A queue that is one stream of jobs."""

    ops: Ops
    known: bool = field(default=True, init=False)
    """Whether there is nothing to ask the server before the first call."""
    direct: bool = field(default=True, init=False)
    """Whether one job is enqueued by one script, without a look at anything else."""
    told: bool = field(default=True, init=False)
    """Whether messages tell of the ends of jobs."""

    def ready(self) -> Step[None]:
        """Ask the server nothing: a plain queue needs no table."""
        yield from ()

    def shard_ops(self) -> Sequence[Ops]:
        """Return the makers of operations of each stream."""
        return [self.ops]

    def at(self, claim: Claim) -> Ops:  # noqa: ARG002 - there is one
        """Return the maker of the operations that settle a claim."""
        return self.ops

    def leaser(self) -> DirectLeaser:
        """Make the leaser of a queue without a worker."""
        return DirectLeaser(self.ops, new_name())

    def enqueue(self, job: NewJob[Any], add: Add, *, asks: bool) -> Step[list[Receipt]]:
        """Add one job, by *add*."""
        del job, asks  # they say which shard
        return add(self.ops)

    def admit(
        self, job: NewJob[Any], admission: Admission, item: Item, limit: float | None, *, asks: bool
    ) -> Step[list[Receipt]]:
        """Add one job under conditions."""
        del job, asks
        return admit(admission, [item], limit, together=False)

    def admit_many(
        self, admission: Admission, jobs: Iterable[Any], limit: float | None, *, whole: bool, context: Context | None,
        bind: Callable[[list[Receipt]], object],
    ) -> Step[list[Receipt]]:  # fmt: skip
        """Add all jobs as far as there is room; *limit* is for each part, or for the *whole*."""
        return admit_many(admission, jobs, limit, whole=whole, context=context, bind=bind)

    def enqueue_many(
        self, jobs: Iterable[Any], context: Context | None, bind: Callable[[list[Receipt]], object],
        durable: Durability | None,
    ) -> Step[list[Receipt]]:  # fmt: skip
        """Add all jobs, and return their receipts."""
        return calls.enqueue_many(self.ops, jobs, context, bind, durable)

    def complete_many(
        self, claims: Sequence[Claim], fenced: bool | None, results: calls.Results, durable: Durability | None
    ) -> Step[list[bool]]:
        """Complete all claims."""
        return calls.complete(self.ops, claims, fenced, results, durable)

    def counts(self) -> Step[Counts]:
        """Count the jobs in each state."""
        return send(self.ops.counts())

    def by_shard(self) -> Step[list[tuple[ShardRow, Keys, Counts]]]:
        """List no shards: the queue has no table."""
        yield from ()
        return []

    def reshard(self, shards: int | None) -> Step[Resharding]:  # noqa: ARG002 - it has none
        """Refuse: the queue has no table."""
        raise ConfigurationError(
            f"queue {self.ops.keys.queue!r} has no shards, and gets none: use another, with shards="
        )

    def pages(self, state: str, limit: int) -> Pages:
        """List the jobs in *state*."""
        return Pages(self.ops, state, limit)

    def find(self, id: str, key: str | None) -> Step[JobState[Any] | None]:
        """Find a job."""
        _checked(key)
        return calls.find(self.ops, id)

    def cancel(self, id: str, key: str | None) -> Step[bool]:
        """Remove a job."""
        _checked(key)
        return send(self.ops.cancel(id))

    def position(self, id: str, key: str | None) -> Step[int | None]:
        """Count the jobs in front of one."""
        _checked(key)
        return calls.position(self.ops, id)

    def reschedule(self, id: str, delay: Delay) -> Step[bool]:
        """Give a delayed job another delay."""
        return send(self.ops.reschedule(id, delay))

    def end_of(self, id: str, timeout: float, *, own: bool) -> Step[End]:
        """Wait for the end of a job."""
        return results.end_of(self.ops, job_id(id), timeout, own=own)

    def ends(self, ids: Sequence[str], told: Mapping[str, Event]) -> Step[dict[str, End]]:
        """Read the ends of enqueued jobs; jobs that have not ended are not in the answer."""
        return results.look(self.ops, ids, told, own=True)

    def results(self, ids: Sequence[str], timeout: float) -> Step[dict[str, bytes]]:
        """Fetch kept results."""
        return results.results(self.ops, ids, timeout)

    def cancel_payload(self, payload: bytes) -> Step[int]:
        """Remove the jobs of a payload."""
        return calls.cancel_payload(self.ops, payload)

    def redrive(self, ids: Sequence[str]) -> Step[int]:
        """Send dead letters back to the queue."""
        return calls.by_ids(self.ops.redrive, ids, JOBS_PER_SCRIPT)

    def purge_dead(self, ids: Sequence[str]) -> Step[int]:
        """Remove dead letters."""
        return calls.by_ids(self.ops.purge_dead, ids, JOBS_PER_SCRIPT)

    def expire(self, ids: Sequence[str]) -> Step[int]:
        """End leases."""
        return calls.by_ids(self.ops.expire, ids, EXPIRED_PER_SCRIPT)

    def move(self, to: str, ids: Sequence[str]) -> Step[int]:
        """Move waiting jobs to another queue."""
        return calls.by_ids(lambda cursor, wanted: self.ops.move(to, cursor, wanted), ids, MOVED_PER_SCRIPT)

    def bulk(self, action: str, state: str, reason: str, kind: str, cursor: str) -> Step[Bulk]:
        """Take one step of a bulk action."""
        return bulk(self.ops, action, state, reason, kind, cursor)

    def hands_over(self, claim: Claim, then: Sequence[NewJob[Any]]) -> bool:  # noqa: ARG002 - there are no other shards
        """Tell whether one of these follow-ups is for another shard: none is."""
        return False

    def hand_over(self, claim: Claim) -> Step[list[str]]:  # noqa: ARG002 - there is no outbox
        """Send nothing: there are no other shards."""
        yield from ()
        return []

    def purge(self) -> Step[int]:
        """Remove the jobs that wait."""
        return calls.purge(self.ops)

    def delete(self) -> Step[int]:
        """Remove everything."""
        return calls.until_done(self.ops.delete)

    def pause(self, pause: bool) -> Step[bool]:
        """Pause or resume the queue."""
        return send(self.ops.pause(pause))

    def paused(self) -> Step[bool]:
        """Tell whether the queue is paused."""
        return send(self.ops.paused())

    def levels(self) -> Step[int]:
        """Return the number of priority levels."""
        return send(self.ops.levels())

    def fail_worker(self, name: str) -> Step[int]:
        """Declare a worker dead."""
        return calls.until_done(lambda: self.ops.fail_worker(name))

    def repair(self) -> Step[Repairs]:
        """Repair damage by foreign commands."""
        return calls.repair(self.ops)

    def workers(self) -> Step[list[WorkerState]]:
        """List the registered workers."""
        return send(self.ops.workers())

    def schedule(self, name: str, timing: Timing, missed: str, job: NewJob[Any]) -> Step[bool]:
        """Make a job recur."""
        return calls.schedule(self.ops, self.ops.schedule(name, timing, missed, job))

    def unschedule(self, name: str) -> Step[bool]:
        """End a schedule."""
        return send(self.ops.unschedule(name))

    def schedules(self) -> Step[list[Schedule]]:
        """List the schedules."""
        return calls.schedules(self.ops)

    def declarations(self) -> list[Op[Any]]:
        """Make the operations that say how the queue is meant to be used."""
        return [self.ops.declare(serving=False)]


def _checked(key: str | None) -> None:
    if key is not None:
        job_key(key)
