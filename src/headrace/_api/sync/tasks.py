# Generated from `headrace/_api/aio/tasks.py` by .ci/twins.py: edit that file.
"""`Tasks` has typed functions whose calls are jobs. Their decisions are in `_api/tasks`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Protocol, Unpack, cast, overload
from zoneinfo import ZoneInfo

from headrace._api.sync.colour import Closing
from headrace._api.sync.queue import Queue
from headrace._api.tasks import BaseTask, BaseTasks, C, P, R, receipt_of, typed
from headrace._api.worker import Seconds
from headrace._model.codec import Codec
from headrace._model.job import NewJob
from headrace._model.policy import Full, Retry
from headrace._model.receipt import Receipt
from headrace._model.settings import QueueOptions, with_options
from headrace._net.base.address import Client, Timeout


class Task(BaseTask[P, R, C], Generic[P, R, C]):
    """A function whose calls are jobs. Calling it runs it, and `enqueue` makes a job of the
    call."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Enqueue a call, which a worker runs. The arguments are checked first. Raises `TypeError`
        for arguments that the function does not take, and sends nothing then. The receipt's
        `result()` is the function's result. Cost and other errors are as for `Queue.enqueue`.
        """
        job = self.new(*args, **kwargs)
        queue = self._tasks.queue
        receipts: list[Receipt[R]] = typed(queue, [job], [queue.enqueue(job, **self._call)])
        return receipts[0]

    def receipt(self, id: str) -> Receipt[R]:
        """Make the receipt of an earlier call of this task from the job's id alone, for its
        `result()`. Sends nothing.

        `added` is false, because nothing is enqueued. Raises `ValueError` or `TypeError` for an id
        that no job can have.
        """
        return cast("Receipt[R]", receipt_of(self, id))


class Declare(Protocol):
    """A decorator that makes a task of a function."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class Tasks(Closing, BaseTasks):
    """Typed functions whose calls are jobs of one queue. `@tasks.task` makes a task, and
    `welcome.enqueue("ada@example.org")` enqueues a call.

    The arguments are as for `Queue`, except *codec*, a codec of bytes: `Compressed()`,
    `Encrypted(None, keys)`. Arguments travel as a JSON object, each by its name and its annotated
    type. The types are JSON's own, bytes, datetimes, UUID, Decimal, enums, dataclasses, attrs
    classes, pydantic models, and collections of these. `queue` is the queue.
    """

    queue: Queue[bytes]

    @with_options()
    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        client: Client | None = None,
        namespace: str = "headrace",
        codec: Codec[bytes] | None = None,
        **options: Unpack[QueueOptions],
    ) -> None:
        queue: Any = Queue
        super().__init__(
            queue(name, url=url, client=client, namespace=namespace, codec=codec, **options)
        )

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        deadline: Seconds | None = None,
        priority: int = 0,
    ) -> Declare: ...
    def task(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        deadline: Seconds | None = None,
        priority: int = 0,
    ) -> Any:
        """Make a task of a function, `def` or `async def`, by `@tasks.task` or
        `@tasks.task(retry=…)`.

        *name*: its name on the wire, the kind of its jobs. By default it is the name of the
        function, without its module. *retry*, *deadline*: as for `Worker.handler`. *priority*:
        of its jobs, unless `options` says otherwise. Raises `ConfigurationError` for a name that is
        taken, or a parameter whose type does not travel as JSON.
        """
        declare: Any = partial(
            self._declare, Task, name=name, retry=retry, deadline=deadline, priority=priority
        )
        return declare if function is None else declare(function)

    def cron(
        self,
        cron: str | None = None,
        /,
        *,
        every: Seconds | None = None,
        tz: str | ZoneInfo | None = None,
        missed: str = "once",
    ) -> Declare:
        """Enqueue calls of a task again and again, with its default arguments. Examples are
        `@tasks.cron("0 3 * * *")` and `@tasks.cron(every=60)`.

        It decorates a task, or a function, which becomes a task. The arguments are as for
        `Queue.schedule`, and *tz* is its *timezone*. A worker that serves these tasks makes
        the schedule as it starts, under the name `tasks/<task>`. A schedule that has left the code
        ends when no live worker declares it any more. Schedules that were made by
        `Queue.schedule` are left alone. Raises `ValueError` or `ConfigurationError` as that
        does, and for a task that can't be called without arguments. recur.lua as a worker starts
        and every 30 seconds.
        """
        declare: Any = partial(self._recur, Task, cron=cron, every=every, tz=tz, missed=missed)
        return declare  # type: ignore[no-any-return]

    def enqueue_many(
        self, jobs: Iterable[NewJob[bytes]], *, timeout: Timeout = None, full: Full | None = None
    ) -> list[Receipt[Any]]:
        """Enqueue calls made by `Task.new`, any number. As `Queue.enqueue_many`."""
        some = list(jobs)
        receipts: list[Receipt[Any]] = typed(
            self.queue, some, self.queue.enqueue_many(some, timeout=timeout, full=full)
        )
        return receipts

    def result(self, id: str, timeout: float | timedelta | None = None) -> Any:
        """Wait until the job of a call has ended, *timeout* seconds at most, and return its result.

        Use it if only the id is known. If the task is known, use `Task.receipt`, whose results
        are always typed. Here the job names its task, and its result has the type that the task
        returns. That holds while the job is in the queue, and for as long as the queue's `history`
        keeps its end. Without a history, the result of a job that has ended before the call is
        plain JSON, such as a `dict` for a dataclass.

        *timeout*: `None` waits as long as it takes, 0 does not wait. `None` is returned as by
        `Receipt.result`, which has the errors, too. find.lua, once, if the job has not ended
        or its queue has a history, and else as `Queue.result`.
        """
        return self.queue._drive(self._result(id, timeout))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    def close(self) -> None:
        """Close the connections we opened. As `Queue.close`."""
        self.queue.close()
