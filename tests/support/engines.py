"""One body for every way to run a handler.

    def body(job):              # a plain function; or, if it has to wait, a generator
        yield 0.1               # wait so many seconds
        yield gate              # wait for a `threading.Event`
        value = yield partial(job.step, "pay", pay)  # make a call that a coroutine awaits
        return b"result"

A thread waits for a plain function. The loop waits for a coroutine, and may cancel it there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Self

from anyio.from_thread import start_blocking_portal

from headrace import AsyncWorker, Worker
from tests.support.awaiting import PATIENCE, until

Body = Callable[[Any], Any]
KINDS = ["threads", "tasks", "plain"]


def blocking(body: Body) -> Body:
    def handler(argument: Any) -> Any:
        steps = body(argument)
        if not isinstance(steps, Generator):
            return steps
        step = partial(next, steps)
        while True:
            try:
                wish = step()
            except StopIteration as end:
                return end.value
            step = partial(next, steps)
            if isinstance(wish, threading.Event):
                assert wish.wait(PATIENCE)
            elif callable(wish):
                try:
                    step = partial(steps.send, wish())
                except BaseException as error:
                    step = partial(steps.throw, error)
            else:
                time.sleep(wish)

    return handler


def coroutine(body: Body) -> Body:
    async def handler(argument: Any) -> Any:
        steps = body(argument)
        if not isinstance(steps, Generator):
            return steps
        step = partial(next, steps)
        while True:
            try:
                wish = step()
            except StopIteration as end:
                return end.value
            step = partial(next, steps)
            try:
                if isinstance(wish, threading.Event):
                    while not wish.is_set():  # noqa: ASYNC110 - it is a thread's event
                        await asyncio.sleep(0.002)
                elif callable(wish):
                    step = partial(steps.send, await wish())
                else:
                    await asyncio.sleep(wish)
            except BaseException as error:
                step = partial(steps.throw, error)

    return handler


class Running(ExitStack):
    """A worker of one kind in the background. `close` raises its error."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.kind = kind
        self.worker: Any = Worker(**options) if kind == "threads" else AsyncWorker(**options)
        self._adapt = coroutine if kind == "tasks" else blocking

    def handler(self, queue: str, **options: Any) -> Callable[[Body], Body]:
        return self._registers(self.worker.handler(queue, **options))

    def batch_handler(self, queue: str, **options: Any) -> Callable[[Body], Body]:
        return self._registers(self.worker.batch_handler(queue, **options))

    def _registers(self, register: Callable[[Body], Body]) -> Callable[[Body], Body]:
        def registered(body: Body) -> Body:
            register(self._adapt(body))
            return body

        return registered

    @property
    def engine(self) -> Any:
        return self.worker._running

    def start(self) -> None:
        with ExitStack() as stack:
            worker = self.worker
            if self.kind != "threads":
                self._portal = stack.enter_context(start_blocking_portal())
                worker = self._portal.wrap_async_context_manager(worker)
            stack.enter_context(worker)
            self.push(stack.pop_all())

    def stop(self, *, wait: bool = True) -> None:
        if self.kind == "threads":
            self.worker.stop(wait)
        else:
            self._portal.call(self.worker.stop, wait)

    def halt(self) -> None:
        """End it, if a failed test has left it running."""
        with suppress(BaseException):
            if self.engine and not self.engine.finished:
                self.stop(wait=False)
                self.stop(wait=False)
            self.close()

    def __exit__(self, *error: object) -> bool | None:
        if error[0] is not None:  # its handlers may wait for ever
            self.halt()
        return super().__exit__(*error)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        self.start()
        return self


class Recorder:
    """The runs that have started and ended, and the largest number at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started: list[Any] = []
        self.ended: list[Any] = []
        self.most = 0

    @contextmanager
    def __call__(self, what: Any) -> Iterator[None]:
        """Record one run of a handler, as a context manager."""
        with self._lock:
            self.started.append(what)
            self.most = max(self.most, len(self.started) - len(self.ended))
        try:
            yield
        finally:
            with self._lock:
                self.ended.append(what)

    def await_started(self, number: int) -> None:
        until(lambda: len(self.started) >= number, f"{len(self.started)} of {number} have started")

    def await_ended(self, number: int) -> None:
        until(lambda: len(self.ended) >= number, f"{len(self.ended)} of {number} have ended")
