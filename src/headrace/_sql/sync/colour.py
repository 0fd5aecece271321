"""The parts of SQLAlchemy that the relay uses, by the same names as in `_sql/aio/colour.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from threading import Event
from typing import Any, TypeVar

from sqlalchemy.engine import Connection, Engine

from headrace._net.sync.colour import happens
from headrace._sql.tables import LISTEN, notifies

__all__ = ["Connection", "Engine", "listening", "run_on", "rung"]

R = TypeVar("R")
LOOK_S = 0.25  # seconds after which a thread that waits for rows looks whether it should end


def run_on(connection: Connection, function: Callable[[Connection], R]) -> R:
    """Call *function* with the connection."""
    return function(connection)


@contextmanager
def listening(engine: Engine) -> Generator[Any]:
    """Yield a connection that is told of committed rows; `None` where the database, or its driver, tells nothing."""
    if not notifies(engine.dialect):
        yield None
        return
    driver: Any = None
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(LISTEN)
            connection.commit()
            driver = connection.connection.driver_connection
            connection.detach()  # it listens: no other user may get it from the pool
            yield driver
    finally:
        if driver is not None:
            driver.close()


def rung(driver: Any, wake: str, over: Event, seconds: float) -> None:
    """Wait until rows with the notification *wake* are committed, or the end, *seconds* at most."""
    if driver is None:
        happens(over, seconds)
        return
    end = time.monotonic() + seconds
    while not over.is_set() and (left := end - time.monotonic()) > 0:
        with closing(driver.notifies(timeout=min(left, LOOK_S))) as notes:
            if any(note.payload == wake for note in notes):
                return
