"""Relays as a role of workers and as a program, by notifications, and with connections of
Django."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from sqlalchemy.ext.asyncio import AsyncSession

from headrace import AsyncQueue, AsyncWorker, ConfigurationError, Queue, Worker
from headrace.platform import LIMITS
from headrace.sql import Outbox, Relay, relay_once
from tests.sql.databases import Database
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server


def wrote(database: Database, outbox: Outbox, *payloads: bytes, **options: Any) -> None:
    with database.engine().begin() as connection:
        for payload in payloads:
            outbox.enqueue(connection, payload, **options)


def test_a_worker_relays(database: Database, newest: Server) -> None:
    """The queue names no server, so the worker's is used, also in a second run."""
    outbox, worker, done = Outbox(Queue("q")), Worker(newest.url), list[bytes]()
    worker.handler("q")(lambda job: done.append(job.payload))
    worker.relay(outbox, database.engine())
    for run in (b"one", b"two"):
        with worker:
            wrote(database, outbox, run)
            until(lambda run=run: run in done)
    wrote(database, outbox, b"three")
    assert database.rows("payload") == [b"three"]
    assert done == [b"one", b"two"]


def test_a_worker_for_asyncio_relays(database: Database, newest: Server) -> None:
    """The engine may be of either colour."""

    async def story() -> None:
        engine, done = database.async_engine(), asyncio.Queue[bytes]()
        async with AsyncQueue("q", url=newest.url) as queue:
            outbox, worker = Outbox(queue), AsyncWorker(newest.url)
            others = Outbox(Queue("others"))

            @worker.handler("q")
            @worker.handler("others")
            async def work(job: Any) -> None:
                await done.put(job.payload)

            worker.relay(outbox, engine)
            worker.relay(others, database.engine())
            async with worker:
                async with AsyncSession(engine) as session, session.begin():
                    await outbox.enqueue(session, b"one")
                assert await asyncio.wait_for(done.get(), PATIENCE) == b"one"
                async with AsyncSession(engine) as session, session.begin():
                    await others.enqueue(session, b"two")
                assert await asyncio.wait_for(done.get(), PATIENCE) == b"two"
        await engine.dispose()

    asyncio.run(story())


def test_a_worker_goes_on_while_the_database_or_the_server_is_away(
    database: Database, newest: Server, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, worker, done = Outbox(Queue("q")), Worker(newest.url), list[bytes]()
    worker.handler("q")(lambda job: done.append(job.payload))
    worker.relay(outbox, database.engine(), poll=0.05)
    database.ask("ALTER TABLE headrace_outbox RENAME TO away")
    with worker, newest.queue("q") as queue:
        until(lambda: "relay_failed" in caplog.text)
        queue.enqueue(b"by hand")
        until(lambda: done == [b"by hand"])
        database.ask("ALTER TABLE away RENAME TO headrace_outbox")
        newest.suspend()
        wrote(database, outbox, b"row")
        newest.wake()
        until(lambda: done == [b"by hand", b"row"])


def test_a_worker_stops_in_time_while_the_server_is_away(
    database: Database, newest: Server
) -> None:
    outbox, worker = Outbox(Queue("q")), Worker(newest.url)
    worker.handler("q")(lambda _job: None)
    worker.relay(outbox, database.engine())
    with worker:
        newest.suspend()
        wrote(database, outbox, b"row")
        began = time.monotonic()
        worker.stop()
        took = time.monotonic() - began
        newest.wake()
    assert took < 8


def test_bad_use(database: Database, newest: Server) -> None:
    worker, outbox = Worker(newest.url), Outbox(Queue("q"))
    with pytest.raises(TypeError, match=r"headrace\.sql\.Outbox, not Queue"):
        worker.relay(Queue("q"), database.engine())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="engine must be an Engine"):
        worker.relay(outbox, newest)
    with pytest.raises(ConfigurationError, match="asyncio"):
        worker.relay(outbox, database.async_engine())
    with pytest.raises(ConfigurationError, match="give the queue a URL"):
        AsyncWorker().relay(Outbox(Queue("q", client=newest.client())), database.async_engine())
    with pytest.raises(ValueError, match="poll"):
        worker.relay(outbox, database.engine(), poll=0)


@pytest.mark.ci
def test_notifications_wake_a_relay(
    postgresql_url: str, database: Database, newest: Server
) -> None:
    """Only notifications of this queue do. Without one the relay would look again after a
    minute."""
    if database.dialect == "sqlite":
        pytest.skip("SQLite notifies nobody")
    with newest.queue("q") as queue, newest.queue("other") as other:
        outbox, others = Outbox(queue), Outbox(other)
        with Relay(database.engine(), outbox, poll=60):
            wrote(database, outbox, b"first")
            assert queue.lease(PATIENCE) is not None  # it listens before it looks
            for number in range(5):
                wrote(database, others, b"")
                wrote(database, outbox, b"%d" % number)
                assert queue.lease(PATIENCE / 2) is not None
        assert len(database.rows()) == 5
        with database.engine().connect() as connection:
            assert relay_once(connection, others) == 5


def test_rows_behind_a_key_that_is_not_ours(database: Database, newest: Server) -> None:
    """A key whose first row is for a later relay waits. Rows of other keys behind it do not."""
    with newest.queue("q") as queue:
        outbox = Outbox(queue)
        wrote(database, outbox, *[b"k"] * 5, key="k")
        database.ask(
            "UPDATE headrace_outbox SET version = 2 WHERE position = (SELECT min(position) FROM headrace_outbox)"
        )
        wrote(database, outbox, b"free")
        with database.engine().connect() as connection:
            assert [relay_once(connection, outbox, limit=2) for _ in range(2)] == [1, 0]
        assert len(database.rows()) == 5


PROGRAM = """
from headrace import Queue
from headrace.sql import Outbox
outbox = Outbox(Queue("q"))
queue = outbox.queue
"""


def test_the_program(database: Database, newest: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "headrace", "relay", *arguments, "--url", newest.url]
        return subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)

    with newest.queue("q") as queue, begin("shop:outbox", "--database", database.url) as program:
        wrote(database, Outbox(queue), b"one")
        try:
            assert queue.lease(PATIENCE) is not None
        finally:
            program.terminate()
        _, said = program.communicate(timeout=PATIENCE)
        assert "relays the outbox of queue q" in said, said
        assert program.returncode == 0
    for arguments, words in {
        ("shop:queue", "--database", database.url): "no headrace.sql.Outbox",
        ("shop:nothing", "--database", database.url): "no headrace.sql.Outbox",
        ("shop:outbox", "--database", "sqlite+aiosqlite://"): "one for threads",
        ("shop:outbox", "--database", "nonsense://"): "--database",
    }.items():
        with begin(*arguments) as program:
            assert words in program.communicate(timeout=PATIENCE)[1]
            assert program.returncode == 2


DJANGO = """
import json, sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": json.loads(sys.argv[1])})
django.setup()
from django.db import connection, transaction
from headrace import ConfigurationError, Job, Queue
from headrace.platform import LIMITS
from headrace.sql import Outbox, Relay, inbox
with Queue("q", url=sys.argv[2], ordered=True) as queue:
    outbox = Outbox(queue)
    for session in (connection, "default", (other := connection.copy())):
        try:
            outbox.enqueue(session, b"lost")
            raise AssertionError("not refused")
        except ConfigurationError as error:
            assert "transaction.atomic()" in str(error), error
    with transaction.atomic():
        assert outbox.enqueue(connection, b"one", id="1", key="k").added
        assert not outbox.enqueue("default", b"again", id="1").added
        assert inbox(connection, Job("1", b"", "q", {}, 1, 1.0))
        assert not inbox("default", Job("1", b"", "q", {}, 1, 1.0))
    try:
        with transaction.atomic():
            outbox.enqueue(connection, b"lost")
            raise KeyError
    except KeyError:
        pass
    with outbox.relay("default"):
        lease = queue.lease(30)
        assert lease.job.payload == b"one"
        lease.complete()
    assert queue.lease() is None
connection.close()
other.close()
print("done")
"""


def test_connections_of_django(database: Database, newest: Server) -> None:
    if database.dialect == "sqlite":
        settings = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": database.url.removeprefix("sqlite:///"),
        }
    else:
        port = database.url.rpartition(":")[2].partition("/")[0]
        settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "postgres",
        }
        settings |= {"HOST": "127.0.0.1", "PORT": port}
    command = [sys.executable, "-W", "error", "-c", DJANGO, json.dumps(settings), newest.url]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE * 2, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr
    assert not done.stderr


def test_a_row_that_is_committed_late_is_not_passed_by(
    database: Database, newest: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that follows a full one begins after it. The relay comes back for rows with earlier
    positions."""
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one writer: positions are in the order of commits")
    monkeypatch.setattr("headrace.sql._sync.relay.LIMITS", evolve(LIMITS, jobs_per_script=3))
    with newest.queue("q") as queue:
        outbox = Outbox(queue)
        with database.engine().begin() as late:
            outbox.enqueue(late, b"late")
            wrote(database, outbox, *[b"x"] * 30)
            with Relay(database.engine(), outbox, poll=60):
                until(lambda: queue.counts().present >= 6)
                late.commit()
                until(lambda: queue.counts().present == 31)
        assert database.rows() == []
