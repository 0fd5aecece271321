"""The tables of `headrace.sql`: their SQL in each dialect, and the check that a database has them."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy
from sqlalchemy.engine import Connection
from sqlalchemy.exc import NoSuchTableError

from headrace._sql.dialects import require_dialect
from headrace._sql.django import DjangoConnection
from headrace.errors import ConfigurationError

VERSION = 1  # of the tables: rows of a later one are for later relays
NOW_MS = {  # the clock of the database, in ms
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}
COLUMNS = {
    "headrace_outbox": {
        "position",
        "version",
        "namespace",
        "queue",
        "job_id",
        "payload",
        "headers",
        "priority",
        "job_key",
        "delay_ms",
        "due_ms",
        "written_ms",
        "refused",
    },
    "headrace_inbox": {"queue", "job_id", "enqueued_ms", "attempt", "version", "done_ms"},
}
CHANNEL = "headrace_outbox"  # of PostgreSQL's notifications: a transaction with rows notifies as it commits
LISTEN = f"LISTEN {CHANNEL}"
_FOUND: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # the tables that the databases surely have


def tables(dialect: str) -> str:
    """Return the SQL that creates the tables: one page, for a migration of yours.

    *dialect*: `postgresql` or `sqlite`. Raises `ConfigurationError` for any other.
    """
    require_dialect(dialect)
    return files("headrace._sql").joinpath(f"{dialect}.sql").read_text("utf-8")


def create_tables(connection: Connection) -> None:
    """Create the tables in the transaction of *connection*: for tests, and for programs without migrations.

    Under asyncio: `await connection.run_sync(create_tables)`. Raises an error of SQLAlchemy if one of them exists.
    """
    page = re.sub(r"--.*", "", tables(connection.dialect.name))
    for statement in filter(str.strip, page.split(";\n")):
        connection.exec_driver_sql(statement)


def notifies(dialect: Any) -> bool:
    """Tell whether the database, by its driver, tells of commits."""
    return dialect.driver == "psycopg" and tuple(dialect.psycopg_version) >= (3, 2)


def wake_of(namespace: str, queue: str) -> str:
    """Return the text of the notification that a queue has new rows."""
    return f"{namespace} {queue}"


def require_table(connection: Connection | DjangoConnection, table: str) -> None:
    """Refuse a database without *table*, or with an older one. Each engine is asked until it has the table."""
    found = _FOUND.setdefault(connection.engine, set())
    if table in found:
        return
    page = f"headrace.sql.tables({connection.dialect.name!r})"
    columns = _columns(connection, table)
    if not columns:
        raise ConfigurationError(f"this database has no table {table}: create it with the SQL of {page}")
    if missing := COLUMNS[table] - columns:
        raise ConfigurationError(
            f"the table {table} is older than this version of headrace, it lacks {', '.join(sorted(missing))}: "
            f"bring it to version {VERSION}, which is shown by {page}"
        )
    found.add(table)


def _columns(connection: Connection | DjangoConnection, table: str) -> set[str]:
    if isinstance(connection, DjangoConnection):
        return connection.columns(table)
    try:
        return {column["name"] for column in sqlalchemy.inspect(connection).get_columns(table)}
    except NoSuchTableError:
        return set()
