"""`queue.keeping(leases)`: leases that a task keeps while a program works on their jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Self

from headrace._core.effects import Step
from headrace._core.queue.keeping import PARTING_S, Keeping
from headrace._telemetry.log import log_event
from headrace.errors import describe_error


class AsyncKept:
    """A context in which leases are kept. Leaving it ends that: they last as long as any, from their last renewal.

    That waits for a server that is away 2 seconds at most.
    """

    def __init__(self, keeping: Keeping, drive: Callable[[Step[Any]], Awaitable[Any]], queue: str) -> None:
        self._keeping, self._drive, self._queue = keeping, drive, queue
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep(), name=f"headrace-keeping-{self._queue}")
        return self

    async def _keep(self) -> None:
        wait = self._keeping.settings.heartbeat
        while not self._over.is_set():
            try:
                wait = await self._drive(self._keeping.beat())
            except Exception as error:
                log_event("role_failed", "keeping leases: %s; goes on", describe_error(error), queue=self._queue)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), wait)
        try:
            await self._drive(self._keeping.end())
        except Exception as error:
            log_event("role_failed", "keeping leases: %s", describe_error(error), queue=self._queue)

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        if self._task is not None and not (await asyncio.wait([self._task], timeout=2 * PARTING_S))[0]:
            self._task.cancel()
