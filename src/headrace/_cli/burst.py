"""`headrace work --burst`: a worker that ends when its queues are empty."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import redis

from headrace._api.sync.queue import Queue
from headrace._cli.deaths import Identity
from headrace.errors import HeadraceError

LOOK_EVERY_S = 0.1  # seconds, until the worker is registered


class Burst:
    """The watch on the queues of a worker in this process. *over*: it has found them empty."""

    def __init__(self, identity: Identity) -> None:
        self.identity, self.over = identity, False

    def begin(self) -> None:
        """Send this process SIGTERM once its worker is registered and no job is left in its queues but dead letters."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.over:
            with suppress(redis.RedisError, HeadraceError, OSError), ExitStack() as stack:
                self._await_empty([stack.enter_context(self._queue(name)) for name in self.identity.queues])
                self.over = True
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(LOOK_EVERY_S)

    def _queue(self, name: str) -> Queue:
        return Queue(name, url=self.identity.url, namespace=self.identity.namespace)

    def _await_empty(self, queues: Sequence[Queue]) -> None:
        for queue in queues:
            while not any(one.name.rpartition(".")[0] == self.identity.name for one in queue.admin.workers()):
                time.sleep(LOOK_EVERY_S)
        empty = False
        while not empty:  # a job of one may enqueue into another
            for queue in queues:
                queue.admin.drain()
            empty = all(queue.admin.drain(0) for queue in queues)
