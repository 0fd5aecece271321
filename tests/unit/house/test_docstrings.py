"""Hand-written classes of both colours have the same docstrings. Their signatures name all
options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import get_type_hints

import pytest

from headrace import Receipt, Worker
from headrace._api.aio.events import AsyncEventStream
from headrace._api.sync.events import EventStream
from headrace._model.policy import Conditions
from headrace._model.settings import QueueOptions
from headrace.inspect import AsyncInspector, Inspector
from headrace.testing import run_until_empty, run_until_empty_async
from tests.support.facts import each
from tests.unit.house.test_parity import USED

PAIRS: list[tuple[type, type]] = [
    *USED,
    (Inspector, AsyncInspector),
    (EventStream, AsyncEventStream),
]
BY_HAND = [pair for pair in USED if pair[0] in {Receipt, Worker}]  # the others are generated

# (text for threads, text for asyncio), wherever it stands
EVERYWHERE = (
    (r"`(Queue|Flow|Lease|Receipt|Worker|Tasks?|Inspector|EventStream)\b", r"`Async\1"),
    (r"redis\.Redis\b", "redis.asyncio.Redis"),
    (r"`with (queue|worker)\b", r"`async with \1"),
    (r"`welcome\.enqueue", "`await welcome.enqueue"),
    (r"an iterator of `Event`", "an asynchronous iterator of `Event`"),
)
# of one method, or of a class (""): what is said otherwise
HERE = {
    "Receipt.": (
        "`outcome`. With `added=False`",
        "`outcome`. It equals a `Receipt` that says the same. With `added=False`",
    ),
    "Worker.": ("handlers on threads", "handlers on an event loop"),
    "Worker.run": ("Work until", "Work on an event loop of its own until"),
    "Worker.start": ("in the background", "on this event loop"),
}
# said for asyncio besides, at the end
MORE = {
    "Receipt.": "A receipt may be awaited itself for its result, as in `await asyncio.gather(*receipts)`.",
    "Worker.": "A plain `def` handler runs in a thread.",
    "Worker.run": (
        "The loop is uvloop's if that is installed (extra `speed`), unless the environment says "
        "`HEADRACE_LOOP=asyncio`."
    ),
    "Worker.start": "Calls no hooks: a worker that has some is a `ConfigurationError` here.",
}


def flat(text: str) -> str:
    """Return a text without the ends of its lines."""
    return " ".join(text.split())


def for_asyncio(place: str, text: str) -> str:
    """Return the text that the twin must have, from the text at *place*."""
    for ours, theirs in EVERYWHERE:
        text = re.sub(ours, theirs, text)
    before, after = HERE.get(place, ("", ""))
    assert before in text, f"{place}: {before!r} is no longer there: mend HERE"
    return f"{text.replace(before, after, 1) if before else text} {MORE.get(place, '')}".strip()


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield (place, text for threads, text for asyncio) of each class, and of each method that
    differs by colour."""
    for kind, twin in BY_HAND:
        yield f"{kind.__name__}.", kind.__doc__ or "", twin.__doc__ or ""
        for name, method in inspect.getmembers(kind, callable):
            theirs = getattr(twin, name, method)
            if not name.startswith("_") and theirs is not method:
                yield f"{kind.__name__}.{name}", method.__doc__ or "", theirs.__doc__ or ""


DOCUMENTED = list(documented())


@each(("place", "ours", "theirs"), DOCUMENTED, ids=[place for place, _, _ in DOCUMENTED])
def test_the_twin_is_documented_in_the_same_words(place: str, ours: str, theirs: str) -> None:
    assert ours
    assert flat(theirs) == for_asyncio(place, flat(ours))


def test_all_of_it_is_compared() -> None:
    places = {place for place, _, _ in DOCUMENTED}
    assert len(places) >= 6
    assert {*HERE, *MORE} <= places


def test_helpers_of_tests_are_documented_in_the_same_words() -> None:
    ours, theirs = (flat(one.__doc__ or "") for one in (run_until_empty, run_until_empty_async))
    assert theirs == ours


NAMELESS = {  # what they take is the user's: names of attributes, a function's own arguments
    "Flow.find", "AsyncFlow.find", "Task.enqueue", "AsyncTask.enqueue", "Task.new", "AsyncTask.new",
}  # fmt: skip


def verbs() -> Iterator[tuple[str, Callable[..., object]]]:
    for kind in (one for pair in PAIRS for one in pair):
        yield f"{kind.__name__}.__init__", kind.__init__  # type: ignore[misc]
        for name, method in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", method


@each(
    ("place", "verb"), [pytest.param(*row, id=row[0]) for row in verbs() if row[0] not in NAMELESS]
)
def test_a_signature_names_what_is_taken(place: str, verb: Callable[..., object]) -> None:
    """No signature has `**options`, which only a reader of the source could resolve."""
    found = inspect.signature(verb).parameters.values()
    assert not [one.name for one in found if one.kind is one.VAR_KEYWORD], place
    assert {one.name for one in found if one.kind is one.VAR_POSITIONAL} <= {"ids", "stages"}, place


def spelled() -> Iterator[tuple[Callable[..., object], type]]:
    """Yield the public functions that take the keys of a `TypedDict`."""
    for _, verb in verbs():
        if (
            options := verb.__annotations__.get("options", verb.__annotations__.get("conditions"))
        ) is not None:
            yield (
                verb,
                vars(inspect.getmodule(verb))[
                    str(options).removeprefix("Unpack[").removesuffix("]")
                ],
            )


@each(("verb", "kind"), [pytest.param(*row, id=row[0].__qualname__) for row in spelled()])
def test_a_signature_names_the_options_that_are_taken(
    verb: Callable[..., object], kind: type
) -> None:
    shown = {one.name for one in inspect.signature(verb).parameters.values()}
    others = {*get_type_hints(QueueOptions), *get_type_hints(Conditions)} - get_type_hints(
        kind
    ).keys()
    assert get_type_hints(kind).keys() <= shown
    assert not shown & others - verb.__annotations__.keys()
