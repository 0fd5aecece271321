"""The queues of a namespace, as a scan of all keys finds them, and the operations of their
shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Call, Now, Scan, send_all
from headrace._model.codec import Codec, chosen
from headrace._model.settings import QueueSettings
from headrace._model.shards import ShardRow, Table
from headrace._model.state import Counts
from headrace._protocol import view_ops
from headrace._protocol.keys import Keys, in_shard, pattern, queue_of
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import ShardOps, table
from headrace._protocol.view_ops import About

SCANS_PER_LOOK = 50  # steps of 1,000 keys each: about 20 ms
# seconds between two readings of facts that change slowly, as between two reports of workers
AGAIN_S = 10.0


@define
class Catalogue:
    """The names found in the last scan of all keys, and in the current scan."""

    namespace: str
    whole: bool = field(default=False, init=False)
    # and whether it is sharded
    _names: set[tuple[str, bool]] = field(factory=set[tuple[str, bool]], init=False)
    # in the pass that is under way
    _found: set[tuple[str, bool]] = field(factory=set[tuple[str, bool]], init=False)
    _cursor: int = field(default=0, init=False)
    _since: float | None = field(default=None, init=False)  # the end of the last pass

    def refresh(self) -> Call[list[str]]:
        now = yield from Now()
        if self._cursor or self._since is None or now - self._since >= AGAIN_S:
            for _ in range(SCANS_PER_LOOK):
                self._cursor, keys = yield from Scan(self._cursor, pattern(self.namespace))
                self._found.update((name, in_shard(key)) for key in keys if (name := queue_of(key)))
                if self._cursor == 0:
                    self._names = self._found
                    self._found = set()
                    self.whole = True
                    self._since = now
                    break
        return sorted({name for name, _ in self._names | self._found})

    def plain(self, name: str) -> bool:
        return (name, False) in self._names or (name, False) in self._found

    def sharded(self, name: str) -> bool:
        return (name, True) in self._names or (name, True) in self._found

    def forget(self) -> None:
        self._since = None


@define(eq=False)
class OpsFactory:
    """Maker of the operations of each shard, for the priority levels that it is known to have."""

    catalogue: Catalogue
    codecs: Mapping[str, Codec[Any]]
    # the last answers, by the prefix of keys
    abouts: dict[str, About] = field(factory=dict[str, About], init=False)
    # the last operations, by the prefix of keys, as making them takes as long as sending them
    _made: dict[str, Ops] = field(factory=dict[str, Ops], init=False)
    # by queue, the totals of gone shards
    past: dict[str, Counts] = field(factory=dict[str, Counts], init=False)

    def whole(self, name: str) -> Ops:
        """Make the operations of a queue without shards. Raises `ConfigurationError` for an invalid
        name."""
        return self._make(Keys.of(name, self.catalogue.namespace))

    def _make(self, keys: Keys, levels: int = 0) -> Ops:
        known = self.abouts.get(keys.prefix)
        priorities = levels or (known.levels if known else 1)
        made = self._made.get(keys.prefix)
        if made is None or made.settings.priorities != priorities or made.keys != keys:
            settings = QueueSettings(priorities=priorities)
            codec = self.codecs.get(keys.queue, chosen(None))
            kind = Ops if keys.shard is None else ShardOps
            made = kind(keys, settings, codec, self.catalogue.namespace)
            self._made[keys.prefix] = made
        return made

    def of(self, names: Sequence[str], levels: int = 0) -> Call[dict[str, list[Ops]]]:
        """Make the operations of the shards of these queues, by queue.

        One script a queue reads the table of shards, unless the queue is known to have none.
        """
        keys = {name: Keys.of(name, self.catalogue.namespace) for name in names}
        asked = [
            name for name in keys if self.catalogue.sharded(name) or not self.catalogue.plain(name)
        ]
        tables = (
            (yield from send_all([table(keys[name], note=False) for name in asked]))
            if asked
            else []
        )
        found = {name: Table.parse("", rows) for name, rows in zip(asked, tables, strict=True)}
        shards = {name: one.shards for name, one in found.items() if one is not None}
        self.past |= {name: one.gone(name) for name, one in found.items() if one is not None}
        return {
            name: [self._make(one, levels) for one in self._keys(keys[name], shards.get(name, ()))]
            for name in names
        }

    def _keys(self, keys: Keys, shards: Iterable[ShardRow]) -> list[Keys]:
        some = [keys.at(part) for part in shards]
        return [keys, *some] if not some or self.catalogue.plain(keys.queue) else some

    def levelled(self, names: Sequence[str]) -> Call[dict[str, list[Ops]]]:
        parts = yield from self.of(names)
        every = [ops for name in names for ops in parts[name]]
        abouts = yield from send_all([view_ops.about(ops) for ops in every])
        self.abouts.update(zip((ops.keys.prefix for ops in every), abouts, strict=True))
        return {name: [self._make(ops.keys) for ops in parts[name]] for name in names}

    def deeper(self, ops: Ops) -> Ops | None:
        known = self.abouts[ops.keys.prefix].levels
        return self._make(ops.keys) if known > ops.settings.priorities else None

    def about(self, parts: Sequence[Ops]) -> list[About]:
        return [self.abouts[ops.keys.prefix] for ops in parts]

    def keep(self, names: Iterable[str]) -> None:
        known = set(names)
        self.abouts = {
            prefix: one for prefix, one in self.abouts.items() if prefix.split(":")[-2] in known
        }
        self.past = {name: one for name, one in self.past.items() if name in known}
        self._made = {prefix: one for prefix, one in self._made.items() if prefix in self.abouts}


def place(cursor: str, parts: int) -> tuple[int, str]:
    """Read a cursor of a listing of several shards, one after another. Raises `ValueError`."""
    if parts == 1:
        return 0, cursor
    number, _, inner = cursor.partition(":") if cursor else ("0", "", "")
    if not number.isdecimal() or int(number) >= parts:
        raise ValueError(f"cursor {cursor!r:.100}: give that of the page before")
    return int(number), inner
