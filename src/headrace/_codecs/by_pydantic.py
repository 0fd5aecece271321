"""`PydanticCodec`: payloads that pydantic validates."""

from __future__ import annotations

from typing import Any, Generic, overload

from headrace._codecs.shapes import classes, name, require
from headrace._forks import cached_property
from headrace._model.job import A
from headrace.errors import CodecError, ConfigurationError, describe_error, without_extra

ERRORS_SHOWN = 5  # of one payload, in a message


def described(error: Any) -> str:
    """Describe a pydantic `ValidationError` in one line, without the values: they may be secrets."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    each = [": ".join(filter(None, (".".join(map(str, one["loc"])), str(one["msg"])))) for one in errors]
    more = f"; and {len(each) - ERRORS_SHOWN} more" if len(each) > ERRORS_SHOWN else ""
    return "; ".join(each[:ERRORS_SHOWN]) + more


class PydanticCodec(Generic[A]):
    """JSON by pydantic (extra `pydantic`): `PydanticCodec(Model)` takes and gives `Model`, validated both ways.

    It takes models, and all other types of pydantic's `TypeAdapter`. Fields are written by their aliases. A field that
    a model does not write comes back as its default; a `SecretStr` without a serializer of yours is written as
    asterisks.
    """

    @overload
    def __init__(self, type: type[A]) -> None: ...
    @overload
    def __init__(self, type: Any) -> None: ...
    def __init__(self, type: Any) -> None:
        try:
            import pydantic
            import pydantic_core
        except ImportError:
            raise ConfigurationError(without_extra("PydanticCodec", "pydantic")) from None
        self.type = type
        self._classes = classes(type)
        self._adapter: Any = pydantic.TypeAdapter(type)
        self._invalid: Any = pydantic_core.ValidationError

    def __repr__(self) -> str:
        return f"PydanticCodec({name(self.type)})"

    @cached_property
    def untyped(self) -> AnyJSON:
        """The codec of the same format for values of any type: results, and follow-ups for other queues."""
        return AnyJSON()

    def encode(self, payload: A, /) -> bytes:
        """Encode *payload*, and validate the encoded bytes. Raises `TypeError` for an instance of another class, and
        `CodecError` if serialization or validation fails.
        """
        require(payload, self._classes, self.type)
        try:
            data: bytes = self._adapter.dump_json(payload, by_alias=True, round_trip=True, warnings="error")
        except Exception as error:  # pydantic's own, and what serializers of the user's raise
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
        except Exception as error:  # what validators of the user's raise
            raise CodecError(f"no {name(self.type)}: {describe_error(error)}") from error
        return value


class AnyJSON:
    """JSON of any value that pydantic serializes, models among them."""

    def encode(self, payload: Any, /) -> bytes:
        """Encode *payload* as JSON."""
        import pydantic_core

        try:
            return pydantic_core.to_json(payload, by_alias=True)
        except Exception as error:  # pydantic's own, and what serializers of the user's raise
            raise CodecError(f"payload does not encode as JSON: {describe_error(error)}") from error

    def decode(self, data: bytes, /) -> Any:
        """Decode JSON. Raises `CodecError` for anything else."""
        import pydantic_core

        try:
            return pydantic_core.from_json(data)
        except ValueError as error:
            raise CodecError(f"not JSON: {error}") from None
