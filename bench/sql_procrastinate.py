"""The part of `sql.py` that runs procrastinate in its own environment. It prints its figures as
JSON.

python bench/sql_procrastinate.py postgresql://… 1000 100
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import sys
import time

import procrastinate
import psycopg

GAP_S = 0.02  # seconds between two lone transactions
url, jobs, lone = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
producer = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
starts: list[float] = []
heard: queue.SimpleQueue[float] = queue.SimpleQueue()


@app.task(name="count")
async def count(payload: str) -> None:
    """Record the start of a job."""
    starts.append(time.perf_counter())
    heard.put(starts[-1])


def write(connection: psycopg.Connection, number: int) -> None:
    """Commit an order with its job."""
    with connection.transaction():
        connection.execute("INSERT INTO orders VALUES (%s)", [f"p{number}"])
        producer.configure_task("count", connection=connection).defer(payload="x" * 100)


def fill() -> float:
    """Return the transactions a second, one after another."""
    with producer.open(), psycopg.connect(url, autocommit=True) as connection:
        began = time.perf_counter()
        for number in range(jobs):
            write(connection, number)
        return jobs / (time.perf_counter() - began)


async def drained(number: int) -> float:
    """Return the jobs a second of one worker."""
    starts.clear()
    began = time.perf_counter()
    await app.run_worker_async(
        wait=False, concurrency=100, install_signal_handlers=False, delete_jobs="always"
    )
    assert len(starts) == number, len(starts)
    return number / (starts[-1] - began)


async def lags() -> list[float]:
    """Return the seconds from before a commit to the start of an idle worker's job."""
    while not heard.empty():
        heard.get()
    worker = asyncio.create_task(
        app.run_worker_async(concurrency=100, install_signal_handlers=False)
    )
    await asyncio.sleep(1)
    found: list[float] = []

    def one_by_one() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for number in range(lone):
                time.sleep(GAP_S)
                before = time.perf_counter()
                write(connection, -1 - number)
                found.append(heard.get(timeout=30) - before)

    await asyncio.to_thread(one_by_one)
    worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await worker
    return found


async def main() -> None:
    """Measure, and print."""
    logging.disable(logging.CRITICAL)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        commits = await asyncio.to_thread(fill)
        print(
            json.dumps({"commits": commits, "handled": await drained(jobs), "lags": await lags()})
        )


asyncio.run(main())
