"""Annotated return types of handlers, and the warning that a codec can't encode them."""

from __future__ import annotations

import functools
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from headrace._model.codec import Codec, untyped
from headrace._model.flow import FanOut, Next
from headrace.errors import Verdict

NO_RESULTS = (type(None), Verdict, Next, FanOut)  # what ends a job otherwise than with this value for its result


def warn(function: Callable[..., Any], codec: Codec, stacklevel: int) -> None:
    """Warn if *codec* can't encode the annotated result of *function*: its jobs would have no results."""
    holds: Any = getattr(untyped(codec), "holds", None)
    if not callable(holds):
        return
    for kind in returned(function):
        try:
            held = holds(kind)
        except Exception:  # a type that is only known to type checkers
            held = True
        if not held:
            name, what = getattr(function, "__qualname__", repr(function)), getattr(kind, "__name__", repr(kind))
            text = (
                f"handler {name} returns {what}, which {type(codec).__name__} can't encode: its jobs would complete "
                "without a result; give the handler a codec that can, such as codec=JSONCodec(), or return bytes, str "
                "or None"
            )
            warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)


def returned(function: Callable[..., Any]) -> list[Any]:
    """List the types of results that a handler is annotated to return: classes, as far as they can be found out."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__annotations__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - the method itself
    try:
        hint = types.SimpleNamespace(__annotations__={"return": function.__annotations__["return"]})
        whole = typing.get_type_hints(hint, getattr(function, "__globals__", {}))["return"]
        return list(dict.fromkeys(_members(whole)))
    except Exception:  # none; or of a name that is known to type checkers only
        return []


def _members(kind: Any) -> Iterator[Any]:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        for one in typing.get_args(kind):
            yield from _members(one)
    elif origin is typing.Annotated:
        yield from _members(typing.get_args(kind)[0])
    elif hasattr(kind, "__supertype__"):
        yield from _members(kind.__supertype__)
    else:
        plain = kind if origin is None else origin
        if isinstance(plain, type) and plain not in (object, type, Any) and not issubclass(plain, NO_RESULTS):
            yield plain
