"""Signatures that name each keyword argument, where the code takes `**options` of a `TypedDict`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
MEANT = {"countdown": "delay", "eta": "delay", "task_id": "id", "job_id": "id"}  # names that other libraries have


def refuse_unknown(caller: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Raise `TypeError` if there are names that *caller* does not take, and say which of its arguments is like one."""
    for name in sorted(unknown):
        known = [*inspect.signature(caller).parameters]
        close = get_close_matches(MEANT.get(name, name), known, 1)
        meant = f", did you mean {close[0]!r}?" if close else ""
        raise TypeError(f"{caller.__name__}() got an unexpected keyword argument {name!r}{meant}")


def spelled_out(kind: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Show a function's `**options` in its signature: each of *defaults* by its name, annotated as in *kind*, a
    `TypedDict`. The function itself is left as it is.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        shown = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_annotation(kind, name))
            for name, default in defaults.items()
        ]
        cast("Any", function).__signature__ = signature.replace(parameters=[*own, *shown])
        return function

    return decorate


def _annotation(kind: type, name: str) -> str:
    return getattr(kind.__annotations__[name], "__forward_arg__", "Any")
