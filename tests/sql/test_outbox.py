"""An outbox. Each committed row becomes a job, and a row that was rolled back does not."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from headrace import AsyncQueue, ConfigurationError, NewJob, Queue, QueueFull, Tasks
from headrace.codecs import Encrypted, JSONCodec
from headrace.errors import NotDurable
from headrace.sql import (
    AsyncRelay,
    Outbox,
    Relay,
    create_tables,
    relay_once,
    relay_once_async,
    tables,
)
from tests.sql.databases import Database, emptied
from tests.sql.relays import relay_until_killed
from tests.support.awaiting import PATIENCE, until
from tests.support.processes import CONTEXT
from tests.support.proxy import Proxy
from tests.support.servers import Server

ORDER = text("INSERT INTO orders VALUES (:name)")


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue[bytes]]:
    """A queue with levels."""
    with newest.queue("q", priorities=3) as queue:
        yield queue


def relay(database: Database, outbox: Outbox) -> int:
    """Move all rows and return their number."""
    with database.engine().connect() as connection:
        return sum(iter(lambda: relay_once(connection, outbox), 0))


def payloads(
    queue: Any, ends: Callable[[Any], object] = lambda lease: lease.complete()
) -> list[Any]:
    """Lease all jobs and end each."""
    found = []
    while (lease := queue.lease()) is not None:
        found.append(lease.job.payload)
        assert ends(lease) is not False
    return found


def test_a_committed_row_is_a_job(database: Database, queue: Queue[bytes]) -> None:
    outbox = Outbox(queue)
    with Session(database.engine()) as session, session.begin():
        session.execute(ORDER, {"name": "17"})
        receipt = outbox.enqueue(
            session, b"ada", id="order-17", headers={"a": "ä"}, key="k", priority=2
        )
        assert (receipt.id, receipt.added) == ("order-17", True)
        assert not outbox.enqueue(session, b"eve", id="order-17").added  # left as it is
    assert queue.counts().present == 0
    assert relay(database, outbox) == 1
    assert database.rows() == []
    lease = queue.lease()
    assert lease is not None
    job = lease.job
    assert (job.id, job.payload, job.key, job.priority) == ("order-17", b"ada", "k", 2)
    assert job.headers["a"] == "ä"
    lease.complete(b"sent")
    assert receipt.result(timeout=PATIENCE) == b"sent"


def test_a_cost_goes_through_the_row(database: Database, queue: Queue[bytes]) -> None:
    outbox = Outbox(queue)
    with Session(database.engine()) as session, session.begin():
        outbox.enqueue(session, NewJob(b"dear", cost=4.0))
    assert relay(database, outbox) == 1
    lease = queue.lease()
    assert lease is not None
    assert lease.job.cost == 4.0


def test_a_row_that_is_rolled_back_is_none(database: Database, queue: Queue[bytes]) -> None:
    outbox = Outbox(queue)
    with Session(database.engine()) as session:
        session.execute(ORDER, {"name": "17"})
        assert outbox.enqueue(session, b"ada").added
        session.rollback()
    with database.engine().begin() as connection:
        outbox.enqueue(connection, b"one")
        savepoint = connection.begin_nested()
        outbox.enqueue(connection, b"two")
        savepoint.rollback()
        outbox.enqueue(connection, b"three")
    assert relay(database, outbox) == 2
    assert payloads(queue) == [b"one", b"three"]
    assert database.ask("SELECT name FROM orders") == []


def test_both_colours_are_one_implementation(database: Database, newest: Server) -> None:
    async def story() -> None:
        engine = database.async_engine()
        async with AsyncQueue("q", url=newest.url) as queue:
            outbox = Outbox(queue)
            async with AsyncSession(engine) as session, session.begin():
                receipt = await outbox.enqueue(session, b"one")
            async with engine.begin() as connection:
                await outbox.enqueue(connection, b"two")
            async with engine.connect() as connection:
                assert await relay_once_async(connection, outbox) == 2
                assert await relay_once_async(connection, outbox) == 0
                with pytest.raises(ConfigurationError, match="of its colour"):
                    await connection.run_sync(relay_once, outbox)
            lease = await queue.lease()
            assert lease is not None
            assert lease.job.id == receipt.id
            assert (await queue.counts()).present == 2
        await engine.dispose()

    asyncio.run(story())


def test_scoped_sessions(database: Database, queue: Queue[bytes]) -> None:
    outbox, sessions = Outbox(queue), scoped_session(sessionmaker(database.engine()))
    with sessions.begin():
        outbox.enqueue(sessions, b"one")
    sessions.remove()
    assert relay(database, outbox) == 1


def test_calls_of_tasks(database: Database, newest: Server) -> None:
    with Tasks("q", url=newest.url) as tasks:

        @tasks.task
        def double(n: int) -> int:
            return 2 * n

        outbox = Outbox(tasks)
        with Session(database.engine()) as session, session.begin():
            receipt = outbox.enqueue(session, double.new(21))
            with pytest.raises(TypeError, match="task"):
                outbox.enqueue(session, b"21")
        assert relay(database, outbox) == 1
        lease = tasks.queue.lease()
        assert lease is not None
        lease.complete(b"42")
        assert receipt.result(timeout=PATIENCE) == 42


@pytest.mark.parametrize("codec", [JSONCodec(dict), Encrypted(JSONCodec(), {"a": bytes(32)})])
def test_payloads_are_encoded_as_they_are_written(
    database: Database, newest: Server, codec: Any
) -> None:
    with newest.queue("q", codec=codec) as queue:
        outbox = Outbox(queue)
        with database.engine().begin() as connection:
            outbox.enqueue(connection, {"n": 1}, id="bound to this")
            outbox.enqueue(connection, NewJob({"n": 2}))
            with pytest.raises((TypeError, ValueError)):
                outbox.enqueue(connection, object())
        assert relay(database, outbox) == 2
        assert payloads(queue) == [{"n": 1}, {"n": 2}]


def test_a_delay_counts_from_the_row(database: Database, queue: Queue[bytes]) -> None:
    outbox = Outbox(queue)
    with database.engine().begin() as connection:
        late = outbox.enqueue(connection, b"late", delay=3600)
        due = outbox.enqueue(connection, b"due", delay=60)
    database.ask("UPDATE headrace_outbox SET written_ms = written_ms - 600000")
    assert relay(database, outbox) == 2
    states = {name: queue.find(name) for name in (late.id, due.id)}
    assert {name: state and state.state for name, state in states.items()} == {
        late.id: "delayed",
        due.id: "waiting",
    }
    found = states[late.id]
    assert found is not None
    assert found.due is not None
    assert abs(found.due - found.job.enqueued_at - 3000) < 60


def test_the_first_statement_begins_the_transaction(
    database: Database, queue: Queue[bytes]
) -> None:
    """The session or connection begins by itself, as for any other statement. `commit()` commits
    the row."""
    engine = database.engine()
    outbox = Outbox(queue)
    with Session(engine) as session:
        for payload in (b"one", b"two"):
            assert outbox.enqueue(session, payload).added
            session.execute(ORDER, {"name": payload.decode()})
            session.commit()
        outbox.enqueue(session, b"lost")
    with engine.connect() as connection:
        outbox.enqueue(connection, b"rolled back")
        connection.rollback()
        outbox.enqueue(connection, b"three")
        connection.commit()
        outbox.enqueue(connection, b"lost")
    assert database.rows("payload") == [b"one", b"two", b"three"]
    assert database.ask("SELECT name FROM orders") == ["one", "two"]


def test_the_first_statement_begins_the_transaction_for_asyncio(
    database: Database, queue: Queue[bytes]
) -> None:
    outbox = Outbox(queue)

    async def story() -> None:
        engine = database.async_engine()
        async with AsyncSession(engine) as session:
            assert (await outbox.enqueue(session, b"one")).added
            await session.commit()
            await outbox.enqueue(session, b"lost")
        async with engine.connect() as connection:
            await outbox.enqueue(connection, b"two")
            await connection.commit()
            await outbox.enqueue(connection, b"lost")
        await engine.dispose()

    asyncio.run(story())
    assert database.rows("payload") == [b"one", b"two"]


def test_sessions_without_a_transaction_are_refused(
    database: Database, queue: Queue[bytes]
) -> None:
    outbox = Outbox(queue)
    with (
        Session(database.engine(), autobegin=False) as session,
        pytest.raises(ConfigurationError, match="in no transaction"),
    ):
        outbox.enqueue(session, b"")
    with (
        database.engine(isolation_level="AUTOCOMMIT").begin() as connection,
        pytest.raises(ConfigurationError, match="AUTOCOMMIT"),
    ):
        outbox.enqueue(connection, b"")
    with pytest.raises(TypeError, match="session or a connection"):
        outbox.enqueue(database.engine(), b"")
    with (
        database.engine().begin() as connection,
        pytest.raises(ConfigurationError, match="in none"),
    ):
        relay_once(connection, outbox)
    assert database.rows() == []


def test_tables_that_are_missing_or_older_are_refused(
    database: Database, queue: Queue[bytes]
) -> None:
    outbox, engine = Outbox(queue), database.engine()
    database.ask("ALTER TABLE headrace_outbox DROP COLUMN headers")
    with (
        engine.begin() as connection,
        pytest.raises(ConfigurationError, match=r"older .* lacks headers"),
    ):
        outbox.enqueue(connection, b"")
    database.ask("DROP TABLE headrace_outbox")
    with (
        engine.begin() as connection,
        pytest.raises(ConfigurationError, match="no table headrace_outbox"),
    ):
        outbox.enqueue(connection, b"")
    with (
        engine.connect() as connection,
        pytest.raises(ConfigurationError, match="no table headrace_outbox"),
    ):
        relay_once(connection, outbox)
    database.ask("DROP TABLE headrace_inbox")
    with engine.begin() as connection:
        create_tables(connection)
        assert outbox.enqueue(connection, b"").added
    with pytest.raises(ConfigurationError, match="'mysql'"):
        tables("mysql")


def test_rows_that_other_programs_write(
    database: Database, queue: Queue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """A row needs a queue and a payload. A row that can't be a job is set aside, and one of a later
    version waits."""
    outbox = Outbox(queue)
    for more, values in {
        "": "",
        ", priority": ", 7",
        ", headers": ", '{\"a\": 1}'",
        ", headers, job_id": ", 'not JSON', 'bad'",
        ", version": ", 2",
        ", namespace": ", 'another'",
    }.items():
        payload = f"CAST('x' AS {TYPES[database.dialect]})"
        database.ask(
            f"INSERT INTO headrace_outbox (queue, payload{more}) VALUES ('q', {payload}{values})"
        )
    assert relay(database, outbox) == 1
    refused = database.rows("priority, headers, version, namespace, refused")
    assert [row[-1] is not None for row in refused] == [True, True, True, False, False]
    assert "priority" in refused[0][-1]
    assert caplog.text.count("outbox_row_refused") == 3
    database.ask("UPDATE headrace_outbox SET refused = NULL, priority = 1 WHERE priority = 7")
    assert relay(database, outbox) == 1
    assert payloads(queue) == [b"x", b"x"]


TYPES = {"sqlite": "BLOB", "postgresql": "BYTEA"}


def test_rows_stay_while_the_queue_is_full(database: Database, newest: Server) -> None:
    with newest.queue("q", max_waiting=20) as queue:
        outbox = Outbox(queue)
        with database.engine().begin() as connection:
            for number in range(30):
                outbox.enqueue(connection, b"%d" % number)
        with pytest.raises(QueueFull):
            relay(database, outbox)
        assert len(database.rows()) == 10
        found = payloads(queue)
        assert relay(database, outbox) == 10
        assert found + payloads(queue) == [b"%d" % number for number in range(30)]


def test_a_sharded_queue(database: Database, newest: Server) -> None:
    with newest.queue("q", shards=3) as queue:
        outbox = Outbox(queue)
        with database.engine().begin() as connection:
            for number in range(9):
                outbox.enqueue(connection, b"%d" % number)
        assert relay(database, outbox) == 9
        assert sorted(payloads(queue)) == [b"%d" % number for number in range(9)]


def test_relays_beside_workers(database: Database, newest: Server) -> None:
    """Two relays run while rows are written. Each row becomes one job."""
    with newest.queue("q") as queue:
        outbox = Outbox(queue)
        with (
            Relay(database.engine(), outbox, poll=0.01),
            Relay(database.engine(), outbox, poll=0.01),
        ):
            for number in range(20):
                with database.engine().begin() as connection:
                    outbox.enqueue(connection, b"%d" % number)
            until(lambda: queue.counts().present == 20, "the jobs")
        assert sorted(payloads(queue), key=int) == [b"%d" % number for number in range(20)]
        assert database.rows() == []


def test_a_relay_goes_on_after_errors(
    database: Database, newest: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        engine = database.async_engine()
        async with AsyncQueue("q", url=newest.url) as queue:
            outbox = Outbox(queue)
            database.ask("ALTER TABLE headrace_outbox RENAME TO away")
            async with AsyncRelay(engine, outbox, poll=0.01):
                await asyncio.to_thread(until, lambda: "relay_failed" in caplog.text)
                database.ask("ALTER TABLE away RENAME TO headrace_outbox")
                async with engine.begin() as connection:
                    receipt = await outbox.enqueue(connection, b"one")
                lease = await queue.lease(PATIENCE)
                assert lease is not None
                assert lease.job.id == receipt.id
        await engine.dispose()

    asyncio.run(story())


def test_other_relays_skip_rows_and_keep_the_order_of_keys(
    postgresql_url: str, queue: Queue[bytes]
) -> None:
    database, outbox = (
        emptied(Database("postgresql", postgresql_url, postgresql_url)),
        Outbox(queue),
    )
    with database.engine().begin() as connection:
        for payload, key in (
            (b"a1", "a"),
            (b"b1", "b"),
            (b"a2", "a"),
            (b"free", None),
            (b"b2", "b"),
        ):
            outbox.enqueue(connection, payload, key=key)
    with database.engine().begin() as another:
        another.exec_driver_sql("SELECT 1 FROM headrace_outbox WHERE payload = 'a1' FOR UPDATE")
        assert relay(database, outbox) == 3
    assert relay(database, outbox) == 2
    assert payloads(queue) == [b"b1", b"free", b"b2", b"a1", b"a2"]


def test_an_ordered_queue_has_the_jobs_of_a_key_in_the_order_of_commits(
    postgresql_url: str, newest: Server
) -> None:
    database = emptied(Database("postgresql", postgresql_url, postgresql_url))
    with newest.queue("q", ordered=True) as queue:
        outbox = Outbox(queue)
        began = threading.Event()

        def second() -> None:
            with database.engine().begin() as connection:
                began.set()
                outbox.enqueue(connection, b"2", key="k")

        thread = threading.Thread(target=second)
        with database.engine().begin() as connection:
            outbox.enqueue(connection, b"1", key="k")
            outbox.enqueue(connection, b"other", key="another")
            thread.start()
            until(
                lambda: (
                    "advisory"
                    in database.ask("SELECT coalesce(wait_event, '') FROM pg_stat_activity")
                ),
                "the other transaction",
            )
        thread.join(PATIENCE)
        assert database.rows("payload") == [b"1", b"other", b"2"]


@pytest.mark.sampled
@pytest.mark.slow
def test_connections_that_are_cut_at_every_byte(database: Database, newest: Server) -> None:
    """The relay's call is sent again, and has acted once."""
    with (
        Proxy(newest.path) as proxy,
        Queue("q", url=proxy.url) as queue,
        newest.queue("q") as other,
    ):
        outbox, sizes, rows = Outbox(queue), {"requests": 0, "replies": 0}, itertools.count()

        def once(side: str, after: int) -> None:
            wanted = [b"%d" % next(rows) for _ in range(2)]
            with database.engine().begin() as connection:
                for payload in wanted:
                    outbox.enqueue(connection, payload)
            proxy.reset() if after < 0 else proxy.cut(side, after)
            assert relay(database, outbox) == 2
            assert proxy.fired == (after >= 0)
            sizes.update(
                requests=len(proxy.requests), replies=len(proxy.replies)
            ) if after < 0 else None
            assert payloads(other) == wanted, (side, after)

        once("requests", -1)
        once("requests", -1)  # scripts are known from here on
        for side, size in list(sizes.items()):
            for after in range(0, size, 3):
                once(side, after)
        assert min(sizes.values()) > 30


def test_a_trace_goes_through_the_row(database: Database, queue: Queue[bytes]) -> None:
    outbox, parent = Outbox(queue), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    token = attach(extract({"traceparent": parent}))
    try:
        with database.engine().begin() as connection:
            outbox.enqueue(connection, b"one")
    finally:
        detach(token)
    assert relay(database, outbox) == 1
    lease = queue.lease()
    assert lease is not None
    assert lease.job.headers["traceparent"] == parent


def test_rows_stay_until_their_jobs_are_durable(database: Database, newest: Server) -> None:
    with newest.queue("q", durable="replicas:1") as queue:  # it has none
        outbox = Outbox(queue)
        with database.engine().begin() as connection:
            outbox.enqueue(connection, b"one")
        for _ in range(2):
            with pytest.raises(NotDurable):
                relay(database, outbox)
        assert len(database.rows()) == queue.counts().present == 1


@pytest.mark.sampled("database")
@pytest.mark.slow
@pytest.mark.parametrize("ends", ["completed", "dead", "cancelled"])
def test_a_relay_that_is_killed_at_any_step(
    database: Database, newest: Server, queue: Queue[bytes], ends: str
) -> None:
    """The jobs that it sent end before the next relay sends them again. Each is added once."""

    def end(lease: Any) -> object:
        if ends == "dead":
            return lease.dead_letter("never")
        if ends == "cancelled":
            return queue.cancel(lease.job.id)
        return lease.complete()

    outbox = Outbox(queue)
    rows = itertools.count()
    for at in range(50):
        wanted = [b"%d" % next(rows) for _ in range(4)]
        with database.engine().begin() as connection:
            for payload in wanted:
                outbox.enqueue(connection, payload, key="k")
        process = CONTEXT.Process(target=relay_until_killed, args=(database, newest.url, at))
        process.start()
        process.join(PATIENCE)
        code = process.exitcode
        process.close()
        found = payloads(queue, end)
        relay(database, outbox)
        found += payloads(queue, end)
        assert found == wanted, at
        assert database.rows() == []
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert 8 < at < 49
    if ends == "dead":
        assert queue.admin.redrive() == queue.counts().present > 40


@pytest.mark.parametrize("where", ["url", "nothing"])
def test_a_job_of_a_task_elsewhere(
    database: Database, newest: Server, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It is refused, unless nothing here names the relay's server."""
    for name in ("HEADRACE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    tasks = Tasks("q", "redis://127.0.0.1:1")
    job = tasks.task(name="greet")(print).new()
    outbox = Outbox(Queue("q", newest.url if where == "url" else None))
    with Session(database.engine()) as session, session.begin():
        if where == "url":
            with pytest.raises(ConfigurationError, match="its task is for another server"):
                outbox.enqueue(session, job)
        else:
            assert outbox.enqueue(session, job).added
    assert len(database.rows()) == (where == "nothing")
