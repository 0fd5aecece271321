"""The base of both executors: lanes, retries, and the state of the server."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

from redis import exceptions as errors

from headrace._model.policy import Durability
from headrace._net.base.pool import SHARED
from headrace._net.base.retries import RETRY_PAUSE_S, Lane, RetryBudget, Trip, bound, heals, refuse_signalled, shared
from headrace._net.base.sentinel import PAUSE_S
from headrace._protocol.durability import DurabilityWait
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op, Prepared

SETTLING = frozenset(("complete", "retry", "dead_letter", "flow_advance"))  # operations that tell how a job ended
UNDO_WITHIN_S = 2.0  # seconds for undoing the effects of a cancelled call
NO_LIMIT = nullcontext()


class BaseExecutor:
    """The base of `Executor` and `AsyncExecutor`: lanes, retries, and the state of the server."""

    sharded = False  # whether the channels of events belong to a slot, as on a cluster
    _trip: type[Trip] = Trip

    def __init__(self, connections: Any, budget: float) -> None:
        self.connections = connections  # a `Pool`, or an `AsyncPool`
        self.pool = pool = connections.maker
        behind_sentinel = hasattr(getattr(pool, "sentinel_manager", None), "watch")
        self.budget, self.pause = budget, PAUSE_S if behind_sentinel else RETRY_PAUSE_S
        self.durable: Durability | None = None  # the durability that settlements wait for by default
        self.rights = False  # for a worker: whether its user has shown that it has the necessary rights
        self._can_wait: set[Durability] = set()  # durability that the server supports, as it said
        self.within: float | None = None  # seconds that bound each trip, its last attempt included
        self.outage = connections.outage
        self._lanes = shared(pool)
        self._blocked: set[Any] = set()  # connections on which a read blocks
        self._waits_no_more = False
        self._prefixes: set[str] = set()  # prefixes of the records of our calls

    @property
    def timeout(self) -> float:
        """The time limit in seconds of an attempt, for calls without a limit of their own."""
        timeout: float = self.connections.timeout
        return timeout

    def hasten(self, seconds: float) -> None:
        """Wait at most *seconds* for an answer or a connection from now on."""
        self.connections.hasten(seconds)

    def combine(self) -> None:
        """Let calls share round trips from now on, on few connections."""
        self.connections.combine()

    def links(self) -> Sequence[Any]:
        """Return the executors of the nodes of a cluster."""
        return ()

    def sound(self, keys: Keys) -> bool:  # noqa: ARG002 - there is one server
        """Tell whether the node of these keys is believed to be healthy: it has answered lately."""
        return True

    def node(self, keys: Keys) -> str | None:  # noqa: ARG002 - there is one server
        """Return the address of the node of these keys; `None` if it is not known."""
        settings = self.pool.connection_kwargs
        path: str | None = settings.get("path")
        return path or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"

    def place(self, keys: Keys) -> Hashable:  # noqa: ARG002 - there is one
        """Return the place of a queue's keys, such as a primary. Queues in the same place may share a blocked read."""
        return None

    def _durability_wait(self, ops: Sequence[Op[Any]]) -> DurabilityWait | None:
        """Return the durability that a round trip of these operations waits for."""
        for op in ops:
            if op.durability is not None:
                return op.durability
            if self.durable is not None and op.name in SETTLING:
                return DurabilityWait(self.durable)
        return None

    def _lane(self, op: Op[Any] | Prepared[Any]) -> Lane:
        self._prefixes.add(op.lane_prefix)
        return self._lanes.take(op.lane_prefix)

    def _clearing(self) -> list[tuple[str, ...]]:
        """Make commands that delete the records of free lanes. Records expire, so none are made during an outage."""
        prefixes, self._prefixes = self._prefixes - {""}, set()
        keys = [] if self.outage.since else [self._lanes.drop(prefix) for prefix in sorted(prefixes)]
        return [("DEL", *some) for some in keys if some]

    def _last(self) -> bool:
        """Release our share of the connections. Tell whether they have no other users."""
        return SHARED.leave(self.connections, self)

    def leads(self, source: Any, _channels: Sequence[str]) -> bool:
        """Tell whether the pool *source*, which `source` returned, leads to the server of these channels."""
        return source is self.pool

    def redirected(self, error: errors.MovedError) -> None:
        """Record that another node serves the slot of a channel."""
        raise error

    def missed(self, channels: Sequence[str]) -> None:
        """Record that the server of these channels was unreachable."""

    def _permit(self, trip: Trip) -> Any:  # noqa: ARG002 - threads are few
        """Return the context within which a trip may take connections."""
        return NO_LIMIT

    def _heals(self, error: Exception, trip: Trip) -> bool:
        """Tell whether trying again can help. Raises the program's own errors."""
        refuse_signalled(error)
        return heals(error, trip.ops, good=self.outage.answers > 0, rights=self.rights)

    def _failed(self, error: Exception, trip: Trip, lanes: Sequence[Lane]) -> RetryBudget:
        """Record the failure of the first attempt, and return the counter of the others."""

        def limit() -> float:
            return bound(self.outage, self.budget if trip.within is None else trip.within)

        budget = RetryBudget(self.outage, limit, self.timeout, trip, self.rights)
        budget.failed(error)
        for lane in lanes:
            lane.repeated = True
        self.outage.begins()
        return budget

    def _heard(self) -> None:
        """Record that the server has answered."""
        self.outage.answers += 1
        if self.outage.since:
            self.outage.over()

    def _answered(self, trip: Trip, replies: Sequence[Any]) -> list[Any]:
        """Decode the replies. Raises `NotDurable`, with the decoded answers."""
        self._heard()
        for op, reply in zip(trip.ops, replies, strict=True):
            if op.name == "complete" and (number := reply.count(2)):  # without their results
                self.outage.dropped(op.keys[0].split(":")[-2], number)
        answers = [op.decode(reply) for op, reply in zip(trip.ops, replies, strict=True)]
        if trip.durability is not None:
            trip.durability.judge(answers)
        return answers


def undecoded(reply: Any) -> Any:
    return reply
