"""Threads for the plain functions among an `AsyncWorker`'s handlers."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

from attrs import frozen

from headrace._engine.contexts import Contexts
from headrace.errors import said


@frozen
class Unfinished:
    """The awaitable that a plain function returned, and the context of its run."""

    awaitable: Awaitable[Any]
    context: Context


class Threads:
    """Daemon threads that run a plain function, as many as ever ran at once. A hanging one keeps no process alive."""

    def __init__(
        self, function: Callable[[Any], Any], name: str, loop: asyncio.AbstractEventLoop, contexts: Contexts
    ) -> None:
        self._contexts = contexts
        self._function, self._name, self._loop = function, name, loop
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = self._busy = 0

    def run(self, argument: Any) -> asyncio.Future[Any]:
        """Call the function in a thread, in its own context. The future's result may be `Unfinished`."""
        context = self._contexts.fresh()
        return self.submit(lambda: context.run(self._call, argument))

    def _call(self, argument: Any) -> Any:
        result = self._function(argument)
        if result is not None and inspect.isawaitable(result):
            return Unfinished(result, copy_context())
        return result

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call *call* in a thread."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        future.add_done_callback(self._free)
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
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
                error = RuntimeError(f"the handler raised {said(raised)}")
            except BaseException as raised:  # any error is judged
                error = raised
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            del call, future, function, result, error  # these objects may be large

    def close(self) -> None:
        """End the idle threads. The other threads end after their call."""
        for _ in range(self._threads):
            self._calls.put(None)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
