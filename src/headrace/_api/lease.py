"""The base of `Lease` and `AsyncLease`: the attributes of a leased job."""

from __future__ import annotations

from typing import Generic, TypeVar

from attrs import field, frozen

from headrace._model.job import Claim, Job
from headrace._model.payload import T
from headrace._model.pickling import Unpicklable

Q = TypeVar("Q")


@frozen(eq=False)
class BaseLease(Unpicklable, Generic[Q, T]):
    """The base of both leases."""

    _instead = "send its job, and settle it here"

    claim: Claim
    _queue: Q = field(repr=False)

    @property
    def job(self) -> Job[T]:
        """The job: `id`, `payload`, `headers`, `attempt`, `enqueued_at`."""
        return self.claim.job

    @property
    def token(self) -> int:
        """A number that grows with every delivery of the job: for your own fencing (`… WHERE token < :token`)."""
        return self.claim.token

    @property
    def worker(self) -> str:
        """The name under which it was leased."""
        return self.claim.worker
