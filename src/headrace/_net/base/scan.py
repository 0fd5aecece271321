"""SCAN: its command, and the names in its reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace._protocol.op import pack
from headrace._protocol.replies import text


def scanning(pattern: str) -> Callable[[int], bytes]:
    """Return the function that makes the command of a scan's step from its cursor."""
    return lambda cursor: pack(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))


def scanned(reply: Any) -> tuple[int, list[str]]:
    """Decode the reply to a scan. Raises it, if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return int(reply[0]), [text(key) for key in reply[1]]
