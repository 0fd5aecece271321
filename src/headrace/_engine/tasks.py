"""One run of an `AsyncWorker`. Its roles and handlers are tasks, but the roles that keep our leases
run in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from itertools import chain
from types import CoroutineType
from typing import Any, cast

from attrs import frozen

from headrace._core.effects import (
    Abort,
    BlockThen,
    Call,
    Effect,
    HeldJob,
    Immediate,
    Phase,
    Role,
    Start,
)
from headrace._core.steps.run import Run
from headrace._core.verdicts import overran
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.lifecycle import Lifecycle, ShutdownDeadline
from headrace._core.worker.roles import Channel, RoleOwner
from headrace._core.worker.slots import first_of
from headrace._engine.base import BaseEngine, BaseRoleDriver, RoundTrip, Unit, note_ran
from headrace._engine.hooks import Contexts, Hook, hook_failed, is_async, surrounded
from headrace._engine.pulse import Pulse, StallWatch, settle
from headrace._model.job import Job
from headrace._model.settings import KIND, HandlerSettings
from headrace._net.aio.cluster import executor_of
from headrace._net.aio.colour import happens
from headrace._net.aio.driver import AsyncDriver
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.steps import AsyncSteps, driver
from headrace._net.aio.subscription import AsyncSubscription
from headrace._net.aio.undoing import buried as async_buried
from headrace._net.base.address import Address
from headrace._net.sync.steps import Steps
from headrace._net.sync.undoing import buried
from headrace._protocol.op import Op
from headrace._telemetry.worker import WorkerTelemetry
from headrace.errors import OutcomeUnknown, RunLost, describe_error


@frozen
class Unfinished:
    awaitable: Awaitable[Any]
    context: Context


class Threads:
    """Daemon threads that run plain functions, as many as ever ran at once.

    A hanging thread does not keep the process alive.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        name: str,
        loop: asyncio.AbstractEventLoop,
        contexts: Contexts,
    ) -> None:
        self._contexts = contexts
        self._function = function
        self._name = name
        self._loop = loop
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = self._busy = 0

    def run(self, argument: Any) -> asyncio.Future[Any]:
        context = self._contexts.fresh()
        return self.submit(lambda: context.run(self._call, argument))

    def _call(self, argument: Any) -> Any:
        result = self._function(argument)
        if result is not None and inspect.isawaitable(result):
            return Unfinished(result, copy_context())
        return result

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        future.add_done_callback(self._free)
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(
                target=self._work, name=f"{self._name}-{self._threads}", daemon=True
            ).start()
        self._calls.put((future, call))
        return future

    def _free(self, _future: object) -> None:
        self._busy -= 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            result: Any = None
            error: BaseException | None = None
            try:
                result = function()
            except StopIteration as raised:  # a future does not accept this exception
                error = RuntimeError(f"the handler raised {describe_error(raised)}")
            except BaseException as raised:  # any error is judged
                error = raised
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, future, result, error)
            del call, future, function, result, error  # these objects may be large

    def close(self) -> None:
        # idle threads end now, the others after their call
        for _ in range(self._threads):
            self._calls.put(None)


# Since Python 3.12 a task may start eagerly: a handler that waits for nothing ends without a turn
# of the loop.
AT_ONCE: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class _Slots:
    __slots__ = (
        "around",
        "awaited",
        "backlog",
        "call",
        "consumer",
        "function",
        "of",
        "over",
        "plain",
        "running",
        "sharing",
        "taker",
        "task",
        "tasks",
        "telemetry",
        "threaded",
        "threads",
    )

    def __init__(
        self,
        consumer: Consumer,
        loop: asyncio.AbstractEventLoop,
        telemetry: WorkerTelemetry,
        of: _Slots | None,
        contexts: Contexts,
        taker: Callable[[Job], Any] | None,
    ) -> None:
        handler = consumer.handler
        self.consumer = consumer
        self.telemetry = telemetry
        self.taker = taker
        self.backlog: deque[Unit] = deque()
        self.of = of or self  # the slots of the first consumer that shares them
        self.sharing: list[_Slots] = [self] if of is None else of.sharing
        self.running = 0  # running units of all consumers that share these slots
        # ended units that are not processed yet
        self.over: list[tuple[Unit, BaseException | None, Any]] = []
        # tasks by unit; the loop keeps only weak references to tasks
        self.tasks: dict[int, tuple[Any, Unit]] = {}
        self.threads: Threads | None = None
        # the first jobs of runs whose plain function returned an awaitable
        self.awaited: set[int] = set()
        self.call: Callable[[Any], Awaitable[Any]] = handler.function
        name = f"headrace-{handler.queue}"
        # Without a task factory of the user, we do the same as create_task(), but without its
        # frames and a name.
        self.task: Callable[[Any], Any] = (
            (
                lambda run: asyncio.Task(
                    run, loop=loop, name=name, context=contexts.fresh(), **AT_ONCE
                )
            )
            if loop.get_task_factory() is None
            else (lambda run: contexts.fresh().run(loop.create_task, run, name=name))
        )
        self.plain: Callable[[Any], bool] = lambda _argument: (
            True
        )  # whether a call runs in a thread, if there are threads
        inside = [one for one in handler.around if not is_async(one)]
        self.function = surrounded(handler.function, inside)  # as threads call it
        if handler.kinds:
            self.threads = Threads(self.function, name, loop, contexts)
            self.call = partial(_routed, handler)
            threaded = {kind for kind, one in handler.kinds.items() if not is_async(one.function)}
            self.plain = lambda job: (
                next(k for k in (job.headers.get(KIND), None) if k in handler.kinds) in threaded
            )
        elif not is_async(handler.function):
            self.threads = Threads(self.function, name, loop, contexts)
        elif handler.deadline is not None:
            self.call = partial(_timed, handler.function, handler.deadline)
        self.around = [one for one in handler.around if is_async(one)]
        self.call = surrounded(self.call, self.around)
        self.threaded = surrounded(self._in_thread, self.around)

    def in_thread(self, unit: Unit) -> bool:
        """Tell whether this unit runs in a thread.

        Then its handler is a plain function that has returned no awaitable.
        """
        return (
            self.threads is not None
            and self.plain(unit[0].job)
            and id(unit[0].job) not in self.awaited
        )

    async def _in_thread(self, argument: Any) -> Any:
        assert self.threads is not None  # noqa: S101
        # the calling task's: middleware may have changed it
        context = copy_context()
        result = await self.threads.submit(lambda: context.run(self.function, argument))
        if result is None or not inspect.isawaitable(result):
            return result
        for variable, value in context.items():
            if variable.get(None) is not value:
                variable.set(value)
        return await self.finish(result, argument)

    async def finish(self, awaitable: Awaitable[Any], argument: Any) -> Any:
        """Await the result of a plain function. From now on, the run can be cancelled."""
        job = argument[0] if self.consumer.handler.batch else argument
        if job.lost:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise asyncio.CancelledError
        self.awaited.add(id(job))
        try:
            return await awaitable
        finally:
            self.awaited.discard(id(job))


def _raise(error: BaseException) -> None:
    raise error


def _by_signal(error: KeyboardInterrupt) -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(
        code.co_name == "_on_sigint" and code.co_filename == asyncio.runners.__file__
        for code in codes
    )


async def _answered(error: BaseException | None, result: Any, _argument: object) -> Any:
    if error is not None:
        raise error
    return result


async def _routed(handler: HandlerSettings, job: Job) -> Any:
    one = handler.takes(job) or handler
    return await (
        one.function(job) if one.deadline is None else _timed(one.function, one.deadline, job)
    )


async def _timed(function: Callable[[Any], Awaitable[Any]], deadline: float, argument: Any) -> Any:
    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            return await function(argument)
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(overran(deadline)) from None
        raise


async def call_stops(hooks: list[Hook], error: BaseException | None = None) -> BaseException | None:
    while hooks:
        hook = hooks.pop()
        try:
            if inspect.isawaitable(made := hook()):
                await made
        except asyncio.CancelledError:
            raise
        except BaseException as raised:
            hook_failed(hook, raised)
            error = error or raised
    return error


class Engine(BaseEngine):
    fetchers = 2  # while one waits for the server, the other processes an answer

    def __init__(
        self, lifecycle: Lifecycle, address: Address, trace_parent: str, stops: list[Hook]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        limit = lifecycle.settings.max_outage
        connect = partial(executor_of, address.target, address.client, limit, attend=address.attend)
        work = connect()
        pulse = connect(outage=work.outage)  # a heartbeat waits for no other call
        # The connections of blocked reads are known, and closed one by one. No other call uses
        # them.
        self.executors: dict[Channel, AsyncExecutor] = {
            "work": work,
            "pulse": pulse,
            "blocking": work,
        }
        super().__init__(lifecycle, self.executors, address, trace_parent, stops)
        self.stopping = asyncio.Event()
        self._subscriptions: dict[tuple[str, ...], AsyncSubscription] = {}  # by channels
        self._finishing: asyncio.Task[None] | None = None
        self._closed = False  # whether its connections are closed, or about to be
        self._slots: dict[int, _Slots] = {}
        self.pulse = Pulse(pulse)
        self._add(lifecycle.consumers)
        self.pulse.run(StallWatch(lifecycle, self.pulse, self._handles).run(), "headrace-stalls")

    def _seat(self, consumer: Consumer) -> None:
        of = self._slots.get(id(first_of(consumer)))
        made = _Slots(
            consumer,
            self._loop,
            self.telemetry(consumer),
            of,
            self.contexts,
            self.takers[id(consumer)],
        )
        # a new dict, as another thread may iterate over it
        self._slots = {**self._slots, id(consumer): made}
        if of is not None:
            of.sharing.append(made)

    def _launch(self, roles: Sequence[asyncio.Future[None]]) -> None:
        """Do nothing, as these tasks run already."""

    def _role(
        self, name: str, role: Role, owner: RoleOwner, channel: Channel
    ) -> asyncio.Future[None]:
        if channel == "pulse":
            driver_in_pulse = PulseDriver(self, name, owner, channel, self.pulse.event())
            return self.pulse.run(driver_in_pulse.run(role), f"headrace-{name}")
        driver = RoleDriver(self, name, owner, channel, asyncio.Event())
        return asyncio.create_task(driver.run(role), name=f"headrace-{name}")

    async def send(
        self, ops: Sequence[Op[Any]], executor: AsyncExecutor, within: float | None = None
    ) -> list[Any]:
        trip = RoundTrip(self, ops)
        while trip.replies is None:
            with trip:
                trip.replies = await executor.run_all(ops, within=within)
        return trip.replies

    async def wait(self, effect: BlockThen, executor: AsyncExecutor) -> tuple[bool, Any]:
        with suppress(OutcomeUnknown):  # as in `send`
            return self.followed(effect, *await executor.wait_then(effect))
        return True, None

    def start(self, consumer: Consumer | None, units: Sequence[Unit]) -> None:
        slots = self._slots[id(consumer)]
        slots.backlog.extend(units)
        self._fill(slots)

    def resize(self, consumer: Consumer, number: int) -> None:
        super().resize(consumer, number)
        for one in self._slots[id(consumer)].sharing:
            self._fill(one)

    def take_back(self, consumer: Consumer | None) -> tuple[list[Unit], bool]:
        slots = self._slots[id(consumer)]
        units = list(slots.backlog)
        slots.backlog.clear()
        return units, slots.of.running > 0

    def abort(self, held: Sequence[HeldJob]) -> None:
        """Cancel the tasks whose jobs are all lost. Threads cannot be stopped, and only see that
        the job is lost."""
        if not held:  # usual for most queues when a worker with many queues stops
            return
        for one in held:
            one.job.lost.set()
        for slots in self._slots.values():
            for run, unit in list(slots.tasks.values()):
                if not isinstance(run, asyncio.Task) or slots.in_thread(unit):
                    continue
                if not run.cancelling() and all(x.job.lost for x in unit):
                    run.cancel()  # pyright: ignore[reportUnknownMemberType]
                    run.add_done_callback(partial(self._unrun, slots, unit))  # pyright: ignore[reportUnknownMemberType]

    def _handles(self, task: Any) -> tuple[Unit, Callable[..., Any]] | None:
        """Return the unit that *task* works on, and its handler's function. Another thread calls
        this.
        """
        for slots in self._slots.values():
            for run, unit in list(slots.tasks.values()):
                if run is task:
                    return unit, slots.consumer.of(unit[0]).function
        return None

    def _fill(self, slots: _Slots) -> None:
        consumer = slots.consumer
        limit = consumer.concurrency
        batch = slots.consumer.handler.batch
        while slots.backlog and slots.of.running < limit:
            unit = slots.backlog.popleft()
            # handlers that started before may have taken long
            jobs = consumer.begin(unit, time.monotonic())
            if not jobs:
                self.wake(slots.consumer)
                continue
            slots.of.running += 1
            argument: Any = jobs if batch else jobs[0]
            if slots.taker is not None:
                object.__setattr__(argument, "_steps", slots.taker)
            if slots.threads is None or not slots.plain(argument):
                run: Any = slots.task(self._run(slots, unit, argument, slots.call))
            # a span also lasts until an awaitable has its result
            elif slots.around or slots.telemetry.on:
                run = slots.task(self._run(slots, unit, argument, slots.threaded))
            else:
                run = slots.threads.run(argument)
                run.add_done_callback(partial(self._thread_ended, slots, unit, argument))
            if not run.done():
                slots.tasks[id(unit)] = run, unit

    async def _run(
        self, slots: _Slots, unit: Unit, argument: Any, call: Callable[[Any], Awaitable[Any]]
    ) -> None:
        error: BaseException | None = None
        result: Any = None
        if id(unit) not in slots.tasks:  # the task started eagerly
            slots.tasks[id(unit)] = asyncio.current_task(), unit
        try:
            telemetry = slots.telemetry
            span = telemetry.on and not telemetry.passes(unit, argument)
            result = await (telemetry.call_async(call, unit, argument) if span else call(argument))
        except BaseException as raised:  # any error is judged
            error = raised
        if slots.consumer.jobs.runs and (run := slots.consumer.jobs.runs.get(unit[0])) is not None:
            error = await self._left(slots, unit, run, error, result)
        slots.tasks.pop(id(unit), None)
        # An `isinstance` check may run code of the exception's class.
        interrupted = (
            cast("KeyboardInterrupt", error) if issubclass(type(error), KeyboardInterrupt) else None
        )
        ends = interrupted if interrupted is not None and _by_signal(interrupted) else None
        if ends is not None:  # the job has not failed: the program ends, and the worker with it
            self.drain()
        self._ended(slots, unit, error, result)
        if ends is not None:
            self._loop.call_soon(partial(_raise, ends))

    def _unrun(self, slots: _Slots, unit: Unit, _task: object) -> None:
        # a cancelled task may not have started, and so not have ended its unit
        if slots.tasks.pop(id(unit), None) is not None:
            self._ended(slots, unit, asyncio.CancelledError(), None)

    def _thread_ended(self, slots: _Slots, unit: Unit, argument: Any, run: Any) -> None:
        """Process the end of a plain function. If it returned an awaitable, await it in the context
        of the run.
        """
        error = run.exception()
        result = None if error is not None else run.result()
        del slots.tasks[id(unit)]
        context = self.contexts.start
        call = partial(_answered, error, result)
        if type(result) is Unfinished:  # an `isinstance` check may run code of the result's class
            context = result.context
            call = partial(slots.finish, result.awaitable)
        elif unit[0] not in slots.consumer.jobs.runs:
            self._ended(slots, unit, error, result)
            return
        goes_on = self._run(slots, unit, argument, call)
        task = context.run(
            self._loop.create_task, goes_on, name=f"headrace-{slots.consumer.handler.queue}"
        )
        if not task.done():
            slots.tasks[id(unit)] = task, unit

    def _ended(self, slots: _Slots, unit: Unit, error: BaseException | None, result: Any) -> None:
        slots.over.append((unit, error, result))
        if len(slots.over) == 1:
            asyncio.get_running_loop().call_soon(self._take_in, slots, context=self.contexts.start)

    def _take_in(self, slots: _Slots) -> None:
        over = slots.over
        slots.over = []
        slots.of.running -= len(over)
        now = time.monotonic()
        finished = slots.consumer.finished
        for unit, error, result in over:
            finished(unit, now, error, result)
        slots.consumer.slot_freed()
        sharing = slots.sharing
        if len(sharing) > 1:
            sharing.append(sharing.pop(0))  # another consumer fills the slots first the next time
        for one in list(sharing):
            if one.backlog:
                self._fill(one)
        self.wake(slots.consumer)

    def _steps(self, consumer: Consumer, job: Job) -> AsyncSteps | Steps:
        run = self.run(consumer, job)
        drive = partial(self._drive, run)
        slots = self._slots[id(consumer)]
        if threading.get_ident() == self._thread or slots.threads is None or not slots.plain(job):
            return AsyncSteps(run, drive, self._loop)
        return Steps(run, self._from_thread(run))

    def _from_thread(self, run: Run) -> Callable[[Call[Any]], Any]:
        return lambda call: asyncio.run_coroutine_threadsafe(
            self._drive(run, call), self._loop
        ).result()

    async def _drive(self, run: Run, call: Call[Any]) -> Any:
        """Run a call of a handler's steps. Raises `RunLost` once the connections are closed."""
        if self._closed:
            raise RunLost(run.claim.job.id)
        return await driver(self.executors["work"], self.not_durable)(call)

    async def _left(
        self, slots: _Slots, unit: Unit, run: Run, error: BaseException | None, result: Any
    ) -> BaseException | None:
        note_ran(run)
        try:
            error = await self._drive(run, run.leave(error))
            if not run.undos.concern(run, error):
                return error
            if slots.threads is None or not slots.in_thread(unit):
                return await async_buried(run, partial(self._drive, run), error, result)
            call = partial(buried, run, self._from_thread(run), error, result)
            return cast("BaseException | None", await slots.threads.submit(call))
        except BaseException as raised:
            return raised

    def subscription(self, channels: Sequence[str]) -> AsyncSubscription:
        found = self._subscriptions.get(key := tuple(channels))
        return found or self._subscriptions.setdefault(
            key, AsyncSubscription(self.executors["work"])
        )

    def runs_this(self) -> bool:
        task = asyncio.current_task()
        return any(run is task for slots in self._slots.values() for run, _ in slots.tasks.values())

    @property
    def gone(self) -> bool:
        return self.finished or self._loop.is_closed()

    async def finish(self) -> None:
        """Wait until everything is settled or released, and closed. Cancelling the caller does not
        stop this work.
        """
        if not self.finished and (self._finishing is None or self._finishing.done()):
            self._finishing = self.contexts.start.run(
                asyncio.create_task, self._end(), name="headrace-finish"
            )
        if self._finishing is not None:
            await asyncio.shield(self._finishing)

    async def _end(self) -> None:
        try:
            await self._wind_up()
        except asyncio.CancelledError:  # a closing loop cancels everything once, and waits for it
            self.halt()
            await self._wind_up()

    async def _wind_up(self) -> None:
        deadline = self._shutdown_deadline(time.monotonic())
        tasks = self._running
        await self._await([*tasks["fetch"], *tasks["wait"]], deadline)
        self.lifecycle.advance_to(Phase.STOPPED)
        self.wake()
        for task in tasks["listen"]:
            task.cancel()
        await self._await([*chain(*tasks.values())], deadline)
        leaving = [
            self._role("leave", self.lifecycle.leave(part), None, "work") for part in self._parts()
        ]
        await self._await(leaving, deadline)
        every = [(slots, *run) for slots in self._slots.values() for run in slots.tasks.values()]
        halted: list[asyncio.Task[Any]] = [
            run for slots, run, unit in every if not slots.in_thread(unit)
        ]
        if halted:  # do not wait for threads
            await asyncio.wait(halted, timeout=1)
        for slots in self._slots.values():
            if slots.threads is not None:
                slots.threads.close()
        for subscription in self._subscriptions.values():
            await subscription.close()
        self._closed = True
        await self.executors["work"].close()
        await self.pulse.close()
        self.error = await call_stops(self._stops, self.error)
        self._stopped()

    async def _await(
        self, tasks: Sequence[asyncio.Future[None]], deadline: ShutdownDeadline
    ) -> None:
        """Wait until the tasks have ended, or we give up the server. Cancelling the caller does not
        cancel them.
        """
        left = {task for task in tasks if not task.done()}
        while left:
            _, left = await asyncio.wait(left, timeout=0.05)
            if left and self._over(deadline, time.monotonic()):
                for task in left:
                    task.cancel()


class RoleDriver(BaseRoleDriver, AsyncDriver):
    _engine: Engine

    async def run(self, role: Role) -> None:
        try:
            await self._drive(role)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self._engine.failed(error, self._channel)

    async def _perform(self, effect: Effect, end: float | None = None) -> Any:
        answer = super()._perform(effect, end)
        if isinstance(answer, CoroutineType):
            return await answer  # pyright: ignore[reportUnknownVariableType]
        if isinstance(effect, Start) and self._channel == "blocking":
            await asyncio.sleep(0)  # a single job starts before this role goes on
        return answer

    async def _sleep(self, seconds: float) -> None:
        await happens(self._event, seconds)
        self._event.clear()


class PulseDriver(RoleDriver):
    """The driver of a role in the pulse. The worker's loop performs the effects on its handlers."""

    def _failed(self, error: BaseException) -> None:
        self._engine.pulse.post(self._engine.failed, error, self._channel)

    def _perform_at_once(self, effect: Immediate) -> None:
        if isinstance(effect, Abort):
            for one in effect.held:  # at once: handlers in threads check this flag
                one.job.lost.set()
        self._engine.pulse.post(self._engine.perform, effect, self._consumer)
