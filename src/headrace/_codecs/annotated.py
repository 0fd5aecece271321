"""JSON of arguments and results by their annotated types, with the standard library only.

A `TypeCodec` knows how the values of one type travel. It is strict both ways. A value of another
type is a `TypeMismatch`, and a type whose values JSON would change is refused when its codec is
made. The record `docs/decisions/values-by-annotation.md` says why no library does this.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
import math
import typing
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial, reduce
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import attrs
from attrs import frozen

from headrace._codecs.formats import described, name
from headrace.errors import ConfigurationError, describe_error

Convert = Callable[[Any], Any]
KINDS: dict[type, str] = {
    NoneType: "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


class TypeMismatch(Exception):
    """A value that is not of its type, with its place and the fault."""

    def __init__(self, wrong: str, at: str = "") -> None:
        super().__init__(f"{at}: {wrong}" if at else wrong)
        self.wrong = wrong
        self.at = at

    def within(self, at: str) -> TypeMismatch:
        return TypeMismatch(self.wrong, at + self.at)


@frozen
class TypeCodec:
    """A pair of functions. *pack* turns a value into JSON's types, and *unpack* turns it back.
    *kinds* are JSON's names of its type.
    """

    pack: Convert
    unpack: Convert
    kinds: frozenset[str]


def misfit(value: Any, kind: Any) -> TypeMismatch:
    return TypeMismatch(f"must be {name(kind)}, not {type(value).__name__}")


def must_be(found: type, data: Any, kind: Any) -> Any:
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


# -- values as they are ----------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value that JSON does not change. Raises `TypeMismatch` for any other value."""
    kind: Any = value.__class__
    if kind is list:
        return [inside(plain, item, number) for number, item in enumerate(value)]
    if kind is dict:
        if all(type(key) is str for key in value):
            return {key: inside(plain, item, key) for key, item in value.items()}
        raise TypeMismatch(
            "a dict whose keys are no str: annotate its type, such as dict[int, str]"
        )
    if kind is float and not math.isfinite(value):
        raise TypeMismatch(f"{value}, which JSON has not")
    if kind not in KINDS:
        raise TypeMismatch(
            f"of type {name(kind)}, which JSON does not give back: annotate it, and it travels by its type"
        )
    return value


def inside(convert: Convert, value: Any, key: Any, place: str = "[{!r}]") -> Any:
    """Convert the part *key* of a value. Raises `TypeMismatch` with its place."""
    try:
        return convert(value)
    except TypeMismatch as wrong:
        raise wrong.within(place.format(key)) from None


PLAIN = TypeCodec(plain, lambda data: data, frozenset(KINDS.values()))

# -- single values ---------------------------------------------------------------------------------


def _scalar(kind: Any, pack: Convert, unpack: Convert, *kinds: str, but: Any = ()) -> TypeCodec:
    expected = tuple(found for found, json_kind in KINDS.items() if json_kind in kinds)

    def packed(value: Any) -> Any:
        if isinstance(value, kind) and not isinstance(value, but):
            return pack(value)
        raise misfit(value, kind)

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
        raise misfit(value, float)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise TypeMismatch("must be a finite number: JSON has no other")
    return number


SCALARS: dict[Any, TypeCodec] = {
    NoneType: _scalar(NoneType, lambda _: None, lambda _: None, "null"),
    bool: _scalar(bool, bool, bool, "boolean"),
    int: _scalar(int, int, int, "integer", but=bool),
    float: TypeCodec(_float, _float, frozenset(("integer", "number"))),
    str: _scalar(str, str.__str__, str, "string"),
    bytes: _scalar(
        bytes,
        lambda v: base64.b64encode(v).decode(),
        partial(base64.b64decode, validate=True),
        "string",
    ),
    datetime: _scalar(datetime, datetime.isoformat, datetime.fromisoformat, "string"),
    date: _scalar(date, date.isoformat, date.fromisoformat, "string", but=datetime),
    time: _scalar(time, time.isoformat, time.fromisoformat, "string"),
    timedelta: _scalar(
        timedelta,
        timedelta.total_seconds,
        lambda data: timedelta(seconds=data),
        "integer",
        "number",
    ),
    UUID: _scalar(UUID, str, UUID, "string"),
    Decimal: _scalar(Decimal, str, Decimal, "string"),
    Path: _scalar(Path, str, Path, "string"),
    PurePath: _scalar(PurePath, str, PurePath, "string"),
}


def enum(kind: type[Enum]) -> TypeCodec:
    """Make the shape of an enum by the values, if these are plain, or else by the names."""
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


LISTS: tuple[Any, ...] = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
BUILTIN_SETS: tuple[Any, ...] = (set, frozenset)
SETS: tuple[Any, ...] = (set, abc.Set, abc.MutableSet)
MADE_OF: dict[Any, Any] = {**dict.fromkeys(LISTS, list), **dict.fromkeys(SETS, set)}
MAPPINGS: tuple[Any, ...] = (dict, abc.Mapping, abc.MutableMapping)


# -- values of several parts -----------------------------------------------------------------------


def _sequence(origin: Any, item: TypeCodec) -> TypeCodec:
    made: Any = MADE_OF.get(origin, origin)
    accepted: Any = made if origin is made else (list, tuple)
    if made in BUILTIN_SETS:
        accepted = BUILTIN_SETS

    def pack(value: Any) -> Any:
        if not isinstance(value, accepted):
            raise misfit(value, made)
        return [inside(item.pack, one, number) for number, one in enumerate(value)]

    def unpack(data: Any) -> Any:
        return made(
            inside(item.unpack, one, number) for number, one in enumerate(must_be(list, data, made))
        )

    return TypeCodec(pack, unpack, frozenset(("array",)))


def _tuple(items: list[TypeCodec]) -> TypeCodec:
    def pack(value: Any) -> Any:
        values: Any = value
        if not isinstance(value, tuple) or len(values) != len(items):
            raise TypeMismatch(f"must be a tuple of {len(items)}")
        return [
            inside(item.pack, part, n)
            for n, (item, part) in enumerate(zip(items, values, strict=True))
        ]

    def unpack(data: Any) -> Any:
        values = must_be(list, data, tuple)
        if len(values) != len(items):
            raise TypeMismatch(f"must be an array of {len(items)}")
        pairs = enumerate(zip(items, values, strict=True))
        return tuple(inside(item.unpack, part, n) for n, (item, part) in pairs)

    return TypeCodec(pack, unpack, frozenset(("array",)))


def _mapping(key: TypeCodec, value: TypeCodec, hint: Any) -> TypeCodec:
    """Make the shape of a mapping. JSON's keys are texts, so numbers are written as such."""
    numbered = set(key.kinds) == {"integer"}
    if not (numbered or key.kinds <= {"string"} or key is PLAIN):
        raise unfit(hint)

    def read_key(text: str) -> Any:
        return key.unpack(_int(text) if numbered else text)

    def pack(found: Any) -> Any:
        mapping: Any = found
        if not isinstance(found, abc.Mapping):
            raise misfit(found, dict)
        if key is PLAIN and not all(type(k) is str for k in mapping):
            raise TypeMismatch(
                "a dict whose keys are no str: annotate their type, such as dict[int, str]"
            )
        return {
            str(inside(key.pack, k, k)): inside(value.pack, item, k) for k, item in mapping.items()
        }

    def unpack(data: Any) -> Any:
        items = must_be(dict, data, dict).items()
        return {inside(read_key, k, k): inside(value.unpack, item, k) for k, item in items}

    return TypeCodec(pack, unpack, frozenset(("object",)))


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TypeMismatch("must be int") from None


@frozen
class Field:
    name: str
    shape: TypeCodec
    optional: bool


def _object(
    kind: Any, fields: list[Field], make: Any, stored: Mapping[str, str] | None = None
) -> TypeCodec:
    """Make the shape of a class with fields. Unknown fields are refused."""
    attributes = {field.name: (stored or {}).get(field.name, field.name) for field in fields}
    required = [field.name for field in fields if not field.optional]
    packs = {field.name: field.shape.pack for field in fields}
    unpacks = {field.name: field.shape.unpack for field in fields}

    def pack(value: Any) -> Any:
        if type(value) is not kind:
            raise misfit(value, kind)
        parts = (
            value if kind is dict else {key: getattr(value, own) for key, own in attributes.items()}
        )
        return _parts(parts, packs, required)

    def unpack(data: Any) -> Any:
        return _tried(
            kind, lambda parts: make(**parts), _parts(must_be(dict, data, kind), unpacks, required)
        )

    return TypeCodec(pack, unpack, frozenset(("object",)))


def _parts(
    parts: Mapping[str, Any], converts: Mapping[str, Convert], required: list[str]
) -> dict[str, Any]:
    if more := parts.keys() - converts.keys():
        raise TypeMismatch(f"has {min(map(repr, more))}, which is not known here")
    if lacking := [key for key in required if key not in parts]:
        raise TypeMismatch(f"lacks {lacking[0]!r}")
    return {key: inside(converts[key], value, key, ".{}") for key, value in parts.items()}


def _fields(kind: Any, making: Making) -> TypeCodec | None:
    """Return the shape of a dataclass, an attrs class, a NamedTuple or a TypedDict. Return `None`
    for any other class.
    """
    made: Any = kind  # type checkers have it narrowed in the end to one of these
    optional: dict[str, bool] = {}
    stored: dict[str, str] = {}  # where arguments of its constructor are kept under another name
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        for field in dataclasses.fields(made):
            if field.init:
                optional[field.name] = not (
                    field.default is missing and field.default_factory is missing
                )
        if set(inspect.signature(made).parameters) - optional.keys():
            raise unfit(made)  # an InitVar, or an __init__ of its own
    elif attrs.has(kind):
        for one in attrs.fields(made):
            if one.init:
                optional[one.alias or one.name] = one.default is not attrs.NOTHING
                stored[one.alias or one.name] = one.name
    elif hasattr(made, "_fields") and hasattr(made, "_field_defaults"):
        optional = {key: key in made._field_defaults for key in made._fields}
    elif hasattr(made, "__required_keys__"):
        hints = get_type_hints(made, include_extras=True)
        fields = [
            _item(key, hint, making, required=key in made.__required_keys__)
            for key, hint in hints.items()
        ]
        return _object(dict, fields, dict)
    else:
        return None
    hints = get_type_hints(made)
    fields = [
        Field(key, shape(hints.get(stored.get(key, key), Any), making), some)
        for key, some in optional.items()
    ]
    return _object(made, fields, kind, stored)


def _item(key: str, hint: Any, making: Making, *, required: bool) -> Field:
    own = get_origin(hint)
    if own in {typing.Required, typing.NotRequired}:
        required = own is typing.Required
        hint = get_args(hint)[0]
    return Field(key, shape(hint, making), not required)


def _of_a_library(kind: Any) -> TypeCodec | None:
    if hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump"):

        def pack(value: Any) -> Any:
            return value.model_dump(mode="json", by_alias=True, round_trip=True)

        def unpack(data: Any) -> Any:
            return kind.model_validate_json(json.dumps(data))

        return _checked(kind, pack, unpack, "object")
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        array = kind.__struct_config__.array_like
        return _checked(
            kind,
            msgspec.to_builtins,
            partial(msgspec.convert, type=kind),
            "array" if array else "object",
        )
    return None


def _checked(kind: Any, pack: Convert, unpack: Convert, json_kind: str) -> TypeCodec:
    def packed(value: Any) -> Any:
        if type(value) is not kind:
            raise misfit(value, kind)
        return _tried(kind, pack, value)

    return TypeCodec(packed, partial(_tried, kind, unpack), frozenset((json_kind,)))


def _tried(kind: Any, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except Exception as error:  # the library's own, or checks of the class
        of_pydantic = hasattr(error, "error_count")
        raise TypeMismatch(
            f"no {name(kind)}: {described(error) if of_pydantic else describe_error(error)}"
        ) from None


def _union(hint: Any, members: list[TypeCodec]) -> TypeCodec:
    """Make the shape of a union. Its members must be of different kinds in JSON, as only the kind
    tells them apart."""
    by_kind: dict[str, TypeCodec] = {}
    whole = any(member is SCALARS[int] for member in members)
    for member in members:
        for kind in member.kinds - (
            {"integer"} if whole and member is SCALARS[float] else set[str]()
        ):
            if kind in by_kind:
                raise ConfigurationError(
                    f"{name(hint)}: JSON does not tell its members apart, as two of them are written alike; "
                    "take one type that says which it is, such as a dataclass"
                )
            by_kind[kind] = member

    def pack(value: Any) -> Any:
        wrong: list[TypeMismatch] = []
        for member in members:
            try:
                return member.pack(value)
            except TypeMismatch as error:
                wrong.append(error)
        inner = [one for one in wrong if one.at]
        raise inner[0] if inner else misfit(value, hint)

    def unpack(data: Any) -> Any:
        if (kind := KINDS[type(data)]) not in by_kind:
            raise TypeMismatch(f"must be {name(hint)}, not {kind}")
        return by_kind[kind].unpack(data)

    return TypeCodec(pack, unpack, frozenset(by_kind))


# -- from a type to its shape ----------------------------------------------------------------------

Making = dict[Any, TypeCodec]  # classes whose shapes are being made: they may contain themselves


def shape(hint: Any, making: Making | None = None) -> TypeCodec:
    """Return the codec of a type. Raises `ConfigurationError` for a type without one, and
    `NameError` for a type that only type checkers know.
    """
    hint = _bare(hint)
    if hint in {Any, object}:
        return PLAIN
    making = {} if making is None else making
    origin = get_origin(hint) or hint
    args = get_args(hint)
    if origin in {Union, UnionType}:
        return _union(hint, [shape(one, making) for one in args])
    if origin is Literal:
        return literal(args)
    found = _container(origin, args, hint, making) or SCALARS.get(origin)
    if found is None and isinstance(origin, type):
        found = _class(origin, making)
    if found is None:
        raise unfit(hint)
    return found


own_shape = lru_cache(256)(shape)  # by a value's own type


def either(members: Sequence[Any]) -> Any:
    return reduce(lambda one, other: one | other, members)


def _bare(hint: Any) -> Any:
    while True:
        if hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif get_origin(hint) is typing.Annotated:
            hint = hint.__origin__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif isinstance(hint, TypeVar):
            hint = hint.__bound__ or (either(hint.__constraints__) if hint.__constraints__ else Any)
        else:
            return NoneType if hint is None else hint


def _container(origin: Any, args: tuple[Any, ...], hint: Any, making: Making) -> TypeCodec | None:
    if origin is tuple and args and args[-1] is not Ellipsis:
        return _tuple([shape(one, making) for one in args])
    if origin in {*LISTS, *SETS, frozenset, tuple}:
        return _sequence(origin, shape(args[0], making) if args else PLAIN)
    if origin in MAPPINGS:
        key, value = (shape(one, making) for one in args or (Any, Any))
        return _mapping(key, value, hint)
    return None


def _class(kind: Any, making: Making) -> TypeCodec | None:
    if kind in making:
        return making[kind]
    if issubclass(kind, Enum):
        return enum(kind)
    later: list[TypeCodec] = []

    def pack(value: Any) -> Any:
        return later[0].pack(value)

    def unpack(data: Any) -> Any:
        return later[0].unpack(data)

    making[kind] = TypeCodec(pack, unpack, frozenset(("object",)))
    later += filter(None, [_of_a_library(kind) or _fields(kind, making)])
    return later[0] if later else None


def loose(value: Any) -> Any:
    """Return the JSON form of a value that has no annotation and is only read. The value's own type
    decides."""
    kind: Any = value.__class__
    if kind in {list, tuple, set, frozenset}:
        return [inside(loose, item, number) for number, item in enumerate(value)]
    if kind is dict:
        return {str(key): inside(loose, item, key) for key, item in value.items()}
    return plain(value) if kind in KINDS else own_shape(kind).pack(value)


LOOSE = TypeCodec(loose, lambda data: data, PLAIN.kinds)
