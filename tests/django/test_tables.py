"""The tables of outbox and inbox in Django. The tests cover their SQL, their models, and a
schema."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TransactionTestCase

from headrace import Job, Queue
from headrace.django.models import InboxRow, OutboxRow
from headrace.sql import Outbox, inbox
from tests.django import tasks
from tests.django.conftest import MANAGE, ROOT
from tests.sql.databases import postgresql
from tests.support.servers import Server

Make = Callable[..., Any]
JOB = Job("17", b"", "q", {}, 1, 1.0)


def rows() -> tuple[int, int]:
    return OutboxRow.objects.count(), InboxRow.objects.count()


def write() -> None:
    """Write a row of each table."""
    with transaction.atomic():
        tasks.note.enqueue("kept")
        assert inbox("default", JOB)


def test_the_migration_is_printed(migrated: None, tmp_path: Path) -> None:
    """The SQL makes the same tables when it is run by hand. The reverse is printed too."""
    printed = io.StringIO()
    call_command("sqlmigrate", "headrace", "0001", stdout=printed)
    call_command(
        "sqlmigrate", "headrace", "0001", backwards=True, stdout=(backwards := io.StringIO())
    )
    asking = "SELECT name, replace(sql, char(34), '') FROM sqlite_master WHERE name LIKE 'headrace%' ORDER BY name"
    with sqlite3.connect(tmp_path / "by_hand") as by_hand, connection.cursor() as cursor:
        by_hand.executescript(printed.getvalue())
        cursor.execute(asking)
        found = by_hand.execute(asking).fetchall()
        assert found == cursor.fetchall()
        assert len(found) == 6
        by_hand.executescript(backwards.getvalue())
        assert by_hand.execute(asking).fetchall() == []
    by_hand.close()


def test_a_transaction_test_case_empties_the_tables(backend: Make, database: None) -> None:
    """Rows of one test are not relayed in the next."""

    class Case(TransactionTestCase):
        def test_it(self) -> None:
            assert rows() == (0, 0)
            write()
            assert rows() == (1, 1)

    backend(outbox=True)
    for _ in range(2):
        outcome = unittest.TestResult()
        Case("test_it")(outcome)
        assert outcome.testsRun == 1
        assert outcome.wasSuccessful(), [*outcome.errors, *outcome.failures]
    assert rows() == (0, 0)


def test_django_s_dump_of_all_models(backend: Make, database: None, tmp_path: Path) -> None:
    """The dump has the rows, and can be loaded again. The model of the admin's entry has no table
    to ask."""
    backend(outbox=True)
    write()
    before = [list(model.objects.values()) for model in (OutboxRow, InboxRow)]
    path = tmp_path / "dump.json"
    for every in (False, True):
        call_command("dumpdata", "headrace", use_base_manager=every, output=str(path), verbosity=0)
        assert [one["model"] for one in json.loads(path.read_text())] == [
            "headrace.outboxrow",
            "headrace.inboxrow",
        ]
    call_command("flush", verbosity=0, interactive=False)
    call_command("loaddata", str(path), verbosity=0)
    assert [list(model.objects.values()) for model in (OutboxRow, InboxRow)] == before


def test_the_models_are_of_these_tables(backend: Make, database: None) -> None:
    """Each column of them, as programs of SQL write it."""
    backend(outbox=True)
    with transaction.atomic():
        Outbox(Queue("q")).enqueue("default", b"x", id="1", headers={"a": "b"}, delay=60, key="k")
        assert inbox("default", JOB)
    row = OutboxRow.objects.get()
    assert (row.queue, row.job_id, bytes(row.payload), json.loads(row.headers)["a"]) == (
        "q",
        "1",
        b"x",
        "b",
    )
    assert (row.namespace, row.job_key, row.delay_ms, row.due_ms, row.refused) == (
        "headrace",
        "k",
        60_000,
        None,
        None,
    )
    assert InboxRow.objects.get(pk=("q", "17", 1000)).attempt == 1
    for model in (OutboxRow, InboxRow):
        with connection.cursor() as cursor:
            names = [
                one.name
                for one in connection.introspection.get_table_description(
                    cursor, model._meta.db_table
                )
            ]
        assert sorted(names) == sorted(one.column for one in model._meta.local_concrete_fields)


SETTINGS = """
from tests.django.project import *

DATABASES["default"] = {database!r}
TASKS["default"]["OPTIONS"] = {options!r}
"""
STORY = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "own_settings"
import django
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from headrace import Job
from headrace.django import worker
from headrace.django.models import InboxRow, OutboxRow
from headrace.sql import inbox
from tests.django import tasks
from tests.django.conftest import await_end

with transaction.atomic():
    result = tasks.note.enqueue("in a schema")
    assert inbox("default", Job("17", b"", "q", {}, 1, 1.0), schema="queues")
assert tasks.note.get_result(result.id).args == ["in a schema"]
assert (OutboxRow.objects.count(), InboxRow.objects.count()) == (1, 1)
call_command("dumpdata", "headrace", output="dump.json", verbosity=0)
OutboxRow.objects.all().delete()
call_command("loaddata", "dump.json", verbosity=0)
with worker():
    assert await_end(result).return_value == "in a schema"
    assert await_end(tasks.note.enqueue("another")).return_value == "another"
assert OutboxRow.objects.count() == 0
with connection.cursor() as cursor:
    cursor.execute("SELECT table_schema FROM information_schema.tables WHERE table_name LIKE 'headrace%'")
    assert cursor.fetchall() == [("queues",)] * 2
connection.close()
"""


@pytest.mark.slow
def test_a_schema(newest: Server, tmp_path: Path) -> None:
    """The migration creates it, and Django, the backend and its worker use the tables in it."""

    def run(*command: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    with postgresql() as url:
        place = urlsplit(url)
        server = {
            "NAME": place.path[1:],
            "USER": place.username,
            "HOST": place.hostname,
            "PORT": place.port,
        }
        database = {"ENGINE": "django.db.backends.postgresql", **server}
        options = {"url": newest.url, "outbox": True, "schema": "queues"}
        (tmp_path / "own_settings.py").write_text(
            SETTINGS.format(database=database, options=options)
        )
        (tmp_path / "manage.py").write_text(MANAGE)
        (tmp_path / "story.py").write_text(STORY)
        said = "database 'default' has no table \"queues\".headrace_outbox"
        assert said in run("manage.py", "check", "--database", "default")
        assert 'CREATE TABLE "queues".headrace_outbox (' in run(
            "manage.py", "sqlmigrate", "headrace", "0001"
        )
        run("manage.py", "migrate", "-v0")
        assert "no issues" in run("manage.py", "check", "--database", "default")
        assert "No changes" in run(
            "manage.py", "makemigrations", "--check", "--dry-run", "headrace"
        )
        run("story.py")
        run("manage.py", "migrate", "headrace", "zero", "-v0")
