"""The primary behind Sentinel. We ask all Sentinels at once, and leave it as soon as they name
another.

Sentinel names a new primary seconds before it demotes the former one, which still answers. A frozen
primary answers when it wakes. Both would acknowledge writes that are then lost. So a thread for
each Sentinel listens to its messages, and asks it every second. When the primary changes, all
connections to the former one are closed under their calls. The calls are sent again under their
numbers, and late answers of the former primary do not count.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import redis
import redis.asyncio.sentinel
import redis.sentinel
from attrs import frozen
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from headrace import _forks
from headrace._net.base.children import withhold
from headrace._net.base.sockets import cut, socket_of
from headrace._protocol.limits import POLL_S
from headrace._protocol.op import pack
from headrace._telemetry.log import log_event

Place = tuple[str, int]  # host and port
Copied = Callable[[dict[str, Any]], dict[str, Any]]
ANSWER_WITHIN_S = 1.0  # seconds for a Sentinel's answer
FIND_WITHIN_S = 2.0  # seconds to wait for the first answer of any Sentinel
LINGER_S = 10.0  # seconds without a connection, after which watching ends
# the primary has changed; the chosen replica has become the primary
CHANNELS = ("+switch-master", "+promoted-slave")


@frozen
class Report:
    """The primary that one Sentinel names, and the epoch of the configuration that names it."""

    epoch: int
    primary: Place


class Watch:
    """The primary of a service, as its Sentinels name it. All executors of this process share
    it."""

    def __init__(
        self, service: str, sentinels: Mapping[Place, Any], others: int, forced: str | None
    ) -> None:
        self.service = service
        self.primary: Place | None = None
        self._sentinels, self._forced = sentinels, forced
        self._others = others
        self._epoch = -1
        self._reports: dict[Place, Report] = {}
        self._connections: WeakSet[Any] = WeakSet()
        self._lock = _forks.lock()
        self._found = _forks.event()
        self._threads: list[threading.Thread] = []
        self._pid, self._wanted = os.getpid(), 0.0

    @property
    def watching(self) -> bool:
        return self.primary is not None and bool(self._threads) and self._pid == os.getpid()

    def find(self) -> Place:
        """Return the primary's address, after waiting for the first answer of a Sentinel.

        Raises `MasterNotFoundError` if none answers in time.
        """
        self._begin()
        self._found.wait(FIND_WITHIN_S)
        primary = self.primary
        if primary is None:
            places = ", ".join(f"{host}:{port}" for host, port in self._sentinels)
            raise MasterNotFoundError(
                f"no Sentinel of {places} names the primary of {self.service!r}"
            )
        return primary

    def _begin(self) -> None:
        self._wanted = time.monotonic()
        if self._threads and self._pid == os.getpid():
            return
        if self._pid != os.getpid():  # a fork copied the watch, without its threads
            self._pid, self._threads, self._connections = os.getpid(), [], WeakSet()
        with self._lock:
            if not self._threads:
                self.primary, self._epoch, self._reports = None, -1, {}
                self._found.clear()
                self._threads = [
                    threading.Thread(
                        target=self._watch, args=(place,), name="headrace-sentinel", daemon=True
                    )
                    for place in self._sentinels
                ]
                for thread in self._threads:
                    thread.start()

    def add(self, connection: Any) -> None:
        with self._lock:
            self._connections.add(connection)

    def is_current(self, connection: Any) -> bool:
        return (connection.host, connection.port) == self.primary

    def _watch(self, place: Place) -> None:
        """Listen to one Sentinel, and read its answers, as long as connections exist."""
        looking, listening = self._sentinels[place](), self._sentinels[place]()
        while self._goes_on():
            try:
                _subscribe(listening)
                self._take(place, self._look(looking))
                ready = listening.can_read(timeout=POLL_S)
                while ready:
                    listening.read_response()
                    ready = listening.can_read(timeout=0)
            except (errors.RedisError, OSError):
                self._take(place, None)
                looking.disconnect()
                listening.disconnect()
                time.sleep(POLL_S / 2)
        looking.disconnect()
        listening.disconnect()

    def _goes_on(self) -> bool:
        with self._lock:
            if threading.current_thread() not in self._threads:
                return False  # another thread has found that nothing is left to watch
            used = any(socket_of(connection) is not None for connection in self._connections)
            if used:
                self._wanted = time.monotonic()
            elif time.monotonic() - self._wanted > LINGER_S:
                self._threads = []
                return False
            return True

    def _look(self, connection: Any) -> Report | None:
        ask = [
            pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)),
            pack(("SENTINEL", "MASTER", self.service)),
        ]
        connection.send_packed_command([b"".join(ask)])
        address, answer = connection.read_response(), connection.read_response()
        if not address:
            return None
        words = {
            bytes(key): bytes(value) for key, value in zip(answer[::2], answer[1::2], strict=True)
        }
        if int(words.get(b"num-other-sentinels", b"0")) < self._others:
            return None
        primary = (self._forced or bytes(address[0]).decode(), int(address[1]))
        return Report(int(words.get(b"config-epoch", b"0")), primary)

    def _take(self, place: Place, report: Report | None) -> None:
        """Apply a Sentinel's answer.

        The latest configuration counts, or an earlier one if most Sentinels agree on it.
        """
        with self._lock:
            if report is None:
                self._reports.pop(place, None)
            else:
                self._reports[place] = report
            votes = Counter(self._reports.values())
            if not votes:
                return
            best = max(votes, key=lambda one: (one.epoch, votes[one], one.primary == self.primary))
            if best.epoch < self._epoch and 2 * votes[best] <= len(self._sentinels):
                return  # a Sentinel that was cut off knows nothing of the last failover
            former, self.primary, self._epoch = self.primary, best.primary, best.epoch
            self._found.set()
            stale = [one for one in self._connections if not self.is_current(one)]
        if former not in (None, best.primary):
            words = "Sentinel names another primary of %r: %s:%d"
            log_event("primary_changed", words, self.service, *best.primary, service=self.service)
        for connection in stale:
            cut(connection)


class Manager:
    """Asks a `Watch` for the primary, in place of redis-py's `Sentinel`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def discover_master(self, _service: str) -> Place:
        return self.watch.find()


_WATCHES: WeakValueDictionary[Hashable, Watch] = WeakValueDictionary()


def managed(pool: Any, copied: Copied, manager: type[Manager]) -> Any:
    """Return the manager that finds the primary for *pool*, a pool of redis-py.

    It is the manager of a `Watch`, or the user's own. *copied* copies the settings of a connection.
    *manager* is the class for asyncio or for threads.
    """
    theirs: Any = pool.sentinel_manager
    kinds: tuple[Any, ...] = (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel)
    for usual in kinds:
        own = getattr(theirs.__class__, "discover_master", None)
        if isinstance(theirs, usual) and pool.is_master and own is usual.discover_master:
            return manager(_watch(pool.service_name, theirs, copied))
    return theirs


def _watch(service: str, theirs: Any, copied: Copied) -> Watch:
    """Return the watch of a service, the same one for all executors of this process."""
    sentinels: dict[Place, Any] = {}
    known: list[Hashable] = []
    for client in theirs.sentinels:
        pool = client.connection_pool
        settings = pool.connection_kwargs
        place = settings["host"], int(settings["port"])
        sentinels[place] = _maker(pool.connection_class, copied(settings))
        known.append((place, settings.get("username"), settings.get("password")))
    forced = getattr(theirs, "_force_master_ip", None)
    key = service, tuple(known), theirs.min_other_sentinels, forced
    return _WATCHES.setdefault(key, Watch(service, sentinels, theirs.min_other_sentinels, forced))


def _maker(kind: Any, settings: dict[str, Any]) -> Any:
    secure = issubclass(kind, (redis.SSLConnection, redis.asyncio.SSLConnection))
    ours: Any = redis.SSLConnection if secure else redis.Connection
    settings |= {
        "socket_timeout": ANSWER_WITHIN_S,
        "socket_connect_timeout": ANSWER_WITHIN_S,
        "protocol": 2,
    }

    def make() -> Any:
        connection = ours(**settings, retry=Retry(NoBackoff(), 0))
        withhold(connection)
        return connection

    return make


def _subscribe(connection: Any) -> None:
    """Subscribe to Sentinel's messages, unless we did already, or have no right to."""
    if socket_of(connection) is None:
        connection.connect()
        connection.send_packed_command([pack(("SUBSCRIBE", *CHANNELS))])
        with suppress(errors.ResponseError):
            for _ in CHANNELS:
                connection.read_response()


def watched(kind: Any, watch: Watch) -> Any:
    def connect_to(connection: Any, address: Place) -> Any:
        watch.add(connection)
        return kind.connect_to(connection, address)

    return type(kind.__name__, (kind,), {"connect_to": connect_to})
