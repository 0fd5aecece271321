# Generated from `headrace/_net/aio/trips.py` by .ci/twins.py: edit that file.
"""Round trips of operations. They are retried under their call number where that can help.

- The connections are our own. They are made from a URL, or from the settings of a client, which
  itself is never used, closed or changed. Retries of redis-py are off, because redis-py would
  repeat a command that the server has already carried out. We retry under the same call number, and
  the script answers from its record of the first call.
- A lane has one call in flight. Lanes are named at random, and new ones are made after a fork. A
  lane is not used again after an interrupted call, because that call may still arrive after the
  record of the next call has replaced its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis import exceptions as errors
from tenacity import Retrying

from headrace._core.effects import BlockAmong, BlockThen
from headrace._model.policy import Durability
from headrace._net.base.cluster import misled
from headrace._net.base.pool import SHARED
from headrace._net.base.retries import (
    FAILOVER_PAUSE_S,
    RETRY_PAUSE_S,
    SETTLING,
    SIZE_LIMIT_AT_LEAST,
    Lane,
    Meanwhile,
    RetryBudget,
    Trip,
    announced,
    bound,
    faultless,
    first_error,
    heals,
    known,
    lanes_of,
    largest,
    missing,
    pack_all,
    policy,
    refuse_signalled,
    refuses,
    remaining,
    since_boot,
    stale,
    too_large,
    unwelcome,
    value_limit,
)
from headrace._net.sync.colour import Driven, bounded, sleep
from headrace._net.sync.pool import Pool, reply_within
from headrace._protocol.durability import DurabilityWait, trials, tried
from headrace._protocol.keys import Keys
from headrace._protocol.limits import COURTESY_S
from headrace._protocol.op import Arg, Op, Prepared, TooLarge, pack
from headrace._protocol.queue_ops import woken_keys
from headrace._protocol.replies import text

R = TypeVar("R")
PING = pack(("PING",))


class Trips:
    """Runs operations in round trips. It is the base of `Executor`."""

    _sleep: Callable[[float], Driven[None]]  # between two attempts
    _permit: Callable[[Trip], Any]  # the context within which a trip may take connections
    _insist: Callable[[Op[Any]], Driven[None]]  # sends an operation, without retries
    sharded = False  # whether the channels of events belong to a slot, as on a cluster
    _trip: type[Trip] = Trip

    def __init__(self, connections: Pool, budget: float) -> None:
        self.connections = connections
        self.pool = pool = connections.maker
        behind_sentinel = hasattr(getattr(pool, "sentinel_manager", None), "watch")
        self.budget = budget
        self.pause = FAILOVER_PAUSE_S if behind_sentinel else RETRY_PAUSE_S
        # the durability that settlements wait for by default
        self.durable: Durability | None = None
        self.rights = False  # for a worker: whether its user is known to have the necessary rights
        self._can_wait: set[Durability] = set()  # durability that the server supports, as it said
        self.within: float | None = None  # seconds that bound each trip, its last attempt included
        self.outage = connections.outage
        self._lanes = lanes_of(pool)
        self._blocked: set[Any] = set()  # connections on which a read blocks
        self._waits_no_more = False
        self._prefixes: set[str] = set()  # prefixes of the records of our calls

    @property
    def timeout(self) -> float:
        """The time limit in seconds of an attempt, for calls without a limit of their own."""
        return self.connections.timeout

    def lower_timeouts(self, seconds: float) -> None:
        self.connections.lower_timeouts(seconds)

    def combine(self) -> None:
        self.connections.combine()

    def links(self) -> Sequence[Any]:
        return ()

    def healthy(self, keys: Keys) -> bool:  # noqa: ARG002 - there is one server
        """Tell whether the node of these keys is believed to be healthy, as it has answered
        lately."""
        return True

    def node(self, keys: Keys) -> str | None:  # noqa: ARG002 - there is one server
        """Return the address of the node of these keys, or `None` if it is not known."""
        settings = self.pool.connection_kwargs
        path: str | None = settings.get("path")
        return path or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"

    def place(self, keys: Keys) -> Hashable:  # noqa: ARG002 - there is one
        """Return the place of a queue's keys, such as a primary. Queues in the same place may share
        a blocked read.
        """
        return None

    def attempt(self, op: Op[R], within: float | None = None) -> R | None:
        """Run an operation once, in *within* seconds. Return `None` if that fails."""
        with suppress(Exception):
            return op.decode((self._attempt(self._trip([op], within), [self._lane(op)], None))[0])
        return None

    def run_all(
        self,
        ops: Sequence[Op[Any]],
        meanwhile: Meanwhile = None,
        lanes: Sequence[Lane] | None = None,
        within: float | None = None,
    ) -> list[Any]:
        """Run operations in one round trip, and return their decoded replies.

        Each operation is atomic, but the round trip is not. *meanwhile* is called in each attempt,
        while the server works. *lanes* are lanes of the caller. *within* is a time limit in
        seconds, in place of the executor's.
        """
        trip = self._trip(ops, self.within if within is None else within)
        trip.durability = self._durability_wait(ops)
        with self._permit(trip):
            kept = lanes is not None
            lanes = [self._lane(op) for op in ops] if lanes is None else lanes
            try:
                replies = self._attempt(trip, lanes, meanwhile)
            except Exception as error:
                replies = self._again(error, trip, lanes, meanwhile)
            else:
                if not kept:
                    self._lanes.give(ops, lanes)
        return self._answered(trip, replies)

    def _again(
        self, error: Exception, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile
    ) -> list[Any]:
        """Retry a round trip after its first attempt failed with *error*. Raise the error if a
        retry can't help.
        """
        if not self._heals(error, trip):
            raise error
        budget = self._failed(error, trip, lanes)
        try:
            if trip.left != 0:
                again = Retrying(**policy(budget, self.pause), sleep=self._sleep)
                replies: list[Any] = again(self._attempt, trip, lanes, meanwhile)
                return replies
        except Exception as last:
            known(last, trip)
            raise
        finally:
            self.outage.ends()
        known(error, trip)
        raise error

    def _attempt(self, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        ops = trip.ops
        if trip.durability is not None:
            trip.durability.begin()
        try:
            replies = self._sent(trip, pack_all(ops, lanes, "EVALSHA"), meanwhile)
            trip.answered()
        except errors.ConnectionError as cut:  # so says a server that takes no value as large, too
            if (refusal := self._refusal(ops)) is not None:
                raise refusal from cut
            raise
        return self._checked(replies, trip, lanes)

    def _sent(self, trip: Trip, commands: Sequence[bytes], meanwhile: Meanwhile) -> list[Any]:
        if trip.durability is None:
            return self.connections.send(commands, meanwhile, trip.leaves, trip.left)
        left = self._try_waiting(trip)
        wrapped = trip.durability.wrapped(commands, left)
        return trip.durability.unwrapped(
            self.connections.send(wrapped, meanwhile, trip.leaves, left)
        )

    def _try_waiting(self, trip: Trip) -> float | None:
        """Find out whether the server can wait for the durability of *trip*. Return the remaining
        seconds.

        If it can't, raise `ConfigurationError`, before anything is sent.
        """
        if trip.durability is None or trip.durability.wanted in self._can_wait:
            return trip.left
        began = since_boot()
        wanted = trip.durability.wanted
        if tried(wanted, self.connections.send(trials(wanted), within=trip.left)):
            self._can_wait.add(wanted)
        return remaining(trip, since_boot() - began)

    def _checked(self, replies: list[Any], trip: Trip, lanes: Sequence[Lane]) -> list[Any]:
        """Send the source of scripts that the server does not know. Raise its other errors."""
        if faultless(replies):
            return replies
        ops = trip.ops
        absent = missing(replies)
        if absent:
            packed = pack_all([ops[i] for i in absent], [lanes[i] for i in absent], "EVAL")
            for i, reply in zip(absent, self._sent(trip, packed, None), strict=True):
                replies[i] = reply
            trip.answered()
        error = first_error(replies)
        if error is not None:
            if refuses(error) and (refusal := self._refusal(ops)) is not None:
                raise refusal from error
            if isinstance(error, errors.MovedError):
                raise misled(error, self.pool.connection_kwargs) from error
            if stale(error) or unwelcome(error):
                self.connections.disconnect(inuse_connections=False)
            raise error
        return replies

    def _refusal(self, ops: Sequence[Op[Any]]) -> TooLarge | None:
        """Ask the server whether a value in *ops* is too large for it. Return the error to raise if
        so.
        """
        size = largest(ops)[0]
        # a refusal may have closed a connection
        for _ in range(2 if size > SIZE_LIMIT_AT_LEAST else 0):
            with suppress(errors.RedisError, OSError):
                return too_large(ops, *self._announce(size))
        return None

    def _announce(self, size: int) -> tuple[int | None, bool]:
        """Ask the server for the largest value that it accepts, and whether it refuses a value of
        *size* bytes.
        """
        connection = self.connections.take()
        try:
            connection.send_packed_command([announced(size)])
            limit = value_limit(reply_within(connection, self.timeout))
            # until it refuses the announcement of a value
            return limit, limit is None and refuses(reply_within(connection, 0.5))
        finally:
            self.connections.drop(connection)  # it waits for a value that is never sent

    def scan(self, cursor: int, pattern: str, within: float | None = None) -> tuple[int, list[str]]:
        command = pack(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
        reply = self.connections.send([command], within=within)[0]
        if isinstance(reply, Exception):
            raise reply
        return int(reply[0]), [text(key) for key in reply[1]]

    def info(self, within: float | None = None) -> list[str]:
        reply = self.connections.send([pack(("INFO",))], within=within)[0]
        if isinstance(reply, Exception):
            raise reply
        return [text(reply)]

    def ping(self) -> None:
        error = first_error(self.connections.send([PING]))
        if error is not None:
            raise error

    def source(self, _channels: Sequence[str]) -> Any:
        """Return the pool of connections to the server of these channels, which belong to one group
        of queues.
        """
        return self.pool

    def wait(self, command: tuple[Arg, ...]) -> bool:
        """Block until the server has an entry. Return `False` if the time ran out.

        An error (NOGROUP, UNBLOCKED, a lost connection) counts as an entry, as the next call
        repairs it.
        """
        try:
            return bool(self._block(command)[0])
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            sleep(0.01)
            return True

    def wait_among(self, effect: BlockAmong) -> list[str]:
        """Block like `wait`, on several keys. Return the keys that had entries, or all keys after
        an error.
        """
        try:
            return woken_keys(self._block(effect.command)[0], effect.keys)
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            sleep(0.01)
            return list(effect.keys)

    def wait_then(self, effect: BlockThen) -> tuple[bool, Any]:
        """Block like `wait`, and run the operation of *effect* in the same round trip after the
        read.

        Its decoded reply is returned, too. If `stop_waiting` ended the block, the operation is
        undone, and the reply is `None`.
        """
        lane = self._lane(effect.op)
        trip = self._trip([effect.op])
        found = True
        try:
            packed = pack_all(trip.ops, [lane], "EVALSHA")
            found, *answers = self._block(effect.command, packed, trip.leaves)
            trip.answered()
            answers = self._checked(answers, trip, [lane])
        except Exception as error:
            if self._waits_no_more:
                self._undo_riding(effect, lane)
                return False, None
            sleep(0.01)
            answers = self._again(error, trip, [lane], None)
        else:
            self._lanes.give(trip.ops, [lane])
        return bool(found), self._answered(trip, answers)[0]

    def _undo_riding(self, effect: BlockThen, lane: Lane) -> None:
        with suppress(Exception):  # a job that stays leased is back once the worker leaves
            reply = self._attempt(self._trip([effect.again]), [lane], None)[0]
            undoing = effect.undo(effect.again.decode(reply))
            if undoing is not None:
                self._insist(undoing)

    def _block(
        self, command: tuple[Arg, ...], behind: Sequence[bytes] = (), leaves: Meanwhile = None
    ) -> list[Any]:
        with bounded(self.timeout):
            connection = self.connections.take()
            self._blocked.add(connection)
            try:
                if self._waits_no_more:
                    self.connections.give(connection)
                    raise errors.ConnectionError("the worker stops")
                return self.connections.exchange(connection, [pack(command), *behind], None, leaves)
            finally:
                self._blocked.discard(connection)

    def stop_waiting(self) -> None:
        """End the blocked reads, and let none begin.

        Call it until they have ended. If redis-py finds a connection closed just before its use, it
        opens it again.
        """
        self._waits_no_more = True
        for connection in list(self._blocked):
            self.connections.abort(connection)
        for link in self.links():
            link.stop_waiting()

    def _leave(self, last: Sequence[Op[Any]], clearing: Sequence[tuple[str, ...]]) -> None:
        """Run *last* and delete records, within the time that closing may take."""
        with suppress(Exception):  # all of it expires
            with bounded(COURTESY_S):
                if last:
                    self._attempt(self._trip(last), [Lane() for _ in last], None)
                if clearing:
                    self.connections.send([pack(command) for command in clearing])

    def _durability_wait(self, ops: Sequence[Op[Any]]) -> DurabilityWait | None:
        for op in ops:
            if op.durability is not None:
                return op.durability
            if self.durable is not None and op.name in SETTLING:
                return DurabilityWait(self.durable)
        return None

    def _lane(self, op: Op[Any] | Prepared[Any, Any]) -> Lane:
        self._prefixes.add(op.lane_prefix)
        return self._lanes.take(op.lane_prefix)

    def _clearing(self) -> list[tuple[str, ...]]:
        prefixes = self._prefixes - {""}
        self._prefixes = set()
        keys = (
            [] if self.outage.since else [self._lanes.drop(prefix) for prefix in sorted(prefixes)]
        )
        return [("DEL", *some) for some in keys if some]

    def _last(self) -> bool:
        """Release our share of the connections. Tell whether they have no other users."""
        return SHARED.leave(self.connections, self)

    def connects_to(self, source: Any, _channels: Sequence[str]) -> bool:
        """Tell whether the pool *source*, which `source` returned, leads to the server of these
        channels.
        """
        return source is self.pool

    def redirected(self, error: errors.MovedError) -> None:
        raise error

    def unreachable(self, channels: Sequence[str]) -> None:
        """Record that the server of these channels was unreachable."""

    def _heals(self, error: Exception, trip: Trip) -> bool:
        """Tell whether trying again can help. Raises the program's own errors."""
        refuse_signalled(error)
        return heals(error, trip.ops, good=self.outage.answers > 0, rights=self.rights)

    def _failed(self, error: Exception, trip: Trip, lanes: Sequence[Lane]) -> RetryBudget:
        def limit() -> float:
            return bound(self.outage, self.budget if trip.within is None else trip.within)

        budget = RetryBudget(self.outage, limit, self.timeout, trip, self.rights)
        budget.failed(error)
        for lane in lanes:
            lane.repeated = True
        self.outage.begins()
        return budget

    def _record_answer(self) -> None:
        self.outage.answers += 1
        if self.outage.since:
            self.outage.over()

    def _answered(self, trip: Trip, replies: Sequence[Any]) -> list[Any]:
        self._record_answer()
        for op, reply in zip(trip.ops, replies, strict=True):
            if op.name == "complete" and (number := reply.count(2)):  # without their results
                self.outage.dropped(op.keys[0].split(":")[-2], number)
        answers = [op.decode(reply) for op, reply in zip(trip.ops, replies, strict=True)]
        if trip.durability is not None:
            trip.durability.judge(answers)
        return answers
