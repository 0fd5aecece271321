"""Payloads and other foreign text as they may be shown: bounded, and without characters that a display would obey."""

from __future__ import annotations

import codecs
import json
from typing import Any

from attrs import field, frozen

from headrace._model.job import shortened

READ_BYTES = 65_536  # bytes of a payload that are looked at to show it
SHOWN_CHARACTERS = 16_384  # characters of a text that are shown of one job
LAYOUT = "\n\t"  # characters that do not print, and may stay in a text of several lines
LINE_CHARACTERS = 160  # characters of a text that are shown in a list


@frozen
class Payload:
    """A payload as it may be shown: `kind` is text, json or hex; `size` bytes there are, `cut` if not all is shown."""

    kind: str
    text: str = field(repr=shortened)
    size: int
    cut: bool = False

    @property
    def line(self) -> str:
        """Its beginning, on one line."""
        return one_line(self.text, cut=self.cut)


def visible(text: str, keep: str = "") -> str:
    r"""Spell characters that do not print as escapes (`\x00`, `\u202e`), but those in *keep*."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, most: int = LINE_CHARACTERS, *, cut: bool = False) -> str:
    """Return the beginning of *text* on one line, which says whether it is *cut*."""
    start = visible(" ".join(text[: 4 * most].split()))
    return f"{start[:most]}…" if cut or len(start) > most or len(text) > 4 * most else start


def bounded(text: str, most: int = SHOWN_CHARACTERS) -> tuple[str, bool]:
    """Return *text* as it may be shown in several lines, and whether that is less than all."""
    return visible(text[:most], keep=LAYOUT), len(text) > most


def readable(data: bytes) -> tuple[str, str]:
    """Return the format of *data*, text, json or hex, and its beginning as text.

    JSON is an object or a list that is small enough to be parsed whole.
    """
    start = data[:READ_BYTES]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(data))
    except UnicodeDecodeError:
        return "hex", start.hex(" ", -2)
    if len(start) == len(data) and text.lstrip()[:1] in {"{", "["}:
        try:
            return "json", json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return "text", text


def spelled(value: Any) -> tuple[str, str]:
    """Return the kind of a decoded payload, and its text: bytes as `readable` has them, all else as JSON."""
    if isinstance(value, (bytes, bytearray)):
        return readable(bytes(value))
    if isinstance(value, str):
        return "text", value
    try:
        return "json", json.dumps(value, indent=2, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        return "text", repr(value)
