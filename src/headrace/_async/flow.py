"""`AsyncFlow`: start, watch and cancel runs of a flow, from asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import redis
import redis.asyncio

from headrace._async.driver import AsyncDriver
from headrace._base.address import Address
from headrace._base.closing import AsyncClosing
from headrace._base.flow import BaseFlow
from headrace._base.lease import BaseLease
from headrace._base.queue import Delay
from headrace._base.retrying import bounding
from headrace._core import flow_calls
from headrace._model.checks import seconds
from headrace._model.codec import Codec
from headrace._model.flow import FlowState
from headrace._model.receipt import Receipt
from headrace._model.state import Counts


class AsyncFlow(AsyncClosing, BaseFlow, AsyncDriver):
    """Like `Flow`, for asyncio; *client* is a `redis.asyncio.Redis`. For one event loop."""

    def __init__(
        self, name: str, *, url: str | None = None, client: redis.asyncio.Redis | None = None,
        namespace: str = "headrace", codec: Codec[Any] | None = None, lookup: Sequence[str] = (),
        dead_limit: int = 1000, result_ttl: float | timedelta = 86400, fenced: bool = False,
        timeout: float | timedelta = 45.0,
    ) -> None:  # fmt: skip
        super().__init__(name, namespace, codec, lookup, dead_limit, result_ttl, fenced)
        self._within = bounding(seconds("timeout", timeout, zero=False))
        self._address = Address.of(url, client, redis.asyncio.Redis, self)

    async def start(
        self, payload: Any, *, id: str | None = None, attributes: Mapping[str, str | Sequence[str]] | None = None,
        stage: str | None = None, delay: Delay = None, headers: Mapping[str, str] | None = None,
    ) -> Receipt:  # fmt: skip
        """Like `Flow.start`."""
        return await self._run(*self._start(payload, id, attributes, stage, delay, headers))

    async def complete(self, lease: BaseLease[Any, Any], outcome: Any = None, fenced: bool | None = None) -> bool:
        """Like `Flow.complete`."""
        return (await self._run(*self._complete(lease, outcome, fenced)))[0]

    async def state(self, id: str) -> FlowState | None:
        """Like `Flow.state`."""
        return await self._drive(flow_calls.state(self.ops, id))

    async def find(self, **attributes: str) -> list[FlowState]:
        """Like `Flow.find`."""
        return await self._drive(flow_calls.find(self.ops, attributes))

    async def result(self, id: str, timeout: float | timedelta | None = None) -> bytes | None:
        """Like `Flow.result`."""
        return await self._drive(self._result(id, timeout))

    async def cancel(self, id: str) -> bool:
        """Like `Flow.cancel`."""
        return await self._drive(flow_calls.cancel(self.ops, id))

    async def counts(self) -> dict[str, Counts]:
        """Like `Flow.counts`."""
        return await self._drive(flow_calls.counts(self.ops))

    async def mermaid(self, counts: bool = False) -> str:
        """Like `Flow.mermaid`."""
        return await self._drive(flow_calls.drawing(self.ops, counts))

    async def close(self) -> None:
        """Like `Flow.close`."""
        if self._address.executor is not None:
            await self._executor.close()
        self._part()
