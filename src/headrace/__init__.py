"""A reliable, atomic work queue on Redis Streams consumer groups.

Durations are seconds (`float`) or a `timedelta`. A `delay` may also be an aware `datetime`, a
moment of the server's clock. Times in answers are seconds of the server's clock since the epoch.

Payloads are `bytes`, and a `str` is encoded as UTF-8. A codec gives them another type: `Queue[T]`,
`Lease[T]`, `Job[T]`, `NewJob[T]` and `JobState[T]` are of bytes by default.

`AsyncQueue`, `AsyncLease`, `AsyncReceipt`, `AsyncTasks`, `AsyncTask`, `AsyncFlow`, `AsyncWorker`,
and `AsyncInspector` and `AsyncAdmin` of `headrace.inspect`, have the same names and arguments as
the classes for threads. Their calls are awaited, and what iterates, iterates with `async for`.

A settlement answers `False` when the lease is lost, and raises nothing. Bad arguments raise
`ValueError` or `TypeError` before anything is sent. Errors of the server and of the way to it are
described in `docs/reference/errors.md`.
"""

from importlib.metadata import version as _version

from headrace._api.aio.flow import AsyncFlow
from headrace._api.aio.lease import AsyncLease
from headrace._api.aio.queue import AsyncQueue
from headrace._api.aio.tasks import AsyncTask, AsyncTasks
from headrace._api.aio.worker import AsyncWorker
from headrace._api.results import as_completed
from headrace._api.sync.discovery import queues, workers
from headrace._api.sync.flow import Flow
from headrace._api.sync.lease import Lease
from headrace._api.sync.queue import Queue
from headrace._api.sync.tasks import Task, Tasks
from headrace._api.sync.worker import Worker
from headrace._model.event import Event
from headrace._model.flow import FanOut, FlowJob, FlowState, Next
from headrace._model.job import Job, NewJob
from headrace._model.policy import Debounce, Rate, Replace, Retry, Throttle
from headrace._model.receipt import AsyncReceipt, Receipt
from headrace._model.state import Counts, JobState, Schedule
from headrace._model.terms import Limit
from headrace.errors import (
    BatchError,
    Complete,
    ConfigurationError,
    DeadLetter,
    HeadraceError,
    JobFailed,
    QueueFull,
    Release,
    RetryLater,
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
    "Complete",
    "ConfigurationError",
    "Counts",
    "DeadLetter",
    "Debounce",
    "Event",
    "FanOut",
    "Flow",
    "FlowJob",
    "FlowState",
    "HeadraceError",
    "Job",
    "JobFailed",
    "JobState",
    "Lease",
    "Limit",
    "NewJob",
    "Next",
    "Queue",
    "QueueFull",
    "Rate",
    "Receipt",
    "Release",
    "Replace",
    "Retry",
    "RetryLater",
    "Schedule",
    "Task",
    "Tasks",
    "Throttle",
    "Worker",
    "as_completed",
    "queues",
    "workers",
]

for _name in __all__:  # where users find them: in reprs, pickles and pydoc
    globals()[_name].__module__ = __name__
