"""Tables in a schema of PostgreSQL, used by roles that have the rights of the page, and no
others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession

from headrace import AsyncQueue, ConfigurationError, Job, Queue
from headrace.sql import (
    AsyncRelay,
    Outbox,
    Relay,
    create_tables,
    drop_tables,
    forget,
    inbox,
    relay_once,
    relay_once_async,
    tables,
)
from headrace.sql.refused import refused, retry_refused
from tests.sql.databases import Database
from tests.support.awaiting import until
from tests.support.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "enqueue-in-a-transaction.md"
GRANTS = re.findall(r"^GRANT .+?;", PAGE.read_text("utf-8"), re.MULTILINE)
JOB = Job("17", b"", "q", {}, 1, 1.0)


@pytest.fixture
def database(postgresql_url: str) -> Iterator[Database]:
    """A database with the tables in the schema of the page, for its roles, and nowhere else."""
    made = Database("postgresql", postgresql_url, postgresql_url)

    def drop() -> None:
        made.ask("DROP SCHEMA IF EXISTS queues CASCADE")
        for table in ("headrace_outbox", "headrace_inbox"):
            made.ask(f"DROP TABLE IF EXISTS {table}")
        for role in ("shop", "relay", "worker"):
            made.ask(f"DROP ROLE IF EXISTS {role}")

    drop()
    for role in ("shop", "relay", "worker"):
        made.ask(f"CREATE ROLE {role} LOGIN")
    with made.engine().begin() as connection:
        create_tables(connection, "queues")
    for grant in GRANTS:
        made.ask(grant)
    yield made
    drop()


@pytest.fixture
def outbox(newest: Server) -> Iterator[Outbox]:
    with newest.queue("q") as queue:
        yield Outbox(queue, schema="queues")


def of(database: Database, role: str) -> Database:
    """Return the database as a role connects to it."""
    url = database.url.replace("postgres@", f"{role}@")
    return Database("postgresql", url, url)


def write(database: Database, outbox: Outbox) -> None:
    with of(database, "shop").engine().begin() as connection:
        outbox.enqueue(connection, b"one")


def move(database: Database, outbox: Outbox) -> None:
    with of(database, "relay").engine().connect() as connection:
        assert relay_once(connection, outbox) == 1


def set_aside(database: Database, outbox: Outbox) -> None:
    database.ask("UPDATE queues.headrace_outbox SET headers = '[1]'")
    with of(database, "relay").engine().connect() as connection:
        relay_once(connection, outbox)


def do_once(database: Database, _: Outbox) -> None:
    with of(database, "worker").engine().begin() as connection:
        assert inbox(connection, JOB, schema="queues")


def clean(database: Database, _: Outbox) -> None:
    with of(database, "worker").engine().begin() as connection:
        forget(connection, 3600, schema="queues")


NEEDED: dict[str, Callable[..., None]] = {  # rights, and what fails without them
    "USAGE ON SCHEMA queues FROM shop": write,
    "SELECT ON queues.headrace_outbox FROM shop": write,
    "INSERT ON queues.headrace_outbox FROM shop": write,
    "USAGE ON SCHEMA queues FROM relay": move,
    "SELECT ON queues.headrace_outbox FROM relay": move,
    "UPDATE ON queues.headrace_outbox FROM relay": set_aside,
    "DELETE ON queues.headrace_outbox FROM relay": move,
    "USAGE ON SCHEMA queues FROM worker": do_once,
    "SELECT ON queues.headrace_inbox FROM worker": do_once,
    "INSERT ON queues.headrace_inbox FROM worker": do_once,
    "DELETE ON queues.headrace_inbox FROM worker": clean,
}


def test_the_rights_of_the_page_suffice(database: Database, outbox: Outbox) -> None:
    write(database, outbox)
    move(database, outbox)
    write(database, outbox)
    set_aside(database, outbox)
    engine = of(database, "relay").engine()
    (one,) = refused(engine, outbox)
    assert "JSON object" in one.reason
    assert retry_refused(engine, outbox) == 1
    database.ask("UPDATE queues.headrace_outbox SET headers = '{}'")
    with Relay(engine, outbox):
        until(lambda: outbox.queue.counts().present == 2)
        write(database, outbox)
        until(lambda: outbox.queue.counts().present == 3)
    do_once(database, outbox)
    with of(database, "worker").engine().begin() as connection:
        assert not inbox(connection, JOB, schema="queues")
    clean(database, outbox)


@pytest.mark.parametrize("right", NEEDED)
def test_each_right_is_needed(database: Database, outbox: Outbox, right: str) -> None:
    """A row of a user without the right is not lost."""
    with of(database, "shop").engine().begin() as connection:
        outbox.enqueue(connection, b"there")
    database.ask(f"REVOKE {right}")
    with pytest.raises(ProgrammingError, match="permission denied"):
        NEEDED[right](database, outbox)
    assert database.ask("SELECT payload FROM queues.headrace_outbox") == [b"there"]


def test_for_asyncio(database: Database, outbox: Outbox, newest: Server) -> None:
    async def story() -> None:
        shop = of(database, "shop").async_engine()
        relay = of(database, "relay").async_engine()
        async with AsyncQueue("q", url=newest.url) as queue:
            own = Outbox(queue, schema="queues")
            async with AsyncSession(shop) as session, session.begin():
                await own.enqueue(session, b"one")
            async with relay.connect() as connection:
                assert await relay_once_async(connection, own) == 1
            async with AsyncRelay(relay, own):
                async with AsyncSession(shop) as session, session.begin():
                    await own.enqueue(session, b"two")
                lease = None
                for _ in range(2):
                    lease = await queue.lease(30)
                assert lease is not None
                assert lease.job.payload == b"two"
        await shop.dispose()
        await relay.dispose()

    asyncio.run(story())


def test_tables_of_two_schemas_are_two_outboxes(database: Database, outbox: Outbox) -> None:
    """Each outbox has its own rows. An existing schema needs no user with the right to create
    one."""
    database.ask("CREATE ROLE maker LOGIN")
    database.ask('CREATE SCHEMA "Others" AUTHORIZATION maker')
    try:
        engine = of(database, "maker").engine()
        with engine.begin() as connection:
            create_tables(connection, "Others")
            other = Outbox(outbox.queue, schema="Others")
            assert other.enqueue(connection, b"other", id="1").added
        with database.engine().begin() as connection:
            assert outbox.enqueue(connection, b"own", id="1").added
            with pytest.raises(ConfigurationError, match="has no table headrace_outbox"):
                Outbox(outbox.queue).enqueue(connection, b"")
        with database.engine().connect() as connection:
            assert relay_once(connection, other) == 1
            assert database.ask("SELECT payload FROM queues.headrace_outbox") == [b"own"]
        with engine.begin() as connection:
            drop_tables(connection, "Others")
        said = r"has no table \"Others\"\.headrace_inbox: create it .* headrace\.sql\.tables\('postgresql', 'Others'\)"
        with engine.begin() as connection, pytest.raises(ConfigurationError, match=said):
            inbox(connection, JOB, schema="Others")
    finally:
        with suppress(ProgrammingError):
            database.ask("DROP OWNED BY maker CASCADE")
        database.ask("DROP ROLE maker")


@pytest.mark.parametrize("name", ["", "a.b", 'a"b', "1a", "x" * 64, "a b"])
def test_a_name_that_no_schema_has(name: str) -> None:
    for use in (lambda: tables("postgresql", name), lambda: Outbox(Queue("q"), schema=name)):
        with pytest.raises(ValueError, match="schema"):
            use()


def test_sqlite_has_no_schema(tmp_path: Path, newest: Server) -> None:
    made: Any = Database("sqlite", f"sqlite:///{tmp_path}/db", "")
    said = "schema='queues' is for PostgreSQL"
    with made.engine().begin() as connection:
        connection.execute(text("SELECT 1"))
        for use in (
            lambda: create_tables(connection, "queues"),
            lambda: drop_tables(connection, "queues"),
            lambda: Outbox(Queue("q", url=newest.url), schema="queues").enqueue(connection, b""),
            lambda: inbox(connection, JOB, schema="queues"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                use()
