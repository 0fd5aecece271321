"""Payloads to bytes and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headrace._model.codec import BytesCodec, chosen
from headrace._protocol.features import results as result_ops
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from headrace.codecs import JSONCodec
from headrace.errors import CodecError
from tests.support.facts import each


class Text(str):
    __slots__ = ()


class Raw(bytes):
    __slots__ = ()


@each(
    ("payload", "expected"),
    [
        (b"", b""),
        (b"\x00\xff", b"\x00\xff"),
        (Raw(b"x"), b"x"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"abcd")[::2], b"ac"),
        ("ä", "ä".encode()),
        (Text("x"), b"x"),
        ("", b""),
    ],
)
def test_bytes(payload: Any, expected: bytes) -> None:
    codec = BytesCodec()
    assert codec.encode(payload) == expected
    assert type(codec.encode(payload)) is bytes
    assert codec.decode(expected) is expected


@each("payload", [None, 5, 1.5, True, {}, [b"x"], object()])
def test_what_has_no_bytes(payload: Any) -> None:
    with pytest.raises(
        TypeError, match=f"payload must be bytes or str, not {type(payload).__name__}"
    ):
        BytesCodec().encode(payload)


def test_a_str_that_is_no_text() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        BytesCodec().encode("\ud800")


class Mail(msgspec.Struct):
    to: str
    cc: list[str] = []


@each("payload", [None, 5, "ä", [1, {"a": None}], {"a": 1.5}, True])
def test_json(payload: Any) -> None:
    codec = JSONCodec()
    assert codec.decode(codec.encode(payload)) == payload


def test_json_is_compact_utf_8() -> None:
    assert JSONCodec().encode({"a": [1, "ä"]}) == '{"a":[1,"ä"]}'.encode()


def test_json_of_a_type() -> None:
    codec = JSONCodec(Mail)
    assert codec.decode(codec.encode(Mail("ada"))) == Mail("ada")
    for wrong in (b'{"to": 5}', b"{}", b"", b"\xff", b"["):
        with pytest.raises(msgspec.DecodeError):
            codec.decode(wrong)


def _nested() -> Any:
    payload: list[Any] = []
    payload.append(payload)
    return payload


@each("payload", [object(), {1j: 2}, "\ud800", _nested()])
def test_what_is_no_json(payload: Any) -> None:
    with pytest.raises(CodecError, match="payload does not encode as JSON") as raised:
        JSONCodec().encode(payload)
    assert isinstance(raised.value, ValueError)
    assert raised.value.__cause__ is not None


def test_a_result_that_does_not_encode_says_so() -> None:
    with pytest.raises(TypeError, match=r"^result: payload must be"):
        result_ops.result_bytes(Ops(Keys.of("q")), 5)
    with pytest.raises(CodecError, match=r"^result: payload does not encode"):
        result_ops.result_bytes(Ops(Keys.of("q"), codec=JSONCodec()), object())


@each("codec", [JSONCodec, json, "json", object()])
def test_what_is_no_codec(codec: Any) -> None:
    with pytest.raises(TypeError, match=r"codec must be an object with encode\(\) and decode\(\)"):
        chosen(codec)


def test_the_codec_of_a_queue() -> None:
    mine = JSONCodec()
    assert chosen(mine) is mine
    assert isinstance(chosen(None), BytesCodec)
