"""`Outbox`, for jobs that are written in a transaction of SQL, as rows of a table that a relay
moves to their queue.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, overload

from attrs import evolve
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace import AsyncQueue, AsyncTasks, NewJob, Queue, Tasks
from headrace.errors import ConfigurationError
from headrace.platform import HEADERS, BaseReceipt, InnerQueue
from headrace.sql._tables import CHANNEL, VERSION, statement, wake_of
from headrace.sql._transaction import Async, Sync, within
from headrace.sql.connections import DjangoConnection, engine_of
from headrace.sql.dialects import schema_name

Delay = float | timedelta | datetime | None

INSERT = """
    INSERT INTO {outbox}
        (version, namespace, queue, job_id, payload, headers, priority, job_key, delay_ms, due_ms)
    VALUES (:version, :namespace, :queue, :job_id, :payload, :headers, :priority, :job_key, :delay_ms, :due_ms)
    ON CONFLICT (namespace, queue, job_id) DO NOTHING
    RETURNING position
"""
WRITE = {
    "postgresql": f"WITH written AS ({INSERT}) SELECT pg_notify('{CHANNEL}', :wake) FROM written",  # noqa: S608
    "sqlite": INSERT,
}
# Until its transaction ends, no other transaction writes a job of this key: positions are then in
# the order of commits.
LOCK_KEY = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


class Outbox:
    """The jobs of a queue, or of tasks, that `outbox.enqueue(session, payload)` writes in
    transactions.

    The job exists if and only if the transaction is committed. A relay then moves it to the queue
    (`relay_once`). One object may be shared by threads, and used with sessions of both colours.
    Only the relay connects to Redis.

    *schema*: the schema of PostgreSQL in which the tables are. Without it they are in one of the
    session's search path.
    """

    # the relays for threads and for asyncio, given by `headrace.sql`
    relays: ClassVar[tuple[Any, Any]]

    def __init__(
        self, queue: Queue[Any] | AsyncQueue[Any] | Tasks | AsyncTasks, *, schema: str | None = None
    ) -> None:
        found: Any = queue.queue if isinstance(queue, (Tasks, AsyncTasks)) else queue
        if not isinstance(found, (Queue, AsyncQueue)):
            raise TypeError(f"an outbox is for a Queue or Tasks, not a {type(found).__name__}")
        self.queue: Any = found
        self.schema = schema_name(schema)
        self._tasks = isinstance(queue, (Tasks, AsyncTasks))

    def __repr__(self) -> str:
        return f"Outbox({self.queue!r})"

    @overload
    def enqueue(
        self,
        session: Sync,
        payload: Any,
        *,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Delay = None,
        key: str | None = None,
        priority: int = 0,
    ) -> BaseReceipt[Any]: ...
    @overload
    def enqueue(
        self,
        session: Async,
        payload: Any,
        *,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Delay = None,
        key: str | None = None,
        priority: int = 0,
    ) -> Awaitable[BaseReceipt[Any]]: ...
    def enqueue(
        self,
        session: Sync | Async,
        payload: Any,
        *,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Delay = None,
        key: str | None = None,
        priority: int = 0,
    ) -> BaseReceipt[Any] | Awaitable[BaseReceipt[Any]]:
        """Write a job into the transaction of *session*, and return its receipt.

        *session*: a session or connection of SQLAlchemy, of which this may be the first statement.
        In Django, within `transaction.atomic()`, it is a connection (`django.db.connection`) or its
        alias (`"default"`).

        *payload*: a payload, or a `NewJob`, such as `task.new(…)` makes. The other arguments are as
        for `Queue.enqueue`. A *delay* in seconds counts from now. *id*: a job of that id in the
        outbox, or the queue, is left as it is. Rows with that id are dropped for a day after the
        first was sent. In an `ordered` queue the jobs of a *key* are in the order of their commits.
        On PostgreSQL, transactions with the same key wait for one another.

        Await it for an asynchronous session. Raises `ConfigurationError` for a session that begins
        no transaction, a database without the table, and one that is neither PostgreSQL nor SQLite.
        Raises `ValueError` for a row that the table does not take, such as a payload over its
        column's limit. Other errors are as of `Queue.enqueue`. One INSERT.
        """
        job = self._job(payload, id, headers, delay, key, priority)
        row = self._row(job)

        def write(connection: Connection | DjangoConnection) -> BaseReceipt[Any]:
            dialect = connection.dialect.name
            if (
                job.key is not None
                and InnerQueue(self.queue).settings.ordered
                and dialect == "postgresql"
            ):
                connection.execute(
                    LOCK_KEY, {"name": f"{row['namespace']} {row['queue']} {job.key}"}
                )
            try:
                written = connection.execute(
                    statement(WRITE[dialect], dialect, self.schema), row
                ).all()
            except (DataError, IntegrityError) as error:
                size = len(row["payload"])
                raise ValueError(
                    f"the outbox takes no such row, of a payload of {size:,} bytes: {error.orig}"
                ) from error
            return InnerQueue(self.queue).receipt(job, added=bool(written))

        return within(session, "headrace_outbox", self.schema, write)

    def relay(self, engine: Any, poll: float | timedelta | None = None) -> Any:
        """Make the relay of a worker. It is a `Relay` or an `AsyncRelay`, by the colour of
        *engine*.

        In Django *engine* may be the alias of a database. Prefer `worker.relay(outbox, engine)`, or
        `Relay`.
        """
        found: Any = engine_of(engine) if isinstance(engine, str) else engine
        return self.relays[isinstance(found, AsyncEngine)](found, self, poll=poll)

    def _job(
        self,
        payload: Any,
        id: str | None,
        headers: Mapping[str, str] | None,
        delay: Delay,
        key: str | None,
        priority: int,
    ) -> NewJob[Any]:
        job: NewJob[Any] = NewJob(payload, id, headers, delay, priority, key=key)
        if isinstance(payload, NewJob):
            given: NewJob[Any] = payload  # pyright: ignore[reportUnknownVariableType] - isinstance tells no more
            if job != NewJob(given):
                raise TypeError(
                    "give id, headers, delay, priority and key to the NewJob, not beside it"
                )
            job = given
        elif self._tasks:
            raise TypeError("the outbox of tasks takes their calls: give it task.new(…)")
        if job.unique_for is not None or job.if_exists is not None:
            raise ConfigurationError(
                "an outbox takes neither if_exists nor unique_for: give unique_for to the queue"
            )
        return job if job.id is not None else evolve(job, id=secrets.token_hex(12))

    def _row(self, job: NewJob[Any]) -> dict[str, Any]:
        inner = InnerQueue(self.queue)
        name, delay, fields = inner.encoded(job, traced=True)
        flat = fields[4:]  # after the payload and the id
        headers = dict(zip(flat[::2], flat[1::2], strict=True))
        return {
            "version": VERSION,
            "namespace": inner.namespace,
            "queue": self.queue.name,
            "wake": wake_of(inner.namespace, self.queue.name),
            "job_id": name,
            "payload": fields[1],
            "headers": json.dumps(
                {
                    name: value
                    for name, value in headers.items()
                    if name not in {HEADERS.key, HEADERS.priority}
                }
            ),
            "priority": job.priority,
            "job_key": job.key,
            "delay_ms": int(delay[1:]) if delay.startswith("+") else None,
            "due_ms": int(delay[1:]) if delay.startswith("@") else None,
        }
