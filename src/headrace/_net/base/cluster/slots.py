"""The map of a cluster: which node serves which slot. Pure: asking for it is the executors' part."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from redis import exceptions as errors
from redis.crc import key_slot

from headrace._protocol.op import pack
from headrace.errors import ConfigurationError

Node = tuple[str, int]  # host and port
SLOTS = 16_384
ASK_SLOTS = pack(("CLUSTER", "SLOTS"))
ASKING = pack(("ASKING",))
ASK_WITHIN_S = 2.0  # seconds for a node's answer; then another one is asked
ASK_EVERY_S = 0.2  # seconds between two questions, at least
SUSPECT_S = 5.0  # seconds for which a node that has failed is asked last


@lru_cache(maxsize=10_000)
def _tag_slot(tag: str) -> int:
    return int(key_slot(tag.encode()))


def slot_of(key: str) -> int:
    """Return the slot of a key of ours, which always has a hash tag."""
    return _tag_slot(key[key.index("{") + 1 : key.index("}")])


class Slots:
    """Map from slots to nodes, as far as it is known. Threads may share it: each step is one assignment."""

    def __init__(self, seeds: Sequence[Node], remap: Callable[[Node], Node] | None = None) -> None:
        self._seeds, self._remap = list(seeds), remap
        self._owners: list[Node | None] = [None] * SLOTS
        self._known: list[Node] = []
        self._suspected: dict[Node, float] = {}
        self.asked = float("-inf")  # when the map was learnt

    def owner(self, slot: int) -> Node | None:
        """Return the node that serves *slot*; `None` if that is not known."""
        return self._owners[slot]

    @property
    def complete(self) -> bool:
        """Whether the map was ever learnt."""
        return bool(self._known)

    def due(self) -> bool:
        """Tell whether it is time to ask again."""
        return time.monotonic() - self.asked >= ASK_EVERY_S

    def suspect(self, node: Node) -> None:
        """Note that a node has failed: others are asked first."""
        self._suspected[node] = time.monotonic()

    def sound(self, slot: int) -> bool:
        """Tell whether the node that serves *slot* has not failed lately, as far as is known."""
        node = self._owners[slot]
        return node is None or self._suspected.get(node, float("-inf")) <= time.monotonic() - SUSPECT_S

    def moved(self, slot: int, node: Node) -> None:
        """Take in that *node* serves *slot*."""
        self._owners[slot] = node

    def redirected(self, error: errors.AskError, asked: Node) -> Node:
        """Return the node to which *asked* sends us; without a host it means its own."""
        there: Any = error  # its attributes are not annotated
        return self._reached((there.host or asked[0], int(there.port)))

    def _reached(self, node: Node) -> Node:
        return node if self._remap is None else self._remap(node)

    def learn(self, reply: Any, asked: Node) -> None:
        """Take in the answer of *asked* to `ASK_SLOTS`. Raises it, if it is an error."""
        if isinstance(reply, Exception):
            if "cluster support disabled" in str(reply):
                raise ConfigurationError(
                    f"{asked[0]}:{asked[1]} is no node of a cluster: use redis://{asked[0]}:{asked[1]}"
                )
            raise reply
        owners: list[Node | None] = [None] * SLOTS
        known: dict[Node, None] = {}
        for first, last, *nodes in reply:
            places = [self._place(node, asked) for node in nodes]
            known |= dict.fromkeys(places)
            owners[first : last + 1] = [places[0]] * (last - first + 1)
        self._owners, self._known, self.asked = owners, list(known), time.monotonic()

    def _place(self, node: Sequence[Any], asked: Node) -> Node:
        host = node[0].decode() if isinstance(node[0], bytes) else node[0]
        return self._reached((host if host and host != "?" else asked[0], int(node[1])))

    def primaries(self) -> list[Node]:
        """Return the nodes that serve slots, in a fixed order."""
        return sorted({node for node in self._owners if node is not None})

    def places(self) -> list[Node]:
        """Return all nodes to ask, in any order, those that failed lately last."""
        nodes = list(dict.fromkeys([*self._known, *self._seeds]))
        random.shuffle(nodes)
        since = time.monotonic() - SUSPECT_S
        return sorted(nodes, key=lambda node: self._suspected.get(node, 0.0) > since)

    def gone(self, nodes: Sequence[Node]) -> list[Node]:
        """Return those of *nodes* that are no part of the cluster any more."""
        return [node for node in nodes if node not in self._known and node not in self._seeds]
