"""Jobs in the transaction of your data, and effects that happen once, with SQLAlchemy 2. Extra `sql`.

    outbox = Outbox(emails)  # a Queue, or Tasks
    with Session.begin() as session:
        session.add(order)
        outbox.enqueue(session, b"ada@example.org")  # a job if and only if the transaction is committed

    with Relay(engine, outbox):  # moves committed rows to the queue
        worker.run()

In PostgreSQL and SQLite; sessions and connections of both colours. `tables` returns the SQL that creates the tables.
"""

from headrace.errors import requiring

with requiring("headrace.sql", "sql", "sqlalchemy"):
    from headrace._sql.aio.relay import AsyncRelay, relay_once_async
    from headrace._sql.inbox import forget, inbox
    from headrace._sql.outbox import Outbox
    from headrace._sql.sync.relay import Relay, relay_once
    from headrace._sql.tables import create_tables, drop_tables, keep_tables, tables

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

Outbox.relays = Relay, AsyncRelay
for _name in __all__:  # where users find them: in reprs, pickles and pydoc
    globals()[_name].__module__ = __name__
