"""Streams of jobs: their parts, and their progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from headrace._model.job import NewJob
from headrace._protocol.limits import BYTES_PER_SCRIPT, JOBS_PER_SCRIPT
from headrace.errors import StreamStopped

JOBS_AT_ONCE = 10 * JOBS_PER_SCRIPT  # jobs that are held at most, packed while the server works
BYTES_AT_ONCE = 4 * BYTES_PER_SCRIPT  # bytes of payloads that are held, as far as they are known before encoding


@define
class BatchBuffer:
    """A stream of jobs: its progress, and the part that is not sent yet."""

    progress: Callable[[int], object] | None
    position: int = 0
    part: list[Any] = field(factory=list[Any])
    size: int = 0  # bytes

    def full(self, job: Any) -> bool:
        """Add a job to the next part. Tell whether to send the part now."""
        payload: Any = job
        if isinstance(job, NewJob):
            payload = job.payload  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self.part.append(job)
        self.size += len(payload) if isinstance(payload, (bytes, str)) else 0
        return len(self.part) >= JOBS_AT_ONCE or self.size >= BYTES_AT_ONCE

    def sent(self, receipts: Sequence[object]) -> None:
        """Begin the next part, as this one was sent."""
        self.position += len(receipts)
        self.part, self.size = [], 0
        if self.progress is not None:
            self.progress(self.position)

    def stopped(self, cause: Exception) -> StreamStopped:
        """Return the error to raise from *cause*, which may have the receipts of the enqueued jobs."""
        receipts: Sequence[object] = getattr(cause, "receipts", ())
        sure = next((at for at, receipt in enumerate(receipts) if receipt is None), len(receipts))
        return StreamStopped(self.position + sure, cause)
