"""Results for users: the end of a job as a value, or as the error that says why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from attrs import define

from headrace._core.effects import Step
from headrace._core.queue.results import End
from headrace._model import checks
from headrace._model.codec import Codec, untyped
from headrace._protocol.queue_ops import Ops
from headrace.errors import CodecError, JobFailed, said

Decode = Callable[[Any], Any]  # makes a result of the codec's value


def decoded(codec: Codec[Any], id: str, data: bytes, decode: Decode | None = None) -> Any:
    """Return a job's result by the queue's codec, and then by *decode*. Raises `CodecError`."""
    try:
        read = untyped(codec).decode(data)
        return read if decode is None else decode(read)
    except Exception as error:
        raise CodecError(f"the result of job {id!r} does not decode: {said(error)}") from error


def aligned(results: object, ids: Sequence[str]) -> Sequence[Any]:
    """Return a result for each job of *ids*, from a sequence or a mapping. Raises `TypeError` or `ValueError`."""
    if results is None:
        return [None] * len(ids)
    given: Any = results
    if isinstance(results, Mapping):
        if unknown := given.keys() - set(ids):
            raise ValueError(f"results: no lease is of a job with the id {unknown.pop()!r:.100}")
        return [given.get(name) for name in ids]
    if not isinstance(results, Sequence) or isinstance(results, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"results must be a list, or a mapping by ids, not {type(given).__name__}")
    if len(given) != len(ids):
        raise ValueError(f"results: {len(given)} of them for {len(ids)} leases: give one for each, None for no result")
    return [*given]


def value_of(ops: Ops, id: str, end: End, decode: Decode | None = None) -> Any:
    """Return the result of a job that has ended so; `None` if there is none. Raises `JobFailed`, `CodecError`."""
    if end.state != "completed" and (end.state != "unknown" or ops.settings.history):
        raise JobFailed(id, end.state, end.reason)
    return None if end.result is None else decoded(ops.bound, id, end.result, decode)


@define(eq=False)  # not frozen: one is made for each call, and filling a frozen class takes 3 times as long
class QueueSource:
    """The source of the results of a queue's receipts. *decode*: a task's, behind the codec."""

    queue: Any
    decode: Decode | None = None

    def result(self, id: str, timeout: float | timedelta | None) -> Any:
        """Wait for the end of a job that was enqueued; `None` waits for ever. The queue's colour drives it."""
        limit = checks.patience(timeout)
        return self.queue._drive(self._result(id, limit))  # noqa: SLF001 - we are a part of it

    def _result(self, id: str, limit: float) -> Step[Any]:
        waiting: Step[End] = self.queue._verbs.end_of(id, limit, own=True)  # noqa: SLF001
        end = yield from waiting
        return value_of(self.queue.ops, id, end, self.decode)
