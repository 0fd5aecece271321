"""Databases of the tests. They are files of SQLite, and a PostgreSQL server on the loopback as the
user `postgres`."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from attrs import frozen
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from headrace.sql import create_tables
from tests.support.awaiting import until
from tests.support.servers import _die_with_parent, free_port

# Debian has the server's programs in a folder of their version.
FOLDERS = [
    os.environ.get("PATH", os.defpath),
    *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)),
]
PROGRAMS = [shutil.which(name, path=os.pathsep.join(FOLDERS)) for name in ("initdb", "postgres")]


@frozen
class Database:
    """A database that has the tables, empty."""

    dialect: str
    url: str
    async_url: str

    def engine(self, **options: Any) -> Any:
        """Make an engine without a pool, which needs no close."""
        return create_engine(self.url, poolclass=NullPool, **options)

    def async_engine(self, **options: Any) -> Any:
        """Make an engine for asyncio without a pool."""
        return create_async_engine(self.async_url, poolclass=NullPool, **options)

    def rows(self, columns: str = "job_id") -> list[Any]:
        return self.ask(f"SELECT {columns} FROM headrace_outbox ORDER BY position")

    def ask(self, statement: str) -> list[Any]:
        """Run a statement in a transaction of its own."""
        with self.engine().begin() as connection:
            answer = connection.exec_driver_sql(statement)
            return (
                [tuple(row) if len(row) > 1 else row[0] for row in answer]
                if answer.returns_rows
                else []
            )


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a server and yield its URL."""
    initdb, program = PROGRAMS
    if initdb is None or program is None:
        pytest.skip(
            "no PostgreSQL, neither on PATH nor in /usr/lib/postgresql: apt-get install postgresql"
        )
    if os.geteuid() == 0 and "postgres" not in {user.pw_name for user in pwd.getpwall()}:
        pytest.skip(
            "PostgreSQL does not run as root, and there is no user postgres: useradd postgres"
        )
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgresql-"))
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # as which it does not run
        shutil.chown(folder, "postgres", "postgres")
        user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    data, port = str(folder / "data"), free_port()
    log: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "cwd": folder}
    command = [
        initdb,
        "-D",
        data,
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
        "--locale=C",
    ]
    subprocess.run(command, check=True, **log, **user)
    options = [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "max_connections=30",
    ]
    command = [
        program,
        "-D",
        data,
        "-p",
        str(port),
        *(part for one in options for part in ("-c", one)),
    ]
    server = subprocess.Popen(command, **log, **user, preexec_fn=_die_with_parent())  # noqa: PLW1509
    try:
        until(lambda: answers(port), "PostgreSQL", 30)
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def answers(port: int) -> bool:
    try:
        psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True


def emptied(made: Database) -> Database:
    """Create the tables anew."""
    with made.engine().begin() as connection:
        for table in ("headrace_outbox", "headrace_inbox", "orders"):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
        create_tables(connection)
        connection.exec_driver_sql("CREATE TABLE orders (name TEXT PRIMARY KEY)")
    return made


@contextmanager
def pooler(url: str) -> Iterator[int]:
    """Run a pooler in transaction mode in front of a server, and yield its port."""
    program = shutil.which("pgbouncer", path=os.pathsep.join([*FOLDERS, "/usr/sbin"]))
    if program is None:
        pytest.skip("no pgbouncer, neither on PATH nor in /usr/sbin: apt-get install pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="headrace-pgbouncer-"))
    port = free_port()
    behind = make_url(url)
    (folder / "pgbouncer.ini").write_text(
        POOLER.format(host=behind.host, behind=behind.port, port=port)
    )
    (folder / "users.txt").write_text('"postgres" ""\n')
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # as which it does not run
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "postgres", "postgres")
        user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    command = [program, "-q", str(folder / "pgbouncer.ini")]
    log: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "cwd": folder}
    pool = subprocess.Popen(command, **log, **user, preexec_fn=_die_with_parent())  # noqa: PLW1509
    try:
        until(lambda: answers(port), "pgbouncer", 30)
        yield port
    finally:
        pool.terminate()
        pool.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


POOLER = """
[databases]
* = host={host} port={behind} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = users.txt
pool_mode = transaction
default_pool_size = 5
ignore_startup_parameters = extra_float_digits
"""
