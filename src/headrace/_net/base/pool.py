"""The base of both pools: the connections of executors, made by redis-py, and handed out by us.

A connection's settings, its socket and TLS, its greeting, its credentials and its protocol are redis-py's. Its own
pools take a lock, look at the socket and count, each time: as long as a short call takes.

Queues and flows of one address share them, so that a thousand queues take no more connections than one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

from redis import exceptions as errors

from headrace import _forks
from headrace._net.base.connections import Attend, noticed
from headrace._net.base.sentinel import Watch
from headrace._telemetry.client import Outage

P = TypeVar("P", bound="BasePool")

SPARE_S = 10.0  # seconds without use, after which a worker with many queues closes what it has opened under load
LOOK_AFTER_S = 0.1  # seconds without use, after which a connection is looked at: the server may have closed it


class BasePool:
    """The base of `Pool` and `AsyncPool`: all connections, and the free ones."""

    def __init__(self, maker: Any, outage: Outage | None, connect: Any) -> None:
        self.maker = maker  # a pool of redis-py's, which hands out none
        settings = maker.connection_kwargs
        self.outage = Outage(settings) if outage is None else outage
        maker.connection_class = noticed(maker.connection_class, self.outage, connect)
        self.timeout: float = settings["socket_timeout"] + (settings.get("socket_connect_timeout") or 0.0)
        self.users: WeakSet[Any] = WeakSet()  # the executors that share it, if any do; see `Shared`
        self.origin: Any = None  # the pool of the client from whose settings it is made
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
            connection = self.maker.make_connection()
            self._all.add(connection)
            return connection, False
        return connection, self._doubtful(connection, since)

    def open_one(self) -> Any:
        """Take a connection that was used just now, and is open; `None` if there is none, without waiting."""
        with suppress(IndexError):
            connection, since = self._free.pop()
            if self._is_open(connection) and not self._doubtful(connection, since):
                return connection
            self._free.append((connection, since))
        return None

    def _doubtful(self, connection: Any, since: float) -> bool:
        """Tell whether a connection that was free since then is to be looked at before it is used."""
        former = self._watch is not None and not self._watch.leads(connection)
        return former or time.monotonic() - since > LOOK_AFTER_S

    def _is_open(self, connection: Any) -> bool:
        """Tell whether a connection is open, as far as is known here."""
        raise NotImplementedError

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
        """Raise `ConnectionError` if the server on it is no longer the primary: its answer does not count."""
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


class Shared:
    """The pools of this process that executors share, by where they lead. One without users is forgotten."""

    def __init__(self) -> None:
        self._lock = _forks.rlock()  # a signal's handler may close a queue
        self._forget()

    def _forget(self) -> None:
        self._pools: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._pid = os.getpid()

    def join(self, where: Hashable, user: object, make: Callable[[], P]) -> P:
        """Return the pool that leads to *where*, which *user* uses from now on; *make* makes the first."""
        if self._pid != os.getpid():  # a fork copied them
            self._forget()
        with self._lock:
            pool: P | None = self._pools.get(where)
            if pool is None:
                pool = self._pools[where] = make()
            pool.users.add(user)
        return pool

    def leave(self, pool: BasePool, user: object) -> bool:
        """Take in that *user* is done with the pool; tell whether it was the last."""
        with self._lock:
            pool.users.discard(user)
            if pool.users:
                return False
            for where in [where for where, one in self._pools.items() if one is pool]:
                del self._pools[where]
        return True


SHARED = Shared()


def destination(url: str | None, theirs: Any, attend: Attend | None) -> Hashable:
    """Return the identity of the server of *url*, or else of a client's pool."""
    if url is not None:
        return str(url), attend
    settings: dict[str, Any] = theirs.connection_kwargs  # they may be changed
    return id(theirs), theirs.connection_class, *settings, *map(id, settings.values())


def unreadable(error: OSError) -> errors.ConnectionError:
    """Turn a socket's error into redis-py's error."""
    return errors.ConnectionError(f"Error while reading from the server: {error.args}")
