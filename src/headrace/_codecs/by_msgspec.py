"""`JSONCodec` and `MsgpackCodec`: values of a type, by msgspec."""

from __future__ import annotations

from typing import Any, Generic, overload

from headrace._codecs.shapes import classes, name, require
from headrace._forks import cached_property
from headrace._model.job import A
from headrace.errors import CodecError, ConfigurationError, describe_error, without_extra


class MsgspecCodec(Generic[A]):
    """The base of both: a format of msgspec, and the type of the payloads."""

    _format: str
    _extra: str

    @overload
    def __init__(self, type: type[A]) -> None: ...
    @overload
    def __init__(self, type: Any = ...) -> None: ...
    def __init__(self, type: Any = Any) -> None:
        try:
            import msgspec
        except ImportError:
            raise ConfigurationError(without_extra(self.__class__.__name__, self._extra)) from None
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

    @cached_property
    def untyped(self) -> MsgspecCodec[Any]:
        """The codec of the same format for values of any type: results, and follow-ups for other queues."""
        return type(self)() if self._checked else self

    def encode(self, payload: A, /) -> bytes:
        """Encode *payload*. If there is a type, decode it again, so that only readable payloads are sent.

        Raises `TypeError` for an instance of another class, `CodecError` for a value that the type, or the format, does
        not hold.
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
        """Tell whether the format holds payloads of a type."""
        return type(self._info(kind)).__name__ != "CustomType"

    def decode(self, data: bytes, /) -> A:
        """Decode *data*. Raises msgspec's own error for another format, or another type than the codec's."""
        try:
            value: A = self._decoder.decode(data)
        except self._invalid:
            raise
        except Exception as error:  # nested too deep, or whatever the type's own code raises
            raise CodecError(f"not {self._format} of this type: {describe_error(error)}") from error
        return value


class JSONCodec(MsgspecCodec[A]):
    """JSON by msgspec (extra `json`): `JSONCodec(T)` takes and gives `T`, checked both ways; `JSONCodec()` any.

    A `T` is a dataclass, an attrs class, a `TypedDict`, a `NamedTuple`, a `msgspec.Struct`, or built of these and
    builtin types: `list[Mail]`, `dict[str, int]`. A union is named twice: `JSONCodec[Mail | None](Mail | None)`.
    """

    _format, _extra = "JSON", "json"


class MsgpackCodec(MsgspecCodec[A]):
    """MessagePack by msgspec (extra `msgpack`): like `JSONCodec`, smaller and faster, and bytes stay bytes."""

    _format, _extra = "MessagePack", "msgpack"
