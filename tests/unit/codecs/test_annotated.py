"""Values with annotated types. Each value comes back equal or is refused."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from headrace import ConfigurationError, DeadLetter
from headrace._codecs.annotated import LOOSE, TypeMismatch, dumped, loaded, shape
from headrace._codecs.recorded import Recorded
from headrace._codecs.signature import Signature
from headrace.codecs import JSONCodec
from tests.support.facts import each


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Odd(enum.Enum):
    PAIR = (1, 2)


@dataclasses.dataclass
class Node:
    value: int
    next: Node | None = None
    seen: list[datetime] = dataclasses.field(default_factory=list)


@attrs.define
class Point:
    _x: float
    y: Decimal = Decimal("1.10")


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Row(TypedDict):
    id: int
    name: NotRequired[str]


class Model(pydantic.BaseModel):
    to: str
    at: datetime | None = None


class Struct(msgspec.Struct):
    data: bytes
    at: date


@dataclasses.dataclass
class Strict:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("negative")


class Unknown:
    pass


UserId = NewType("UserId", int)
T = TypeVar("T", bound=int)
NOW = datetime(2026, 11, 22, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=-3)))
ID = UUID("12345678-1234-5678-1234-567812345678")

FIT: list[tuple[Any, Any, Any]] = [
    (None, None, None),
    (bool, True, True),
    (int, 2**80, 2**80),
    (float, 1.5, 1.5),
    (str, "ä\x00", "ä\x00"),
    (bytes, b"\xff\x00", "/wA="),
    (datetime, NOW, "2026-11-22T12:30:15.123456-03:00"),
    (datetime, datetime(2026, 1, 1), "2026-01-01T00:00:00"),  # noqa: DTZ001
    (date, date(2026, 11, 22), "2026-11-22"),
    (time, time(12, 30, tzinfo=UTC), "12:30:00+00:00"),
    (timedelta, timedelta(days=1, microseconds=1), 86400.000001),
    (UUID, ID, str(ID)),
    (Decimal, Decimal("1.10"), "1.10"),
    (Path, Path("/tmp/x"), "/tmp/x"),
    (Colour, Colour.RED, "red"),
    (Level, Level.LOW, 1),
    (Odd, Odd.PAIR, "PAIR"),
    (Literal["a", 1], 1, 1),
    (list[int], [1, 2], [1, 2]),
    (Sequence[date], [date(2026, 1, 1)], ["2026-01-01"]),
    (set[int], {1}, [1]),
    (frozenset[str], frozenset("a"), ["a"]),
    (tuple[int, ...], (1, 2), [1, 2]),
    (tuple[int, str], (1, "x"), [1, "x"]),
    (tuple[()], (), []),
    (dict[str, bytes], {"a": b"x"}, {"a": "eA=="}),
    (dict[int, int], {1: 2}, {"1": 2}),
    (Mapping[UUID, date], {ID: date(2026, 1, 1)}, {str(ID): "2026-01-01"}),
    (dict, {"a": [1, None, {"b": 1.5}]}, {"a": [1, None, {"b": 1.5}]}),
    (list, [1, "x"], [1, "x"]),
    (
        Node,
        Node(1, Node(2, None, [NOW])),
        {
            "value": 1,
            "next": {"value": 2, "next": None, "seen": ["2026-11-22T12:30:15.123456-03:00"]},
            "seen": [],
        },
    ),
    (Point, Point(1.5), {"x": 1.5, "y": "1.10"}),
    (Pair, Pair(1), {"left": 1, "right": "r"}),
    (Row, {"id": 1}, {"id": 1}),
    (Model, Model(to="ada", at=NOW), {"to": "ada", "at": "2026-11-22T12:30:15.123456-03:00"}),
    (Struct, Struct(b"x", date(2026, 1, 1)), {"data": "eA==", "at": "2026-01-01"}),
    (int | None, None, None),
    (int | float | str | None, 1.0, 1.0),
    (int | float, 1, 1),
    (list[Node] | Colour, Colour.BLUE, "blue"),
    (UserId, UserId(5), 5),
    (Annotated[int, "a note"], 5, 5),
    (T, 5, 5),
    (Any, {"a": [1]}, {"a": [1]}),
    (object, None, None),
]


@each(("kind", "value", "expected"), FIT, ids=lambda value: str(value)[:30])
def test_what_is_of_its_type_comes_back(kind: Any, value: Any, expected: Any) -> None:
    """Jobs in flight have these bytes."""
    made = shape(kind)
    data = dumped(made.pack(value))
    found = made.unpack(loaded(data))
    assert found == value
    assert type(found) is type(value)
    assert data == json.dumps(expected, ensure_ascii=False, separators=(",", ":")).encode()


def test_an_int_is_a_float_too() -> None:
    assert shape(float).pack(5) == 5.0


@each(
    ("kind", "value", "wrong"),
    [
        (int, "5", "must be int, not str"),
        (int, True, "must be int, not bool"),
        (str, b"x", "must be str, not bytes"),
        (float, "1", "must be float, not str"),
        (float, float("nan"), "finite"),
        (float, 10**400, "finite"),
        (date, NOW, "must be date, not datetime"),
        (Colour, "red", "must be Colour, not str"),
        (Literal["a"], "b", "must be 'a', not 'b'"),
        (list[int], (1,), "must be list, not tuple"),
        (list[str], "text", "must be list, not str"),
        (list[int], [1, "x"], r"\[1\]: must be int, not str"),
        (dict[str, int], {"a": "x"}, r"\['a'\]: must be int"),
        (tuple[int, str], (1,), "a tuple of 2"),
        (Node, Node("x"), r"^\.value: must be int"),  # type: ignore[arg-type]
        (dict[str, tuple[int, Point]], {"k": (1, Point("x"))}, r"^\['k'\]\[1\]\.x: must be float"),
        (Node, {"value": 1}, "must be Node, not dict"),
        (Row, {"name": "x"}, "lacks 'id'"),
        (Row, {"id": 1, "more": 2}, "'more', which is not known"),
        (int | None, "x", r"must be int \| None, not str"),
        (list[int] | None, ["x"], r"\[0\]: must be int"),
        (Model, Struct(b"", date(2026, 1, 1)), "must be Model"),
        (Any, (1,), "of type tuple"),
        (Any, NOW, "of type datetime"),
        (Any, {1: 2}, "keys are no str"),
        (Any, [float("inf")], r"\[0\]: inf"),
        (None, 1, "must be NoneType"),
    ],
)
def test_what_is_not_of_its_type_is_refused(kind: Any, value: Any, wrong: str) -> None:
    with pytest.raises(TypeMismatch, match=wrong):
        shape(kind).pack(value)


@each(
    ("kind", "data", "wrong"),
    [
        (int, "5", "must be int, not string"),
        (int, 1.5, "must be int, not number"),
        (bytes, "!", "must be bytes"),
        (bytes, "ä", "must be bytes"),
        (datetime, "soon", "must be datetime"),
        (Decimal, "x", "must be Decimal"),
        (UUID, "x", "must be UUID"),
        (timedelta, 10**30, "must be timedelta"),
        (Colour, "green", "must be Colour"),
        (Odd, "OTHER", "must be Odd"),
        (list[int], {}, "must be list, not object"),
        (dict[int, int], {"x": 1}, "must be int"),
        (tuple[int, str], [1], "an array of 2"),
        (Node, [], "must be Node, not array"),
        (Node, {"value": 1, "old": 2}, "'old', which is not known"),
        (Node, {}, "lacks 'value'"),
        (
            dict[int, list[Node]],
            {"1": [{"value": 1, "next": {"value": "x"}}]},
            r"^\['1'\]\[0\]\.next\.value: must be int",
        ),
        (Strict, {"n": -1}, "no Strict: ValueError: negative"),
        (Model, {"to": 5}, "^no Model: to: Input should be a valid string$"),
        (Struct, {}, "no Struct"),
        (int | None, "x", r"must be int \| None, not string"),
    ],
)
def test_data_of_another_type_is_refused(kind: Any, data: Any, wrong: str) -> None:
    with pytest.raises(TypeMismatch, match=wrong):
        shape(kind).unpack(data)


@each("data", [b"{", b"\xff", b"NaN", b"[" * 100_000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(TypeMismatch, match="no JSON"):
        loaded(data)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(TypeMismatch, match="surrogates"):
        dumped("\ud800")


@each(
    ("kind", "wrong"),
    [
        (Unknown, "does not travel"),
        (list[Unknown], "does not travel"),
        (complex, "does not travel"),
        (str | datetime, "tell its members apart"),
        (Node | Strict, "tell its members apart"),
        (dict[bytes, int] | dict[str, int], "tell its members apart"),
        (dict[float, int], "does not travel"),
        (Literal[b"x"], "does not travel"),
        (type[int], "does not travel"),
    ],
)
def test_types_that_do_not_travel_are_refused(kind: Any, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        shape(kind)


def test_a_value_without_an_annotation_is_shown_by_its_own_type() -> None:
    """A result may lack an annotation."""
    value = {"a": (1, NOW), 2: {3}, "n": Node(1), "p": Pair(1)}
    assert LOOSE.pack(value) == {
        "a": [1, NOW.isoformat()],
        "2": [3],
        "n": {"value": 1, "next": None, "seen": []},
        "p": {"left": 1, "right": "r"},
    }
    with pytest.raises((TypeMismatch, ConfigurationError)):
        LOOSE.pack(Unknown())


# -- the parameters of a function ------------------------------------------------------------------


def every(
    a: int, /, b: str, c: float = 2.5, *more: date, d: bytes, e: bool = True, **rest: UUID
) -> None: ...


def test_arguments_come_back_by_their_names() -> None:
    signature = Signature(every, "every")
    data = signature.pack((1, "b", 3, date(2026, 1, 1)), {"d": b"x", "z": ID})
    assert json.loads(data) == {
        "a": 1, "b": "b", "c": 3.0, "more": ["2026-01-01"], "d": "eA==", "rest": {"z": str(ID)}
    }  # fmt: skip
    assert signature.unpack(data) == ([1, "b", 3.0, date(2026, 1, 1)], {"d": b"x", "z": ID})
    assert signature.unpack(b'{"a":1,"b":"b","d":""}') == ([1, "b", 2.5], {"d": b""})


@each(
    ("data", "wrong"),
    [
        (b"[]", "must be a JSON object of arguments"),
        (b'{"b":"b","d":""}', "lacks the argument 'a'"),
        (b'{"a":1,"b":"b"}', "lacks the argument 'd'"),
        (b'{"a":1,"b":"b","d":"","old":1}', "an argument 'old'"),
        (b'{"a":1,"b":2,"d":""}', "b: must be str, not integer"),
        (b'{"a":1,"b":"b","d":"","more":5}', "more: must be an array"),
        (b'{"a":1,"b":"b","d":"","rest":5}', "rest: must be an object"),
    ],
)
def test_arguments_for_another_version_are_refused(data: bytes, wrong: str) -> None:
    with pytest.raises(TypeMismatch, match=wrong):
        Signature(every, "every").unpack(data)


@each(
    ("args", "options", "wrong"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, "b"), {}, "missing a required argument: 'd'"),
        ((1, "b"), {"d": "text"}, "d: must be bytes, not str"),
        ((1, "b", 1, "2026"), {"d": b""}, "more: must be date, not str"),
        ((1, "b"), {"d": b"", "z": 1}, "rest: must be UUID, not int"),
    ],
)
def test_arguments_that_it_does_not_take_are_refused(args: Any, options: Any, wrong: str) -> None:
    with pytest.raises(TypeError, match=f"task 'every': {wrong}"):
        Signature(every, "every").pack(args, options)


def test_results_and_verdicts() -> None:
    def one() -> int | DeadLetter | None: ...
    def two() -> DeadLetter: ...
    def three(): ...  # type: ignore[no-untyped-def]

    made = Signature(one, "one")
    assert made.unpack_result(made.pack_result(5)) == 5
    with pytest.raises(TypeError, match=r"^result: must be int"):
        made.pack_result("x")
    assert Signature(two, "two").pack_result((1,)) == b"[1]"
    assert Signature(three, "three").pack_result(NOW) == json.dumps(NOW.isoformat()).encode()


@dataclasses.dataclass
class Inner:
    n: int


def test_an_annotation_of_an_enclosing_function() -> None:
    """Its class is found if the function uses it."""

    @dataclasses.dataclass
    class Local:
        n: int

    def used(x: Local) -> Local:
        return Local(x.n + 1)

    made = Signature(used, "used")
    assert made.unpack_result(made.pack_result(Local(5))) == Local(5)
    assert made.unpack(made.pack([Local(5)], {})) == ([Local(5)], {})


def test_a_result_whose_class_is_not_found() -> None:
    """Otherwise a recorded value would be a dict from the first delivery on. Parameters of a step
    do not travel."""

    def hidden(x: Nowhere) -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821
    def inside(x: Nowhere) -> Inner: ...  # type: ignore[name-defined]  # noqa: F821
    def missing() -> datetime.Nowhere: ...  # type: ignore[name-defined]

    read = Recorded(JSONCodec())
    words = r"step 'a': name 'Nowhere' is not defined: .*define 'Nowhere', or import it, at the top of .*test_annotated"
    for function in (hidden, partial(hidden, 1)):
        with pytest.raises(ConfigurationError, match=words):
            read.check("step 'a'", function)
    with pytest.raises(ConfigurationError, match=r"has no attribute 'Nowhere'.*define 'Nowhere'"):
        read.check("step 'a'", missing)
    with pytest.raises(ConfigurationError, match=r"task 'missing': .*define 'Nowhere'"):
        Signature(missing, "missing").check()
    read.check("step 'a'", inside)
    assert read.decoded("step 'a'", read.encoded("step 'a'", Inner(3), inside), inside) == Inner(3)


def test_an_annotation_that_is_not_there_is_named() -> None:
    def f(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match="task 'f': name 'Nowhere' is not defined"):
        Signature(f, "f").check()
