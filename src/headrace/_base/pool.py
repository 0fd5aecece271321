"""The base of both pools: the connections of an executor, made by redis-py, and handed out by us.

A connection's settings, its socket and TLS, its greeting, its credentials and its protocol are redis-py's. Its own
pools take a lock, look at the socket and count, each time: as long as a short call takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions as errors

from headrace._base.sentinel import Watch

SPARE_S = 10.0  # seconds without use, after which a worker with many queues closes what it has opened under load
LOOK_AFTER_S = 0.1  # seconds without use, after which a connection is looked at: the server may have closed it


class BasePool:
    """The base of `Pool` and `AsyncPool`: the connections that there are, and those that are free."""

    def __init__(self, maker: Any) -> None:
        self._maker = maker  # a pool of redis-py's, which hands out none
        self.keep: float | None = None  # seconds for which connections stay open that are not used; None: for ever
        self._free: list[tuple[Any, float]] = []  # and since when; the newest is last, and taken first
        self._all: set[Any] = set()
        self._watch: Watch | None = getattr(getattr(maker, "sentinel_manager", None), "watch", None)
        if self._watch is None and hasattr(maker, "sentinel_manager"):
            maker.disconnect = self.disconnect  # it has found another primary: what is free leads to the old one

    def disconnect(self, inuse_connections: bool = True) -> Any:
        """Close the free connections, and those in use; a call that uses one fails."""
        raise NotImplementedError

    def _newest(self) -> tuple[Any, bool]:
        """Take the connection that was used last, or make one; tell whether it is to be looked at."""
        try:
            connection, since = self._free.pop()
        except IndexError:
            connection = self._maker.make_connection()
            self._all.add(connection)
            return connection, False
        former = self._watch is not None and not self._watch.leads(connection)
        return connection, former or time.monotonic() - since > LOOK_AFTER_S

    def _spare(self) -> Sequence[Any]:
        """Forget the connections that are not used any more, and return them; call it when one is taken."""
        if self.keep is None:
            return ()
        since, spare = time.monotonic() - self.keep, list[Any]()
        with suppress(IndexError):  # none is left; another thread may have taken the last
            while self._free[0][1] < since:
                spare.append(self._free.pop(0)[0])
        return spare

    def check(self, connection: Any) -> None:
        """Raise `ConnectionError` if what has answered on it is the primary no more: that does not count."""
        if self._watch is not None and not self._watch.leads(connection):
            raise errors.ConnectionError(f"{connection.host}:{connection.port} is no longer the primary")

    def give(self, connection: Any) -> None:
        """Return a connection on which everything is answered."""
        self._free.append((connection, time.monotonic()))

    def _emptied(self, everything: bool) -> list[Any]:
        """Forget the free connections, or all, and return them."""
        free, self._free = self._free, []
        some = [connection for connection, _ in free]
        if everything:
            some = list(self._all)
        self._all.difference_update(some)
        return some


def unreadable(error: OSError) -> errors.ConnectionError:
    """Make of an error of a socket what redis-py makes of it."""
    return errors.ConnectionError(f"Error while reading from the server: {error.args}")
