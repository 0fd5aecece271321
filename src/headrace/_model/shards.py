"""The shards of a group's queues: which range of keys each has, and the tag by which it lies in a slot of its own.

Pure, and fixed: all clients, in any language, come to the same shard for a key.
"""

from __future__ import annotations

import re
from binascii import crc32, crc_hqx
from collections.abc import Mapping

from attrs import frozen

from headrace._model.checks import count
from headrace._model.job import Anonymous
from headrace._model.state import Counts

SHARDS_AT_MOST = 256
RANGE = 1 << 32  # of the checksum of a key
SLOTS = 16_384  # of a cluster
VERSION = 1  # of a table that nothing has divided
ENTRY_ID = re.compile(r"\d+-\d+(\.\d)?")
_AT_SHARD = re.compile(r"(\d+-\d+(?:\.\d)?)@(\d+)")


@frozen
class Part:
    """One shard in the table: its number, the salt of its tag, and the first and the last checksum of its keys."""

    number: int
    salt: int
    first: int
    last: int

    def tag(self, group: str) -> str:
        """Return the hash tag of its keys."""
        return f"{group}~{self.number}.{self.salt}"

    def row(self) -> tuple[str, str]:
        """Return its field in the table: the number, and what is known of it."""
        return str(self.number), f"{self.salt} {self.first} {self.last} open"


@frozen
class Table:
    """The shards of all queues of a group."""

    group: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, group: str, shards: int) -> Table:
        """Divide the range of checksums, and the slots of a cluster, into *shards* equal ranges."""
        return cls(group, tuple(_part(group, number, shards) for number in range(shards)))

    def part_of(self, key: str) -> int:
        """Return the number of the shard of a key, or of the id of a job without one."""
        return crc32(key.encode()) * len(self.parts) // RANGE

    def rows(self) -> dict[str, str]:
        """Return the fields of the table as it is kept on the server."""
        return {"version": str(VERSION), **dict(part.row() for part in self.parts)}

    def agrees(self, rows: Mapping[str, str]) -> bool:
        """Tell whether the server's table is this one."""
        return dict(rows) == self.rows()


def _part(group: str, number: int, shards: int) -> Part:
    first, last = (-(-RANGE * at // shards) for at in (number, number + 1))
    low, high = (-(-SLOTS * at // shards) for at in (number, number + 1))
    salt = 0
    while not low <= crc_hqx(f"{group}~{number}.{salt}".encode(), 0) % SLOTS < high:
        salt += 1
    return Part(number, salt, first, last - 1)


def shard_count(value: object) -> int:
    """Return a number of shards. Raises `TypeError` or `ValueError`."""
    return count("shards", value, most=SHARDS_AT_MOST)


def is_entry(name: str) -> bool:
    """Tell whether an id is the name of an entry, as that of a job that was given none."""
    return ENTRY_ID.fullmatch(name) is not None


def apart(name: str) -> tuple[str, int | None]:
    """Return a job's id as its shard knows it, and the shard's number, if the id tells it."""
    if isinstance(name, Anonymous):
        return name.entry, name.shard
    found = _AT_SHARD.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, None)


@frozen
class Shard:
    """One shard of a queue: its `number`, the checksums of the keys that are its own (`first` to `last`, of CRC-32),
    the hash `slot` of its keys, the address of the `node` that serves it (`None`: not known), and its `counts`.
    """

    number: int
    first: int
    last: int
    slot: int
    node: str | None
    counts: Counts
