"""Connections of Django: their parts that an outbox and an inbox use, by SQLAlchemy's names, and engines of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from attrs import field, frozen
from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql import psycopg2
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.expression import TextClause

from headrace._sql import dialects

_dialect: Any = psycopg2.dialect
PYFORMAT = _dialect()  # Django's cursors take `%(name)s` for every database
OF_CURSORS = {"context", "cursor_factory", "prepare_threshold"}  # parameters that are for Django's own cursors


@frozen
class Dialect:
    """The kind of a database, by the name that both Django and SQLAlchemy give it."""

    name: str


@frozen
class Answer:
    """The answer to a statement."""

    rowcount: int
    rows: list[Any]

    def all(self) -> list[Any]:
        """Return the rows."""
        return self.rows


@frozen(eq=False)
class DjangoConnection:
    """A connection of Django."""

    engine: Any
    dialect: Dialect = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "dialect", Dialect(self.engine.vendor))

    def in_transaction(self) -> bool:
        """Tell whether the next statement is in a transaction."""
        return bool(self.engine.in_atomic_block or not self.engine.get_autocommit())

    def execute(self, statement: TextClause, parameters: Mapping[str, Any]) -> Answer:
        """Run a statement."""
        with self.engine.cursor() as cursor:
            compiled = str(statement.compile(dialect=PYFORMAT))
            names = statement.compile(dialect=PYFORMAT).params
            cursor.execute(compiled, {name: parameters[name] for name in names})
            return Answer(cursor.rowcount, cursor.fetchall() if cursor.description else [])

    def columns(self, table: str) -> set[str]:
        """Return the columns of *table*; none if there is no such table."""
        with self.engine.cursor() as cursor:
            if table not in self.engine.introspection.table_names(cursor):
                return set()
            return {column.name for column in self.engine.introspection.get_table_description(cursor, table)}


def connection_of(given: Any) -> DjangoConnection | None:
    """Return a connection of Django by the connection, the proxy of a thread's, or the alias; `None` for another."""
    if "django.db" not in sys.modules and not isinstance(given, str):
        return None
    db: Any = import_module("django.db")
    if isinstance(given, str):
        return DjangoConnection(db.connections[given])
    if isinstance(given, import_module("django.utils.connection").ConnectionProxy):
        return DjangoConnection(db.connections[given.alias])
    wrapper: Any = import_module("django.db.backends.base.base").BaseDatabaseWrapper
    return DjangoConnection(given) if isinstance(given, wrapper) else None


def engine_of(alias: str) -> Engine:
    """Make an engine, without a pool, for the database of Django with this *alias*. Raises `ConfigurationError`."""
    db: Any = import_module("django.db")
    wrapper = db.connections[alias]
    dialects.require_dialect(wrapper.vendor)
    given = {name: value for name, value in wrapper.get_connection_params().items() if name not in OF_CURSORS}
    driver = f"+{wrapper.Database.__name__}" if wrapper.vendor == "postgresql" else ""
    connect = wrapper.Database.connect
    return create_engine(f"{wrapper.vendor}{driver}://", creator=lambda: connect(**given), poolclass=NullPool)
