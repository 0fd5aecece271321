"""The parts of SQLAlchemy that the relay uses, by the same names as in `sql/_aio/colour.py`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from typing import TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from headrace.platform import sync
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

Background = sync.Background
Event = sync.Event
event = sync.event
happens = sync.happens

R = TypeVar("R")
LOOK_S = 0.25  # seconds after which a thread that waits for rows looks whether it should end


def run_on(connection: Connection, function: Callable[[Connection], R]) -> R:
    return function(connection)


class Session(BaseSession):
    """The session of a relay. On PostgreSQL it is one connection. On SQLite each look for rows
    opens the file.
    """

    def listen(self, over: Event) -> None:
        """Begin to listen, and test it by a notification from another session.

        Its own would be heard behind a pooler, too. Until the test has come, the session is idle,
        as a pooler might pass it on with the answer to a statement.
        """
        if self._held is None or self._driver is None:
            return
        self._held.exec_driver_sql(LISTEN)
        self._held.commit()
        test = f"test {secrets.token_hex(8)}"
        end = time.monotonic() + TEST_S
        with suppress(SQLAlchemyError), self._engine.begin() as another:
            another.execute(NOTIFY, {"channel": CHANNEL, "wake": test})
        while not self.told and not over.is_set() and (left := end - time.monotonic()) > 0:
            self.told = test in self.rung(over, left)
        if not self.told and not over.is_set():
            tell_not_told(self._name)

    @contextmanager
    def connection(self) -> Generator[Connection]:
        """Yield a connection that is in no transaction."""
        if self._held is not None:
            yield self._held
            return
        with self._engine.connect() as connection:
            yield connection

    def rung(self, over: Event, seconds: float) -> set[str]:
        """Wait for notifications, or the end, *seconds* at most. Return the texts that came."""
        heard: set[str] = set()
        if self._driver is None:
            happens(over, seconds)
            return heard
        end = time.monotonic() + seconds
        while not over.is_set() and not heard:
            left = end - time.monotonic()
            with closing(
                self._driver.notifies(timeout=min(max(0.0, left), LOOK_S), stop_after=1)
            ) as notes:
                heard.update(note.payload for note in notes)
            if left <= LOOK_S:
                break
        return heard


@contextmanager
def session_of(engine: Engine, name: str) -> Generator[Session]:
    if engine.dialect.name != "postgresql":
        yield Session(engine, name)
        return
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        connection.detach()  # no other user may get it from the pool
        yield Session(engine, name, connection, driver)
