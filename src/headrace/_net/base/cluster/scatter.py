"""One attempt of a round trip to a cluster: the batch for each node, and the meaning of the replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen
from redis import exceptions as errors

from headrace._net.base.cluster.slots import ASKING, Node, Slots, slot_of
from headrace._net.base.lanes import Lane
from headrace._net.base.retries import Trip, first_error, missing, refuses, since_boot
from headrace._protocol.durability import DurabilityWait
from headrace._protocol.op import Op

ROUNDS = 8  # redirections in a row; then there is a pause, as after an error


@define(eq=False)
class Scattered(Trip):
    """A round trip to a cluster: operations that were answered are not sent again."""

    replies: dict[int, Any] = field(factory=dict[int, Any])
    attempted: float = field(factory=since_boot)  # when the last attempt began

    @property
    def rest(self) -> float | None:
        """The seconds that remain of `within`, in the middle of an attempt; `None`: there is no limit."""
        return None if self.left is None else max(0.0, self.left - (since_boot() - self.attempted))


@frozen(eq=False)
class Batch:
    """Operations for one node, packed."""

    node: Node
    places: Sequence[int]
    """The positions of the operations in the trip."""
    ops: Sequence[Op[Any]]
    asking: bool
    commands: Sequence[bytes]
    durability: DurabilityWait | None = None

    def replies(self, answers: Sequence[Any]) -> Sequence[Any]:
        """Return the replies of the operations, without the replies to ASKING and to waits for durability."""
        every = 2 if self.asking else 1
        return answers[every - 1 :: every] if self.durability is None else self.durability.unwrapped(answers, every)


class Scatter:
    """One attempt: rounds of batches, until every operation has been answered or refused.

    MOVED, ASK and NOSCRIPT mean that nothing ran: the operation goes out again at once, under its number.
    """

    def __init__(self, slots: Slots, trip: Scattered, lanes: Sequence[Lane]) -> None:
        self._slots, self._trip, self._lanes = slots, trip, lanes
        self._left = [i for i in range(len(trip.ops)) if i not in trip.replies]
        self._asked: dict[int, Node] = {}  # the node to ask once for an operation of a migrating slot
        self._source: set[int] = set()  # operations whose script the node does not know
        self._errors: list[Exception] = []
        self._rounds = 0
        self.stale = False  # the map may be out of date

    @property
    def unknown(self) -> bool:
        """Whether the owner of a slot is unknown."""
        return any(self._slots.owner(slot_of(self._trip.ops[i].keys[0])) is None for i in self._left)

    def batches(self) -> list[Batch]:
        """Return the batches to send now, one for each node."""
        groups: dict[tuple[Node, bool], list[int]] = {}
        left, self._left = self._left, []
        self._rounds += 1
        for i in left:
            slot = slot_of(self._trip.ops[i].keys[0])
            node = self._asked.get(i) or self._slots.owner(slot)
            if node is None:
                self._failed(errors.ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}"))
            elif self._rounds > ROUNDS:
                self._failed(errors.TryAgainError(f"TRYAGAIN slot {slot} is passed from node to node"))
            else:
                groups.setdefault((node, i in self._asked), []).append(i)
        return [self._batch(node, asking, places) for (node, asking), places in groups.items()]

    def _batch(self, node: Node, asking: bool, places: Sequence[int]) -> Batch:
        ops = [self._trip.ops[i] for i in places]
        commands: list[bytes] = []
        for i, op in zip(places, ops, strict=True):
            lane = self._lanes[i]
            packed = op.packed("EVAL" if i in self._source else "EVALSHA", lane.name, str(lane.calls))
            commands += [ASKING, packed] if asking else [packed]
        durability = self._trip.durability
        if durability is not None:
            commands = durability.wrapped(commands, self._trip.rest)
        return Batch(node, places, ops, asking, commands, durability)

    def take(self, batch: Batch, answers: Sequence[Any] | Exception) -> None:
        """Process the answers to a batch, or the error in their place."""
        if isinstance(answers, Exception):
            self._slots.missed(batch.node, answers)
            self._failed(_naming(batch.node, answers))
            return
        self._slots.heard(batch.node)
        for i, op, reply in zip(batch.places, batch.ops, batch.replies(answers), strict=True):
            self._asked.pop(i, None)
            if not isinstance(reply, Exception):
                self._trip.replies[i] = reply
            elif isinstance(reply, errors.MovedError):  # first: redis-py's MovedError is an AskError, too
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
        """Return the replies of all operations, in their order. Raises the error of a failed operation."""
        error = first_error(self._errors)
        if error is not None:
            raise error
        return [self._trip.replies[i] for i in range(len(self._trip.ops))]


def _naming(node: Node, error: Exception) -> Exception:
    """Add the node that has not answered to an error that does not name it."""
    place = f"{node[0]}:{node[1]}"
    if isinstance(error, errors.RedisError) and place not in str(error):
        error.args = (f"{place}: {error}",)
    return error


def refused(answers: Sequence[Any]) -> bool:
    """Tell whether the node has refused a value as too large."""
    return any(refuses(reply) for reply in answers)
