"""An executor for clusters: each operation goes to the node that serves its slot.

- The connections of a node are an `Executor`'s, used only to send. Lanes, retries and their budget are the cluster's:
  a call keeps its number wherever it goes, and its record moves with the slot, so that it never acts twice.
- Operations of one round trip that concern several nodes are sent to all at once, by threads. While one node is out of
  reach, answered operations of other nodes are not sent again.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from types import SimpleNamespace
from typing import Any, TypeVar

import redis
from redis import exceptions as errors
from redis.cluster import ClusterNode

from headrace import _forks
from headrace._core.effects import BlockAmong, BlockThen
from headrace._net.base.cluster.address import Seeds, names_cluster, seeds, seeds_of
from headrace._net.base.cluster.base import BaseClusterExecutor
from headrace._net.base.cluster.scatter import Batch, Scatter, Scattered, refused
from headrace._net.base.cluster.slots import (
    ASK_MAP,
    ASK_NEXT_S,
    ASK_WITHIN_S,
    LEARN_WITHIN_S,
    PROBE,
    PROBE_EVERY_S,
    SILENT_AFTER_S,
    Look,
    Node,
    Slots,
    slot_of,
)
from headrace._net.base.connections import Attend
from headrace._net.base.lanes import Lane, Meanwhile
from headrace._net.base.retries import Trip, since_boot, unwelcome
from headrace._net.sync.executor import Executor
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.op import Arg, Op, Prepared, pack
from headrace._protocol.queue_ops import woken_keys
from headrace._telemetry.client import Outage

R = TypeVar("R")


def executor_of(
    url: str | None = None, client: Any = None, budget: float = RETRY_BUDGET_S, outage: Outage | None = None,
    attend: Attend | None = None, *, shares: bool = False,
) -> Executor:  # fmt: skip
    """Make the executor for a server, or for the cluster that *url* or *client* names."""
    if names_cluster(url, client):
        return ClusterExecutor(seeds(url, client, redis.ConnectionPool), budget, outage)
    return Executor(url, client, budget, outage, attend, shares=shares)


@contextmanager
def client_of(url: str, **options: Any) -> Generator[Any, None, None]:
    """Yield a redis-py client, for calls that are no operations: of a server, or of the cluster that *url* names."""
    make: Any = redis.Redis  # from_url is half annotated
    if names_cluster(url, None):
        url, nodes = seeds_of(url)
        node: Any = ClusterNode  # not annotated
        make, options = redis.RedisCluster, options | {"startup_nodes": [node(*place) for place in nodes]}
    try:
        client = make.from_url(url, **options)
    except errors.RedisClusterException as error:  # which is no RedisError: none of the nodes has answered
        raise errors.ConnectionError(str(error)) from error
    with client:
        try:
            yield client
        finally:
            if make is redis.RedisCluster:
                client.disconnect_connection_pools()  # which `close` leaves to the collector


class _Looking(Look):
    """A search for the map by a thread of its own."""

    def __init__(self, slots: Slots) -> None:
        super().__init__(slots)
        self.over = _forks.event()
        self.pid = os.getpid()


def _beside(call: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=call, args=args, name="headrace-map", daemon=True).start()


class ClusterExecutor(BaseClusterExecutor, Executor):
    """Runs operations on the nodes of a cluster."""

    _links: dict[Node, Executor]

    def __init__(self, seeds: Seeds, budget: float = RETRY_BUDGET_S, outage: Outage | None = None) -> None:
        pool = seeds.pool(redis.ConnectionPool, seeds.nodes[0])
        super().__init__(None, SimpleNamespace(connection_pool=pool), budget, outage)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        self._scattered(seeds)
        self._learning = _forks.lock()  # for the next
        self._look: _Looking | None = None

    def _link(self, node: Node) -> Executor:
        """Return the connections of one node."""
        link = self._links.get(node)
        if link is None:
            pool: Any = SimpleNamespace(connection_pool=self._seeds.pool(redis.ConnectionPool, node))
            link = self._linked(node, Executor(None, pool, self.budget, self.outage))
        return link

    def _refresh(self, within: float | None) -> None:
        """Wait until the map of the cluster is learnt, *within* seconds at most. Raises why it is not."""
        look, within = self._looking(), LEARN_WITHIN_S if within is None else within
        if not look.over.wait(min(within, LEARN_WITHIN_S)):
            raise errors.TimeoutError(f"no node has told the map of the cluster within {within:.3g} s")
        if look.error is not None:
            raise copy(look.error) from look.error

    def _refresh_soon(self) -> None:
        """Have the map read again, while the known map serves."""
        if self.slots.due():
            self._looking()

    def _looking(self) -> _Looking:
        """Return the search for the map that is under way; begin one if there is none."""
        with self._learning:
            if self._look is None or self._look.over.is_set() or self._look.pid != os.getpid():  # a fork has no thread
                self._look = look = _Looking(self.slots)
                try:
                    _beside(self._search, look)
                except RuntimeError as error:  # the interpreter ends, or there are no more threads
                    look.error = error
                    look.over.set()
            return self._look

    def _search(self, look: _Looking) -> None:
        """Ask one node after the other for the map; the next one soon, whether or not earlier nodes have answered."""
        told: queue.SimpleQueue[tuple[Node, Sequence[Any] | Exception]] = queue.SimpleQueue()
        asked: list[Node] = []
        try:
            while look.places or asked:
                if look.places:
                    asked.append(look.places.pop(0))
                    _beside(self._ask, asked[-1], told)
                try:
                    node, answers = told.get(timeout=ASK_NEXT_S if look.places else SILENT_AFTER_S)
                except queue.Empty:
                    if look.places:
                        continue
                    node, answers = asked[0], errors.TimeoutError("no answer")
                asked.remove(node)
                if look.take(node, answers):
                    break
            else:
                look.end()
            for link in self._left():
                link.connections.disconnect(inuse_connections=False)
        except Exception as error:  # waiting calls receive the error
            look.error = error
        finally:
            look.over.set()

    def _ask(self, node: Node, told: queue.SimpleQueue[tuple[Node, Sequence[Any] | Exception]]) -> None:
        try:
            told.put((node, self._link(node).send(ASK_MAP, within=ASK_WITHIN_S)))
        except Exception as error:
            told.put((node, error))

    def _probe_soon(self, node: Node) -> None:
        """Like `BaseClusterExecutor._probe_soon`."""
        with suppress(RuntimeError):  # the interpreter ends, or there are no more threads
            _beside(self._probe, node)

    def _probe(self, node: Node) -> None:
        try:
            self._link(node).send(PROBE, within=PROBE_EVERY_S)
        except Exception as error:  # calls will meet the same error
            self.slots.missed(node, error)
            self._refresh_soon()
        else:
            self.slots.heard(node)

    def _attempt(self, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        assert isinstance(trip, Scattered)  # noqa: S101
        trip.attempted = since_boot()
        if trip.durability is not None:
            trip.durability.begin()
        return self._complete(Scatter(self.slots, trip, lanes), trip, meanwhile)

    def _complete(self, scatter: Scatter, trip: Scattered, meanwhile: Meanwhile = None) -> list[Any]:
        """Send the rest of an attempt, until nothing is left. Raises the error of an operation."""
        if scatter.unknown:
            self._refresh(trip.rest)
        while batches := scatter.batches():
            for batch, answers in self._talk(batches, trip, meanwhile):
                scatter.take(batch, answers)
            meanwhile = None
        if scatter.stale:
            self._refresh_soon()
        return scatter.answered()

    def _talk(
        self, batches: Sequence[Batch], trip: Scattered, meanwhile: Meanwhile
    ) -> list[tuple[Batch, Sequence[Any] | Exception]]:
        """Send all batches at once; return their answers, or why there are none."""
        first, *others = batches
        found: list[tuple[Batch, Sequence[Any] | Exception]] = []
        raised: list[BaseException] = []

        def talk(batch: Batch) -> None:
            try:
                found.append((batch, self._exchanged(batch, trip, None)))
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=talk, args=(batch,), name="headrace-node", daemon=True) for batch in others]
        for thread in threads:
            thread.start()
        found.append((first, self._exchanged(first, trip, meanwhile)))
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        return found

    def _exchanged(self, batch: Batch, trip: Scattered, meanwhile: Meanwhile) -> Sequence[Any] | Exception:
        link = self._link(batch.node)
        try:
            link._try_waiting(trip)  # noqa: SLF001
            answers = link.send(batch.commands, meanwhile, trip.leaves, trip.rest)
        except (errors.RedisError, OSError) as cut:
            refusal = link._refusal(batch.ops) if isinstance(cut, errors.ConnectionError) else None  # noqa: SLF001
            if refusal is not None:
                raise refusal from cut
            return cut
        trip.answered()
        if any(isinstance(reply, Exception) and unwelcome(reply) for reply in answers):
            link.connections.disconnect(inuse_connections=False)
        if refused(answers) and (refusal := link._refusal(batch.ops)) is not None:  # noqa: SLF001
            raise refusal
        return answers

    def run_prepared(self, prepared: Prepared[R], item: bytes) -> R:
        """Like `Executor.run_prepared`."""
        result: R = self.run_all([prepared.of(item)])[0]
        return result

    def send(
        self, commands: Sequence[bytes], meanwhile: Meanwhile = None, leaves: Meanwhile = None,
        within: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Send packed commands that concern no slot to any node."""
        return self._link(self.slots.places()[0]).send(commands, meanwhile, leaves, within)

    def scan(self, cursor: int, command: Callable[[int], bytes], within: float | None = None) -> Any:
        """Scan a node after the other, in steps."""
        if not self.slots.complete:
            self._refresh(within)
        node, at = self._scanned(cursor)
        reply = self._link(node).send([command(at)], within=within)[0]
        return self._scanned_on(cursor, reply)

    def source(self, channels: Sequence[str]) -> Any:
        """Like `Executor.source`."""
        slot = slot_of(channels[0])
        if self.slots.silent(slot) is not None and self.slots.due():
            with suppress(errors.RedisError, OSError):
                self._refresh(ASK_WITHIN_S)
        return self._home(slot).pool

    def _home(self, slot: int) -> Executor:
        """Return the connections of the node that serves *slot*."""
        if self.slots.owner(slot) is None:
            self._refresh(None)
        return self._link(self._owner(slot))

    def wait(self, command: tuple[Arg, ...]) -> bool:
        """Like `Executor.wait`."""
        slot = self._waited(command)
        try:
            link = self._home(slot)
            return self._woke(slot, link._block([pack(command)], None)[0])  # noqa: SLF001
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            self._refresh_soon()
            time.sleep(0.01)
            return True

    def wait_among(self, effect: BlockAmong) -> list[str]:
        """Like `Executor.wait_among`; all keys are of one group."""
        slot = slot_of(next(iter(effect.keys)))
        try:
            link = self._home(slot)
            reply = link._block([pack(effect.command)], None)[0]  # noqa: SLF001
            self._woke(slot, reply)
            return woken_keys(reply, effect.keys)
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            self._refresh_soon()
            time.sleep(0.01)
            return list(effect.keys)

    def wait_then(self, effect: BlockThen) -> tuple[bool, Any]:
        """Like `Executor.wait_then`."""
        lane, trip, found = self._lane(effect.op), Scattered([effect.op]), True
        slot = slot_of(effect.op.keys[0])
        try:
            link = self._home(slot)
            scatter = Scatter(self.slots, trip, [lane])
            (batch,) = scatter.batches()
            reply, *answers = link._block([pack(effect.command), *batch.commands], trip.leaves)  # noqa: SLF001
            trip.answered()
            found = self._woke(slot, reply)
            scatter.take(batch, answers)
            replies = self._complete(scatter, trip)
        except Exception as error:
            if self._waits_no_more:
                self._undo_riding(effect, lane)
                return False, None
            self._refresh_soon()
            time.sleep(0.01)
            replies = self._again(error, trip, [lane], None)
        else:
            self._lanes.give(trip.ops, [lane])
        return bool(found), self._answered(trip, replies)[0]

    def stop_waiting(self) -> None:
        """Like `Executor.stop_waiting`."""
        self._waits_no_more = True
        for link in list(self._links.values()):
            link.stop_waiting()

    def close(self, last: Sequence[Op[Any]] = ()) -> None:
        """Like `Executor.close`."""
        try:
            super().close(last)
        finally:
            for link in list(self._links.values()):
                link.connections.disconnect()

    def _leave(self, last: Sequence[Op[Any]], clearing: Sequence[tuple[str, ...]]) -> None:
        with suppress(Exception):  # all of it expires
            if last:
                self._attempt(Scattered(last), [Lane() for _ in last], None)
        for command in clearing:
            with suppress(Exception):
                self._home(slot_of(command[1])).send([pack(command)], within=ASK_WITHIN_S)

    def give_up(self) -> None:
        """Like `Executor.give_up`."""
        super().give_up()
        for link in list(self._links.values()):
            link.give_up()
