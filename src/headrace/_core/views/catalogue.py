"""The names of the queues of a namespace, as far as the keys of the server have been scanned."""

from __future__ import annotations

from attrs import define, field

from headrace._core.effects import Now, Scan, Step
from headrace._protocol.keys import in_shard, pattern, queue_of

SCANS_PER_LOOK = 50  # steps of 1,000 keys each: about 20 ms
LOOK_AGAIN_S = 10.0  # seconds between two passes over all keys


@define
class Catalogue:
    """The names found in the last scan of all keys, and in the current scan."""

    namespace: str
    whole: bool = field(default=False, init=False)
    _names: set[tuple[str, bool]] = field(factory=set[tuple[str, bool]], init=False)  # and whether it is sharded
    _found: set[tuple[str, bool]] = field(factory=set[tuple[str, bool]], init=False)  # in the pass that is under way
    _cursor: int = field(default=0, init=False)
    _since: float | None = field(default=None, init=False)  # the end of the last pass

    def look(self) -> Step[list[str]]:
        """Continue the search for queues; return the names found so far."""
        now = yield from Now()
        if self._cursor or self._since is None or now - self._since >= LOOK_AGAIN_S:
            for _ in range(SCANS_PER_LOOK):
                self._cursor, keys = yield from Scan(self._cursor, pattern(self.namespace))
                self._found.update((name, in_shard(key)) for key in keys if (name := queue_of(key)))
                if self._cursor == 0:
                    self._names, self._found = self._found, set()
                    self.whole, self._since = True, now
                    break
        return sorted({name for name, _ in self._names | self._found})

    def plain(self, name: str) -> bool:
        """Tell whether there is a queue of this name that has no shards."""
        return (name, False) in self._names or (name, False) in self._found

    def sharded(self, name: str) -> bool:
        """Tell whether there is a queue of this name that has shards."""
        return (name, True) in self._names or (name, True) in self._found

    def forget(self) -> None:
        """Begin the search again the next time."""
        self._since = None
