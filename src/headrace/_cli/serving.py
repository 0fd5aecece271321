"""Workers for tasks that are named themselves: `headrace work app:tasks`."""

from __future__ import annotations

from typing import Any

from headrace._api.aio.tasks import AsyncTasks
from headrace._api.aio.worker import AsyncWorker
from headrace._api.sync.tasks import Tasks
from headrace._api.sync.worker import Worker
from headrace._api.tasks import serves_coroutines


def worker_of(found: Any) -> Any:
    """Return a worker for *found*, if that is a `Tasks` or `AsyncTasks`, on the server that it names; else *found*.

    It is an `AsyncWorker` for an `AsyncTasks`, and wherever a task is async.
    """
    if not isinstance(found, (Tasks, AsyncTasks)):
        return found
    kind: Any = AsyncWorker if isinstance(found, AsyncTasks) or serves_coroutines(found) else Worker
    queue: Any = found.queue
    at = queue._address  # noqa: SLF001
    worker = kind(at.url, client=at.client, namespace=queue.ops.namespace)
    worker.tasks(found)
    return worker
