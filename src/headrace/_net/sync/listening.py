# Generated from `headrace/_net/aio/listening.py` by .ci/twins.py: edit that file.
"""One subscription to the events of all shards of a queue. Each node has a connection, and a
reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define
from redis import exceptions as errors

from headrace._core.effects import Call
from headrace._core.notices import Inbox, Received
from headrace._core.shards.map import ShardMap
from headrace._net.base.retries import RECONNECT_PAUSE_S
from headrace._net.sync.colour import Background, Driven, condition, here, holds
from headrace._net.sync.executor import Executor
from headrace._net.sync.subscription import LISTEN_S, Subscription, channels_of
from headrace._protocol.limits import POLL_S, RETRY_BUDGET_S
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import WholeOps


@define(eq=False)
class Listener:
    subscription: Any = None
    shards: Sequence[Ops] = ()
    channels: Sequence[str] = ()

    def listened(self) -> Sequence[Ops]:
        return self.shards


class Listening:
    """One subscription to all shards of a queue. It follows the table of shards, which it reads
    through *drive*.
    """

    def __init__(
        self,
        ops: WholeOps,
        executor: Executor,
        kinds: Sequence[str],
        drive: Callable[[Call[bool]], Driven[bool]],
    ) -> None:
        self._map = ShardMap(ops)
        self._executor = executor
        self._kinds = kinds
        self._drive = drive
        self._inbox = Inbox(RETRY_BUDGET_S)
        self._listeners: dict[str | None, Listener] = {}
        self._changed = condition()
        self._background = Background()
        self._home: object = None  # of the reader of the table
        self._closed = False

    def receive(self, _channels: Sequence[str], seconds: float) -> Received:
        """Wait up to *seconds* for messages, and return them.

        The first call returns whether it listens to all shards.
        """
        with self._changed:
            if self._home != here():
                self._home = here()
                self._background.start("headrace-events", self._follow)
            begun = self._inbox.begun
            self._wait(
                lambda: self._inbox.ready or self._inbox.begun != begun,
                seconds if begun else LISTEN_S,
            )
            self._changed.notify_all()  # there is room
            return self._inbox.received()

    def _wait(self, predicate: Callable[[], bool], seconds: float) -> None:
        holds(self._changed, lambda: self._closed or predicate(), seconds)

    def _follow(self) -> None:
        while not self._closed:
            try:
                self._drive(self._map.look())
            # while the node of the table is out of reach, the known table serves
            except Exception as error:
                if not (self._map.known and isinstance(error, (errors.RedisError, OSError))):
                    self._inbox.error = error
            with self._changed:
                self._assign()
                self._changed.notify_all()
                self._wait(lambda: self._inbox.error is not None, POLL_S)

    def _assign(self) -> None:
        """Listen to each shard at its node, if the node is known. The caller holds the lock."""
        if not self._map.known or self._closed:
            return
        groups: dict[str | None, list[Ops]] = {}
        for ops in self._map.ordered():
            groups.setdefault(self._executor.node(ops.keys), []).append(ops)
        for node in self._listeners.keys() - groups.keys():
            gone = self._listeners.pop(node)
            gone.shards = gone.channels = ()  # this ends it
            self._inbox.forget(gone)
        for node, shards in groups.items():
            listener = self._listeners.get(node)
            if listener is None:
                listener = self._listeners[node] = Listener()
                self._inbox.expect(listener, time.monotonic())
            if listener.shards != shards:
                listener.shards = shards
                listener.channels = channels_of(shards, self._kinds)
            if listener.subscription is None:
                listener.subscription = Subscription(self._executor, listener.listened)
                self._background.start("headrace-events", self._listen, listener)

    def _listen(self, listener: Listener) -> None:
        try:
            while listener.channels and not self._closed:
                received = listener.subscription.receive(listener.channels, LISTEN_S)
                with self._changed:
                    self._inbox.take(listener, received, time.monotonic())
                    if not listener.channels:
                        self._inbox.forget(listener)
                    if received.state in ("strayed", "cut"):
                        self._assign()
                    self._changed.notify_all()
                    if received.state == "cut":
                        self._wait(lambda: not listener.channels, RECONNECT_PAUSE_S)
                    while not (self._inbox.room or self._closed):
                        self._wait(lambda: self._inbox.room, LISTEN_S)
        except Exception as error:
            self._inbox.error = error
        finally:
            listener.subscription.close()

    def abandon(self) -> None:
        """Stop reading, so that all readers end by themselves within seconds."""
        self._closed = True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            listeners = [*self._listeners.values()]
        self._background.end()
        for listener in listeners:
            listener.subscription.close()
