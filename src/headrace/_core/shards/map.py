"""The shards of a queue as one client knows them. The map tells which shard takes a job, and which
shards may have it.

A client may know an old table. A shard that takes no new jobs refuses an enqueue before any write.
The client then reads the table again, and sends the job to the right shard. Calls about other jobs
first read the table, and then ask all shards.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, ClassVar

from attrs import define, field, frozen

from headrace._core.effects import Call, Scan, send
from headrace._model.checks import LEVELS_AT_MOST
from headrace._model.job import NewJob
from headrace._model.settings import QueueSettings
from headrace._model.shards import Sealed, ShardRow, ShardState, Table, apart, tags
from headrace._protocol import view_ops
from headrace._protocol.keys import Keys, job_id, job_key
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps, shard_ops, table
from headrace.errors import NO_TABLE, ConfigurationError, ShardsMismatch


def named(job: NewJob[Any]) -> str | None:
    """Return the name that decides the shard of a job. It is its key, or else its id, or else
    `None`."""
    return job.id if job.key is None else job.key


def write(keys: Keys, new: Table, known: int | None, queues: int | None = None) -> Call[Table]:
    return _read(keys, (yield from send(table(keys, new.rows(), known, queues))))


def read(keys: Keys, *, note: bool = True) -> Call[Table | None]:
    rows = yield from send(table(keys, note=note))
    return _read(keys, rows) if rows else None


def _read(keys: Keys, rows: dict[str, str]) -> Table:
    found = Table.parse(keys.group, rows)
    if found is None:
        raise ShardsMismatch(0)
    return found


# before the first use of a sharded queue, whose clients would not see these jobs
def refuse_jobs_without_shards(ops: Ops) -> Call[None]:
    counts = yield from send(
        view_ops.counts(Ops(ops.keys, QueueSettings(priorities=LEVELS_AT_MOST)))
    )
    if left := counts.present - counts.dead:
        raise ConfigurationError(
            f"queue {ops.keys.queue!r} has {left:,} job{'' if left == 1 else 's'} without shards, which clients with "
            "shards= would not see: let workers without shards= complete them first, or take another name"
        )


@frozen(eq=False)
class Shards:
    """The shards of a queue in one table. Immutable, so that threads see one table or the next, and
    nothing between."""

    table: Table
    by_number: Mapping[int, ShardOps]
    # the number of the question that this table answered; -1: none, the table is a guess
    asked: int = -1

    @property
    def read(self) -> bool:
        return self.asked >= 0


def divided(namespace: str, keys: Keys, shards: int) -> Call[Table]:
    # the table of a queue of so many shards; it is written if it is missing, and notes the queue
    known = ShardMap(Ops(keys, QueueSettings(shards=shards), namespace=namespace))
    yield from known.look()
    return known.table


@frozen(eq=False)
class OneShard:
    """The one shard of a plain queue. Nothing is looked up, as there is no table."""

    ops: Ops
    table: ClassVar[Table | None] = None

    def look(self, seen: object = None) -> Call[bool]:  # noqa: ARG002 - nothing changes
        yield from ()
        return False

    def at(self, number: int) -> Ops:  # noqa: ARG002 - there is one
        return self.ops

    def of(self, name: str | None) -> Ops:  # noqa: ARG002 - there is one
        return self.ops

    def ordered(self) -> Sequence[Ops]:
        return [self.ops]

    def where(self, id: str, key: str | None = None) -> tuple[str, Sequence[Sequence[Ops]]]:
        if key is not None:
            job_key(key)
        return job_id(id), [[self.ops]]

    def line(self, id: str, key: str | None) -> tuple[str, Sequence[Ops]]:
        name, (shards,) = self.where(id, key)
        return name, shards

    def holders(self, ids: Sequence[str]) -> list[tuple[Ops, Sequence[str]]]:
        return [(self.ops, ids)]


@define(eq=False)
class ShardMap:
    """The known shards of a queue. *sound* tells whether the node of some keys has answered lately.

    Threads share this object. Each step reads `now` once, and so sees the shards of one table.
    """

    ops: Ops
    sound: Callable[[Keys], bool] = lambda _: True
    now: Shards = field(init=False)
    sealed: set[int] = field(factory=set[int], init=False)  # shards that said they are sealed
    # removed shards, too
    _made: dict[int, ShardOps] = field(factory=dict[int, ShardOps], init=False)
    _questions: Iterator[int] = field(factory=count, init=False)
    _turn: int = field(init=False)
    # where the next scan continues: no stranger was found before
    _scanned: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        shards = self.ops.settings.shards
        self._turn = random.randrange(shards)
        self.now = self._of(Table.of(self.ops.keys.group, shards))

    @property
    def known(self) -> bool:
        return self.now.read

    @property
    def table(self) -> Table:
        return self.now.table

    @property
    def overlaps(self) -> bool:
        """Whether shards share ranges of keys, as the number of shards was changed."""
        return len(self.table.shards) > len(self.table.takers)

    def _take(self, asked: int, table: Table) -> None:
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

    def look(self, seen: Table | None = None) -> Call[bool]:
        """Read the table, or write it if it is missing. Return true if it differs from the *seen*
        or known one.

        Raises `ShardsMismatch` if the group never had as many shards as this client was given, or
        its table is gone.
        """
        keys = self.ops.keys
        ours = self.now
        asked = next(self._questions)
        found = yield from read(keys, note=ours.read)
        if found is None and not ours.read and (yield from self._strangers()):
            found = yield from read(keys)  # or another client wrote the table meanwhile
            if found is None:
                raise ShardsMismatch(NO_TABLE)
        if not ours.read and (found is None or keys.queue not in found.queues):
            yield from refuse_jobs_without_shards(self.ops)
            found = (yield from read(keys)) or found  # notes the queue
        if found is None:  # a copy is as good
            found = yield from write(keys, ours.table, None)
        elif (
            ours.read
            and found.version < ours.table.version
            and set(ours.table.shards) - set(found.shards)
        ):
            # A failover lost the table's last change.
            found = yield from write(keys, ours.table, found.version)
        if self.ops.settings.shards not in found.numbers:
            raise ShardsMismatch(len(found.takers))
        self._take(asked, found)
        return not found.same(ours.table if seen is None else seen)

    def change(self, old: Table, new: Table, queues: int | None = None) -> Call[bool]:
        """Replace *old* by *new*, if the server has *old* and notes *queues* queues in it. Store
        the server's table. Returns true if it is *new*.
        """
        asked = next(self._questions)
        found = yield from write(self.ops.keys, new, old.version, queues)
        self._take(asked, found)
        return found.same(new)

    def _strangers(self) -> Call[bool]:
        """Scan all keys for shards of the group that our table lacks. Such a shard means that
        another table existed. The next call continues where this one stopped. A user without the
        right to scan finds none.
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
            if any(
                name.partition("{")[2].partition("}")[0] not in ours
                for name, _ in tags(names, keys.group)
            ):
                return True
            self._scanned = cursor
            if not cursor:
                return False

    def at(self, number: int) -> ShardOps:
        return self._made[number]

    def state_of(self, shard: ShardRow) -> ShardState | None:
        now = self.now
        return next((one.state for one in now.table.shards if now.read and one == shard), None)

    # -- which shard -------------------------------------------------------------------------------

    def of(self, name: str | None) -> ShardOps:
        """Return the shard of a key or id. Without one, return the next shard in turn whose node
        answered lately."""
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
        """Return the shards for a job without key and id, starting with the shard whose turn it is.
        Leave out shards whose node has not answered lately, unless that would leave none.
        """
        now = self.now
        some = now.table.any_of(self.sealed)
        self._turn = at = (self._turn + 1) % len(some)
        every = [now.by_number[shard.number] for shard in (*some[at:], *some[:at])]
        return [ops for ops in every if self.sound(ops.keys)] or every

    def before(self, job: NewJob[Any], ops: Ops) -> list[ShardOps]:
        """Return the other shards that may have a job with this id, if the new job goes to the
        shard of *ops*."""
        name = named(job)
        now = self.now
        if job.id is None or name is None or len(now.by_number) == len(now.table.takers):
            return []
        sealed = (shard for shard in now.table.before(name, ops.number) if self._gives_only(shard))
        return [now.by_number[shard.number] for shard in sealed]

    def sharing(self, name: str, ops: Ops) -> list[ShardOps]:
        """Return the other shards whose range has a key or id that the shard of *ops* has, too."""
        now = self.now
        return [now.by_number[shard.number] for shard in now.table.before(name, ops.number)]

    def present(self, asked: Mapping[int, Mapping[int, str]]) -> Call[set[int]]:
        """Ask shards which of these ids they have. *asked* maps the number of a shard to ids by
        position. Return the positions of ids that a shard has.
        """
        found: set[int] = set()
        for number, ids in asked.items():
            answers = yield from send(self.at(number).present([*ids.values()]))
            found |= {place for place, yes in zip(ids, answers, strict=True) if yes}
        return found

    def _gives_only(self, shard: ShardRow) -> bool:
        return shard.state == "draining" or shard.number in self.sealed

    def way(self, check: int) -> list[int]:
        """Return the shards that may have had a job with this checksum. The last one takes the job
        now."""
        table = self.table
        goal = table.shard_at(check, self.sealed)
        before = (
            shard
            for shard in table.shards
            if shard.first <= check <= shard.last and shard.number != goal
        )
        return [*(shard.number for shard in before if self._gives_only(shard)), goal]

    def refused(self, ops: Ops, error: Sealed) -> Call[None]:
        """Read the table, as a shard takes no new jobs.

        Raises `ShardsMismatch` if the table still says that the shard takes jobs. Then it is older
        than the shard.
        """
        self.sealed.add(ops.number)
        yield from self.look()
        table = self.table
        if not table.successors and ops.keys.shard in table.takers:
            raise ShardsMismatch(-error.version)

    def where(self, id: str, key: str | None = None) -> tuple[str, Sequence[Sequence[ShardOps]]]:
        """Return a job's id as its shard knows it, and two lists of shards to ask, the likely ones
        first."""
        name, number = apart(job_id(id))
        now = self.now
        if number is not None:
            return name, [[now.by_number[number]]] if number in now.by_number else [[]]
        decides = name if key is None else job_key(key)
        first = now.by_number[now.table.shard_of(decides, self.sealed)]
        own = [
            first,
            *(now.by_number[one.number] for one in now.table.before(decides, first.shard.number)),
        ]
        numbers = {ops.shard.number for ops in own}
        return name, [own] if key is not None else [
            own,
            [p for n, p in now.by_number.items() if n not in numbers],
        ]

    def line(self, id: str, key: str | None) -> tuple[str, Sequence[ShardOps]]:
        """Return a job's id as its shard knows it, and the shards that may have it in their lines.
        Raises `ConfigurationError` if neither the id nor the key decides its shard.
        """
        if key is None and apart(job_id(id))[1] is None:
            raise ConfigurationError(
                f"position of {id!r}: there is no order between shards; give key=, for its position in the key's shard"
            )
        name, tiers = self.where(id, key)
        return name, tiers[0]

    def holders(self, ids: Sequence[str]) -> list[tuple[Ops, Sequence[str]]]:
        """Return the shards that may have some of *ids*, each with the ids as it knows them.
        Without ids these are all shards.
        """
        if not ids:
            return [(ops, ()) for ops in self.ordered()]
        names: dict[int, list[str]] = defaultdict(list)
        for one in ids:
            name, tiers = self.where(one)
            for ops in chain(*tiers):
                names[ops.number].append(name)
        return [(self.at(number), names[number]) for number in sorted(names)]

    def ordered(self) -> Sequence[ShardOps]:
        return list(self.now.by_number.values())
