"""The recorded values of steps and signals. A step's annotation or the queue's codec encodes
them.

A recorded value begins with one byte. It is `j` for JSON, `b` for bytes, or `c` for the output of
the queue's codec, which takes any value. All of them pass through the queue's codec, so that they
are compressed, sealed or kept elsewhere like payloads. A sender that does not know the codec, such
as the command line, writes `j`. Codecs that read JSON themselves read it as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from attrs import evolve, frozen

from headrace._codecs.annotated import PLAIN, TypeCodec, TypeMismatch, dumped, loaded
from headrace._codecs.signature import Signature, unreadable
from headrace._model.codec import BytesCodec, Codec, as_bytes, untyped
from headrace._model.state import JobState
from headrace._model.steps import STEP_BYTES, Step
from headrace.errors import CodecError, ConfigurationError, describe_error

JSON = b"j"
BYTES = b"b"
OBJECT = b"c"


@frozen
class Recorded:
    """Writes and reads recorded values with the codec of a queue. *what* names a value in
    messages.
    """

    codec: Codec[Any]

    def check(self, what: str, function: Callable[..., Any]) -> None:
        """Raise `ConfigurationError` if the annotation of a step's function names something that
        can't be found."""
        try:
            _shape(function)
        except (NameError, AttributeError) as error:
            raise ConfigurationError(f"{what}: {unreadable(_plain(function), error)}") from None

    def encoded(
        self, what: str, value: Any, function: Callable[..., Any] | None = None
    ) -> bytes | None:
        """Write a value of *function*, where `None` stands for no value.

        Raises `CodecError` for a value that can't be written, `ValueError` for one of more than 64
        KiB.
        """
        if value is None:
            return None
        try:
            data = _written(
                untyped(self.codec), value, None if function is None else _shape(function)
            )
        except (TypeMismatch, TypeError, CodecError) as wrong:
            raise CodecError(
                f"{what}: its value can't be recorded: {describe_error(wrong)}"
            ) from wrong
        if len(data) > STEP_BYTES:
            raise ValueError(
                f"{what}: its value has {len(data):,} bytes, and {STEP_BYTES:,} can be recorded: store it elsewhere "
                "and return a reference, or give the queue an Offloaded codec"
            )
        return data

    def decoded(
        self, what: str, data: bytes | None, function: Callable[..., Any] | None = None
    ) -> Any:
        """Read a recorded value. Raises `CodecError` if it does not fit *function* as it is in this
        program."""
        if data is None:
            return None
        try:
            kind = data[:1]
            value = untyped(self.codec).decode(data[1:])
            if kind == BYTES:
                return value
            read = loaded(value) if kind == JSON and isinstance(value, bytes) else value
            shape = None if function is None else _shape(function)
            return read if shape is None else shape.unpack(read)
        except Exception as error:
            raise CodecError(
                f"{what}: its recorded value does not decode: {describe_error(error)}"
            ) from error

    def result(self, what: str, data: bytes | None, codec: Codec[Any], decode: Any) -> Any:
        """Read the result of a child, with the codec of its queue and then with its task's
        *decode*. Raises `CodecError`."""
        return None if data is None else result_of(f"the result of {what}", data, codec, decode)


def result_of(what: str, data: bytes, codec: Codec[Any], decode: Any) -> Any:
    """Read a result with a queue's codec and then with *decode*. Raises `CodecError`."""
    try:
        read = untyped(codec).decode(data)
        return read if decode is None else decode(read)
    except Exception as error:
        raise CodecError(f"{what} does not decode: {describe_error(error)}") from error


def with_results(codec: Codec[Any], state: JobState[Any]) -> JobState[Any]:
    """Read the results of a job's steps. A result that only the code that wrote it can read becomes
    `None`."""
    if not state.steps:
        return state
    read = Recorded(codec)
    return evolve(
        state,
        steps=tuple(evolve(step, result=_shown(read, step)) for step in state.steps),
    )


def _shown(read: Recorded, step: Step) -> Any:
    if step.child is None or step.result is None:
        return _readable(read, step.result)
    if step.state != "done":
        return step.result.decode("utf-8", "replace")
    try:
        return read.result("child", step.result, read.codec, loaded)
    except CodecError:
        return step.result


def _readable(read: Recorded, value: bytes | None) -> Any:
    try:
        return read.decoded("step", value)
    except CodecError:
        return None


def _written(codec: Codec[Any], value: Any, shape: TypeCodec | None) -> bytes:
    if not _of_bytes(codec):
        return OBJECT + as_bytes(codec.encode(value if shape is None else shape.pack(value)))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return BYTES + as_bytes(codec.encode(value))
    return JSON + as_bytes(codec.encode(dumped((shape or PLAIN).pack(value))))


def _of_bytes(codec: Any) -> bool:
    while not isinstance(codec, BytesCodec):
        codec = getattr(codec, "codec", None)
        if codec is None:
            return False
    return True


@lru_cache(maxsize=1024)
def _annotated(function: Callable[..., Any]) -> TypeCodec | None:
    try:
        hints: dict[str, Any] = getattr(function, "__annotations__", None) or {}
        return Signature(function, "").answer if "return" in hints else None
    except (ConfigurationError, TypeError, ValueError):
        return None  # of a type that JSON can't carry: the codec may


def _shape(function: Callable[..., Any]) -> TypeCodec | None:
    """Return the shape of a function's results by its annotation. Return `None` if it has none that
    JSON can carry."""
    try:
        return _annotated(_plain(function))
    except TypeError:  # it can't be hashed
        return None


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    return getattr(function, "__func__", function)
