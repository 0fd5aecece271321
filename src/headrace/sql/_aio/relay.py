"""The relay, which moves committed rows of an outbox to their queue, by batches that `_batch` reads
and deletes.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Self

from sqlalchemy.exc import SQLAlchemyError

from headrace import AsyncQueue
from headrace.platform import LIMITS, Address, InnerQueue, checks
from headrace.sql._aio.colour import (
    Background,
    Connection,
    Engine,
    Event,
    Session,
    event,
    happens,
    run_on,
    session_of,
)
from headrace.sql._batch import (
    FOLLOWING,
    SEND_WITHIN_S,
    Batch,
    Complaints,
    Reports,
    Source,
    by_server,
    own_sender,
    sender,
)
from headrace.sql._outbox import Outbox
from headrace.sql._rows import is_of_row


async def relay_once_async(
    connection: Connection, outbox: Outbox, *, limit: int = LIMITS.jobs_per_script
) -> int:
    """Move up to *limit* committed rows of *outbox* to its queue, and return how many. After 0
    there are no others now.

    *connection* is of the queue's colour, and in no transaction, as this begins and ends its own.
    If the queue is full or away, it raises as `AsyncQueue.enqueue_many` does, and the rows stay. A
    row that can't be a job is marked with the reason, and logged. Raises `ConfigurationError` for a
    database without the table.
    """
    batch = Batch(outbox.queue.name, sender(outbox.queue, AsyncQueue), outbox.schema)
    await _move(connection, batch, limit)
    return len(batch.jobs)


async def _move(connection: Connection, batch: Batch, limit: int) -> None:
    await run_on(connection, partial(batch.take, limit=limit))
    try:
        try:
            await _send(batch)
        except Exception as error:
            if not is_of_row(error):
                raise
            await _send_apart(batch)
    except Exception as error:
        batch.failed(error)
        raise
    finally:
        await run_on(connection, batch.end)


async def _report(connection: Connection, batch: Batch, reports: Reports) -> None:
    if reports.due():
        await InnerQueue(batch.queue).report_outbox(
            [reports.of(await run_on(connection, batch.measure))]
        )


async def _send(batch: Batch) -> None:
    if batch.one_by_one:
        for job in batch.jobs:
            batch.receipts.append(await batch.queue.enqueue(job, timeout=SEND_WITHIN_S))
    elif batch.jobs:
        batch.receipts = await batch.queue.enqueue_many(batch.jobs, timeout=SEND_WITHIN_S)


async def _send_apart(batch: Batch) -> None:
    """Send the rows one by one. Refuse each row that the queue does not take while it answers."""
    batch.receipts = []
    while (number := len(batch.receipts)) < len(batch.jobs):
        job = batch.jobs[number]
        try:
            batch.receipts.append(await batch.queue.enqueue(job, timeout=SEND_WITHIN_S))
        except Exception as error:
            if not is_of_row(error):
                raise
            if not batch.wrong(job):
                await batch.queue.counts()  # raises if the row is not to blame
            batch.drop(number, error)


class AsyncRelay:
    """A context in which committed rows of outboxes go to their queues, in the background, on a
    session of *engine*.

    Enter `async with AsyncRelay(engine, outbox): …` in a program of its own, or call
    `worker.relay(outbox, engine)` for a worker. Any number of relays may run at once. On PostgreSQL
    the relay has one session for all *outboxes*, as long as that works, or one for each server, if
    the queues are on several. *poll*: seconds, or a `timedelta`, between two looks for rows. The
    default is 0.2, or 5 where PostgreSQL tells the relay of each commit (psycopg 3.2.4 or later).
    The relay tests that, and logs `relay_not_told` behind a pooler that passes on nothing. It logs
    an error (`relay_failed`, once a minute), and goes on. Leaving the context waits at most 2
    seconds for the batch under way.
    """

    def __init__(
        self, engine: Engine, *outboxes: Outbox, poll: float | timedelta | None = None
    ) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(
                f"engine must be an {Engine.__name__} of SQLAlchemy, not a {type(engine).__name__}"
            )
        if not outboxes:
            raise TypeError("give a relay an outbox, or several")
        self.engine = engine
        self.outboxes = [*outboxes]
        self.poll = None if poll is None else checks.seconds("poll", poll, zero=False)
        for outbox in outboxes:
            own_sender(outbox.queue, AsyncQueue, None)  # refuses a client of the other colour
        self._over = event()
        self._background = Background()

    def join(self, other: object) -> bool:
        """Relay the outboxes of *other*, too, on the same session. Return `False` if that is of
        another engine.
        """
        if not isinstance(other, AsyncRelay) or (other.engine, other.poll) != (
            self.engine,
            self.poll,
        ):
            return False
        self.outboxes += other.outboxes
        return True

    def begin(self, where: Address | None = None) -> None:
        """Begin to relay. *where* is the server for queues that name none."""
        self._over = event()
        some = [
            Source(own_sender(outbox.queue, AsyncQueue, where), outbox.schema)
            for outbox in self.outboxes
        ]
        for sources in by_server(some):
            self._background.start(
                f"headrace-relay-{sources[0].queue.name}", self._run, sources, self._over
            )

    async def end(self) -> None:
        """Stop, and wait at most 2 seconds for the batch under way."""
        self._over.set()
        await self._background.end(2 * LIMITS.courtesy_s)

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def _run(self, sources: list[Source], over: Event) -> None:
        name = ", ".join(source.queue.name for source in sources)
        complaints = Complaints(name)
        try:
            while not over.is_set():
                try:
                    async with session_of(self.engine, name) as session:
                        await session.listen(over)
                        await self._follow(session, sources, over, complaints)
                except Exception as error:
                    await happens(over, complaints.add(error))
            for source in sources:
                with suppress(Exception):  # it would be taken for dead
                    await InnerQueue(source.queue).report_outbox(source.reports.last())
        finally:
            for source in sources:
                await source.queue.close()

    async def _follow(
        self, session: Session, sources: list[Source], over: Event, complaints: Complaints
    ) -> None:
        """Move rows as they are committed, until the relay stops, its session is too old, or the
        database fails.
        """
        heard: set[str] = set()
        while not over.is_set() and not session.is_old():
            async with session.connection() as connection:
                for source in sources:
                    if source.due(heard) and not over.is_set():
                        await self._serve(connection, source, over, told=session.told)
                        complaints.over()
            heard = await session.rung(over, min(source.next for source in sources) - monotonic())

    async def _serve(
        self, connection: Connection, source: Source, over: Event, *, told: bool
    ) -> None:
        batch = source.batch()
        try:
            for number in range(1, FOLLOWING + 1):
                batch = source.batch(batch.following if number > 1 else 0)
                try:
                    await _move(connection, batch, LIMITS.jobs_per_script)
                except Exception:
                    with suppress(Exception):  # of a queue that is full, say
                        await _report(connection, batch, source.reports)
                    raise
                await _report(connection, batch, source.reports)
                if over.is_set() or (not batch.found and batch.after == 0):
                    break
                batch.following *= batch.found
        except SQLAlchemyError:
            raise
        except Exception as error:
            source.rest(source.complaints.add(error))
        else:
            source.looked(batch, self.poll, told=told)
