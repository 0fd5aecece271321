"""Payloads, results and recorded values between the queue's codec and the link.

A queue's codec may seal, compress or store elsewhere the output of another codec. On the link there
is only the output of the innermost codec, which both processes have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from headrace._model.codec import as_bytes, untyped


def innermost(codec: Any) -> Any:
    while (inside := getattr(codec, "codec", None)) is not None:
        codec = inside
    return codec


@frozen
class Carried:
    """The values of a run whose steps are taken in a child. The child encodes and decodes them
    with the innermost codec, and this class puts the others around it.
    """

    codec: Any

    def check(self, what: str, function: Callable[..., Any]) -> None:
        """Do nothing, as the child has checked it."""

    def encoded(self, what: str, value: Any, function: Any = None) -> bytes | None:  # noqa: ARG002 - the child knows it
        if value is None:
            return None
        inside = untyped(innermost(self.codec))
        kind: bytes = value[:1]
        return kind + as_bytes(untyped(self.codec).encode(inside.decode(value[1:])))

    def decoded(self, what: str, data: bytes | None, function: Any = None) -> Any:  # noqa: ARG002 - the child knows it
        if data is None:
            return None
        inside = untyped(innermost(self.codec))
        return data[:1] + as_bytes(inside.encode(untyped(self.codec).decode(data[1:])))
