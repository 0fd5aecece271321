"""The base of `Tasks` and `AsyncTasks`. Tasks are functions whose calls are jobs. Their names tell
them apart."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack

from headrace._api.guide import OF_DECLARATIONS, OF_TASKS, Guided
from headrace._api.results import Decode, value_of
from headrace._codecs.annotated import TypeMismatch, loaded
from headrace._codecs.signature import Signature
from headrace._engine.hooks import is_async, refuse_generator
from headrace._model import checks
from headrace._model.checks import refuse_unknown
from headrace._model.codec import Codec, keeper
from headrace._model.job import Job, NewJob, NewTaskJob
from headrace._model.policy import Conditions, Full, Retry, with_conditions
from headrace._model.receipt import BaseReceipt
from headrace._model.settings import KIND
from headrace._model.terms import Terms, parameters as argument_headers
from headrace._model.timing import PREFIX, Declared, Recurring, Timing, missed_policy
from headrace._protocol.keys import job_id
from headrace.errors import ConfigurationError, DeadLetter, describe_error

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from headrace._api.queue import BaseQueue, Delay
    from headrace._core.effects import Call
    from headrace._core.verbs.queue import QueueVerbs
    from headrace._net.base.address import Timeout

P = ParamSpec("P")
R = TypeVar("R")  # what its result is
C = TypeVar("C")  # what calling it gives: its result, or a coroutine
_RUNNING: ContextVar[Job] = ContextVar("headrace_task")


Register = Callable[["BaseTask[..., Any, Any]"], None]


class BaseTask(Guided, Generic[P, R, C]):
    """A function whose calls are jobs. Calling it runs it, and `enqueue` makes a job of the
    call."""

    _elsewhere = OF_TASKS

    def __init__(
        self,
        tasks: BaseTasks,
        function: Callable[P, C],
        name: str,
        retry: Retry | None,
        deadline: float | timedelta | None,
        priority: int,
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.retry = retry
        self.deadline = deadline
        self._signature = Signature(function, name)
        self._tasks = tasks
        self._function = function
        self._given: dict[str, Any] = {"priority": priority}  # of its jobs
        self._call: dict[str, Any] = {}  # options of the call that enqueues

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} of {self._tasks!r})"

    def _beside(self) -> Mapping[str, Any]:
        return {"tasks": self._tasks, **self._tasks._beside()}

    def _served(self) -> tuple[Callable[[Job], Any], Callable[[Any], bytes]]:
        return handler(self), encoder(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run the function, here and now."""
        return self._function(*args, **kwargs)

    @with_conditions
    def options(
        self,
        *,
        id: str | None = None,
        delay: Delay = None,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        cost: float | None = None,
        timeout: Timeout = None,
        full: Full | None = None,
        **conditions: Unpack[Conditions],
    ) -> Self:
        """Return this task with options for its jobs, as in `welcome.options(delay=60).enqueue(…)`.
        They mean the same as for `Queue.enqueue`.
        """
        if headers is not None and KIND in headers:
            raise ValueError(f"headers: {KIND!r} is the task's name")
        refuse_unknown(self.options, conditions.keys() - Conditions.__annotations__)
        given: dict[str, Any] = {
            "id": id,
            "delay": delay,
            "priority": priority,
            "headers": headers,
            "key": key,
            "cost": cost,
        }
        given |= conditions
        call = {"timeout": timeout, "full": full}
        made = copy.copy(self)
        made._given = self._given | {
            name: value for name, value in given.items() if value is not None
        }
        made._call = self._call | {name: value for name, value in call.items() if value is not None}
        return made

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[bytes]:
        """Make the job of a call. It serves `enqueue_many`, and `then=` in this queue's group. A
        queue of another server or namespace refuses it, and so does a sharded one if this is not.

        The arguments that the queue's `fair` and `limits` name are copied to its headers, unless
        `options` gave these. Raises `TypeError` for arguments that the function does not take.
        """
        given = dict(self._given)
        more: Mapping[str, str] = given.pop("headers", {})
        queue = self._tasks.queue
        signature = self._signature
        packed = signature.packed(args, kwargs)
        headers = {KIND: self.name, **self._told_apart(queue.ops.settings.terms, packed), **more}
        return NewTaskJob(
            signature.written(packed),
            headers=headers,
            queue=queue.name,
            codec=queue.ops.codec,
            decode=signature.unpack_result,
            home=queue._home,
            **given,
        )

    def _told_apart(self, terms: Terms | None, packed: Mapping[str, Any]) -> dict[str, str]:
        if terms is None:
            return {}
        try:
            return dict(argument_headers(terms.names, {**self._signature.defaults, **packed}))
        except TypeError as error:
            raise TypeError(
                f"task {self.name!r}: {error}; or give the header, by options(headers=…)"
            ) from None


K = TypeVar("K", bound=BaseTask[..., Any, Any])


class BaseTasks(Guided):
    """The base of both colours. It has tasks by their names, and the workers that run them."""

    _elsewhere = OF_DECLARATIONS

    def __init__(self, queue: BaseQueue) -> None:
        _require_bytes(queue.ops.codec)
        self.queue: Any = queue
        self._named: dict[str, BaseTask[..., Any, Any]] = {}
        self._workers: list[Register] = []
        self._recurring: list[Recurring] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue.name!r})"

    def _beside(self) -> Mapping[str, Any]:
        return {"tasks.queue": self.queue, "tasks.queue.admin": self.queue.admin}

    @property
    def job(self) -> Job:
        """The job of the task that runs in this thread, or asyncio task. Raises `LookupError`
        outside of tasks."""
        try:
            return _RUNNING.get()
        except LookupError:
            raise LookupError(
                "no task runs here: `job` is for the functions of tasks, while a worker runs them"
            ) from None

    def _declare(
        self,
        kind: type[K],
        function: Any,
        name: str | None,
        retry: Retry | None,
        deadline: float | timedelta | None,
        priority: int,
    ) -> K:
        if isinstance(function, BaseTask):
            raise ConfigurationError(
                f"{function!r} is a task already; @tasks.cron goes above @tasks.task"
            )
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"a task is a function, {function!r:.200} is none")
        refuse_generator(function)
        own = getattr(function, "__name__", "") if name is None else name
        if not isinstance(own, str):
            raise TypeError(f"name must be a str, not {type(own).__name__}")
        if not own.isidentifier() and name is None:
            raise ConfigurationError(f"{function!r:.200} has no name of its own: give name=")
        if not own:
            raise ValueError("name='': give a name")
        checks.headers({KIND: own})
        if own in self._named:
            raise ConfigurationError(
                f"{self!r} has a task {own!r} already: give one of them another name="
            )
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry(...), not {type(retry).__name__}")
        if deadline is not None:
            checks.seconds("deadline", deadline, zero=False)
        checks.level(priority, self.queue.ops.settings.priorities)
        task = kind(self, function, own, retry, deadline, priority)
        _look_at(task)
        for register in self._workers:
            register(task)
        self._named[own] = task
        return task

    def _result(self, id: str, timeout: float | timedelta | None) -> Call[Any]:
        """Wait for a result. The job, or its end in a history, may name the task that decodes it.
        Otherwise it is read as JSON.
        """
        name = job_id(id)
        limit = checks.patience(timeout)
        decode: Decode = loaded
        verbs: QueueVerbs[Any] = self.queue._verbs
        try:
            end = yield from verbs.results.end_of(name, 0.0, own=True)
        except TimeoutError:
            if not limit:
                raise
            end = None
        if end is None or (end.result is not None and self.queue.ops.settings.history):
            state = yield from verbs.views.find(name, None)
            task = None if state is None else self._named.get(state.job.headers.get(KIND, ""))
            if task is not None:
                decode = task._signature.unpack_result
        if end is None:
            end = yield from verbs.results.end_of(name, limit, own=True)
        return value_of(self.queue.ops, name, end, decode)

    def _recur(
        self,
        kind: type[K],
        function: Any,
        cron: str | None,
        every: float | timedelta | None,
        tz: str | ZoneInfo | None,
        missed: str,
    ) -> K:
        timing = Timing.of(every, cron, tz)
        missed = missed_policy(missed)
        task = function
        if not isinstance(function, BaseTask):
            task = self._declare(kind, function, None, None, None, 0)
        if task._tasks is not self:
            raise ConfigurationError(
                f"{task!r} is no task of {self!r}: let its own Tasks declare its schedules"
            )
        try:
            job: NewJob[bytes] = task.new()
        except TypeError as error:
            raise ConfigurationError(
                f"{error}: a task that recurs is called without arguments"
            ) from None
        first = f"{PREFIX}{task.name}"
        before = sum(one.job.headers == job.headers for one in self._recurring)
        name = f"{first}#{before + 1}" if before else first
        self._recurring.append(
            Recurring(
                name,
                timing,
                missed,
                NewJob(job.payload, None, job.headers, None, job.priority, cost=job.cost),
            )
        )
        made: K = task
        return made


def _require_bytes(codec: Codec[Any]) -> None:
    try:
        right = keeper(codec) is not None or codec.decode(codec.encode(b"{}")) == b"{}"
    except Exception:  # any error of the codec
        right = False
    if not right:
        raise ConfigurationError(
            f"codec: arguments are JSON already: give one of bytes, such as Compressed() or Encrypted(None, keys), not "
            f"{codec!r:.200}"
        )


# -- what workers and both colours ask of them: no part of what users see --------------------------
# ruff: noqa: SLF001
# pyright: reportPrivateUsage=false


def serve(tasks: BaseTasks, register: Register) -> None:
    for task in tasks._named.values():
        register(task)
    tasks._workers.append(register)


def check_annotations(tasks: BaseTasks) -> None:
    for task in tasks._named.values():
        task._signature.check()


def typed(queue: Any, jobs: Sequence[Any], receipts: Sequence[Any]) -> Any:
    """Let the receipts of calls decode results by the tasks' annotations."""
    for job, receipt in zip(jobs, receipts, strict=True):
        if isinstance(job, NewTaskJob):
            queue._bound([receipt], job.decode)
    return receipts


def receipt_of(task: BaseTask[..., Any, Any], id: str) -> Any:
    made: BaseReceipt[Any] = BaseReceipt(job_id(id), False)
    (receipt,) = task._tasks.queue._bound([made], task._signature.unpack_result)
    return receipt


def declared_schedules(queue: str, some: Sequence[BaseTasks]) -> Declared | None:
    its = [tasks for tasks in some if tasks.queue.name == queue]
    return Declared([one for tasks in its for one in tasks._recurring]) if its else None


def serves_coroutines(tasks: BaseTasks) -> bool:
    """Tell whether a task is async, so that only an `AsyncWorker` can run it."""
    return any(is_async(task._function) for task in tasks._named.values())


def encoder(task: BaseTask[..., Any, Any]) -> Callable[[Any], bytes]:
    return task._signature.pack_result


def handler(task: BaseTask[..., Any, Any]) -> Callable[[Job], Any]:
    """Make the handler of a task's jobs. A job whose arguments it does not take becomes a dead
    letter."""
    function: Callable[..., Any] = task._function

    def arguments(job: Job) -> tuple[list[Any], dict[str, Any]]:
        try:
            return task._signature.unpack(job.payload)
        except TypeMismatch as misfit:
            raise DeadLetter(
                f"task {task.name!r} does not take these arguments: {misfit}"
            ) from None

    def run(job: Job) -> Any:
        args, options = arguments(job)
        token = _RUNNING.set(job)
        try:
            return function(*args, **options)
        finally:
            _RUNNING.reset(token)

    async def run_async(job: Job) -> Any:
        args, options = arguments(job)
        token = _RUNNING.set(job)
        try:
            return await function(*args, **options)
        finally:
            _RUNNING.reset(token)

    named = functools.wraps(function, ("__module__", "__name__", "__qualname__", "__doc__"), ())
    return named(run_async if is_async(function) else run)


def _look_at(task: BaseTask[..., Any, Any]) -> None:
    """Refuse parameters of types that JSON can't carry, and warn of such a result. Skip unreadable
    annotations."""
    try:
        _ = task._signature.shapes
        _ = task._signature.answer
    # of something that is declared later; looked at again by `check_annotations`
    except (NameError, AttributeError):
        pass
    except ConfigurationError as error:
        if "shapes" not in vars(task._signature):
            raise
        text = f"task {task.name!r}: its result: {describe_error(error)}: its jobs would complete without a result"
        code: Any = getattr(inspect.unwrap(task), "__code__", None)
        where = ("<unknown>", 1) if code is None else (code.co_filename, code.co_firstlineno)
        warnings.warn_explicit(text, UserWarning, *where)
