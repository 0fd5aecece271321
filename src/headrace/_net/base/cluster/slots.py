"""The map of a cluster: the node of each slot. Pure: the executors ask for the map."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from attrs import define, field, frozen
from redis import exceptions as errors
from redis.crc import key_slot

from headrace._model.shards import SLOTS
from headrace._protocol.limits import SILENT_S
from headrace._protocol.op import pack
from headrace.errors import ConfigurationError

Node = tuple[str, int]  # host and port
ASK_MAP = pack(("CLUSTER", "SLOTS")), pack(("CLUSTER", "INFO"))
ASKING = pack(("ASKING",))
PROBE = (pack(("PING",)),)
ASK_WITHIN_S = 2.0  # seconds for a node's answer
ASK_NEXT_S = 0.2  # seconds without an answer, after which another node is asked, too
SILENT_AFTER_S = 3.0  # seconds to wait for the last node: looking up a name has no bound of its own
LEARN_WITHIN_S = 5.0  # seconds for which a call without a bound waits for the map
ASK_EVERY_S = 0.2  # seconds between two questions, at least
PROBE_EVERY_S = 1.0  # seconds between two probes of a node that is silent, at least

_EPOCH = re.compile(r"^cluster_current_epoch:(\d+)", re.MULTILINE)


@lru_cache(maxsize=10_000)
def _tag_slot(tag: str) -> int:
    return int(key_slot(tag.encode()))


def slot_of(key: str) -> int:
    """Return the slot of a key of ours, which always has a hash tag."""
    return _tag_slot(key[key.index("{") + 1 : key.index("}")])


@frozen(eq=False)
class Map:
    """A cluster, as one node describes it: the owner of each slot, all nodes and their ids, the epoch (`None`:
    unknown), and the number of slots with an owner.
    """

    owners: list[Node | None]
    nodes: list[Node] = field(factory=list[Node])
    ids: frozenset[str] = frozenset()
    epoch: int | None = None
    served: int = 0

    def follows(self, known: Map) -> bool:
        """Tell whether this map may replace the *known* one: it is of the same cluster, it is not older, and it has an
        owner for at least one slot and for as many slots as the known map. The map of a node that left its cluster, or
        joined another, may not.
        """
        later = self.epoch is None or known.epoch is None or self.epoch >= known.epoch
        same = not self.ids or not known.ids or not self.ids.isdisjoint(known.ids)
        return later and same and self.served >= max(known.served, 1)


class Slots:
    """Map from slots to nodes, and the nodes that are silent. Threads may share it: each step is one assignment.

    A node that has not answered a call is silent for `SILENT_S`, or until it answers a call or a probe.
    """

    def __init__(self, seeds: Sequence[Node], remap: Callable[[Node], Node] | None = None) -> None:
        self._seeds, self._remap = list(seeds), remap
        self._map = Map([None] * SLOTS)
        self._owners = self._map.owners
        self._silent: dict[Node, float] = {}  # until when
        self._probed: dict[Node, float] = {}  # when, last
        self.asked = float("-inf")  # when the map was asked for last

    def owner(self, slot: int) -> Node | None:
        """Return the node that serves *slot*; `None` if that is not known."""
        return self._owners[slot]

    @property
    def complete(self) -> bool:
        """Whether the map was ever learnt."""
        return bool(self._map.nodes)

    def due(self) -> bool:
        """Tell whether it is time to ask again."""
        return time.monotonic() - self.asked >= ASK_EVERY_S

    def missed(self, node: Node, error: Exception | None = None) -> None:
        """Record that a node did not answer, and is silent. If it closed a connection, it is silent the second time."""
        surely = isinstance(error, errors.TimeoutError) or node in self._silent
        self._silent[node] = time.monotonic() + SILENT_S if surely else 0.0

    def heard(self, node: Node) -> None:
        """Record that a node has answered, and is not silent."""
        if self._silent:
            self._silent.pop(node, None)

    def silent(self, slot: int) -> Node | None:
        """Return the node that serves *slot*, if it is silent."""
        node = self._owners[slot]
        return None if node is None or self._silent.get(node, 0.0) <= time.monotonic() else node

    def probes(self, node: Node) -> bool:
        """Tell whether to probe a node now. Returns true to one caller only."""
        now = time.monotonic()
        if self._probed.get(node, float("-inf")) > now - PROBE_EVERY_S:
            return False
        self._probed[node] = now
        return True

    def moved(self, slot: int, node: Node) -> None:
        """Record that *node* serves *slot*."""
        self._owners[slot] = node

    def redirected(self, error: errors.AskError, asked: Node) -> Node:
        """Return the node to which *asked* redirects. An empty host means the host of *asked*."""
        there: Any = error  # its attributes are not annotated
        return self._reached((there.host or asked[0], int(there.port)))

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
        return Map(owners, list(known), frozenset(ids), None if epoch is None else int(epoch[1]), served)

    def follows(self, found: Map) -> bool:
        """Tell whether a map may replace the one that is known."""
        return found.follows(self._map)

    def take(self, found: Map) -> None:
        """Replace the map."""
        self._map, self._owners = found, found.owners

    def _place(self, node: Sequence[Any], asked: Node) -> Node:
        host = _text(node[0])
        return self._reached((host if host and host != "?" else asked[0], int(node[1])))

    def primaries(self) -> list[Node]:
        """Return the nodes that serve slots, in a fixed order."""
        return sorted({node for node in self._owners if node is not None})

    def places(self) -> list[Node]:
        """Return all nodes to ask, in any order, the silent ones last."""
        nodes = list(dict.fromkeys([*self._map.nodes, *self._seeds]))
        random.shuffle(nodes)
        now = time.monotonic()
        return sorted(nodes, key=lambda node: self._silent.get(node, 0.0) > now)

    def gone(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the *nodes* that have left the cluster."""
        return [node for node in nodes if node not in self._map.nodes and node not in self._seeds]


@define(eq=False)
class MapSearch:
    """One search for the map, for all callers that need it. It asks nodes until a map may replace the known one."""

    slots: Slots
    over: Any = None  # an event, set at the end
    home: object = None  # the process or event loop that searches
    places: list[Node] = field(init=False)  # nodes left to ask
    error: Exception | None = field(default=None, init=False)  # after the search: why there is no map
    _doubtful: Map | None = field(default=None, init=False)
    _silent: bool = field(default=False, init=False)  # a node has not answered: it may have a newer map

    def __attrs_post_init__(self) -> None:
        self.places = self.slots.places()
        self.slots.asked = time.monotonic()

    def take(self, node: Node, answers: Sequence[Any] | Exception) -> bool:
        """Process the answer of *node* to `ASK_MAP`, or its error. Tell whether the map is known now."""
        try:
            found = answers if isinstance(answers, Exception) else self.slots.read(answers, node)
        except Exception as error:
            found = error
        if isinstance(found, Exception):
            if not isinstance(found, ConfigurationError):  # otherwise this is no node of a cluster; other nodes may be
                self.slots.missed(node, found)
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
        """Choose a map after all nodes have been asked. If they agree, the cluster was created again."""
        if self._doubtful is not None and self._doubtful.served and not self._silent:
            self.slots.take(self._doubtful)
            self.error = None
        elif self.error is None:
            self.error = errors.ClusterDownError("CLUSTERDOWN no node knows an owner for each slot of the known map")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
