"""The context `queue.keeping(leases)`, which renews leases while a program works on their jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from headrace._core.effects import Call
from headrace._core.queue.keeping import Keeping
from headrace._net.aio.colour import Background, Driven, event, happens
from headrace._protocol.limits import COURTESY_S
from headrace._telemetry.log import log_event
from headrace.errors import describe_error


class AsyncKept:
    """A context in which leases are renewed.

    After it, each lease lasts for its usual time from the last renewal. Leaving the context waits
    at most 2 seconds for an unreachable server.
    """

    def __init__(
        self, keeping: Keeping, drive: Callable[[Call[Any]], Driven[Any]], queue: str
    ) -> None:
        self._keeping = keeping
        self._drive = drive
        self._queue = queue
        self._over = event()
        self._background = Background()

    async def __aenter__(self) -> Self:
        self._background.start(f"headrace-keeping-{self._queue}", self._keep)
        return self

    async def _keep(self) -> None:
        wait = self._keeping.settings.heartbeat
        while not self._over.is_set():
            try:
                wait = await self._drive(self._keeping.beat())
            except Exception as error:
                log_event(
                    "role_failed",
                    "keeping leases: %s; goes on",
                    describe_error(error),
                    queue=self._queue,
                )
            await happens(self._over, wait)
        try:
            await self._drive(self._keeping.end())
        except Exception as error:
            log_event("role_failed", "keeping leases: %s", describe_error(error), queue=self._queue)

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._background.end(2 * COURTESY_S)
