"""The outbox compared with `on_commit` by hand and with procrastinate, on one PostgreSQL in one
run.

    python bench/sql.py --jobs 20000 --lone 300 --rounds 3

Each transaction writes an order and its job. procrastinate's environment is made from the registry.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

sys.path.insert(0, str(Path(__file__).parent.parent))

from headrace import Queue, Worker
from headrace.sql import Outbox, relay_once
from tests.sql.databases import Database, emptied, postgresql
from tests.support.servers import Server, binaries

PEER = "procrastinate"
GAP_S = 0.02  # seconds between two lone transactions
LIMIT_S = 600.0
ORDER = text("INSERT INTO orders VALUES (:name)")
ROWS = """
    INSERT INTO headrace_outbox (queue, payload)
    SELECT 'bench', decode(repeat('61', 100), 'hex') FROM generate_series(1, {number})
"""
Figures = dict[str, Any]
Write = Callable[[Any, str], None]


class Ours:
    """A queue, an outbox, and the database."""

    def __init__(self, database: Database, server: Server) -> None:
        self.database, self.url = database, server.url
        self.engine = create_engine(database.url)
        self.queue: Queue[bytes] = Queue("bench", url=server.url)
        self.outbox = Outbox(self.queue)
        # microseconds of the relay's processor time for a row, a value a round
        self.relay_us: list[float] = []

    def in_outbox(self, connection: Any, name: str) -> None:
        """Commit an order with its job."""
        connection.execute(ORDER, {"name": name})
        self.outbox.enqueue(connection, b"x" * 100)
        connection.commit()

    def on_commit(self, connection: Any, name: str) -> None:
        """Commit an order, then enqueue. A crash between the two loses the job."""
        connection.execute(ORDER, {"name": name})
        connection.commit()
        self.queue.enqueue(b"x" * 100)

    def empty(self) -> None:
        """Empty the queue and the database."""
        self.queue.admin.delete()
        emptied(self.database)

    def commits(self, write: Write, jobs: int) -> float:
        """Return the transactions a second, one after another."""
        self.empty()
        with self.engine.connect() as connection:
            began = time.perf_counter()
            for number in range(jobs):
                write(connection, str(number))
            return jobs / (time.perf_counter() - began)

    def relayed(self, jobs: int) -> float:
        """Return the rows a second of one relay."""
        self.empty()
        self.database.ask(ROWS.format(number=jobs))
        with self.engine.connect() as connection:
            began, spent, moved = time.perf_counter(), time.process_time(), 0
            while some := relay_once(connection, self.outbox):
                moved += some
            assert moved == jobs
            self.relay_us.append((time.process_time() - spent) / jobs * 1e6)
            return jobs / (time.perf_counter() - began)

    def handled(self, jobs: int, *, relay: bool) -> float:
        """Return the jobs a second of a worker, from rows that it relays or from waiting jobs."""
        self.empty()
        if relay:
            self.database.ask(ROWS.format(number=jobs))
        else:
            self.queue.enqueue_many([b"x" * 100] * jobs)
        ends = [0.0] * 1
        worker = self.worker(lambda: ends.append(time.perf_counter()), relay=relay)
        began = time.perf_counter()
        with worker:
            while len(ends) <= jobs:
                time.sleep(0.005)
        return jobs / (ends[-1] - began)

    def worker(self, note: Callable[[], object], *, relay: bool) -> Worker:
        """Make a worker."""
        worker = Worker(self.url)
        worker.handler("bench", concurrency=8)(lambda _job: note() and None)
        if relay:
            worker.relay(self.outbox, self.engine)
        return worker

    def lags(self, write: Write, lone: int, *, relay: bool) -> list[float]:
        """Return the seconds from before a transaction to the first line of an idle worker's
        handler."""
        self.empty()
        starts: queue.SimpleQueue[float] = queue.SimpleQueue()
        found: list[float] = []
        with (
            self.worker(lambda: starts.put(time.perf_counter()), relay=relay),
            self.engine.connect() as connection,
        ):
            time.sleep(1)
            for number in range(lone):
                time.sleep(GAP_S)
                before = time.perf_counter()
                write(connection, str(-1 - number))
                found.append(starts.get(timeout=30) - before)
        return found

    def outbox_figures(self, jobs: int, lone: int) -> Figures:
        """Measure the outbox."""
        return {
            "commits": self.commits(self.in_outbox, jobs // 4), "relayed": self.relayed(jobs),
            "handled": self.handled(jobs, relay=True), "lags": self.lags(self.in_outbox, lone, relay=True),
        }  # fmt: skip

    def by_hand(self, jobs: int, lone: int) -> Figures:
        """Measure `on_commit` without an outbox."""
        return {
            "commits": self.commits(self.on_commit, jobs // 4), "handled": self.handled(jobs, relay=False),
            "lags": self.lags(self.on_commit, lone, relay=False),
        }  # fmt: skip


def environment(folder: Path) -> str:
    """Make procrastinate's environment and return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        for command in (
            [sys.executable, "-m", "venv", folder],
            [python, "-m", "pip", "install", "-q", PEER, "psycopg[binary]"],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return str(python)


def peer(python: str, database: Database, jobs: int, lone: int) -> Figures:
    """Measure procrastinate."""
    emptied(database)
    database.ask("DROP SCHEMA public CASCADE")
    database.ask("CREATE SCHEMA public")
    database.ask("CREATE TABLE orders (name TEXT PRIMARY KEY)")
    plain = database.url.replace("+psycopg", "")
    command = [
        python,
        str(Path(__file__).parent / "sql_procrastinate.py"),
        plain,
        str(jobs // 4),
        str(lone),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def cells(figures: list[Figures]) -> str:
    """Return medians of rounds as cells of a table."""

    def rate(name: str) -> str:
        values = [one[name] for one in figures if name in one]
        return f"{statistics.median(values):,.0f}" if values else "–"

    lags = sorted(1000 * lag for one in figures for lag in one["lags"])
    p50, p99 = lags[len(lags) // 2], lags[int(len(lags) * 0.99)]
    return f"{rate('commits')} | {rate('relayed')} | {rate('handled')} | {p50:.1f} | {p99:.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--lone", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environment", type=Path, help="procrastinate's, kept for the next run")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = (
            given.environment or Path(stack.enter_context(tempfile.TemporaryDirectory())) / PEER
        )
        python = environment(folder)
        url, server = stack.enter_context(postgresql()), stack.enter_context(Server(binaries()[0]))
        database = emptied(Database("postgresql", url, url))
        ours = Ours(database, server)
        ways: dict[str, Callable[[int, int], Figures]] = {
            "headrace, outbox": ours.outbox_figures,
            "headrace, `on_commit` by hand": ours.by_hand,
            PEER: lambda jobs, lone: peer(python, database, jobs, lone),
        }
        found: dict[str, list[Figures]] = {name: [] for name in ways}
        for turn in range(given.rounds):
            names = [*ways][turn % 3 :] + [*ways][: turn % 3]
            for name in names:
                found[name].append(ways[name](given.jobs, given.lone))
    print(
        "| way | transactions/s | relayed, rows/s | handled, jobs/s | lag p50, ms | lag p99, ms |"
    )
    print("|---|---|---|---|---|---|")
    for name, figures in found.items():
        print(f"| {name} | {cells(figures)} |")
    print(f"A relay takes {statistics.median(ours.relay_us):.0f} us of processor time for a row.")
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after; headrace {version('headrace')}")


if __name__ == "__main__":
    main()
