"""Payload codecs. Here are the protocol and the default, raw bytes. The codecs of the extras are in
`_codecs`. No codec uses pickle.
"""

from __future__ import annotations

import functools
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace._model.flow import FanOut, Next
from headrace._model.job import A
from headrace.errors import CodecError, Verdict


class Codec(Protocol[A]):
    """A codec turns payloads of type `T` into bytes and back. It is a `Codec[T]`, and a bare
    `Codec` takes any type.

    `encode` may raise any error for a value that is no `T`. No call is sent then. `decode` may
    raise any error for bytes that it can't read. The job is then quarantined with its bytes. If it
    raises `RetryLater`, the job is delayed. An optional attribute `untyped` is the codec of the
    same format for values of any type. It serves results, and follow-ups in other queues. An
    optional method `holds(type) -> bool` lets a worker warn of annotated results that it can't
    encode. An optional method `from_text(str) -> T` reads payloads that are typed on the pages.
    Without it `decode` reads them in UTF-8.
    """

    def encode(self, payload: A, /) -> bytes:
        """Return the bytes to store."""
        ...

    def decode(self, data: bytes, /) -> A:
        """Return the payload that a handler gets."""
        ...


def chosen(codec: Codec[Any] | None) -> Codec[Any]:
    if codec is None:
        return BytesCodec()
    if isinstance(codec, type) or not all(
        callable(getattr(codec, verb, None)) for verb in ("encode", "decode")
    ):
        raise TypeError(
            f"codec must be an object with encode() and decode(), such as JSONCodec(), not {codec!r:.100}"
        )
    return codec


# A codec may have more than `Codec` declares, so these functions take, and return, any object.


def untyped(codec: Any) -> Any:
    """Return the codec of the same format for values of any type. It is *codec* itself if it has no
    other."""
    return getattr(codec, "untyped", codec)


def from_text(codec: Any, text: str) -> Any:
    read = getattr(codec, "from_text", None)
    return codec.decode(text.encode()) if read is None else read(text)


def inline(codec: Any) -> Any:
    """Return the codec for payloads that stay in the queue, as many jobs of a schedule share
    them."""
    return getattr(codec, "inline", codec)


def bound(codec: Any, queue: str, namespace: str) -> Any:
    return codec.bound(str(queue), namespace) if binds(codec) else codec


def of_job(codec: Any, id: str | None) -> Any:
    return codec if id is None or not binds(codec) else codec.of(id)


def grouped(codec: Any) -> Any:
    """Return *codec* for payloads of a flow, which the server moves between queues of a group."""
    return codec.grouped() if binds(codec) else codec


def binds(codec: Any) -> bool:
    return bool(getattr(codec, "binds", False))


class Keeper(Protocol):
    """A codec that keeps payloads elsewhere, until their jobs are done."""

    def ticket(self, data: bytes) -> str | None:
        """Return the name under which a payload is kept. It is `None` for one that is in *data*
        itself."""
        ...

    def discard(self, ticket: str) -> None: ...


def keeper(codec: Any) -> Keeper | None:
    return codec if getattr(codec, "keeps", False) else None


def as_bytes(data: object) -> bytes:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)  # pyright: ignore[reportUnknownArgumentType]
    raise CodecError(f"the codec's encode() gave a {type(data).__name__}, not bytes")


class BytesCodec:
    """The default codec. Bytes pass untouched, and a `str` is encoded as UTF-8."""

    def encode(self, payload: Any) -> bytes:
        """Return *payload* as bytes. Raises `TypeError` unless it is bytes-like or `str`,
        `CodecError` for a lone surrogate.
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
        return data

    def holds(self, kind: Any) -> bool:
        return not isinstance(kind, type) or issubclass(kind, (bytes, bytearray, memoryview, str))


NO_RESULTS = (type(None), Verdict, Next, FanOut)  # types that end a job, but are not its result


def warn_of_results(function: Callable[..., Any], codec: Codec, stacklevel: int) -> None:
    """Warn if *codec* can't encode the annotated result of *function*, as its jobs would have no
    results."""
    holds: Any = getattr(untyped(codec), "holds", None)
    if not callable(holds):
        return
    for kind in annotated_results(function):
        try:
            held = holds(kind)
        except Exception:  # a type that is only known to type checkers
            held = True
        if not held:
            name = getattr(function, "__qualname__", repr(function))
            what = getattr(kind, "__name__", repr(kind))
            text = (
                f"handler {name} returns {what}, which {type(codec).__name__} can't encode: its jobs would complete "
                "without a result; give the handler a codec that can, such as codec=JSONCodec(), or return bytes, str "
                "or None"
            )
            warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)


def annotated_results(function: Callable[..., Any]) -> list[Any]:
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__annotations__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - the method itself
    try:
        hint = types.SimpleNamespace(__annotations__={"return": function.__annotations__["return"]})
        whole = typing.get_type_hints(hint, getattr(function, "__globals__", {}))["return"]
        return list(dict.fromkeys(_members(whole)))
    except Exception:  # none; or of a name that is known to type checkers only
        return []


def _members(kind: Any) -> Iterator[Any]:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        for one in typing.get_args(kind):
            yield from _members(one)
    elif origin is typing.Annotated:
        yield from _members(typing.get_args(kind)[0])
    elif hasattr(kind, "__supertype__"):
        yield from _members(kind.__supertype__)
    else:
        plain = kind if origin is None else origin
        if (
            isinstance(plain, type)
            and plain not in (object, type, Any)
            and not issubclass(plain, NO_RESULTS)
        ):
            yield plain
