"""The same as `_net/sync/cluster`, under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from copy import copy
from types import SimpleNamespace
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis import exceptions as errors

from headrace._core.effects import BlockAmong, BlockThen
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.base.cluster.address import Seeds, names_cluster, seeds
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
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.op import Arg, Op, Prepared, pack
from headrace._protocol.queue_ops import woken_keys
from headrace._telemetry.client import Outage

R = TypeVar("R")


def executor_of(
    url: str | None = None, client: Any = None, budget: float = RETRY_BUDGET_S, outage: Outage | None = None,
    attend: Attend | None = None, *, shares: bool = False,
) -> AsyncExecutor:  # fmt: skip
    """Like `_net/sync/cluster.executor_of`."""
    if names_cluster(url, client):
        return AsyncClusterExecutor(seeds(url, client, redis.asyncio.ConnectionPool), budget, outage)
    return AsyncExecutor(url, client, budget, outage, attend, shares=shares)


class _Looking(Look):
    """A search for the map by a task of its own."""

    def __init__(self, slots: Slots, search: Callable[[_Looking], Coroutine[Any, Any, None]]) -> None:
        super().__init__(slots)
        self.task = asyncio.ensure_future(search(self))


class AsyncClusterExecutor(BaseClusterExecutor, AsyncExecutor):
    """Like `ClusterExecutor`, for asyncio. Calls wait for their turn node by node."""

    _links: dict[Node, AsyncExecutor]

    def __init__(self, seeds: Seeds, budget: float = RETRY_BUDGET_S, outage: Outage | None = None) -> None:
        pool = seeds.pool(redis.asyncio.ConnectionPool, seeds.nodes[0])
        super().__init__(None, SimpleNamespace(connection_pool=pool), budget, outage)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        self._scattered(seeds)
        self._look: _Looking | None = None
        self._probes: set[asyncio.Task[None]] = set()

    def _link(self, node: Node) -> AsyncExecutor:
        """Like `ClusterExecutor._link`."""
        link = self._links.get(node)
        if link is None:
            pool: Any = SimpleNamespace(connection_pool=self._seeds.pool(redis.asyncio.ConnectionPool, node))
            link = self._linked(node, AsyncExecutor(None, pool, self.budget, self.outage))
        return link

    async def _refresh(self, within: float | None) -> None:
        """Like `ClusterExecutor._refresh`."""
        look, within = self._looking(), LEARN_WITHIN_S if within is None else within
        await asyncio.wait([look.task], timeout=min(within, LEARN_WITHIN_S))
        if not look.task.done():
            raise errors.TimeoutError(f"no node has told the map of the cluster within {within:.3g} s")
        if look.error is not None:
            raise copy(look.error) from look.error

    def _refresh_soon(self) -> None:
        """Like `ClusterExecutor._refresh_soon`."""
        if self.slots.due():
            self._looking()

    def _looking(self) -> _Looking:
        """Like `ClusterExecutor._looking`."""
        look = self._look
        if look is None or look.task.done() or look.task.get_loop() is not asyncio.get_running_loop():
            self._look = look = _Looking(self.slots, self._search)
        return look

    async def _search(self, look: _Looking) -> None:
        """Like `ClusterExecutor._search`."""
        asked: dict[asyncio.Task[list[Any]], Node] = {}
        try:
            while look.places or asked:
                if look.places:
                    node = look.places.pop(0)
                    asked[asyncio.ensure_future(self._link(node).send(ASK_MAP, within=ASK_WITHIN_S))] = node
                within = ASK_NEXT_S if look.places else SILENT_AFTER_S
                told, _ = await asyncio.wait(asked, timeout=within, return_when=asyncio.FIRST_COMPLETED)
                if not told and look.places:
                    continue
                one = next(iter(told), next(iter(asked)))
                try:
                    answers: Sequence[Any] | Exception = one.result()
                except asyncio.InvalidStateError:
                    answers = errors.TimeoutError("no answer")
                    one.cancel()
                except Exception as error:
                    answers = error
                if look.take(asked.pop(one), answers):
                    break
            else:
                look.end()
            for link in self._left():
                await link.connections.disconnect(inuse_connections=False)
        except Exception as error:  # waiting calls receive the error
            look.error = error
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def _probe_soon(self, node: Node) -> None:
        """Like `BaseClusterExecutor._probe_soon`."""
        probe = asyncio.get_running_loop().create_task(self._probe(node), name="headrace-map")
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _probe(self, node: Node) -> None:
        try:
            await self._link(node).send(PROBE, within=PROBE_EVERY_S)
        except Exception as error:
            self.slots.missed(node, error)
            self._refresh_soon()
        else:
            self.slots.heard(node)

    async def _turn(self, trip: Trip) -> asyncio.Semaphore:
        """Like `AsyncExecutor._turn`, among the trips to the node of the first operation: one that is out of reach
        takes no turn from the others.
        """
        node = self.slots.owner(slot_of(trip.ops[0].keys[0])) if trip.ops else None
        return await (super()._turn(trip) if node is None else self._link(node)._turn(trip))  # noqa: SLF001

    async def _attempt(self, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        assert isinstance(trip, Scattered)  # noqa: S101
        trip.attempted = since_boot()
        if trip.durability is not None:
            trip.durability.begin()
        return await self._complete(Scatter(self.slots, trip, lanes), trip, meanwhile)

    async def _complete(self, scatter: Scatter, trip: Scattered, meanwhile: Meanwhile = None) -> list[Any]:
        """Like `ClusterExecutor._complete`."""
        if scatter.unknown:
            await self._refresh(trip.rest)
        while batches := scatter.batches():
            for batch, answers in await self._talk(batches, trip, meanwhile):
                scatter.take(batch, answers)
            meanwhile = None
        if scatter.stale:
            self._refresh_soon()
        return scatter.answered()

    async def _talk(
        self, batches: Sequence[Batch], trip: Scattered, meanwhile: Meanwhile
    ) -> list[tuple[Batch, Sequence[Any] | Exception]]:
        """Like `ClusterExecutor._talk`."""
        first, *others = batches
        if not others:
            return [(first, await self._exchanged(first, trip, meanwhile))]
        talks = [self._exchanged(first, trip, meanwhile), *(self._exchanged(batch, trip, None) for batch in others)]
        tasks = [asyncio.ensure_future(talk) for talk in talks]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
        return [(batch, task.result()) for batch, task in zip(batches, tasks, strict=True)]

    async def _exchanged(self, batch: Batch, trip: Scattered, meanwhile: Meanwhile) -> Sequence[Any] | Exception:
        link = self._link(batch.node)
        try:
            await link._try_waiting(trip)  # noqa: SLF001
            answers = await link.send(batch.commands, meanwhile, trip.leaves, trip.rest)
        except (errors.RedisError, OSError) as cut:
            refusal = await link._refusal(batch.ops) if isinstance(cut, errors.ConnectionError) else None  # noqa: SLF001
            if refusal is not None:
                raise refusal from cut
            return cut
        trip.answered()
        if any(isinstance(reply, Exception) and unwelcome(reply) for reply in answers):
            await link.connections.disconnect(inuse_connections=False)
        if refused(answers) and (refusal := await link._refusal(batch.ops)) is not None:  # noqa: SLF001
            raise refusal
        return answers

    async def _run_prepared(self, prepared: Prepared[R], item: bytes) -> R:
        result: R = (await self.run_all([prepared.of(item)]))[0]
        return result

    async def send(
        self, commands: Sequence[bytes], meanwhile: Meanwhile = None, leaves: Meanwhile = None,
        within: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Like `ClusterExecutor.send`."""
        return await self._link(self.slots.places()[0]).send(commands, meanwhile, leaves, within)

    async def scan(self, cursor: int, command: Callable[[int], bytes], within: float | None = None) -> Any:
        """Like `ClusterExecutor.scan`."""
        if not self.slots.complete:
            await self._refresh(within)
        node, at = self._scanned(cursor)
        reply = (await self._link(node).send([command(at)], within=within))[0]
        return self._scanned_on(cursor, reply)

    async def source(self, channels: Sequence[str]) -> Any:
        """Like `Executor.source`."""
        slot = slot_of(channels[0])
        if self.slots.silent(slot) is not None and self.slots.due():
            with suppress(errors.RedisError, OSError):
                await self._refresh(ASK_WITHIN_S)
        return (await self._home(slot)).pool

    async def _home(self, slot: int) -> AsyncExecutor:
        """Like `ClusterExecutor._home`."""
        if self.slots.owner(slot) is None:
            await self._refresh(None)
        return self._link(self._owner(slot))

    async def wait(self, command: tuple[Arg, ...]) -> bool:
        """Like `Executor.wait`."""
        slot = self._waited(command)
        try:
            link = await self._home(slot)
            return self._woke(slot, (await link._block([pack(command)], None))[0])  # noqa: SLF001
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            self._refresh_soon()
            await asyncio.sleep(0.01)
            return True

    async def wait_among(self, effect: BlockAmong) -> list[str]:
        """Like `Executor.wait_among`; all keys are of one group."""
        slot = slot_of(next(iter(effect.keys)))
        try:
            link = await self._home(slot)
            reply = (await link._block([pack(effect.command)], None))[0]  # noqa: SLF001
            self._woke(slot, reply)
            return woken_keys(reply, effect.keys)
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            self._refresh_soon()
            await asyncio.sleep(0.01)
            return list(effect.keys)

    async def wait_then(self, effect: BlockThen) -> tuple[bool, Any]:
        """Like `Executor.wait_then`."""
        lane, trip, found = self._lane(effect.op), Scattered([effect.op]), True
        slot = slot_of(effect.op.keys[0])
        try:
            link = await self._home(slot)
            scatter = Scatter(self.slots, trip, [lane])
            (batch,) = scatter.batches()
            commands = [pack(effect.command), *batch.commands]
            reply, *answers = await link._block(commands, trip.leaves)  # noqa: SLF001
            trip.answered()
            found = self._woke(slot, reply)
            scatter.take(batch, answers)
            replies = await self._complete(scatter, trip)
        except Exception as error:
            if self._waits_no_more:
                await self._undo_riding(effect, lane)
                return False, None
            self._refresh_soon()
            await asyncio.sleep(0.01)
            replies = await self._again(error, trip, [lane], None)
        else:
            self._lanes.give(trip.ops, [lane])
        return bool(found), self._answered(trip, replies)[0]

    def stop_waiting(self) -> None:
        """Like `Executor.stop_waiting`; once is enough."""
        self._waits_no_more = True
        for link in list(self._links.values()):
            link.stop_waiting()

    async def close(self, last: Sequence[Op[Any]] = ()) -> None:
        """Like `Executor.close`."""
        try:
            await super().close(last)
        finally:
            for task in (*self._probes, *([] if self._look is None else [self._look.task])):
                task.cancel()
            closing = [link.connections.disconnect() for link in list(self._links.values())]
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asyncio.gather(*closing)

    async def _leave(self, last: Sequence[Op[Any]], clearing: Sequence[tuple[str, ...]]) -> None:
        with suppress(Exception):  # all of it expires
            if last:
                async with asyncio.timeout(ASK_WITHIN_S):
                    await self._attempt(Scattered(last), [Lane() for _ in last], None)
        for command in clearing:
            with suppress(Exception):
                link = await self._home(slot_of(command[1]))
                await link.send([pack(command)], within=ASK_WITHIN_S)
