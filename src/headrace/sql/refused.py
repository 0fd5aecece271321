"""The rows of an outbox that were set aside, with their reasons, and another try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen
from sqlalchemy.engine import Engine

from headrace.platform import InnerQueue
from headrace.sql._tables import CHANNEL, NOTIFY, require_table, statement, wake_of

READ = """
    SELECT position, %s AS job_id, written_ms, refused FROM {outbox}
    WHERE {of} AND refused IS NOT NULL AND position > :after
    ORDER BY position LIMIT :page
"""
# SQLite's driver can't read each text
NAMES = {"postgresql": "job_id", "sqlite": "CAST(job_id AS BLOB)"}
RETRY = """
    UPDATE {outbox} SET refused = NULL WHERE {of} AND refused IS NOT NULL
"""


@frozen
class Refused:
    """A row that was set aside, with its `queue` and `position`, the id of its job, and the
    `reason`.

    It was `written` so many seconds after the epoch.
    """

    queue: str
    position: int
    job_id: str
    written: float
    reason: str


def _of(outbox: Any) -> dict[str, str]:
    return {"namespace": InnerQueue(outbox.queue).namespace, "queue": outbox.queue.name}


def refused(engine: Engine, outbox: Any) -> Iterator[Refused]:
    """Yield the rows of an outbox that were set aside, the oldest first."""
    after = -1
    with engine.connect() as connection:
        require_table(connection, "headrace_outbox", outbox.schema)
        dialect = connection.dialect.name
        reading = statement(READ % NAMES[dialect], dialect, outbox.schema)
        while rows := connection.execute(
            reading,
            {**_of(outbox), "after": after, "page": 500},  # rows that are read at once
        ).all():
            for after, name, written, reason in rows:
                when = written if isinstance(written, (int, float)) else 0
                known = (
                    name
                    if isinstance(name, str)
                    else bytes(name).decode("utf-8", "backslashreplace")
                )
                yield Refused(outbox.queue.name, after, known, when / 1000, reason)


def retry_refused(engine: Engine, outbox: Any) -> int:
    """Let a relay try the rows again that were set aside, and return how many. Their reasons are
    forgotten.
    """
    names = _of(outbox)
    with engine.begin() as connection:
        require_table(connection, "headrace_outbox", outbox.schema)
        retrying = statement(RETRY, connection.dialect.name, outbox.schema)
        number: int = connection.execute(retrying, names).rowcount
        if connection.dialect.name == "postgresql":
            connection.execute(NOTIFY, {"channel": CHANNEL, "wake": wake_of(**names)})
    return number
