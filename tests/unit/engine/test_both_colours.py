"""The parts of engines that are the same for threads and for asyncio."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headrace._core.effects import Phase
from headrace._engine.base import BaseEngine


def test_roles_that_fail_at_the_same_moment_are_one_error(caplog: pytest.LogCaptureFixture) -> None:
    """The second role fails while the first error is logged. Its own error is logged for debugging
    only."""
    engine: Any = SimpleNamespace(
        wake=lambda: None, drain=lambda: None, error=None, _gave_up=False, _hurried=False,
        _failing=threading.Lock(), lifecycle=SimpleNamespace(phase=Phase.RUNNING),
    )  # fmt: skip
    first, second = ConnectionError("first"), ConnectionError("second")

    class Meanwhile(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if "first" in record.getMessage():
                BaseEngine.failed(engine, second, "work")
            return True

    logger, meanwhile = logging.getLogger("headrace"), Meanwhile()
    logger.addFilter(meanwhile)
    try:
        with caplog.at_level(logging.DEBUG, "headrace"):
            BaseEngine.failed(engine, first, "work")
    finally:
        logger.removeFilter(meanwhile)
    levels = {record.getMessage().rpartition(" ")[2]: record.levelno for record in caplog.records}
    assert levels == {"first": logging.ERROR, "second": logging.DEBUG}
    assert engine.error is first
