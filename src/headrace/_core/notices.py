"""What is told by Pub/Sub: events, and who waits for one. Pure.

Pub/Sub delivers at most once, and only while somebody is subscribed: whatever relies on it subscribes first, then
looks for what was said before, and looks again when the connection was lost meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import define, field, frozen

KINDS = (
    "added", "leased", "completed", "retried", "released", "dead", "cancelled", "deleted", "reclaimed", "promoted",
    "redriven",
)  # fmt: skip
ENDS = ("completed", "dead", "cancelled", "deleted")  # after these a job has its result, or won't have one


@frozen
class Event:
    """Something that happened to a job.

    `kind` is added, leased, completed, retried, released, dead, cancelled, deleted, reclaimed, promoted (a delayed job
    is due) or redriven. `id` is the job's, or `None` when the whole queue was deleted. `at` is the server's time, in
    seconds. `worker` leased the job, or settled it, where the script knows; of a reclaimed one it is who died.
    """

    kind: str
    queue: str
    id: str | None
    at: float
    worker: str | None = None


@frozen
class Heard:
    """What came of listening: `anew` means that nobody has listened until now, `on` that nothing was missed since the
    last time, `cut` that there is no connection, `refused` that the server does not allow it."""

    state: str
    messages: Sequence[tuple[str, bytes]] = ()  # channel and text
    error: BaseException | None = None


def kinds(value: object) -> tuple[str, ...]:
    """*value* if it names kinds of events; `None` for all."""
    if value is None:
        return KINDS
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"kinds must be an iterable of str, not {type(value).__name__}")
    names: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    wrong = [name for name in names if name not in KINDS]
    if wrong or not names:
        raise ValueError(f"kinds={names!r}: give some of {', '.join(KINDS)}")
    return tuple(dict.fromkeys(names))


def _shown(name: str) -> str:
    """What is no UTF-8 in a foreign producer's id, as everywhere else."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def events(queue: str, channel: str, message: bytes) -> Iterator[Event]:
    """The events of one message; none of one that is not ours."""
    kind = channel.rpartition(":")[2]
    try:
        told: Any = json.loads(message.decode("utf-8", "surrogateescape"))
        at, worker, names = told["at"] / 1000, told.get("worker"), told.get("ids")
        ids = [None] if names is None else [_shown(name) for name in names]
        yield from [Event(kind, queue, name, at, worker) for name in ids]
    except (ValueError, TypeError, LookupError, AttributeError):
        return


@define(eq=False)
class Watch:
    """Somebody who waits for the end of jobs. `wake` is an event of the colour."""

    ids: frozenset[str]
    wake: Any
    ended: set[str] = field(factory=set[str])
    missed: bool = False  # something may have been said that nobody heard


@define(eq=False)
class Board:
    """Who waits for what: many share one subscription."""

    queue: str
    watches: dict[str, list[Watch]] = field(factory=dict[str, list[Watch]])
    sound: bool = False  # what is said now is heard

    def add(self, watch: Watch) -> None:
        """Somebody waits."""
        for name in watch.ids:
            self.watches.setdefault(name, []).append(watch)

    def remove(self, watch: Watch) -> None:
        """Not any more."""
        for name in watch.ids:
            rest = [other for other in self.watches.get(name, ()) if other is not watch]
            if rest:
                self.watches[name] = rest
            else:
                self.watches.pop(name, None)

    def take(self, heard: Heard) -> None:
        """Wake whom it concerns."""
        self.sound = heard.state in ("anew", "on")
        if heard.state != "on":  # look again: now that we hear, or because we don't
            self._all(None)
        for channel, message in heard.messages:
            for event in events(self.queue, channel, message):
                if event.id is None:
                    self._all(event)
                for watch in self.watches.get(event.id or "", ()):
                    watch.ended.add(event.id or "")
                    watch.wake.set()

    def _all(self, event: Event | None) -> None:
        for watch in {id(watch): watch for some in self.watches.values() for watch in some}.values():
            watch.missed = watch.missed or event is None
            watch.ended.update(watch.ids if event else ())
            watch.wake.set()

    def looked(self, watch: Watch) -> None:
        """*watch* looks for all now."""
        watch.missed = False
        if not watch.ended:
            watch.wake.clear()

    def read(self, watch: Watch) -> tuple[set[str], bool]:
        """The jobs of *watch* that have ended since it was last read, and whether others may have, unheard."""
        ended, missed = watch.ended, watch.missed
        watch.ended, watch.missed = set(), False
        watch.wake.clear()
        return ended, missed
