"""The table of shards as one client knows it. It tells which shard takes a job, and which shards may have it.

A client may know an old table. A shard that takes no new jobs refuses an enqueue before any write; the client then
reads the table again, and sends the job to the right shard. Calls about other jobs first read the table, and then ask
all shards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from attrs import define, field, frozen

from headrace._core.effects import Scan, Step, send
from headrace._model.job import NewJob
from headrace._model.shards import Sealed, ShardRow, ShardState, Table, apart, tags
from headrace._protocol.keys import Keys, job_id, job_key
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps, shard_ops, table
from headrace.errors import NO_TABLE, ShardsMismatch


def anywhere(keys: Keys) -> bool:  # noqa: ARG001 - all alike
    """Return true: every node counts as sound by default."""
    return True


def named(job: NewJob[Any]) -> str | None:
    """Return the name that decides the shard of a job: its key, else its id, else `None`."""
    return job.id if job.key is None else job.key


def write(keys: Keys, new: Table, known: int | None, queues: int | None = None) -> Step[Table]:
    """Replace version *known* of the table by *new*. Return the table that the server has after that."""
    return _read(keys, (yield from send(table(keys, new.rows(), known, queues))))


def read(keys: Keys) -> Step[Table | None]:
    """Read the table; `None` if the server has none."""
    rows = yield from send(table(keys))
    return _read(keys, rows) if rows else None


def _read(keys: Keys, rows: dict[str, str]) -> Table:
    found = Table.parse(keys.group, rows)
    if found is None:
        raise ShardsMismatch(0)
    return found


@frozen(eq=False)
class Shards:
    """The shards of a queue in one table. Immutable, so that threads see one table or the next, and nothing between."""

    table: Table
    by_number: Mapping[int, ShardOps]
    asked: int = -1  # the number of the question that this table answered; -1: none, the table is a guess

    @property
    def read(self) -> bool:
        """Whether the table was read from the server."""
        return self.asked >= 0


@define(eq=False)
class ShardMap:
    """The known shards of a queue. *sound* tells whether the node of some keys has answered lately.

    Threads share this object: each step reads `now` once, and so sees the shards of one table.
    """

    ops: Ops
    sound: Callable[[Keys], bool] = anywhere
    now: Shards = field(init=False)
    sealed: set[int] = field(factory=set[int], init=False)  # shards that said they are sealed
    _made: dict[int, ShardOps] = field(factory=dict[int, ShardOps], init=False)  # removed shards, too
    _questions: Iterator[int] = field(factory=count, init=False)
    _turn: int = field(init=False)
    _scanned: int = field(default=0, init=False)  # where the next scan continues: no stranger was found before

    def __attrs_post_init__(self) -> None:
        shards = self.ops.settings.shards
        self._turn = random.randrange(shards)
        self.now = self._of(Table.of(self.ops.keys.group, shards))

    @property
    def known(self) -> bool:
        """Whether the table was read."""
        return self.now.read

    @property
    def table(self) -> Table:
        """The table that is known now. The next look may find another one."""
        return self.now.table

    def _take(self, asked: int, table: Table) -> None:
        """Store the answer to a question, unless a later question was answered already."""
        found = self._of(table, asked)
        if asked > self.now.asked:
            self.now = found

    def _of(self, table: Table, asked: int = -1) -> Shards:
        by_number: dict[int, ShardOps] = {}
        for shard in table.shards:
            made = self._made.get(shard.number)
            if made is None or made.shard != shard:  # the earlier table was a guess
                self._made[shard.number] = made = shard_ops(self.ops, table, shard)
            by_number[shard.number] = made
        return Shards(table, by_number, asked)

    def look(self, seen: Table | None = None) -> Step[bool]:
        """Read the table, or write it if it is missing. Return true if it differs from the *seen* or known one.

        Raises `ShardsMismatch` if the group never had as many shards as this client was given, or its table is gone.
        """
        keys, ours, asked = self.ops.keys, self.now, next(self._questions)
        found = yield from read(keys)
        if found is None and not ours.read and (yield from self._strangers()):
            found = yield from read(keys)  # or another client wrote the table meanwhile
            if found is None:
                raise ShardsMismatch(NO_TABLE)
        if found is None:  # a copy is as good
            found = yield from write(keys, ours.table, None)
        elif ours.read and _lost(found, ours.table):
            found = yield from write(keys, ours.table, found.version)
        if self.ops.settings.shards not in found.numbers:
            raise ShardsMismatch(len(found.takers))
        self._take(asked, found)
        return not found.same(ours.table if seen is None else seen)

    def change(self, old: Table, new: Table, queues: int | None = None) -> Step[bool]:
        """Replace *old* by *new*, if the server has *old* and notes *queues* queues in it. Store the server's table;
        return true if it is *new*.
        """
        asked = next(self._questions)
        found = yield from write(self.ops.keys, new, old.version, queues)
        self._take(asked, found)
        return found.same(new)

    def _strangers(self) -> Step[bool]:
        """Scan all keys for shards of the group that our table lacks: such a shard means that another table existed.
        The next call continues where this one stopped. A user without the right to scan finds none.
        """
        keys = self.ops.keys
        ours = {shard.tag(keys.group) for shard in self.table.shards}
        cursor = self._scanned
        while True:
            try:
                cursor, names = yield from Scan(cursor, f"{self.ops.namespace}:{{{keys.group}~*")
            except Exception as error:
                if "NOPERM" in str(error) or "no permissions" in str(error):
                    return False
                raise
            if any(name.partition("{")[2].partition("}")[0] not in ours for name, _ in tags(names, keys.group)):
                return True
            self._scanned = cursor
            if not cursor:
                return False

    def at(self, number: int) -> ShardOps:
        """Return the maker of operations of a shard, which may be removed by now."""
        return self._made[number]

    def state_of(self, shard: ShardRow) -> ShardState | None:
        """Return the state of a shard; `None` if the table lacks it, or was not read."""
        now = self.now
        return next((one.state for one in now.table.shards if now.read and one == shard), None)

    # -- which shard -------------------------------------------------------------------------------

    def of(self, name: str | None) -> ShardOps:
        """Return the shard of a key or id; without one, the next shard in turn whose node answered lately."""
        now = self.now
        if name is not None:
            return now.by_number[now.table.shard_of(name, self.sealed)]
        some = now.table.any_of(self.sealed)
        at = self._turn % len(some)
        for _ in some:
            self._turn = at = (at + 1) % len(some)
            if self.sound(now.by_number[some[at].number].keys):
                break
        return now.by_number[some[at].number]

    def round(self) -> list[ShardOps]:
        """Return the shards for a job without key and id, starting with the shard whose turn it is. Leave out shards
        whose node has not answered lately, unless that would leave none.
        """
        now = self.now
        some = now.table.any_of(self.sealed)
        self._turn = at = (self._turn + 1) % len(some)
        every = [now.by_number[shard.number] for shard in (*some[at:], *some[:at])]
        return [ops for ops in every if self.sound(ops.keys)] or every

    def before(self, job: NewJob[Any], number: int) -> list[ShardOps]:
        """Return the other shards that may have a job with this id, if the new job goes to the shard *number*."""
        name, now = named(job), self.now
        if job.id is None or name is None or len(now.by_number) == len(now.table.takers):
            return []
        sealed = (shard for shard in now.table.before(name, number) if self._gives_only(shard))
        return [now.by_number[shard.number] for shard in sealed]

    def there(self, asked: Mapping[int, Mapping[int, str]]) -> Step[set[int]]:
        """Ask shards which of these ids they have. *asked* maps the number of a shard to ids by position. Return the
        positions of ids that a shard has.
        """
        found: set[int] = set()
        for number, ids in asked.items():
            answers = yield from send(self.at(number).present([*ids.values()]))
            found |= {place for place, yes in zip(ids, answers, strict=True) if yes}
        return found

    def _gives_only(self, shard: ShardRow) -> bool:
        return shard.state == "draining" or shard.number in self.sealed

    def way(self, check: int) -> list[int]:
        """Return the shards that may have had a job with this checksum; the last one takes the job now."""
        table = self.table
        goal = table.shard_at(check, self.sealed)
        before = (shard for shard in table.shards if shard.first <= check <= shard.last and shard.number != goal)
        return [*(shard.number for shard in before if self._gives_only(shard)), goal]

    def refused(self, ops: ShardOps, error: Sealed) -> Step[None]:
        """Handle a shard that takes no new jobs: read the table.

        Raises `ShardsMismatch` if the table still says that the shard takes jobs: it is older than the shard.
        """
        self.sealed.add(ops.shard.number)
        yield from self.look()
        table = self.table
        if not table.successors and ops.shard in table.takers:
            raise ShardsMismatch(-error.version)

    def where(self, id: str, key: str | None = None) -> tuple[str, list[list[ShardOps]]]:
        """Return a job's id as its shard knows it, and two lists of shards to ask, the likely ones first."""
        name, number = apart(job_id(id))
        now = self.now
        if number is not None:
            return name, [[now.by_number[number]]] if number in now.by_number else [[]]
        decides = name if key is None else job_key(key)
        first = now.by_number[now.table.shard_of(decides, self.sealed)]
        own = [first, *(now.by_number[one.number] for one in now.table.before(decides, first.shard.number))]
        numbers = {ops.shard.number for ops in own}
        return name, [own] if key is not None else [own, [p for n, p in now.by_number.items() if n not in numbers]]

    def ordered(self) -> Sequence[ShardOps]:
        """Return all shards, by their numbers."""
        return list(self.now.by_number.values())


def _lost(found: Table, ours: Table) -> bool:
    """Tell whether the *found* table lacks shards that we know: a failover lost the table's last change."""
    return found.version < ours.version and not set(ours.shards) <= set(found.shards)
