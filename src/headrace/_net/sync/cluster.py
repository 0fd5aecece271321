# Generated from `headrace/_net/aio/cluster.py` by .ci/twins.py: edit that file.
"""An executor for clusters. Each operation goes to the node that serves its slot.

- An `Executor` holds the connections of a node, and is used only to send. Lanes, retries and
  their budget are the cluster's. So a call keeps its number wherever it goes, and its record moves
  with the slot. It never acts twice.
- Operations of one round trip that concern several nodes are sent to all at once. While one node is
  out of reach, answered operations of other nodes are not sent again.
"""

# ruff: noqa: SLF001 - the executors of nodes are parts of this one

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from redis import exceptions as errors

from headrace._net.base.cluster import (
    ASK_EVERY_S,
    ASK_MAP,
    ASK_WITHIN_S,
    PROBE,
    PROBE_EVERY_S,
    Batch,
    MapSearch,
    Node,
    Scatter,
    Scattered,
    Seeds,
    Slots,
    names_cluster,
    seeds,
    slot_of,
)
from headrace._net.base.connections import Attend
from headrace._net.base.retries import (
    FAILOVER_PAUSE_S,
    FIRST_ANSWER_S,
    Lane,
    Meanwhile,
    Trip,
    refuses,
    since_boot,
    unwelcome,
)
from headrace._net.sync.colour import (
    Background,
    ConnectionPool,
    Queue,
    all_of,
    event,
    happens,
    here,
    lock,
    next_of,
)
from headrace._net.sync.executor import Executor
from headrace._protocol.keys import Keys
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.op import Arg, Op, Prepared, pack
from headrace._telemetry.client import Outage

N = TypeVar("N")
R = TypeVar("R")
Answers = Sequence[Any] | Exception
SCANNED_AT_ONCE = 1 << 14  # nodes that the cursor of a scan can tell apart


def executor_of(
    url: str | None = None,
    client: Any = None,
    budget: float = RETRY_BUDGET_S,
    outage: Outage | None = None,
    attend: Attend | None = None,
    *,
    shares: bool = False,
) -> Executor:
    if names_cluster(url, client):
        return ClusterExecutor(seeds(url, client, ConnectionPool), budget, outage)
    return Executor(url, client, budget, outage, attend, shares=shares)


class ClusterExecutor(Executor):
    _trip = Scattered

    def __init__(
        self, seeds: Seeds, budget: float = RETRY_BUDGET_S, outage: Outage | None = None
    ) -> None:
        client: Any = SimpleNamespace(connection_pool=seeds.pool(ConnectionPool, seeds.nodes[0]))
        super().__init__(None, client, budget, outage)
        self._seeds = seeds
        self.slots = Slots(seeds.nodes, seeds.remap)
        self.pause = FAILOVER_PAUSE_S
        self.sharded = True  # until a node refuses sharded channels
        self._links: dict[Node, Executor] = {}
        self._answer_within: float | None = None  # seconds; `None`: as connections are set
        self._combines = False
        self._searching = lock()
        self._search: MapSearch | None = None
        self._background = Background()

    def links(self) -> Sequence[Executor]:
        return list(self._links.values())

    def _link(self, node: Node) -> Executor:
        link = self._links.get(node)
        if link is None:
            pool: Any = SimpleNamespace(connection_pool=self._seeds.pool(ConnectionPool, node))
            link = Executor(None, pool, self.budget, self.outage)
            if self._waits_no_more:
                link.stop_waiting()
            if self._answer_within is not None:
                link.lower_timeouts(self._answer_within)
            if self._combines:
                link.combine()
            link = self._links.setdefault(node, link)
        return link

    def lower_timeouts(self, seconds: float) -> None:
        self._answer_within = seconds

    def combine(self) -> None:
        self._combines = True
        for link in self.links():
            link.combine()

    def _refresh(self, within: float | None) -> None:
        """Wait until the map of the cluster is known, *within* seconds at most.

        Raises the error of a failed search.
        """
        search = self._begin_search()
        within = FIRST_ANSWER_S if within is None else within
        if not happens(search.over, min(within, FIRST_ANSWER_S)):
            raise errors.TimeoutError(
                f"no node has sent the map of the cluster within {within:.3g} s"
            )
        if search.error is not None:
            raise copy(search.error) from search.error

    def _refresh_soon(self) -> None:
        """Read the map again in the background. Calls use the known map until then."""
        if self.slots.due():
            self._begin_search()

    def _begin_search(self) -> MapSearch:
        with self._searching:
            search = self._search
            if search is None or search.over.is_set() or search.home != here():
                self._search = search = MapSearch(self.slots, event(), here())
                try:
                    self._background.start("headrace-map", self._find_map, search)
                except RuntimeError as error:  # the interpreter ends, or there are no more threads
                    search.error = error
                    search.over.set()
            return search

    def _find_map(self, search: MapSearch) -> None:
        """Ask one node after another for the map. Ask the next one soon, even if earlier nodes have
        not answered.
        """
        answers: Queue[tuple[Node, Answers]] = Queue()
        asked: list[Node] = []
        try:
            while search.places or asked:
                if search.places:
                    asked.append(search.places.pop(0))
                    self._background.start("headrace-map", self._ask, asked[-1], answers)
                # the last node may be long in coming: a look-up of a name has no limit of its own
                found = next_of(answers, ASK_EVERY_S if search.places else 3.0)
                if found is None and search.places:
                    continue
                node, answer = found or (asked[0], errors.TimeoutError("no answer"))
                asked.remove(node)
                if search.take(node, answer):
                    break
            else:
                search.end()
            for node in self.slots.gone(list(self._links)):  # has left the cluster
                if (link := self._links.pop(node, None)) is not None:
                    link.connections.disconnect(inuse_connections=False)
        except Exception as error:  # waiting calls receive the error
            search.error = error
        finally:
            search.over.set()

    def _ask(self, node: Node, answers: Queue[tuple[Node, Answers]]) -> None:
        try:
            answer: Answers = self._link(node).connections.send(ASK_MAP, within=ASK_WITHIN_S)
        except Exception as error:
            answer = error
        answers.put_nowait((node, answer))

    def healthy(self, keys: Keys) -> bool:
        node = self.slots.silent(slot_of(keys.prefix))
        if node is not None and self.slots.may_probe(node):
            with suppress(RuntimeError):  # the interpreter ends, or there are no more threads
                self._background.start("headrace-map", self._probe, node)
        return node is None

    def _probe(self, node: Node) -> None:
        """Ask a silent node for a sign of life. If it does not answer, have the map read again."""
        try:
            self._link(node).connections.send(PROBE, within=PROBE_EVERY_S)
        except Exception as error:  # calls will meet the same error
            self.slots.failed(node, error)
            self._refresh_soon()
        else:
            self.slots.answered(node)

    def node(self, keys: Keys) -> str | None:
        node = self.slots.owner(slot_of(keys.prefix))
        return None if node is None else f"{node[0]}:{node[1]}"

    def place(self, keys: Keys) -> Hashable:
        """Return the queue's group, as all queues of a group are on the same node."""
        return keys.group

    def _first_connections(self, trip: Trip) -> Any:
        """Return the connections to the node of the first operation.

        An unreachable node then delays only its own calls.
        """
        node = self.slots.owner(slot_of(trip.ops[0].keys[0])) if trip.ops else None
        return (self if node is None else self._link(node)).connections

    def _attempt(self, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        assert isinstance(trip, Scattered)  # noqa: S101
        trip.attempted = since_boot()
        if trip.durability is not None:
            trip.durability.begin()
        return self._complete(Scatter(self.slots, trip, lanes), trip, meanwhile)

    def _complete(
        self, scatter: Scatter, trip: Scattered, meanwhile: Meanwhile = None
    ) -> list[Any]:
        if scatter.unknown:
            self._refresh(trip.rest)
        while batches := scatter.batches():
            first, *others = batches
            if others:  # to all nodes at once
                calls = [partial(self._exchanged, first, trip, meanwhile)]
                calls += [partial(self._exchanged, batch, trip, None) for batch in others]
                answers = all_of(calls)
            else:
                answers = [self._exchanged(first, trip, meanwhile)]
            for batch, answer in zip(batches, answers, strict=True):
                scatter.take(batch, answer)
            meanwhile = None
        if scatter.stale:
            self._refresh_soon()
        return scatter.answered()

    def _exchanged(self, batch: Batch, trip: Scattered, meanwhile: Meanwhile) -> Answers:
        link = self._link(batch.node)
        try:
            link._try_waiting(trip)
            answers = link.connections.send(batch.commands, meanwhile, trip.leaves, trip.rest)
        except (errors.RedisError, OSError) as cut:
            refusal = link._refusal(batch.ops) if isinstance(cut, errors.ConnectionError) else None
            if refusal is not None:
                raise refusal from cut
            return cut
        trip.answered()
        if any(isinstance(reply, Exception) and unwelcome(reply) for reply in answers):
            link.connections.disconnect(inuse_connections=False)
        if any(map(refuses, answers)) and (refusal := link._refusal(batch.ops)) is not None:
            raise refusal
        return answers

    def _run_prepared(self, prepared: Prepared[N, R], item: N) -> R:
        return cast("R", self.run_all([prepared.of(item)])[0])

    def ping(self) -> None:
        self._link(self.slots.places()[0]).ping()

    def scan(self, cursor: int, pattern: str, within: float | None = None) -> tuple[int, list[str]]:
        """Scan one node after another, in steps.

        The cursor holds the number of the node, and the node's own cursor.
        """
        if not self.slots.complete:
            self._refresh(within)
        at, number = divmod(cursor, SCANNED_AT_ONCE)
        primaries = self.slots.primaries()
        if not primaries:
            raise errors.ClusterDownError("CLUSTERDOWN no node serves any slot")
        at, names = self._link(primaries[min(number, len(primaries) - 1)]).scan(at, pattern, within)
        if not at:
            number += 1
        over = not at and number >= len(self.slots.primaries())
        return 0 if over else at * SCANNED_AT_ONCE + number, names

    def info(self, within: float | None = None) -> list[str]:
        if not self.slots.complete:
            self._refresh(within)
        return [one for node in self.slots.primaries() for one in self._link(node).info(within)]

    def connects_to(self, source: Any, channels: Sequence[str]) -> bool:
        node = self.slots.owner(slot_of(channels[0]))
        link = None if node is None else self._links.get(node)
        return link is not None and link.pool is source

    def redirected(self, error: errors.MovedError) -> None:
        redirection: Any = error  # its attributes are not annotated
        self._moved(error, redirection.slot_id)

    def unreachable(self, channels: Sequence[str]) -> None:
        """Record that the node of these channels was unreachable.

        The next call of `source` looks for another one.
        """
        node = self.slots.owner(slot_of(channels[0]))
        if node is not None:
            self.slots.failed(node)

    def _moved(self, error: errors.MovedError, slot: int) -> None:
        asked = self.slots.owner(slot) or ("", 0)
        self.slots.moved(slot, self.slots.redirected(error, asked))

    def _owner(self, slot: int) -> Node:
        node = self.slots.owner(slot)
        if node is None:
            raise errors.ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}")
        return node

    def source(self, channels: Sequence[str]) -> Any:
        slot = slot_of(channels[0])
        if self.slots.silent(slot) is not None and self.slots.due():
            with suppress(errors.RedisError, OSError):
                self._refresh(ASK_WITHIN_S)
        return self._home(slot).pool

    def _home(self, slot: int) -> Executor:
        if self.slots.owner(slot) is None:
            self._refresh(None)
        return self._link(self._owner(slot))

    def _block(
        self, command: tuple[Arg, ...], behind: Sequence[bytes] = (), leaves: Meanwhile = None
    ) -> list[Any]:
        """Like `Trips._block`, at the node of the stream on which *command* blocks."""
        slot = slot_of(next(arg for arg in command if isinstance(arg, str) and "{" in arg))
        try:
            replies = (self._home(slot))._block(command, behind, leaves)
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            if not self._waits_no_more:
                self._refresh_soon()
            raise
        if isinstance(replies[0], errors.MovedError):
            self._moved(replies[0], slot)
        return replies

    def _checked(self, replies: list[Any], trip: Trip, lanes: Sequence[Lane]) -> list[Any]:
        """Like `Trips._checked`, for an operation behind a blocked read."""
        assert isinstance(trip, Scattered)  # noqa: S101
        scatter = Scatter(self.slots, trip, lanes)
        for batch in scatter.batches():
            scatter.take(batch, replies)
        return self._complete(scatter, trip)

    def close(self, last: Sequence[Op[Any]] = ()) -> None:
        try:
            super().close(last)
        finally:
            self._background.end()
            self._disconnect([link.connections for link in self.links()])

    def _leave(self, last: Sequence[Op[Any]], clearing: Sequence[tuple[str, ...]]) -> None:
        with suppress(Exception):  # all of it expires
            if last:
                self._attempt(Scattered(last, ASK_WITHIN_S), [Lane() for _ in last], None)
        for command in clearing:
            with suppress(Exception):
                link = self._home(slot_of(command[1]))
                link.connections.send([pack(command)], within=ASK_WITHIN_S)
