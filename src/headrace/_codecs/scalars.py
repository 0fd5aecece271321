"""JSON of single values by their types, with the standard library only; the error for a value that does not fit."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from types import NoneType
from typing import Any
from uuid import UUID

from attrs import frozen

from headrace._codecs.shapes import name
from headrace.errors import ConfigurationError, describe_error

KINDS: dict[type, str] = {
    NoneType: "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
}  # fmt: skip


class TypeMismatch(Exception):
    """A value that is not of its type: its place, and the fault."""

    def __init__(self, wrong: str, at: str = "") -> None:
        super().__init__(f"{at}: {wrong}" if at else wrong)
        self.wrong, self.at = wrong, at

    def within(self, at: str) -> TypeMismatch:
        """Say that it is in a value at *at*."""
        return TypeMismatch(self.wrong, at + self.at)


@frozen
class TypeCodec:
    """Pair of functions: *pack* turns a value into JSON's types, *unpack* back. *kinds*: JSON's names of it."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    kinds: frozenset[str]


def must_be(found: type, data: Any, kind: Any) -> Any:
    """Return *data* if JSON's type of it is *found*, for a value of type *kind*. Raises `TypeMismatch`."""
    if not isinstance(data, found):
        raise TypeMismatch(f"must be {name(kind)}, not {KINDS[type(data)]}")
    return data


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def dumped(packed: Any) -> bytes:
    """Write JSON. Raises `TypeMismatch` for text that is no Unicode, or values nested too deep."""
    try:
        return _ENCODER.encode(packed).encode()
    except (ValueError, RecursionError) as error:
        raise TypeMismatch(describe_error(error)) from None


def loaded(data: bytes) -> Any:
    """Read JSON. Raises `TypeMismatch` for anything else."""
    try:
        return _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise TypeMismatch(f"no JSON: {describe_error(error)}") from None


# -- values as they are --------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value that JSON gives back as it was. Raises `TypeMismatch` for any other."""
    kind: Any = value.__class__
    if kind is list:
        return [inside(plain, item, f"[{number}]") for number, item in enumerate(value)]
    if kind is dict:
        if all(type(key) is str for key in value):
            return {key: inside(plain, item, f"[{key!r}]") for key, item in value.items()}
        raise TypeMismatch("a dict whose keys are no str: annotate its type, such as dict[int, str]")
    if kind is float and not math.isfinite(value):
        raise TypeMismatch(f"{value}, which JSON has not")
    if kind not in KINDS:
        raise TypeMismatch(
            f"of type {name(kind)}, which JSON does not give back: annotate it, and it travels by its type"
        )
    return value


def inside(convert: Callable[[Any], Any], value: Any, at: str) -> Any:
    try:
        return convert(value)
    except TypeMismatch as wrong:
        raise wrong.within(at) from None


PLAIN = TypeCodec(plain, lambda data: data, frozenset(KINDS.values()))
# -- single values -------------------------------------------------------------------------------------


def _scalar(
    kind: Any, pack: Callable[[Any], Any], unpack: Callable[[Any], Any], *kinds: str, but: Any = ()
) -> TypeCodec:
    """Make the shape of a class whose values are one number or text each."""
    expected = tuple(found for found, json_kind in KINDS.items() if json_kind in kinds)

    def packed(value: Any) -> Any:
        if isinstance(value, kind) and not isinstance(value, but):
            return pack(value)
        raise TypeMismatch(f"must be {name(kind)}, not {type(value).__name__}")

    def unpacked(data: Any) -> Any:
        if type(data) not in expected:
            raise TypeMismatch(f"must be {name(kind)}, not {KINDS[type(data)]}")
        try:
            return unpack(data)
        except (ValueError, ArithmeticError) as error:
            raise TypeMismatch(f"must be {name(kind)}: {describe_error(error)}") from None

    return TypeCodec(packed, unpacked, frozenset(kinds))


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeMismatch(f"must be float, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise TypeMismatch("must be a finite number: JSON has no other")
    return number


def _text(value: str) -> str:
    return str.__str__(value)


SCALARS: dict[Any, TypeCodec] = {
    NoneType: _scalar(NoneType, lambda _: None, lambda _: None, "null"),
    bool: _scalar(bool, bool, bool, "boolean"),
    int: _scalar(int, int, int, "integer", but=bool),
    float: TypeCodec(_float, _float, frozenset(("integer", "number"))),
    str: _scalar(str, _text, str, "string"),
    bytes: _scalar(bytes, lambda v: base64.b64encode(v).decode(), partial(base64.b64decode, validate=True), "string"),
    datetime: _scalar(datetime, datetime.isoformat, datetime.fromisoformat, "string"),
    date: _scalar(date, date.isoformat, date.fromisoformat, "string", but=datetime),
    time: _scalar(time, time.isoformat, time.fromisoformat, "string"),
    timedelta: _scalar(timedelta, timedelta.total_seconds, lambda data: timedelta(seconds=data), "integer", "number"),
    UUID: _scalar(UUID, str, UUID, "string"),
    Decimal: _scalar(Decimal, str, Decimal, "string"),
    Path: _scalar(Path, str, Path, "string"),
    PurePath: _scalar(PurePath, str, PurePath, "string"),
}


def enum(kind: type[Enum]) -> TypeCodec:
    """Make the shape of an enum: by the values, if these are plain, or else by the names."""
    values: list[Any] = [member.value for member in kind]
    kinds = {KINDS.get(value.__class__, "") for value in values}
    if kinds <= {"boolean", "integer", "number", "string"}:
        return _scalar(kind, lambda member: member.value, kind, *kinds)
    return _scalar(kind, lambda member: member.name, lambda data: _member(kind, data), "string")


def _member(kind: type[Enum], data: str) -> Enum:
    if data not in kind.__members__:
        raise ValueError(f"no member {data!r}")
    return kind[data]


def unfit(hint: Any) -> ConfigurationError:
    """Say that values of a type do not travel."""
    return ConfigurationError(
        f"{name(hint)} does not travel as JSON: take what it is made of, such as its id, or a dataclass"
    )


def literal(values: tuple[Any, ...]) -> TypeCodec:
    for value in values:
        if type(value) not in KINDS:
            raise unfit(f"Literal[{value!r}]")

    def one(value: Any) -> Any:
        if not any(value == known and type(value) is type(known) for known in values):
            raise TypeMismatch(f"must be {' or '.join(map(repr, values))}, not {value!r:.100}")
        return value

    return TypeCodec(one, one, frozenset(KINDS[type(value)] for value in values))
