"""The parts of SQLAlchemy for asyncio that the relay uses, by the same names as in `_sql/sync/colour.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import engine
from sqlalchemy.ext.asyncio import AsyncConnection as Connection
from sqlalchemy.ext.asyncio import AsyncEngine as Engine

__all__ = ["Connection", "Engine", "run_on"]

R = TypeVar("R")


async def run_on(connection: Connection, function: Callable[[engine.Connection], R]) -> R:
    """Call *function* with the connection of the other colour."""
    return await connection.run_sync(function)
