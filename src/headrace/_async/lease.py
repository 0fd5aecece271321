"""`AsyncLease`: its methods are those of `AsyncQueue`, for one job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic

from headrace._base.connected import Timeout
from headrace._base.lease import BaseLease
from headrace._base.queue import Delay
from headrace._model.job import NewJob
from headrace._model.payload import T

if TYPE_CHECKING:
    from headrace._async.queue import AsyncQueue  # noqa: F401 - a string below names it


class AsyncLease(BaseLease["AsyncQueue[T]", T], Generic[T]):
    """Like `Lease`; its methods are awaited."""

    async def complete(
        self, result: Any = None, then: Sequence[NewJob[Any]] = (), fenced: bool | None = None, *,
        timeout: Timeout = None,
    ) -> bool:  # fmt: skip
        """Like `Queue.complete`."""
        return await self._queue.complete(self, result, then, fenced, timeout=timeout)

    async def release(self, *, timeout: Timeout = None) -> bool:
        """Like `Queue.release`."""
        return await self._queue.release(self, timeout=timeout)

    async def retry(self, delay: Delay = 0.0, reason: str | BaseException = "", *, timeout: Timeout = None) -> bool:
        """Like `Queue.retry`."""
        return await self._queue.retry(self, delay, reason, timeout=timeout)

    async def dead_letter(self, reason: str | BaseException, *, timeout: Timeout = None) -> bool:
        """Like `Queue.dead_letter`."""
        return await self._queue.dead_letter(self, reason, timeout=timeout)

    async def renew(self, duration: float | timedelta | None = None, *, timeout: Timeout = None) -> bool:
        """Like `Queue.renew`."""
        return await self._queue.renew(self, duration, timeout=timeout)
