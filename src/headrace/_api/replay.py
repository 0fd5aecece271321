"""The replay of recorded runs by the handlers of this program, without a server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from attrs import field, frozen

from headrace._api.step_names import CHILDREN, STEPS, gone
from headrace._api.worker import BaseWorker
from headrace._codecs.annotated import TypeMismatch
from headrace._codecs.recorded import Recorded
from headrace._core.effects import HeldJob, R
from headrace._core.steps.replay import Replay
from headrace._core.steps.undo import stopped
from headrace._engine.hooks import is_async
from headrace._model.codec import of_job
from headrace._model.job import Job, shortened, with_steps
from headrace._model.recording import Recording
from headrace._model.settings import KIND, HandlerSettings
from headrace._net.aio import steps as aio
from headrace._net.sync import steps as sync
from headrace._protocol.features.runs.ops import own
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops, given
from headrace.errors import ConfigurationError, Verdict, describe_error

NO_SERVER: Any = None  # a replay sends nothing
NAMED = (
    "step",
    "once",
    "undoable",
    "undone",
    "sleep",
    "wait",
)  # kinds of records that a handler's source names


@frozen
class Replayed:
    """The outcome of a replay: whether a recorded run would go on with this code.

    `end` is `completed` (its handler has returned), `suspended` (it still sleeps or waits in `at`),
    `new` (it comes to `at`, which has no record), `ended` (its handler ends the job, as `reason`
    says), or `misfit` (the run would not go on, because of `reason`). `unused` has the recorded
    names for which the handler did not ask.
    """

    queue: str
    id: str
    end: str
    at: str = ""
    reason: str = field(default="", repr=shortened)
    unused: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the run would go on."""
        return self.end != "misfit"


def recordings(queue: Any, at: float) -> Iterator[Recording]:
    """Yield the runs of a queue of bytes for threads, as they are at the moment *at*."""
    pages = queue._verbs.views.runs()  # noqa: SLF001 - it is a part of the queue
    while (page := queue._drive(pages.recorded())) is not None:  # noqa: SLF001
        for state, records in page:
            job = state.job
            yield Recording(
                queue=str(job.queue),
                id=str(job.id),
                state=state.state,
                payload=job.payload,
                records=records,
                at=at,
                headers=job.headers,
                attempt=job.attempt,
                enqueued_at=job.enqueued_at,
            )


@frozen
class Stage:
    """A recorded run, and the worker that is to go on with it."""

    worker: BaseWorker[Any]
    record: Recording
    removed: Collection[str] = ()  # names that are meant to be gone

    def replay(self) -> Replayed:
        handler = self.worker.handlers.get(self.record.queue)
        if handler is None:
            return self.misfit(f"this worker has no handler for queue {self.record.queue!r}")
        if handler.flow is not None:
            raise ConfigurationError(
                f"{self.record.queue!r} is a stage of a flow, whose runs are not replayed"
            )
        kind = self.record.headers.get(KIND)
        kinds = handler.kinds or {None: handler}
        one = kinds.get(kind) or kinds.get(None)
        if one is None:
            return self.misfit(f"this worker has no handler for jobs of kind {kind!r}")
        if one.batch or one.persistent:
            return self.misfit("its handler is for batches, or persistent, and takes no steps")
        ops = Ops(
            Keys.of(handler.queue, self.worker.namespace),
            handler.queue_settings,
            handler.codec,
            self.worker.namespace,
        )
        try:
            payload = of_job(ops.bound, given(self.record.id)).decode(self.record.payload)
        except Exception as error:
            return self.misfit(f"its payload does not decode: {describe_error(error)}")
        job = Job(
            self.record.id,
            payload,
            self.record.queue,
            self.record.headers,
            self.record.attempt,
            self.record.enqueued_at,
        )
        claim = HeldJob(job, "", "", 1, 2, leased_at=self.record.at)
        run = Replay(ops, Recorded(ops.bound), claim, records=own(self.record.records))
        return self._judged(run, one, _handled(run, one.function))

    def misfit(self, reason: str) -> Replayed:
        return Replayed(self.record.queue, self.record.id, "misfit", reason=reason)

    def _judged(self, run: Replay, one: HandlerSettings, error: BaseException | None) -> Replayed:
        def end(how: str, at: str = "", reason: str = "") -> Replayed:
            unused = tuple(run.unused)
            return Replayed(self.record.queue, self.record.id, how, at, reason, unused)

        if error is not None and not stopped(error):
            if run.misfit is not None:
                return end("misfit", reason=describe_error(run.misfit))
            refused = isinstance(error.__context__, TypeMismatch)  # by a task
            decided = not refused and (isinstance(error, Verdict) or _among(error, run.raised))
            return end("ended" if decided else "misfit", reason=describe_error(error))
        if run.unrecorded:
            at = run.unrecorded[0]
            lost = ", ".join(map(repr, self._gone(run, one.function)))
            told = (
                f"{lost}: recorded, and no more in the code, which comes to {at!r} without a record"
            )
            return end("misfit", at, told) if lost else end("new", at)
        if run.branches.waits:
            return end("suspended", next(iter(run.branches.waits)))
        return end("completed")

    def _gone(self, run: Replay, function: Callable[..., Any]) -> list[str]:
        unused = {*run.unused} - {*self.removed}
        kinds = {one.name: one.kind for one in (run.records or {}).values() if one.name in unused}
        steps = [name for name, kind in kinds.items() if kind in NAMED]
        children = [name for name, kind in kinds.items() if kind == "child"]
        return [*gone(function, steps, STEPS), *gone(function, children, CHILDREN)]


def _handled(run: Replay, function: Callable[[Any], Any]) -> BaseException | None:
    job = run.claim.job
    with_steps(job, partial(_steps, run))
    if is_async(function):
        return _on_own_loop(_awaited(run, function, job))
    error, result = _called(function, job)
    if inspect.isawaitable(result):
        return _on_own_loop(_awaited(run, lambda made: made, result))
    left: BaseException | None = sync.driver(NO_SERVER, sync.raised)(run.leave(error))
    return left or _verdict(result)


def _called(function: Callable[[Any], Any], job: Any) -> tuple[BaseException | None, Any]:
    try:
        return None, function(job)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # any error is judged
        return raised, None


async def _awaited(
    run: Replay, function: Callable[[Any], Any], argument: Any
) -> BaseException | None:
    result: Any = None
    left: BaseException | None = None
    try:
        result = await function(argument)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # any error is judged
        left = raised
    left = await aio.driver(NO_SERVER, aio.raised)(run.leave(left))
    return left or _verdict(result)


def _steps(run: Replay, _job: object) -> sync.Steps | aio.AsyncSteps:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        by_threads = sync.driver(NO_SERVER, sync.raised)
        return sync.Steps(run, lambda call: by_threads(run.answered(call)))
    drive = aio.driver(NO_SERVER, aio.raised)
    return aio.AsyncSteps(run, lambda call: drive(run.answered(call)))


def _verdict(result: object) -> BaseException | None:
    if isinstance(result, type) and issubclass(result, Verdict):
        return result()
    return result if isinstance(result, Verdict) else None


def _on_own_loop(call: Coroutine[Any, Any, R]) -> R:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call)
    with ThreadPoolExecutor(1, "headrace-replay") as other:
        return other.submit(asyncio.run, call).result()


def _among(error: BaseException, raised: list[Exception]) -> bool:
    seen = set[int]()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if any(one is known for known in raised):
            return True
        left += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", one).exceptions
    return False
