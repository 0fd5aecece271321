"""Foreign text on screens. It is bounded and has no control characters."""

from __future__ import annotations

from typing import Any

from headrace._model.views.texts import (
    LINE_CHARACTERS,
    READ_BYTES,
    Payload,
    bounded,
    one_line,
    readable,
    text_of,
    visible,
)
from tests.support.facts import each


@each(
    ("data", "kind", "text"),
    [
        (b"plain", "text", "plain"),
        (b'{"a":[1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b"[" * 5, "text", "[" * 5),  # no JSON after all
        (b"\xff\x00\x01", "hex", "ff00 01"),
        ("ä".encode()[:1], "hex", "c3"),
    ],
)
def test_a_payload_by_its_kind(data: bytes, kind: str, text: str) -> None:
    assert readable(data) == (kind, text)


def test_a_large_payload_is_not_parsed_and_may_end_within_a_character() -> None:
    kind, text = readable(b"[" + "ä".encode() * READ_BYTES)
    assert kind == "text"
    assert text == "[" + "ä" * (READ_BYTES // 2 - 1)


def test_characters_that_a_display_would_obey_are_spelled() -> None:
    assert visible("a\u202eb\x00\n") == "a\\u202eb\\x00\\n"
    assert bounded("a\n\x1b[2J", 4) == ("a\n\\x1b[", True)


def test_a_line_says_that_it_is_cut() -> None:
    assert one_line("a\n b") == "a b"
    assert one_line("a" * LINE_CHARACTERS) == "a" * LINE_CHARACTERS
    assert one_line("a" * (LINE_CHARACTERS + 1)) == "a" * LINE_CHARACTERS + "…"
    assert Payload("text", "a", 5, cut=True).line == "a…"


class Endless:
    """A value that JSON can't hold."""

    def __repr__(self) -> str:
        return "endless"


@each(
    ("value", "shown"),
    [
        (bytearray(b"x"), ("text", "x")),
        ("x", ("text", "x")),
        ([1, Endless()], ("json", '[\n  1,\n  "endless"\n]')),
        ({(1, 2): 3}, ("text", "{(1, 2): 3}")),
    ],
)
def test_a_decoded_payload(value: Any, shown: tuple[str, str]) -> None:
    assert text_of(value) == shown
