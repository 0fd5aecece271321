"""`Receipt` and `AsyncReceipt` are outcomes of an enqueue that can ask for the job's result."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeGuard

from attrs import define, field, frozen

from headrace._model.policy import Outcome
from headrace.errors import ConfigurationError

if TYPE_CHECKING:  # what a job's result is: anything, unless a task says it
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


class Source(Protocol):
    def result(self, id: str, timeout: float | timedelta | None) -> Any:
        """Return a job's result as a value, or an awaitable of it."""
        ...


class Sourced:
    """Base of values that know the source of their result. The source is no field, so it is not
    compared, shown or pickled.
    """

    __slots__ = ("_source",)
    _source: Source


@define(eq=False)
class _OpenReceipt(Sourced, Generic[R_co]):
    """A receipt under construction. It takes three times as long to fill a frozen class."""

    id: str
    added: bool
    _known: Outcome = field(default="present", repr=False)  # what became of one that was not added

    @property
    def outcome(self) -> Outcome:
        """The outcome in a word. With `added` the job is new. With `present` the id is taken,
        and its job stays as it is. With `replaced` this job takes the place of a job that had
        not begun. With `moved` the job is now due later. With `dropped` this job came too soon
        after another.
        """
        return "added" if self.added else self._known


@frozen(eq=False)  # pyright: ignore[reportGeneralTypeIssues] - frozen from here on, on purpose
class BaseReceipt(_OpenReceipt[R_co]):
    """The base of both receipts, which are equal when they say the same."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseReceipt):
            return NotImplemented
        return (self.id, self.outcome) == (other.id, other.outcome)

    def __hash__(self) -> int:
        return hash((self.id, self.outcome))

    def _ask(self, timeout: float | timedelta | None) -> Any:
        return source_of(self).result(self.id, timeout)


def is_receipt(value: object) -> TypeGuard[BaseReceipt[Any]]:
    return isinstance(value, BaseReceipt)


def source_of(receipt: BaseReceipt[Any]) -> Any:
    source: Source | None = getattr(receipt, "_source", None)
    if source is None:
        raise ConfigurationError(
            f"this receipt of job {receipt.id!r} knows no queue, as it was pickled, made by hand, or is a flow's: "
            "ask queue.result(id, timeout), or flow.result(id, timeout)"
        )
    return source


class Receipt(BaseReceipt[R_co]):
    """The outcome of an enqueue. It has the job's `id`, whether it was `added`, and in a word
    its `outcome`.

    With `added=False` a job of that id is in the queue already. It was left as it is, unless
    `outcome` says otherwise.
    """

    __slots__ = ()

    def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended, for *timeout* at most, and return its decoded result.

        *timeout* is seconds, and 0 does not wait. The result is `None` if the job was completed
        without one, or ended so long ago that nothing is known of it. Raises `JobFailed` as soon as
        it is dead, cancelled or deleted, `TimeoutError` if it has not ended in time, and
        `CodecError` for a result that the queue's codec can't read. See `Queue.result`.
        """
        found: R_co = self._ask(timeout)
        return found


class AsyncReceipt(BaseReceipt[R_co]):
    """The outcome of an enqueue. It has the job's `id`, whether it was `added`, and in a word
    its `outcome`.

    It equals a `Receipt` that says the same. With `added=False` a job of that id is in the queue
    already. It was left as it is, unless `outcome` says otherwise. A receipt may be awaited itself
    for its result, as in `await asyncio.gather(*receipts)`.
    """

    __slots__ = ()

    async def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended, for *timeout* at most, and return its decoded result.

        *timeout* is seconds, and 0 does not wait. The result is `None` if the job was completed
        without one, or ended so long ago that nothing is known of it. Raises `JobFailed` as soon as
        it is dead, cancelled or deleted, `TimeoutError` if it has not ended in time, and
        `CodecError` for a result that the queue's codec can't read. See `AsyncQueue.result`.
        """
        found: R_co = await self._ask(timeout)
        return found

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.result().__await__()


def receipts(ids: Iterable[str]) -> list[Receipt]:
    made: Any = [_OpenReceipt(name, True) for name in ids]
    for receipt in made:
        receipt.__class__ = Receipt
    done: list[Receipt] = made
    return done


def received(name: str, new: bool, kind: type[BaseReceipt[Any]], source: Source) -> Any:
    made: Any = _OpenReceipt(name, new)
    made._source = source  # noqa: SLF001 - it is not frozen yet
    made.__class__ = kind
    return made


_set_source = Sourced.__dict__["_source"].__set__  # past what is frozen, and quickly


def bind(made: Iterable[BaseReceipt[Any]], kind: type[BaseReceipt[Any]], source: Source) -> None:
    for receipt in made:
        _set_source(receipt, source)
        if type(receipt) is not kind:
            object.__setattr__(receipt, "__class__", kind)
