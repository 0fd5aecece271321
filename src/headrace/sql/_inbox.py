"""`inbox` commits the effects of a job with a row that records them, so that they happen once."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, overload

from sqlalchemy.engine import Connection

from headrace import Job
from headrace.errors import RunLost
from headrace.platform import HEADERS, checks
from headrace.sql._tables import statement
from headrace.sql._transaction import Async, Sync, within
from headrace.sql.connections import DjangoConnection
from headrace.sql.dialects import schema_name

DONE = """
    INSERT INTO {inbox} (queue, job_id, enqueued_ms, attempt) VALUES (:queue, :job_id, :enqueued_ms, :attempt)
    ON CONFLICT (queue, job_id, enqueued_ms) DO NOTHING
"""
FORGET = "DELETE FROM {inbox} WHERE done_ms < {now} - :age_ms"


@overload
def inbox(session: Sync, job: Job[Any], *, schema: str | None = None) -> bool: ...
@overload
def inbox(session: Async, job: Job[Any], *, schema: str | None = None) -> Awaitable[bool]: ...
def inbox(
    session: Sync | Async, job: Job[Any], *, schema: str | None = None
) -> bool | Awaitable[bool]:
    """Return `True` if the effects of *job* are still to be done, in this transaction, or `False`
    if they are committed.

        with Session.begin() as session:
            if inbox(session, job):
                session.add(Debit(…))

    It writes a row, which is committed with the effects, or rolled back with them. Of two
    deliveries of the job at once, the second waits for the first to commit. *schema*: of the table,
    as of `Outbox`. Await it for an asynchronous session. Raises `RunLost`, to end the handler, if
    the job is not this handler's any more. Raises `ConfigurationError` as `Outbox.enqueue` does.
    One INSERT.
    """
    schema = schema_name(schema)
    if not isinstance(job, Job):
        raise TypeError(
            f"job must be a Job, as handlers and leases have it, not a {type(job).__name__}"
        )
    row = {
        "queue": job.headers.get(HEADERS.moved_from, str(job.queue)),
        "job_id": str(job.id),
        "enqueued_ms": round(job.enqueued_at * 1000),
        "attempt": job.attempt,
    }

    def begin(connection: Connection | DjangoConnection) -> bool:
        if job.lost:
            raise RunLost(job.id)
        return (
            connection.execute(statement(DONE, connection.dialect.name, schema), row).rowcount == 1
        )

    return within(session, "headrace_inbox", schema, begin)


@overload
def forget(session: Sync, age: float | timedelta, *, schema: str | None = None) -> int: ...
@overload
def forget(
    session: Async, age: float | timedelta, *, schema: str | None = None
) -> Awaitable[int]: ...
def forget(
    session: Sync | Async, age: float | timedelta, *, schema: str | None = None
) -> int | Awaitable[int]:
    """Delete the rows of the inbox that are older than *age* (seconds, or a `timedelta`), and
    return how many.

    A job that is delivered again after that, as a dead letter may be, repeats its effects.
    """
    age_ms = checks.term("age", age)
    schema = schema_name(schema)

    def delete(connection: Connection | DjangoConnection) -> int:
        forgetting = statement(FORGET, connection.dialect.name, schema)
        return connection.execute(forgetting, {"age_ms": age_ms}).rowcount

    return within(session, "headrace_inbox", schema, delete)
