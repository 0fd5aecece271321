"""`queue.keeping(leases)`: leases that a thread keeps while a program works on their jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from headrace import _forks
from headrace._core.effects import Step
from headrace._core.queue.keeping import PARTING_S, Keeping
from headrace._telemetry.log import log_event
from headrace.errors import describe_error


class Kept:
    """A context in which leases are kept. Leaving it ends that: they last as long as any, from their last renewal.

    That waits for a server that is away 2 seconds at most.
    """

    def __init__(self, keeping: Keeping, drive: Callable[[Step[Any]], Any], queue: str) -> None:
        self._keeping, self._drive, self._queue = keeping, drive, queue
        self._over = _forks.event()
        self._thread = threading.Thread(target=self._keep, name=f"headrace-keeping-{queue}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _keep(self) -> None:
        wait = self._keeping.settings.heartbeat
        while not self._over.is_set():
            try:
                wait = self._drive(self._keeping.beat())
            except Exception as error:
                log_event("role_failed", "keeping leases: %s; goes on", describe_error(error), queue=self._queue)
            self._over.wait(wait)
        try:
            self._drive(self._keeping.end())
        except Exception as error:
            log_event("role_failed", "keeping leases: %s", describe_error(error), queue=self._queue)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2 * PARTING_S)
