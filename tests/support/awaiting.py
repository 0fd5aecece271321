"""Conditions that are awaited, not slept for."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds until what is awaited counts as missed: it costs nothing where nothing fails


def until(condition: Callable[[], object], what: str = "", patience: float = PATIENCE) -> None:
    """Wait until *condition* holds; fail when that takes too long."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain: {what or condition}"
        time.sleep(0.002)
