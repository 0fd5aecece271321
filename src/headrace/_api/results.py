"""Results for users. One is a value or an error, and many are yielded by `as_completed` as their
jobs end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar, overload

from attrs import define, field, frozen

from headrace._codecs.recorded import result_of
from headrace._core.effects import Call, Now
from headrace._core.queue import results
from headrace._core.queue.calls import pauses
from headrace._core.queue.results import End
from headrace._core.verbs.queue import QueueVerbs
from headrace._core.verbs.results import ASK_AFTER_S, ASK_EVERY_S
from headrace._model import checks
from headrace._model.codec import Codec
from headrace._model.event import Event
from headrace._model.receipt import AsyncReceipt, BaseReceipt, Receipt, bind, is_receipt, source_of
from headrace._protocol.queue_ops import Ops
from headrace.errors import JobFailed

Decode = Callable[[Any], Any]  # makes a result of the codec's value


def decoded(codec: Codec[Any], id: str, data: bytes, decode: Decode | None = None) -> Any:
    """Decode a job's result with the queue's codec, and then with *decode*. Raises `CodecError`."""
    return result_of(f"the result of job {id!r}", data, codec, decode)


def aligned(results: object, ids: Sequence[str]) -> Sequence[Any]:
    """Return a result for each job of *ids*, from a sequence or a mapping. Raises `TypeError` or
    `ValueError`."""
    if results is None:
        return [None] * len(ids)
    given: Any = results
    if isinstance(results, Mapping):
        if unknown := given.keys() - set(ids):
            raise ValueError(f"results: no lease is of a job with the id {unknown.pop()!r:.100}")
        return [given.get(name) for name in ids]
    if not isinstance(results, Sequence) or isinstance(
        results, (str, bytes, bytearray, memoryview)
    ):
        raise TypeError(f"results must be a list, or a mapping by ids, not {type(given).__name__}")
    if len(given) != len(ids):
        raise ValueError(
            f"results: {len(given)} of them for {len(ids)} leases: give one for each, None for no result"
        )
    return [*given]


def value_of(ops: Ops, id: str, end: End, decode: Decode | None = None) -> Any:
    """Return the result of a job with this end, or `None` if it has none. Raises `JobFailed`,
    `CodecError`."""
    if end.state != "completed" and (end.state != "unknown" or ops.settings.history):
        raise JobFailed(id, end.state, end.reason)
    return None if end.result is None else decoded(ops.bound, id, end.result, decode)


# not frozen: one is made for each call, and filling a frozen class takes 3 times as long
@define(eq=False)
class QueueSource:
    """The source of the results of a queue's receipts. A task has *decode*, behind the codec."""

    queue: Any
    decode: Decode | None = None

    def result(self, id: str, timeout: float | timedelta | None) -> Any:
        """Wait for the end of an enqueued job, or for ever if *timeout* is `None`. The queue drives
        this generator."""
        limit = checks.patience(timeout)
        return self.queue._drive(self._result(id, limit))  # noqa: SLF001 - we are a part of it

    def _result(self, id: str, limit: float) -> Call[Any]:
        waiting: Call[End] = self.queue._verbs.results.end_of(id, limit, own=True)  # noqa: SLF001
        end = yield from waiting
        return value_of(self.queue.ops, id, end, self.decode)


R = TypeVar("R")


@frozen
class _EndedSource:
    source: QueueSource
    end: End

    def result(self, id: str, timeout: float | timedelta | None) -> Any:  # noqa: ARG002 - as all sources
        return self.queue._drive(self._result(id))  # noqa: SLF001 - which knows its colour

    @property
    def queue(self) -> Any:
        return self.source.queue

    def _result(self, id: str) -> Call[Any]:
        yield from ()
        return value_of(self.queue.ops, id, self.end, self.source.decode)


@define(eq=False)
class CompletionTracker:
    """The receipts of one queue whose jobs have not ended, by id."""

    queue: Any
    receipts: dict[str, list[BaseReceipt[Any]]] = field(factory=dict[str, list[BaseReceipt[Any]]])
    alive: bool = False  # they were there at the refresh before
    # gone since: a notice may still say how they ended
    doubtful: set[str] = field(factory=set[str])
    refresh_at: float = 0.0  # when to refresh again, where no notices come
    _pauses: Iterator[float] = field(factory=lambda: pauses(ASK_AFTER_S, ASK_EVERY_S), init=False)

    @property
    def notified(self) -> bool:
        return self._verbs.results.notified

    @property
    def _verbs(self) -> QueueVerbs[Any]:
        verbs: QueueVerbs[Any] = self.queue._verbs  # noqa: SLF001 - we are a part of it
        return verbs

    @property
    def must_poll(self) -> bool:
        return bool(self.receipts) and not self.notified

    def patience(self, seconds: float, now: float) -> float:
        if self.must_poll:
            return max(0.0, min(seconds, self.refresh_at - now))
        return min(seconds, results.NOTICE_WITHIN_S) if self.doubtful else seconds

    def refresh(
        self, ended: Mapping[str, Event] = results.NOTHING, *, again: bool = True
    ) -> Call[list[Any]]:
        """Remove and return the receipts whose jobs have ended. Reads the receipts *ended*, or all
        (*again*)."""
        names = [name for name in self.receipts if again or name in ended or name in self.doubtful]
        found: list[Any] = []
        start = yield from Now()
        ends = yield from self._verbs.results.ends(names, ended)
        before = self.doubtful
        self.doubtful = set()
        for name, end in ends.items():
            if end is results.UNKNOWN and self.alive and self.notified and name not in before:
                self.doubtful.add(name)
                continue
            for receipt in self.receipts.pop(name):
                source = source_of(receipt)
                if not isinstance(source, _EndedSource):  # else it was given twice
                    bind([receipt], type(receipt), _EndedSource(source, end))
                found.append(receipt)
        self.alive = True
        now = yield from Now()
        # asking takes a tenth of the time at most
        self.refresh_at = now + max(next(self._pauses), 9 * (now - start))
        return found


class _Nothing(Iterator[Any], AsyncIterator[Any]):
    def __next__(self) -> NoReturn:
        raise StopIteration

    async def __anext__(self) -> NoReturn:
        raise StopAsyncIteration


def late(trackers: Iterable[CompletionTracker], seconds: float) -> TimeoutError:
    left = [name for tracker in trackers for name in tracker.receipts]
    some = ", ".join(map(repr, left[:5])) + (", …" if len(left) > 5 else "")
    return TimeoutError(f"{len(left)} jobs have not ended within {seconds:g} s: {some}; they go on")


@overload
def as_completed(
    receipts: Iterable[Receipt[R]], timeout: float | timedelta | None = None
) -> Iterator[Receipt[R]]: ...
@overload
def as_completed(
    receipts: Iterable[AsyncReceipt[R]], timeout: float | timedelta | None = None
) -> AsyncIterator[AsyncReceipt[R]]: ...
def as_completed(receipts: Iterable[Any], timeout: float | timedelta | None = None) -> Any:
    """Yield receipts as their jobs end, in any way. For receipts of an `AsyncQueue`, the iterator
    is asynchronous.

    Jobs that have ended already come first. The `result()` of a yielded receipt sends nothing, and
    returns or raises at once. Raises `TimeoutError` if some have not ended within *timeout* seconds
    (`None`: for ever). Receipts of several queues may be mixed, and one subscription a queue tells
    of all its jobs. result.lua and ended.lua, part by part, at first and every 5 seconds, and in
    between only for ended jobs. The shards of a sharded queue are polled up to four times a second,
    and for at most a tenth of the time.
    """
    limit = checks.patience(timeout)
    trackers: dict[int, CompletionTracker] = {}
    kinds: set[type] = set()
    for receipt in receipts:
        if not is_receipt(receipt):
            raise TypeError(f"receipts must be receipts of enqueue(), not {type(receipt).__name__}")
        source = source_of(receipt)
        if isinstance(source, _EndedSource):
            source = source.source
            bind([receipt], type(receipt), source)
        kinds.add(type(receipt))
        tracker = trackers.setdefault(id(source.queue), CompletionTracker(source.queue))
        tracker.receipts.setdefault(receipt.id, []).append(receipt)
    if len(kinds) > 1:
        raise TypeError(
            "receipts must all be of queues for threads, or all for asyncio, not of both"
        )
    for tracker in trackers.values():
        return tracker.queue._completed([*trackers.values()], limit)  # noqa: SLF001
    return _Nothing()
