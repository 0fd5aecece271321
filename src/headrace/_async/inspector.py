"""`AsyncInspector`. What it shows is made in `_core/views`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import redis
import redis.asyncio

from headrace._async.driver import AsyncDriver
from headrace._base.address import Address
from headrace._base.closing import AsyncClosing
from headrace._base.inspector import FRESH_S, BaseInspector, scanned, scanning
from headrace._core.effects import Effect, Scan, Step
from headrace._core.views import Redact
from headrace._model.codec import Codec
from headrace._model.flow import FlowState
from headrace._model.state import Schedule
from headrace._model.views import DeadPage, JobsPage, JobView, Overview, QueuePage, RunsPage, WorkerView

R = TypeVar("R")


class AsyncInspector(AsyncClosing, BaseInspector, AsyncDriver):
    """Like `Inspector`, for asyncio; *client* is a `redis.asyncio.Redis`. For one event loop."""

    def __init__(
        self, *, url: str | None = None, client: redis.asyncio.Redis | None = None, namespace: str = "headrace",
        codecs: Mapping[str, Codec[Any]] | None = None, redact: Redact | None = None,
        fresh: float | timedelta = FRESH_S, timeout: float | timedelta = 5.0,
    ) -> None:  # fmt: skip
        address = Address.of(url, client, redis.asyncio.Redis, self)
        super().__init__(address, namespace, codecs, redact, fresh, timeout)
        self._lock = asyncio.Lock()

    async def _perform(self, effect: Effect, end: float | None = None) -> Any:
        if isinstance(effect, Scan):
            return scanned((await self._executor.send([scanning(effect)], within=self._within))[0])
        return await super()._perform(effect, end)

    async def _see(self, view: Step[R]) -> R:
        async with self._lock:
            return await self._drive(view)

    async def overview(self) -> Overview:
        """Like `Inspector.overview`."""
        return await self._see(self.views.overview())

    async def queue(self, name: str) -> QueuePage:
        """Like `Inspector.queue`."""
        return await self._see(self.views.queue(name))

    async def jobs(self, name: str, state: str, cursor: str = "", limit: int = 50) -> JobsPage:
        """Like `Inspector.jobs`."""
        return await self._see(self.views.jobs(name, state, cursor, limit))

    async def job(self, name: str, id: str) -> JobView | None:
        """Like `Inspector.job`."""
        return await self._see(self.views.job(name, id))

    async def find(self, id: str, names: Sequence[str]) -> list[str]:
        """Like `Inspector.find`."""
        return await self._see(self.views.find(id, names))

    async def schedules(self, names: Sequence[str]) -> dict[str, list[Schedule]]:
        """Like `Inspector.schedules`."""
        return await self._see(self.views.schedules(names))

    async def dead(self, name: str) -> DeadPage:
        """Like `Inspector.dead`."""
        return await self._see(self.views.dead(name))

    async def dead_ids(self, name: str, key: str) -> list[str]:
        """Like `Inspector.dead_ids`."""
        return await self._see(self.views.dead_ids(name, key))

    async def worker(self, name: str, worker: str) -> WorkerView | None:
        """Like `Inspector.worker`."""
        return await self._see(self.views.worker(name, worker))

    async def runs(self, flow: str, cursor: str = "") -> RunsPage:
        """Like `Inspector.runs`."""
        return await self._see(self.views.runs(flow, cursor))

    async def run(self, flow: str, id: str) -> FlowState | None:
        """Like `Inspector.run`."""
        return await self._see(self.views.run(flow, id))

    async def close(self) -> None:
        """Like `Inspector.close`."""
        if self._address.executor is not None:
            await self._executor.close()
        self._address.leave()
