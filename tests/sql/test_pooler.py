"""A relay behind a pooler in transaction mode (PgBouncer). It hears of no commit, logs that, and
polls often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from headrace.sql import Outbox, Relay
from tests.sql.databases import Database, emptied, pooler
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def port(postgresql_url: str) -> Iterator[int]:
    """The port of a pooler in front of the server."""
    with pooler(postgresql_url) as port:
        yield port


@pytest.fixture
def database(postgresql_url: str) -> Database:
    """The database itself, with the tables."""
    return emptied(Database("postgresql", postgresql_url, postgresql_url))


def pooled(database: Database, port: int) -> Any:
    """Return an engine through the pooler. psycopg then prepares no statements."""
    url = make_url(database.url).set(port=port)
    return create_engine(url, poolclass=NullPool, connect_args={"prepare_threshold": None})


def test_a_relay_behind_a_pooler_says_so_and_looks_often(
    database: Database, newest: Server, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = pooled(database, port)
    with newest.queue("q") as queue, Relay(engine, Outbox(queue)):
        until(lambda: "relay_not_told" in caplog.text)
        for number in range(20):
            with engine.begin() as connection:
                Outbox(queue).enqueue(connection, b"%d" % number)
            lease = queue.lease(4.0)  # told of nothing, it would look after 5 s
            assert lease is not None
            assert lease.job.payload == b"%d" % number
            lease.complete()
    assert database.rows() == []


def test_a_relay_past_the_pooler_is_told(
    database: Database, newest: Server, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay hears of transactions through the pooler. Otherwise it would look again after ten
    minutes."""
    engine = pooled(database, port)
    with newest.queue("q") as queue, Relay(database.engine(), Outbox(queue), poll=600):
        for number in range(20):
            with engine.begin() as connection:
                Outbox(queue).enqueue(connection, b"%d" % number)
            lease = queue.lease(PATIENCE)
            assert lease is not None
            assert lease.job.payload == b"%d" % number
            lease.complete()
    assert "relay_not_told" not in caplog.text


DJANGO = """
import json, sys
import django
from django.conf import settings
databases, url, own = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
task_apps = [] if django.VERSION >= (6,) else ["django_tasks"]
options = {"url": url, "outbox": True, "database": "default", **own}
settings.configure(
    SECRET_KEY="of no use",
    DATABASES=databases,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "headrace.django", *task_apps],
    TASKS={"default": {"BACKEND": "headrace.django.TaskBackend", "QUEUES": ["default", "mail"], "OPTIONS": options}},
)
django.setup()
from django.core.management import call_command
from django.db import connections, transaction
from headrace.django import worker
from tests.django import tasks
from tests.django.conftest import await_end

call_command("check", databases=["default"], fail_level="WARNING", verbosity=0)
with worker():
    for number in range(10):
        with transaction.atomic():
            result = tasks.note.enqueue(number)
        assert await_end(result).return_value == number
connections.close_all()
print("done")
"""


@pytest.mark.parametrize(
    "own", [{"relay_database": "direct", "poll": 600}, {"poll": 0.05}], ids=["past", "through"]
)
def test_django_s_worker(
    database: Database, newest: Server, port: int, own: dict[str, Any]
) -> None:
    """Requests go through the pooler. The worker's relay goes past it or through it."""
    direct = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": "127.0.0.1",
    }
    databases = {
        "default": {**direct, "PORT": port},
        "direct": {**direct, "PORT": make_url(database.url).port},
    }
    command = [sys.executable, "-c", DJANGO, json.dumps(databases), newest.url, json.dumps(own)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE * 2, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr
    assert ("relay_not_told" in done.stderr or "does not tell the relay" in done.stderr) is (
        own["poll"] < 1
    )
