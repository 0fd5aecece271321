"""A handler's annotated return type is checked once, when the handler is registered."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, NewType, Optional, Union

import pytest

from headrace import AsyncWorker, Complete, DeadLetter, FanOut, Flow, Job, Next, Release, Worker
from headrace._model.codec import BytesCodec, annotated_results
from headrace.codecs import Codec, JSONCodec
from headrace.errors import Verdict
from tests.support.facts import each

if TYPE_CHECKING:
    from decimal import Decimal

NOWHERE = "redis://127.0.0.1:1"
Name = NewType("Name", str)
Table = NewType("Table", dict[str, int])


class Model:
    """A class that JSON can't encode."""


def nothing(job: Job): ...  # type: ignore[no-untyped-def]
def none(job: Job) -> None: ...
def anything(job: Job) -> Any: ...
def thing(job: Job) -> object: ...
def raw(job: Job) -> bytes: ...  # type: ignore[empty-body]
def text(job: Job) -> str | None: ...
def old_text(job: Job) -> Optional[Union[str, bytearray]]: ...  # noqa: UP007, UP045
def verdict(job: Job) -> Verdict | type[Release] | DeadLetter | Complete | None: ...
def step(job: Job) -> Next | FanOut | bytes: ...  # type: ignore[empty-body]
def name(job: Job) -> Annotated[Name, "x"]: ...  # type: ignore[empty-body]
def unknown(job: Job) -> Decimal: ...  # type: ignore[empty-body]
def wrong(job: Job) -> 1 / 0: ...  # type: ignore[valid-type]
def mapping(job: Job) -> dict[str, int]: ...  # type: ignore[empty-body]
def maybe(job: Job) -> Mapping[str, int] | None: ...
def table(job: Job) -> Annotated[Table, "x"]: ...  # type: ignore[empty-body]
def number(job: Job) -> bytes | int: ...  # type: ignore[empty-body]
def model(job: Job) -> Model: ...  # type: ignore[empty-body]
async def later(job: Job) -> list[int]: ...  # type: ignore[empty-body]


class Callables:
    def __call__(self, job: Job) -> float: ...  # type: ignore[empty-body]

    def method(self, job: Job) -> tuple[int, ...]: ...  # type: ignore[empty-body]


@wraps(mapping)
def wrapped(*args: Any) -> Any: ...


FINE = [
    nothing,
    none,
    anything,
    thing,
    raw,
    text,
    old_text,
    verdict,
    step,
    name,
    unknown,
    wrong,
    print,
    partial(raw),
]
WRONG = {
    "dict": mapping, "Mapping": maybe, "dict ": table, "int": number, "Model": model, "float": Callables(),
    "tuple": Callables().method, "dict  ": wrapped, "dict   ": partial(mapping),
}  # fmt: skip


def registered(function: Callable[..., Any], codec: Codec | None = None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Worker(NOWHERE).handler("q", codec=codec)(function)
    assert {one.filename for one in caught} <= {__file__}  # the line of the decorator
    return [str(one.message) for one in caught]


@each("function", FINE)
def test_what_may_be_returned_is_not_warned_of(function: Callable[..., Any]) -> None:
    assert registered(function) == []


@each("what", WRONG)
def test_what_the_codec_cannot_hold_is_warned_of(what: str) -> None:
    (said,) = registered(WRONG[what])
    assert f"returns {what.strip()}, which BytesCodec can't encode" in said
    assert "codec=JSONCodec()" in said


def test_other_codecs_say_themselves_what_they_hold() -> None:
    assert [
        registered(function, JSONCodec()) for function in (mapping, maybe, table, number, raw)
    ] == [[]] * 5
    (said,) = registered(model, JSONCodec())
    assert "returns Model, which JSONCodec can't encode" in said

    class Silent:
        def encode(self, payload: Any) -> bytes: ...  # type: ignore[empty-body]
        def decode(self, data: bytes) -> Any: ...

    class Broken(BytesCodec):
        def holds(self, kind: Any) -> bool:
            raise LookupError

    assert registered(model, Silent()) == registered(model, Broken()) == []


def test_coroutines_stages_and_batches() -> None:
    """The return value of a batch handler is no result, so its type is not checked."""
    with pytest.warns(UserWarning, match="later returns list"):
        AsyncWorker(NOWHERE).handler("q")(later)
    flow = Flow("shop", url=NOWHERE)
    flow.stage("pack")(mapping)
    with pytest.warns(UserWarning, match="mapping returns dict"):
        Worker(NOWHERE).flow(flow)
    Worker(NOWHERE).batch_handler("b")(mapping)


def test_types_as_they_are_found() -> None:
    def local(job: Job) -> Iterable[Awaitable[int]] | Unresolved: ...  # type: ignore[name-defined]  # noqa: F821

    assert annotated_results(local) == []
    assert [kind.__name__ for kind in annotated_results(maybe)] == ["Mapping"]
