"""The names of `headrace.sql`, which need SQLAlchemy."""

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

Outbox.relays = Relay, AsyncRelay
for _name in __all__:  # where users find them: in reprs, pickles and pydoc
    globals()[_name].__module__ = "headrace.sql"
