"""The children of runs in other slots, which no script reaches together with their parents.

A child is recorded with its parent, and then started in its own slot. Each delivery of the parent
starts its open children once more, which does nothing where that was done. Their ids stay taken in
the slot, also for ten minutes after the parent has recorded their ends.

The script that ends a child keeps a report in the child's slot. Workers of the parent's queue fetch
it, record it once, and then remove it. The script also publishes a message, so that the worker that
started the child looks at once. The others, and workers that miss it, look from time to time. So
the child's queue may have no worker any more, and a report without a parent is dropped. While the
parent's queue has no worker, a report stays for 30 days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field

from headrace._core.effects import Call, Log, Now, Role, Send, Sleep, send_all
from headrace._model.job import NewJob
from headrace._model.shards import Table
from headrace._model.steps import Record
from headrace._protocol.durability import with_durability
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.keys import Keys
from headrace._protocol.limits import LOG_AGAIN_S, PAGES_IN_A_ROW, POLL_S, SILENT_S
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import table
from headrace.errors import ConfigurationError, RunLost, describe_error

if TYPE_CHECKING:
    from headrace._core.steps.run import Run

# seconds between two looks for reports: a tenth of the time without one
LOOK_MIN_S = POLL_S / 20
LOOK_MAX_S = 5 * POLL_S
RESTS_S = LOG_AGAIN_S  # seconds without one, after which a slot without children may be left alone


def places(run: Run, jobs: Sequence[NewJob[Any]]) -> Call[list[Keys | None]]:
    """Return the keys of the queues of children in other slots, and `None` for the other children.

    Raises `ConfigurationError` if the parent was leased by hand.
    """
    numbers = [run.shards_of(job) for job in jobs]
    each = zip(jobs, numbers, strict=True)
    some = [step_ops.elsewhere(run.ops, job, number) for job, number in each]
    groups = {keys.group: keys for keys in some if keys is not None}
    if not groups:
        return some
    if run.callbacks.away is None:
        (keys, *_) = groups.values()
        raise ConfigurationError(
            f"child in queue {keys.queue!r}: no script reaches it and its parent's queue, whose workers fetch its end. "
            "A job that was leased by hand may have no workers: start the child in a handler, or name both queues "
            "'<group>/<part>'"
        )
    rows = yield from send_all([table(keys, note=False) for keys in groups.values()])
    read = [Table.parse(group, row) for group, row in zip(groups, rows, strict=True)]
    known = dict(zip(groups, read, strict=True))
    tables: dict[Keys, Table | None] = {}
    for one, number in zip(some, numbers, strict=True):
        if one is not None and one not in tables:
            tables[one] = yield from _table(run, known[one.group], one, number)
    return [
        None if keys is None else _shard(run, tables[keys], keys, job)
        for keys, job in zip(some, jobs, strict=True)
    ]


def _table(run: Run, found: Table | None, keys: Keys, number: int | None) -> Call[Table | None]:
    # of a queue's shards, `None` for a plain queue
    own = keys.group == run.ops.keys.group.partition("~")[0]
    if found is not None and (keys.queue in found.queues or (number is None and own)):
        return found
    if number == 1 or (number is None and found is None):
        return None
    if number is not None and run.callbacks.divide is not None:
        made: Table = yield from run.callbacks.divide(keys, number)
        return made
    raise ConfigurationError(
        f"child in queue {keys.queue!r}: other queues of its group are sharded, and nobody has used it: start its "
        "workers first, or give a task of it"
    )


def _shard(run: Run, found: Table | None, keys: Keys, job: NewJob[Any]) -> Keys:
    if found is None:
        return keys
    sealed = run.branches.sealed
    full = {shard.number for shard in found.shards if keys.at(shard).prefix in sealed}
    number = found.shard_of(job.key or str(job.id), full)
    return next(keys.at(shard) for shard in found.shards if shard.number == number)


def adopt(run: Run, some: Sequence[tuple[Record, NewJob[Any]]]) -> Call[None]:
    """Start recorded children in other slots, unless this delivery has done so."""
    branches = run.branches
    left = [
        (record, job)
        for record, job in some
        if record.depth and not record.ended and record.name not in branches.adopted
    ]
    while left and not run.replayed:
        if run.lost:
            raise RunLost(run.claim.job.id)
        context = run.callbacks.context
        asked = [step_ops.adopt(run.ops, run.claim, record, job, context) for record, job in left]
        durable = [with_durability(op, run.durable) for op in asked]
        taken: list[bool] = yield Send(durable)
        refused: list[tuple[Record, NewJob[Any]]] = []
        for yes, (record, job) in zip(taken, left, strict=True):
            if yes:
                branches.adopted.add(record.name)
                if run.callbacks.away is not None:
                    run.callbacks.away(record.home)
            else:
                branches.sealed.add(record.home)
                refused.append((record, job))
        left = yield from _placed_anew(run, refused)


def take_ids(ops: Ops, some: Sequence[tuple[str, str]]) -> Call[None]:
    # of children that are cancelled: the handler of their parent may be about to start them
    tag = f"{{{ops.keys.group}}}"
    far = [(home, name.encode()) for home, name in some if tag not in home]
    if far:
        yield Send([step_ops.reports(ops, home, [name]) for home, name in far])


def _placed_anew(
    run: Run, refused: Sequence[tuple[Record, NewJob[Any]]]
) -> Call[list[tuple[Record, NewJob[Any]]]]:
    # their shards take no new jobs
    if not refused:
        return []
    yield Sleep(LOOK_MIN_S)  # another client may be changing the table
    found = yield from places(run, [job for _, job in refused])
    asked = [
        step_ops.child_away(run.ops, run.claim, record.name, keys, record.child, record.number)
        for (record, _), keys in zip(refused, found, strict=True)
        if keys is not None
    ]
    answers = yield from run.noting(asked)
    again: list[tuple[Record, NewJob[Any]]] = []
    for answer, (record, job) in zip(answers, refused, strict=True):
        if isinstance(answer, int):
            raise run.refused(record.name, answer)
        if run.records is not None:
            run.records[record.name] = answer
        again.append((answer, job))
    return again


# -- the ends, which workers of the parents' queue fetch -------------------------------------------


# a queue in another slot, in which runs of a consumer's queue have children
@define(eq=False)
class Home:
    since: float  # when a child was started there, or a report came
    due: float = 0.0  # when to look next
    own: bool = False  # this worker has started a child there


@define(eq=False)
class Homes:
    """These queues, as a consumer knows them. Threads of handlers add some."""

    known: dict[str, Home] = field(factory=dict[str, Home])
    said_at: float = float("-inf")

    def note(self, home: str, now: float) -> None:
        self.known[home] = Home(now, now + LOOK_MIN_S, own=True)

    def learn(self, some: Sequence[str], now: float) -> None:
        for home in some:
            self.known.setdefault(home, Home(now))

    # children have ended there: look at once, unless other workers have started them
    def hurry(self, home: str) -> bool:
        known = self.known.get(home)
        if known is None or not known.own:
            return False
        known.due = 0.0
        return True


def fetch_ends(ops: Ops, homes: Homes) -> Call[float]:
    """Fetch the ends of children in other slots. Return the seconds until the next look."""
    soon = POLL_S
    for home, known in list(homes.known.items()):
        now = yield from Now()
        if known.due <= now:
            try:
                came, more = yield from _fetch(ops, home, rests=now - known.since > RESTS_S)
            except Exception as error:  # the reports are safe in that slot
                known.due = now + SILENT_S
                yield from _say(homes, home, now, error)
            else:
                known.since = now if came else known.since
                known.due = now + min(max((now - known.since) / 10, LOOK_MIN_S), LOOK_MAX_S)
                if not more and homes.known.get(home) is known:
                    del homes.known[home]
        soon = min(soon, max(known.due - now, LOOK_MIN_S))
    return soon


def _say(homes: Homes, home: str, now: float, error: Exception) -> Role:
    if now - homes.said_at >= LOG_AGAIN_S:
        homes.said_at = now
        yield Log(
            "ends_unfetched", f"the ends of children in {home} wait there: {describe_error(error)}"
        )


def _fetch(ops: Ops, home: str, *, rests: bool) -> Call[tuple[bool, bool]]:
    # answers whether some ends came, and whether there may be more
    known: list[bytes] = []
    more = True
    for _ in range(PAGES_IN_A_ROW):
        found = yield from _ask(step_ops.reports(ops, home, known))
        if not found.words:
            if rests and not found.open:
                more = yield from _ask(step_ops.learn(ops, home, found))
            break
        yield from _ask(step_ops.learn(ops, home, found))
        known = list(found.words[::2])
    return bool(known), more


def _ask(op: Any) -> Call[Any]:
    (answer,) = yield Send((op,), POLL_S)
    return answer
