"""A reliable, atomic work queue on Redis Streams consumer groups."""

from importlib.metadata import version as _version

from headrace._api.aio.flow import AsyncFlow
from headrace._api.aio.lease import AsyncLease
from headrace._api.aio.queue import AsyncQueue
from headrace._api.aio.tasks import AsyncTask, AsyncTasks
from headrace._api.aio.worker import AsyncWorker
from headrace._api.completion import as_completed
from headrace._api.sync.discovery import queues, workers
from headrace._api.sync.flow import Flow
from headrace._api.sync.lease import Lease
from headrace._api.sync.queue import Queue
from headrace._api.sync.tasks import Task, Tasks
from headrace._api.sync.worker import Worker
from headrace._codecs.by_msgspec import JSONCodec, MsgpackCodec
from headrace._codecs.by_pydantic import PydanticCodec
from headrace._codecs.compressed import Compressed
from headrace._codecs.encrypted import Encrypted
from headrace._codecs.offloaded import Offloaded
from headrace._codecs.store import DirectoryStore
from headrace._model.bulk import Bulk
from headrace._model.codec import Codec
from headrace._model.event import Event
from headrace._model.flow import FanOut, FlowJob, FlowState, Next
from headrace._model.job import Job, NewJob
from headrace._model.policy import Rate, Retry
from headrace._model.receipt import AsyncReceipt, Receipt
from headrace._model.shards import Resharding, Shard
from headrace._model.state import Counts, JobState, Repairs, Schedule, WorkerState
from headrace.errors import (
    BatchError,
    CodecError,
    Complete,
    ConfigurationError,
    DeadLetter,
    HeadraceError,
    JobFailed,
    LeasesLeft,
    NameTaken,
    NotDurable,
    OutcomeUnknown,
    PrioritiesMismatch,
    QueueFull,
    Release,
    ReplyError,
    RetryLater,
    ShardsMismatch,
    StreamStopped,
    TooManySchedules,
    Verdict,
    WorkerLost,
)

__version__ = _version("headrace")

__all__ = [
    "AsyncFlow",
    "AsyncLease",
    "AsyncQueue",
    "AsyncReceipt",
    "AsyncTask",
    "AsyncTasks",
    "AsyncWorker",
    "BatchError",
    "Bulk",
    "Codec",
    "CodecError",
    "Complete",
    "Compressed",
    "ConfigurationError",
    "Counts",
    "DeadLetter",
    "DirectoryStore",
    "Encrypted",
    "Event",
    "FanOut",
    "Flow",
    "FlowJob",
    "FlowState",
    "HeadraceError",
    "JSONCodec",
    "Job",
    "JobFailed",
    "JobState",
    "Lease",
    "LeasesLeft",
    "MsgpackCodec",
    "NameTaken",
    "NewJob",
    "Next",
    "NotDurable",
    "Offloaded",
    "OutcomeUnknown",
    "PrioritiesMismatch",
    "PydanticCodec",
    "Queue",
    "QueueFull",
    "Rate",
    "Receipt",
    "Release",
    "Repairs",
    "ReplyError",
    "Resharding",
    "Retry",
    "RetryLater",
    "Schedule",
    "Shard",
    "ShardsMismatch",
    "StreamStopped",
    "Task",
    "Tasks",
    "TooManySchedules",
    "Verdict",
    "Worker",
    "WorkerLost",
    "WorkerState",
    "as_completed",
    "queues",
    "workers",
]

for _name in __all__:  # where users find them: in reprs, pickles and pydoc
    globals()[_name].__module__ = __name__
