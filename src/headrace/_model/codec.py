"""Payload codecs: raw bytes by default, JSON by msgspec, a protocol for your own. Never pickle."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.errors import CodecError, ConfigurationError, without_extra


class Codec(Protocol):
    """A codec turns payloads into bytes and back. `decode` may raise anything for bytes it can't read."""

    def encode(self, payload: Any) -> bytes:
        """Return the bytes to store."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the payload that a handler gets."""
        ...


def chosen(codec: Codec | None) -> Codec:
    """Return *codec*, or the default for `None`. Raises `TypeError` for an object that is no codec."""
    if codec is None:
        return BytesCodec()
    if isinstance(codec, type) or not all(callable(getattr(codec, verb, None)) for verb in ("encode", "decode")):
        raise TypeError(f"codec must be an object with encode() and decode(), such as JSONCodec(), not {codec!r:.100}")
    return codec


def as_bytes(data: object) -> bytes:
    """Return what a codec's `encode` gave as bytes. Raises `CodecError` for anything else."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)  # pyright: ignore[reportUnknownArgumentType]
    raise CodecError(f"the codec's encode() gave a {type(data).__name__}, not bytes")


class BytesCodec:
    """The default: bytes pass untouched, a `str` is encoded as UTF-8."""

    def encode(self, payload: Any) -> bytes:
        """Return *payload* as bytes. Raises `TypeError` unless it is bytes-like or `str`, `CodecError` for a lone
        surrogate.
        """
        if type(payload) is bytes:
            return payload
        if isinstance(payload, str):
            try:
                return payload.encode()
            except UnicodeEncodeError as error:
                raise CodecError(f"payload is not valid Unicode: {error}") from None
        if isinstance(payload, (bytes, bytearray, memoryview)):
            return bytes(payload)  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(
            f"payload must be bytes or str, not {type(payload).__name__}; "
            "give the queue a codec (codec=JSONCodec()) for other objects"
        )

    def decode(self, data: bytes) -> bytes:
        """Return *data* as it is."""
        return data


class JSONCodec:
    """JSON by msgspec (extra `json`). With *type*, payloads are checked against it and built as it."""

    def __init__(self, type: Any = Any) -> None:
        try:
            import msgspec
        except ImportError:
            raise ConfigurationError(without_extra("JSONCodec", "json")) from None
        self._encoder = msgspec.json.Encoder()
        self._decoder: Any = msgspec.json.Decoder(type)

    def encode(self, payload: Any) -> bytes:
        """Encode as compact UTF-8 JSON. Raises `CodecError` if JSON cannot hold *payload*."""
        try:
            return self._encoder.encode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CodecError(f"payload does not encode as JSON: {error}") from error

    def decode(self, data: bytes) -> Any:
        """Decode JSON. Raises msgspec's own error for bytes that are not JSON, or not of the codec's *type*."""
        return self._decoder.decode(data)
