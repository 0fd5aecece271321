"""Payload codecs: the protocol, and the default, raw bytes. The codecs of the extras are in `_codecs`. Never pickle."""

from __future__ import annotations

from typing import Any, Protocol

from headrace._model.payload import A
from headrace.errors import CodecError


class Codec(Protocol[A]):
    """A codec turns payloads of type `T` into bytes and back: `Codec[T]`; a bare `Codec` is any.

    `encode` may raise any error for a value that is no `T`: nothing is sent then. `decode` may raise any error for
    bytes that it can't read: the job is put aside with its bytes; or `RetryLater`, which delays the job. It may have an
    attribute `untyped`: the codec of the same format for values of any type, for results, and for follow-ups in other
    queues. By a method `holds(type) -> bool`, if it has one, a worker warns of annotated results that it can't encode.
    """

    def encode(self, payload: A, /) -> bytes:
        """Return the bytes to store."""
        ...

    def decode(self, data: bytes, /) -> A:
        """Return the payload that a handler gets."""
        ...


def chosen(codec: Codec[Any] | None) -> Codec[Any]:
    """Return *codec*, or the default for `None`. Raises `TypeError` for an object that is no codec."""
    if codec is None:
        return BytesCodec()
    if isinstance(codec, type) or not all(callable(getattr(codec, verb, None)) for verb in ("encode", "decode")):
        raise TypeError(f"codec must be an object with encode() and decode(), such as JSONCodec(), not {codec!r:.100}")
    return codec


def untyped(codec: Codec[Any]) -> Codec[Any]:
    """Return the codec of the same format for values of any type; *codec* itself if it has no other."""
    found: Codec[Any] = getattr(codec, "untyped", codec)
    return found


def inline(codec: Codec[Any]) -> Codec[Any]:
    """Return the codec for payloads that stay in the queue, as many jobs share them: a schedule's."""
    found: Codec[Any] = getattr(codec, "inline", codec)
    return found


def bound(codec: Codec[Any], queue: str, namespace: str) -> Codec[Any]:
    """Return *codec* for the payloads of one queue; *codec* itself if it binds none."""
    if not binds(codec):
        return codec
    binding: Any = codec
    made: Codec[Any] = binding.bound(str(queue), namespace)
    return made


def of_job(codec: Codec[Any], id: str | None) -> Codec[Any]:
    """Return *codec* for the payload of the job *id*; *codec* itself if it binds none, or the job has no id."""
    if id is None or not binds(codec):
        return codec
    binding: Any = codec
    made: Codec[Any] = binding.of(id)
    return made


def grouped(codec: Codec[Any]) -> Codec[Any]:
    """Return *codec* for payloads that the server moves between queues of a group: a flow's."""
    if not binds(codec):
        return codec
    binding: Any = codec
    made: Codec[Any] = binding.grouped()
    return made


def binds(codec: Any) -> bool:
    """Tell whether *codec* binds payloads to their queues."""
    return bool(getattr(codec, "binds", False))


class Keeper(Protocol):
    """A codec that keeps payloads elsewhere, until their jobs are done."""

    def ticket(self, data: bytes) -> str | None:
        """Return the name under which a payload is kept; `None` for one that is in *data* itself."""
        ...

    def discard(self, ticket: str) -> None:
        """Delete the payload of this name: its job is done."""
        ...


def keeper(codec: Any) -> Keeper | None:
    """Return *codec* if it keeps payloads elsewhere."""
    found: Keeper | None = codec if getattr(codec, "keeps", False) else None
    return found


def as_bytes(data: object) -> bytes:
    """Return the answer of a codec's `encode` as bytes. Raises `CodecError` for anything else."""
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

    def holds(self, kind: Any) -> bool:
        """Tell whether payloads of a type can be encoded."""
        return not isinstance(kind, type) or issubclass(kind, (bytes, bytearray, memoryview, str))
