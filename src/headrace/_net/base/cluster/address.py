"""Addresses of clusters: URLs with several seeds, and the settings of cluster clients, which are never used to send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from attrs import frozen
from redis import exceptions as errors

from headrace._net.base.cluster.slots import Node
from headrace.errors import ConfigurationError

SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}  # and the schemes of one node
DEFAULT_PORT = 6379
USUAL = (type(None), redis.Redis, redis.asyncio.Redis)  # an `isinstance` check of these for a cluster client takes long


@frozen
class Seeds:
    """The first nodes to ask for a cluster's map, and how to connect to any node."""

    nodes: list[Node]
    kind: Any
    """The class of connections."""
    settings: dict[str, Any]
    """The settings of a connection, without host and port."""
    remap: Callable[[Node], Node] | None = None
    """Translates an address that nodes announce to one that can be reached from here."""

    def pool(self, plain: Any, node: Node) -> Any:
        """Make a pool of redis-py's for one node."""
        return plain(connection_class=self.kind, **self.settings, host=node[0], port=node[1])


def names_cluster(url: str | None, client: object) -> bool:
    """Tell whether *url* or *client* names a cluster."""
    if type(client) not in USUAL and isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster)):
        return True
    return url is not None and url.partition(":")[0] in SCHEMES


def seeds(url: str | None, client: Any, plain: Any) -> Seeds:
    """Return the seeds of a cluster; *plain*: the class of pools. Raises `ConfigurationError` for a bad URL."""
    if client is None:
        one, nodes = seeds_of(str(url))
        pool = plain.from_url(one)
        return Seeds(nodes, pool.connection_class, _settings(pool.connection_kwargs))
    manager = client.nodes_manager
    known = {**manager.startup_nodes, **manager.nodes_cache}
    nodes = [(str(node.host), int(node.port)) for node in known.values()]
    some: Any = next(iter(known.values()))
    if isinstance(client, redis.RedisCluster):
        some = client.nodes_manager.default_node
        pool = some.redis_connection.connection_pool
        kind, settings = pool.connection_class, pool.connection_kwargs
    else:
        kind, settings = some.connection_class, some.connection_kwargs
    return Seeds(nodes, kind, _settings(settings), manager.address_remap)


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the address, and the settings that make a cluster client read from replicas."""
    return {name: value for name, value in settings.items() if name not in ("host", "port", "redis_connect_func")}


def seeds_of(url: str) -> tuple[str, list[Node]]:
    """Return a URL of one node, and all nodes that *url* names. Raises `ConfigurationError`."""
    scheme, _, rest = url.partition("://")
    try:
        parts = urlsplit(f"//{rest}")
        user, at, hosts = parts.netloc.rpartition("@")
        nodes = [_node(host) for host in hosts.split(",")]
    except ValueError as error:
        raise ConfigurationError(
            f"url {scheme}://…: {error}; give {scheme}://host:port, or several, as {scheme}://host1:port1,host2:port2"
        ) from error
    first = hosts.partition(",")[0]
    query = f"?{parts.query}" if parts.query else ""
    return f"{SCHEMES[scheme]}://{user}{at}{first}{parts.path}{query}", nodes


def _node(host: str) -> Node:
    place = urlsplit(f"//{host}")
    if not place.hostname:
        raise ValueError("a host is missing")
    return place.hostname, place.port or DEFAULT_PORT


def misled(error: errors.MovedError, settings: Mapping[str, Any]) -> ConfigurationError:
    """Return the error to raise if a URL of one server leads to a node of a cluster."""
    there: Any = error  # its attributes are not annotated
    host, port = settings.get("host", "the server"), settings.get("port", "")
    return ConfigurationError(
        f"{host}:{port} is a node of a cluster, and the queue is served by another ({there.host}:{there.port}): "
        f"use redis+cluster://{host}:{port} (rediss+cluster:// with TLS), or give client=RedisCluster(…)"
    )
