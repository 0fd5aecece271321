"""The parts of SQLAlchemy for asyncio that the relay uses, by the same names as in
`sql/_sync/colour.py`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection as Connection, AsyncEngine as Engine

from headrace.platform import aio
from headrace.sql._tables import CHANNEL, LISTEN, NOTIFY, TEST_S, BaseSession, tell_not_told

__all__ = [
    "Background",
    "Connection",
    "Engine",
    "Event",
    "Session",
    "event",
    "happens",
    "run_on",
    "session_of",
]

Background = aio.Background
Event = aio.Event
event = aio.event
happens = aio.happens

R = TypeVar("R")


async def run_on(connection: Connection, function: Callable[[engine.Connection], R]) -> R:
    return await connection.run_sync(function)


class Session(BaseSession):
    """The session of a relay. On PostgreSQL it is one connection. On SQLite each look for rows
    opens the file.
    """

    async def listen(self, over: asyncio.Event) -> None:
        """Begin to listen, and test it by a notification from another session.

        Its own would be heard behind a pooler, too. Until the test has come, the session is idle,
        as a pooler might pass it on with the answer to a statement.
        """
        if self._held is None or self._driver is None:
            return
        await self._held.exec_driver_sql(LISTEN)
        await self._held.commit()
        test = f"test {secrets.token_hex(8)}"
        end = time.monotonic() + TEST_S
        with suppress(SQLAlchemyError):
            async with self._engine.begin() as another:
                await another.execute(NOTIFY, {"channel": CHANNEL, "wake": test})
        while not self.told and not over.is_set() and (left := end - time.monotonic()) > 0:
            self.told = test in await self.rung(over, left)
        if not self.told and not over.is_set():
            tell_not_told(self._name)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Yield a connection that is in no transaction."""
        if self._held is not None:
            yield self._held
            return
        async with self._engine.connect() as connection:
            yield connection

    async def rung(self, over: asyncio.Event, seconds: float) -> set[str]:
        """Wait for notifications, or the end, *seconds* at most. Return the texts that came."""
        heard: set[str] = set()
        if self._driver is None:
            await happens(over, seconds)
            return heard

        async def hear() -> None:
            async with aclosing(
                self._driver.notifies(timeout=max(0.0, seconds), stop_after=1)
            ) as notes:
                async for note in notes:
                    heard.add(note.payload)

        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(hear()),
            asyncio.create_task(over.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not tasks[0].cancelled():
            tasks[0].result()
        return heard


@asynccontextmanager
async def session_of(engine: Engine, name: str) -> AsyncGenerator[Session]:
    if engine.dialect.name != "postgresql":
        yield Session(engine, name)
        return
    driver: Any = None
    try:
        async with engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            # no other user may get it from the pool
            await run_on(connection, lambda own: own.detach())
            yield Session(engine, name, connection, driver)
    finally:
        if driver is not None:
            await driver.close()
