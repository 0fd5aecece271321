"""Connections of Django by SQLAlchemy's names, for an outbox and an inbox, and engines of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from attrs import field, frozen
from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql import psycopg2
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.expression import TextClause

from headrace.sql import dialects

_dialect: Any = psycopg2.dialect
PYFORMAT = _dialect()  # Django's cursors take `%(name)s` for every database
COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
# the option of an engine that bounds the age of a relay's session, in seconds
MAX_AGE = "headrace_max_age"


@frozen
class Dialect:
    """The kind of a database, by the name that both Django and SQLAlchemy give it."""

    name: str


@frozen
class Answer:
    rowcount: int
    rows: list[Any]

    def all(self) -> list[Any]:
        return self.rows


@frozen(eq=False)
class DjangoConnection:
    engine: Any
    dialect: Dialect = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "dialect", Dialect(self.engine.vendor))

    def in_transaction(self) -> bool:
        return bool(self.engine.in_atomic_block or not self.engine.get_autocommit())

    def execute(self, statement: TextClause, parameters: Mapping[str, Any]) -> Answer:
        with self.engine.cursor() as cursor:
            compiled = str(statement.compile(dialect=PYFORMAT))
            names = statement.compile(dialect=PYFORMAT).params
            cursor.execute(compiled, {name: parameters[name] for name in names})
            return Answer(cursor.rowcount, cursor.fetchall() if cursor.description else [])

    def require(self, table: str, schema: str | None = None) -> None:
        """Refuse a database without *table*, or with an older one. Raises `ConfigurationError`."""
        from headrace.sql._tables import require_table

        require_table(self, table, schema)

    def columns(self, table: str, schema: str | None = None) -> set[str]:
        """Return the columns of *table*, none without such a table. Django itself looks in the
        search path only."""
        with self.engine.cursor() as cursor:
            if schema is not None:
                cursor.execute(COLUMNS, [dialects.table_name(table, schema)])
                return {name for (name,) in cursor.fetchall()}
            if table not in self.engine.introspection.table_names(cursor):
                return set()
            return {
                column.name
                for column in self.engine.introspection.get_table_description(cursor, table)
            }


def connection_of(given: Any) -> DjangoConnection | None:
    """Return a connection of Django by the connection, the proxy of a thread's, or the alias.
    Return `None` for another.
    """
    if "django.db" not in sys.modules and not isinstance(given, str):
        return None
    db: Any = import_module("django.db")
    if isinstance(given, str):
        return DjangoConnection(db.connections[given])
    if isinstance(given, import_module("django.utils.connection").ConnectionProxy):
        return DjangoConnection(db.connections[given.alias])
    wrapper: Any = import_module("django.db.backends.base.base").BaseDatabaseWrapper
    return DjangoConnection(given) if isinstance(given, wrapper) else None


@cache
def engine_of(alias: str) -> Engine:
    """Return the engine, without a pool, for the database of Django with this *alias*. Raises
    `ConfigurationError`.

    Each session is made as Django makes its own, from the settings of that moment, with its role
    and its signal.
    """
    db: Any = import_module("django.db")
    wrapper = db.connections[alias]
    dialects.require_dialect(wrapper.vendor)
    driver = f"+{wrapper.Database.__name__}" if wrapper.vendor == "postgresql" else ""
    engine = create_engine(
        f"{wrapper.vendor}{driver}://", creator=lambda: _session_of(alias), poolclass=NullPool
    )
    return engine.execution_options(**{MAX_AGE: wrapper.settings_dict["CONN_MAX_AGE"]})


def _session_of(alias: str) -> Any:
    db: Any = import_module("django.db")
    used = db.connections[alias]
    options = {
        name: value for name, value in used.settings_dict["OPTIONS"].items() if name != "pool"
    }
    wrapper = type(used)({**used.settings_dict, "OPTIONS": options}, alias)
    wrapper.connect()
    wrapper.set_autocommit(False)
    connection = wrapper.connection
    if wrapper.vendor == "postgresql":
        connection.cursor_factory = getattr(wrapper.Database, "Cursor", None)  # not Django's own
    return connection
