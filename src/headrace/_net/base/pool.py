"""The base of both pools of connections. redis-py makes connections, and the pool lends them.

redis-py handles the settings, socket, TLS, greeting, credentials and protocol of a connection. Its
own pools take a lock, check the socket and count on each use, which takes as long as a short call.

Queues and flows of one address share a pool, so a thousand queues need no more connections than
one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

from attrs import define
from redis import exceptions as errors

from headrace import _forks
from headrace._net.base.connections import Attend, noticed
from headrace._net.base.retries import Meanwhile
from headrace._net.base.sentinel import Watch
from headrace._telemetry.client import Outage

P = TypeVar("P", bound="BasePool")

# seconds without use, after which a worker with many queues closes extra connections
SPARE_S = 10.0
# round trips at a time: the server works on one while we process the answers of the other
TRIPS = 2
CALLS_AT_MOST = 64  # calls in a round trip: all answers are in memory, each of about 1 MiB at most
# seconds without use, after which a connection is checked: the server may have closed it
LOOK_AFTER_S = 0.1


class BasePool:
    """The base of `Pool` and `AsyncPool`. It knows all connections, and the free ones."""

    def __init__(self, maker: Any, outage: Outage | None, connect: Any) -> None:
        self.maker = maker  # a pool of redis-py, which hands out no connection
        settings = maker.connection_kwargs
        self.outage = Outage(settings) if outage is None else outage
        maker.connection_class = noticed(maker.connection_class, self.outage, connect)
        # of a call
        self.timeout: float = settings["socket_timeout"] + (
            settings.get("socket_connect_timeout") or 0.0
        )
        self.combiner: Any = None  # lets calls share round trips, if there is one
        # the executors that share this pool, if any; see `Shared`
        self.users: WeakSet[Any] = WeakSet()
        self.origin: Any = None  # the pool of the client whose settings we use
        # seconds for which unused connections stay open; None: for ever
        self.keep: float | None = None
        # and since when they are free; the newest is last, and taken first
        self._free: list[tuple[Any, float]] = []
        self._all: set[Any] = set()
        self._watch: Watch | None = getattr(getattr(maker, "sentinel_manager", None), "watch", None)
        if self._watch is None and hasattr(maker, "sentinel_manager"):
            # redis-py found another primary: free connections lead to the old one
            maker.disconnect = self.disconnect

    def disconnect(self, inuse_connections: bool = True) -> Any:
        """Close all connections, free or in use. A call that uses one fails."""
        raise NotImplementedError

    def combine(self) -> None:
        """Let calls share round trips from now on. A few hundred concurrent calls then need two
        connections.
        """
        raise NotImplementedError

    def lower_timeouts(self, seconds: float) -> None:
        """Wait at most *seconds* for an answer or a connection from now on."""
        self.timeout = min(self.timeout, seconds)
        settings = self.maker.connection_kwargs
        settings["socket_connect_timeout"] = min(
            settings.get("socket_connect_timeout") or seconds, seconds
        )
        if settings["socket_timeout"] is not None:
            settings["socket_timeout"] = min(settings["socket_timeout"], seconds)

    def _newest(self) -> tuple[Any, bool]:
        """Take the connection that was used last, or make one. Tell whether it must be checked."""
        try:
            connection, since = self._free.pop()
        except IndexError:
            connection = self.maker.make_connection()
            self._all.add(connection)
            return connection, False
        return connection, self._doubtful(connection, since)

    def open_one(self) -> Any:
        """Take an open connection that was used a moment ago, without waiting. Returns `None` if
        there is none.
        """
        with suppress(IndexError):
            connection, since = self._free.pop()
            if self._is_open(connection) and not self._doubtful(connection, since):
                return connection
            self._free.append((connection, since))
        return None

    def _doubtful(self, connection: Any, since: float) -> bool:
        former = self._watch is not None and not self._watch.is_current(connection)
        return former or time.monotonic() - since > LOOK_AFTER_S

    def _is_open(self, connection: Any) -> bool:
        raise NotImplementedError

    def _spare(self) -> Sequence[Any]:
        """Forget the connections that are no longer used, and return them. Call it when a
        connection is taken.
        """
        if self.keep is None:
            return ()
        since, spare = time.monotonic() - self.keep, list[Any]()
        with suppress(IndexError):  # another thread may have taken the last connection
            while self._free[0][1] < since:
                spare.append(self._free.pop(0)[0])
        return spare

    def check(self, connection: Any) -> None:
        """Raise `ConnectionError` if the connection's server is no longer the primary. Its answer
        does not count.
        """
        if self._watch is not None and not self._watch.is_current(connection):
            raise errors.ConnectionError(
                f"{connection.host}:{connection.port} is no longer the primary"
            )

    def give(self, connection: Any) -> None:
        """Return a connection without unanswered commands to the pool.

        Closes it if the pool was emptied meanwhile.
        """
        if connection in self._all:
            self._free.append((connection, time.monotonic()))
        else:
            self.close_now(connection)

    def close_now(self, connection: Any) -> None:
        raise NotImplementedError

    def _emptied(self, everything: bool) -> list[Any]:
        free, self._free = self._free, []
        connections = list(self._all) if everything else [connection for connection, _ in free]
        self._all.difference_update(connections)
        return connections


class Shared:
    """The pools that executors of this process share, by server. A pool without users is
    forgotten."""

    def __init__(self) -> None:
        self._lock = _forks.rlock()  # a signal's handler may close a queue
        self._forget()

    def _forget(self) -> None:
        self._pools: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._pid = os.getpid()

    def join(self, where: Hashable, user: object, make: Callable[[], P]) -> P:
        if self._pid != os.getpid():  # a fork copied the pools
            self._forget()
        with self._lock:
            pool: P | None = self._pools.get(where)
            if pool is None:
                pool = self._pools[where] = make()
            pool.users.add(user)
        return pool

    def leave(self, pool: BasePool, user: object) -> bool:
        """Remove *user* from the pool's users. Tell whether it was the last one."""
        with self._lock:
            pool.users.discard(user)
            if pool.users:
                return False
            for where in [where for where, one in self._pools.items() if one is pool]:
                del self._pools[where]
        return True


SHARED = Shared()


def destination(url: str | None, theirs: Any, attend: Attend | None) -> Hashable:
    if url is not None:
        return str(url), attend
    settings: dict[str, Any] = theirs.connection_kwargs  # the user may change them
    return id(theirs), theirs.connection_class, *settings, *map(id, settings.values())


def unreadable(error: OSError) -> errors.ConnectionError:
    return errors.ConnectionError(f"Error while reading from the server: {error.args}")


@define(eq=False)
class Pending:
    commands: Sequence[bytes]
    leaves: Meanwhile
    answers: list[Any] | None = None
    error: BaseException | None = None


def leaving(calls: Sequence[Pending]) -> tuple[list[Pending], dict[int, Exception]]:
    """Mark calls as sent.

    Returns the calls to send, and the errors of calls that are too late, by the identity of the
    call.
    """
    left: list[Pending] = []
    failed: dict[int, Exception] = {}
    for call in calls:
        try:
            if call.leaves is not None:
                call.leaves()
            left.append(call)
        except Exception as error:
            failed[id(call)] = error
    return left, failed
