"""Changing the number of shards while work goes on. New shards (successors) take new jobs, and
sealed shards drain.

1. The table names successors (`opening`) for all shards that take jobs, which become `sealing`.
   Nothing else changes.
2. The successors receive the declaration of each queue, whether it is paused, and its paused
   values.
3. Each queue is sealed in each old shard: from then on the shard refuses an enqueue before any
   write, and the job goes to the successor. A sealed queue stays sealed, so an id that it lacks
   never appears in it. A client that has asked for the id may therefore add the job to the
   successor.
4. The table says that the successors are `open`, and the old shards are `draining`: clients that
   read it ask the old shard first, and are not refused. The table is written only if step 3 knew
   all queues that are noted in it.
5. Workers go on to work off the old shards. A shard that was empty for ten minutes, the life of a
   call's record, leaves the table, which keeps the shard's totals.

Each step may be done twice, and by several clients at the same time. Any client can continue where
another stopped: the table records the progress, and each write replaces it by its next version
only.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.effects import Call, Scan, hurried, send, send_each
from headrace._core.fair.shares import wanted
from headrace._core.queue.schedules import schedules
from headrace._core.shards.map import ShardMap
from headrace._core.shards.transfer import WITHIN_S
from headrace._model.shards import (
    ROWS_AT_MOST,
    SHARDS_AT_MOST,
    Resharding,
    ShardRow,
    Table,
    Totals,
    tags,
)
from headrace._protocol import admin_ops, view_ops
from headrace._protocol.features import fair as fair_ops, schedules as schedule_ops
from headrace._protocol.keys import queue_of
from headrace._protocol.limits import RECORD_S
from headrace._protocol.shards import Drained, ShardOps
from headrace.errors import ConfigurationError


def reshard(known: ShardMap, shards: int | None) -> Call[Resharding]:
    yield from known.look()
    while (table := known.table).changing or (shards is not None and len(table.takers) != shards):
        if table.changing:
            yield from seal(known)
        elif shards is not None:
            yield from begin(known, shards)
    yield from tidy(known)
    table = known.table
    counts = yield from send_each(
        [view_ops.counts(known.at(shard.number)) for shard in table.draining]
    )
    return Resharding(len(table.takers), len(table.draining), sum(one.present for one in counts))


def checked(shards: int) -> int:
    if not 2 <= shards <= SHARDS_AT_MOST:  # a queue with one shard has no table
        raise ConfigurationError(
            f"reshard({shards}): give 2-{SHARDS_AT_MOST}; a sharded queue keeps at least two"
        )
    return shards


def begin(known: ShardMap, shards: int) -> Call[None]:
    table = known.table
    there = len(table.shards)
    if there + shards > ROWS_AT_MOST:
        raise ConfigurationError(
            f"reshard({shards}): {there} shards are in the table, and {ROWS_AT_MOST} may be: wait until some of those "
            "that are draining have gone; headrace shards shows them"
        )
    yield from known.change(table, table.divided(shards))


def seal(known: ShardMap) -> Call[None]:
    while (table := known.table).changing:
        old, successors = (
            [known.at(shard.number) for shard in some] for some in (table.takers, table.successors)
        )
        for name in sorted(table.queues):
            yield from _prepare([ops.of(name) for ops in old], [ops.of(name) for ops in successors])
        yield from send_each(
            [ops.of(name).seal(table.version) for name in sorted(table.queues) for ops in old]
        )
        yield from known.change(table, table.handed_over(), len(table.queues))


def _prepare(old: Sequence[ShardOps], successors: Sequence[ShardOps]) -> Call[None]:
    told = yield from send_each([ops.seal(0) for ops in old])
    fields = max((one.fields for one in told), key=len)
    paused = any(one.paused for one in told)
    new = yield from send_each(
        [ops.inherit([*fields, *(("paused", "1") if paused else ())]) for ops in successors]
    )
    for value in (yield from send(fair_ops.paused(old[0]))) if any(new) else ():
        some = yield from wanted(old, value)
        yield from send_each([fair_ops.pause(ops, some, True) for ops in successors])
    if not (paused and any(new)):
        return
    # resumed meanwhile
    if not any(one.paused for one in (yield from send_each([ops.seal(0) for ops in old]))):
        yield from send_each([admin_ops.pause(ops, False) for ops in successors])


def move_schedule(old: ShardOps, successor: ShardOps, name: str) -> Call[bool]:
    handed = yield from send(old.hand_schedule(name))
    if handed is None:
        return False
    new = yield from send(successor.take_schedule(name, *handed))
    # the schedule was ended meanwhile
    if not (yield from send(schedule_ops.unschedule(old, name))) and new:
        yield from send(schedule_ops.unschedule(successor, name))
    return True


def gather_schedule(known: ShardMap, to: ShardOps, name: str) -> Call[bool]:
    found = False
    for old in known.sharing(name, to):
        if old.number < to.number:
            found |= yield from move_schedule(old, to, name)
    return found


def tidy(known: ShardMap) -> Call[None]:
    """Move schedules out of old shards. Remove shards from the table that were empty for long
    enough."""
    for shard in known.table.draining:
        for name in sorted(known.table.queues):
            old = known.at(shard.number).of(name)
            for one in (yield from schedules(old)):
                yield from move_schedule(old, known.of(one.name).of(str(old.keys.queue)), one.name)
    empty: list[tuple[ShardRow, dict[str, Drained]]] = []
    for shard in known.table.draining:
        found = yield from _drained(known, shard, known.table.queues)
        if found is not None:
            empty.append((shard, found))
    if not empty:
        return
    there = yield from _keys(known)
    for shard, found in empty:
        names = [name for name, number in there if number == shard.number]
        # queues that no client has used
        others = {name for name in map(queue_of, names) if name} - found.keys()
        # results are kept for their time
        if any(":result:" in name or ":flow:" in name for name in names):
            continue
        more = yield from _drained(known, shard, others)
        if more is None:
            continue
        yield from _remove(known, shard, {name: one.totals for name, one in (found | more).items()})


def _drained(
    known: ShardMap, shard: ShardRow, names: frozenset[str] | set[str]
) -> Call[dict[str, Drained] | None]:
    """Ask whether all queues have been empty in a shard for long enough. Return `None` if one queue
    has not."""
    makers = [known.at(shard.number).of(name) for name in sorted(names)]
    # a failover may have lost the seal
    yield from send_each([ops.seal(known.table.version) for ops in makers])
    found = yield from send_each([ops.drained() for ops in makers])
    if any(one.seconds is None or one.seconds < RECORD_S for one in found):
        return None
    return dict(zip(sorted(names), found, strict=True))


def behind(known: ShardMap, table: Table) -> Call[set[int]]:
    """Return the numbers of the shards of an ordered queue whose jobs must wait for older jobs of
    their keys."""
    old = [shard for shard in table.shards if shard.state in {"sealing", "draining"}]
    asked = [shard for shard in old if shard.state == "draining"]
    asked = [shard for shard in asked if known.sound(known.at(shard.number).keys)]
    try:
        found = yield from hurried(
            send_each([known.at(shard.number).drained() for shard in asked]), WITHIN_S
        )
    except Exception as error:
        if not hasattr(error, "outcome"):
            raise
        found = []  # a shard does not answer: the others are asked the next time
        asked = []
    empty = {shard.number for shard, one in zip(asked, found, strict=True) if not one.entries}
    # a shard that is not sealed may get more jobs
    busy = [shard for shard in old if shard.number not in empty]
    return {
        shard.number
        for shard in table.shards
        if any(
            one.number < shard.number and one.first <= shard.last and shard.first <= one.last
            for one in busy
        )
    }


def _remove(known: ShardMap, shard: ShardRow, totals: dict[str, Totals]) -> Call[None]:
    table = known.table
    if shard not in table.shards or not (
        yield from known.change(table, table.without(shard.number, totals))
    ):
        return  # another client was faster
    yield from send_each([known.at(shard.number).of(name).wipe() for name in sorted(totals)])


def _keys(known: ShardMap) -> Call[list[tuple[str, int]]]:
    keys = known.ops.keys
    cursor = 0
    pattern = f"{known.ops.namespace}:{{{keys.group}~*"
    found: list[tuple[str, int]] = []
    while True:
        cursor, names = yield from Scan(cursor, pattern)
        found += tags(names, keys.group)
        if not cursor:
            return found
