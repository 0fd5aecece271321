"""`as_completed`: receipts in the order in which their jobs end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NoReturn, TypeVar, overload

from attrs import define, field, frozen

from headrace._base.results import QueueSource, value_of
from headrace._core import results
from headrace._core.effects import Step
from headrace._core.results import End
from headrace._model import checks
from headrace._model.checks import FOREVER_S
from headrace._model.event import Event
from headrace._model.receipt import AsyncReceipt, BaseReceipt, Receipt, bind

R = TypeVar("R")


@frozen
class _EndedSource:
    """The source of a receipt whose job has ended: it sends nothing."""

    source: QueueSource
    end: End

    def result(self, _id: str, _timeout: float | timedelta | None) -> Any:
        return self.source.queue._drive(self._result(_id))  # noqa: SLF001 - for an awaitable of the value under asyncio

    def _result(self, id: str) -> Step[Any]:
        yield from ()
        return value_of(self.source.queue.ops, id, self.end, self.source.decode)


@define(eq=False)
class Pursuit:
    """The receipts of one queue whose jobs have not ended, by id."""

    queue: Any
    receipts: dict[str, list[BaseReceipt[Any]]] = field(factory=dict[str, list[BaseReceipt[Any]]])

    def look(self, told: Mapping[str, Event] = results.NOTHING, *, again: bool = True) -> Step[list[Any]]:
        """Take out the receipts whose jobs have ended: of those that were *told* of, or of all, *again*."""
        names = [name for name in self.receipts if again or name in told]
        found: list[Any] = []
        for name, end in (yield from results.look(self.queue.ops, names, told, own=True)).items():
            for receipt in self.receipts.pop(name):
                source: Any = receipt._source  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - a part of it
                if not isinstance(source, _EndedSource):  # else it was given twice
                    bind([receipt], type(receipt), _EndedSource(source, end))
                found.append(receipt)
        return found


class _Nothing(Iterator[Any], AsyncIterator[Any]):
    """An iterator over no receipts, of either colour."""

    def __next__(self) -> NoReturn:
        raise StopIteration

    async def __anext__(self) -> NoReturn:
        raise StopAsyncIteration


def late(pursuits: Iterable[Pursuit], seconds: float) -> TimeoutError:
    """Make the error that says how many have not ended in time."""
    left = [name for pursuit in pursuits for name in pursuit.receipts]
    some = ", ".join(map(repr, left[:5])) + (", …" if len(left) > 5 else "")
    return TimeoutError(f"{len(left)} jobs have not ended within {seconds:g} s: {some}; they go on")


@overload
def as_completed(receipts: Iterable[Receipt[R]], timeout: float | timedelta | None = None) -> Iterator[Receipt[R]]: ...
@overload
def as_completed(
    receipts: Iterable[AsyncReceipt[R]], timeout: float | timedelta | None = None
) -> AsyncIterator[AsyncReceipt[R]]: ...
def as_completed(receipts: Iterable[Any], timeout: float | timedelta | None = None) -> Any:
    """Yield receipts as their jobs end, in whatever way; of an `AsyncQueue`'s receipts the iterator is asynchronous.

    What has ended comes first. The `result()` of a receipt that was yielded is there: it sends nothing, and returns
    or raises at once. Raises `TimeoutError` if some have not ended within *timeout* seconds (`None`: for ever).
    Receipts of several queues may be mixed, and one subscription a queue tells of all its jobs. result.lua and
    ended.lua, per 99 jobs, at first and every 5 seconds; in between for those only that have ended.
    """
    limit = FOREVER_S if timeout is None else checks.seconds("timeout", timeout)
    pursuits: dict[int, Pursuit] = {}
    kinds: set[type] = set()
    for receipt in receipts:
        if not isinstance(receipt, BaseReceipt):
            raise TypeError(f"receipts must be what enqueue() gave, not {type(receipt).__name__}")
        source = receipt._bound()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - a part of it
        if isinstance(source, _EndedSource):
            source = source.source
            bind([receipt], type(receipt), source)
        kinds.add(type(receipt))
        pursuit = pursuits.setdefault(id(source.queue), Pursuit(source.queue))
        pursuit.receipts.setdefault(receipt.id, []).append(receipt)
    if len(kinds) > 1:
        raise TypeError("receipts must be those of queues for threads, or of queues for asyncio, not of both")
    for pursuit in pursuits.values():
        return pursuit.queue._completed([*pursuits.values()], limit)  # noqa: SLF001
    return _Nothing()
