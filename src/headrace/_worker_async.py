"""`AsyncWorker`: drives the roles with asyncio. Async handlers get a task each, plain functions a thread."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from headrace._execute import AsyncExecutor
from headrace._handlers import Handlers, is_async, log
from headrace._roles import (
    Abort,
    Effect,
    Feed,
    Held,
    Listen,
    Now,
    Pause,
    Phase,
    Poke,
    Recall,
    Role,
    Roles,
    Send,
    Start,
)

Unit = list[Held]


class AsyncWorker(Handlers):
    """Runs handlers on an event loop: `@worker.handler("emails")`, then `worker.run()` or `async with worker:`.

    Like `Worker`; *client* is a `redis.asyncio.Redis`. A plain `def` handler runs in a thread.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._running: _Engine | None = None

    def run(self) -> None:
        """Like `Worker.run`: its own event loop, until a signal or `stop()`."""
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """`run` on the event loop that is running already."""
        loop = asyncio.get_running_loop()
        engine = self.start()
        signals: list[signal.Signals] = []
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
                    loop.add_signal_handler(number, engine.stop)
                    signals.append(number)
            await engine.stopping.wait()
            await engine.finish()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            self._running = None
            self._left()
        if engine.error is not None:
            raise engine.error

    def start(self) -> _Engine:
        """Begin working on this event loop; `async with worker:` does it for you."""
        if self._running is not None:
            raise RuntimeError("this worker is running already")
        self._running = _Engine(self._roles(), self._connect(), self._client)
        return self._running

    async def stop(self, wait: bool = True) -> None:
        """Like `Worker.stop`."""
        engine = self._running
        if engine is None:
            return
        engine.stop()
        if wait:
            await engine.finish()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        engine, self._running = self._running, None
        if engine is not None:
            engine.stop()
            await engine.finish()
            self._left()
            if engine.error is not None and error is None:
                raise engine.error


class _Slots:
    """The slots of one feed: units that wait for one, and how many run."""

    __slots__ = ("backlog", "events", "feed", "function", "run", "running", "tasks", "threads")

    def __init__(self, feed: Feed, loop: asyncio.AbstractEventLoop) -> None:
        handler = feed.handler
        self.feed = feed
        self.backlog: deque[Unit] = deque()
        self.events: list[asyncio.Event] = []
        self.running = 0
        self.tasks: set[Any] = set()  # a strong reference to each: the loop keeps only weak ones
        self.function = handler.function
        self.threads: ThreadPoolExecutor | None = None
        self.run: Callable[[Any], Any]
        if not is_async(handler.function):
            self.threads = ThreadPoolExecutor(handler.concurrency, f"headrace-{handler.queue}")
            self.run = partial(loop.run_in_executor, self.threads, handler.function)
        elif handler.deadline is not None:
            timed = partial(_timed, handler.function, handler.deadline)
            self.run = lambda argument: loop.create_task(timed(argument))
        else:
            self.run = lambda argument: loop.create_task(handler.function(argument))


async def _timed(function: Callable[[Any], Awaitable[Any]], deadline: float, argument: Any) -> Any:
    async with asyncio.timeout(deadline):
        return await function(argument)


class _Engine:
    """One run of a worker."""

    def __init__(self, roles: Roles, url: str | None, client: Any) -> None:
        loop = asyncio.get_running_loop()
        self.roles = roles
        self.error: BaseException | None = None
        self.stopping = asyncio.Event()
        self._finish = asyncio.Lock()
        self._finished = False
        self._work = AsyncExecutor(url, client)
        self._pulse = AsyncExecutor(url, client)  # a heartbeat waits for nobody's connection
        self._slots = {id(feed): _Slots(feed, loop) for feed in self.roles.feeds}
        self._all: list[asyncio.Event] = []
        self._others = [
            self._role(self.roles.beat(), None, self._pulse),
            self._role(self.roles.keep(), None, self._work),
        ]
        self._ears = [self._role(feed.listen(), feed, self._work) for feed in self.roles.feeds]
        self._fetchers = [self._role(feed.fetch(), feed, self._work) for feed in self.roles.feeds]

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
                log.error("role_failed", exc_info=error)
                self.error = self.error or error
                self.stop()

    async def _perform(self, effect: Effect, feed: Feed | None, executor: AsyncExecutor, event: asyncio.Event) -> Any:
        match effect:
            case Send(ops):
                return await executor.run_all(ops)
            case Listen(command):
                return await executor.wait(command)
            case Now():
                return time.monotonic()
            case Pause(seconds):
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await event.wait()
                event.clear()
            case Poke(everyone):
                self._poke(self._all if everyone or feed is None else self._slots[id(feed)].events)
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
                for one in held:
                    self._abort(one)
        return None

    def _poke(self, events: Sequence[asyncio.Event]) -> None:
        for event in events:
            event.set()

    def _abort(self, held: Held) -> None:
        held.claim.job.lost.set()
        run: Any = held.run
        if isinstance(run, asyncio.Task):  # a thread can only be told
            run.cancel()  # pyright: ignore[reportUnknownMemberType]

    def _fill(self, slots: _Slots) -> None:
        """Start what waits, as far as there are slots."""
        feed, limit, batch = slots.feed, slots.feed.handler.concurrency, slots.feed.handler.batch
        now = time.monotonic()
        while slots.backlog and slots.running < limit:
            unit = slots.backlog.popleft()
            jobs = feed.begin(unit, now)
            if not jobs:
                continue
            try:
                run = slots.run(jobs if batch else jobs[0])
            except Exception as error:  # the handler object itself raised
                feed.finish(unit, now, error)
                continue
            slots.running += 1
            slots.tasks.add(run)
            if not batch:
                unit[0].run = run
            run.add_done_callback(partial(self._ended, slots, unit))

    def _ended(self, slots: _Slots, unit: Unit, run: Any) -> None:
        slots.running -= 1
        slots.tasks.discard(run)
        error: BaseException | None = asyncio.CancelledError() if run.cancelled() else run.exception()
        result = None if error is not None or slots.feed.handler.batch else run.result()
        slots.feed.finish(unit, time.monotonic(), error, result)
        if slots.backlog:
            self._fill(slots)
        for event in slots.events:
            event.set()

    def stop(self) -> None:
        """Once: drain. Again: halt."""
        self.roles.turn(Phase.HALTING if self.roles.phase is Phase.DRAINING and self.error is None else Phase.DRAINING)
        if self.roles.phase >= Phase.HALTING:
            for feed in self.roles.feeds:
                for held in list(feed.held.values()):
                    self._abort(held)
        self.stopping.set()
        self._poke(self._all)

    async def finish(self) -> None:
        """Wait until everything is settled or released, and close."""
        async with self._finish:
            if self._finished:
                return
            self._finished = True
            for ear in self._ears:
                ear.cancel()  # what its read was given lies in the reserved consumer: nothing is lost
            await asyncio.gather(*self._fetchers, *self._ears, return_exceptions=True)
            self.roles.turn(Phase.STOPPED)
            self._poke(self._all)
            await asyncio.wait(self._others, timeout=5)
            for feed in self.roles.feeds:
                with suppress(Exception):  # the server may be gone; then leases and heartbeats run out by themselves
                    while (await self._work.run(feed.ops.leave(feed.name)))[1] == "1":
                        pass
            for slots in self._slots.values():
                if slots.threads is not None:
                    slots.threads.shutdown(wait=False, cancel_futures=True)
            await self._work.close()
            await self._pulse.close()
