"""`AsyncWorker` runs the roles with asyncio. Async handlers get a task each, plain functions a
thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self

import redis.asyncio

from headrace._api.guide import OfLoops
from headrace._api.worker import BaseWorker, isolates
from headrace._engine.hooks import Hook, is_async
from headrace._engine.tasks import Engine, call_stops
from headrace._model.settings import HandlerSettings
from headrace._net.aio import loops
from headrace._net.base.address import AsyncClient
from headrace._net.base.children import handling_signals
from headrace._telemetry.log import configure_logging
from headrace.errors import ConfigurationError


def in_thread(hook: Hook) -> Hook:
    return partial(asyncio.to_thread, hook)


class AsyncWorker(OfLoops, BaseWorker[AsyncClient]):
    """Runs handlers on an event loop. Declare them by `@worker.handler("emails")`, then call
    `worker.run()` or enter `async with worker`.

    The arguments are explained at `__init__`. A plain `def` handler runs in a thread.
    """

    _client_type = redis.asyncio.Redis
    _running: Engine | None = None
    _starting = False

    def run(self, url: str | None = None) -> None:
        """Work on an event loop of its own until SIGINT or SIGTERM, or `stop()`. Then let handlers
        finish. A second signal releases all jobs at once.

        *url*: the server of this run, in place of the worker's own. Without either it is
        `HEADRACE_URL` or `REDIS_URL`.

        Logs to standard error, unless the program has set up logging. Raises the error that ended
        the worker, if there was one.

        The loop is uvloop's if that is installed (extra `speed`), unless the environment says
        `HEADRACE_LOOP=asyncio`.
        """
        loops.run(self.serve(url))

    async def serve(self, url: str | None = None) -> None:
        """Work like `run`, on the event loop that is running already."""
        configure_logging()
        engine: Engine | None = None
        error: BaseException | None = None
        early = 0  # signals that came before there was anything to stop
        self._signalled = False

        def on_signal() -> None:
            nonlocal early
            self._signalled = True
            if engine is None:
                early += 1
            else:
                engine.stop()

        stack = ExitStack()
        try:
            if stack.enter_context(loops.on_signals(on_signal)):
                stack.enter_context(handling_signals())
            engine = await self._begin(url)
            for _ in range(early):
                engine.stop()
            await engine.stopping.wait()
            await engine.finish()
            error = engine.error
        finally:
            stack.close()
            if engine is not None and not engine.finished:  # cancelled: nothing of it may go on
                engine.halt()
                await engine.finish()
        if error is not None:
            raise error

    def start(self, url: str | None = None) -> None:
        """Begin working on this event loop. `async with worker` does it for you. *url* is as for
        `run`.

        Calls no hooks: a worker that has some is a `ConfigurationError` here.
        """
        if self._starts or self._stops:
            raise ConfigurationError(
                "start() can't await hooks: use `async with worker:` or `await worker.serve()`"
            )
        self._prepare(url)
        asyncio.get_running_loop()  # raises its error before children are started
        ends: list[Hook] = []
        handlers = self._with_children(ends)
        self._go(list(map(in_thread, ends)), handlers)

    async def _begin(self, url: str | None) -> Engine:
        self._prepare(url)
        stops = list(self._stops)
        self._starting = True
        try:
            for hook in self._starts:
                if inspect.isawaitable(made := hook()):
                    await made
            return self._go(stops, await self._ready(stops))
        except BaseException:
            await call_stops(stops)
            self._address.leave()
            raise
        finally:
            self._starting = False

    def _prepare(self, url: str | None) -> None:
        self._forget_parents()
        if self._starting or (self._running is not None and not self._running.gone):
            raise RuntimeError("this worker is running already")
        self._address.leave()  # the last run, if its end was not waited for
        self._reach(url)

    async def _ready(self, stops: list[Hook]) -> list[HandlerSettings]:
        # the loop goes on while children start
        ends: list[Hook] = []
        try:
            if any(map(isolates, self.handlers.values())):
                return await asyncio.to_thread(self._with_children, ends)
            return self._with_children(ends)
        finally:
            stops += map(in_thread, ends)

    def _go(self, stops: list[Hook], handlers: Sequence[HandlerSettings]) -> Engine:
        for relay in self._relays:
            relay.begin(self._address)
            stops.append(relay.end if is_async(relay.end) else in_thread(relay.end))
        lifecycle = self._lifecycle(handlers)
        self._running = Engine(lifecycle, self._address, self.trace_parent, stops)
        self._started(loops.named())
        return self._running

    async def stop(self, wait: bool = True) -> None:
        """Stop taking jobs and let handlers finish. A second call releases all jobs to the front at
        once.

        *wait*: return when that is done. A handler that stops its own worker never waits, as it
        would wait for itself.
        """
        if (engine := self._request_stop(wait)) is not None:
            await engine.finish()

    async def __aenter__(self) -> Self:
        await self._begin(None)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        engine = self._drained()
        if engine is None:
            return
        task = asyncio.current_task()
        if task is not None and task.cancelling() > 1:  # cancelled again before it came here
            engine.halt()
        try:
            await engine.finish()
        except asyncio.CancelledError:  # once more: the handlers are not waited for any longer
            engine.halt()
            await engine.finish()
            raise
        if engine.error is not None and error is None:
            raise engine.error
