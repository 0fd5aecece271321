"""Telling queues at once that a process has died, instead of leaving it to them to miss its heartbeats."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any

import redis
from attrs import asdict, frozen

from headrace._api.sync.queue import Queue
from headrace.errors import HeadraceError

TOLD_WITHIN_S = 1.0  # seconds that the supervisor waits for the server; later its peers find out


@frozen
class Identity:
    """A worker of a process, as its queues know it. Without a URL it has a client of the user's."""

    url: str | None
    namespace: str
    name: str
    queues: list[str]

    @classmethod
    def of(cls, worker: Any, url: str | None) -> Identity:
        """Describe a worker that is about to run."""
        return cls(url, worker.namespace, worker.name, list(worker.handlers))

    def packed(self) -> bytes:
        """Return it as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def unpacked(cls, line: bytes) -> Identity | None:
        """Unpack the bytes that `packed` made; `None` if some are missing."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError):
            return None


def declare_dead(identity: Identity) -> None:
    """Give the jobs of a process that has ended back to its queues. Nothing is said if the server does not answer."""
    late = threading.Event()
    thread = threading.Thread(target=_declare, args=(identity, late), daemon=True)
    thread.start()
    thread.join(TOLD_WITHIN_S)
    late.set()  # another process may have the name from here on


def _declare(identity: Identity, late: threading.Event) -> None:
    if identity.url is None:
        return
    with suppress(redis.RedisError, HeadraceError, OSError):
        for name in identity.queues:
            with Queue(name, url=identity.url, namespace=identity.namespace) as queue:
                for worker in queue.admin.workers():
                    if worker.name.rpartition(".")[0] == identity.name and not late.is_set():
                        queue.admin.fail_worker(worker.name)
