"""A bound for the calls of an executor under asyncio, by one timer for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace._net.aio.pool import abort


class Watchdog:
    """Cuts connections on which a call takes longer than *seconds*.

    All are watched for as long, so the oldest is due first. With a timer for each call, a lone call takes an eighth
    more of the client's time; with `asyncio.timeout`, a quarter more.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: dict[Any, float] = {}  # of connections, the oldest first
        self._loop: asyncio.AbstractEventLoop | None = None  # on which the timer is set

    def watch(self, connection: Any) -> None:
        """Watch a connection from now on, until `leave`."""
        loop = asyncio.get_running_loop()
        self._due[connection] = loop.time() + self.seconds
        if self._loop is not loop:  # none is set, or on a loop that has ended
            self._loop = loop
            loop.call_later(self.seconds, self._look, loop)

    def leave(self, connection: Any) -> None:
        """Watch a connection no longer."""
        self._due.pop(connection, None)

    def has_cut(self, connection: Any) -> bool:
        """Tell whether a connection that was watched is no longer: its call took too long."""
        return connection not in self._due

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cut the connections that are due, and come back for the next one."""
        if loop is not self._loop:
            return
        for connection, due in list(self._due.items()):
            if due > loop.time():
                loop.call_at(due, self._look, loop)
                return
            del self._due[connection]
            abort(connection)
        self._loop = None
