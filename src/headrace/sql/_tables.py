"""The SQL of the tables of `headrace.sql` in each dialect, and the check that a database has
them."""

from __future__ import annotations

import inspect
import math
import time
from functools import cache
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy
from sqlalchemy import bindparam
from sqlalchemy.engine import Connection
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.sql.expression import TextClause

from headrace.errors import ConfigurationError
from headrace.platform import log_event
from headrace.sql import dialects
from headrace.sql.connections import MAX_AGE, DjangoConnection

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
OF = "namespace = :namespace AND queue = :queue"  # `{of}`: rows of one queue
# `{lock}`: rows that are read are the reader's
LOCKS = {"postgresql": "FOR UPDATE SKIP LOCKED", "sqlite": ""}
# of PostgreSQL's notifications: a transaction with rows notifies as it commits
CHANNEL = "headrace_outbox"
# seconds within which a relay hears its own notification, or is taken to be behind a pooler
TEST_S = 2.0
LISTEN = f"LISTEN {CHANNEL}"
NOTIFY = sqlalchemy.text("SELECT pg_notify(:channel, :wake)")
_KEEPING: set[Any] = set()  # the function that keeps them from Alembic, once it is registered
# the tables that the databases surely have
_FOUND: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def tables(dialect: str, schema: str | None = None) -> str:
    """Return the SQL that creates the tables, as one page for a migration of yours.

    *dialect*: `postgresql` or `sqlite`. *schema*: the schema of PostgreSQL, which the SQL creates
    if it is not there. Without it, the tables go to the first of the search path. Raises
    `ConfigurationError` for another dialect, and for a schema of SQLite.
    """
    return dialects.page(dialect, schema)


def create_tables(connection: Any, schema: str | None = None) -> None:
    """Create the tables in the transaction of *connection*, or of `alembic.op` in a revision of
    Alembic.

    *schema*: as of `tables`. Under asyncio, call `await connection.run_sync(create_tables)`. Raises
    an error of SQLAlchemy if one of them exists.
    """
    for one in dialects.statements(_dialect_of(connection), schema):
        connection.execute(sqlalchemy.text(one))


def drop_tables(connection: Any, schema: str | None = None) -> None:
    """Drop the tables, with their rows, as in the `downgrade` of a revision. The arguments are as
    of `create_tables`.
    """
    dialects.require_dialect(_dialect_of(connection), dialects.schema_name(schema))
    for one in dialects.drops(schema):
        connection.execute(sqlalchemy.text(one))


@cache
def statement(source: str, dialect: str, schema: str | None, *lists: str) -> TextClause:
    """Return a statement. *source* names the tables by `{outbox}` and `{inbox}`, the database's
    clock by `{now}`.

    *lists*: parameters that are lists. Raises `ConfigurationError` for a dialect without a page,
    and for a schema of SQLite.
    """
    dialects.require_dialect(dialect, schema)
    names = {
        table.removeprefix("headrace_"): dialects.table_name(table, schema) for table in COLUMNS
    }
    made = sqlalchemy.text(source.format(**names, of=OF, now=NOW_MS[dialect], lock=LOCKS[dialect]))
    binds: list[Any] = [bindparam(name, expanding=True) for name in lists]
    return made.bindparams(*binds)


def _dialect_of(connection: Any) -> str:
    own = connection if isinstance(connection, Connection) else connection.get_context()
    name: str = own.dialect.name
    return name


def keep_tables() -> None:
    """Let `alembic check` and `--autogenerate` leave the tables alone. No metadata has them, so
    they would be dropped.

    Call it in a revision, beside its functions, because Alembic loads these before it compares.
    """
    compare: Any = import_module("alembic.autogenerate")
    if _keep in _KEEPING:
        return
    _KEEPING.add(_keep)
    register = compare.comparators.dispatch_for
    # comparators have priorities since Alembic 1.18; before, the last one comes last
    later = (
        {"priority": import_module("alembic.util").DispatchPriority.LAST}
        if "priority" in inspect.signature(register).parameters
        else {}
    )
    register("schema", **later)(_keep)


def _keep(_context: Any, upgrade: Any, _schemas: Any) -> None:
    upgrade.ops[:] = [one for one in upgrade.ops if getattr(one, "table_name", None) not in COLUMNS]


def tell_not_told(name: str) -> None:
    words = (
        "the database does not tell the relay of queue %s of commits, so it looks for rows often: "
    )
    log_event(
        "relay_not_told", f"{words}behind a pooler, give it a URL of the database itself", name
    )


class BaseSession:
    # of a relay, in either colour
    def __init__(self, engine: Any, name: str, held: Any = None, driver: Any = None) -> None:
        self._engine = engine
        self._held = held
        its = engine.dialect
        # older drivers lose notifications that come during a statement
        listens = its.driver == "psycopg" and tuple(its.psycopg_version) >= (3, 2, 4)
        self._driver: Any = driver if listens else None
        self._name = name
        self.told = False  # whether it is told of commits
        most = engine.get_execution_options().get(MAX_AGE)
        self._old = time.monotonic() + most if most else math.inf

    def is_old(self) -> bool:
        return time.monotonic() >= self._old


def wake_of(namespace: str, queue: str) -> str:
    return f"{namespace} {queue}"


def require_table(
    connection: Connection | DjangoConnection, table: str, schema: str | None = None
) -> None:
    """Refuse a database without *table*, or with an older one. Each engine is asked until it has
    the table."""
    found = _FOUND.setdefault(connection.engine, set())
    name = dialects.table_name(table, schema)
    if name in found:
        return
    page = f"headrace.sql.tables({connection.dialect.name!r}{'' if schema is None else f', {schema!r}'})"
    columns = _columns(connection, table, schema)
    if not columns:
        raise ConfigurationError(
            f"this database has no table {name}: create it with the SQL of {page}"
        )
    if missing := COLUMNS[table] - columns:
        raise ConfigurationError(
            f"the table {name} is older than this version of headrace, it lacks {', '.join(sorted(missing))}: "
            f"bring it to version {VERSION}, which is shown by {page}"
        )
    found.add(name)


def _columns(connection: Connection | DjangoConnection, table: str, schema: str | None) -> set[str]:
    if isinstance(connection, DjangoConnection):
        return connection.columns(table, schema)
    try:
        return {
            column["name"] for column in sqlalchemy.inspect(connection).get_columns(table, schema)
        }
    except NoSuchTableError:
        return set()
