"""The classes of a type: a payload must be an instance of one before it is encoded."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

NONE = type(None)


def classes(kind: Any) -> tuple[type, ...] | None:
    """Return the classes of which values of type *kind* are instances; `None` if it does not tell.

    Only decoding checks the items of a container, and the values of a field.
    """
    while isinstance(kind, NewType) or get_origin(kind) is Annotated:
        kind = kind.__supertype__ if isinstance(kind, NewType) else kind.__origin__
    origin = get_origin(kind)
    found: Any = origin or kind
    if found in {Union, types.UnionType}:
        each = [classes(one) for one in get_args(kind)]
        return None if None in each else tuple(one for some in each if some is not None for one in some)
    if found is Literal:
        return tuple({value.__class__ for value in get_args(kind)})
    if found is None:
        return (NONE,)
    if found in {Any, object} or not isinstance(found, type) or getattr(found, "_is_protocol", False):
        return None
    own: type = dict if hasattr(found, "__total__") else found  # a TypedDict, of whichever module
    return (float, int) if own is float else (own,)


def name(kind: Any) -> str:
    """Spell *kind* in a message."""
    plain = isinstance(kind, type) and get_origin(kind) is None
    return str(kind.__qualname__ if plain else kind)


def require(payload: object, expected: tuple[type, ...] | None, kind: Any) -> None:
    """Raise `TypeError` unless *payload* is an instance of one of the classes *expected* of *kind*."""
    if expected is not None and not isinstance(payload, expected):
        raise TypeError(f"payload must be {name(kind)}, not {type(payload).__name__}")
