"""The map of a cluster's slots, its addresses, and the batches of one attempt.

Nothing here does IO. The executors do it.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from attrs import define, field, frozen
from redis import exceptions as errors
from redis.crc import key_slot

from headrace._model.shards import SLOTS
from headrace._net.base.retries import (
    REDIRECTED_AT_MOST,
    Lane,
    Trip,
    first_error,
    missing,
    since_boot,
)
from headrace._protocol.durability import DurabilityWait
from headrace._protocol.limits import SILENT_S
from headrace._protocol.op import Op, pack
from headrace.errors import ConfigurationError

Node = tuple[str, int]  # host and port
ASK_MAP = pack(("CLUSTER", "SLOTS")), pack(("CLUSTER", "INFO"))
ASKING = pack(("ASKING",))
PROBE = (pack(("PING",)),)
ASK_WITHIN_S = 2.0  # seconds for a node's answer
# least seconds between two queries for the map; in a search, before the next node is asked
ASK_EVERY_S = 0.2
PROBE_EVERY_S = 1.0  # least seconds between two probes of a silent node

_EPOCH = re.compile(r"^cluster_current_epoch:(\d+)", re.MULTILINE)


@lru_cache(maxsize=10_000)
def _tag_slot(tag: str) -> int:
    return int(key_slot(tag.encode()))


def slot_of(key: str) -> int:
    """Return the slot of a key of ours, which always has a hash tag."""
    return _tag_slot(key[key.index("{") + 1 : key.index("}")])


@frozen(eq=False)
class Map:
    """A cluster as one node describes it.

    It has the owner of each slot, all nodes and their ids, the epoch if that is known, and the
    number of slots with an owner.
    """

    owners: list[Node | None]
    nodes: list[Node] = field(factory=list[Node])
    ids: frozenset[str] = frozenset()
    epoch: int | None = None
    served: int = 0

    def follows(self, known: Map) -> bool:
        """Tell whether this map may replace the *known* one.

        It may if it is of the same cluster, is not older, and has an owner for at least one slot
        and for as many slots as the known map. The map of a node that left its cluster, or joined
        another, may not.
        """
        later = self.epoch is None or known.epoch is None or self.epoch >= known.epoch
        same = not self.ids or not known.ids or not self.ids.isdisjoint(known.ids)
        return later and same and self.served >= max(known.served, 1)


class Slots:
    """A map from slots to nodes, and the nodes that are silent.

    Threads may share it, because each step is one assignment. A node that has not answered a call
    is silent for `SILENT_S`, or until it answers a call or a probe.
    """

    def __init__(self, seeds: Sequence[Node], remap: Callable[[Node], Node] | None = None) -> None:
        self._seeds = list(seeds)
        self._remap = remap
        self._map = Map([None] * SLOTS)
        self._owners = self._map.owners
        self._silent: dict[Node, float] = {}  # until when
        self._probed: dict[Node, float] = {}  # when, last
        self.asked = float("-inf")  # when the map was asked for last

    def owner(self, slot: int) -> Node | None:
        return self._owners[slot]

    @property
    def complete(self) -> bool:
        return bool(self._map.nodes)

    def due(self) -> bool:
        return time.monotonic() - self.asked >= ASK_EVERY_S

    def failed(self, node: Node, error: Exception | None = None) -> None:
        """Record that a node did not answer, and is silent.

        A node that closed a connection is silent only from the second time on.
        """
        surely = isinstance(error, errors.TimeoutError) or node in self._silent
        self._silent[node] = time.monotonic() + SILENT_S if surely else 0.0

    def answered(self, node: Node) -> None:
        if self._silent:
            self._silent.pop(node, None)

    def silent(self, slot: int) -> Node | None:
        node = self._owners[slot]
        return None if node is None or self._silent.get(node, 0.0) <= time.monotonic() else node

    def may_probe(self, node: Node) -> bool:
        """Tell whether to probe a node now. Returns true to one caller only."""
        now = time.monotonic()
        if self._probed.get(node, float("-inf")) > now - PROBE_EVERY_S:
            return False
        self._probed[node] = now
        return True

    def moved(self, slot: int, node: Node) -> None:
        self._owners[slot] = node

    def redirected(self, error: errors.AskError, asked: Node) -> Node:
        """Return the node to which *asked* redirects. An empty host means the host of *asked*."""
        redirection: Any = error  # its attributes are not annotated
        return self._reached((redirection.host or asked[0], int(redirection.port)))

    def _reached(self, node: Node) -> Node:
        return node if self._remap is None else self._remap(node)

    def read(self, answers: Sequence[Any], asked: Node) -> Map:
        """Read the answers of *asked* to `ASK_MAP`. Raises the first answer, if it is an error."""
        reply, info = answers
        if isinstance(reply, Exception):
            if "cluster support disabled" in str(reply):
                raise ConfigurationError(
                    f"{asked[0]}:{asked[1]} is no node of a cluster: use redis://{asked[0]}:{asked[1]}"
                )
            raise reply
        owners: list[Node | None] = [None] * SLOTS
        known: dict[Node, None] = {}
        ids: set[str] = set()
        for first, last, *nodes in reply:
            places = [self._place(node, asked) for node in nodes]
            known |= dict.fromkeys(places)
            ids.update(_text(node[2]) for node in nodes if len(node) > 2)
            owners[first : last + 1] = [places[0]] * (last - first + 1)
        epoch = None if isinstance(info, Exception) else _EPOCH.search(_text(info))
        served = SLOTS - owners.count(None)
        return Map(
            owners, list(known), frozenset(ids), None if epoch is None else int(epoch[1]), served
        )

    def follows(self, found: Map) -> bool:
        return found.follows(self._map)

    def take(self, found: Map) -> None:
        self._map = found
        self._owners = found.owners

    def _place(self, node: Sequence[Any], asked: Node) -> Node:
        host = _text(node[0])
        return self._reached((host if host and host != "?" else asked[0], int(node[1])))

    def primaries(self) -> list[Node]:
        """Return the nodes that serve slots, in a fixed order."""
        return sorted({node for node in self._owners if node is not None})

    def places(self) -> list[Node]:
        """Return all nodes to ask, in random order, the silent ones last."""
        nodes = list(dict.fromkeys([*self._map.nodes, *self._seeds]))
        random.shuffle(nodes)
        now = time.monotonic()
        return sorted(nodes, key=lambda node: self._silent.get(node, 0.0) > now)

    def gone(self, nodes: Sequence[Node]) -> list[Node]:
        return [node for node in nodes if node not in self._map.nodes and node not in self._seeds]


@define(eq=False)
class MapSearch:
    """One search for the map, for all callers that need it.

    It asks nodes until a map may replace the known one.
    """

    slots: Slots
    over: Any = None  # an event, set at the end
    home: object = None  # the process or event loop that searches
    places: list[Node] = field(init=False)  # nodes left to ask
    # after the search: why there is no map
    error: Exception | None = field(default=None, init=False)
    _doubtful: Map | None = field(default=None, init=False)
    # a node has not answered: it may have a newer map
    _silent: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.places = self.slots.places()
        self.slots.asked = time.monotonic()

    def take(self, node: Node, answers: Sequence[Any] | Exception) -> bool:
        try:
            found = answers if isinstance(answers, Exception) else self.slots.read(answers, node)
        except Exception as error:
            found = error
        if isinstance(found, Exception):
            # otherwise this is no node of a cluster; other nodes may be
            if not isinstance(found, ConfigurationError):
                self.slots.failed(node, found)
                self._silent |= isinstance(found, errors.TimeoutError)
            if self.error is None or isinstance(self.error, ConfigurationError):
                self.error = found
            return False
        if not self.slots.follows(found):
            self._doubtful = found
            return False
        self.slots.take(found)
        self.error = None
        return True

    def end(self) -> None:
        """Choose a map after all nodes have been asked.

        If no node was silent, the map that they have shows that the cluster was created again.
        """
        if self._doubtful is not None and self._doubtful.served and not self._silent:
            self.slots.take(self._doubtful)
            self.error = None
        elif self.error is None:
            self.error = errors.ClusterDownError(
                "CLUSTERDOWN no node knows an owner for each slot of the known map"
            )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}  # and the schemes of one node
# an `isinstance` check of these for a cluster client takes long
USUAL = (type(None), redis.Redis, redis.asyncio.Redis)


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
        return plain(connection_class=self.kind, **self.settings, host=node[0], port=node[1])


def names_cluster(url: str | None, client: object) -> bool:
    if type(client) not in USUAL and isinstance(
        client, (redis.RedisCluster, redis.asyncio.RedisCluster)
    ):
        return True
    return url is not None and url.partition(":")[0] in SCHEMES


def nodes_of(client: Any) -> list[Any]:
    manager = client.nodes_manager
    return [*{**manager.startup_nodes, **manager.nodes_cache}.values()]


def seeds(url: str | None, client: Any, plain: Any) -> Seeds:
    """Return the seeds of a cluster, from a URL or a client. *plain* is the class of pools.

    Raises `ConfigurationError` for a bad URL.
    """
    if client is None:
        one, nodes = seeds_of(str(url))
        pool = plain.from_url(one)
        return Seeds(nodes, pool.connection_class, _settings(pool.connection_kwargs))
    manager = client.nodes_manager
    known = nodes_of(client)
    nodes = [(str(node.host), int(node.port)) for node in known]
    source: Any = known[0]  # a node of asyncio has the settings itself
    if isinstance(client, redis.RedisCluster):
        default: Any = manager.default_node
        source = default.redis_connection.connection_pool
    settings = _settings(source.connection_kwargs)
    return Seeds(nodes, source.connection_class, settings, manager.address_remap)


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the address, and the settings that make a cluster client read from replicas."""
    return {
        name: value
        for name, value in settings.items()
        if name not in ("host", "port", "redis_connect_func")
    }


def seeds_of(url: str) -> tuple[str, list[Node]]:
    """Return a URL of one node, and all nodes that *url* names.

    Raises `ConfigurationError` for a bad URL.
    """
    scheme, _, rest = url.partition("://")
    try:
        parts = urlsplit(f"//{rest}")
        user, at, hosts = parts.netloc.rpartition("@")
        nodes = [_node(host) for host in hosts.split(",")]
    except ValueError:  # whose words may have a part of the password
        raise ConfigurationError(
            f"url {scheme}://…: a host is missing, or a port is none; give {scheme}://host:port, or several, as "
            f"{scheme}://host1:port1,host2:port2"
        ) from None
    first = hosts.partition(",")[0]
    query = f"?{parts.query}" if parts.query else ""
    return f"{SCHEMES[scheme]}://{user}{at}{first}{parts.path}{query}", nodes


def _node(host: str) -> Node:
    place = urlsplit(f"//{host}")
    if not place.hostname:
        raise ValueError("a host is missing")
    return place.hostname, place.port or 6379


def misled(error: errors.MovedError, settings: Mapping[str, Any]) -> ConfigurationError:
    redirection: Any = error  # its attributes are not annotated
    host, port = settings.get("host", "the server"), settings.get("port", "")
    return ConfigurationError(
        f"{host}:{port} is a node of a cluster, and the queue is served by another "
        f"({redirection.host}:{redirection.port}): "
        f"use redis+cluster://{host}:{port} (rediss+cluster:// with TLS), or give client=RedisCluster(…)"
    )


@define(eq=False)
class Scattered(Trip):
    """A round trip to a cluster. Operations that were answered are not sent again."""

    replies: dict[int, Any] = field(factory=dict[int, Any])
    attempted: float = field(factory=since_boot)  # when the last attempt began

    @property
    def rest(self) -> float | None:
        """The seconds that remain of `within` in the middle of an attempt, or `None` without a
        limit.
        """
        return None if self.left is None else max(0.0, self.left - (since_boot() - self.attempted))


@frozen(eq=False)
class Batch:
    node: Node
    places: Sequence[int]
    """The positions of the operations in the trip."""
    ops: Sequence[Op[Any]]
    asking: bool
    commands: Sequence[bytes]
    durability: DurabilityWait | None = None

    def replies(self, answers: Sequence[Any]) -> Sequence[Any]:
        every = 2 if self.asking else 1
        return (
            answers[every - 1 :: every]
            if self.durability is None
            else self.durability.unwrapped(answers, every)
        )


class Scatter:
    """One attempt, which sends rounds of batches until every operation has been answered or
    refused.

    MOVED, ASK and NOSCRIPT mean that nothing ran. The operation goes out again at once, under its
    number.
    """

    def __init__(self, slots: Slots, trip: Scattered, lanes: Sequence[Lane]) -> None:
        self._slots, self._trip, self._lanes = slots, trip, lanes
        self._left = [i for i in range(len(trip.ops)) if i not in trip.replies]
        # the node to ask once for an operation of a migrating slot
        self._asked: dict[int, Node] = {}
        self._source: set[int] = set()  # operations whose script the node does not know
        self._errors: list[Exception] = []
        self._rounds = 0
        self.stale = False  # the map may be out of date

    @property
    def unknown(self) -> bool:
        return any(
            self._slots.owner(slot_of(self._trip.ops[i].keys[0])) is None for i in self._left
        )

    def batches(self) -> list[Batch]:
        groups: dict[tuple[Node, bool], list[int]] = {}
        left, self._left = self._left, []
        self._rounds += 1
        for i in left:
            slot = slot_of(self._trip.ops[i].keys[0])
            node = self._asked.get(i) or self._slots.owner(slot)
            if node is None:
                self._failed(errors.ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}"))
            elif self._rounds > REDIRECTED_AT_MOST:
                self._failed(
                    errors.TryAgainError(f"TRYAGAIN slot {slot} is passed from node to node")
                )
            else:
                groups.setdefault((node, i in self._asked), []).append(i)
        return [self._batch(node, asking, places) for (node, asking), places in groups.items()]

    def _batch(self, node: Node, asking: bool, places: Sequence[int]) -> Batch:
        ops = [self._trip.ops[i] for i in places]
        commands: list[bytes] = []
        for i, op in zip(places, ops, strict=True):
            lane = self._lanes[i]
            packed = op.packed(
                "EVAL" if i in self._source else "EVALSHA", lane.name, str(lane.calls)
            )
            commands += [ASKING, packed] if asking else [packed]
        durability = self._trip.durability
        if durability is not None:
            commands = durability.wrapped(commands, self._trip.rest)
        return Batch(node, places, ops, asking, commands, durability)

    def take(self, batch: Batch, answers: Sequence[Any] | Exception) -> None:
        if isinstance(answers, Exception):
            self._slots.failed(batch.node, answers)
            self._failed(_naming(batch.node, answers))
            return
        self._slots.answered(batch.node)
        for i, op, reply in zip(batch.places, batch.ops, batch.replies(answers), strict=True):
            self._asked.pop(i, None)
            if not isinstance(reply, Exception):
                self._trip.replies[i] = reply
            # first: redis-py's MovedError is an AskError, too
            elif isinstance(reply, errors.MovedError):
                self._slots.moved(slot_of(op.keys[0]), self._slots.redirected(reply, batch.node))
                self.stale = True
                self._left.append(i)
            elif isinstance(reply, errors.AskError):
                self._asked[i] = self._slots.redirected(reply, batch.node)
                self._left.append(i)
            elif missing([reply]):
                self._source.add(i)
                if batch.asking:
                    self._asked[i] = batch.node
                self._left.append(i)
            else:
                self._failed(reply)

    def _failed(self, error: Exception) -> None:
        self._errors.append(error)
        self.stale = self.stale or not isinstance(error, errors.TryAgainError)

    def answered(self) -> list[Any]:
        """Return the replies of all operations, in their order. Raises the error of a failed
        operation.
        """
        error = first_error(self._errors)
        if error is not None:
            raise error
        return [self._trip.replies[i] for i in range(len(self._trip.ops))]


def _naming(node: Node, error: Exception) -> Exception:
    place = f"{node[0]}:{node[1]}"
    if isinstance(error, errors.RedisError) and place not in str(error):
        error.args = (f"{place}: {error}",)
    return error
