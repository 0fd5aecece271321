"""Signatures that name each keyword argument, where the code takes `**options` of a `TypedDict`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def spelled_out(kind: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Show what a function takes as `**options` in its signature: each of *defaults* by its name, annotated as in
    *kind*, a `TypedDict`. The function itself is left as it is.
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
