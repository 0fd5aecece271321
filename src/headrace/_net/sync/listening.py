"""One subscription to the events of all shards of a queue: a connection, and a thread, for each node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace import _forks
from headrace._core.effects import Step
from headrace._core.notices import Received
from headrace._net.base.listening import CUT_PAUSE_S, LOOK_EVERY_S, BaseListening, Ear
from headrace._net.base.subscription import LISTEN_S
from headrace._net.sync.executor import Executor
from headrace._net.sync.subscription import Subscription
from headrace._protocol.shards import WholeOps


class Listening(BaseListening):
    """A subscription to all shards of a queue, as one. *drive* performs the looks at their table."""

    _executor: Executor

    def __init__(
        self, ops: WholeOps, executor: Executor, kinds: Sequence[str], drive: Callable[[Step[bool]], bool]
    ) -> None:
        super().__init__(ops, executor, kinds)
        self._drive = drive
        self._changed = _forks.condition()
        self._looking: threading.Thread | None = None

    def receive(self, _channels: Sequence[str], seconds: float) -> Received:
        """Return the messages of at most *seconds*; at first, whether it listens to all shards."""
        with self._changed:
            if self._looking is None:
                self._looking = self._begin(self._look)
            begun = self._inbox.begun
            self._wait(lambda: self._inbox.ready or self._inbox.begun != begun, seconds if begun else LISTEN_S)
            self._changed.notify_all()  # there is room
            return self._inbox.received()

    def _begin(self, target: Callable[..., None], *args: Ear) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name="headrace-events", daemon=True)
        thread.start()
        return thread

    def _wait(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until something holds, or all is over, so many seconds at most."""
        self._changed.wait_for(lambda: self._closed or holds(), seconds)

    def _look(self) -> None:
        """Follow the table."""
        while not self._closed:
            try:
                self._drive(self._map.look())
            except Exception as error:
                self._not_read(error)
            with self._changed:
                self._assign()
                self._changed.notify_all()
                self._wait(lambda: self._inbox.error is not None, LOOK_EVERY_S)

    def _assign(self) -> None:
        for ear in self._regroup() if self._map.known and not self._closed else ():
            ear.subscription = Subscription(self._executor, ear.listened)
            self._begin(self._listen, ear)

    def _listen(self, ear: Ear) -> None:
        """Listen to the shards of one node, for as long as it has some."""
        try:
            while ear.channels and not self._closed:
                received = ear.subscription.receive(ear.channels, LISTEN_S)
                with self._changed:
                    if self._took(ear, received):
                        self._assign()
                    self._changed.notify_all()
                    if received.state == "cut":
                        self._wait(lambda: not ear.channels, CUT_PAUSE_S)
                    while not (self._inbox.room or self._closed):
                        self._wait(lambda: self._inbox.room, LISTEN_S)
        except Exception as error:
            self._inbox.error = error
        finally:
            ear.subscription.close()

    def close(self) -> None:
        """Close all connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            ears = [*self._ears.values()]
        for ear in ears:
            ear.subscription.close()
