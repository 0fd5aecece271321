"""Executors on threads. They undo interrupted calls, and can give up all calls under way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

import redis
from attrs import evolve
from tenacity import Retrying, sleep_using_event

from headrace import _forks
from headrace._core.effects import Undoable
from headrace._net.base.connections import Attend
from headrace._net.base.retries import Meanwhile, RetryBudget, Trip, bound, policy, since_boot
from headrace._net.sync.pool import Pool, exchanged
from headrace._net.sync.trips import Trips
from headrace._protocol.limits import COURTESY_S, RETRY_BUDGET_S
from headrace._protocol.op import ITEM_BYTES, Op, Prepared, pack, undecoded
from headrace._protocol.replies import Grant
from headrace._telemetry.client import Outage

N = TypeVar("N")
R = TypeVar("R")
UNDO_WITHIN_S = 2 * COURTESY_S  # for undoing the effects of a cancelled call
NO_LIMIT = nullcontext()  # threads are few


class Executor(Trips):
    """Runs operations on a pool of our own.

    Retries of a round trip take at most *budget* seconds. Executors of the same server may have the
    same *outage*. If this one *shares*, it uses the connections of the others, too.
    """

    def __init__(
        self, url: str | None = None, client: redis.Redis | None = None, budget: float = RETRY_BUDGET_S,
        outage: Outage | None = None, attend: Attend | None = None, *, shares: bool = False,
    ) -> None:  # fmt: skip
        theirs = None if client is None else client.connection_pool
        pool = (
            Pool.shared(url, theirs, self, attend) if shares else Pool(url, theirs, outage, attend)
        )
        super().__init__(pool, budget)
        self._given_up = _forks.event()
        self._sleep = sleep_using_event(self._given_up)

    def run(self, op: Op[R], meanwhile: Meanwhile = None, within: float | None = None) -> R:
        """Run one operation and return its decoded reply.

        *meanwhile* is called in each attempt, while the server works. *within* is a time limit in
        seconds, in place of the executor's.
        """
        result: R = self.run_all([op], meanwhile, within=within)[0]
        return result

    def run_whole(self, effect: Undoable, within: float | None = None) -> Grant | None:
        """Run an operation. If interrupted, fetch the reply again, and run the operation that
        undoes it.
        """
        op = effect.op
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
            # jobs that can't be released now come back when their leases expire
            with suppress(Exception):
                # its lane is kept: the same call is answered from its record, or comes first
                if reply is None:
                    reply = self._attempt(self._trip([bare]), [lane], None)[0]
                undoing = effect.undo(reply)
                self.undo([] if undoing is None else [undoing])
            raise

    def undo(self, ops: Sequence[Op[Any]]) -> None:
        """Send operations once each, ignoring errors."""
        with suppress(Exception):
            for op in ops:
                self._insist(op)

    def _insist(self, op: Op[Any]) -> None:
        self._attempt(self._trip([op], UNDO_WITHIN_S), [self._lane(op)], None)

    def run_prepared(self, prepared: Prepared[N, R], item: N) -> R:
        if prepared.weight(item) > ITEM_BYTES or self.connections.combiner is not None:
            return self.run(prepared.of(item))
        return self._run_prepared(prepared, item)

    def _run_prepared(self, prepared: Prepared[N, R], item: N) -> R:
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
                trip = Trip(
                    (prepared.of(item),), began=began, sent=sent, unanswered=int(sent > 0.0)
                )
            answer = self._again(error, trip, [lane], None)[0]
        else:
            self._lanes.put(prepared.lane_prefix, lane)
        self._record_answer()
        return prepared.op.decode(answer)

    def _permit(self, _trip: Trip) -> AbstractContextManager[None]:
        return NO_LIMIT

    def _heals(self, error: Exception, trip: Trip) -> bool:
        return super()._heals(error, trip) and not self._given_up.is_set()

    def close(self, last: Sequence[Op[Any]] = ()) -> None:
        """Run *last*, delete the records of our lanes, and close our connections.

        Waits about a second for a server that does not answer. The executor can be used again, with
        new connections.
        """
        clearing = [] if self._given_up.is_set() else self._clearing()
        try:
            if not last and clearing and (connection := self.connections.open_one()) is not None:
                self._clear(connection, clearing)
            elif last or clearing:
                # Beside us: no timeout of a connection bounds all that it may wait for (names, TLS,
                # a server's start).
                thread = threading.Thread(
                    target=self._leave, args=(last, clearing), name="headrace-close", daemon=True
                )
                with suppress(RuntimeError):  # the interpreter ends, and has no threads any more
                    thread.start()
                    thread.join(COURTESY_S)
        finally:
            if self._last():
                self._disconnect([self.connections])

    def _disconnect(self, pools: Sequence[Pool]) -> None:
        for pool in pools:
            pool.disconnect()

    def _clear(self, connection: Any, clearing: Sequence[tuple[str, ...]]) -> None:
        """Delete records on a connection that has just been used, so that the call waits for the
        server only.
        """
        with suppress(Exception):  # they expire
            commands = [pack(command) for command in clearing]
            self.connections.exchange(connection, commands, end=since_boot() + COURTESY_S)

    def give_up(self) -> None:
        """Let calls under way fail now, and later calls after one attempt."""
        self.budget = 0.0
        self._given_up.set()
        for link in self.links():
            link.give_up()
        self.close()


def meet(executor: Executor) -> None:
    """Return once a server answers, even with an error. Raises the last error after
    `FIRST_ANSWER_S`.
    """
    outage = executor.outage
    budget = RetryBudget(
        outage,
        lambda: 0.0 if outage.found else bound(outage, RETRY_BUDGET_S),
        executor.timeout,
        Trip([]),
    )
    try:
        Retrying(**policy(budget, executor.pause))(executor.ping)
    except Exception:
        if not outage.found:
            raise
