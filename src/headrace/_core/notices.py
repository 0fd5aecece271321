"""The events in Pub/Sub messages, and the calls that wait for an event. It is pure.

Pub/Sub delivers at most once, and only while a client is subscribed. So a call subscribes first,
then reads the present state, and reads again if the connection was lost meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from attrs import define, field, frozen

from headrace._model.event import Event
from headrace._model.shards import is_entry, number_in
from headrace._protocol.limits import JOBS_PER_SCRIPT

MESSAGES_AT_MOST = JOBS_PER_SCRIPT  # messages that wait to be read; beyond that, receivers wait


@frozen
class Received:
    """Messages of a subscription, and its state.

    `anew`: it begins now. `on`: no message was missed since the last time. `strayed`: another node
    serves some of the channels. `cut`: there is no connection. `refused`: the server does not allow
    it.
    """

    state: str
    messages: Sequence[tuple[str, bytes]] = ()  # channel and text
    error: BaseException | None = None


def _shown(name: str) -> str:
    """Show an id of a foreign producer. If it is not UTF-8, it is escaped as everywhere."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _at_shard(name: str, number: int | None) -> str:
    return name if number is None or not is_entry(name) else f"{name}@{number}"


def events(queue: str, channel: str, message: bytes) -> Iterator[Event]:
    kind = channel.rpartition(":")[2]
    try:
        content: Any = json.loads(message.decode("utf-8", "surrogateescape"))
        at = content["at"] / 1000
        worker = content.get("worker")
        names = content.get("ids")
        number = number_in(channel)
        ids = [None] if names is None else [_at_shard(_shown(name), number) for name in names]
        reasons = [_shown(reason) or None for reason in content.get("reasons") or [""] * len(ids)]
        yield from [
            Event(kind, queue, name, at, worker, why)
            for name, why in zip(ids, reasons, strict=True)
        ]
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return


@define(eq=False)
class Inbox:
    patience: float  # seconds for which a source may be disconnected
    begun: bool = False  # all have been heard of
    error: BaseException | None = None  # why nothing more is received
    _messages: list[tuple[str, bytes]] = field(factory=list[tuple[str, bytes]])
    _cut: dict[Hashable, float] = field(factory=dict[Hashable, float])  # since when
    _last: BaseException | None = None  # the last error that heals

    @property
    def ready(self) -> bool:
        return bool(self._messages) or self.error is not None

    @property
    def room(self) -> bool:
        return len(self._messages) < MESSAGES_AT_MOST

    def expect(self, source: Hashable, now: float) -> None:
        self._cut[source] = now

    def forget(self, source: Hashable) -> None:
        self._cut.pop(source, None)

    def take(self, source: Hashable, received: Received, now: float) -> None:
        self._messages += received.messages
        if received.state not in ("cut", "refused"):
            self._cut.pop(source, None)
            self.begun = self.begun or not self._cut
            return
        since = self._cut.setdefault(source, now)
        self._last = received.error or self._last
        if received.state == "refused" or now - since >= self.patience:
            self.error = self.error or self._last

    def received(self) -> Received:
        messages = self._messages
        self._messages = []
        if messages:
            return Received("on", messages)
        if self.error is not None:
            return Received("refused", error=self.error)
        return Received("on") if self.begun else Received("cut", error=self._last)


@define(eq=False)
class Waiter:
    ids: frozenset[str]
    wake: Any
    ended: dict[str, Event] = field(factory=dict[str, Event])  # the last of each job
    missed: bool = False  # a message may have been missed


@define(eq=False)
class Waitlist:
    """The waiters of a queue, by job. Many share one subscription."""

    queue: str
    waiters: dict[str, list[Waiter]] = field(factory=dict[str, list[Waiter]])
    sound: bool = False  # messages are received now

    def add(self, waiter: Waiter) -> None:
        for name in waiter.ids:
            self.waiters.setdefault(name, []).append(waiter)

    def remove(self, waiter: Waiter) -> None:
        for name in waiter.ids:
            rest = [other for other in self.waiters.get(name, ()) if other is not waiter]
            if rest:
                self.waiters[name] = rest
            else:
                self.waiters.pop(name, None)

    def take(self, received: Received) -> None:
        self.sound = received.state in ("anew", "on")
        # read again: earlier messages were missed, or later ones will be
        if received.state != "on":
            self._all(None)
        for channel, message in received.messages:
            for event in events(self.queue, channel, message):
                if event.id is None:
                    self._all(event)
                for waiter in self.waiters.get(event.id or "", ()):
                    waiter.ended[event.id or ""] = event
                    waiter.wake.set()

    def _all(self, event: Event | None) -> None:
        for waiter in {
            id(waiter): waiter for some in self.waiters.values() for waiter in some
        }.values():
            waiter.missed = waiter.missed or event is None
            waiter.ended.update(dict.fromkeys(waiter.ids, event) if event else {})
            waiter.wake.set()

    def about_to_read(self, waiter: Waiter) -> None:
        """Forget that messages may have been missed, as *waiter* is about to read all its
        results."""
        waiter.missed = False
        if not waiter.ended:
            waiter.wake.clear()

    def read(self, waiter: Waiter) -> tuple[dict[str, Event], bool]:
        """Return new ends of *waiter*'s jobs by id, and true if it may have missed the ends of
        others."""
        ended = waiter.ended
        missed = waiter.missed
        waiter.ended = {}
        waiter.missed = False
        waiter.wake.clear()
        return ended, missed
