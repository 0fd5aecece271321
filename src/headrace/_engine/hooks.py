"""The user's functions. They are inspected, called as hooks or middleware, and get context
variables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar, cast

from headrace._telemetry.log import log_event
from headrace.errors import ConfigurationError, describe_error


def is_async(function: object) -> bool:
    return any(map(inspect.iscoroutinefunction, _bodies(function)))


def refuse_bare(decorator: str, wanted: str, given: object) -> NoReturn:
    if callable(given) and not isinstance(given, type):
        raise TypeError(f"{decorator} takes {wanted}: write {decorator}(...) over {called(given)}")
    raise TypeError(f"{decorator} takes {wanted}, not {type(given).__name__}")


def refuse_generator(function: object) -> None:
    """Raise `ConfigurationError` for a generator function, also an async one. Calling it runs none
    of its body.
    """
    if any(
        inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)
        for body in _bodies(function)
    ):
        raise ConfigurationError(
            f"{called(function)} is a generator function: calling it runs nothing. Give a function without yield"
        )


def refuse_parameters(function: object, given: int, arguments: str) -> None:
    """Raise `ConfigurationError` for a function that can't take *given* arguments.

    *arguments* names them in the message.
    """
    try:
        signature = inspect.signature(cast("Any", function), follow_wrapped=False)
    except (TypeError, ValueError):  # a builtin may have no known signature
        return
    try:
        signature.bind(*range(given))
    except TypeError as error:
        raise ConfigurationError(
            f"{called(function)} is called with {arguments}: {error}. Give it just that, other parameters defaults, or "
            "bind them by functools.partial"
        ) from None


def _bodies(function: object) -> tuple[object, object]:
    while isinstance(function, partial):
        function = function.func
    return function, getattr(function, "__call__", None)  # noqa: B004 - it may be async, or a generator function


def called(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    own = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{own}"


F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[], Any]
Around = Callable[[Any, Callable[[], Any]], Any]


class Hooked:
    """The base of workers, with hooks of their start and stop, and middleware."""

    _threads_only = False

    def __init__(self) -> None:
        self.state = SimpleNamespace()
        """Place for what handlers need, such as a pool of connections, which `on_start` makes and
        `on_stop` closes."""
        self._starts: list[Hook] = []
        self._stops: list[Hook] = []
        self._around: list[Around] = []

    def on_start(self, function: F) -> F:
        """Have *function* called, without arguments, before the worker takes any job.

        Several functions are called in their order. An exception of one ends the worker. `run()`
        raises it, after the hooks of `on_stop`. For an `AsyncWorker` the function may be async. It
        may keep its objects in `worker.state`. May decorate.
        """
        return self._hook(self._starts, "on_start", function)

    def on_stop(self, function: F) -> F:
        """Have *function* called, without arguments, when all handlers have ended.

        Several functions are called in reverse order. They are also called if a hook of `on_start`
        or another stop hook failed. `run()` raises the first exception. After a second request to
        stop, the worker does not wait for threads with a hanging handler. May decorate.
        """
        return self._hook(self._stops, "on_stop", function)

    def middleware(self, around: F) -> F:
        """Have `around(job, call)` called for each run of a handler.

        `call()` runs the next middleware or the handler, and returns its result, which *around*
        must return. The first middleware is the outermost. *job* is the handler's argument, which
        is a `Job`, or for a batch handler a sequence of jobs. Its exceptions and its return value
        count as the handler's.

        For an `AsyncWorker` it is async, and awaits `call()`, also around plain functions, which
        run in threads with its context variables. A plain one runs inside of these, in the thread
        of each plain function, and not around coroutines. Each run has a fresh copy of the context
        variables with which the worker was started. Tracing is outside of it, the handler's
        *deadline* inside. May decorate.
        """
        if not callable(around):
            raise TypeError(f"middleware must be callable, {around!r:.200} is not")
        refuse_parameters(around, 2, "a job and the call inside")
        if self._threads_only and is_async(around):
            raise ConfigurationError(
                f"middleware {called(around)} must be a plain def, as this worker has threads"
            )
        self._around.append(around)
        return around

    def _hook(self, hooks: list[Hook], which: str, function: F) -> F:
        if not callable(function):
            raise TypeError(f"{which} takes a function, {function!r:.200} is none")
        refuse_parameters(function, 0, "no arguments")
        if self._threads_only and is_async(function):
            raise ConfigurationError(
                f"{which}: {called(function)} is async: give it to an AsyncWorker"
            )
        hooks.append(function)
        return function


def hook_failed(hook: Hook, error: BaseException) -> None:
    log_event("hook_failed", "%s: %s", called(hook), describe_error(error), error=error)


def surrounded(function: Callable[[Any], Any], around: Sequence[Around]) -> Callable[[Any], Any]:
    for outer in reversed(around):
        function = partial(_within, outer, function)
    return function


def _within(outer: Around, inner: Callable[[Any], Any], argument: Any) -> Any:
    return outer(argument, partial(inner, argument))


class Contexts:
    """The context of a worker after its start hooks, and copies of it for runs."""

    __slots__ = ("_mutable", "start")

    def __init__(self) -> None:
        self.start = copy_context()
        """The worker's own context, in which its stop hooks run."""
        self._mutable: list[tuple[Any, Any]] = [
            (variable, value.copy())
            for variable, value in self.start.items()
            if variable.name == "decimal_context"  # its value is changed in place
        ]

    def fresh(self) -> Context:
        made = self.start.copy()
        for variable, value in self._mutable:
            made.run(variable.set, value.copy())
        return made
