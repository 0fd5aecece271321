"""The only module that sends operations to a socket: connections and lanes. Errors are judged in `_net/base/retries`.

- Our connections are our own: made from a URL, or from the settings of a client we were given, which itself is never
  used, closed or changed. redis-py's retries are off on them: it would send a command again that the server has already
  carried out. We retry, under the same call number, and the script answers from its record of the first.
- A lane has one call in flight. Lanes are named at random, and new ones are made after a fork. A lane whose call was
  interrupted is not used again: that call may still arrive, after the next call's record has replaced its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import redis
from attrs import evolve
from redis import exceptions as errors
from tenacity import Retrying, sleep_using_event

from headrace import _forks
from headrace._core.effects import BlockAmong, BlockThen, Undoable
from headrace._net.base.cluster.address import misled
from headrace._net.base.connections import Attend
from headrace._net.base.executor import CLOSE_WITHIN_S, UNDO_WITHIN_S, BaseExecutor, undecoded
from headrace._net.base.lanes import Lane, Meanwhile, pack_all
from headrace._net.base.retries import (
    REFUSED_WITHIN_S,
    SIZE_LIMIT_AT_LEAST,
    RetryBudget,
    Trip,
    announced,
    bound,
    faultless,
    first_error,
    known,
    largest,
    missing,
    policy,
    refuses,
    remaining,
    since_boot,
    stale,
    told_limit,
    too_large,
    unwelcome,
)
from headrace._net.base.sockets import cut, set_timeout
from headrace._net.sync.combining import Combiner
from headrace._net.sync.pool import Pool, exchanged, replies, send
from headrace._protocol.durability import trials, tried
from headrace._protocol.limits import RETRY_BUDGET_S
from headrace._protocol.op import ITEM_BYTES, Arg, Op, Prepared, TooLarge, pack
from headrace._protocol.queue_ops import woken_keys
from headrace._protocol.replies import Grant
from headrace._telemetry.client import Outage

R = TypeVar("R")


class Executor(BaseExecutor):
    """Runs operations on a pool of our own.

    *budget*: seconds for which a round trip is tried again. *outage*: shared with others on the same server. *shares*:
    it shares its connections with other executors for the same server.
    """

    def __init__(
        self, url: str | None = None, client: redis.Redis | None = None, budget: float = RETRY_BUDGET_S,
        outage: Outage | None = None, attend: Attend | None = None, *, shares: bool = False,
    ) -> None:  # fmt: skip
        theirs = None if client is None else client.connection_pool
        self.connections = Pool.shared(url, theirs, self, attend) if shares else Pool(url, theirs, outage, attend)
        super().__init__(self.connections, budget)
        self._combiner: Combiner | None = None
        self._given_up = _forks.event()

    def run(self, op: Op[R], meanwhile: Meanwhile = None, within: float | None = None) -> R:
        """Run one operation and return its decoded reply. *meanwhile* is called while the server works, each try.
        *within*: seconds, in place of the executor's.
        """
        result: R = self.run_all([op], meanwhile, within=within)[0]
        return result

    def run_whole(self, effect: Undoable, within: float | None = None) -> Grant | None:
        """Run an operation. If interrupted, fetch the reply again, and run the operation that undoes it."""
        op, undo = effect.op, effect.undo
        effect.lane = lane = effect.lane or self._lane(op)
        bare: Op[Any] = evolve(op, decode=undecoded)
        reply: Any = None
        try:
            reply = self.run_all([bare], lanes=[lane], within=within)[0]
            result = op.decode(reply)
            self._lanes.give([op], [lane])
            return result  # noqa: TRY300 - an interruption before this line is undone
        except Exception:
            raise
        except BaseException:
            with suppress(Exception):  # what can't be undone now comes back when its lease expires
                if reply is None:  # its lane is kept: the same call is answered from its record, or comes first
                    reply = self._attempt(self._trip([bare]), [lane], None)[0]
                undoing = undo(reply)
                self.undo([] if undoing is None else [undoing])
            raise

    def undo(self, ops: Sequence[Op[Any]]) -> None:
        """Send operations once each, ignoring errors."""
        with suppress(Exception):
            for op in ops:
                self._attempt(self._trip([op], UNDO_WITHIN_S), [self._lane(op)], None)

    def attempt(self, op: Op[R], within: float | None = None) -> R | None:
        """Run an operation once, in *within* seconds; return `None` if that fails."""
        with suppress(Exception):
            return op.decode(self._attempt(self._trip([op], within), [self._lane(op)], None)[0])
        return None

    def run_all(
        self, ops: Sequence[Op[Any]], meanwhile: Meanwhile = None, lanes: Sequence[Lane] | None = None,
        within: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Run operations in one round trip; return their decoded replies. Each is atomic, all are not. *lanes*: the
        caller's.
        """
        kept, lanes = lanes is not None, [self._lane(op) for op in ops] if lanes is None else lanes
        trip = self._trip(ops, self.within if within is None else within)
        trip.durability = self._durability_wait(ops)
        try:
            replies = self._attempt(trip, lanes, meanwhile)
        except Exception as error:
            replies = self._again(error, trip, lanes, meanwhile)
        else:
            if not kept:
                self._lanes.give(ops, lanes)
        return self._answered(trip, replies)

    def run_prepared(self, prepared: Prepared[R], item: bytes) -> R:
        """Run a prepared operation of *item* as `run` would."""
        if len(item) > ITEM_BYTES or self._combiner is not None:
            result: R = self.run_all([prepared.of(item)])[0]
            return result
        lane, began, sent, trip = self._lane(prepared), since_boot(), 0.0, None
        try:
            connection = self.connections.take()
            try:
                packed, sent = prepared.packed(lane.name, lane.calls, item), began
                answer = exchanged(connection, packed)
                self.connections.check(connection)
            except BaseException:
                self.connections.drop(connection)
                raise
            self.connections.give(connection)
            if isinstance(answer, Exception):
                trip = Trip((prepared.of(item),), began=began, sent=sent)
                answer = self._checked([answer], trip, [lane])[0]
        except Exception as error:
            if trip is None:
                trip = Trip((prepared.of(item),), began=began, sent=sent, unanswered=int(sent > 0.0))
            answer = self._again(error, trip, [lane], None)[0]
        else:
            self._lanes.put(prepared.lane_prefix, lane)
        self._heard()
        return prepared.op.decode(answer)

    def _again(self, error: Exception, trip: Trip, lanes: Sequence[Lane], meanwhile: Meanwhile) -> list[Any]:
        """Try a round trip again, whose first attempt failed with *error*; raise that if it does not heal."""
        if not self._heals(error, trip) or self._given_up.is_set():
            raise error
        budget = self._failed(error, trip, lanes)
        try:
            if trip.left != 0:
                again = Retrying(**policy(budget, self.pause), sleep=sleep_using_event(self._given_up))
                return again(self._attempt, trip, lanes, meanwhile)
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
        """Send the operations of a trip, with its wait for replicas."""
        if trip.durability is None:
            return self.send(commands, meanwhile, trip.leaves, trip.left)
        left = self._try_waiting(trip)
        wrapped = trip.durability.wrapped(commands, left)
        return trip.durability.unwrapped(self.send(wrapped, meanwhile, trip.leaves, left))

    def _try_waiting(self, trip: Trip) -> float | None:
        """Find out whether the server can wait for the durability of *trip*; return the seconds that are left. Raises
        `ConfigurationError`; nothing was sent then.
        """
        if trip.durability is None or trip.durability.wanted in self._can_wait:
            return trip.left
        began, wanted = since_boot(), trip.durability.wanted
        if tried(wanted, self.send(trials(wanted), within=trip.left)):
            self._can_wait.add(wanted)
        return remaining(trip, since_boot() - began)

    def _checked(self, replies: list[Any], trip: Trip, lanes: Sequence[Lane]) -> list[Any]:
        """Send the source of scripts that the server does not know; raise its other errors."""
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
        """Ask the server whether it takes no value as large as there is one in *ops*: the error to raise then."""
        size = largest(ops)[0]
        for _ in range(2 if size > SIZE_LIMIT_AT_LEAST else 0):  # what refused a value may have closed a connection
            with suppress(errors.RedisError, OSError):
                return too_large(ops, *self._announce(size))
        return None

    def _announce(self, size: int) -> tuple[int | None, bool]:
        """Ask the server for the largest value that it takes, and whether it refuses one of *size*."""
        connection = self.connections.take()
        try:
            connection.send_packed_command([announced(size)])
            limit = told_limit(*replies(connection, 1))
            refused = limit is None and connection.can_read(REFUSED_WITHIN_S) and refuses(*replies(connection, 1))
            return limit, refused
        finally:
            self.connections.drop(connection)  # it waits for a value that does not come

    def send(
        self, commands: Sequence[bytes], meanwhile: Meanwhile = None, leaves: Meanwhile = None,
        within: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Send packed commands in one round trip; return the replies, errors among them as values. Nothing is repeated.

        *leaves* is called when there is a connection, just before they are sent. *within*: seconds, if that is less
        than the timeouts of connections; looking up the server's name, and starting one of our own, are not bounded.
        """
        if self._combiner is not None and meanwhile is None and within is None:
            return self._combiner.send(commands, leaves)
        if within is not None and within < self.timeout:
            return self._send_within(commands, meanwhile, leaves, within)
        return self._exchange(self.connections.take(), commands, meanwhile, leaves)

    def combine(self) -> None:
        """Let calls share round trips from now on: the calls of some hundred threads take two connections."""
        self._combiner = Combiner(self.connections)

    def _exchange(
        self, connection: Any, commands: Sequence[bytes], meanwhile: Meanwhile, leaves: Meanwhile
    ) -> list[Any]:
        try:
            if leaves is not None:
                leaves()
            send(connection, b"".join(commands))
            if meanwhile is not None:
                meanwhile()
            answers = replies(connection, len(commands))
            self.connections.check(connection)
        except BaseException:
            self.connections.drop(connection)
            raise
        self.connections.give(connection)
        return answers

    def _send_within(
        self, commands: Sequence[bytes], meanwhile: Meanwhile, leaves: Meanwhile, within: float
    ) -> list[Any]:
        """Like `send`, in *within* seconds: the socket's timeout is set again before each step."""
        end = since_boot() + within
        self.connections.bounds.within = within
        try:
            connection = self.connections.take()
        finally:
            self.connections.bounds.within = None
        return self._exchange_within(commands, connection, end - since_boot(), meanwhile, leaves)

    def _exchange_within(
        self, commands: Sequence[bytes], connection: Any, within: float, meanwhile: Meanwhile = None,
        leaves: Meanwhile = None,
    ) -> list[Any]:  # fmt: skip
        end = since_boot() + within
        sock = connection._sock  # noqa: SLF001 - a timeout of its parser would last for a part of a reply
        try:
            sock.settimeout(max(0.001, end - since_boot()))
            if leaves is not None:
                leaves()
            send(connection, b"".join(commands))
            if meanwhile is not None:
                meanwhile()
            answers: list[Any] = []
            for _ in commands:
                sock.settimeout(max(0.001, end - since_boot()))
                answers += replies(connection, 1)
            set_timeout(sock, connection.socket_timeout)
            self.connections.check(connection)
        except BaseException:
            self.connections.drop(connection)
            raise
        self.connections.give(connection)
        return answers

    def scan(self, cursor: int, command: Callable[[int], bytes], within: float | None = None) -> Any:
        """Send a step of a scan over all keys, made by *command* of its cursor; return the reply."""
        return self.send([command(cursor)], within=within)[0]

    def source(self, _channels: Sequence[str]) -> Any:
        """Return the pool whose connections lead to the server of these channels, all of one queue's group."""
        return self.pool

    def wait(self, command: tuple[Arg, ...]) -> bool:
        """Block until the server has something; `False` if the time ran out.

        An error counts as something (NOGROUP, UNBLOCKED, a cut): the call that follows heals it.
        """
        try:
            return bool(self._block([pack(command)], None)[0])
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            time.sleep(0.01)
            return True

    def wait_among(self, effect: BlockAmong) -> list[str]:
        """Block like `wait`, on several keys; return the keys that had entries; all keys after an error."""
        try:
            return woken_keys(self._block([pack(effect.command)], None)[0], effect.keys)
        except (errors.ConnectionError, errors.TimeoutError, OSError):
            time.sleep(0.01)
            return list(effect.keys)

    def wait_then(self, effect: BlockThen) -> tuple[bool, Any]:
        """Block like `wait`, with the operation of *effect* behind the read; return its decoded reply, too. If
        `stop_waiting` ended the block, undo the operation's effect; the reply is `None`.
        """
        lane, trip, found = self._lane(effect.op), self._trip([effect.op]), True
        try:
            found, *answers = self._block([pack(effect.command), *pack_all(trip.ops, [lane], "EVALSHA")], trip.leaves)
            trip.answered()
            answers = self._checked(answers, trip, [lane])
        except Exception as error:
            if self._waits_no_more:
                self._undo_riding(effect, lane)
                return False, None
            time.sleep(0.01)
            answers = self._again(error, trip, [lane], None)
        else:
            self._lanes.give(trip.ops, [lane])
        return bool(found), self._answered(trip, answers)[0]

    def _undo_riding(self, effect: BlockThen, lane: Lane) -> None:
        """Fetch the reply of *effect*'s operation again, by the same number, and undo it."""
        with suppress(Exception):  # what can't be undone now comes back as the worker leaves
            undoing = effect.undo(effect.again.decode(self._attempt(self._trip([effect.again]), [lane], None)[0]))
            self.undo([] if undoing is None else [undoing])

    def _block(self, commands: Sequence[bytes], leaves: Meanwhile) -> list[Any]:
        """Send like `send`, on a connection that `stop_waiting` closes."""
        connection = self.connections.take()
        self._blocked.add(connection)
        try:
            if self._waits_no_more:
                self.connections.give(connection)
                raise errors.ConnectionError("the worker stops")
            return self._exchange(connection, commands, None, leaves)
        finally:
            self._blocked.discard(connection)

    def stop_waiting(self) -> None:
        """End the blocked reads, and let none begin. To be called until they have ended: redis-py opens a connection
        anew that is closed just before it is used.
        """
        self._waits_no_more = True
        for connection in list(self._blocked):
            cut(connection)

    def sleep(self, seconds: float) -> None:
        """Sleep on the client."""
        time.sleep(seconds)

    def close(self, last: Sequence[Op[Any]] = ()) -> None:
        """Run *last*, delete the records of our lanes, and close our connections.

        Waits about a second for a server that does not answer. The executor can be used again, with new connections.
        """
        clearing = [] if self._given_up.is_set() else self._clearing()
        try:
            if not last and clearing and (connection := self.connections.open_one()) is not None:
                self._clear(connection, clearing)
            elif last or clearing:
                # Beside us: no timeout of a connection bounds all that it may wait for (names, TLS, a server's start).
                thread = threading.Thread(target=self._leave, args=(last, clearing), name="headrace-close", daemon=True)
                with suppress(RuntimeError):  # the interpreter ends, and has no threads any more
                    thread.start()
                    thread.join(CLOSE_WITHIN_S)
        finally:
            if self._last():
                self.connections.disconnect()

    def _clear(self, connection: Any, clearing: Sequence[tuple[str, ...]]) -> None:
        """Delete records on a connection that has just been used: there is nothing to wait for but the server."""
        with suppress(Exception):  # they expire
            self._exchange_within([pack(command) for command in clearing], connection, CLOSE_WITHIN_S)

    def _leave(self, last: Sequence[Op[Any]], clearing: Sequence[tuple[str, ...]]) -> None:
        with suppress(Exception):  # all of it expires
            if last:
                self._attempt(self._trip(last), [Lane() for _ in last], None)
            if clearing:
                self.send([pack(command) for command in clearing])

    def give_up(self) -> None:
        """Make calls under way fail now, and later ones after one attempt."""
        self.budget = 0.0
        self._given_up.set()
        self.close()


def meet(executor: Executor) -> None:
    """Return once there is a server, even if it answers with an error. Raises the last error after `FIRST_ANSWER_S`."""
    outage = executor.outage

    def greet() -> None:
        error = first_error(executor.send([pack(("PING",))]))
        if error is not None:
            raise error

    budget = RetryBudget(
        outage, lambda: 0.0 if outage.there else bound(outage, RETRY_BUDGET_S), executor.timeout, Trip([])
    )
    try:
        Retrying(**policy(budget, executor.pause))(greet)
    except Exception:
        if not outage.there:
            raise
