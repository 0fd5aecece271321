"""Programs that are killed repeatedly, between any two statements and at every byte of a relay's
calls.

    python -m tests.sql.kills --runs 1000 --database postgresql

Each is judged by the database and the queue: one job a committed row, in order, and none of a row
that was rolled back; one debit a job.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis.connection
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from headrace import Queue
from headrace.sql import Outbox, inbox, relay_once
from tests.sql.databases import Database, emptied, postgresql
from tests.support.awaiting import PATIENCE, until
from tests.support.processes import CONTEXT
from tests.support.proxy import Proxy
from tests.support.servers import Server, binaries

ORDER = text("INSERT INTO orders VALUES (:name)")
DEBIT = text("UPDATE account SET balance = balance - 1")
STEPS = 34  # a program that writes and relays has about so many
JOBS = 10  # that wait for the inbox's program, so that it always has one


def die(*_: Any) -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def stepping(engine: Any, at: int) -> None:
    """Die at a step, which is before or after a statement, a commit, or a call of the queue."""
    steps = itertools.count()

    def step(*_: Any) -> None:
        if next(steps) == at:
            die()

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **options: Any) -> Any:
            step()
            answer = call(*args, **options)
            step()
            return answer

        return stepped

    for name in ("enqueue_many", "lease", "complete"):
        setattr(Queue, name, around(getattr(Queue, name)))
    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, name, step)


def writes_and_relays(database: Database, url: str, at: int | None, run: int) -> None:
    """Write an order with two jobs, roll another back, and relay. Die at step *at*, or without it
    at a broken call."""
    engine = database.engine()
    if at is None:
        redis.connection.AbstractConnection.disconnect = die  # type: ignore[method-assign]
    else:
        stepping(engine, at)
    with Queue("q", url=url) as queue:
        outbox = Outbox(queue)
        with Session(engine) as session:
            session.execute(ORDER, {"name": f"lost {run}"})
            outbox.enqueue(session, b"lost", key="k")
            session.rollback()
        with Session(engine) as session, session.begin():
            session.execute(ORDER, {"name": str(run)})
            for part in (b"a", b"b"):
                outbox.enqueue(session, b"%d%s" % (run, part), key="k")
        with engine.connect() as connection:
            while relay_once(connection, outbox):
                pass
    die()


def debits(database: Database, url: str, at: int, _run: int) -> None:
    """Take jobs, each with a debit, and die at a step."""
    engine = database.engine()
    stepping(engine, at)
    with Queue("debits", url=url, lease=0.3) as queue:
        while (lease := queue.lease(PATIENCE)) is not None:
            with Session(engine) as session, session.begin():
                if inbox(session, lease.job):
                    session.execute(DEBIT)
            lease.complete()


@contextmanager
def started(body: Callable[..., None], *arguments: Any) -> Any:
    """Run *body* in a process until it is dead."""
    process = CONTEXT.Process(target=body, args=arguments)
    process.start()
    yield process
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL, process.exitcode
    process.close()


def taken(queue: Queue[bytes]) -> list[bytes]:
    """Complete all jobs and return their payloads."""
    found = []
    while (lease := queue.lease()) is not None:
        found.append(lease.job.payload)
        lease.complete()
    return found


def relays(database: Database, server: Server, runs: int) -> dict[str, int]:
    """Kill programs that write and relay, half of them at steps and half at bytes of their calls.
    Judge each."""
    told = {"runs": 0, "committed": 0, "jobs": 0}
    sizes = {"requests": 600, "replies": 200}
    with Proxy(server.path) as proxy, server.queue("q") as queue:
        outbox, random_byte = Outbox(queue), random.Random(7)
        for run in range(runs):
            at = run // 2 % STEPS if run % 2 == 0 else None
            if at is None:
                side = "requests" if run % 4 == 1 else "replies"
                proxy.cut(side, random_byte.randrange(sizes[side]))
            with started(
                writes_and_relays, database, proxy.url if at is None else server.url, at, run
            ):
                pass
            if at is None:
                seen = {"requests": len(proxy.requests), "replies": len(proxy.replies)}
                sizes = {name: max(seen[name] + 8, size) for name, size in sizes.items()}
                proxy.reset()
            found = taken(queue)
            with database.engine().connect() as connection:
                while relay_once(connection, outbox):
                    pass
            found += taken(queue)
            committed = database.ask("SELECT name FROM orders")
            assert committed in ([], [str(run)]), (run, committed)
            assert found == [f"{run}{part}".encode() for part in "ab" if committed], (
                run,
                at,
                found,
            )
            assert database.rows() == []
            database.ask("DELETE FROM orders")
            told["runs"] += 1
            told["committed"] += len(committed)
            told["jobs"] += len(found)
        assert queue.counts().present == 0
    return told


def accounts(database: Database, server: Server, runs: int) -> dict[str, int]:
    """Kill programs that debit an account in an inbox. Judge the account once no job is left."""
    database.ask("DROP TABLE IF EXISTS account")
    database.ask("CREATE TABLE account (balance INTEGER)")
    database.ask("INSERT INTO account VALUES (0)")
    number, steps = 0, random.Random(7)
    with server.queue("debits", lease=0.3) as queue:
        for run in range(runs):
            while queue.counts().present < JOBS:
                queue.enqueue(b"1")
                number += 1
            with started(debits, database, server.url, steps.randrange(40), run):
                pass
        end = time.monotonic() + PATIENCE
        while queue.counts().present:
            assert time.monotonic() < end
            lease = queue.lease(1.0)
            if lease is not None:
                with Session(database.engine()) as session, session.begin():
                    if inbox(session, lease.job):
                        session.execute(DEBIT)
                lease.complete()
    (balance,) = database.ask("SELECT balance FROM account")
    assert balance == -number, (balance, number)
    assert database.ask("SELECT count(*) FROM headrace_inbox") == [number]
    return {"runs": runs, "jobs": number, "balance": balance}


def main() -> None:
    """Kill so many of each, and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    given = parser.parse_args()
    CONTEXT.set_forkserver_preload(["tests.sql.relays", "tests.support.proxy"])
    with Server(binaries()[0]) as server, tempfile.TemporaryDirectory() as folder:
        until(lambda: server.ask("PING") is not None)
        if given.database == "sqlite":
            told(
                emptied(Database("sqlite", f"sqlite:///{Path(folder)}/db", "")), server, given.runs
            )
        else:
            with postgresql() as url:
                told(emptied(Database("postgresql", url, url)), server, given.runs)


def told(database: Database, server: Server, runs: int) -> None:
    """Run both and print their output."""
    for body in (relays, accounts):
        began = time.monotonic()
        print(
            database.dialect,
            body.__name__,
            body(database, server, runs),
            f"{time.monotonic() - began:.0f} s",
        )


if __name__ == "__main__":
    main()
