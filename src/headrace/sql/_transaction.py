"""The transaction of a session or connection, of both colours. SQLAlchemy runs the one
implementation for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from headrace.errors import ConfigurationError
from headrace.sql._tables import require_table
from headrace.sql.connections import DjangoConnection, connection_of
from headrace.sql.dialects import require_dialect

R = TypeVar("R")


class DjangoLike(Protocol):
    alias: str
    in_atomic_block: bool


Sync: TypeAlias = "Session | scoped_session[Any] | Connection | DjangoLike | str"
Async: TypeAlias = "AsyncSession | async_scoped_session[Any] | AsyncConnection"


def within(
    session: Sync | Async,
    table: str,
    schema: str | None,
    function: Callable[[Connection | DjangoConnection], R],
) -> R | Awaitable[R]:
    """Call *function* with the connection of *session*, which is in a transaction, and has *table*
    in *schema*.

    For a session of asyncio the answer is an awaitable.
    """
    django = connection_of(session)
    if django is not None:
        _require_transaction(django.in_transaction(), "transaction.atomic()")
        require_dialect(django.dialect.name, schema)
        require_table(django, table, schema)
        return function(django)
    own: Any = session() if isinstance(session, (scoped_session, async_scoped_session)) else session
    if isinstance(own, (AsyncSession, AsyncConnection)):
        return own.run_sync(lambda found: function(_connection_of(found, table, schema)))
    return function(_connection_of(own, table, schema))


def _connection_of(session: Session | Connection, table: str, schema: str | None) -> Connection:
    """Return the connection of *session*. Raises `ConfigurationError` unless its next statement is
    in a transaction.

    The first statement begins one, unless the session was told not to.
    """
    if not isinstance(session, (Session, Connection)):
        raise TypeError(
            f"give a session or a connection of SQLAlchemy, or of Django, not a {type(session).__name__}"
        )
    if isinstance(session, Session):
        _require_transaction(session.autobegin or session.in_transaction(), "session.begin()")
    connection = session.connection() if isinstance(session, Session) else session
    require_dialect(connection.dialect.name, schema)
    if _commits_each(connection):
        raise ConfigurationError(
            "this connection commits each statement by itself (AUTOCOMMIT), so the row would not be in the transaction "
            "of your data: use an engine with another isolation level"
        )
    require_table(connection, table, schema)
    return connection


def _require_transaction(there: bool, begin: str) -> None:
    if not there:
        raise ConfigurationError(
            f"this session is in no transaction, so nothing would commit the row: write it in `with {begin}:`"
        )


def _commits_each(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name != "sqlite":
        return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))
    begins = driver.isolation_level is not None and getattr(driver, "autocommit", None) is not True
    return not begins and not driver.in_transaction
