"""Exceptions and plain values as JSON, which parent and child exchange. Nothing is pickled.

An exception travels as its class, its arguments and its attributes, by its `__reduce__`. The other
process makes it again if it has the class already. What JSON can't carry becomes its `repr`.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import reduce
from traceback import TracebackException
from typing import Any, cast

from headrace.errors import HeadraceError, describe_error, users

NESTED = 20  # values within values, at most
PLAIN = (type(None), bool, int, float, str)


class Elsewhere(HeadraceError):
    """An exception of a child whose class this process does not have."""


class ChildTraceback(Exception):
    """The traceback of an exception in a child, as the cause of its copy here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def packed(value: Any, depth: int = 0) -> Any:
    """Return a value that `json` can write. `unpacked` reads it."""
    if isinstance(value, PLAIN) and type(value) in PLAIN:
        return value
    if depth > NESTED:
        return repr(value)
    inner = depth + 1
    match value:
        case list() | tuple():
            items = [packed(one, inner) for one in cast("list[Any]", value)]
            made: Any = {"list" if isinstance(value, list) else "tuple": items}
        case Mapping():
            made = {"dict": _pairs(value, inner)}
        case bytes() | bytearray():
            made = {"bytes": base64.b64encode(value).decode()}
        case timedelta():
            made = {"timedelta": [value.days, value.seconds, value.microseconds]}
        case datetime():
            made = {"datetime": value.isoformat()}
        case BaseException():
            made = {"error": told(value, inner)}
        case str():  # of a class of its own
            made = str(value)
        case _:
            made = repr(value)
    return made


def _pairs(mapping: Any, depth: int) -> list[list[Any]]:
    return [[packed(key, depth), packed(one, depth)] for key, one in mapping.items()]


def unpacked(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    (kind, inner) = next(iter(cast("dict[str, Any]", value).items()))
    return READERS[kind](inner)


READERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda items: [unpacked(one) for one in items],
    "tuple": lambda items: tuple(unpacked(one) for one in items),
    "dict": lambda items: {unpacked(key): unpacked(one) for key, one in items},
    "bytes": base64.b64decode,
    "timedelta": lambda parts: timedelta(*parts),
    "datetime": datetime.fromisoformat,
    "error": lambda parts: remade(parts),  # noqa: PLW0108 - it is defined below
}


def told(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """Describe an exception for the other process. Its methods are the user's, and may raise."""
    kind = type(error)
    made: dict[str, Any] = {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "text": describe_error(error),
    }
    try:
        _, args, *state = cast("tuple[Any, ...]", error.__reduce_ex__(2))
        made["args"] = packed(tuple(args), depth)
        made["state"] = packed(state[0] if state else None, depth)
    except Exception:
        made["args"] = packed((str(made["text"]),))
    try:
        whole = TracebackException(kind, error, users(error))
        made["trace"] = "".join(whole.format())
    except Exception:
        made["trace"] = ""
    return made


def remade(parts: Mapping[str, Any]) -> BaseException:
    """Make an exception again. It is an `Elsewhere` with the same words if that fails."""
    try:
        error = _made(parts)
    except Exception:
        error = None
    if error is None or describe_error(error) != parts["text"]:
        error = _worded(parts, None if error is None else type(error))
    if trace := parts.get("trace"):
        error.__cause__ = ChildTraceback(trace)
    return error


def _made(parts: Mapping[str, Any]) -> BaseException | None:
    module = sys.modules.get(parts["module"])
    found: Any = reduce(getattr, parts["name"].split("."), module)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        return None
    args = unpacked(parts["args"])
    try:
        error = found(*args)
    except Exception:  # its `__init__` takes others
        error = found.__new__(found, *args)
        error.args = args
    state = unpacked(parts.get("state"))
    if isinstance(state, dict):
        for name, value in cast("dict[str, Any]", state).items():
            setattr(error, name, value)
    return error


def _worded(parts: Mapping[str, Any], kind: type[BaseException] | None) -> BaseException:
    """Make an exception of a class of this name, with these words. It is a subclass of *kind*."""
    name = parts["name"]
    words = str(parts["text"]).removeprefix(f"{name.rpartition('.')[2]}: ")

    def shown(_: object) -> str:
        return words

    body: dict[str, Any] = {"__str__": shown, "__module__": parts["module"], "__qualname__": name}
    error: BaseException = Elsewhere(words)
    for base in (Elsewhere, kind):
        with suppress(Exception):  # it can't be derived, or made
            derived: Any = type(name.rpartition(".")[2], (cast("Any", base),), body)
            error = derived.__new__(derived, words)
            error.args = (words,)
    return error
