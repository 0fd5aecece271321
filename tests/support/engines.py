"""One body for every way to run a handler.

    def body(job):              # a plain function; or, if it has to wait, a generator
        yield 0.1               # wait so many seconds
        yield gate              # wait for a `threading.Event`
        return b"result"

For `Worker`, and for a plain function under `AsyncWorker`, a thread waits; for a coroutine under `AsyncWorker` the
loop does, and a cancellation is raised where the body waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self

from headrace import AsyncWorker, Worker
from tests.support.awaiting import PATIENCE, until

Body = Callable[[Any], Any]
KINDS = ["threads", "tasks", "plain"]


def blocking(body: Body) -> Body:
    """Make *body* a plain function."""

    def handler(argument: Any) -> Any:
        steps = body(argument)
        if not isinstance(steps, Generator):
            return steps
        while True:
            try:
                wish = next(steps)
            except StopIteration as end:
                return end.value
            if isinstance(wish, threading.Event):
                assert wish.wait(PATIENCE)
            else:
                time.sleep(wish)

    return handler


def coroutine(body: Body) -> Body:
    """Make *body* an async function."""

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
                else:
                    await asyncio.sleep(wish)
            except BaseException as error:
                step = partial(steps.throw, error)

    return handler


class Running:
    """A worker of one kind, in the background."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.kind = kind
        self.worker: Any = Worker(**options) if kind == "threads" else AsyncWorker(**options)
        self._adapt = coroutine if kind == "tasks" else blocking
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._error: BaseException | None = None

    def handler(self, queue: str, **options: Any) -> Callable[[Body], Body]:
        """Register a body like the worker's `handler`."""
        return self._registers(self.worker.handler(queue, **options))

    def batch_handler(self, queue: str, **options: Any) -> Callable[[Body], Body]:
        """Register a body like the worker's `batch_handler`."""
        return self._registers(self.worker.batch_handler(queue, **options))

    def _registers(self, register: Callable[[Body], Body]) -> Callable[[Body], Body]:
        def registered(body: Body) -> Body:
            register(self._adapt(body))
            return body

        return registered

    @property
    def engine(self) -> Any:
        """The run that is under way."""
        return self.worker._running

    @property
    def running(self) -> bool:
        """Whether it was started and not yet closed."""
        return self._thread is not None if self.kind != "threads" else self.engine and not self.engine.finished

    def start(self) -> None:
        """Start the worker."""
        if self.kind == "threads":
            self.worker.start()
            return
        up = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(up,))
        self._thread.start()
        assert up.wait(PATIENCE)

    def _run(self, up: threading.Event) -> None:
        async def main() -> None:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            async with self.worker:
                up.set()
                await self._over.wait()

        try:
            asyncio.run(main())
        except BaseException as error:
            self._error = error
        finally:
            up.set()

    def stop(self, *, wait: bool = True) -> None:
        """Stop it like the worker's `stop`."""
        if self.kind == "threads":
            self.worker.stop(wait)
        else:
            assert self._loop is not None
            asyncio.run_coroutine_threadsafe(self.worker.stop(wait), self._loop).result(PATIENCE)

    def close(self) -> None:
        """Leave the worker's `with`; raises the error that ended it."""
        if self.kind == "threads":
            self.worker.__exit__(None, None, None)
            return
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._over is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the worker does not stop"
        self._thread = None
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def making(kind: str, url: str) -> Iterator[Callable[..., Running]]:
    """Makes workers of a kind, for the server at *url* if no other is given; those that a failed test has left running
    are halted.
    """
    made: list[Running] = []

    def make(**options: Any) -> Running:
        made.append(Running(kind, **options if options.keys() & {"url", "client"} else {"url": url, **options}))
        return made[-1]

    yield make
    for running in made:
        if running.running:
            with suppress(BaseException):
                running.stop(wait=False)
                running.stop(wait=False)
                running.close()


class Recorder:
    """The runs that have started and ended, and the most that were under way at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started: list[Any] = []
        self.ended: list[Any] = []
        self.most = 0

    def __call__(self, what: Any) -> Recording:
        return Recording(self, what)

    def await_started(self, number: int) -> None:
        """Wait until so many have started."""
        until(lambda: len(self.started) >= number, f"{len(self.started)} of {number} have started")

    def await_ended(self, number: int) -> None:
        """Wait until so many have ended."""
        until(lambda: len(self.ended) >= number, f"{len(self.ended)} of {number} have ended")


class Recording:
    """One run of a handler, with `with`."""

    def __init__(self, recorder: Recorder, what: Any) -> None:
        self._recorder, self._what = recorder, what

    def __enter__(self) -> None:
        with self._recorder._lock:
            self._recorder.started.append(self._what)
            now = len(self._recorder.started) - len(self._recorder.ended)
            self._recorder.most = max(self._recorder.most, now)

    def __exit__(self, *_: object) -> None:
        with self._recorder._lock:
            self._recorder.ended.append(self._what)
