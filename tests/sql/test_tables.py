"""Tables: made by a migration, and limits of theirs; relays of two versions of them; databases that are not known."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.orm import Session

from headrace import ConfigurationError, Queue
from headrace._sql import batch
from headrace.sql import Outbox, relay_once
from tests.sql.databases import Database
from tests.support.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "enqueue-in-a-transaction.md"


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue[bytes]]:
    """A queue."""
    with newest.queue("q") as queue:
        yield queue


def moved(database: Database, outbox: Outbox) -> int:
    """Move all rows; return how many."""
    with database.engine().connect() as connection:
        return sum(iter(lambda: relay_once(connection, outbox), 0))


def test_the_page_s_revision_of_alembic(database: Database, queue: Queue[bytes]) -> None:
    code = next(part for part in PAGE.read_text("utf-8").split("```") if "def upgrade" in part).removeprefix("py\n")
    revision: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), revision)
    with database.engine().begin() as connection, Operations.context(MigrationContext.configure(connection)):
        revision["downgrade"]()
        revision["upgrade"]()
    with database.engine().begin() as connection:
        assert Outbox(queue).enqueue(connection, b"one").added
    assert moved(database, Outbox(queue)) == 1


def test_a_payload_over_the_limit_of_the_column(database: Database, queue: Queue[bytes]) -> None:
    """It is refused as it is written; the transaction may go on without it, and others are not touched."""
    outbox = Outbox(queue)
    if database.dialect == "postgresql":
        database.ask("ALTER TABLE headrace_outbox ADD CHECK (octet_length(payload) < 1000)")
    with Session(database.engine()) as session, session.begin():
        if database.dialect == "sqlite":
            driver: Any = session.connection().connection.driver_connection
            driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
        outbox.enqueue(session, b"small")
        with pytest.raises(ValueError, match="payload of 2,000 bytes"), session.begin_nested():
            outbox.enqueue(session, b"x" * 2000)
    assert moved(database, outbox) == 1


def test_relays_of_two_versions(database: Database, queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each moves the rows that it knows; the jobs of a key stay in their order."""
    outbox = Outbox(queue)
    with database.engine().begin() as connection:
        for payload, key in ((b"a1", "a"), (b"a2", "a"), (b"free", None), (b"a3", "a")):
            outbox.enqueue(connection, payload, key=key)
    database.ask("UPDATE headrace_outbox SET version = 2 WHERE payload = (SELECT payload FROM headrace_outbox"
                 " ORDER BY position LIMIT 1 OFFSET 1)")  # fmt: skip
    assert moved(database, outbox) == 2
    assert len(database.rows()) == 2
    monkeypatch.setattr(batch, "VERSION", 2)
    assert moved(database, outbox) == 2
    found = []
    while (lease := queue.lease()) is not None:
        found.append(lease.job.payload)
        lease.complete()
    assert found == [b"a1", b"free", b"a2", b"a3"]


def test_a_database_that_is_not_known(database: Database, queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = database.engine()
    monkeypatch.setattr(engine.dialect, "name", "mysql")
    with engine.connect() as connection:
        transaction = connection.begin()
        with pytest.raises(ConfigurationError, match="knows postgresql and sqlite; this is a database of 'mysql'"):
            Outbox(queue).enqueue(connection, b"")
        transaction.rollback()
        with pytest.raises(ConfigurationError, match="'mysql'"):
            relay_once(connection, Outbox(queue))
