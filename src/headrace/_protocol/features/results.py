"""The results that completions keep, and the ends of jobs, as operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, Literal, TypeVar

from attrs import evolve

from headrace._model import checks
from headrace._model.codec import untyped
from headrace._protocol.features import history
from headrace._protocol.keys import job_id, wire_id
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import raw
from headrace.errors import CodecError

T = TypeVar("T")


def result_bytes(ops: Ops, result: Any) -> bytes:
    """Encode a result by the codec. Raises `TypeError`, `CodecError`, or `ValueError` if too large
    for a server."""
    try:
        data = ops.encoded(result, untyped(ops.bound))
    except (TypeError, CodecError) as error:
        raise type(error)(f"result: {error}") from error
    checks.check_size("result", [data])
    return data


def result(ops: Ops, name: str) -> Op[bytes | None]:
    return _kept(ops, [name], lambda reply: None if reply[0] is None else raw(reply[0]))


def results(ops: Ops, names: Sequence[str]) -> Op[list[bytes | Literal[False] | None]]:
    """Fetch the kept results of jobs, at most 500. `False` in the answer means to ask for this one
    again."""
    # a bound method: equal ones join their calls
    return _kept(ops, names, kept, MethodType(results, ops))


def kept(reply: Any) -> list[bytes | Literal[False] | None]:
    """Decode kept results. `None` means no result. `False` means that the reply was full, so ask
    again."""
    return [
        None if result is None else not isinstance(result, int) and raw(result) for result in reply
    ]


def _kept(
    ops: Ops,
    names: Sequence[str],
    decode: Callable[[Any], T],
    join: Callable[[Sequence[str]], Op[Any]] | None = None,
) -> Op[T]:
    first, *others = (ops.keys.result(job_id(name)) for name in names)
    keys = [first, ops.keys.key("cancels"), *others]
    op = ops.op("result", [*map(wire_id, names)], decode, (), () if join is None else names, join)
    return evolve(op, keys=keys)


def ended(ops: Ops, names: Sequence[str]) -> Op[list[history.Ended]]:
    """Ask which of at most 500 jobs have ended, and how."""
    return ops.op(
        "ended", [wire_id(name) for name in names], history.ended, (), names, MethodType(ended, ops)
    )
