"""The shards of a group's queues. A shard has a range of keys, and a tag that puts it into its
own slot.

The functions are pure and fixed, so that all clients in any language find the same shard for a key.
Only the state of a shard changes. Its number is never used again. To have more or fewer shards, new
shards take over from old ones.
"""

from __future__ import annotations

import re
from binascii import crc32, crc_hqx
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Literal, cast, get_args

from attrs import evolve, field, frozen

from headrace._model.checks import count
from headrace._model.job import Anonymous
from headrace._model.state import Counts

SHARDS_AT_MOST = 256
ROWS_AT_MOST = 4 * SHARDS_AT_MOST  # shards of a table, draining ones included
RANGE = 1 << 32  # of the checksum of a key
SLOTS = 16_384  # of a cluster
ENTRY_ID = re.compile(r"\d+-\d+(\.\d)?")
_TAG = re.compile(r"\{(.*?)~(\d+)\.\d+\}")  # in keys and channels of a shard
_AT_SHARD = re.compile(r"(\d+-\d+(?:\.\d)?)@(\d+)")
_QUEUE = "queue:"  # what the fields for queues begin with
_PAST = "past:"
ShardState = Literal["open", "sealing", "opening", "draining"]
TAKING = ("open", "sealing")  # states of shards that take jobs, unless sealed
Totals = tuple[int, int, int, int, int]
"""The numbers of jobs that were enqueued, completed, cancelled and deleted, and of dead letters
that were trimmed."""


class Sealed(Exception):
    """The shard takes no new jobs since this *version* of the table. The call changed nothing."""

    def __init__(self, version: int) -> None:
        super().__init__(f"sealed by version {version} of the table of shards")
        self.version = version

    def __reduce__(self) -> tuple[type[Sealed], tuple[int]]:
        return type(self), (self.version,)


@frozen
class ShardRow:
    """One shard in the table. It has its number, the salt of its tag, the first and the last
    checksum of its keys, and its state. The state is `open`. While the number of shards changes,
    it is `sealing`, and its successors are `opening`. Then it is `draining` and takes no new
    jobs.
    """

    number: int
    salt: int
    first: int
    last: int
    state: ShardState = field(default="open", eq=False)

    def tag(self, group: str) -> str:
        return f"{group}~{self.number}.{self.salt}"

    def row(self) -> tuple[str, str]:
        return str(self.number), f"{self.salt} {self.first} {self.last} {self.state}"

    @property
    def share(self) -> float:
        return (self.last + 1 - self.first) / RANGE

    def covers(self, key: str) -> bool:
        return self.first <= crc32(key.encode()) <= self.last


@frozen
class Table:
    group: str
    shards: tuple[ShardRow, ...]  # of all queues of the group, by their numbers
    version: int = 1  # 1: nothing has divided it
    numbers: tuple[int, ...] = ()  # how many shards it was divided into, the last time last
    next: int = 0  # the number of the next shard to be made
    queues: frozenset[str] = frozenset()  # that anybody uses
    # by queue, what shards counted that are gone
    past: Mapping[str, Totals] = field(factory=dict[str, Totals])

    def gone(self, queue: str) -> Counts:
        """Return the totals of a queue in removed shards."""
        return Counts(0, 0, 0, 0, 0, 0, *self.past.get(queue, ()))

    @classmethod
    def of(cls, group: str, shards: int) -> Table:
        """Divide the range of checksums, and the slots of a cluster, into *shards* equal ranges."""
        all_shards = tuple(
            _new_row(group, number, number, shards, "open") for number in range(shards)
        )
        return cls(group, all_shards, numbers=(shards,), next=shards)

    @classmethod
    def parse(cls, group: str, rows: Mapping[str, str]) -> Table | None:
        """Read totals from the server's text. Return `None` if the text has another form."""
        try:
            all_shards = sorted(
                (_parsed(number, row) for number, row in rows.items() if number.isdigit()),
                key=attrgetter("number"),
            )
            numbers = (
                tuple(map(int, rows["numbers"].split()))
                if "numbers" in rows
                else (len(all_shards),)
            )
            past = {
                name.removeprefix(_PAST): row
                for name, row in rows.items()
                if name.startswith(_PAST)
            }
            made = cls(
                group,
                tuple(all_shards),
                int(rows["version"]),
                numbers,
                int(rows.get("next", len(all_shards))),
                frozenset(name.removeprefix(_QUEUE) for name in rows if name.startswith(_QUEUE)),
                {name: cast("Totals", tuple(map(int, row.split()))) for name, row in past.items()},
            )
        except (ValueError, KeyError):
            return None
        return made if made.takers and all(len(row) == 5 for row in made.past.values()) else None

    def rows(self) -> dict[str, str]:
        """Return the fields of the table on the server, except for the names of queues."""
        rows = {"version": str(self.version), **dict(shard.row() for shard in self.shards)}
        if self.version > 1:
            rows |= {"numbers": " ".join(map(str, self.numbers)), "next": str(self.next)}
        return rows | {_PAST + name: " ".join(map(str, row)) for name, row in self.past.items()}

    def same(self, other: Table) -> bool:
        """Tell whether this is the same table as *other*, apart from the noted queues."""
        return self.rows() == other.rows()

    @cached_property
    def takers(self) -> Sequence[ShardRow]:
        """The shards to which jobs go, in the order of their ranges, without gaps."""
        return sorted(
            (shard for shard in self.shards if shard.state in TAKING), key=attrgetter("first")
        )

    @cached_property
    def successors(self) -> Sequence[ShardRow]:
        """The shards that take over from sealed shards, in the order of their ranges."""
        return sorted(
            (shard for shard in self.shards if shard.state == "opening"), key=attrgetter("first")
        )

    @cached_property
    def _bounds(self) -> tuple[list[int], list[int]]:
        return [shard.first for shard in self.takers], [shard.first for shard in self.successors]

    @property
    def changing(self) -> bool:
        return bool(self.successors)

    @property
    def draining(self) -> list[ShardRow]:
        return [shard for shard in self.shards if shard.state == "draining"]

    def shard_of(self, key: str, sealed: frozenset[int] | set[int] = frozenset()) -> int:
        """Return the number of the shard of a key, or of the id of a job without a key. If the
        shard is known to be *sealed*, return its successor's number.
        """
        return self.shard_at(crc32(key.encode()), sealed)

    def shard_at(self, check: int, sealed: frozenset[int] | set[int] = frozenset()) -> int:
        taking, taking_over = self._bounds
        shard = self.takers[bisect_right(taking, check) - 1]
        if sealed and self.successors and shard.number in sealed:
            shard = self.successors[bisect_right(taking_over, check) - 1]
        return shard.number

    def any_of(self, sealed: set[int]) -> Sequence[ShardRow]:
        """Return the shards to which a job without key and id may go."""
        return (
            [shard for shard in self.takers if shard.number not in sealed]
            or self.successors
            or self.takers
        )

    def before(self, key: str, number: int) -> list[ShardRow]:
        """Return the other shards than *number* that may have jobs of a key, the newest first."""
        return [
            shard for shard in reversed(self.shards) if shard.number != number and shard.covers(key)
        ]

    # -- changing the number of shards -------------------------------------------------------------

    def divided(self, shards: int) -> Table:
        """Return the next version, with successors for all that take jobs now, which are *shards*
        equal ranges."""
        new = [_new_row(self.group, self.next + at, at, shards, "opening") for at in range(shards)]
        old = [
            evolve(shard, state="sealing") if shard.state == "open" else shard
            for shard in self.shards
        ]
        numbers = (*(number for number in self.numbers if number != shards), shards)
        return evolve(
            self,
            shards=(*old, *new),
            version=self.version + 1,
            numbers=numbers,
            next=self.next + shards,
        )

    def handed_over(self) -> Table:
        after: dict[ShardState, ShardState] = {"sealing": "draining", "opening": "open"}
        all_shards = tuple(
            evolve(shard, state=after.get(shard.state, shard.state)) for shard in self.shards
        )
        return evolve(self, shards=all_shards, version=self.version + 1)

    def without(self, number: int, totals: Mapping[str, Totals]) -> Table:
        """Return the next version of the table, without an empty shard. It keeps the shard's totals
        of each queue."""
        past = dict(self.past)
        for name, some in totals.items():
            past[name] = cast(
                "Totals", tuple(map(sum, zip(past.get(name, (0,) * 5), some, strict=True)))
            )
        all_shards = tuple(shard for shard in self.shards if shard.number != number)
        return evolve(self, shards=all_shards, version=self.version + 1, past=past)


def _parsed(number: str, row: str) -> ShardRow:
    salt, first, last, state = row.split()
    if state not in get_args(ShardState):
        raise ValueError(state)
    return ShardRow(int(number), int(salt), int(first), int(last), cast("ShardState", state))


def _new_row(group: str, number: int, at: int, shards: int, state: ShardState) -> ShardRow:
    first, last = (-(-RANGE * place // shards) for place in (at, at + 1))
    low, high = (-(-SLOTS * place // shards) for place in (at, at + 1))
    salt = 0
    while not low <= crc_hqx(f"{group}~{number}.{salt}".encode(), 0) % SLOTS < high:
        salt += 1
    return ShardRow(number, salt, first, last - 1, state)


def tags(names: Sequence[str], group: str) -> Iterator[tuple[str, int]]:
    """Yield the keys of *names* that belong to a shard of *group*, each with the number of the
    shard."""
    for name in names:
        found = _TAG.search(name)
        if found and found[1] == group:
            yield name, int(found[2])


def number_in(name: str) -> int | None:
    found = _TAG.search(name)
    return int(found[2]) if found else None


def shard_count(value: object) -> int:
    return count("shards", value, most=SHARDS_AT_MOST)


def is_entry(name: str) -> bool:
    """Tell whether an id is the name of a stream entry, as of a job that was enqueued without an
    id."""
    return ENTRY_ID.fullmatch(name) is not None


def apart(name: str) -> tuple[str, int | None]:
    """Return a job's id as its shard knows it, and the shard's number, if the id tells it."""
    if isinstance(name, Anonymous):
        return name.entry, name.shard
    found = _AT_SHARD.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, None)


@frozen
class Shard:
    """One shard of a queue. It has its `number`, its `counts`, and the checksums of its keys,
    `first` to `last` of CRC-32. `slot` is the hash slot of its keys, and `node` the address of
    the node that serves it (`None` if unknown). Its `state` is `open`, or `draining` after a
    change of their number, until it has no jobs. During the change it is `sealing`, and its
    successors are `opening`.
    """

    number: int
    first: int
    last: int
    slot: int
    node: str | None
    counts: Counts
    state: ShardState = "open"


@frozen
class Resharding:
    """The state of a change of the number of shards. New jobs go to *shards* shards. *draining*
    older shards still have *left* jobs of the queue, dead letters included. It is `done` when
    these have left the table.
    """

    shards: int
    draining: int
    left: int

    @property
    def done(self) -> bool:
        """Whether no older shard is left."""
        return not self.draining
