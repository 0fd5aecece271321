"""Numbers in replies. A foreign client may have written anything in their place."""

from __future__ import annotations

from typing import Any


def decoded_number(value: Any, limit: int = 1 << 53) -> int:
    """Decode a count or a moment below *limit*. Return 0 if it can't be one."""
    try:
        number = int(value) if value is not None else 0
    except ValueError:
        return 0
    return number if 0 <= number < limit else 0
