"""`AsyncWorker`: drives the roles with asyncio. Async handlers get a task each, plain functions a thread."""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import redis.asyncio

from headrace import _log as log
from headrace._effects import (
    Abort,
    Effect,
    Hear,
    Held,
    Listen,
    Now,
    Pause,
    Phase,
    Poke,
    Recall,
    Role,
    Say,
    Send,
    Start,
)
from headrace._execute import PAUSE, AsyncExecutor
from headrace._feed import Feed
from headrace._feeds import Persistent
from headrace._handlers import Handlers, Seconds, is_async
from headrace._job import Job
from headrace._judge import overran
from headrace._line import AsyncLine
from headrace._op import Op
from headrace._roles import Roles
from headrace._settings import KIND, HandlerSettings
from headrace._ticks import tick
from headrace._watch import Watch

Unit = list[Held]
GOODBYE = 2.0  # seconds that leaving a server may take which does not answer


class AsyncWorker(Handlers):
    """Runs handlers on an event loop: `@worker.handler("emails")`, then `worker.run()` or `async with worker:`.

    Like `Worker`; *client* is a `redis.asyncio.Redis`. A plain `def` handler runs in a thread.
    """

    def __init__(
        self, url: str | None = None, client: redis.asyncio.Redis | None = None, name: str | None = None,
        heartbeat: Seconds = 2.0, timeout: Seconds = 10.0, namespace: str = "headrace", trace_parent: str = "poll",
    ) -> None:  # fmt: skip
        super().__init__(url, client, redis.asyncio.Redis, name, heartbeat, timeout, namespace, trace_parent)
        self._running: _Engine | None = None

    def run(self) -> None:
        """Like `Worker.run`: its own event loop, until a signal or `stop()`."""
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """`run` on the event loop that is running already."""
        loop = asyncio.get_running_loop()
        engine: _Engine | None = None
        error: BaseException | None = None
        signals: list[signal.Signals] = []

        def on_signal() -> None:
            if engine is not None:  # always: the loop calls us when this task waits
                engine.stop()

        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
                    loop.add_signal_handler(number, on_signal)
                    signals.append(number)
            engine = self.start()
            await engine.stopping.wait()
            await engine.finish()
            error = engine.error
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            if engine is not None and not engine.finished:  # cancelled: nothing of it may go on
                engine.halt()
                await engine.finish()
            self._left()
        if error is not None:
            raise error

    def start(self) -> _Engine:
        """Begin working on this event loop; `async with worker:` does it for you."""
        if self._running is not None and not self._running.finished:
            raise RuntimeError("this worker is running already")
        self._running = _Engine(self._roles(), self._connect(), self._client, self.trace_parent)
        log.say("worker_started", "%s, for %s", self.name, ", ".join(self.handlers), worker=self.name)
        return self._running

    async def stop(self, wait: bool = True) -> None:
        """Like `Worker.stop`."""
        engine = self._running
        if engine is None:
            return
        engine.stop()
        if wait and not engine.runs_this():
            await engine.finish()
            self._left()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        engine = self._running
        if engine is not None:
            engine.drain()  # no second stop: somebody may have called the first
            await engine.finish()
            self._left()
            if engine.error is not None and error is None:
                raise engine.error


class _Slots:
    """The slots of one feed: units that wait for one, and how many run."""

    __slots__ = ("backlog", "call", "events", "feed", "over", "plain", "running", "task", "tasks", "threads", "watch")

    def __init__(self, feed: Feed, loop: asyncio.AbstractEventLoop, watch: Watch) -> None:
        handler = feed.handler
        self.feed, self.watch = feed, watch
        self.backlog: deque[Unit] = deque()
        self.events: list[asyncio.Event] = []
        self.running = 0
        self.over: list[tuple[Unit, BaseException | None, Any]] = []  # has ended, and is not yet taken in
        self.tasks: dict[int, tuple[Any, Unit]] = {}  # by unit; the loop keeps only weak references to them
        self.threads: _Threads | None = None
        self.call: Callable[[Any], Awaitable[Any]] = handler.function
        name = f"headrace-{handler.queue}"
        # Without a factory of the user's, what create_task() would do but its own frames and a name for each.
        self.task: Callable[[Any], Any] = (
            partial(asyncio.Task, loop=loop, name=name)
            if loop.get_task_factory() is None
            else partial(loop.create_task, name=name)
        )
        self.plain: Callable[[Any], bool] = _always  # whether a call is for a thread, if there are threads
        if handler.kinds:
            self.threads = _Threads(handler.function, name, loop, watch)
            self.call = partial(_routed, handler)
            threaded = {kind for kind, one in handler.kinds.items() if not is_async(one.function)}
            self.plain = lambda job: next(k for k in (job.headers.get(KIND), None) if k in handler.kinds) in threaded
        elif not is_async(handler.function):
            self.threads = _Threads(handler.function, name, loop, watch)
        elif handler.deadline is not None:
            self.call = partial(_timed, handler.function, handler.deadline)


def _always(_argument: object) -> bool:
    return True


async def _routed(handler: HandlerSettings, job: Job) -> Any:
    one = handler.takes(job) or handler
    return await (one.function(job) if one.deadline is None else _timed(one.function, one.deadline, job))


async def _timed(function: Callable[[Any], Awaitable[Any]], deadline: float, argument: Any) -> Any:
    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            return await function(argument)
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(overran(deadline)) from None
        raise


class _Threads:
    """Threads for a plain function, as many as ever ran at once. Daemons: one that hangs keeps no process alive."""

    def __init__(
        self, function: Callable[[Any], Any], name: str, loop: asyncio.AbstractEventLoop, watch: Watch
    ) -> None:
        self._function, self._name, self._loop, self._watch = function, name, loop, watch
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Unit, Any] | None] = queue.SimpleQueue()
        self._threads = self._busy = 0

    def run(self, unit: Unit, argument: Any) -> asyncio.Future[Any]:
        """Call the function in a thread."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        future.add_done_callback(self._free)
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._calls.put((future, unit, argument))
        return future

    def _free(self, _future: object) -> None:
        self._busy -= 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, unit, argument = call
            result: Any = None
            error: BaseException | None = None
            try:
                watched = self._watch.on
                result = self._watch.call(self._function, unit, argument) if watched else self._function(argument)
            except StopIteration as raised:  # no future takes it
                error = RuntimeError(f"the handler raised {raised!r}")
            except BaseException as raised:  # judged, whatever it is
                error = raised
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, future, result, error)

    def close(self) -> None:
        """End those that are idle; the others end with their call."""
        for _ in range(self._threads):
            self._calls.put(None)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class _Engine:
    """One run of a worker."""

    def __init__(self, roles: Roles, url: str | None, client: Any, trace_parent: str) -> None:
        loop = asyncio.get_running_loop()
        self.roles = roles
        self.error: BaseException | None = None
        self.stopping = asyncio.Event()
        self.finished = False
        self._asked = False  # to stop
        self._finish = asyncio.Lock()
        self._work = AsyncExecutor(url, client)
        self._pulse = AsyncExecutor(url, client)  # a heartbeat waits for nobody's connection
        self._pulse.pause = min(PAUSE, roles.settings.heartbeat / 2)  # after an outage, others count the time
        self._line = AsyncLine(self._work)
        settings = self._work.pool.connection_kwargs
        self._watches = {feed.ops.keys.part("jobs"): Watch(feed, settings, trace_parent) for feed in roles.feeds}
        self._slots = {
            id(feed): _Slots(feed, loop, watch) for feed, watch in zip(roles.feeds, self._watches.values(), strict=True)
        }
        self._all: list[asyncio.Event] = []
        self._others = [
            self._role(self.roles.beat(), None, self._pulse),
            self._role(self.roles.keep(), None, self._work),
        ]
        self._others += [self._role(tick(feed), feed, self._work) for feed in self.roles.feeds]
        self._others += [
            self._role(feed.watch(roles.settings), feed, self._work)
            for feed in self.roles.feeds
            if isinstance(feed, Persistent)
        ]
        self._hearing = self._role(self.roles.hear(), None, self._work)
        self._ears = [self._role(feed.listen(), feed, self._work) for feed in self.roles.feeds]
        # Two a feed: while one waits for the server, the other takes in what it has answered.
        self._fetchers = [self._role(feed.fetch(), feed, self._work) for feed in self.roles.feeds for _ in range(2)]

    def _role(self, role: Role, feed: Feed | None, executor: AsyncExecutor) -> asyncio.Task[None]:
        event = asyncio.Event()
        self._all.append(event)
        if feed is not None:
            self._slots[id(feed)].events.append(event)
        return asyncio.create_task(self._drive(role, feed, executor, event))

    async def _drive(self, role: Role, feed: Feed | None, executor: AsyncExecutor, event: asyncio.Event) -> None:
        try:
            effect = next(role)
            while True:
                try:
                    answer = await self._perform(effect, feed, executor, event)
                except BaseException as error:  # it is the role's to handle, whatever it is
                    effect = role.throw(error)
                else:
                    effect = role.send(answer)
        except StopIteration:
            pass
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # comes out of run()
            if self.roles.phase < Phase.STOPPED:
                log.say("role_failed", "%r", error, error=error, level=logging.DEBUG if self.error else None)
                self.error = self.error or error  # the others fail of the same, as a rule
                self.drain()

    async def _perform(self, effect: Effect, feed: Feed | None, executor: AsyncExecutor, event: asyncio.Event) -> Any:
        match effect:
            case Send(ops):
                return await self._send(ops, executor)
            case Listen(command):
                return await executor.wait(command)
            case Hear(channels, seconds):
                return await self._line.hear(channels, seconds)
            case Now():
                return time.monotonic()
            case Pause(seconds):
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await event.wait()
                event.clear()
            case Poke(everyone, whose):
                slots = self._slots.get(id(whose or feed))
                self._poke(self._all if everyone or slots is None else slots.events)
            case Say(text):
                log.say("schedule_failed", "%s", text)
            case Start(units):
                slots = self._slots[id(feed)]
                slots.backlog.extend(units)
                self._fill(slots)
            case Recall():
                backlog = self._slots[id(feed)].backlog
                units = list(backlog)
                backlog.clear()
                return units
            case Abort(held):
                self._abort(held)
        return None

    async def _send(self, ops: Sequence[Op[Any]], executor: AsyncExecutor) -> list[Any]:
        since = time.perf_counter()
        replies = await executor.run_all(ops)
        for op, reply in zip(ops, replies, strict=True):
            watch = self._watches.get(op.keys[0])
            if watch is not None:
                watch.answered(op, reply, since)
        return replies

    def _poke(self, events: Sequence[asyncio.Event]) -> None:
        for event in events:
            event.set()

    def _abort(self, held: Sequence[Held]) -> None:
        """Cancel the tasks of which nothing is wanted any more; threads can only be told."""
        for one in held:
            one.job.lost.set()
        for slots in self._slots.values():
            for run, unit in list(slots.tasks.values()):
                if isinstance(run, asyncio.Task) and not run.cancelling() and all(x.job.lost for x in unit):
                    run.cancel()  # pyright: ignore[reportUnknownMemberType]
                    run.add_done_callback(partial(self._unrun, slots, unit))  # pyright: ignore[reportUnknownMemberType]

    def _fill(self, slots: _Slots) -> None:
        """Start what waits, as far as there are slots."""
        feed, limit, batch = slots.feed, slots.feed.handler.concurrency, slots.feed.handler.batch
        now = time.monotonic()
        while slots.backlog and slots.running < limit:
            unit = slots.backlog.popleft()
            jobs = feed.begin(unit, now)
            if not jobs:
                self._poke(slots.events)
                continue
            slots.running += 1
            argument = jobs if batch else jobs[0]
            if slots.threads is not None and slots.plain(argument):
                run: Any = slots.threads.run(unit, argument)
                run.add_done_callback(partial(self._thread_ended, slots, unit))
            else:
                run = slots.task(self._run(slots, unit, argument))
            slots.tasks[id(unit)] = run, unit

    async def _run(self, slots: _Slots, unit: Unit, argument: Any) -> None:
        """A task: one call of an async handler, and what becomes of it."""
        error: BaseException | None = None
        result: Any = None
        try:
            watch, call = slots.watch, slots.call
            seen = watch.on and not watch.passes(unit, argument)
            result = await (watch.call_async(call, unit, argument) if seen else call(argument))
        except BaseException as raised:  # judged, whatever it is
            error = raised
        slots.tasks.pop(id(unit), None)
        self._ended(slots, unit, error, result)
        if isinstance(error, KeyboardInterrupt):  # Ctrl-C where nobody handles signals: it ends the program
            raise error

    def _unrun(self, slots: _Slots, unit: Unit, _task: object) -> None:
        """A task was cancelled; before it began, perhaps."""
        if slots.tasks.pop(id(unit), None) is not None:
            self._ended(slots, unit, asyncio.CancelledError(), None)

    def _thread_ended(self, slots: _Slots, unit: Unit, run: Any) -> None:
        error = run.exception()
        del slots.tasks[id(unit)]
        self._ended(slots, unit, error, None if error is not None else run.result())

    def _ended(self, slots: _Slots, unit: Unit, error: BaseException | None, result: Any) -> None:
        slots.over.append((unit, error, result))
        if len(slots.over) == 1:
            asyncio.get_running_loop().call_soon(self._take_in, slots)

    def _take_in(self, slots: _Slots) -> None:
        """All that ended in one turn of the loop."""
        over, slots.over = slots.over, []
        slots.running -= len(over)
        now, finish = time.monotonic(), slots.feed.finish
        for unit, error, result in over:
            finish(unit, now, error, result)
        if slots.backlog:
            self._fill(slots)
        self._poke(slots.events)

    def stop(self) -> None:
        """Once: drain. Again: halt."""
        if self._asked:
            self.halt()
        else:
            self._asked = True
            self.drain()

    def drain(self) -> None:
        """Take nothing new, let handlers finish."""
        self.roles.turn(Phase.DRAINING)
        self.stopping.set()
        self._poke(self._all)
        for ear in self._ears:
            ear.cancel()  # what its read was given lies in the reserved consumer: nothing is lost

    def halt(self) -> None:
        """Release everything now; handlers are cancelled, or told."""
        self.roles.turn(Phase.HALTING)
        self._work.budget = GOODBYE
        for feed in self.roles.feeds:
            self._abort(list(feed.held.values()))
        self.drain()

    def runs_this(self) -> bool:
        """Whether it is one of our handlers that asks."""
        task = asyncio.current_task()
        return any(run is task for slots in self._slots.values() for run, _ in slots.tasks.values())

    async def finish(self) -> None:
        """Wait until everything is settled or released, and close. Who gives up waiting may call it again."""
        async with self._finish:
            if self.finished:
                return
            await asyncio.wait([*self._fetchers, *self._ears])  # unlike gather, it cancels none of them
            self.roles.turn(Phase.STOPPED)
            self._work.budget = self._pulse.budget = GOODBYE
            self._poke(self._all)
            self._hearing.cancel()
            _, late = await asyncio.wait([*self._others, self._hearing], timeout=5)
            for role in late:
                role.cancel()
            for feed in (feed for feed in self.roles.feeds if feed.registered):
                with suppress(Exception):  # the server may be gone; then leases and heartbeats run out by themselves
                    while (await self._work.run(feed.ops.leave(feed.name)))[1] == "1":
                        pass
            runs: list[Any] = [run for slots in self._slots.values() for run, _ in slots.tasks.values()]
            halted: list[asyncio.Task[Any]] = [run for run in runs if isinstance(run, asyncio.Task)]
            if halted:  # threads are not waited for
                await asyncio.wait(halted, timeout=1)
            for slots in self._slots.values():
                if slots.threads is not None:
                    slots.threads.close()
            await self._line.close()
            await self._work.close()
            await self._pulse.close()
            self.finished = True
            log.say("worker_stopped", "%s", self.roles.feeds[0].worker, worker=self.roles.feeds[0].worker)
