"""`headrace work --burst`: a worker that ends when its queues are empty."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack, suppress

import redis

from headrace._cli.deaths import Identity
from headrace._sync.queue import Queue
from headrace.errors import HeadraceError

LOOK_EVERY_S = 0.1  # seconds, until the worker is registered


def end_when_empty(identity: Identity) -> None:
    """Send this process SIGTERM once its worker is registered and no job is left in its queues but dead letters."""
    threading.Thread(target=_watch, args=(identity,), daemon=True).start()


def _watch(identity: Identity) -> None:
    while True:
        with suppress(redis.RedisError, HeadraceError, OSError), ExitStack() as stack:
            queues = [
                stack.enter_context(Queue(name, url=identity.url, namespace=identity.namespace))
                for name in identity.queues
            ]
            for queue in queues:
                while not any(one.name.rpartition(".")[0] == identity.name for one in queue.workers()):
                    time.sleep(LOOK_EVERY_S)
            empty = False
            while not empty:  # a job of one may enqueue into another
                for queue in queues:
                    queue.drain()
                empty = all(queue.drain(0) for queue in queues)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(LOOK_EVERY_S)
