"""Round trips: operations are sent, retried under their call number where that can help, and their replies are read.

- The connections are our own. They are made from a URL, or from the settings of a client, which itself is never used,
  closed or changed. Retries of redis-py are off: redis-py would repeat a command that the server has already carried
  out. We retry under the same call number, and the script answers from its record of the first call.
- A lane has one call in flight. Lanes are named at random, and new ones are made after a fork. A lane is not used again
  after an interrupted call: that call may still arrive after the record of the next call has replaced its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis import exceptions as errors
from tenacity import AsyncRetrying

from headrace._core.effects import BlockAmong, BlockThen
from headrace._net.aio.colour import Driven, bounded, sleep
from headrace._net.aio.pool import AsyncPool, reply_within
from headrace._net.base.cluster import misled
from headrace._net.base.executor import BaseExecutor
from headrace._net.base.retries import (
    REFUSED_WITHIN_S,
    SIZE_LIMIT_AT_LEAST,
    Lane,
    Meanwhile,
    Trip,
    announced,
    faultless,
    first_error,
    known,
    largest,
    missing,
    pack_all,
    policy,
    refuses,
    remaining,
    since_boot,
    stale,
    told_limit,
    too_large,
    unwelcome,
)
from headrace._protocol.durability import trials, tried
from headrace._protocol.limits import COURTESY_S
from headrace._protocol.op import Arg, Op, TooLarge, pack
from headrace._protocol.queue_ops import woken_keys
from headrace._protocol.replies import text

R = TypeVar("R")


class AsyncTrips(BaseExecutor):
    """Runs operations in round trips; the base of `AsyncExecutor`."""

    connections: AsyncPool
    _sleep: Callable[[float], Driven[None]]  # between two attempts

    def _insist(self, op: Op[Any]) -> Driven[None]:
        """Send an operation, without retries."""
        raise NotImplementedError

    async def attempt(self, op: Op[R], within: float | None = None) -> R | None:
        """Run an operation once, in *within* seconds; return `None` if that fails."""
        with suppress(Exception):
            return op.decode((await self._attempt(self._trip([op], within), [self._lane(op)], None))[0])
        return None

    async def run_all(
        self, ops: Sequence[Op[Any]], meanwhile: Meanwhile = None, lanes: Sequence[Lane] | None = None,
        within: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Run operations in one round trip, and return their decoded replies. Each operation is atomic; the round trip
        is not. *meanwhile* is called in each attempt, while the server works. *lanes* are lanes of the caller. *within*
        is a time limit in seconds, in place of the executor's.
        """
        trip = self._trip(ops, self.within if within is None else within)
        trip.durability = self._durability_wait(ops)
        async with self._permit(trip):
            kept, lanes = lanes is not None, [self._lane(op) for op in ops] if lanes is None else lanes
            try:
                replies = await self._attempt(trip, lanes, meanwhile)
            except Exception as error:
                replies = await self._again(error, trip, lanes, meanwhile)
            else:
                if not kept:
                    self._lanes.give(ops, lanes)
        return self._answered(trip, replies)

    async def _again(self, error: Exception, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        """Retry a round trip after its first attempt failed with *error*. Raise the error if a retry can't help."""
        if not self._heals(error, trip):
            raise error
        budget = self._failed(error, trip, lanes)
        try:
            if trip.left != 0:
                again = AsyncRetrying(**policy(budget, self.pause), sleep=self._sleep)
                replies: list[Any] = await again(self._attempt, trip, lanes, meanwhile)
                return replies
        except Exception as last:
            known(last, trip)
            raise
        finally:
            self.outage.ends()
        known(error, trip)
        raise error

    async def _attempt(self, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        ops = trip.ops
        if trip.durability is not None:
            trip.durability.begin()
        try:
            replies = await self._sent(trip, pack_all(ops, lanes, "EVALSHA"), meanwhile)
            trip.answered()
        except errors.ConnectionError as cut:  # so says a server that takes no value as large, too
            if (refusal := await self._refusal(ops)) is not None:
                raise refusal from cut
            raise
        return await self._checked(replies, trip, lanes)

    async def _sent(self, trip: Trip, commands: Sequence[bytes], meanwhile: Meanwhile) -> list[Any]:
        """Send the operations of a trip, with its wait for replicas."""
        if trip.durability is None:
            return await self.send(commands, meanwhile, trip.leaves, trip.left)
        left = await self._try_waiting(trip)
        wrapped = trip.durability.wrapped(commands, left)
        return trip.durability.unwrapped(await self.send(wrapped, meanwhile, trip.leaves, left))

    async def _try_waiting(self, trip: Trip) -> float | None:
        """Find out whether the server can wait for the durability of *trip*; return the remaining seconds. If it can't,
        raise `ConfigurationError`, before anything is sent.
        """
        if trip.durability is None or trip.durability.wanted in self._can_wait:
            return trip.left
        began, wanted = since_boot(), trip.durability.wanted
        if tried(wanted, await self.send(trials(wanted), within=trip.left)):
            self._can_wait.add(wanted)
        return remaining(trip, since_boot() - began)

    def send(
        self, commands: Sequence[bytes], meanwhile: Meanwhile = None, leaves: Meanwhile = None,
        within: float | None = None,
    ) -> Driven[list[Any]]:  # fmt: skip
        """Send packed commands once, and return the replies, as a pool does. On a cluster: to any node."""
        return self.connections.send(commands, meanwhile, leaves, within)

    async def _checked(self, replies: list[Any], trip: Trip, lanes: Sequence[Lane]) -> list[Any]:
        """Send the source of scripts that the server does not know; raise its other errors."""
        if faultless(replies):
            return replies
        ops = trip.ops
        absent = missing(replies)
        if absent:
            packed = pack_all([ops[i] for i in absent], [lanes[i] for i in absent], "EVAL")
            for i, reply in zip(absent, await self._sent(trip, packed, None), strict=True):
                replies[i] = reply
            trip.answered()
        error = first_error(replies)
        if error is not None:
            if refuses(error) and (refusal := await self._refusal(ops)) is not None:
                raise refusal from error
            if isinstance(error, errors.MovedError):
                raise misled(error, self.pool.connection_kwargs) from error
            if stale(error) or unwelcome(error):
                await self.connections.disconnect(inuse_connections=False)
            raise error
        return replies

    async def _refusal(self, ops: Sequence[Op[Any]]) -> TooLarge | None:
        """Ask the server whether a value in *ops* is too large for it. Return the error to raise if so."""
        size = largest(ops)[0]
        for _ in range(2 if size > SIZE_LIMIT_AT_LEAST else 0):  # what refused a value may have closed a connection
            with suppress(errors.RedisError, OSError):
                return too_large(ops, *await self._announce(size))
        return None

    async def _announce(self, size: int) -> tuple[int | None, bool]:
        """Ask the server for the largest value that it accepts, and whether it refuses a value of *size* bytes."""
        connection = await self.connections.take()
        try:
            await connection.send_packed_command([announced(size)])
            limit = told_limit(await reply_within(connection, self.timeout))
            return limit, limit is None and refuses(await reply_within(connection, REFUSED_WITHIN_S))
        finally:
            await self.connections.drop(connection)  # it waits for a value that does not come

    async def scan(self, cursor: int, pattern: str, within: float | None = None) -> tuple[int, list[str]]:
        """Return the keys that a step of a scan finds, and the cursor of the next step."""
        command = pack(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
        reply = (await self.send([command], within=within))[0]
        if isinstance(reply, Exception):
            raise reply
        return int(reply[0]), [text(key) for key in reply[1]]

    async def source(self, _channels: Sequence[str]) -> Any:
        """Return the pool of connections to the server of these channels, which belong to one group of queues."""
        return self.pool

    async def wait(self, command: tuple[Arg, ...]) -> bool:
        """Block until the server has an entry; `False` if the time ran out.

        An error (NOGROUP, UNBLOCKED, a lost connection) counts as an entry: the next call repairs it.
        """
        try:
            return bool((await self._block([pack(command)], None))[0])
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            await sleep(0.01)
            return True

    async def wait_among(self, effect: BlockAmong) -> list[str]:
        """Block like `wait`, on several keys. Return the keys that had entries, or all keys after an error."""
        try:
            return woken_keys((await self._block([pack(effect.command)], None))[0], effect.keys)
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            await sleep(0.01)
            return list(effect.keys)

    async def wait_then(self, effect: BlockThen) -> tuple[bool, Any]:
        """Block like `wait`, and run the operation of *effect* in the same round trip after the read. Also return its
        decoded reply. If `stop_waiting` ended the block, the operation is undone, and the reply is `None`.
        """
        lane, trip, found = self._lane(effect.op), self._trip([effect.op]), True
        try:
            packed = [pack(effect.command), *pack_all(trip.ops, [lane], "EVALSHA")]
            found, *answers = await self._block(packed, trip.leaves)
            trip.answered()
            answers = await self._checked(answers, trip, [lane])
        except Exception as error:
            if self._waits_no_more:
                await self._undo_riding(effect, lane)
                return False, None
            await sleep(0.01)
            answers = await self._again(error, trip, [lane], None)
        else:
            self._lanes.give(trip.ops, [lane])
        return bool(found), self._answered(trip, answers)[0]

    async def _undo_riding(self, effect: BlockThen, lane: Lane) -> None:
        """Fetch the reply of the operation in *effect* again, by the same number, and undo the operation."""
        with suppress(Exception):  # what can't be undone now comes back as the worker leaves
            reply = (await self._attempt(self._trip([effect.again]), [lane], None))[0]
            undoing = effect.undo(effect.again.decode(reply))
            if undoing is not None:
                await self._insist(undoing)

    async def _block(self, commands: Sequence[bytes], leaves: Meanwhile) -> list[Any]:
        """Like `send`, on a connection that `stop_waiting` closes."""
        async with bounded(self.timeout):
            connection = await self.connections.take()
            self._blocked.add(connection)
            try:
                if self._waits_no_more:
                    self.connections.give(connection)
                    raise errors.ConnectionError("the worker stops")
                return await self.connections.exchange(connection, commands, None, leaves)
            finally:
                self._blocked.discard(connection)

    def stop_waiting(self) -> None:
        """End the blocked reads, and let none begin. Call it until they have ended: if redis-py finds a connection
        closed just before its use, it opens it again.
        """
        self._waits_no_more = True
        for connection in list(self._blocked):
            self.connections.abort(connection)

    async def _leave(self, last: Sequence[Op[Any]], clearing: Sequence[tuple[str, ...]]) -> None:
        """Run *last* and delete records, within the time that closing may take."""
        with suppress(Exception):  # all of it expires
            async with bounded(COURTESY_S):
                if last:
                    await self._attempt(self._trip(last), [Lane() for _ in last], None)
                if clearing:
                    await self.send([pack(command) for command in clearing])
