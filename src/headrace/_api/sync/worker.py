"""`Worker` runs the roles on threads. Handlers are plain functions, and there is no event loop."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from types import FrameType
from typing import Any, Self

import redis

from headrace._api.guide import OfThreads
from headrace._api.worker import BaseWorker
from headrace._engine.threads import Engine, call_stops
from headrace._net.base.address import Client
from headrace._net.base.children import handling_signals
from headrace._telemetry.log import configure_logging
from headrace.errors import ConfigurationError

# of a worker: a system has 32,768 by default, and a process that wants more may hang
THREADS_AT_MOST = 20_000


class Worker(OfThreads, BaseWorker[Client]):
    """Runs handlers on threads. Declare them by `@worker.handler("emails")`, then call
    `worker.run()` or enter `with worker`.

    The arguments are explained at `__init__`.
    """

    _threads_only = True
    _client_type = redis.Redis
    _slots = 10
    _running: Engine | None = None

    def run(self, url: str | None = None) -> None:
        """Work until SIGINT or SIGTERM, or `stop()`. Then let handlers finish. A second signal
        releases all jobs at once.

        *url*: the server of this run, in place of the worker's own. Without either it is
        `HEADRACE_URL` or `REDIS_URL`.

        Logs to standard error, unless the program has set up logging. Raises the error that ended
        the worker, if there was one.
        """
        configure_logging()
        main = threading.current_thread() is threading.main_thread()
        before: dict[int, Any] = {}
        early: list[int] = []  # signals that came before there was anything to stop
        self._signalled = False
        engine: Engine | None = None
        error: BaseException | None = None

        def on_signal(number: int, _frame: FrameType | None) -> None:
            self._signalled = True
            if engine is None:
                early.append(number)
            # in a thread of its own: a signal handler must not wait for locks that it may have
            # interrupted
            else:
                threading.Thread(target=engine.stop, daemon=True).start()

        stack = ExitStack()
        try:
            if main:
                stack.enter_context(handling_signals())
                before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
            engine = self._start(url)
            for _ in early:
                engine.stop()
            while not engine.stopping.wait(0.5):
                pass
            engine.finish()
            error = engine.error
        finally:
            for number, handler in before.items():
                if handler is not None:  # one that was not installed by Python can't be restored
                    signal.signal(number, handler)
            stack.close()
            # interrupted otherwise than by our signals
            if engine is not None and not engine.finished:
                engine.halt()
                engine.finish()
        if error is not None:
            raise error

    def start(self, url: str | None = None) -> None:
        """Begin working in the background. `with worker` does it for you. *url* is as for `run`."""
        self._start(url)

    def _start(self, url: str | None) -> Engine:
        self._forget_parents()
        if self._running is not None and not self._running.finished:
            raise RuntimeError("this worker is running already")
        self._reach(url)
        stops = list(self._stops)
        try:
            self._count_threads()
            for hook in self._starts:
                hook()
            for relay in self._relays:
                relay.begin(self._address)
                stops.append(relay.end)
            lifecycle = self._lifecycle(self._with_children(stops))
            self._running = Engine(lifecycle, self._address, self.trace_parent, stops)
        except BaseException:
            call_stops(stops)
            self._address.leave()
            raise
        self._started()
        self._running.begin()
        return self._running

    def _count_threads(self) -> None:
        queues = len(self.handlers)
        slots = sum(handler.concurrency for handler in self.handlers.values())
        threads = slots + 2 * queues  # two roles of each
        if threads > THREADS_AT_MOST:
            raise ConfigurationError(
                f"{slots:,} slots of {queues:,} queues take {threads:,} threads, and a Worker has {THREADS_AT_MOST:,} "
                "at most: take an AsyncWorker, whose handlers may be plain functions, too, or lower concurrency="
            )

    def stop(self, wait: bool = True) -> None:
        """Stop taking jobs and let handlers finish. A second call releases all jobs to the front at
        once.

        *wait*: return when that is done. A handler that stops its own worker never waits, as it
        would wait for itself.
        """
        if (engine := self._request_stop(wait)) is not None:
            engine.finish()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        engine = self._drained()
        if engine is not None:
            engine.finish()
            if engine.error is not None and error is None:
                raise engine.error
