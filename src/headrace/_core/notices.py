"""What is told by Pub/Sub: events, and who waits for one. Pure.

Pub/Sub delivers at most once, and only while somebody is subscribed: whatever relies on it subscribes first, then
looks for what was said before, and looks again when the connection was lost meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define, field, frozen

from headrace._model.event import Event


@frozen
class Received:
    """What came of listening: `anew` means that nobody has listened until now, `on` that nothing was missed since the
    last time, `cut` that there is no connection, `refused` that the server does not allow it."""

    state: str
    messages: Sequence[tuple[str, bytes]] = ()  # channel and text
    error: BaseException | None = None


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
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return


@define(eq=False)
class Waiter:
    """Somebody who waits for the end of jobs. `wake` is an event of the colour."""

    ids: frozenset[str]
    wake: Any
    ended: set[str] = field(factory=set[str])
    missed: bool = False  # something may have been said that nobody heard


@define(eq=False)
class Waitlist:
    """Who waits for what: many share one subscription."""

    queue: str
    waiters: dict[str, list[Waiter]] = field(factory=dict[str, list[Waiter]])
    sound: bool = False  # what is said now is heard

    def add(self, waiter: Waiter) -> None:
        """Somebody waits."""
        for name in waiter.ids:
            self.waiters.setdefault(name, []).append(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Not any more."""
        for name in waiter.ids:
            rest = [other for other in self.waiters.get(name, ()) if other is not waiter]
            if rest:
                self.waiters[name] = rest
            else:
                self.waiters.pop(name, None)

    def take(self, heard: Received) -> None:
        """Wake whom it concerns."""
        self.sound = heard.state in ("anew", "on")
        if heard.state != "on":  # look again: now that we hear, or because we don't
            self._all(None)
        for channel, message in heard.messages:
            for event in events(self.queue, channel, message):
                if event.id is None:
                    self._all(event)
                for waiter in self.waiters.get(event.id or "", ()):
                    waiter.ended.add(event.id or "")
                    waiter.wake.set()

    def _all(self, event: Event | None) -> None:
        for waiter in {id(waiter): waiter for some in self.waiters.values() for waiter in some}.values():
            waiter.missed = waiter.missed or event is None
            waiter.ended.update(waiter.ids if event else ())
            waiter.wake.set()

    def looked(self, waiter: Waiter) -> None:
        """*watch* looks for all now."""
        waiter.missed = False
        if not waiter.ended:
            waiter.wake.clear()

    def read(self, waiter: Waiter) -> tuple[set[str], bool]:
        """The jobs of *watch* that have ended since it was last read, and whether others may have, unheard."""
        ended, missed = waiter.ended, waiter.missed
        waiter.ended, waiter.missed = set(), False
        waiter.wake.clear()
        return ended, missed
