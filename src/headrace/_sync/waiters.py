"""Those that wait for the ends of a queue's jobs: one subscription for all of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from headrace._base.subscription import (
    LINGER_S,
    LISTEN_S,
    POLL_EVERY_S,
    POLL_UNHEARD_EVERY_S,
    channels_of,
)
from headrace._core.notices import Received, Waiter, Waitlist
from headrace._model.event import ENDS
from headrace._protocol.queue_ops import Ops
from headrace._sync.executor import Executor
from headrace._sync.subscription import Subscription


class Waiters:
    """Who waits for the ends of jobs of a queue: one subscription for all, as long as somebody waits."""

    def __init__(self, ops: Ops, executor: Executor) -> None:
        self._ops, self._executor = ops, executor
        self._board = Waitlist(ops.keys.queue)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._line: Subscription | None = None
        self._idle_since = 0.0
        self._pid = os.getpid()
        self._board.waiters.clear()

    def waiter(self, names: Sequence[str], seconds: float) -> Waiter:
        """From now on their ends are noticed, if the server lets us, and answers within so many seconds."""
        if self._pid != os.getpid():  # a fork took no thread with it
            self._reset()
        waiter = Waiter(frozenset(names), threading.Event())
        with self._lock:
            self._board.add(waiter)
            if self._line is None:
                self._ready.clear()
                self._line = Subscription(self._executor, self._ops.listen())
                threading.Thread(target=self._listen, args=(self._line,), name="headrace-notices", daemon=True).start()
        try:
            self._ready.wait(seconds)
        except BaseException:
            self.ignore(waiter)
            raise
        with self._lock:
            self._board.looked(waiter)
        return waiter

    def wait(self, waiter: Waiter, seconds: float) -> tuple[set[str], bool]:
        """Those that ended, and whether to look for the others."""
        told = waiter.wake.wait(min(seconds, POLL_EVERY_S if self._board.sound else POLL_UNHEARD_EVERY_S))
        with self._lock:
            ended, missed = self._board.read(waiter)
        return ended, missed or not told

    def ignore(self, waiter: Waiter) -> None:
        """They are waited for no more."""
        with self._lock:
            self._board.remove(waiter)
            self._idle_since = time.monotonic()

    def _listen(self, line: Subscription) -> None:
        channels = channels_of(self._ops, ENDS)
        while True:
            heard = line.hear(channels, LISTEN_S)
            with self._lock:
                if self._line is not line:
                    break
                self._board.take(heard)
                self._ready.set()
                if not self._board.waiters and time.monotonic() - self._idle_since >= LINGER_S:
                    self._line = None
                    break
            if not self._board.sound:
                time.sleep(LISTEN_S)
        line.close()

    def close(self) -> None:
        """Who still waits looks by itself."""
        with self._lock:
            line, self._line = self._line, None
            self._board.take(Received("cut"))
        if line is not None:
            line.close()
