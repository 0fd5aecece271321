"""headrace: a reliable, atomic work queue on Redis Streams consumer groups."""

from importlib.metadata import version as _version

from headrace._codec import Codec, JSONCodec
from headrace._event import Event
from headrace._fleet import queues, workers
from headrace._flow import AsyncFlow, Flow
from headrace._job import Counts, Job, JobState, NewJob, Receipt, Repairs, Schedule, WorkerState
from headrace._outcome import FanOut, FlowJob, FlowState, Next
from headrace._queue import AsyncLease, AsyncQueue, Lease, Queue
from headrace._settings import Rate, Retry
from headrace._worker import Worker
from headrace._worker_async import AsyncWorker
from headrace.errors import (
    BatchError,
    CodecError,
    Complete,
    ConfigurationError,
    DeadLetter,
    HeadraceError,
    NameTaken,
    Release,
    ReplyError,
    RetryLater,
    Verdict,
    WorkerLost,
)

__version__ = _version("headrace")

__all__ = [
    "AsyncFlow",
    "AsyncLease",
    "AsyncQueue",
    "AsyncWorker",
    "BatchError",
    "Codec",
    "CodecError",
    "Complete",
    "ConfigurationError",
    "Counts",
    "DeadLetter",
    "Event",
    "FanOut",
    "Flow",
    "FlowJob",
    "FlowState",
    "HeadraceError",
    "JSONCodec",
    "Job",
    "JobState",
    "Lease",
    "NameTaken",
    "NewJob",
    "Next",
    "Queue",
    "Rate",
    "Receipt",
    "Release",
    "Repairs",
    "ReplyError",
    "Retry",
    "RetryLater",
    "Schedule",
    "Verdict",
    "Worker",
    "WorkerLost",
    "WorkerState",
    "queues",
    "workers",
]
