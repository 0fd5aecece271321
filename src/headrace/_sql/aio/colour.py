"""The parts of SQLAlchemy for asyncio that the relay uses, by the same names as in `_sql/sync/colour.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import engine
from sqlalchemy.ext.asyncio import AsyncConnection as Connection
from sqlalchemy.ext.asyncio import AsyncEngine as Engine

from headrace._net.aio.colour import happens
from headrace._sql.tables import LISTEN, notifies

__all__ = ["Connection", "Engine", "listening", "run_on", "rung"]

R = TypeVar("R")


async def run_on(connection: Connection, function: Callable[[engine.Connection], R]) -> R:
    """Call *function* with the connection of the other colour."""
    return await connection.run_sync(function)


@asynccontextmanager
async def listening(engine: Engine) -> AsyncGenerator[Any]:
    """Yield a connection that is told of committed rows; `None` where the database, or its driver, tells nothing."""
    if not notifies(engine.dialect):
        yield None
        return
    driver: Any = None
    try:
        async with engine.connect() as connection:
            await connection.exec_driver_sql(LISTEN)
            await connection.commit()
            driver = (await connection.get_raw_connection()).driver_connection
            await run_on(connection, lambda own: own.detach())  # it listens: no other user may get it from the pool
            yield driver
    finally:
        if driver is not None:
            await driver.close()


async def rung(driver: Any, wake: str, over: asyncio.Event, seconds: float) -> None:
    """Wait until rows with the notification *wake* are committed, or the end, *seconds* at most."""
    if driver is None:
        await happens(over, seconds)
        return

    async def heard() -> None:
        async with aclosing(driver.notifies(timeout=seconds)) as notes:
            async for note in notes:
                if note.payload == wake:
                    return

    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(heard()), asyncio.create_task(over.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not tasks[0].cancelled():
        tasks[0].result()
