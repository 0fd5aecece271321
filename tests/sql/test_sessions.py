"""The sessions of relays. A process has one, which is renewed by Django's rules. Some notifications
do not come."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import event

from headrace import Queue, Worker
from headrace.sql import Outbox, Relay
from tests.sql.databases import Database, emptied
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server


@pytest.fixture
def database(postgresql_url: str) -> Database:
    """A database of PostgreSQL, with the tables."""
    return emptied(Database("postgresql", postgresql_url, postgresql_url))


def test_one_session_for_all_queues_of_a_worker(database: Database, newest: Server) -> None:
    """A second session exists for an instant. It tests whether the first gets notifications."""
    engine, made = database.engine(), list[Any]()
    event.listen(engine, "connect", lambda *_: made.append(1))
    worker, outboxes, done = (
        Worker(newest.url),
        [Outbox(Queue(name)) for name in "abc"],
        list[bytes](),
    )
    for outbox in outboxes:
        worker.handler(outbox.queue.name)(lambda job: done.append(job.payload))
        worker.relay(outbox, engine)
    with worker:
        for number in range(20):
            for outbox in outboxes:
                with database.engine().begin() as connection:
                    outbox.enqueue(connection, b"%d" % number)
            until(lambda number=number: len(done) == 3 * (number + 1))
    assert len(made) == 2


def test_a_server_that_is_away_holds_up_no_other_s_queues(
    database: Database, newest: Server
) -> None:
    with newest.queue("q") as queue, Queue("away", url="redis://127.0.0.1:1") as away:
        outboxes = [Outbox(away), Outbox(queue)]
        with Relay(database.engine(), *outboxes):
            for number in range(3):
                with database.engine().begin() as connection:
                    for outbox in outboxes:
                        outbox.enqueue(connection, b"%d" % number)
                lease = queue.lease(PATIENCE)
                assert lease is not None
                lease.complete()
        assert len(database.rows()) == 3


def test_a_relay_that_is_told_nothing_polls_and_says_so(
    database: Database, newest: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a pooler in transaction mode, the relay listens on one session and waits on
    another."""
    engine = database.engine()

    def elsewhere(
        _c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        return statement.replace("LISTEN headrace_outbox", "SELECT 1"), parameters

    event.listen(engine, "before_cursor_execute", elsewhere, retval=True)
    with newest.queue("q") as queue, Relay(engine, Outbox(queue)):
        until(lambda: "relay_not_told" in caplog.text)
        with database.engine().begin() as connection:
            Outbox(queue).enqueue(connection, b"one")
        lease = queue.lease(4.0)  # told of nothing, it would look after 5 s
        assert lease is not None


def test_a_relay_that_is_told_does_not_say_so(
    database: Database, newest: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with newest.queue("q") as queue, Relay(database.engine(), Outbox(queue), poll=60):
        with database.engine().begin() as connection:
            Outbox(queue).enqueue(connection, b"one")
        assert queue.lease(PATIENCE / 2) is not None
    assert "relay_not_told" not in caplog.text


DJANGO = """
import json, sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": json.loads(sys.argv[1])})
django.setup()
from django.db import connection, transaction
from headrace import Queue
from headrace.sql import Outbox

def ask(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()

def users():
    return sorted(ask("SELECT usename FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename LIKE 'relay%'"))

def end_sessions():
    ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE 'relay%'")

with Queue("q", url=sys.argv[2]) as queue:
    outbox, used = Outbox(queue), connection.settings_dict
    before = dict(used)
    with connection.cursor():
        pass  # this thread stays the user that it is
    used["USER"] = "relay_one"
    used["OPTIONS"] = {**used["OPTIONS"], "assume_role": "relay_role"}
    with outbox.relay("default"):
        for number in range(8):
            if number == 4:
                used["USER"] = "relay_two"  # as a token that was rotated
                end_sessions()
            with transaction.atomic():
                outbox.enqueue("default", b"%d" % number)
            lease = queue.lease(30)
            assert lease is not None, number
            lease.complete()
            seen = users()
            assert seen == [("relay_one" if number < 4 else "relay_two",)], (number, seen)
connection.close()
print("done")
"""


def test_sessions_are_as_django_makes_them(database: Database, newest: Server) -> None:
    """They have the settings and the role of that moment. There is one at a time, and not one for
    each transaction."""
    for statement in (
        "DROP ROLE IF EXISTS relay_one", "DROP ROLE IF EXISTS relay_two", "CREATE ROLE relay_one LOGIN",
        "CREATE ROLE relay_two LOGIN", "DROP OWNED BY relay_role", "DROP ROLE relay_role",
    ):  # fmt: skip
        try:
            database.ask(statement)
        except Exception:
            assert "relay_role" in statement
    for statement in (
        "CREATE ROLE relay_role", "GRANT relay_role TO relay_one, relay_two",
        "GRANT SELECT, UPDATE, DELETE ON headrace_outbox TO relay_role",
    ):  # fmt: skip
        database.ask(statement)
    port = database.url.rpartition(":")[2].partition("/")[0]
    settings = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
    settings |= {"HOST": "127.0.0.1", "PORT": port}
    command = [sys.executable, "-W", "error", "-c", DJANGO, json.dumps(settings), newest.url]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE * 2, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr
