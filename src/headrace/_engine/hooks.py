"""Hooks of a worker's life, and middleware around each run of a handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from headrace._engine.functions import called, is_async, refuse_parameters
from headrace._telemetry import log
from headrace.errors import ConfigurationError, said

F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[], Any]
Around = Callable[[Any, Callable[[], Any]], Any]


class Hooked:
    """The base of workers: hooks of their start and stop, and middleware."""

    _threads_only = False

    def __init__(self) -> None:
        self.state = SimpleNamespace()
        """Place for what handlers need, such as a pool of connections, which `on_start` makes and `on_stop` closes."""
        self._starts: list[Hook] = []
        self._stops: list[Hook] = []
        self._around: list[Around] = []

    def on_start(self, function: F) -> F:
        """Have *function* called, without arguments, before the worker takes any job; several in their order.

        Its exception ends the worker: `run()` raises it, after the hooks of `on_stop`. For an `AsyncWorker` it may be
        async. It may keep its objects in `worker.state`. May decorate.
        """
        return self._hook(self._starts, "on_start", function)

    def on_stop(self, function: F) -> F:
        """Have *function* called, without arguments, when all handlers have ended; several in reverse order.

        It is also called if a hook of `on_start` or another stop hook failed; `run()` raises the first exception. After
        a second request to stop, the worker does not wait for threads with a hanging handler. May decorate.
        """
        return self._hook(self._stops, "on_stop", function)

    def middleware(self, around: F) -> F:
        """Have `around(job, call)` called for each run of a handler: `call()` runs the next middleware or the handler,
        and returns its result, which *around* must return. The first middleware is the outermost.

        *job*: the handler's argument: a `Job`, or for a batch handler a sequence of jobs. Its exceptions and its return
        value count as the handler's. For an `AsyncWorker` it is async, and awaits `call()`, also around plain
        functions, which run in threads with its context variables. Each run has a fresh copy of the context variables
        with which the worker was started. Tracing is outside of it, the handler's *deadline* inside. May decorate.
        """
        if not callable(around):
            raise TypeError(f"middleware must be callable, {around!r:.200} is not")
        refuse_parameters(around, 2, "a job and the call inside")
        if is_async(around) == self._threads_only:
            right = "a plain def, as this worker has threads" if self._threads_only else "async, as it runs on the loop"
            raise ConfigurationError(f"middleware {called(around)} must be {right}")
        self._around.append(around)
        return around

    def _hook(self, hooks: list[Hook], which: str, function: F) -> F:
        if not callable(function):
            raise TypeError(f"{which} takes a function, {function!r:.200} is none")
        refuse_parameters(function, 0, "no arguments")
        if self._threads_only and is_async(function):
            raise ConfigurationError(f"{which}: {called(function)} is async: give it to an AsyncWorker")
        hooks.append(function)
        return function


def hook_failed(hook: Hook, error: BaseException) -> None:
    """Log the error of a stop hook. The other hooks are called nevertheless."""
    log.say("hook_failed", "%s: %s", called(hook), said(error), error=error)


def surrounded(function: Callable[[Any], Any], around: Sequence[Around]) -> Callable[[Any], Any]:
    """Return *function*, of either colour, wrapped in its middleware."""
    for outer in reversed(around):
        function = partial(_within, outer, function)
    return function


def _within(outer: Around, inner: Callable[[Any], Any], argument: Any) -> Any:
    return outer(argument, partial(inner, argument))
