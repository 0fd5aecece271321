"""Codecs of a type. A value of `T` comes back equal. Any other value is refused before a call is
sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import attrs
import msgspec
import pytest
from hypothesis import given, strategies as st

from headrace._codecs.formats import classes
from headrace._installing import install_command
from headrace._model.codec import untyped
from headrace.codecs import JSONCodec, MsgpackCodec, PydanticCodec
from headrace.errors import CodecError
from tests.support.facts import each

pydantic = pytest.importorskip("pydantic")
from typing_extensions import TypedDict as Older  # noqa: E402 - comes with pydantic, which wants it before Python 3.12


@dataclass
class Mail:
    to: str
    cc: list[str] = field(default_factory=list)


@attrs.frozen
class Point:
    x: float
    y: float = 0.0


class Order(msgspec.Struct):
    number: int


class Row(TypedDict):
    id: int


class OldRow(Older):
    id: int


class Pair(NamedTuple):
    left: int
    right: str


class Address(pydantic.BaseModel):
    street: str
    number: int = pydantic.Field(alias="no")
    since: datetime | None = None


UserId = NewType("UserId", int)
Kind = Callable[[Any], Any]
MSGSPEC = [JSONCodec, MsgpackCodec]
ALL: list[Kind] = [JSONCodec, MsgpackCodec, PydanticCodec]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@each("kind", ALL)
@each(
    ("type", "payload"),
    [
        (Mail, Mail("ada", ["ben"])),
        (Row, {"id": 5}),
        (OldRow, {"id": 5}),
        (Pair, Pair(1, "x")),
        (int, 5),
        (float, 5),
        (float, 2.5),
        (str, "ä"),
        (bytes, b"\x61\x62"),
        (None, None),
        (list[Mail], [Mail("ada")]),
        (dict[str, int], {"a": 1}),
        (Sequence[int], [1, 2]),
        (Mapping[str, int], {"a": 1}),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (Mail | None, None),
        (Mail | None, Mail("ada")),
        (Literal["a", "b"], "b"),
        (Annotated[int, "of something"], 5),
        (UserId, UserId(5)),
        (datetime, NOW),
        (Any, {"a": [1, None]}),
        (object, {"a": [1, None]}),
    ],
)
def test_what_is_of_the_type_comes_back(kind: Kind, type: Any, payload: Any) -> None:
    codec = kind(OldRow if kind is PydanticCodec and type is Row else type)
    again = codec.decode(codec.encode(payload))
    assert again == payload
    assert isinstance(again, (payload.__class__, float))


@each("kind", MSGSPEC)
@each(("type", "payload"), [(Point, Point(1.5)), (Order, Order(7))])
def test_types_of_msgspec(kind: Kind, type: Any, payload: Any) -> None:
    codec = kind(type)
    assert codec.decode(codec.encode(payload)) == payload


def test_models() -> None:
    codec = PydanticCodec(Address)
    address = Address(street="Main", no=5, since=NOW)
    assert codec.encode(address) == b'{"street":"Main","no":5,"since":"2026-01-01T00:00:00Z"}'
    assert codec.decode(codec.encode(address)) == address


@each("kind", ALL)
@each(
    ("type", "payload", "says"),
    [
        (Mail, {"to": "ada"}, "payload must be Mail, not dict"),
        (Mail, b"x", "payload must be Mail, not bytes"),
        (Mail, None, "payload must be Mail, not NoneType"),
        (int, "5", "payload must be int, not str"),
        (list[int], {1}, r"payload must be list\[int\], not set"),
        (Mail | None, 5, "payload must be .*Mail | None, not int"),
        (OldRow, [("id", 5)], "payload must be OldRow, not list"),
        (Literal["a"], 5, "payload must be .*Literal.*, not int"),
        (None, 5, "payload must be None, not int"),
    ],
)
def test_instances_of_other_classes_are_refused(
    kind: Kind, type: Any, payload: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        kind(type).encode(payload)


@each("kind", ALL)
@each(
    ("type", "payload"),
    [
        (Mail, Mail(5)),  # type: ignore[arg-type]
        (Mail, Mail("ada", cc=[b"x", 5])),  # type: ignore[list-item]
        (OldRow, {"id": "x"}),
        (OldRow, {}),
        (list[int], ["x"]),
        (Literal["a", "b"], "c"),
        (float, float("nan")),
        (tuple[int, str], (1,)),
        (dict[str, int], {"a": None}),
        (Mail, Mail("\ud800")),
        (Mail, Mail(object())),  # type: ignore[arg-type]
    ],
)
def test_values_that_do_not_come_back_are_refused(kind: Kind, type: Any, payload: Any) -> None:
    """A value that the class allows and the type forbids is refused, because nothing could decode
    it."""
    if type is float:
        kind = JSONCodec  # the others have a NaN
    with pytest.raises(CodecError, match="payload"):
        kind(type).encode(payload)


def test_the_message_names_the_field() -> None:
    with pytest.raises(
        CodecError, match=r"payload is no Mail: Expected `str`, got `int` - at `\$.to`"
    ):
        JSONCodec(Mail).encode(Mail(5))  # type: ignore[arg-type]
    with pytest.raises(
        CodecError,
        match=r"(?s)payload does not encode as JSON: PydanticSerializationError: .*Expected `str`",
    ):
        PydanticCodec(Mail).encode(Mail("ada", [[]]))  # type: ignore[list-item]
    with pytest.raises(
        CodecError,
        match=r"^no Address: street: Field required; no: Input should be a valid integer",
    ) as raised:
        PydanticCodec(Address).decode(b'{"no": "the secret"}')
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
    many = b"[%s]" % b",".join([b'"x"'] * 20)
    with pytest.raises(CodecError, match=r"; and 15 more$"):
        PydanticCodec(list[int]).decode(many)


def test_secrets_that_do_not_serialize() -> None:
    class Strict(pydantic.BaseModel):
        handle: Any

    with pytest.raises(CodecError, match="does not encode as JSON: PydanticSerializationError"):
        PydanticCodec(Strict).encode(Strict(handle=object()))


class Picky(msgspec.Struct):
    name: str

    def __post_init__(self) -> None:
        if self.name == "no":
            raise ValueError("not that one")
        if self.name == "worse":
            raise LookupError("nor that one")


@each(("name", "error"), [("no", msgspec.ValidationError), ("worse", CodecError)])
def test_checks_of_the_type_s_own(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="that one"):
        JSONCodec(Picky).decode(b'{"name":"%s"}' % name.encode())


MAILS = st.builds(Mail, st.text(), st.lists(st.text(), max_size=3))
BASIC = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(MAILS)
def test_mails_round_trip(mail: Mail) -> None:
    for kind in ALL:
        codec = kind(Mail)
        assert codec.decode(codec.encode(mail)) == mail


@given(BASIC)
def test_anything_basic_round_trips(value: Any) -> None:
    for codec in (JSONCodec(), MsgpackCodec(), untyped(PydanticCodec(Mail))):
        assert codec.decode(codec.encode(value)) == value


HOSTILE = st.binary(max_size=60) | st.sampled_from(
    [b"[" * 100_000, b'{"a":' * 5000, b"9" * 10_000, b'"\\ud800"', b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff",
     b"\xc9\xff\xff\xff\xff\x01", b"1e999999", b'{"to":"' + b"\xff" + b'"}', b"\xd6\xff\xff\xff\xff\xff", b""]
)  # fmt: skip


@given(
    HOSTILE,
    st.sampled_from(
        [Any, Mail, OldRow, list[int], int, datetime, bytes, Picky, Address, set[str], Mail | None]
    ),
)
def test_hostile_bytes_end_in_one_kind_of_error(data: bytes, type: Any) -> None:
    for kind in ALL:
        if type in ((Picky,) if kind is PydanticCodec else (Address,)):
            continue
        for codec in (kind(type), untyped(kind(type))):
            with suppress(CodecError, msgspec.DecodeError):
                codec.decode(data)


def test_results_and_follow_ups_may_be_of_any_type() -> None:
    for kind in ALL:
        codec = untyped(kind(Mail))
        assert codec.decode(codec.encode({"sent": 5})) == {"sent": 5}
        assert codec.decode(codec.encode(Mail("ada"))) == {"to": "ada", "cc": []}
        assert untyped(codec) is codec
    with pytest.raises(CodecError, match="does not encode as JSON"):
        untyped(PydanticCodec(Mail)).encode(object())
    with pytest.raises(CodecError, match="not JSON"):
        untyped(PydanticCodec(Mail)).decode(b"{")


def test_reprs_name_the_type() -> None:
    assert repr(JSONCodec(Mail)) == "JSONCodec(Mail)"
    assert repr(MsgpackCodec(list[Mail])) == f"MsgpackCodec(list[{__name__}.Mail])"
    assert repr(PydanticCodec(Address)) == "PydanticCodec(Address)"
    assert repr(JSONCodec()) == "JSONCodec()"


def test_classes_of_what_does_not_tell() -> None:
    class Shape(msgspec.Struct):
        pass

    from typing import Protocol, TypeVar

    class Sized(Protocol):
        size: int

    assert classes(TypeVar("X")) is classes(Sized) is classes(Any | Shape) is None
    assert classes(int | None) == (int, type(None))


@pytest.mark.parametrize("missing", ["msgspec", "pydantic"])
def test_the_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace import ConfigurationError

    monkeypatch.setitem(__import__("sys").modules, missing, None)
    for kind, extra in (JSONCodec, "json"), (MsgpackCodec, "msgpack"), (PydanticCodec, "pydantic"):
        if (missing == "pydantic") == (extra == "pydantic"):
            with pytest.raises(
                ConfigurationError,
                match=re.escape(f"{kind.__name__} is an extra: {install_command(extra)}"),
            ):
                kind(Mail)
