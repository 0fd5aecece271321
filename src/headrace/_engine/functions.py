"""Inspection of users' functions: whether they are async, and their name in messages."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, cast

from headrace.errors import ConfigurationError


def is_async(function: object) -> bool:
    """Tell whether calling *function* gives a coroutine."""
    return any(map(inspect.iscoroutinefunction, _bodies(function)))


def refuse_generator(function: object) -> None:
    """Raise `ConfigurationError` for a generator function, also an async one: calling it runs none of its body."""
    if any(inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body) for body in _bodies(function)):
        raise ConfigurationError(
            f"{called(function)} is a generator function: calling it runs nothing. Give a function without yield"
        )


def refuse_parameters(function: object, given: int, arguments: str) -> None:
    """Raise `ConfigurationError` for a function that can't take *given* arguments, named *arguments* in the message."""
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
    """Return the function behind partials, and the `__call__` of an object."""
    while isinstance(function, partial):
        function = function.func
    return function, getattr(function, "__call__", None)  # noqa: B004 - it may be async, or a generator function


def called(function: object) -> str:
    """Return the name of a function in messages: its module and its own name."""
    while isinstance(function, partial):
        function = function.func
    own = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{own}"
