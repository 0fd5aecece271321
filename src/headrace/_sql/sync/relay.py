# Generated from `headrace/_sql/aio/relay.py` by .ci/twins.py: edit that file.
"""The relay: it moves committed rows of an outbox to their queue, by batches that `_sql/batch` reads and deletes."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Self

from headrace._api.sync.queue import Queue
from headrace._model import checks
from headrace._net.sync.colour import Background, event, happens
from headrace._protocol.limits import COURTESY_S, JOBS_PER_SCRIPT, LOG_AGAIN_S
from headrace._sql.batch import SEND_WITHIN_S, Batch, Complaints
from headrace._sql.outbox import Outbox
from headrace._sql.sync.colour import Connection, Engine, run_on


def relay_once(connection: Connection, outbox: Outbox, *, limit: int = JOBS_PER_SCRIPT) -> int:
    """Move up to *limit* committed rows of *outbox* to its queue; return how many. 0: there are no others now.

    *connection* is of the queue's colour, and in no transaction: this begins and ends its own. If the queue is full or
    away, it raises as `Queue.enqueue_many` does, and the rows stay. A row that can't be a job is marked with the
    reason, and logged. Raises `ConfigurationError` for a database without the table.
    """
    batch = Batch(outbox, Queue)
    run_on(connection, partial(batch.take, limit=limit))
    try:
        if batch.one_by_one:
            for job in batch.jobs:
                receipt = batch.queue.enqueue(job, timeout=SEND_WITHIN_S)
                batch.receipts.append(receipt)
        elif batch.jobs:
            batch.receipts = batch.queue.enqueue_many(batch.jobs, timeout=SEND_WITHIN_S)
    except Exception as error:
        batch.failed(error)
        raise
    finally:
        run_on(connection, batch.end)
    return len(batch.jobs)


class Relay:
    """A context in which committed rows of *outbox* go to its queue, in the background, on connections of *engine*.

    `with Relay(engine, outbox): …`, around the run of a worker or in a program of its own; any number may
    run at once. *poll*: seconds, or a `timedelta`, between two looks for rows. An error is logged (`relay_failed`, once
    a minute), and it goes on. Leaving the context waits at most 2 seconds for the batch under way.
    """

    def __init__(self, engine: Engine, outbox: Outbox, *, poll: float | timedelta = 0.2) -> None:
        self._engine, self._outbox = engine, outbox
        self._poll = checks.seconds("poll", poll, zero=False)
        self._over, self._background = event(), Background()

    def __enter__(self) -> Self:
        self._background.start(f"headrace-relay-{self._outbox.queue.name}", self._run)
        return self

    def _run(self) -> None:
        complaints = Complaints(self._outbox.queue.name, LOG_AGAIN_S)
        while not self._over.is_set():
            try:
                with self._engine.connect() as connection:
                    while not self._over.is_set() and relay_once(connection, self._outbox):
                        pass
            except Exception as error:
                complaints.add(error)
            happens(self._over, self._poll)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._background.end(2 * COURTESY_S)
