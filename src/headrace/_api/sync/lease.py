# Generated from `headrace/_api/aio/lease.py` by .ci/twins.py: edit that file.
"""`Lease` has the methods of `Queue`, for one job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic

from headrace._api.queue import BaseLease, Delay
from headrace._model.job import NewJob, T
from headrace._net.base.address import Timeout

if TYPE_CHECKING:
    from headrace._api.sync.queue import Queue  # noqa: F401 - a string below names it


class Lease(BaseLease["Queue[T]", T], Generic[T]):
    """A claim on a job until a deadline, and the handle that settles it."""

    def complete(
        self,
        result: Any = None,
        then: Sequence[NewJob[Any]] = (),
        fenced: bool | None = None,
        *,
        timeout: Timeout = None,
        durable: str | None = None,
    ) -> bool:
        """Remove the job for good. `True` for exactly one caller, ever, also if its reply was lost
        on the way.

        For that caller only, the same script keeps *result* (encoded by the codec) for
        `result_ttl`. It also enqueues the jobs of *then*, in queues of the same group. Follow-ups
        for other shards are sent on from there. *fenced*: only the present holder wins. `None` does
        as the queue says. complete.lua, O(1).
        """
        return self._queue.complete(self, result, then, fenced, timeout=timeout, durable=durable)

    def release(self, *, timeout: Timeout = None) -> bool:
        """Give the job back untouched, to the front. No attempt is spent. Returns `False` if the
        lease was lost. release.lua.
        """
        return self._queue.release(self, timeout=timeout)

    def retry(
        self, delay: Delay = 0.0, reason: str | BaseException = "", *, timeout: Timeout = None
    ) -> bool:
        """Try the job again later, at the back of the queue or after *delay* (seconds, `timedelta`,
        aware `datetime`).

        An attempt is spent. After the last one the job is a dead letter. *reason*: a text, or the
        exception, which is described. Returns `False` if the lease was lost. retry.lua.
        """
        return self._queue.retry(self, delay, reason, timeout=timeout)

    def dead_letter(self, reason: str | BaseException, *, timeout: Timeout = None) -> bool:
        """Take the job out of the queue for good, and keep it with *reason*, a text or an
        exception. Returns `False` if the lease was lost. dead_letter.lua.
        """
        return self._queue.dead_letter(self, reason, timeout=timeout)

    def renew(self, duration: float | timedelta | None = None, *, timeout: Timeout = None) -> bool:
        """Renew the lease from now on, for *duration* seconds or for its last duration. Returns
        `False` if another worker has it, or the job is gone. renew.lua.
        """
        return self._queue.renew(self, duration, timeout=timeout)
