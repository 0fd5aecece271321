"""The base of both executors for clusters: the map, and what is kept for each node."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from redis import exceptions as errors

from headrace._net.base.cluster.address import Seeds
from headrace._net.base.cluster.scatter import Scattered
from headrace._net.base.cluster.slots import Node, Slots, slot_of
from headrace._net.base.retries import Trip
from headrace._protocol.keys import Keys
from headrace._protocol.op import Arg

RETRY_PAUSE_S = 0.5  # seconds between two attempts, at most: another node takes over in a second or two
SCANNED_AT_ONCE = 1 << 14  # nodes that the cursor of a scan can tell apart


class BaseClusterExecutor:
    """The base of both executors for clusters: the map, and what is kept for each node."""

    _trip: type[Trip] = Scattered
    _waits_no_more: bool
    pause: float
    sharded: bool

    def _scattered(self, seeds: Seeds) -> None:
        self._seeds = seeds
        self.slots = Slots(seeds.nodes, seeds.remap)
        self.pause = RETRY_PAUSE_S
        self.sharded = True  # until a node refuses sharded channels
        self._links: dict[Node, Any] = {}
        self._answer_within: float | None = None  # seconds; `None`: as connections are set
        self._combines = False

    def hasten(self, seconds: float) -> None:
        """Wait at most *seconds* for a node's answer or a connection from now on."""
        self._answer_within = seconds

    def _linked(self, node: Node, link: Any) -> Any:
        """Keep the connections of a node, unless another thread was faster. Return the kept connections."""
        if self._waits_no_more:
            link.stop_waiting()
        if self._answer_within is not None:
            link.hasten(self._answer_within)
        if self._combines:
            link.combine()
        return self._links.setdefault(node, link)

    def _left(self) -> list[Any]:
        """Forget nodes that have left the cluster. Return our connections to them."""
        return [self._links.pop(node) for node in self.slots.gone(list(self._links)) if node in self._links]

    def _owner(self, slot: int) -> Node:
        node = self.slots.owner(slot)
        if node is None:
            raise errors.ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}")
        return node

    def sound(self, keys: Keys) -> bool:
        """Tell whether the node of these keys has answered lately, as far as is known."""
        node = self.slots.silent(slot_of(keys.prefix))
        if node is not None and self.slots.probes(node):
            self._probe_soon(node)
        return node is None

    def _probe_soon(self, node: Node) -> None:
        """Probe a silent node in the background. If it does not answer, have the map read again."""
        raise NotImplementedError

    def node(self, keys: Keys) -> str | None:
        """Return the address of the node of these keys; `None` if it is not known."""
        node = self.slots.owner(slot_of(keys.prefix))
        return None if node is None else f"{node[0]}:{node[1]}"

    def place(self, keys: Keys) -> Hashable:
        """Return the group: two queues of one group are surely on one node."""
        return keys.group

    def combine(self) -> None:
        """Let calls share round trips from now on, for each node: a node out of reach holds up only its own calls."""
        self._combines = True
        for link in list(self._links.values()):
            link.combine()

    def leads(self, source: Any, channels: Sequence[str]) -> bool:
        """Tell whether connections of *source*, a pool of `source`, lead to the node of these channels."""
        node = self.slots.owner(slot_of(channels[0]))
        link = None if node is None else self._links.get(node)
        return link is not None and link.pool is source

    def redirected(self, error: errors.MovedError) -> None:
        """Record that another node serves the slot of a channel."""
        there: Any = error  # its attributes are not annotated
        self._moved(error, there.slot_id)

    def missed(self, channels: Sequence[str]) -> None:
        """Record that the node of these channels was not reached: `source` looks for another one."""
        node = self.slots.owner(slot_of(channels[0]))
        if node is not None:
            self.slots.missed(node)

    def _moved(self, error: errors.MovedError, slot: int) -> None:
        asked = self.slots.owner(slot) or ("", 0)
        self.slots.moved(slot, self.slots.redirected(error, asked))

    def _waited(self, command: tuple[Arg, ...]) -> int:
        """Return the slot of the stream on which *command* blocks."""
        return slot_of(next(arg for arg in command if isinstance(arg, str) and "{" in arg))

    def _woke(self, slot: int, reply: Any) -> bool:
        """Process the reply to a blocked read. Tell whether it found something; an error counts as yes."""
        if isinstance(reply, errors.MovedError):
            self._moved(reply, slot)
        return bool(reply)

    def _scanned(self, cursor: int) -> tuple[Node, int]:
        """Return the node that the *cursor* of a scan over all nodes is at, and the node's own cursor."""
        at, number = divmod(cursor, SCANNED_AT_ONCE)
        primaries = self.slots.primaries()
        if not primaries:
            raise errors.ClusterDownError("CLUSTERDOWN no node serves any slot")
        return primaries[min(number, len(primaries) - 1)], at

    def _scanned_on(self, cursor: int, reply: Any) -> Any:
        """Return a node's reply to a scan, with its cursor replaced by the cursor over all nodes."""
        if isinstance(reply, Exception):
            return reply
        at, number = int(reply[0]), cursor % SCANNED_AT_ONCE
        if not at:
            number += 1
        over = not at and number >= len(self.slots.primaries())
        return [0 if over else at * SCANNED_AT_ONCE + number, reply[1]]
