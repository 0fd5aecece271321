"""The parts of SQLAlchemy that the relay uses, by the same names as in `_sql/aio/colour.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection, Engine

__all__ = ["Connection", "Engine", "run_on"]

R = TypeVar("R")


def run_on(connection: Connection, function: Callable[[Connection], R]) -> R:
    """Call *function* with the connection."""
    return function(connection)
