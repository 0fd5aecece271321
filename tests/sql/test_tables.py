"""Tables. A migration makes them, and they have limits. Relays may have two versions, and a
database may be unknown."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy.orm import Session

from headrace import ConfigurationError, Queue
from headrace.sql import Outbox, _batch as batch, relay_once
from tests.sql.databases import Database
from tests.support.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "enqueue-in-a-transaction.md"


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue[bytes]]:
    with newest.queue("q") as queue:
        yield queue


def moved(database: Database, outbox: Outbox) -> int:
    """Move all rows and return their number."""
    with database.engine().connect() as connection:
        return sum(iter(lambda: relay_once(connection, outbox), 0))


ENVIRONMENT = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, pool
own = MetaData()
Table("customers", own, Column("id", Integer, primary_key=True))
url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url, target_metadata=own, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        context.configure(connection=connection, target_metadata=own)
        with context.begin_transaction():
            context.run_migrations()
"""


def test_the_page_s_revision_of_alembic(
    database: Database, queue: Queue[bytes], tmp_path: Path
) -> None:
    """The revision works as SQL too. Alembic's check then finds no difference, and its own revision
    drops no table."""
    code = next(
        part for part in PAGE.read_text("utf-8").split("```") if "def upgrade" in part
    ).removeprefix("py\n")
    folder, printed = tmp_path / "revisions", io.StringIO()
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(ENVIRONMENT)
    (folder / "script.py.mako").write_text(
        "def upgrade():\n    ${upgrades}\nrevision = '2'\ndown_revision = '1'\n"
    )
    (folder / "versions" / "1_tables.py").write_text(
        f"{code}\nrevision, down_revision = '1', None\n"
    )
    config = Config(output_buffer=printed)
    config.set_main_option("script_location", str(folder))
    config.set_main_option("sqlalchemy.url", database.url)
    for table in ("headrace_outbox", "headrace_inbox", "orders"):
        database.ask(f"DROP TABLE {table}")
    command.upgrade(config, "head", sql=True)
    assert printed.getvalue().count("CREATE TABLE headrace_") == 2
    command.upgrade(config, "head")
    with database.engine().begin() as connection:
        assert Outbox(queue).enqueue(connection, b"one").added
    database.ask("CREATE TABLE customers (id INTEGER NOT NULL PRIMARY KEY)")
    try:
        command.check(config)
        database.ask("DROP TABLE customers")
        written: Any = command.revision(config, autogenerate=True, rev_id="2")
        text = Path(written.path).read_text()
        assert "create_table('customers'" in text
        assert "headrace" not in text
        Path(written.path).unlink()
        assert moved(database, Outbox(queue)) == 1
        command.downgrade(config, "base")
        with (
            database.engine().begin() as connection,
            pytest.raises(ConfigurationError, match="no table"),
        ):
            Outbox(Queue("q")).enqueue(connection, b"")
    finally:
        database.ask("DROP TABLE IF EXISTS customers")
        database.ask("DROP TABLE alembic_version")


def test_a_payload_over_the_limit_of_the_column(database: Database, queue: Queue[bytes]) -> None:
    """The write is refused. The transaction may go on without it, and other rows are not
    affected."""
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


def test_relays_of_two_versions(
    database: Database, queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each relay moves the rows of its version. The jobs of a key stay in order."""
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


def test_a_database_that_is_not_known(
    database: Database, queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.engine()
    monkeypatch.setattr(engine.dialect, "name", "mysql")
    with engine.connect() as connection:
        transaction = connection.begin()
        with pytest.raises(
            ConfigurationError, match="knows postgresql and sqlite; this is a database of 'mysql'"
        ):
            Outbox(queue).enqueue(connection, b"")
        transaction.rollback()
        with pytest.raises(ConfigurationError, match="'mysql'"):
            relay_once(connection, Outbox(queue))
