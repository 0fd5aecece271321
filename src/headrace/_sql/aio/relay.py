"""The relay: it moves committed rows of an outbox to their queue, by batches that `_sql/batch` reads and deletes."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Self

from headrace._api.aio.queue import AsyncQueue
from headrace._model import checks
from headrace._net.aio.colour import Background, Event, event, happens
from headrace._net.base.address import Address
from headrace._protocol.limits import COURTESY_S, JOBS_PER_SCRIPT
from headrace._protocol.op import Op
from headrace._sql.aio.colour import Connection, Engine, listening, run_on, rung
from headrace._sql.batch import FOLLOWING, SEND_WITHIN_S, Batch, Complaints, Reports, own_sender, pause_after, sender
from headrace._sql.outbox import Outbox


async def relay_once_async(connection: Connection, outbox: Outbox, *, limit: int = JOBS_PER_SCRIPT) -> int:
    """Move up to *limit* committed rows of *outbox* to its queue; return how many. 0: there are no others now.

    *connection* is of the queue's colour, and in no transaction: this begins and ends its own. If the queue is full or
    away, it raises as `AsyncQueue.enqueue_many` does, and the rows stay. A row that can't be a job is marked with the
    reason, and logged. Raises `ConfigurationError` for a database without the table.
    """
    batch = Batch(outbox.queue.name, sender(outbox.queue, AsyncQueue))
    await _move(connection, batch, limit)
    return len(batch.jobs)


async def _move(connection: Connection, batch: Batch, limit: int) -> None:
    """Move the rows of a batch."""
    await run_on(connection, partial(batch.take, limit=limit))
    try:
        try:
            await _send(batch)
        except (TypeError, ValueError):
            if not batch.sift():
                raise
            await _send(batch)
    except Exception as error:
        batch.failed(error)
        raise
    finally:
        await run_on(connection, batch.end)


async def _report(connection: Connection, batch: Batch, reports: Reports) -> None:
    """Report the rows that wait, if it is time."""
    if reports.due():
        await _tell(batch.queue, reports.of(await run_on(connection, batch.measure)))


async def _tell(queue: Any, op: Op[Any]) -> None:
    """Send an operation, within a second."""
    await queue._executor.run_all([op], within=COURTESY_S)  # noqa: SLF001


async def _send(batch: Batch) -> None:
    if batch.one_by_one:
        for job in batch.jobs:
            receipt = await batch.queue.enqueue(job, timeout=SEND_WITHIN_S)
            batch.receipts.append(receipt)
    elif batch.jobs:
        batch.receipts = await batch.queue.enqueue_many(batch.jobs, timeout=SEND_WITHIN_S)


class AsyncRelay:
    """A context in which committed rows of *outbox* go to its queue, in the background, on connections of *engine*.

    `async with AsyncRelay(engine, outbox): …` in a program of its own; `worker.relay(outbox, engine)` for a worker. Any
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
        own_sender(outbox.queue, AsyncQueue, None)  # refuses a client of the other colour
        self._over, self._background = event(), Background()

    def begin(self, where: Address | None = None) -> None:
        """Begin to relay. *where*: the server for a queue that names none."""
        self._over, queue = event(), own_sender(self._outbox.queue, AsyncQueue, where)
        self._background.start(f"headrace-relay-{queue.name}", self._run, queue, self._over)

    async def end(self) -> None:
        """Stop, and wait at most 2 seconds for the batch under way."""
        self._over.set()
        await self._background.end(2 * COURTESY_S)

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def _run(self, queue: Any, over: Event) -> None:
        complaints, reports = Complaints(queue.name), Reports(queue)
        try:
            while not over.is_set():
                try:
                    async with listening(self._engine) as bell:
                        await self._follow(queue, over, bell, complaints, reports)
                except Exception as error:
                    await happens(over, complaints.add(error))
            with suppress(Exception):  # it would be taken for dead
                await _tell(queue, reports.last())
        finally:
            await queue.close()

    async def _follow(self, queue: Any, over: Event, bell: Any, complaints: Complaints, reports: Reports) -> None:
        """Move rows as they are committed, until an error or the end."""
        while not over.is_set():
            async with self._engine.connect() as connection:
                batch, number = Batch(queue.name, queue), 0
                while not over.is_set():
                    number += 1
                    batch = Batch(queue.name, queue, after=batch.following if number % FOLLOWING else 0)
                    try:
                        await _move(connection, batch, JOBS_PER_SCRIPT)
                    except Exception:
                        with suppress(Exception):  # of a queue that is full, say
                            await _report(connection, batch, reports)
                        raise
                    await _report(connection, batch, reports)
                    if not batch.found and batch.after == 0:
                        break
                    batch.following *= batch.found
            complaints.over()
            await rung(bell, batch.wake, over, pause_after(batch, self._poll, notified=bell is not None))
