"""Codecs of a type. `JSONCodec` and `MsgpackCodec` use msgspec, and `PydanticCodec` uses
pydantic.
"""

from __future__ import annotations

import types
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NewType,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

from headrace._forks import cached_property
from headrace._model.job import A
from headrace.errors import CodecError, describe_error, requiring

NONE = type(None)


def classes(kind: Any) -> tuple[type, ...] | None:
    """Return the classes whose instances are values of type *kind*, or `None` if the type has no
    such classes.

    Only decoding checks the items of a container, and the values of a field.
    """
    while isinstance(kind, NewType) or get_origin(kind) is Annotated:
        kind = kind.__supertype__ if isinstance(kind, NewType) else kind.__origin__
    origin = get_origin(kind)
    found: Any = origin or kind
    if found in {Union, types.UnionType}:
        each = [classes(one) for one in get_args(kind)]
        return (
            None
            if None in each
            else tuple(one for some in each if some is not None for one in some)
        )
    if found is Literal:
        return tuple({value.__class__ for value in get_args(kind)})
    if found is None:
        return (NONE,)
    if (
        found in {Any, object}
        or not isinstance(found, type)
        or getattr(found, "_is_protocol", False)
    ):
        return None
    own: type = dict if hasattr(found, "__total__") else found  # a TypedDict, of whichever module
    return (float, int) if own is float else (own,)


def name(kind: Any) -> str:
    plain = isinstance(kind, type) and get_origin(kind) is None
    return str(kind.__qualname__ if plain else kind)


def require(payload: object, expected: tuple[type, ...] | None, kind: Any) -> None:
    if expected is not None and not isinstance(payload, expected):
        raise TypeError(f"payload must be {name(kind)}, not {type(payload).__name__}")


class MsgspecCodec(Generic[A]):
    """The base of both codecs, with a format of msgspec and the type of the payloads."""

    _format: str
    _extra: str

    @overload
    def __init__(self, type: type[A]) -> None: ...
    @overload
    def __init__(self, type: Any = ...) -> None: ...
    def __init__(self, type: Any = Any) -> None:
        with requiring(self.__class__.__name__, self._extra):
            import msgspec
        made: Any = msgspec.json if self._extra == "json" else msgspec.msgpack
        self.type = type
        self._classes = classes(type)
        self._checked = type is not Any and type is not object
        self._encoder: Any = made.Encoder()
        self._decoder: Any = made.Decoder(type)
        self._invalid: Any = msgspec.DecodeError
        self._info: Any = msgspec.inspect.type_info

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name(self.type) if self._checked else ''})"

    def __reduce__(self) -> tuple[Any, ...]:  # to a child process: msgspec's objects don't pickle
        return type(self), (self.type,)

    @cached_property
    def untyped(self) -> MsgspecCodec[Any]:
        return type(self)() if self._checked else self

    def encode(self, payload: A, /) -> bytes:
        """Encode *payload*. If there is a type, decode it again, so that only readable payloads are
        sent.

        Raises `TypeError` for an instance of another class, `CodecError` for a value that the type,
        or the format, does not hold.
        """
        if self._checked:
            require(payload, self._classes, self.type)
        try:
            data: bytes = self._encoder.encode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CodecError(f"payload does not encode as {self._format}: {error}") from error
        if self._checked:
            try:
                self._decoder.decode(data)
            except Exception as error:  # a field's type, or whatever checks of the user's own raise
                raise CodecError(f"payload is no {name(self.type)}: {error}") from error
        return data

    def holds(self, kind: Any) -> bool:
        return type(self._info(kind)).__name__ != "CustomType"

    def decode(self, data: bytes, /) -> A:
        """Decode *data*. Raises msgspec's own error for another format, or another type than the
        codec's."""
        try:
            value: A = self._decoder.decode(data)
        except self._invalid:
            raise
        except Exception as error:  # nested too deep, or whatever the type's own code raises
            raise CodecError(f"not {self._format} of this type: {describe_error(error)}") from error
        return value


class JSONCodec(MsgspecCodec[A]):
    """JSON by msgspec (extra `json`). `JSONCodec(T)` takes and returns values of type `T`, and
    checks both. `JSONCodec()` takes any value.

    A `T` is a dataclass, an attrs class, a `TypedDict`, a `NamedTuple`, or a `msgspec.Struct`. It
    may be built of these and builtin types, such as `list[Mail]` or `dict[str, int]`. A union is
    named twice, as in `JSONCodec[Mail | None](Mail | None)`.
    """

    _format = "JSON"
    _extra = "json"


class MsgpackCodec(MsgspecCodec[A]):
    """MessagePack by msgspec (extra `msgpack`). It is like `JSONCodec`, but smaller and faster,
    and bytes stay bytes.
    """

    _format = "MessagePack"
    _extra = "msgpack"

    def from_text(self, text: str) -> A:
        """Return the payload that a text stands for, as JSON of the type. Raises msgspec's
        error.
        """
        import msgspec

        return cast("A", msgspec.json.decode(text, type=self.type))


ERRORS_SHOWN = 5  # of one payload, in a message


def described(error: Any) -> str:
    """Describe a pydantic `ValidationError` in one line, without the values, which may be
    secrets."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    each = [
        ": ".join(filter(None, (".".join(map(str, one["loc"])), str(one["msg"])))) for one in errors
    ]
    more = f"; and {len(each) - ERRORS_SHOWN} more" if len(each) > ERRORS_SHOWN else ""
    return "; ".join(each[:ERRORS_SHOWN]) + more


class PydanticCodec(Generic[A]):
    """JSON by pydantic (extra `pydantic`). `PydanticCodec(Model)` takes and returns a `Model`,
    and validates both.

    It takes models, and all other types of pydantic's `TypeAdapter`. Fields are written by their
    aliases. A field that a model does not write comes back as its default. A `SecretStr` without
    your own serializer is written as asterisks.
    """

    @overload
    def __init__(self, type: type[A]) -> None: ...
    @overload
    def __init__(self, type: Any) -> None: ...
    def __init__(self, type: Any) -> None:
        with requiring("PydanticCodec", "pydantic"):
            import pydantic
            import pydantic_core
        self.type = type
        self._classes = classes(type)
        self._adapter: Any = pydantic.TypeAdapter(type)
        self._invalid: Any = pydantic_core.ValidationError

    def __reduce__(self) -> tuple[Any, ...]:  # to a child process: pydantic's adapter is made again
        return type(self), (self.type,)

    def __repr__(self) -> str:
        return f"PydanticCodec({name(self.type)})"

    @cached_property
    def untyped(self) -> AnyJSON:
        return AnyJSON()

    def encode(self, payload: A, /) -> bytes:
        """Encode *payload*, and validate the encoded bytes. Raises `TypeError` for an instance of
        another class, and `CodecError` if serialization or validation fails.
        """
        require(payload, self._classes, self.type)
        try:
            data: bytes = self._adapter.dump_json(
                payload, by_alias=True, round_trip=True, warnings="error"
            )
        except Exception as error:  # errors of pydantic, and of the user's serializers
            raise CodecError(f"payload does not encode as JSON: {describe_error(error)}") from error
        try:
            self.decode(data)
        except CodecError as error:
            raise CodecError(f"payload is no {name(self.type)}: {error}") from error
        return data

    def decode(self, data: bytes, /) -> A:
        """Validate *data*. Raises `CodecError` that names the field and the fault."""
        try:
            value: A = self._adapter.validate_json(data)
        except self._invalid as error:
            raise CodecError(f"no {name(self.type)}: {described(error)}") from None
        except Exception as error:  # errors of the user's validators
            raise CodecError(f"no {name(self.type)}: {describe_error(error)}") from error
        return value


class AnyJSON:
    def encode(self, payload: Any, /) -> bytes:
        import pydantic_core

        try:
            return pydantic_core.to_json(payload, by_alias=True)
        except Exception as error:  # errors of pydantic, and of the user's serializers
            raise CodecError(f"payload does not encode as JSON: {describe_error(error)}") from error

    def decode(self, data: bytes, /) -> Any:
        import pydantic_core

        try:
            return pydantic_core.from_json(data)
        except ValueError as error:
            raise CodecError(f"not JSON: {error}") from None
