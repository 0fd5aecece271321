"""The tables of `headrace.sql`: their SQL in each dialect, and the check that a database has them."""

from __future__ import annotations

import re
from importlib.resources import files
from weakref import WeakKeyDictionary

import sqlalchemy
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import NoSuchTableError

from headrace.errors import ConfigurationError

VERSION = 1  # of the tables: rows of a later one are for later relays
DIALECTS = ("postgresql", "sqlite")
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
_FOUND: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()  # the tables that the databases surely have


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


def require_dialect(dialect: str) -> None:
    """Refuse a database for which there is no page."""
    if dialect not in DIALECTS:
        raise ConfigurationError(f"headrace.sql knows {' and '.join(DIALECTS)}; this is a database of {dialect!r}")


def require_table(connection: Connection, table: str) -> None:
    """Refuse a database without *table*, or with an older one. Each engine is asked until it has the table."""
    found = _FOUND.setdefault(connection.engine, set())
    if table in found:
        return
    page = f"headrace.sql.tables({connection.dialect.name!r})"
    try:
        columns = {column["name"] for column in sqlalchemy.inspect(connection).get_columns(table)}
    except NoSuchTableError:
        raise ConfigurationError(f"this database has no table {table}: create it with the SQL of {page}") from None
    if missing := COLUMNS[table] - columns:
        raise ConfigurationError(
            f"the table {table} is older than this version of headrace, it lacks {', '.join(sorted(missing))}: "
            f"bring it to version {VERSION}, which is shown by {page}"
        )
    found.add(table)
