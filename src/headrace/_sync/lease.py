"""`Lease`: its methods are those of `Queue`, for one job."""

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
    from headrace._sync.queue import Queue  # noqa: F401 - a string below names it


class Lease(BaseLease["Queue[T]", T], Generic[T]):
    """A claim on a job until a deadline, and the handle that settles it."""

    def complete(
        self, result: Any = None, then: Sequence[NewJob[Any]] = (), fenced: bool | None = None, *,
        timeout: Timeout = None,
    ) -> bool:  # fmt: skip
        """Like `Queue.complete`."""
        return self._queue.complete(self, result, then, fenced, timeout=timeout)

    def release(self, *, timeout: Timeout = None) -> bool:
        """Like `Queue.release`."""
        return self._queue.release(self, timeout=timeout)

    def retry(self, delay: Delay = 0.0, reason: str | BaseException = "", *, timeout: Timeout = None) -> bool:
        """Like `Queue.retry`."""
        return self._queue.retry(self, delay, reason, timeout=timeout)

    def dead_letter(self, reason: str | BaseException, *, timeout: Timeout = None) -> bool:
        """Like `Queue.dead_letter`."""
        return self._queue.dead_letter(self, reason, timeout=timeout)

    def renew(self, duration: float | timedelta | None = None, *, timeout: Timeout = None) -> bool:
        """Like `Queue.renew`."""
        return self._queue.renew(self, duration, timeout=timeout)
