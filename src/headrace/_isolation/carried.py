"""Payloads, results and recorded values between the queue's codec and the link.

A queue's codec may seal, compress or store elsewhere the output of another codec. On the link there
is only the output of the innermost codec, which both processes have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace._model.codec import as_bytes, untyped

BINDS = ("bound", "of", "grouped")  # what a child may do to a codec


def innermost(codec: Any) -> Any:
    while (inside := getattr(codec, "codec", None)) is not None:
        codec = inside
    return codec


def wrapped(codec: Any, path: Sequence[Sequence[str]], data: bytes) -> bytes:
    """Put the outer codecs around the output of the innermost one."""
    inside = untyped(innermost(codec)).decode(data)
    return as_bytes(untyped(_along(codec, path)).encode(inside))


def unwrapped(codec: Any, path: Sequence[Sequence[str]], data: bytes) -> bytes:
    value = untyped(_along(codec, path)).decode(data)
    return as_bytes(untyped(innermost(codec)).encode(value))


def _along(codec: Any, path: Sequence[Sequence[str]]) -> Any:
    for verb, *args in path:
        if verb not in BINDS:
            raise ValueError(f"{verb!r:.100} is nothing that a child may do to a codec")
        codec = getattr(codec, verb)(*args)
    return codec
