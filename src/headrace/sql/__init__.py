"""Jobs in the transaction of your data, and effects that happen once, with SQLAlchemy 2. Extra
`sql`.

    outbox = Outbox(emails)  # a Queue, or Tasks
    with Session.begin() as session:
        session.add(order)
        outbox.enqueue(session, b"ada@example.org")  # a job if the transaction is committed

    with Relay(engine, outbox):  # moves committed rows to the queue
        worker.run()

It works in PostgreSQL and SQLite, and with sessions and connections of both colours. `tables`
returns the SQL that creates the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import requiring

if TYPE_CHECKING:
    from headrace.sql._aio.relay import AsyncRelay, relay_once_async
    from headrace.sql._inbox import forget, inbox
    from headrace.sql._outbox import Outbox
    from headrace.sql._sync.relay import Relay, relay_once
    from headrace.sql._tables import create_tables, drop_tables, keep_tables, tables

__all__ = [
    "AsyncRelay",
    "Outbox",
    "Relay",
    "create_tables",
    "drop_tables",
    "forget",
    "inbox",
    "keep_tables",
    "relay_once",
    "relay_once_async",
    "tables",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that Django reads the pages of SQL without
    SQLAlchemy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with requiring("headrace.sql", "sql", "sqlalchemy"):
        from headrace.sql import _names as names
    found = globals()[name] = getattr(names, name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
