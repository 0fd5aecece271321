"""The functions of users, looked at: whether they are async, and how a message calls them."""

from __future__ import annotations

import inspect
from functools import partial


def is_async(function: object) -> bool:
    """Tell whether calling *function* gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def called(function: object) -> str:
    """Return the name by which a message calls a function: its module's, and its own."""
    while isinstance(function, partial):
        function = function.func
    own = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{own}"
