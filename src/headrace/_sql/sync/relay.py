# Generated from `headrace/_sql/aio/relay.py` by .ci/twins.py: edit that file.
"""The relay: it moves committed rows of an outbox to their queue, by batches that `_sql/batch` reads and deletes."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Self

from headrace._api.sync.queue import Queue
from headrace._model import checks
from headrace._net.base.address import Address
from headrace._net.sync.colour import Background, Event, event, happens
from headrace._protocol.limits import COURTESY_S, JOBS_PER_SCRIPT
from headrace._protocol.op import Op
from headrace._sql.batch import FOLLOWING, SEND_WITHIN_S, Batch, Complaints, Reports, own_sender, pause_after, sender
from headrace._sql.outbox import Outbox
from headrace._sql.sync.colour import Connection, Engine, listening, run_on, rung


def relay_once(connection: Connection, outbox: Outbox, *, limit: int = JOBS_PER_SCRIPT) -> int:
    """Move up to *limit* committed rows of *outbox* to its queue; return how many. 0: there are no others now.

    *connection* is of the queue's colour, and in no transaction: this begins and ends its own. If the queue is full or
    away, it raises as `Queue.enqueue_many` does, and the rows stay. A row that can't be a job is marked with the
    reason, and logged. Raises `ConfigurationError` for a database without the table.
    """
    batch = Batch(outbox.queue.name, sender(outbox.queue, Queue))
    _move(connection, batch, limit)
    return len(batch.jobs)


def _move(connection: Connection, batch: Batch, limit: int) -> None:
    """Move the rows of a batch."""
    run_on(connection, partial(batch.take, limit=limit))
    try:
        try:
            _send(batch)
        except (TypeError, ValueError):
            if not batch.sift():
                raise
            _send(batch)
    except Exception as error:
        batch.failed(error)
        raise
    finally:
        run_on(connection, batch.end)


def _report(connection: Connection, batch: Batch, reports: Reports) -> None:
    """Report the rows that wait, if it is time."""
    if reports.due():
        _tell(batch.queue, reports.of(run_on(connection, batch.measure)))


def _tell(queue: Any, op: Op[Any]) -> None:
    """Send an operation, within a second."""
    queue._executor.run_all([op], within=COURTESY_S)  # noqa: SLF001


def _send(batch: Batch) -> None:
    if batch.one_by_one:
        for job in batch.jobs:
            receipt = batch.queue.enqueue(job, timeout=SEND_WITHIN_S)
            batch.receipts.append(receipt)
    elif batch.jobs:
        batch.receipts = batch.queue.enqueue_many(batch.jobs, timeout=SEND_WITHIN_S)


class Relay:
    """A context in which committed rows of *outbox* go to its queue, in the background, on connections of *engine*.

    `with Relay(engine, outbox): …` in a program of its own; `worker.relay(outbox, engine)` for a worker. Any
    number may run at once. *poll*: seconds, or a `timedelta`, between two looks for rows: 0.2, or 5 where PostgreSQL
    tells the relay of each commit (psycopg 3.2 or later), on a connection of its own. An error is logged
    (`relay_failed`, once a minute), and it goes on. Leaving the context waits at most 2 seconds for the batch under
    way.
    """

    def __init__(self, engine: Engine, outbox: Outbox, *, poll: float | timedelta | None = None) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(f"engine must be an {Engine.__name__} of SQLAlchemy, not a {type(engine).__name__}")
        self._engine, self._outbox = engine, outbox
        self._poll = None if poll is None else checks.seconds("poll", poll, zero=False)
        own_sender(outbox.queue, Queue, None)  # refuses a client of the other colour
        self._over, self._background = event(), Background()

    def begin(self, where: Address | None = None) -> None:
        """Begin to relay. *where*: the server for a queue that names none."""
        self._over, queue = event(), own_sender(self._outbox.queue, Queue, where)
        self._background.start(f"headrace-relay-{queue.name}", self._run, queue, self._over)

    def end(self) -> None:
        """Stop, and wait at most 2 seconds for the batch under way."""
        self._over.set()
        self._background.end(2 * COURTESY_S)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _run(self, queue: Any, over: Event) -> None:
        complaints, reports = Complaints(queue.name), Reports(queue)
        try:
            while not over.is_set():
                try:
                    with listening(self._engine) as bell:
                        self._follow(queue, over, bell, complaints, reports)
                except Exception as error:
                    happens(over, complaints.add(error))
            with suppress(Exception):  # it would be taken for dead
                _tell(queue, reports.last())
        finally:
            queue.close()

    def _follow(self, queue: Any, over: Event, bell: Any, complaints: Complaints, reports: Reports) -> None:
        """Move rows as they are committed, until an error or the end."""
        while not over.is_set():
            with self._engine.connect() as connection:
                batch, number = Batch(queue.name, queue), 0
                while not over.is_set():
                    number += 1
                    batch = Batch(queue.name, queue, after=batch.following if number % FOLLOWING else 0)
                    try:
                        _move(connection, batch, JOBS_PER_SCRIPT)
                    except Exception:
                        with suppress(Exception):  # of a queue that is full, say
                            _report(connection, batch, reports)
                        raise
                    _report(connection, batch, reports)
                    if not batch.found and batch.after == 0:
                        break
                    batch.following *= batch.found
            complaints.over()
            rung(bell, batch.wake, over, pause_after(batch, self._poll, notified=bell is not None))
