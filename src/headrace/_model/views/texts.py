"""Texts and payloads as they are shown, bounded and printable."""

from __future__ import annotations

import codecs
import json
from typing import Any

from attrs import field, frozen

from headrace._model.job import shortened

SHOWN_CHARACTERS = 16_384  # characters of a text that are shown of one job
READ_BYTES = 4 * SHOWN_CHARACTERS  # bytes of a payload that are read to show it
LAYOUT = "\n\t"  # characters that do not print, and may stay in a text of several lines
UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
LINE_CHARACTERS = 160  # characters of a text that are shown in a list


@frozen
class Payload:
    """A payload as it may be shown. `kind` is text, json or hex. `size` is its number of bytes,
    and `cut` is whether a part is left out.
    """

    kind: str
    text: str = field(repr=shortened)
    size: int
    cut: bool = False
    whole: bool = False
    """Whether the text is all of it, neither redacted nor escaped. Then it may be edited."""

    @property
    def line(self) -> str:
        """Its beginning, on one line."""
        return one_line(self.text, cut=self.cut)


def span(seconds: float | None) -> str:
    """Write a duration in few characters."""
    if seconds is None:
        return ""
    size, unit = next((unit for unit in UNITS if seconds >= unit[0]), (1.0, "s"))
    number = (
        f"{seconds / size:.1f}".removesuffix(".0") if seconds < 10 * size and unit != "s" else ""
    )
    return f"{number or round(seconds / size)} {unit}"


def visible(text: str, keep: str = "") -> str:
    r"""Spell characters that do not print as escapes (`\x00`, `\u202e`), but those in *keep*."""
    if text.isprintable():
        return text
    return "".join(
        c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def one_line(text: str, most: int = LINE_CHARACTERS, *, cut: bool = False) -> str:
    """Return the beginning of *text* on one line, marked by an ellipsis if it is cut, or the text
    was *cut* before."""
    start = visible(" ".join(text[: 4 * most].split()))
    return f"{start[:most]}…" if cut or len(start) > most or len(text) > 4 * most else start


def bounded(text: str, most: int = SHOWN_CHARACTERS) -> tuple[str, bool]:
    """Return the printable beginning of *text*, in several lines, and whether that is less than
    all."""
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


def text_of(value: Any) -> tuple[str, str]:
    """Return the kind and the text of a decoded payload. Bytes are shown as by `readable`, and
    other values as JSON.
    """
    if isinstance(value, (bytes, bytearray)):
        return readable(bytes(value))
    if isinstance(value, str):
        return "text", value
    try:
        return "json", json.dumps(value, indent=2, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        return "text", repr(value)
