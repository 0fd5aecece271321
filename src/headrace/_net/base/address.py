"""Find the server of a queue or worker, from arguments or from the environment.

`Connected` is the base of objects that connect to it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakSet

import redis
import redis.asyncio
from redis import exceptions as errors
from redis.cluster import ClusterNode

from headrace import _forks
from headrace._forks import cached_property
from headrace._net.base.cluster import names_cluster, nodes_of, seeds_of
from headrace._net.base.connections import Attend
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace._embedded.server import EmbeddedServer

E = TypeVar("E")
Client = redis.Redis | redis.RedisCluster
AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster
OF_CLUSTERS: dict[type, type] = {
    redis.Redis: redis.RedisCluster,
    redis.asyncio.Redis: redis.asyncio.RedisCluster,
}


class Address:
    """The address of a server, which a URL, a client or the environment names.

    The environment is read when the address is needed. `join` and `open` read and open, nothing
    before does. An embedded server is joined.
    """

    def __init__(
        self, url: str | None, client: Any = None, instead_of: Address | None = None
    ) -> None:
        self.url, self.client = url, client
        self._instead_of = instead_of  # the address that its user named before
        self.embedded: EmbeddedServer | None = None
        self.executor: Any = None
        self._lock = _forks.lock()

    @classmethod
    def of(cls, url: str | None, client: object, wanted: type, asker: object) -> Address:
        """Make the address of a URL, of a client of the class *wanted*, or else of the environment.

        Refuses a URL together with a client.
        """
        if client is None:
            return cls(None if url is None else given(url))
        if url is not None:
            raise ValueError("give url= or client=, not both")
        if not isinstance(client, (wanted, OF_CLUSTERS.get(wanted, wanted))):
            raise TypeError(
                f"client must be a {wanted.__module__}.{wanted.__name__} for {type(asker).__name__}, "
                f"not {type(client).__module__}.{type(client).__name__}"
            )
        return cls(None, client)

    def open(self, make: Callable[[Address], E]) -> E:
        """Return the executor for this address, the same one for all threads. The first call makes
        it.
        """
        with self._lock:
            if self.executor is None:
                self.join()
                self.executor = make(self)
        return cast("E", self.executor)

    @property
    def target(self) -> str | None:
        """The URL to connect to, or `None` for a client's own server.

        Raises `ConfigurationError` without a server.
        """
        if self.embedded is not None:
            return f"unix://{self.embedded.path}"
        return None if self.client is not None else given(self.url)

    @property
    def shown(self) -> str:
        return shown_settings(self.client) if self.client is not None else shown(self.target or "")

    @cached_property
    def servers(self) -> frozenset[Hashable]:
        # the names of the named server, none of the environment's: of a cluster one for each node
        named = self.url is not None or self.client is not None
        return _names(self.url, self.client) if named else frozenset()

    def meant(self) -> frozenset[Hashable]:
        # the names of the server, and of the one in whose place it is used; none if that has none
        if self._instead_of is None:
            return self.servers or self._of_environment
        return self._instead_of.servers and self._instead_of.servers | self.servers

    @cached_property
    def _of_environment(self) -> frozenset[Hashable]:
        with suppress(ConfigurationError):  # an outbox needs no server
            return _names(given(None), None)
        return frozenset()

    @property
    def attend(self) -> Attend | None:
        return None if self.embedded is None else self.embedded.attend

    def join(self) -> str | None:
        """Join the embedded server if the URL names one. Returns the URL to connect to."""
        url = self.target
        if self.embedded is None and url is not None and url.startswith("embedded:"):
            self.embedded = _embedded(url.removeprefix("embedded:"))
        return self.target

    def leave(self) -> None:
        self.executor = None
        if self.embedded is not None:
            self.embedded.leave()
            self.embedded = None


def _names(url: str | None, client: Any) -> frozenset[Hashable]:
    if names_cluster(url, client):
        known = [(node.host, node.port) for node in nodes_of(client)] if client else []
        return frozenset((_host(host), port, 0) for host, port in known or seeds_of(str(url))[1])
    if url is not None and url.startswith("embedded:"):
        return frozenset([os.path.realpath(url.removeprefix("embedded:"))])
    make: Any = redis.ConnectionPool  # half annotated
    pool = client.connection_pool if url is None else make.from_url(url)
    settings: Mapping[str, Any] = pool.connection_kwargs
    place = getattr(pool, "service_name", None) or settings.get("path")
    host = place or _host(settings.get("host", "localhost"))
    port = None if place else settings.get("port", 6379)
    return frozenset([(host, port, settings.get("db") or 0)])


def _host(name: str) -> str:
    return "localhost" if name in ("127.0.0.1", "::1") else name.lower()


def _find_join() -> Callable[[str], EmbeddedServer] | None:
    """Return the function that joins an embedded server, or `None` where the platform has none."""
    try:
        from headrace._embedded.server import EmbeddedServer
    except ModuleNotFoundError as error:
        if error.name != "fcntl":  # which Windows lacks
            raise
        return None
    return EmbeddedServer.join


_JOIN = _find_join()  # not within a call: a child that is forked meanwhile could never import it


def _embedded(folder: str) -> EmbeddedServer:
    if _JOIN is None:
        raise ConfigurationError(
            "embedded servers need a POSIX system: give the URL of a Redis or Valkey server (redis://…)"
        )
    return _JOIN(folder)


def given(url: str | None, option: str = "pass url=", besides: str = ", or client=") -> str:
    """Return the given URL, or else `HEADRACE_URL`, or else `REDIS_URL`, after checking its
    form."""
    found = url or os.environ.get("HEADRACE_URL") or os.environ.get("REDIS_URL")
    if not found:
        raise ConfigurationError(
            f"no server named: {option} (redis://…, rediss://…, redis+cluster://… of a cluster, unix://…, or "
            f"embedded:DIR for a private one){besides}, or set HEADRACE_URL or REDIS_URL"
        )
    if not isinstance(found, str):
        raise TypeError(f"url must be a str, not {type(found).__name__}; a client is client=")
    if not re.match(r"(rediss?(\+cluster)?|unix|embedded):", found):
        # without a password
        shown = re.sub(r"\?.*", "?…", re.sub(r".*@", "…@", found, flags=re.DOTALL))
        raise ConfigurationError(
            f"url {shown!r}: give redis://…, rediss://…, unix://…, "
            "redis+cluster://…, rediss+cluster://… or embedded:DIR"
        )
    if found == "embedded:":
        raise ConfigurationError(
            "url 'embedded:' names no directory: give embedded:./data, or another one"
        )
    if not _legible(found):
        scheme = found.partition(":")[0]
        raise ConfigurationError(
            f"url {scheme}://…: its host and port can't be read; a password with characters such as / # ? @ must be "
            "percent-encoded: urllib.parse.quote(password, safe='')"
        )
    return found


def _legible(url: str) -> bool:
    """Tell whether a URL's hosts and ports can be read. If not, a supposed host may be a part of
    the password."""
    if url.startswith("embedded:"):
        return True
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2]
        for host in hosts.split(",") if "+cluster:" in url else [hosts]:
            _ = urlsplit(f"//{host}").port
    except ValueError:
        return False
    if "@" in parts.netloc:
        return True
    rest = parts.path + parts.fragment + parts.query.partition("=")[0]
    return "@" not in rest or (url.startswith("unix:") and not hosts)


def shown(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition(":")[0] + "://…"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}:{'//' if '//' in url else ''}{host}{parts.path}"


def shown_settings(client: Any) -> str:
    if names_cluster(None, client):
        nodes = sorted(
            {f"{node.host}:{node.port}" for node in client.nodes_manager.startup_nodes.values()}
        )
        return f"redis+cluster://{','.join(nodes)}"
    pool = client.connection_pool
    settings = pool.connection_kwargs
    if service := getattr(pool, "service_name", None):
        return f"{service} (by Sentinel)"
    if path := settings.get("path"):
        return f"unix://{path}"
    return f"redis://{settings.get('host', 'localhost')}:{settings.get('port', 6379)}/{settings.get('db') or 0}"


@contextmanager
def client_of(url: str, **options: Any) -> Generator[Any, None, None]:
    """Yield a redis-py client of the server or cluster that *url* names.

    It is for commands that are not operations.
    """
    make: Any = redis.Redis  # from_url is half annotated
    if names_cluster(url, None):
        url, nodes = seeds_of(url)
        node: Any = ClusterNode  # not annotated
        make = redis.RedisCluster
        options["startup_nodes"] = [node(*place) for place in nodes]
    try:
        client = make.from_url(url, **options)
    # which is no RedisError: none of the nodes has answered
    except errors.RedisClusterException as error:
        raise errors.ConnectionError(str(error)) from error
    with client:
        try:
            yield client
        finally:
            if make is redis.RedisCluster:
                client.disconnect_connection_pools()  # which `close` leaves to the collector


Timeout = float | timedelta | None


def least(*bounds: float | None) -> float | None:
    return min((bound for bound in bounds if bound is not None), default=None)


OPENED: WeakSet[Connected] = WeakSet()  # queues and flows with connections


class Unpicklable:
    """The base of objects that can't be copied or sent to another process."""

    __slots__ = ()
    _instead: ClassVar[str] = "make one of its own in each process, from its name and URL"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} is neither pickled nor copied: {self._instead}")


class Connected(Unpicklable):
    """The base of queues and flows, with their address. The first call opens connections to it."""

    _address: Address
    _within: float | None = None  # seconds that bound each round trip, if not the default

    @cached_property
    def _executor(self) -> Any:
        raise NotImplementedError

    def _detach(self) -> None:
        self._address.leave()
        OPENED.discard(self)
        for made in ("_executor", "_waiters"):
            vars(self).pop(made, None)

    @cached_property
    def _settings(self) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self._executor.pool.connection_kwargs)
