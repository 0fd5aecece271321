"""Waits for conditions, in place of sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable

# seconds until what is awaited counts as missed: it costs nothing where nothing fails
PATIENCE = 60.0


def until(
    condition: Callable[[], object],
    what: str = "",
    patience: float = PATIENCE,
    *,
    longest: float = 0.1,
) -> None:
    """Wait until *condition* holds, and fail if that takes too long.

    The longer it has taken, the less often it looks, up to *longest* s: it takes the processor from
    others.
    """
    began = time.monotonic()
    while not condition():
        passed = time.monotonic() - began
        assert passed < patience, f"waited {patience:g} s in vain: {what or condition}"
        time.sleep(min(max(0.002, passed / 20), longest))
